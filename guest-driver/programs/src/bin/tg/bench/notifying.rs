// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one notification costs its sender: by the notification queue, and by queues in software.

use super::pair::{self, DRAIN};
use super::{Round, nanoseconds};
use std::time::{Duration, Instant};
use telegraphos::{FULL, Node, NodeId, Queue, Segment};
use telegraphos_guest_tests::cli::{self, Failure, Outcome};
use telegraphos_guest_tests::notify::{Imports, Layout, Method, Receiver, Sender};
use telegraphos_guest_tests::peers::import_patiently;

/// Notifications in a row, while the receiver does not look.
const BURST: u64 = 32;
const LAYOUT: Layout = Layout { senders: 1, room: BURST as usize };
const METHODS: [(&str, Method); 4] = [
    ("enqueue", Method::Req),
    ("queue_add", Method::Add),
    ("queue_add_known", Method::AddKnown),
    ("queue_lock", Method::Lock),
];

pub(crate) struct Exports {
    data: Segment,
    queue: Queue,
}

impl Exports {
    pub(crate) fn new(node: &Node) -> Outcome<Exports> {
        Ok(Exports {
            data: node.export("bench-notify", LAYOUT.bytes()).owner(FULL).others(FULL).create()?,
            queue: Queue::create(node, "bench-notify-queue").wide().mode(0o606).create()?,
        })
    }

    pub(crate) fn receiver(&self) -> Outcome<Draining<'_>> {
        Ok(Draining(Receiver::of(&self.data, Some(&self.queue), LAYOUT)?))
    }
}

pub(crate) struct Draining<'a>(Receiver<'a, Queue>);

impl Draining<'_> {
    /// Takes so many notifications, all of which are there or on their way.
    pub(crate) fn drain(&mut self, method: u64, count: u64) -> Outcome<()> {
        let method = usize::try_from(method).ok().and_then(|index| METHODS.get(index));
        let (name, method) = method.ok_or_else(|| Failure::Usage("no such method".into()))?;
        let mut taken = Vec::new();
        let begun = Instant::now();
        while (taken.len() as u64) < count {
            self.0.look(*method, 1, &mut taken)?;
            let soon = begun.elapsed() <= Duration::from_secs(5);
            cli::check(soon, || format!("{name}: {} of {count} have come", taken.len()))?;
        }
        Ok(())
    }
}

pub(crate) struct Lead(Sender<Imports>);

impl Lead {
    pub(crate) fn open(node: &Node, partner: NodeId, patience: Duration) -> Outcome<Lead> {
        let data = import_patiently(node, partner, "bench-notify", patience)?;
        let queue = Some(Queue::import(node, partner, "bench-notify-queue").open()?);
        Ok(Lead(Sender::new(Imports { data, queue }, 0, patience)))
    }

    pub(crate) fn round(&mut self, lead: &mut pair::Lead<'_>, values: &mut Round<'_>) -> Outcome<()> {
        for (index, (name, method)) in METHODS.into_iter().enumerate() {
            let begun = Instant::now();
            for number in 1..=BURST {
                self.0.notify(method, 1, number, LAYOUT.message(0, number) as u64)?;
            }
            values.ns.insert(name.into(), nanoseconds(begun, BURST));
            self.0.far.data.quiet()?;
            lead.order(DRAIN + index as u64, BURST)?;
            lead.wait()?;
        }
        Ok(())
    }
}
