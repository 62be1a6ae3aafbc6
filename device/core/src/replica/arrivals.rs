// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets of homes to the copies here. Those of one node are processed one at a time, across all pages: a processor
//! that sees one store sees what the home did before (SPEC I6, words of one home).

use crate::arrived::Charge;
use crate::by_node::ByNode;
use crate::ctx::Ctx;
use std::collections::VecDeque;
use telegraphos_wire::{Class, NodeId, Packet};

/// What one node has sent of class `Reflected` and is not processed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Arrived {
    /// Those behind the one that is being processed.
    behind: VecDeque<Packet>,
    /// One is a work item of its page.
    working: bool,
    /// The packets are being taken; this prevents recursion.
    taking: bool,
}

/// The packets of all nodes.
#[derive(Clone, Debug, Hash)]
pub(super) struct Arrivals {
    by_node: ByNode<Arrived>,
}

impl Arrivals {
    /// No packet of so many nodes.
    pub(super) fn new(nodes: u32) -> Arrivals {
        Arrivals { by_node: ByNode::new(nodes, Arrived::default()) }
    }

    /// Takes in a packet of a home, and returns it if it is the next one; [`next`](Arrivals::next) follows.
    pub(super) fn admit(&mut self, packet: Packet) -> Option<Packet> {
        // No page is copied from a node that the window does not have.
        let Some(arrived) = self.by_node.get_mut(packet.src) else { return Some(packet) };
        if arrived.working || arrived.taking {
            arrived.behind.push_back(packet);
            return None;
        }
        arrived.taking = true;
        Some(packet)
    }

    /// Takes the next packet of a node. `None` if there is none, or while one is a work item: at its end
    /// [`resume`](Arrivals::resume) is called.
    pub(super) fn next(&mut self, source: NodeId) -> Option<Packet> {
        let arrived = self.by_node.existing_mut(source)?;
        let next = if arrived.working { None } else { arrived.behind.pop_front() };
        arrived.taking = next.is_some();
        next
    }

    /// The same, unless the packets are being taken.
    pub(super) fn resume(&mut self, source: NodeId) -> Option<Packet> {
        self.by_node.existing_mut(source).filter(|arrived| !arrived.taking)?;
        self.next(source)
    }

    /// The packet that was taken from a node is a work item of its page.
    pub(super) fn work(&mut self, source: NodeId) {
        if let Some(arrived) = self.by_node.existing_mut(source) {
            arrived.working = true;
        }
    }

    /// The packet that was taken from a node has been processed: returns its credit.
    pub(super) fn release(&mut self, ctx: &mut Ctx, source: NodeId) {
        if let Some(arrived) = self.by_node.existing_mut(source) {
            arrived.working = false;
        }
        ctx.consumed(Charge::Link, source, Class::Reflected);
    }

    /// Removes those that are no work items, in the order of the nodes.
    pub(super) fn into_waiting(mut self) -> impl Iterator<Item = Packet> {
        let nodes: Vec<NodeId> = self.by_node.existing().map(|(node, _)| node).collect();
        let behind = move |node| self.by_node.existing_mut(node).map(|arrived| std::mem::take(&mut arrived.behind));
        nodes.into_iter().filter_map(behind).flatten()
    }

    /// Drops all of them: the link that they came by is lost.
    pub(super) fn clear(&mut self) {
        self.by_node.values_mut().for_each(|arrived| *arrived = Arrived::default());
    }
}
