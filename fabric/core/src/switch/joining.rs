// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nodes that join, are reset, or are refused; ports that end.

use telegraphos_accounts::Rate;
use telegraphos_wire::link::{Frame, RESET_BITS, Refusal};
use telegraphos_wire::{NodeId, PROTOCOL_VERSION, WindowLayout};

use super::{Port, PortIndex, Switch};
use crate::neighbour::{Kind, Neighbour};
use crate::{Action, Attached, CREDITED, Diagnostic, PortId, Violation};

/// An incarnation that a node announces is at most so much greater than its last, which are 388 days of the clock that
/// the fabric's incarnations go by: a node does not use up the numbers of those that come after it.
const MOST_AHEAD: u64 = 1 << 45;

impl Switch {
    /// The first frame of a connection: its node joins, or is refused.
    pub(super) fn hello(&mut self, port: PortId, room: u32, block: u32, frame: Frame, out: &mut Vec<Action>) {
        let Frame::Hello { version, node, window, credits } = frame else {
            return self.refuse(port, None, Refusal::Handshake, 0, 0, out);
        };
        let (nodes, index) = match self.check_hello(version, node, window, &credits) {
            Ok(accepted) => accepted,
            #[cfg(feature = "bugs")]
            Err((reason, offered, expected)) if bug!(SwapRefusal) => {
                return self.refuse(port, Some(node), reason, expected, offered, out);
            }
            Err((reason, offered, expected)) => return self.refuse(port, Some(node), reason, offered, expected, out),
        };
        if let Err(rate) = self.presence_changes(node) {
            let (offered, expected) = (rate.burst().into(), rate.per_second().into());
            return self.refuse(port, Some(node), Refusal::Rate, offered, expected, out);
        }
        let Some(incarnation) = self.next_incarnation(node) else {
            Switch::report(out, Diagnostic::Exhausted { port, node });
            return self.refuse(port, Some(node), Refusal::Protocol, self.last_incarnation(node), 0, out);
        };

        self.state.adopted = if self.config.window.is_none() { Some(window) } else { None };
        let accepted = self.config.accepted(&credits);
        let mut neighbour = Neighbour::new(Kind::Node(node), port, room, block, self.config.credits, accepted);
        neighbour.use_room();
        out.push(Action::Send(port, Frame::Welcome { incarnation, nodes, credits: self.config.credits }));
        Switch::report(out, Diagnostic::Joined { port, node, incarnation });
        self.statistics.joined += 1;
        self.open(port, index, neighbour);
        self.notify_all(index, |_, _| true);
        self.arrived(node, incarnation, 0, out);
        // Itself, too.
        if let (Some(presence), Some(neighbour)) = (self.state.presence.get(node), self.neighbour_mut(index)) {
            neighbour.push_mark(node, presence.mark());
        }
        self.touched.push(index);
    }

    /// The number of nodes and the joiner's port index if it is welcome, else the reason and the values offered and
    /// expected.
    fn check_hello(
        &self,
        version: u8,
        node: NodeId,
        window: WindowLayout,
        credits: &[u32; 4],
    ) -> Result<(u32, PortIndex), (Refusal, u64, u64)> {
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
        let Some(index) = self.index_of(node) else {
            let here = self.config.part.as_ref().map_or(0, |part| part.switch);
            return Err((Refusal::Elsewhere, here.into(), self.switch_of(node).unwrap_or(here).into()));
        };
        if self.neighbour(index).is_some() {
            return Err((Refusal::NodeTaken, node.into(), 0));
        }
        if CREDITED.iter().any(|c| credits[*c as usize] == 0) {
            // Packets of that class could never leave the switch.
            return Err((Refusal::Protocol, 0, 1));
        }
        Ok((nodes, index))
    }

    /// The base incarnation of the node's next join; `None` when 64 bits hold no greater one.
    fn next_incarnation(&self, node: NodeId) -> Option<u64> {
        let last = self.state.presence.get(node)?.incarnation;
        #[cfg(feature = "bugs")]
        if bug!(ReuseIncarnation) {
            return Some(last.max(1 << RESET_BITS));
        }
        (last >> RESET_BITS).checked_add(1)?.checked_mul(1 << RESET_BITS)
    }

    /// A node joins or is reset, if it may: see [`SwitchConfig::presence_rate`](crate::SwitchConfig::presence_rate).
    fn presence_changes(&mut self, node: NodeId) -> Result<(), Rate> {
        if bug!(UnlimitedPresence) { Ok(()) } else { self.clock.presence_changes(node) }
    }

    /// A neighbour takes its port.
    pub(super) fn open(&mut self, port: PortId, index: PortIndex, neighbour: Neighbour) {
        self.state.ports.insert(port, Port::Open { index });
        if let Some(entry) = self.state.neighbours.get_mut(index) {
            *entry = Some(neighbour);
        }
        self.clock.joined(index, port);
    }

    /// A node announces its next incarnation.
    ///
    /// # Errors
    /// The incarnation is not greater than the last or too much greater, or the node is reset too often.
    pub(super) fn reset(
        &mut self,
        index: PortIndex,
        node: NodeId,
        incarnation: u64,
        out: &mut Vec<Action>,
    ) -> Result<(), Violation> {
        let last = self.last_incarnation(node);
        let accepted = bug!(AcceptAnyIncarnation) || incarnation.saturating_sub(last) <= MOST_AHEAD;
        if incarnation <= last || !accepted {
            return Err(Violation::Incarnation { announced: incarnation, last });
        }
        if let Err(rate) = self.presence_changes(node) {
            return Err(Violation::Presence { burst: rate.burst(), per_second: rate.per_second() });
        }
        if let Some(neighbour) = self.neighbour_mut(index).filter(|_| !bug!(KeepGroups)) {
            neighbour.groups.clear();
        }
        Switch::report(out, Diagnostic::Reset { node, incarnation });
        self.arrived(node, incarnation, 0, out);
        Ok(())
    }

    /// Sets the receivers of multicasts of `node` about `page`.
    ///
    /// # Errors
    /// A member that cannot be one, or more groups or members than a node may have.
    pub(super) fn group(
        &mut self,
        index: PortIndex,
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
        let Some(sender) = self.neighbour_mut(index) else { return Ok(()) };
        sender.groups.set(page, members)
    }

    /// # Errors
    /// The node is not below the number of nodes in force.
    pub(super) fn valid_destination(&self, node: NodeId) -> Result<(), Violation> {
        let nodes = self.window().map_or(self.config.nodes, |w| w.nodes().min(self.config.nodes));
        if u32::from(node) >= nodes || !self.config.valid_node(node) {
            return Err(Violation::Destination { node, nodes });
        }
        Ok(())
    }

    /// Sends a refusal and closes a connection that has not joined.
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
        self.state.ports.remove(port);
        out.push(Action::Send(port, Frame::Refuse { reason, offered, expected }));
        out.push(Action::Close(port));
        Switch::report(out, Diagnostic::Refused { port, node, reason, offered, expected });
    }

    /// Sends a refusal for a violation and closes an open port.
    pub(super) fn disconnect(&mut self, port: PortId, what: Violation, out: &mut Vec<Action>) {
        let Some(Port::Open { index }) = self.state.ports.get(port).copied() else { return };
        self.statistics.violations += 1;
        let (offered, expected) = what.values();
        out.push(Action::Send(port, Frame::Refuse { reason: what.refusal(), offered, expected }));
        out.push(Action::Close(port));
        if let Some(attached) = self.attached(index) {
            Switch::report(out, Diagnostic::Violation { port, who: attached, what });
        }
        self.close(port, out);
    }

    /// Forgets a port: of an open one, drops the packets from and to its neighbour and notifies the others. Idempotent.
    pub(super) fn close(&mut self, port: PortId, out: &mut Vec<Action>) {
        self.clock.closed(port);
        let Some(Port::Open { index }) = self.state.ports.remove(port) else { return };
        let Some(neighbour) = self.state.neighbours.get_mut(index).and_then(Option::take) else { return };
        let kind = neighbour.kind;
        let mut total = 0;
        let leak = match kind {
            Kind::Node(_) => bug!(LeakCredit),
            Kind::Trunk { .. } => bug!(LeakTrunkCredit),
        };
        // To it: senders get their credits back; that of a multicast when this was the last copy.
        for (from, channel, queued) in neighbour.into_waiting() {
            total += 1;
            self.unqueued(index, from, channel);
            self.count_dropped(from, index, channel.class());
            if !leak {
                self.release(queued.paid);
            }
        }
        // From it.
        match kind {
            Kind::Node(node) => {
                #[cfg(feature = "bugs")]
                if bug!(ForgetPresence) {
                    self.clock.forget_presence(node, self.config.presence_rate);
                }
                total += self.node_lost(node);
                if self.present().all(|(_, neighbour)| neighbour.is_trunk()) {
                    self.state.adopted = None;
                }
                Switch::report(out, Diagnostic::Left { node, dropped: total });
            }
            Kind::Trunk { trunk, .. } => {
                for node in 0..self.state.presence.len() as NodeId {
                    if self.is_up(node) && self.arrives_by(node, trunk) {
                        total += self.node_lost(node);
                        Switch::report(out, Diagnostic::Lost { node });
                    }
                }
                if let Some(Attached::Trunk(_, to)) = self.attached(index) {
                    Switch::report(out, Diagnostic::TrunkDown { trunk, to, dropped: total });
                }
            }
        }
    }
}
