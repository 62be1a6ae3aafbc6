// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which nodes can be reached, and the neighbours that are notified of it.

use telegraphos_topology::{SwitchId, TrunkId};
use telegraphos_wire::{NodeId, STREAM_BLOCK};

use super::{PortIndex, Switch};
use crate::Action;
use crate::config::Part;
use crate::neighbour::Kind;
use crate::presences::Presence;

impl Switch {
    /// A node has joined, was reset, or can be reached again: the neighbours on its routes are notified, behind what it
    /// sent before; at once, without a queue, those that nothing waits for.
    pub(super) fn arrived(&mut self, node: NodeId, incarnation: u64, session: u64, out: &mut Vec<Action>) {
        let port = self.index_of(node).and_then(|index| self.neighbour(index));
        let block = port.map_or(STREAM_BLOCK as u32, |port| port.block);
        let presence = Presence { up: true, incarnation, session, block };
        if usize::from(node) >= self.state.presence.len() {
            return;
        }
        self.state.presence.set(node, presence);
        // Else something for the same neighbour may go first.
        let at_once = self.touched.is_empty();
        let first = self.touched.len();
        let (itself, source) = (self.index_of(node), self.switch_of(node));
        for index in (0..self.state.neighbours.len()).rev() {
            // All nodes of this switch but itself, and the trunks of its tree.
            let notified = match self.neighbour(index).map(|neighbour| neighbour.kind) {
                Some(Kind::Node(_)) => Some(index) != itself,
                Some(Kind::Trunk { trunk, .. }) => source.is_some_and(|source| self.tree_continues_by(source, trunk)),
                None => false,
            };
            let Some(neighbour) = self.neighbour_mut(index).filter(|_| notified) else { continue };
            match if at_once { neighbour.notify_at_once(node, presence.mark()) } else { None } {
                Some((port, frame)) => out.push(Action::Send(port, frame)),
                None => {
                    neighbour.push_mark(node, presence.mark());
                    self.touched.push(index);
                }
            }
        }
        // The last is served first.
        self.touched[first..].reverse();
    }

    /// Whether a node can be reached.
    pub(super) fn is_up(&self, node: NodeId) -> bool {
        self.state.presence.is_up(node)
    }

    /// The incarnation of a node, or the last it had.
    pub(super) fn last_incarnation(&self, node: NodeId) -> u64 {
        self.state.presence.get(node).map_or(0, |presence| presence.incarnation)
    }

    /// Whether the tree of the routes of a switch's nodes continues by a trunk of this switch.
    pub(super) fn tree_continues_by(&self, source: SwitchId, trunk: TrunkId) -> bool {
        let Some(Part { topology, switch }) = &self.config.part else { return false };
        topology.continues(*switch, source, trunk)
    }

    /// Whether what a node sends arrives by a trunk of this switch.
    pub(super) fn arrives_by(&self, node: NodeId, trunk: TrunkId) -> bool {
        self.switch_of(node).and_then(|source| self.arrival(source)) == Some(trunk)
    }

    /// Notifies the neighbour of a new port of all reachable nodes from whose switch `goes` is true.
    pub(super) fn notify_all(&mut self, index: PortIndex, goes: impl Fn(&Switch, SwitchId) -> bool) {
        for node in 0..self.state.presence.len() as NodeId {
            let Some(presence) = self.state.presence.get(node) else { continue };
            if presence.up && goes(self, self.switch_of(node).unwrap_or(0)) {
                if let Some(neighbour) = self.neighbour_mut(index) {
                    neighbour.push_mark(node, presence.mark());
                }
            }
        }
        self.touched.push(index);
    }

    /// A node is down: its packets are dropped, and every neighbour that was notified of it gets a NodeDown. Returns
    /// how many packets were dropped.
    pub(super) fn node_lost(&mut self, node: NodeId) -> u64 {
        self.state.presence.set_down(node);
        let mut total = 0;
        for index in 0..self.state.neighbours.len() {
            let Some(neighbour) = self.state.neighbours.get_mut(index).and_then(Option::as_mut) else { continue };
            if neighbour.is_trunk() && bug!(KeepDownLocal) {
                continue;
            }
            for (channel, queued) in neighbour.forget(node) {
                total += 1;
                self.unqueued(index, node, channel);
                self.count_dropped(node, index, channel.class());
                self.release(queued.paid);
            }
            self.touched.push(index);
        }
        total
    }
}
