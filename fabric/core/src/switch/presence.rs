// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which nodes can be reached, and the neighbours that are notified of it.

use telegraphos_topology::SwitchId;
use telegraphos_wire::{NodeId, STREAM_BLOCK};

use super::packets::Crossing;
use super::routes::{PortIndex, Routes};
use crate::Action;
use crate::neighbour::Kind;
use crate::presences::Presence;

impl Crossing<'_> {
    /// A node has joined, was reset, or can be reached again: the neighbours on its routes are notified, behind what it
    /// sent before; at once, without a queue, those that nothing waits for.
    pub(super) fn arrived(&mut self, node: NodeId, incarnation: u64, session: u64) {
        let port = self.routes.index_of(node).and_then(|index| self.neighbours.get(index));
        let block = port.map_or(STREAM_BLOCK as u32, |port| port.block);
        let presence = Presence { up: true, incarnation, session, block };
        if usize::from(node) >= self.presence.len() {
            return;
        }
        self.presence.set(node, presence);
        // Else something for the same neighbour may go first.
        let at_once = self.traffic.touched.is_empty();
        let first = self.traffic.touched.len();
        let (itself, source) = (self.routes.index_of(node), self.routes.switch_of(node));
        for index in (0..self.neighbours.len()).rev() {
            // All nodes of this switch but itself, and the trunks of its tree.
            let notified = match self.neighbours.get(index).map(|neighbour| neighbour.kind) {
                Some(Kind::Node(_)) => Some(index) != itself,
                Some(Kind::Trunk { trunk, .. }) => {
                    source.is_some_and(|source| self.routes.tree_continues_by(source, trunk))
                }
                None => false,
            };
            let Some(neighbour) = self.neighbours.get_mut(index).filter(|_| notified) else { continue };
            match if at_once { neighbour.notify_at_once(node, presence.mark()) } else { None } {
                Some((port, frame)) => self.out.push(Action::Send(port, frame)),
                None => {
                    neighbour.push_mark(node, presence.mark());
                    self.traffic.touched.push(index);
                }
            }
        }
        // The last is served first.
        self.traffic.touched[first..].reverse();
    }

    /// Notifies the neighbour of a new port of all reachable nodes from whose switch `goes` is true.
    pub(super) fn notify_all(&mut self, index: PortIndex, goes: impl Fn(&Routes, SwitchId) -> bool) {
        for node in 0..self.presence.len() as NodeId {
            let Some(presence) = self.presence.get(node) else { continue };
            if presence.up && goes(self.routes, self.routes.switch_of(node).unwrap_or(0)) {
                if let Some(neighbour) = self.neighbours.get_mut(index) {
                    neighbour.push_mark(node, presence.mark());
                }
            }
        }
        self.traffic.touched.push(index);
    }

    /// A node is down: its packets are dropped, and every neighbour that was notified of it gets a NodeDown. Returns
    /// how many packets were dropped.
    pub(super) fn node_lost(&mut self, node: NodeId) -> u64 {
        self.presence.set_down(node);
        let mut total = 0;
        for index in 0..self.neighbours.len() {
            let Some(neighbour) = self.neighbours.get_mut(index) else { continue };
            if neighbour.is_trunk() && bug!(KeepDownLocal) {
                continue;
            }
            for (channel, queued) in neighbour.forget(node) {
                total += 1;
                self.unqueued(index, node, channel);
                self.traffic.dropped(self.routes, node, index, channel.class());
                self.release(queued.paid);
            }
            self.traffic.touched.push(index);
        }
        total
    }
}
