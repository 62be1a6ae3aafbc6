// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies between hosts, without VMs: two boards at two fabrics with a trunk between them, each in a thread of its own,
//! and a client in QEMU's place.
//!
//! `cargo run --release -p telegraphos-device --example trunk_copies [ADDRESS [LATENCY]]`, such as `udp:127.0.0.1:7001
//! 100us`: what carries the trunk, and how much later it delivers. Wall time, medians; compare rows of runs that were
//! interleaved.
// An example fails by panicking, its helpers too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::time::Instant;

use support::linked::{Node, Switch};
use telegraphos_device::Settings;
use telegraphos_device_client::{Client, Guest, MEMORY, WINDOW, window};
use telegraphos_testkit::eventually;
use telegraphos_wire::{Rights, Status};

/// Export pages of each node, of 64 KiB: room for the longest copy.
const PAGES: u32 = 256;

fn fabric(dir: &Path, process: &str, fault: &[String]) -> Switch {
    let settings = telegraphos_fabric::Settings {
        listen: Some(dir.join(format!("{process}.sock"))),
        topology: Some(dir.join("topology.toml").display().to_string()),
        process: Some(process.to_owned()),
        fault: fault.to_vec(),
        ..Default::default()
    };
    Switch::with(settings.config().unwrap())
}

fn board(dir: &Path, node: u16, process: &str) -> (Node, Guest) {
    let fabric = Some(dir.join(format!("{process}.sock")));
    let board = Node::start(dir, node, Settings { fabric, ..Settings::default() });
    let mut guest = Guest::boot(Client::new(&board.socket).unwrap()).unwrap();
    guest.join().unwrap();
    guest.open_context(0).unwrap();
    (board, guest)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let address = args.first().map_or("udp:127.0.0.1:7001", String::as_str);
    let fault: Vec<String> = args.get(1).map(|latency| format!("trunk:a-b=latency={latency}")).into_iter().collect();
    let dir = tempfile::tempdir().unwrap();
    let topology = format!(
        "[[switch]]\nname = \"a\"\nnodes = \"0\"\nprocess = \"a\"\n[[switch]]\nname = \"b\"\nnodes = \"1\"\n\
         process = \"b\"\n[[trunk]]\nbetween = [\"a\", \"b\"]\nat = \"{address}\"\n"
    );
    std::fs::write(dir.path().join("topology.toml"), topology).unwrap();
    let _fabrics = ["a", "b"].map(|process| fabric(dir.path(), process, &fault));
    let ((_a, mut a), (_b, mut b)) = (board(dir.path(), 0, "a"), board(dir.path(), 1, "b"));
    let rights = Rights(Rights::ALL.0 & !Rights::ENQUEUE.0);
    let own = a.grant(0, 0, PAGES, MEMORY, rights).unwrap();
    let other = b.grant(1, 0, PAGES, MEMORY, rights).unwrap();
    a.import(0, &own, rights).unwrap();
    // The other node, once the trunk is up.
    eventually("the other node", || a.import(PAGES as u16, &other, rights).ok());
    let far = PAGES as u16;
    eventually("the trunk", || (a.client.read(WINDOW, window(1, far, 0), 8).unwrap() != u64::MAX).then_some(()));

    for (size, count) in [(8u64 << 10, 200), (1 << 20, 30), (16 << 20, 5)] {
        for (what, places) in [("put", [(1, far, 0), (0, 0, 0)]), ("get", [(0, 0, 0), (1, far, 0)])] {
            let mut copy = || {
                let begun = Instant::now();
                let cookie = a.begin_copy(2, places, size).unwrap();
                let status = loop {
                    if let Some(status) = a.done(2, cookie).unwrap() {
                        break status;
                    }
                    std::thread::sleep(std::time::Duration::from_micros(50));
                };
                assert_eq!(status, Status::Ok);
                begun.elapsed().as_secs_f64() * 1e6
            };
            // The first one finds memory that has never been touched.
            copy();
            let mut took: Vec<f64> = (0..count).map(|_| copy()).collect();
            took.sort_by(f64::total_cmp);
            println!("{what} {size:>9} {:>10.0} us, at best {:>10.0}", took[took.len() / 2], took[0]);
        }
    }
}
