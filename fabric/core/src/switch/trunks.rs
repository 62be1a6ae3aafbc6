// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trunks: the handshake of two switches, and the frames between them.

use telegraphos_topology::{Hop, Transit, TrunkId};
use telegraphos_wire::link::{Frame, Refusal};
use telegraphos_wire::packet::MULTICAST;
use telegraphos_wire::{Class, NodeId, PROTOCOL_VERSION, Packet, STREAM_BLOCK};

use super::{Port, PortIndex, Switch};
use crate::config::Part;
use crate::lane::{Paid, Queued};
use crate::neighbour::{Kind, Neighbour};
use crate::{Action, Attached, Diagnostic, PortId, Violation};

impl Switch {
    /// A connection for a trunk: sends the opening frame, or closes it if this switch has no such trunk.
    pub(super) fn greet(&mut self, port: PortId, room: u32, trunk: TrunkId, out: &mut Vec<Action>) {
        self.close(port, out);
        let index = self.index_of_trunk(trunk);
        let (Some(index), Some(part)) = (index, &self.config.part) else {
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
            credits: self.config.credits,
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
        let (Some(part), Some(Attached::Trunk(trunk, to))) = (self.config.part.clone(), self.attached(index)) else {
            return;
        };
        let refused = |switch: &mut Switch, reason, offered, expected, by_peer: bool, out: &mut Vec<Action>| {
            switch.statistics.refused += 1;
            switch.clock.closed(port);
            switch.state.ports.remove(port);
            if !by_peer {
                out.push(Action::Send(port, Frame::Refuse { reason, offered, expected }));
            }
            out.push(Action::Close(port));
            Switch::report(out, Diagnostic::TrunkRefused { trunk, reason, offered, expected, by_peer });
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
        // Both ends must compute the same epoch, and each connection another one: a connection whose handshake began
        // before another was joined would reuse its epoch.
        let now = self.epoch(index);
        if sent != now && !bug!(JoinStale) {
            return refused(self, Refusal::Handshake, sent, now, false, out);
        }

        // An earlier connection is stale: the other end has lost it.
        if let Some(old) = self.neighbour(index).map(|neighbour| neighbour.port) {
            out.push(Action::Close(old));
            self.close(old, out);
        }
        let epoch = sent.max(epoch).saturating_add(1);
        if let Some(entry) = self.state.epochs.get_mut(index - self.nodes_here) {
            *entry = epoch;
        }
        let kind = Kind::Trunk { trunk, layers: part.topology.layers() };
        let neighbour = Neighbour::new(kind, port, room, STREAM_BLOCK as u32, self.config.credits, credits);
        self.statistics.trunks_joined += 1;
        Switch::report(out, Diagnostic::TrunkUp { port, trunk, to, epoch });
        self.open(port, index, neighbour);
        self.notify_all(index, |switch, source| switch.tree_continues_by(source, trunk));
    }

    /// A frame of a joined trunk.
    ///
    /// # Errors
    /// What it violates; the trunk is to be disconnected.
    pub(super) fn trunk_frame(
        &mut self,
        index: PortIndex,
        trunk: TrunkId,
        port: PortId,
        frame: Frame,
        out: &mut Vec<Action>,
    ) -> Result<(), Violation> {
        match frame {
            Frame::Forward { layer, members, packet } => self.forwarded(index, trunk, layer, members, packet, out),
            Frame::TrunkCredit { class, layer, count } => self.credited(index, class, layer, count),
            Frame::Reach { node, incarnation, session } => {
                self.check_arrival(node, trunk)?;
                let session = if bug!(ForgetSession) { 0 } else { session.wrapping_add(self.epoch(index)) };
                Switch::report(out, Diagnostic::Reached { node, incarnation });
                self.arrived(node, incarnation, session, out);
                Ok(())
            }
            Frame::NodeDown { node } => {
                self.check_arrival(node, trunk)?;
                if self.is_up(node) {
                    self.node_lost(node);
                    Switch::report(out, Diagnostic::Lost { node });
                }
                Ok(())
            }
            Frame::Probe => self.probed(index),
            Frame::Alive => Ok(()),
            Frame::Refuse { reason, offered, expected } => {
                Switch::report(out, Diagnostic::TrunkRefused { trunk, reason, offered, expected, by_peer: true });
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
            | Frame::Trunk { .. }
            | Frame::Ring { .. }
            | Frame::RingUse { .. }
            | Frame::RingLost { .. } => Err(Violation::Unexpected),
        }
    }

    /// The number of a trunk, by its port index.
    fn epoch(&self, index: PortIndex) -> u64 {
        self.state.epochs.get(index - self.nodes_here).copied().unwrap_or(0)
    }

    /// Checks that news of a node come by this trunk.
    fn check_arrival(&self, node: NodeId, trunk: TrunkId) -> Result<(), Violation> {
        self.valid_destination(node)?;
        if self.arrives_by(node, trunk) { Ok(()) } else { Err(Violation::Astray(node)) }
    }

    /// What the routes say of a packet that arrives by this trunk; nothing if one of the nodes does not exist.
    fn transit(&self, trunk: TrunkId, source: NodeId, destination: NodeId) -> Transit {
        let part = self.config.part.as_ref();
        let transit = part.and_then(|Part { topology, switch }| {
            Some(topology.transit(*switch, trunk, topology.switch_of(source)?, topology.switch_of(destination)?))
        });
        transit.unwrap_or(Transit { came: None, arrives: false, next: None })
    }

    /// Checks that the route of a packet uses this trunk, and this layer of it.
    fn check_route(&self, came: Option<Hop>, trunk: TrunkId, layer: u8, destination: NodeId) -> Result<(), Violation> {
        match came.filter(|hop| hop.trunk == trunk) {
            Some(hop) if hop.layer == layer || bug!(OneLayer) => Ok(()),
            Some(_) => Err(Violation::Layer { layer, layers: self.layers() }),
            None => Err(Violation::Astray(destination)),
        }
    }

    fn layers(&self) -> u8 {
        self.config.part.as_ref().map_or(1, |part| part.topology.layers())
    }

    /// A packet that another switch forwards.
    fn forwarded(
        &mut self,
        index: PortIndex,
        trunk: TrunkId,
        layer: u8,
        members: Vec<NodeId>,
        packet: Packet,
        out: &mut Vec<Action>,
    ) -> Result<(), Violation> {
        let layers = self.layers();
        if layer >= layers {
            return Err(Violation::Layer { layer, layers });
        }
        self.valid_destination(packet.src)?;
        let multicast = packet.dst == MULTICAST;
        let (arrives, next) = if multicast {
            for destination in &members {
                self.valid_destination(*destination)?;
                self.check_route(self.transit(trunk, packet.src, *destination).came, trunk, layer, *destination)?;
            }
            (self.arrives_by(packet.src, trunk), None)
        } else {
            self.valid_destination(packet.dst)?;
            let Transit { came, arrives, next } = self.transit(trunk, packet.src, packet.dst);
            self.check_route(came, trunk, layer, packet.dst)?;
            (arrives, next)
        };
        let class = self.config.class_of(&packet);
        if multicast && class != Class::Reflected {
            return Err(Violation::MulticastClass(class));
        }
        let channel = self.channel_beyond(class, layer);
        self.received(index, channel, &packet)?;
        let paid = Paid { index: index as u16, channel, multicast: None };
        let astray = !arrives;
        if astray && bug!(BlameMessenger) {
            return Err(Violation::Astray(packet.src));
        }
        if !self.is_up(packet.src) || astray {
            // Either a reply that arrived before the Reach of its sender, for which no request is pending, or a forged
            // source that an honest switch forwarded.
            self.release(Some(paid));
            self.count_lost(index, class);
            return Ok(());
        }
        if multicast {
            self.multicast(index, channel, packet, members, out);
            return Ok(());
        }
        self.pass(index, Queued { packet, members: Vec::new(), paid: Some(paid) }, next, out)
    }
}
