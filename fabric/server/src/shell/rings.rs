// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rings between HIBs that are joined by Unix streams, and between HIBs of this process: this process makes them and
//! hands out their ends, and the switch is not on their path. [`RingPairs`] decides which pairs have one.
//!
//! What must be seen passes the switch: while a node's link has faults, or anything is captured, its rings are
//! withdrawn ([`Faults::observes`]).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use log::{debug, info};
use telegraphos_fabric_core::PortId;
use telegraphos_fabric_core::pairs::Count;
use telegraphos_fabric_core::rings::{RingChange, RingPairs};
use telegraphos_link::ring_end::{Passed, Shared, Within};
use telegraphos_wire::link::Frame;
use telegraphos_wire::{Class, MAX_BLOCK, NodeId, STREAM_BLOCK};

use super::connection::{Connection, Role};
use super::faults::Faults;
use super::ports::Ports;
use super::switches::Switches;

/// Bytes of each direction of a ring: some blocks. Pages that are not used take no memory.
const BYTES: u32 = 128 << 10;
/// Requests, and as many elements, that each end may have in the other's buffers: the window of a board.
const CREDITS: u32 = 64;

/// What carries the rings of a HIB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// It is in another process of this host.
    Shared,
    /// It is in this process.
    Within,
}

impl Memory {
    /// Of the HIB at the other end of a connection; `None` if it can have no ring. A link that has had faults carries
    /// none.
    fn of(connection: &Connection) -> Option<Memory> {
        match connection.is_in_memory() {
            true => Some(Memory::Within),
            false => connection.transport.carries_descriptors().then_some(Memory::Shared),
        }
    }
}

/// The ends of a ring, each for one of its nodes.
#[derive(Debug)]
enum Ends {
    Shared([[OwnedFd; 2]; 2]),
    Within(Box<[Within; 2]>),
}

impl Ends {
    fn new(memory: Memory) -> io::Result<Ends> {
        Ok(match memory {
            Memory::Shared => {
                let ([low, high], memory) = Shared::for_others(BYTES)?;
                Ends::Shared([[low, memory.try_clone()?], [high, memory]])
            }
            Memory::Within => Ends::Within(Box::new(Within::pair())),
        })
    }
}

/// Counts what has passed a ring of two nodes at their switch, the one of that number.
/// Returns how many packets.
fn count(switches: &mut Switches, nodes: [NodeId; 2], (switch, passed): &(usize, Passed)) -> u64 {
    let mut all = 0;
    let Some(hosted) = switches.0.get_mut(*switch) else { return all };
    for side in 0..2 {
        let of = (nodes[1 - side], nodes[side]);
        for (class, [packets, bytes]) in Class::ALL.into_iter().zip(passed.take(side)) {
            if packets > 0 {
                hosted.switch.beside(of, class, Count { packets, bytes });
                all += packets;
            }
        }
    }
    all
}

#[derive(Debug)]
pub(super) struct Rings {
    pub(super) pairs: RingPairs,
    /// Whether a node may have any.
    allowed: bool,
    /// Nodes that can have rings, their ports, and what carried their rings when they joined.
    ports: BTreeMap<NodeId, (PortId, Memory)>,
    /// Of each two nodes, their switch, and what passes the ring that they have or had within this process. Of an
    /// earlier one between them nothing is counted any more.
    passed: BTreeMap<[NodeId; 2], (usize, Passed)>,
    /// Notifications that were sent: the port to which, of which node, of which incarnation.
    notified: Vec<(PortId, NodeId, u64)>,
    /// Rings that one of their nodes has reported lost, since the other broke the rules.
    pub(super) lost: u64,
    /// Packets that have passed rings within this process, as far as they are counted.
    pub(super) packets: u64,
    /// Rings were withdrawn, and the last of them is still used.
    leaving: bool,
    /// What is observed, as of the last look: see [`Faults::changes`].
    observed: u64,
}

impl Rings {
    /// No rings; of each node at most so many.
    pub(super) fn new(most: usize) -> Rings {
        let (pairs, ports, notified) = (RingPairs::new(most), BTreeMap::new(), Vec::new());
        let passed = BTreeMap::new();
        Rings { pairs, allowed: most > 0, ports, passed, notified, lost: 0, packets: 0, leaving: false, observed: 0 }
    }

    /// A node has joined by this port.
    pub(super) fn joined(&mut self, ports: &Ports, port: PortId, node: NodeId) {
        if let (true, Some(memory)) = (self.allowed, ports.get(port).and_then(Memory::of)) {
            self.ports.insert(node, (port, memory));
        }
    }

    /// A node has left.
    pub(super) fn left(&mut self, node: NodeId) {
        self.ports.remove(&node);
        self.pairs.left(node);
        self.notified.retain(|(_, of, _)| *of != node);
    }

    /// A frame is sent to a port: it may be that its node is notified of another one.
    pub(super) fn notified(&mut self, port: PortId, frame: &Frame) {
        if let (Frame::NodeUp { node, incarnation, .. }, false) = (frame, self.ports.is_empty()) {
            self.notified.push((port, *node, *incarnation));
        }
    }

    /// Counts what has passed rings within this process at the switches of their nodes.
    pub(super) fn count(&mut self, switches: &mut Switches) {
        self.packets += self.passed.iter().map(|(nodes, passed)| count(switches, *nodes, passed)).sum::<u64>();
    }

    /// Makes, withdraws and offers rings as far as it is due.
    pub(super) fn tend(&mut self, ports: &mut Ports, switches: &mut Switches, faults: &mut Faults) {
        if std::mem::replace(&mut self.observed, faults.changes) != faults.changes {
            self.pairs.reconsider();
        }
        for (port, of, incarnation) in std::mem::take(&mut self.notified) {
            let Some((node, switch)) = ports.get(port).and_then(|c| Some((c.node?, c.switch))) else { continue };
            let Some((other, memory)) = self.ports.get(&of).copied() else { continue };
            // Between switches are trunks, which are to be seen.
            let same = ports.get(other).is_some_and(|other| other.switch == switch);
            // One in this process and one in another can have none.
            if same && self.ports.get(&node) == Some(&(port, memory)) {
                self.pairs.notified(node, of, incarnation, memory == Memory::Shared);
            }
        }
        while let Some(change) = self.next_change(ports, switches, faults) {
            match change {
                RingChange::Offer { nodes, incarnations } => self.offer(ports, switches, nodes, incarnations),
                RingChange::Restore { nodes, incarnations } => {
                    let within = nodes.map(|node| self.memory(ports, node)) == [Some(Memory::Within); 2];
                    let block = if within { MAX_BLOCK } else { STREAM_BLOCK } as u32;
                    for side in 0..2 {
                        let (node, incarnation) = (nodes[1 - side], incarnations[1 - side]);
                        self.send(ports, nodes[side], Frame::NodeUp { node, incarnation, block });
                    }
                }
                RingChange::Use { nodes, incarnations, on } => {
                    debug!("the ring of nodes {nodes:?} is {}", if on { "offered again" } else { "withdrawn" });
                    self.leaving |= !on;
                    for side in 0..2 {
                        let frame = Frame::RingUse { node: nodes[1 - side], incarnation: incarnations[1 - side], on };
                        self.send(ports, nodes[side], frame);
                    }
                }
            }
        }
        if self.leaving && self.pairs.leaving() == 0 {
            self.leaving = false;
            info!("no observed node uses a ring any more: whatever is sent from now on passes the switch");
            faults.rings_withdrawn(ports.now);
        }
    }

    fn next_change(&mut self, ports: &Ports, switches: &Switches, faults: &Faults) -> Option<RingChange> {
        let Rings { pairs, ports: of, .. } = self;
        let incarnation = |node: NodeId| {
            let (port, _) = of.get(&node)?;
            let connection = ports.get(*port)?;
            switches.0.get(connection.switch)?.switch.incarnation(node)
        };
        pairs.next(incarnation, |node| !faults.observes(&[node]))
    }

    /// Sends both nodes their end of a new ring.
    fn offer(&mut self, ports: &mut Ports, switches: &mut Switches, nodes: [NodeId; 2], incarnations: [u64; 2]) {
        let memory = match nodes.map(|node| self.memory(ports, node)) {
            [Some(low), Some(high)] if low == high => Some(low),
            _ => None,
        };
        let ends = match memory.map(Ends::new) {
            Some(Ok(ends)) => ends,
            failed => {
                if let Some(Err(e)) = failed {
                    ports.complain(format_args!("no ring for nodes {nodes:?}, whose packets pass the switch: {e}"));
                }
                self.pairs.lost(nodes[0], nodes[1], incarnations[1]);
                return;
            }
        };
        debug!("nodes {nodes:?} get a ring");
        let frames = [0, 1].map(|side| Frame::Ring {
            node: nodes[1 - side],
            incarnation: incarnations[1 - side],
            own: incarnations[side],
            bytes: BYTES,
            credits: CREDITS,
            side: side as u8,
        });
        match ends {
            Ends::Shared(ends) => {
                for ((node, frame), fds) in nodes.into_iter().zip(frames).zip(ends) {
                    self.with(ports, node, |connection| connection.queue_with(&frame, fds));
                }
            }
            Ends::Within(ends) => {
                let port = self.ports.get(&nodes[0]).and_then(|(port, _)| ports.get(*port));
                let passed = port.map(|connection| (connection.switch, ends[0].passed()));
                if let Some(earlier) = passed.and_then(|passed| self.passed.insert(nodes, passed)) {
                    self.packets += count(switches, nodes, &earlier);
                }
                for ((node, frame), end) in nodes.into_iter().zip(frames).zip(*ends) {
                    self.with(ports, node, |connection| connection.queue_with_end(frame, end));
                }
            }
        }
    }

    /// What carries the rings of a node.
    fn memory(&self, ports: &Ports, node: NodeId) -> Option<Memory> {
        let (port, _) = self.ports.get(&node)?;
        Memory::of(ports.get(*port)?)
    }

    /// Queues something for a node.
    fn with(&self, ports: &mut Ports, node: NodeId, queue: impl FnOnce(&mut Connection)) {
        let Some((port, _)) = self.ports.get(&node).copied() else { return };
        if let Some(connection) = ports.get_mut(port) {
            queue(connection);
        }
        ports.touch(port);
    }

    /// Sends a frame that is none of the switch's.
    fn send(&self, ports: &mut Ports, node: NodeId, frame: Frame) {
        self.with(ports, node, |connection| _ = connection.queue(frame));
    }

    /// Takes a frame about a ring from a HIB. False if it is none, or this is no link: then it is the switch's.
    pub(super) fn takes(&mut self, ports: &mut Ports, port: PortId, frame: &Frame) -> bool {
        let Some(from) = ports.get(port).filter(|c| c.role == Role::Link).and_then(|c| c.node) else {
            return false;
        };
        match *frame {
            Frame::RingUse { node, incarnation, on: false } => {
                self.pairs.unused(from, node, incarnation);
                true
            }
            Frame::RingLost { node, incarnation } => {
                if let Some(own) = self.pairs.lost(from, node, incarnation) {
                    self.lost += 1;
                    ports.complain_of(
                        port,
                        format_args!(
                            "node {from} has closed its ring to node {node}, which broke the rules, as it says"
                        ),
                    );
                    self.send(ports, node, Frame::RingLost { node: from, incarnation: own });
                }
                true
            }
            _ => false,
        }
    }
}
