// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which nodes can be reached, and who is told of it.

use fabric_topology::{SwitchId, TrunkId};
use telegraphos_wire::NodeId;
use telegraphos_wire::link::Frame;

use super::{Place, Presence, Switch};
use crate::neighbour::{Kind, session_part};
use crate::{Action, Bug};

impl Switch {
    /// A node has joined, was reset, or can be reached again: everyone whom its routes lead to from here is told,
    /// behind what it sent before.
    pub(super) fn arrived(&mut self, node: NodeId, incarnation: u64, session: u64, out: &mut Vec<Action>) {
        let presence = Presence { up: true, incarnation, session };
        let again = match self.state.presence.get_mut(usize::from(node)) {
            Some(entry) => std::mem::replace(entry, presence).up,
            None => return,
        };
        for place in self.told_of(node) {
            let overtakes = |neighbour: &crate::neighbour::Neighbour| match neighbour.kind {
                Kind::Node(_) => self.config.has(Bug::ResetOvertakes),
                Kind::Trunk { .. } => self.config.has(Bug::ReachOvertakes),
            };
            let Some(neighbour) = self.neighbour(place) else { continue };
            if again && overtakes(neighbour) {
                let frame = match neighbour.kind {
                    Kind::Node(_) => {
                        Frame::NodeUp { node, incarnation: incarnation.wrapping_add(session_part(session)) }
                    }
                    Kind::Trunk { .. } => Frame::Reach { node, incarnation, session },
                };
                out.push(Action::Send(neighbour.port, frame));
                continue;
            }
            if let Some(neighbour) = self.neighbour_mut(place) {
                neighbour.push_mark(node, presence.life());
                self.touched.push(place);
            }
        }
    }

    /// The open ports that news of a node goes on to: all nodes of this switch but itself, and the trunks of its tree.
    fn told_of(&self, node: NodeId) -> Vec<Place> {
        let itself = self.place_of(node);
        self.present()
            .filter(|(place, neighbour)| match neighbour.kind {
                Kind::Node(_) => Some(*place) != itself,
                Kind::Trunk { trunk, .. } => self.goes_on_by(node, trunk),
            })
            .map(|(place, _)| place)
            .collect()
    }

    /// Whether the tree of a node's routes goes on by a trunk of this switch.
    fn goes_on_by(&self, node: NodeId, trunk: TrunkId) -> bool {
        let Some(part) = &self.config.part else { return false };
        let Some(source) = part.topology.switch_of(node) else { return false };
        part.topology.children(part.switch, source).any(|child| child == trunk)
    }

    /// Whether what a node sends arrives by a trunk of this switch.
    pub(super) fn comes_by(&self, node: NodeId, trunk: TrunkId) -> bool {
        self.switch_of(node).and_then(|source| self.arrival(source)) == Some(trunk)
    }

    /// Tells the neighbour of a new port of all nodes that can be reached and whose news goes its way.
    pub(super) fn tell_all(&mut self, place: Place, goes: impl Fn(&Switch, SwitchId) -> bool) {
        for node in 0..self.state.presence.len() as NodeId {
            let presence = self.state.presence[usize::from(node)];
            if presence.up && goes(self, self.switch_of(node).unwrap_or(0)) {
                if let Some(neighbour) = self.neighbour_mut(place) {
                    neighbour.push_mark(node, presence.life());
                }
            }
        }
        self.touched.push(place);
    }

    /// A node cannot be reached any more: what it sent is dropped, and everyone who was told of it is told of its end.
    /// Returns how many packets were dropped.
    pub(super) fn lose(&mut self, node: NodeId) -> u64 {
        if let Some(presence) = self.state.presence.get_mut(usize::from(node)) {
            presence.up = false;
        }
        let mut total = 0;
        for place in 0..self.state.neighbours.len() {
            let Some(neighbour) = self.state.neighbours.get_mut(place).and_then(Option::as_mut) else { continue };
            if neighbour.is_trunk() && self.config.has(Bug::KeepDownLocal) {
                continue;
            }
            for (channel, queued) in neighbour.forget(node, &self.config) {
                total += 1;
                self.unqueued(place, node, channel);
                self.count_dropped(node, place, channel.class());
                self.gone(queued.paid);
            }
            self.touched.push(place);
        }
        total
    }
}
