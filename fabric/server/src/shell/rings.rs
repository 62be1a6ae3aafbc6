// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rings between HIBs that are joined by Unix streams: this process makes them and hands out their ends, and is not on
//! their path. [`RingPairs`] decides which pairs have one.
//!
//! What must be seen passes the switch: while a node's link has faults, or anything is captured, its rings are
//! withdrawn ([`Fabric::observes`]).

use std::collections::BTreeMap;

use log::{debug, info};
use telegraphos_fabric_core::PortId;
use telegraphos_fabric_core::rings::{RingChange, RingPairs};
use telegraphos_link::ring::Ring;
use telegraphos_wire::link::Frame;
use telegraphos_wire::{NodeId, STREAM_BLOCK};

use super::Fabric;
use super::connection::Role;

/// Bytes of each direction of a ring: some blocks. Pages that are not used take no memory.
const BYTES: u32 = 128 << 10;
/// Requests, and as many elements, that each end may have in the other's buffers: the window of a board.
const CREDITS: u32 = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) pairs: RingPairs,
    /// Nodes that can have rings, and their ports.
    ports: BTreeMap<NodeId, PortId>,
    /// Notifications that were sent: the port to which, of which node, of which incarnation.
    notified: Vec<(PortId, NodeId, u64)>,
    /// Rings that one of their nodes has reported lost, since the other broke the rules.
    pub(super) lost: u64,
    /// Rings were withdrawn, and the last of them is still used.
    leaving: bool,
}

impl Rings {
    /// No rings; of each node at most so many.
    pub(super) fn new(most: usize) -> Rings {
        let (pairs, ports, notified) = (RingPairs::new(most), BTreeMap::new(), Vec::new());
        Rings { pairs, ports, notified, lost: 0, leaving: false }
    }
}

impl Fabric {
    /// A node has joined by this port.
    pub(super) fn ring_node_joined(&mut self, port: PortId, node: NodeId) {
        if self.config.rings > 0 && self.connection(port).is_some_and(|c| c.transport.carries_descriptors()) {
            self.rings.ports.insert(node, port);
        }
    }

    pub(super) fn ring_node_left(&mut self, node: NodeId) {
        self.rings.ports.remove(&node);
        self.rings.pairs.left(node);
        self.rings.notified.retain(|(_, of, _)| *of != node);
    }

    /// A frame is sent to a port: it may be that its node is notified of another one.
    pub(super) fn ring_notified(&mut self, port: PortId, frame: &Frame) {
        if let (Frame::NodeUp { node, incarnation, .. }, false) = (frame, self.rings.ports.is_empty()) {
            self.rings.notified.push((port, *node, *incarnation));
        }
    }

    /// Makes, withdraws and offers rings as far as it is due.
    pub(super) fn tend_rings(&mut self) {
        for (port, of, incarnation) in std::mem::take(&mut self.rings.notified) {
            let Some((node, switch)) = self.connection(port).and_then(|c| Some((c.node?, c.switch))) else { continue };
            let Some(other) = self.rings.ports.get(&of).copied() else { continue };
            // Between switches are trunks, which are to be seen.
            let together = self.connection(other).is_some_and(|other| other.switch == switch);
            if together && self.rings.ports.get(&node) == Some(&port) {
                self.rings.pairs.notified(node, of, incarnation);
            }
        }
        while let Some(change) = self.next_ring_change() {
            match change {
                RingChange::Offer { nodes, incarnations } => self.offer_ring(nodes, incarnations),
                RingChange::Restore { nodes, incarnations } => {
                    for side in 0..2 {
                        let (node, incarnation) = (nodes[1 - side], incarnations[1 - side]);
                        let frame = Frame::NodeUp { node, incarnation, block: STREAM_BLOCK as u32 };
                        self.send_of_ring(nodes[side], frame, None);
                    }
                }
                RingChange::Use { nodes, incarnations, on } => {
                    debug!("the ring of nodes {nodes:?} is {}", if on { "offered again" } else { "withdrawn" });
                    self.rings.leaving |= !on;
                    for side in 0..2 {
                        let frame = Frame::RingUse { node: nodes[1 - side], incarnation: incarnations[1 - side], on };
                        self.send_of_ring(nodes[side], frame, None);
                    }
                }
            }
        }
        if self.rings.leaving && self.rings.pairs.leaving() == 0 {
            self.rings.leaving = false;
            info!("no observed node uses a ring any more: whatever is sent from now on passes the switch");
            self.note_rings_withdrawn();
        }
    }

    fn next_ring_change(&mut self) -> Option<RingChange> {
        // Taken out, since it asks the rest.
        let mut pairs = std::mem::replace(&mut self.rings.pairs, RingPairs::new(0));
        let incarnation = |node: NodeId| {
            let port = self.rings.ports.get(&node)?;
            let connection = self.connections.get(*port as usize)?.as_ref()?;
            self.switches.get(connection.switch)?.switch.incarnation(node)
        };
        let change = pairs.next(incarnation, |node| !self.observes(&[node]));
        self.rings.pairs = pairs;
        change
    }

    /// Sends both nodes their end of a new ring.
    fn offer_ring(&mut self, nodes: [NodeId; 2], incarnations: [u64; 2]) {
        // A link that has had faults carries no descriptors.
        let carried = nodes.iter().all(|node| {
            let port = self.rings.ports.get(node).copied();
            port.and_then(|port| self.connection(port)).is_some_and(|c| c.transport.carries_descriptors())
        });
        let made = carried
            .then(|| Ring::for_others(BYTES).and_then(|(sockets, memory)| Ok((sockets, memory.try_clone()?, memory))));
        let (sockets, memories) = match made {
            Some(Ok((sockets, low, high))) => (sockets, [low, high]),
            failed => {
                if let Some(Err(e)) = failed {
                    self.complain(format_args!("no ring for nodes {nodes:?}, whose packets pass the switch: {e}"));
                }
                self.rings.pairs.lost(nodes[0], nodes[1], incarnations[1]);
                return;
            }
        };
        debug!("nodes {nodes:?} get a ring");
        for (side, fds) in sockets.into_iter().zip(memories).enumerate() {
            let frame = Frame::Ring {
                node: nodes[1 - side],
                incarnation: incarnations[1 - side],
                own: incarnations[side],
                bytes: BYTES,
                credits: CREDITS,
                side: side as u8,
            };
            self.send_of_ring(nodes[side], frame, Some(fds.into()));
        }
    }

    /// Sends a frame that is none of the switch's.
    fn send_of_ring(&mut self, node: NodeId, frame: Frame, fds: Option<[std::os::fd::OwnedFd; 2]>) {
        let Some(port) = self.rings.ports.get(&node).copied() else { return };
        if let Some(connection) = self.connection(port) {
            match fds {
                Some(fds) => connection.queue_with(&frame, fds),
                None => _ = connection.queue(frame),
            }
        }
        self.touch(port);
    }

    /// Takes a frame about a ring from a HIB. False if it is none, or this is no link: then it is the switch's.
    pub(super) fn takes_ring_frame(&mut self, port: PortId, frame: &Frame) -> bool {
        let Some(from) = self.connection(port).filter(|c| c.role == Role::Link).and_then(|c| c.node) else {
            return false;
        };
        match *frame {
            Frame::RingUse { node, incarnation, on: false } => {
                self.rings.pairs.unused(from, node, incarnation);
                true
            }
            Frame::RingLost { node, incarnation } => {
                if let Some(own) = self.rings.pairs.lost(from, node, incarnation) {
                    self.rings.lost += 1;
                    self.complain_of(
                        port,
                        format_args!(
                            "node {from} has closed its ring to node {node}, which broke the rules, as it says"
                        ),
                    );
                    self.send_of_ring(node, Frame::RingLost { node: from, incarnation: own }, None);
                }
                true
            }
            _ => false,
        }
    }

    /// What is observed has changed.
    pub(super) fn observations_changed(&mut self) {
        self.observations += 1;
        self.rings.pairs.reconsider();
    }
}
