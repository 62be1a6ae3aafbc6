// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets of homes to the copies here. Those of one node are processed one at a time, across all pages: a processor
//! that sees one store sees what the home did before (SPEC I6, words of one home).

use crate::arrived::Charge;
use crate::ctx::Ctx;
use std::collections::{BTreeMap, VecDeque};
use telegraphos_wire::{Class, NodeId, Packet};

/// Packets of class `Reflected` that have arrived from one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Arrived {
    packets: VecDeque<Packet>,
    /// The first packet is a work item of its page.
    working: bool,
    /// The packets are being taken; this prevents recursion.
    taking: bool,
}

/// The packets of all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Arrivals {
    by_node: BTreeMap<NodeId, Arrived>,
}

impl Arrivals {
    /// Takes in a packet of a home.
    pub(super) fn push(&mut self, packet: Packet) {
        self.by_node.entry(packet.src).or_default().packets.push_back(packet);
    }

    /// Begins to take the packets of a node. False if there are none, or they are being taken.
    pub(super) fn begin(&mut self, source: NodeId) -> bool {
        self.by_node.get_mut(&source).is_some_and(|arrived| !std::mem::replace(&mut arrived.taking, true))
    }

    /// The next packet of a node; `None` while the first is a work item.
    pub(super) fn next(&self, source: NodeId) -> Option<Packet> {
        self.by_node.get(&source).filter(|arrived| !arrived.working)?.packets.front().cloned()
    }

    /// Ends to take the packets of a node.
    pub(super) fn end(&mut self, source: NodeId) {
        let Some(arrived) = self.by_node.get_mut(&source) else { return };
        arrived.taking = false;
        if arrived.packets.is_empty() {
            self.by_node.remove(&source);
        }
    }

    /// The first packet of a node is a work item of its page.
    pub(super) fn work(&mut self, source: NodeId) {
        if let Some(arrived) = self.by_node.get_mut(&source) {
            arrived.working = true;
        }
    }

    /// Removes the first packet of a node, and returns its credit.
    pub(super) fn release(&mut self, ctx: &mut Ctx, source: NodeId) {
        if let Some(arrived) = self.by_node.get_mut(&source) {
            arrived.packets.pop_front();
            arrived.working = false;
        }
        ctx.consumed(Charge::Link, source, Class::Reflected);
    }

    /// Removes all packets.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Packet> {
        std::mem::take(&mut self.by_node).into_values().flat_map(|arrived| arrived.packets)
    }
}
