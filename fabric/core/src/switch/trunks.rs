// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trunks: how two switches meet, and what they say to each other.

use fabric_topology::TrunkId;
use telegraphos_wire::link::{Frame, Refusal};
use telegraphos_wire::packet::MULTICAST;
use telegraphos_wire::{Class, NodeId, PROTOCOL_VERSION, Packet};

use super::{Place, Port, Switch};
use crate::config::Part;
use crate::lane::{Paid, Queued};
use crate::neighbour::{Kind, Neighbour};
use crate::statistics::bytes;
use crate::{Action, Attached, Bug, Notice, PortId, Violation};

impl Switch {
    pub(super) fn greet(&mut self, port: PortId, room: u32, trunk: TrunkId, out: &mut Vec<Action>) {
        self.close(port, out);
        let place = self.place_of_trunk(trunk);
        let (Some(place), Some(part)) = (place, &self.config.part) else {
            out.push(Action::Close(port));
            return;
        };
        let epoch = self.state.epochs.get(place - self.nodes_here).copied().unwrap_or(0);
        let frame = Frame::Trunk {
            version: PROTOCOL_VERSION,
            switch: part.switch,
            peer: part.topology.other_end(trunk, part.switch),
            epoch,
            topology: part.topology.digest(),
            credits: self.config.credits,
        };
        out.push(Action::Send(port, frame));
        self.clock.opened(port);
        let room = if room == crate::UNLIMITED { room } else { room.saturating_sub(1) };
        self.state.ports.insert(port, Port::Greeting { room, place, epoch });
    }

    /// The opening frame of the other end.
    pub(super) fn greeted(
        &mut self,
        port: PortId,
        room: u32,
        place: Place,
        sent: u64,
        frame: Frame,
        out: &mut Vec<Action>,
    ) {
        let (Some(part), Some(Attached::Trunk(trunk, to))) = (self.config.part.clone(), self.attached(place)) else {
            return;
        };
        let refused = |switch: &mut Switch, reason, offered, expected, by_peer: bool, out: &mut Vec<Action>| {
            switch.statistics.refused += 1;
            switch.clock.closed(port);
            switch.state.ports.remove(&port);
            if !by_peer {
                out.push(Action::Send(port, Frame::Refuse { reason, offered, expected }));
            }
            out.push(Action::Close(port));
            Switch::notice(out, Notice::TrunkRefused { trunk, reason, offered, expected, by_peer });
        };
        let (version, switch, peer, epoch, topology, credits) = match frame {
            Frame::Trunk { version, switch, peer, epoch, topology, credits } => {
                (version, switch, peer, epoch, topology, credits)
            }
            Frame::Refuse { reason, offered, expected } => return refused(self, reason, offered, expected, true, out),
            _ => return refused(self, Refusal::Handshake, 0, 0, false, out),
        };
        if version != PROTOCOL_VERSION {
            return refused(self, Refusal::Version, version.into(), PROTOCOL_VERSION.into(), false, out);
        }
        let digest = part.topology.digest();
        if topology != digest {
            return refused(self, Refusal::Topology, topology, digest, false, out);
        }
        if (switch, peer) != (to, part.switch) {
            return refused(self, Refusal::NoTrunk, switch.into(), peer.into(), false, out);
        }
        if credits.contains(&0) {
            return refused(self, Refusal::Protocol, 0, 1, false, out);
        }
        // Both ends must come to the same epoch, and each connection to another: one that was greeted before another
        // was joined would have its epoch.
        let now = self.state.epochs.get(place - self.nodes_here).copied().unwrap_or(0);
        if sent != now && !self.config.has(Bug::JoinStale) {
            return refused(self, Refusal::Handshake, sent, now, false, out);
        }

        // A connection that is still there is of a time before the other end lost it.
        if let Some(old) = self.neighbour(place).map(|neighbour| neighbour.port) {
            out.push(Action::Close(old));
            self.close(old, out);
        }
        let epoch = sent.max(epoch).saturating_add(1);
        if let Some(entry) = self.state.epochs.get_mut(place - self.nodes_here) {
            *entry = epoch;
        }
        let kind = Kind::Trunk { trunk, layers: part.topology.layers() };
        let neighbour = Neighbour::new(kind, port, room, self.config.credits, credits);
        self.statistics.trunks_joined += 1;
        Switch::notice(out, Notice::TrunkUp { port, trunk, to, epoch });
        self.open(port, place, neighbour);
        self.tell_all(place, |switch, source| {
            let Some(Part { topology, switch: here }) = &switch.config.part else { return false };
            topology.children(*here, source).any(|child| child == trunk)
        });
    }

    pub(super) fn trunk_frame(
        &mut self,
        place: Place,
        trunk: TrunkId,
        port: PortId,
        frame: Frame,
        out: &mut Vec<Action>,
    ) -> Result<(), Violation> {
        match frame {
            Frame::Forward { layer, members, packet } => self.forwarded(place, trunk, layer, members, packet, out),
            Frame::TrunkCredit { class, layer, count } => self.credited(place, class, layer, count),
            Frame::Reach { node, incarnation, session } => {
                self.valid_destination(node)?;
                if !self.comes_by(node, trunk) {
                    return Err(Violation::Astray(node));
                }
                let epoch = self.state.epochs.get(place - self.nodes_here).copied().unwrap_or(0);
                let session = if self.config.has(Bug::ForgetSession) { 0 } else { session.wrapping_add(epoch) };
                Switch::notice(out, Notice::Reached { node, incarnation });
                self.arrived(node, incarnation, session, out);
                Ok(())
            }
            Frame::NodeDown { node } => {
                self.valid_destination(node)?;
                if !self.comes_by(node, trunk) {
                    return Err(Violation::Astray(node));
                }
                if self.state.presence.get(usize::from(node)).is_some_and(|presence| presence.up) {
                    self.lose(node);
                    Switch::notice(out, Notice::Lost { node });
                }
                Ok(())
            }
            Frame::Probe => self.asked(place),
            Frame::Alive => Ok(()),
            Frame::Refuse { reason, offered, expected } => {
                Switch::notice(out, Notice::TrunkRefused { trunk, reason, offered, expected, by_peer: true });
                out.push(Action::Close(port));
                self.close(port, out);
                Ok(())
            }
            Frame::Hello { .. }
            | Frame::Welcome { .. }
            | Frame::Packet(_)
            | Frame::Credit { .. }
            | Frame::NodeUp { .. }
            | Frame::Reset { .. }
            | Frame::Group { .. }
            | Frame::Trunk { .. } => Err(Violation::Unexpected),
        }
    }

    /// Whether the switch at the other end of a trunk, if it does what it should, sends what is for this destination by
    /// this trunk and on this layer.
    fn comes_right(&self, trunk: TrunkId, layer: u8, source: NodeId, destination: NodeId) -> Result<(), Violation> {
        let Some(Part { topology, switch: here }) = &self.config.part else { return Ok(()) };
        let route = topology.switch_of(source).zip(topology.switch_of(destination));
        let hop = route.and_then(|(from, to)| topology.hop(topology.other_end(trunk, *here), from, to));
        match hop.filter(|hop| hop.trunk == trunk) {
            Some(hop) if hop.layer == layer || self.config.has(Bug::OneLayer) => Ok(()),
            Some(_) => Err(Violation::Layer { layer, layers: topology.layers() }),
            None => Err(Violation::Astray(destination)),
        }
    }

    /// A packet that another switch sends on.
    fn forwarded(
        &mut self,
        place: Place,
        trunk: TrunkId,
        layer: u8,
        members: Vec<NodeId>,
        packet: Packet,
        out: &mut Vec<Action>,
    ) -> Result<(), Violation> {
        let layers = self.config.part.as_ref().map_or(1, |part| part.topology.layers());
        if layer >= layers {
            return Err(Violation::Layer { layer, layers });
        }
        self.valid_destination(packet.src)?;
        let multicast = packet.dst == MULTICAST;
        if multicast {
            for member in &members {
                self.valid_destination(*member)?;
                self.comes_right(trunk, layer, packet.src, *member)?;
            }
        } else {
            self.valid_destination(packet.dst)?;
            self.comes_right(trunk, layer, packet.src, packet.dst)?;
        }
        let class = self.config.class_of(&packet);
        if multicast && class != Class::Reflected {
            return Err(Violation::MulticastClass(class));
        }
        let channel = self.channel_beyond(class, layer);
        let lenient = self.config.has(Bug::AcceptWithoutCredit);
        let Some(sender) = self.neighbour_mut(place) else { return Ok(()) };
        match sender.held[channel.index()].checked_sub(1) {
            Some(held) => sender.held[channel.index()] = held,
            None if lenient => {}
            None => return Err(Violation::NoCredit(class)),
        }
        self.touched.push(place);
        if let Some(counted) = self.class_statistics(place, class) {
            counted.received_packets += 1;
            counted.received_bytes += bytes(&packet);
        }
        let up = self.state.presence.get(usize::from(packet.src)).is_some_and(|presence| presence.up);
        let paid = Paid { place: place as u16, channel, multicast: None };
        let astray = !self.comes_by(packet.src, trunk);
        if astray && self.config.has(Bug::BlameMessenger) {
            return Err(Violation::Astray(packet.src));
        }
        if !up || astray {
            // A reply that has passed the news of its sender: nobody waits for it. Or a lie that an honest switch has
            // sent on.
            self.gone(Some(paid));
            self.count_lost(place, class);
            return Ok(());
        }
        if multicast {
            self.multicast(place, channel, packet, members, out);
            return Ok(());
        }
        self.pass(place, Queued { packet, members: Vec::new(), paid: Some(paid) }, out)
    }
}
