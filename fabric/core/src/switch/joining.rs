// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nodes that join, are reset, or are refused; ports that end.

use telegraphos_accounts::Rate;
use telegraphos_wire::link::{Frame, RESET_BITS, Refusal};
use telegraphos_wire::{NodeId, PROTOCOL_VERSION, WindowLayout};

use super::{Place, Port, Switch};
use crate::neighbour::{Kind, Neighbour};
use crate::{Action, Attached, Bug, CREDITED, Notice, PortId, Violation};

/// An incarnation that a node announces is at most so much greater than its last, which are 388 days of the clock that
/// the fabric's incarnations go by: a node does not use up the numbers of those that come after it.
const MOST_AHEAD: u64 = 1 << 45;

impl Switch {
    pub(super) fn hello(&mut self, port: PortId, room: u32, frame: Frame, out: &mut Vec<Action>) {
        let Frame::Hello { version, node, window, credits } = frame else {
            return self.refuse(port, None, Refusal::Handshake, 0, 0, out);
        };
        let (nodes, place) = match self.check_hello(version, node, window, &credits) {
            Ok(accepted) => accepted,
            Err((reason, offered, expected)) if self.config.has(Bug::SwapRefusal) => {
                return self.refuse(port, Some(node), reason, expected, offered, out);
            }
            Err((reason, offered, expected)) => return self.refuse(port, Some(node), reason, offered, expected, out),
        };
        if let Err(rate) = self.presence_changes(node) {
            let (offered, expected) = (rate.burst().into(), rate.per_second().into());
            return self.refuse(port, Some(node), Refusal::Rate, offered, expected, out);
        }
        let Some(incarnation) = self.next_incarnation(node) else {
            let last = self.state.presence.get(usize::from(node)).map_or(0, |presence| presence.incarnation);
            Switch::notice(out, Notice::Exhausted { port, node });
            return self.refuse(port, Some(node), Refusal::Protocol, last, 0, out);
        };

        self.state.adopted = if self.config.window.is_none() { Some(window) } else { None };
        let believed = self.config.believed(&credits);
        let mut neighbour = Neighbour::new(Kind::Node(node), port, room, self.config.credits, believed);
        neighbour.use_room();
        out.push(Action::Send(port, Frame::Welcome { incarnation, nodes, credits: self.config.credits }));
        Switch::notice(out, Notice::Joined { port, node, incarnation });
        self.statistics.joined += 1;
        self.open(port, place, neighbour);
        self.tell_all(place, |_, _| true);
        self.arrived(node, incarnation, 0, out);
        // Itself, too.
        if let (Some(presence), Some(neighbour)) =
            (self.state.presence.get(usize::from(node)).copied(), self.neighbour_mut(place))
        {
            neighbour.push_mark(node, presence.life());
        }
        self.touched.push(place);
    }

    /// The number of nodes and the joiner's place if it is welcome, else the reason and the values offered and
    /// expected.
    fn check_hello(
        &self,
        version: u8,
        node: NodeId,
        window: WindowLayout,
        credits: &[u32; 4],
    ) -> Result<(u32, Place), (Refusal, u64, u64)> {
        let equal = |reason, offered: u8, expected: u8| {
            if offered == expected { Ok(()) } else { Err((reason, u64::from(offered), u64::from(expected))) }
        };
        equal(Refusal::Version, version, PROTOCOL_VERSION)?;
        let expected = self.window().unwrap_or_else(|| {
            // An impossible layout differs from the usual one in at least one field.
            WindowLayout::new(window.node_bits, window.offset_bits).unwrap_or_default()
        });
        equal(Refusal::NodeBits, window.node_bits, expected.node_bits)?;
        equal(Refusal::OffsetBits, window.offset_bits, expected.offset_bits)?;
        let nodes = self.config.nodes.min(expected.nodes());
        if u32::from(node) >= nodes {
            return Err((Refusal::NodeRange, node.into(), nodes.into()));
        }
        let Some(place) = self.place_of(node) else {
            let here = self.config.part.as_ref().map_or(0, |part| part.switch);
            return Err((Refusal::Elsewhere, here.into(), self.switch_of(node).unwrap_or(here).into()));
        };
        if self.neighbour(place).is_some() {
            return Err((Refusal::NodeTaken, node.into(), 0));
        }
        if CREDITED.iter().any(|c| credits[*c as usize] == 0) {
            // Packets of that class could never leave the switch.
            return Err((Refusal::Protocol, 0, 1));
        }
        Ok((nodes, place))
    }

    /// The base incarnation of the node's next join; `None` when 64 bits hold no greater one.
    fn next_incarnation(&self, node: NodeId) -> Option<u64> {
        let last = self.state.presence.get(usize::from(node))?.incarnation;
        if self.config.has(Bug::ReuseIncarnation) {
            return Some(last.max(1 << RESET_BITS));
        }
        (last >> RESET_BITS).checked_add(1)?.checked_mul(1 << RESET_BITS)
    }

    /// A node joins or is reset, if it may: see [`SwitchConfig::presence_rate`](crate::SwitchConfig::presence_rate).
    fn presence_changes(&mut self, node: NodeId) -> Result<(), Rate> {
        if self.config.has(Bug::UnlimitedPresence) {
            return Ok(());
        }
        self.clock.presence_changes(node)
    }

    /// A neighbour takes its place.
    pub(super) fn open(&mut self, port: PortId, place: Place, neighbour: Neighbour) {
        self.state.ports.insert(port, Port::Open { place });
        if let Some(entry) = self.state.neighbours.get_mut(place) {
            *entry = Some(neighbour);
        }
        self.clock.joined(place, port);
    }

    pub(super) fn reset(
        &mut self,
        place: Place,
        node: NodeId,
        incarnation: u64,
        out: &mut Vec<Action>,
    ) -> Result<(), Violation> {
        let last = self.state.presence.get(usize::from(node)).map_or(0, |presence| presence.incarnation);
        let believed = self.config.has(Bug::BelieveIncarnation) || incarnation.saturating_sub(last) <= MOST_AHEAD;
        if incarnation <= last || !believed {
            return Err(Violation::Incarnation { announced: incarnation, last });
        }
        if let Err(rate) = self.presence_changes(node) {
            return Err(Violation::Presence { burst: rate.burst(), per_second: rate.per_second() });
        }
        let keep = self.config.has(Bug::KeepGroups);
        if let Some(neighbour) = self.neighbour_mut(place).filter(|_| !keep) {
            neighbour.groups.clear();
        }
        Switch::notice(out, Notice::Reset { node, incarnation });
        self.arrived(node, incarnation, 0, out);
        Ok(())
    }

    /// From now on, whom multicasts of `node` about `page` are for.
    pub(super) fn group(
        &mut self,
        place: Place,
        node: NodeId,
        page: u32,
        members: Vec<NodeId>,
    ) -> Result<(), Violation> {
        let mut before = None;
        for member in members.iter().copied() {
            self.valid_destination(member)?;
            if member == node || before >= Some(member) {
                return Err(Violation::GroupMember { page, node: member });
            }
            before = Some(member);
        }
        let Some(sender) = self.state.neighbours.get_mut(place).and_then(Option::as_mut) else { return Ok(()) };
        sender.groups.set(page, members, &self.config)
    }

    pub(super) fn valid_destination(&self, node: NodeId) -> Result<(), Violation> {
        let nodes = self.window().map_or(self.config.nodes, |w| w.nodes().min(self.config.nodes));
        if u32::from(node) >= nodes || !self.config.valid_node(node) {
            return Err(Violation::Destination { node, nodes });
        }
        Ok(())
    }

    pub(super) fn refuse(
        &mut self,
        port: PortId,
        node: Option<NodeId>,
        reason: Refusal,
        offered: u64,
        expected: u64,
        out: &mut Vec<Action>,
    ) {
        self.statistics.refused += 1;
        self.clock.closed(port);
        self.state.ports.remove(&port);
        out.push(Action::Send(port, Frame::Refuse { reason, offered, expected }));
        out.push(Action::Close(port));
        Switch::notice(out, Notice::Refused { port, node, reason, offered, expected });
    }

    pub(super) fn throw_out(&mut self, port: PortId, what: Violation, out: &mut Vec<Action>) {
        let Some(Port::Open { place }) = self.state.ports.get(&port).copied() else { return };
        self.statistics.violations += 1;
        let (offered, expected) = what.values();
        out.push(Action::Send(port, Frame::Refuse { reason: what.refusal(), offered, expected }));
        out.push(Action::Close(port));
        if let Some(who) = self.attached(place) {
            Switch::notice(out, Notice::Violation { port, who, what });
        }
        self.close(port, out);
    }

    pub(super) fn close(&mut self, port: PortId, out: &mut Vec<Action>) {
        self.clock.closed(port);
        let Some(Port::Open { place }) = self.state.ports.remove(&port) else { return };
        let Some(neighbour) = self.state.neighbours.get_mut(place).and_then(Option::take) else { return };
        let kind = neighbour.kind;
        let mut total = 0;
        let leak = self.config.has(match kind {
            Kind::Node(_) => Bug::LeakCredit,
            Kind::Trunk { .. } => Bug::LeakTrunkCredit,
        });
        // To it: senders get their credits back; that of a multicast when this was the last copy.
        for (from, channel, queued) in neighbour.into_waiting() {
            total += 1;
            self.unqueued(place, from, channel);
            self.count_dropped(from, place, channel.class());
            if !leak {
                self.gone(queued.paid);
            }
        }
        // From it.
        match kind {
            Kind::Node(node) => {
                if self.config.has(Bug::ForgetPresence) {
                    self.clock.forget_presence(node, self.config.presence_rate);
                }
                total += self.lose(node);
                if self.present().all(|(_, neighbour)| neighbour.is_trunk()) {
                    self.state.adopted = None;
                }
                Switch::notice(out, Notice::Left { node, dropped: total });
            }
            Kind::Trunk { trunk, .. } => {
                for node in 0..self.state.presence.len() as NodeId {
                    if self.state.presence[usize::from(node)].up && self.comes_by(node, trunk) {
                        total += self.lose(node);
                        Switch::notice(out, Notice::Lost { node });
                    }
                }
                if let Some(Attached::Trunk(_, to)) = self.attached(place) {
                    Switch::notice(out, Notice::TrunkDown { trunk, to, dropped: total });
                }
            }
        }
    }
}
