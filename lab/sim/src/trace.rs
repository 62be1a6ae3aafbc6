// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens in a run, written while it runs in the trace event format (JSON) that <https://ui.perfetto.dev> and
//! `chrome://tracing` open. Nothing is kept, so a trace takes no memory, however long it is.
//!
//! Processes and threads of the format are tracks here:
//!
//! | Process | Threads | On it |
//! |---|---|---|
//! | 1 "operations" | nodes | each operation of the node, from when it was to be issued to its end |
//! | 2 "to switches" | nodes | packets on the link from the node, while their bytes leave |
//! | 3 "to nodes" | nodes | packets on the link to the node |
//! | 4 "trunks" | directions of trunks | packets on the trunk |
//!
//! Packets of one link are never sent at the same time: they are slices, joined from the first link to the last by a
//! flow. Operations overlap: they are asynchronous events. Time begins with the operations, in microseconds with six
//! decimals, which is the simulation's own resolution.

use crate::pipe::{Sender, Wire, frame_len};
use crate::units::{MICROSECOND, Time};
use crate::workload::Operation;
use std::io::{self, Write};
use telegraphos_wire::link::Frame;
use telegraphos_wire::packet::MULTICAST;
use telegraphos_wire::{Class, NodeId, Packet};

/// A link or a direction of a trunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Track {
    /// From a node to its switch.
    Up(u32),
    /// From a switch to a node.
    Down(u32),
    /// One direction of a trunk.
    Trunk(u32),
}

impl Track {
    /// The numbers of its process and its thread.
    fn place(self) -> (u8, u32) {
        match self {
            Track::Up(node) => (2, node),
            Track::Down(node) => (3, node),
            Track::Trunk(direction) => (4, direction),
        }
    }
}

/// The names of the processes, from 1 on.
const PROCESSES: [&str; 4] = ["operations", "to switches", "to nodes", "trunks"];

/// See the module.
pub(crate) struct Trace {
    out: Box<dyn Write + Send>,
    /// When the trace begins.
    origin: Time,
    /// Operations so far, which number them.
    operations: u64,
    any: bool,
    /// The first failure; nothing is written from then on.
    failed: Option<io::Error>,
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").field("origin", &self.origin).field("failed", &self.failed).finish_non_exhaustive()
    }
}

/// What joins the slices of a packet: no other packet that is in flight at the same time has it. A multicast becomes
/// several packets, which the format cannot join.
fn flow_of(packet: &Packet) -> Option<u64> {
    let reply = u64::from(packet.class() == Class::Reply);
    let nodes = u64::from(packet.src) << 12 | u64::from(packet.dst);
    (packet.dst != MULTICAST && packet.class() != Class::Reflected)
        .then_some(nodes << 33 | reply << 32 | u64::from(packet.tag))
}

impl Trace {
    /// A trace that begins at `origin`, of so many nodes, and of trunks with these names of their directions.
    pub(crate) fn new(
        out: Box<dyn Write + Send>,
        origin: Time,
        nodes: u32,
        trunks: impl Iterator<Item = String>,
    ) -> Trace {
        let mut trace = Trace { out, origin, operations: 0, any: false, failed: None };
        for (process, name) in (1..).zip(PROCESSES) {
            trace.name("process_name", process, 0, name);
            if process < 4 {
                (0..nodes).for_each(|node| trace.name("thread_name", process, node, &format!("node {node}")));
            }
        }
        (0..).zip(trunks).for_each(|(direction, name)| trace.name("thread_name", 4, direction, &name));
        trace
    }

    fn name(&mut self, what: &str, process: u8, thread: u32, name: &str) {
        // Only digits, letters and spaces: nothing to escape.
        self.event(format_args!(
            r#"{{"ph":"M","name":"{what}","pid":{process},"tid":{thread},"args":{{"name":"{name}"}}}}"#
        ));
    }

    fn event(&mut self, event: std::fmt::Arguments<'_>) {
        if self.failed.is_some() {
            return;
        }
        let before = if std::mem::replace(&mut self.any, true) { ",\n" } else { "{\"traceEvents\":[\n" };
        self.failed = write!(self.out, "{before}{event}").err();
    }

    /// Microseconds since the trace began.
    fn at(&self, time: Time) -> String {
        let time = time.saturating_sub(self.origin);
        format!("{}.{:06}", time / MICROSECOND, time % MICROSECOND)
    }

    /// A frame is given to a sender at `now`; it leaves behind those before it.
    pub(crate) fn frame(&mut self, track: Track, sender: &Sender, now: Time, frame: &Frame, (per_byte, _): Wire) {
        let (Frame::Packet(packet) | Frame::Forward { packet, .. }) = frame else { return };
        let (process, thread) = track.place();
        let bytes = frame_len(frame);
        let (at, lasts) = (self.at(sender.free_at().max(now)), self.at(self.origin + bytes * per_byte));
        let Packet { src, dst, tag, .. } = *packet;
        let name = packet.body.name();
        self.event(format_args!(
            r#"{{"ph":"X","cat":"packet","name":"{name}","pid":{process},"tid":{thread},"ts":{at},"dur":{lasts},"args":{{"from":{src},"to":{dst},"tag":{tag},"bytes":{bytes}}}}}"#
        ));
        let Some(flow) = flow_of(packet) else { return };
        let (step, binds) = match track {
            Track::Up(_) => ("s", ""),
            Track::Trunk(_) => ("t", ""),
            Track::Down(_) => ("f", r#","bp":"e""#),
        };
        self.event(format_args!(
            r#"{{"ph":"{step}","cat":"flow","name":"packet","id":"0x{flow:x}","pid":{process},"tid":{thread},"ts":{at}{binds}}}"#
        ));
    }

    /// An operation of a node has ended, well or not.
    pub(crate) fn operation(&mut self, node: NodeId, operation: Operation, since: Time, now: Time, ok: bool) {
        self.operations += 1;
        let (number, name) = (self.operations, operation.name());
        for (step, at) in [("b", since), ("e", now)] {
            let at = self.at(at);
            self.event(format_args!(
                r#"{{"ph":"{step}","cat":"operation","name":"{name}","id":"0x{number:x}","pid":1,"tid":{node},"ts":{at},"args":{{"performed":{ok}}}}}"#
            ));
        }
    }

    /// Ends the file.
    ///
    /// # Errors
    /// The first write that failed.
    pub(crate) fn end(mut self) -> io::Result<()> {
        match self.failed {
            Some(error) => Err(error),
            None => {
                writeln!(self.out, "\n]}}")?;
                self.out.flush()
            }
        }
    }
}
