// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accesses and operations of one node, without a peer; and those of a device inside QEMU.

use super::{Options, batch, nanoseconds, timed};
use std::collections::BTreeMap;
use std::time::Instant;
use telegraphos::{FULL, LaunchStyle, Node, NodeId, Queue, Remote};
use telegraphos_guest_tests::cli::{self, Failure, Outcome};
use telegraphos_guest_tests::peers::import_patiently;
use telegraphos_guest_tests::raw;
use telegraphos_guest_tests::testdev::Testdev;

/// Stores of a batch with quiet behind it (SPEC item 29).
const BATCH: u64 = 100;

pub(crate) struct Own {
    node: Node,
    testdev: Option<Testdev>,
    pub(crate) remote: Remote,
    /// This node's memory, by way of the board.
    home: Remote,
    empty: Queue,
    /// The partner's direct memory, or why there is none.
    pub(crate) direct: Outcome<Remote>,
}

fn direct(options: &Options, node: &Node, partner: NodeId) -> Outcome<Remote> {
    cli::must(node.trust_group()?.is_some(), Failure::Refused, || "the nodes are in no trust group".into())?;
    let remote = import_patiently(node, partner, "bench-direct", options.patience)?;
    cli::must(remote.state()?.direct, Failure::Refused, || "accesses go through the boards".into())?;
    Ok(remote)
}

impl Own {
    pub(crate) fn open(options: &Options, node: &Node, partner: NodeId) -> Outcome<Own> {
        import_patiently(node, partner, "bench-data", options.patience)?.close()?;
        Ok(Own {
            node: node.clone(),
            testdev: if options.baseline { Some(Testdev::open()?) } else { None },
            remote: node.import(partner, "bench-data").rights(FULL).open()?,
            home: node.import(node.id(), "bench-data").rights(FULL).open()?,
            empty: Queue::create(node, "bench-empty").wide().create()?,
            direct: direct(options, node, partner),
        })
    }

    /// One round of everything.
    pub(crate) fn round(&mut self, options: &Options, ns: &mut BTreeMap<String, f64>) -> Outcome<()> {
        let Own { node, remote, home, .. } = self;
        let singles = options.singles;
        let mut put = |op: &str, value: f64| _ = ns.insert(op.to_owned(), value);
        if let Some(testdev) = &self.testdev {
            // SAFETY: the byte lies in the mapped BAR.
            let store = batch(500, |i| unsafe { raw::store::<u8>(testdev.at(), Testdev::IDLE as u64, i) });
            // SAFETY: as above.
            let load = batch(500, |_| _ = unsafe { raw::load::<u8>(testdev.at(), Testdev::IDLE as u64) });
            put("testdev_store", store);
            put("testdev_load", load);
        }
        // One at a time, each with an idle road before it; waiting for quiet is not counted.
        let single = |remote: &Remote, store: &dyn Fn(u64)| -> Outcome<f64> {
            let mut total = 0.0;
            for index in 0..singles {
                let begun = Instant::now();
                store(index % 8192);
                total += nanoseconds(begun, 1);
                remote.quiet()?;
            }
            Ok(total / singles as f64)
        };
        let (window, own) = (remote.as_ptr(), home.as_ptr());
        // SAFETY: offsets are aligned and below 64 KiB, which both segments have.
        put("store_isolated", single(remote, &|i| unsafe { raw::store::<u64>(window, i * 8, i) })?);
        // SAFETY: as above.
        put("store_byte", single(remote, &|i| unsafe { raw::store::<u8>(window, i, i) })?);
        // SAFETY: as above.
        put("store_local", single(home, &|i| unsafe { raw::store::<u64>(own, i * 8, i) })?);
        let begun = Instant::now();
        for index in 0..options.stream {
            // SAFETY: as above.
            unsafe { raw::store::<u64>(window, index % 8192 * 8, index) };
        }
        put("store_issue", nanoseconds(begun, options.stream));
        remote.quiet()?;
        put("store_drained", nanoseconds(begun, options.stream));
        // The network is quiet before each batch, which is not counted.
        let (mut total, mut stores) = (0.0, 0);
        while stores < options.stream {
            let begun = Instant::now();
            for index in 0..BATCH {
                // SAFETY: as above.
                unsafe { raw::store::<u64>(window, (stores + index) % 8192 * 8, index) };
            }
            total += nanoseconds(begun, 1);
            stores += BATCH;
            remote.quiet()?;
        }
        put("store_batch_100", total / stores as f64);
        // SAFETY: as above.
        put("load_remote", batch(singles, |i| _ = unsafe { raw::load::<u64>(window, i % 8192 * 8) }));
        // SAFETY: as above.
        put("load_byte", batch(singles, |i| _ = unsafe { raw::load::<u8>(window, i % 8192) }));
        // SAFETY: as above.
        put("load_local", batch(singles, |i| _ = unsafe { raw::load::<u64>(own, i % 8192 * 8) }));
        put("quiet", timed(singles, || remote.quiet())?);
        for (op, style) in [
            ("fetch_add", LaunchStyle::Context),
            ("fetch_add_load", LaunchStyle::Load),
            ("fetch_add_special", LaunchStyle::Special),
            ("fetch_add_plain", LaunchStyle::Plain),
        ] {
            node.set_launch_style(style);
            put(op, timed(singles, || remote.fetch_add::<u64>(128, 1).map(drop))?);
        }
        node.set_launch_style(LaunchStyle::default());
        let begun = Instant::now();
        for _ in 0..100 {
            self.empty.try_pop()?;
        }
        put("queue_empty_look", nanoseconds(begun, 100));
        Ok(())
    }
}
