// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nodes and trunks that join, are reset, or are refused; ports that end.

use telegraphos_accounts::Rate;
use telegraphos_topology::{SwitchId, TrunkId};
use telegraphos_wire::link::{Frame, RESET_BITS, Refusal};
use telegraphos_wire::{NodeId, PROTOCOL_VERSION, STREAM_BLOCK, WindowLayout};

use super::Switch;
use super::routes::PortIndex;
use super::state::Port;
use crate::config::Part;
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
            out.push(Action::Diagnostic(Diagnostic::Exhausted { port, node }));
            return self.refuse(
                port,
                Some(node),
                Refusal::Protocol,
                self.state.presence.last_incarnation(node),
                0,
                out,
            );
        };

        self.state.adopted = if self.routes.config.window.is_none() { Some(window) } else { None };
        let accepted = self.routes.config.accepted(&credits);
        let mut neighbour = Neighbour::new(Kind::Node(node), port, room, block, self.routes.config.credits, accepted);
        neighbour.use_room();
        out.push(Action::Send(port, Frame::Welcome { incarnation, nodes, credits: self.routes.config.credits }));
        out.push(Action::Diagnostic(Diagnostic::Joined { port, node, incarnation }));
        self.traffic.statistics.joined += 1;
        self.open(port, index, neighbour);
        let mut crossing = self.crossing(out);
        crossing.notify_all(index, |_, _| true);
        crossing.arrived(node, incarnation, 0);
        // Itself, too.
        if let (Some(presence), Some(neighbour)) = (crossing.presence.get(node), crossing.neighbours.get_mut(index)) {
            neighbour.push_mark(node, presence.mark());
        }
        crossing.traffic.touched.push(index);
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
        let nodes = self.routes.config.nodes.min(expected.nodes());
        if u32::from(node) >= nodes {
            return Err((Refusal::NodeRange, node.into(), nodes.into()));
        }
        let Some(index) = self.routes.index_of(node) else {
            let here = self.routes.config.part.as_ref().map_or(0, |part| part.switch);
            return Err((Refusal::Elsewhere, here.into(), self.routes.switch_of(node).unwrap_or(here).into()));
        };
        if self.state.neighbours.get(index).is_some() {
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
        self.state.neighbours.insert(index, neighbour);
        self.clock.joined(index, port);
    }

    /// A connection for a trunk: sends the opening frame, or closes it if this switch has no such trunk.
    pub(super) fn greet(&mut self, port: PortId, room: u32, trunk: TrunkId, out: &mut Vec<Action>) {
        self.close(port, out);
        let index = self.routes.index_of_trunk(trunk);
        let (Some(index), Some(part)) = (index, &self.routes.config.part) else {
            out.push(Action::Close(port));
            return;
        };
        let epoch = self.epoch(index);
        let frame = Frame::Trunk {
            version: PROTOCOL_VERSION,
            switch: part.switch,
            peer: part.topology.other_end(trunk, part.switch),
            epoch,
            topology: part.topology.digest(),
            credits: self.routes.config.credits,
        };
        out.push(Action::Send(port, frame));
        self.clock.opened(port);
        let room = if room == crate::UNLIMITED { room } else { room.saturating_sub(1) };
        self.state.ports.insert(port, Port::Greeting { room, index, epoch });
    }

    /// The opening frame of the other end: the trunk is joined, or refused.
    pub(super) fn greeted(
        &mut self,
        port: PortId,
        room: u32,
        index: PortIndex,
        sent: u64,
        frame: Frame,
        out: &mut Vec<Action>,
    ) {
        let attached = self.traffic.attached(index);
        let (Some(part), Some(Attached::Trunk(trunk, to))) = (self.routes.config.part.clone(), attached) else {
            return;
        };
        let checked = match frame {
            Frame::Refuse { reason, offered, expected } => Err((true, (reason, offered, expected))),
            frame => check_greeting(&part, to, [sent, self.epoch(index)], &frame).map_err(|wrong| (false, wrong)),
        };
        let (epoch, credits) = match checked {
            Ok(joined) => joined,
            Err((by_peer, (reason, offered, expected))) => {
                self.forget(port);
                if !by_peer {
                    out.push(Action::Send(port, Frame::Refuse { reason, offered, expected }));
                }
                out.push(Action::Close(port));
                out.push(Action::Diagnostic(Diagnostic::TrunkRefused { trunk, reason, offered, expected, by_peer }));
                return;
            }
        };
        // An earlier connection is stale: the other end has lost it.
        if let Some(old) = self.state.neighbours.get(index).map(|neighbour| neighbour.port) {
            out.push(Action::Close(old));
            self.close(old, out);
        }
        let epoch = sent.max(epoch).saturating_add(1);
        if let Some(entry) = self.state.epochs.get_mut(index - self.routes.nodes_here) {
            *entry = epoch;
        }
        let kind = Kind::Trunk { trunk, layers: part.topology.layers() };
        let neighbour = Neighbour::new(kind, port, room, STREAM_BLOCK as u32, self.routes.config.credits, credits);
        self.traffic.statistics.trunks_joined += 1;
        out.push(Action::Diagnostic(Diagnostic::TrunkUp { port, trunk, to, epoch }));
        self.open(port, index, neighbour);
        self.crossing(out).notify_all(index, |routes, source| routes.tree_continues_by(source, trunk));
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
        let last = self.state.presence.last_incarnation(node);
        let accepted = bug!(AcceptAnyIncarnation) || incarnation.saturating_sub(last) <= MOST_AHEAD;
        if incarnation <= last || !accepted {
            return Err(Violation::Incarnation { announced: incarnation, last });
        }
        if let Err(rate) = self.presence_changes(node) {
            return Err(Violation::Presence { burst: rate.burst(), per_second: rate.per_second() });
        }
        if let Some(neighbour) = self.state.neighbours.get_mut(index).filter(|_| !bug!(KeepGroups)) {
            neighbour.groups.clear();
        }
        out.push(Action::Diagnostic(Diagnostic::Reset { node, incarnation }));
        self.crossing(out).arrived(node, incarnation, 0);
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
            self.routes.valid_destination(self.window(), member)?;
            if member == node || before >= Some(member) {
                return Err(Violation::GroupMember { page, node: member });
            }
            before = Some(member);
        }
        let Some(sender) = self.state.neighbours.get_mut(index) else { return Ok(()) };
        sender.groups.set(page, members)
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
        self.forget(port);
        out.push(Action::Send(port, Frame::Refuse { reason, offered, expected }));
        out.push(Action::Close(port));
        out.push(Action::Diagnostic(Diagnostic::Refused { port, node, reason, offered, expected }));
    }

    /// A connection that has not joined is refused.
    fn forget(&mut self, port: PortId) {
        self.traffic.statistics.refused += 1;
        self.clock.closed(port);
        self.state.ports.remove(port);
    }

    /// Sends a refusal for a violation and closes an open port.
    pub(super) fn disconnect(&mut self, port: PortId, what: Violation, out: &mut Vec<Action>) {
        let Some(Port::Open { index }) = self.state.ports.get(port).copied() else { return };
        self.traffic.statistics.violations += 1;
        let (offered, expected) = what.values();
        out.push(Action::Send(port, Frame::Refuse { reason: what.refusal(), offered, expected }));
        out.push(Action::Close(port));
        if let Some(attached) = self.traffic.attached(index) {
            out.push(Action::Diagnostic(Diagnostic::Violation { port, who: attached, what }));
        }
        self.close(port, out);
    }

    /// Forgets a port: of an open one, drops the packets from and to its neighbour and notifies the others. Idempotent.
    pub(super) fn close(&mut self, port: PortId, out: &mut Vec<Action>) {
        self.clock.closed(port);
        let Some(Port::Open { index }) = self.state.ports.remove(port) else { return };
        let Some(neighbour) = self.state.neighbours.remove(index) else { return };
        let kind = neighbour.kind;
        let mut total = 0;
        let leak = match kind {
            Kind::Node(_) => bug!(LeakCredit),
            Kind::Trunk { .. } => bug!(LeakTrunkCredit),
        };
        #[cfg(feature = "bugs")]
        if let (Kind::Node(node), true) = (kind, bug!(ForgetPresence)) {
            self.clock.forget_presence(node, self.routes.config.presence_rate);
        }
        let mut crossing = self.crossing(out);
        // To it: senders get their credits back; that of a multicast when this was the last copy.
        for (from, channel, queued) in neighbour.into_waiting() {
            total += 1;
            crossing.unqueued(index, from, channel);
            crossing.traffic.dropped(crossing.routes, from, index, channel.class());
            if !leak {
                crossing.release(queued.paid);
            }
        }
        // From it.
        match kind {
            Kind::Node(node) => {
                total += crossing.node_lost(node);
                if self.state.neighbours.present().all(|(_, neighbour)| neighbour.is_trunk()) {
                    self.state.adopted = None;
                }
                out.push(Action::Diagnostic(Diagnostic::Left { node, dropped: total }));
            }
            Kind::Trunk { trunk, .. } => {
                for node in 0..crossing.presence.len() as NodeId {
                    if crossing.presence.is_up(node) && crossing.routes.arrives_by(node, trunk) {
                        total += crossing.node_lost(node);
                        crossing.out.push(Action::Diagnostic(Diagnostic::Lost { node }));
                    }
                }
                if let Some(Attached::Trunk(_, to)) = self.traffic.attached(index) {
                    out.push(Action::Diagnostic(Diagnostic::TrunkDown { trunk, to, dropped: total }));
                }
            }
        }
    }
}

/// What the opening frame of a trunk's other end, the switch `to`, says: its epoch and credits. The epochs
/// are the one that was sent, and the present one. Else the reason of the refusal, and the values offered and expected.
fn check_greeting(
    part: &Part,
    to: SwitchId,
    [sent, now]: [u64; 2],
    frame: &Frame,
) -> Result<(u64, [u32; 4]), (Refusal, u64, u64)> {
    let Frame::Trunk { version, switch, peer, epoch, topology, credits } = *frame else {
        return Err((Refusal::Handshake, 0, 0));
    };
    let digest = part.topology.digest();
    if version != PROTOCOL_VERSION {
        return Err((Refusal::Version, version.into(), PROTOCOL_VERSION.into()));
    }
    if topology != digest {
        return Err((Refusal::Topology, topology, digest));
    }
    if (switch, peer) != (to, part.switch) {
        return Err((Refusal::NoTrunk, switch.into(), peer.into()));
    }
    if credits.contains(&0) {
        return Err((Refusal::Protocol, 0, 1));
    }
    // Both ends must compute the same epoch, and each connection another one: a connection whose handshake began before
    // another was joined would reuse its epoch.
    if sent != now && !bug!(JoinStale) {
        return Err((Refusal::Handshake, sent, now));
    }
    Ok((epoch, credits))
}
