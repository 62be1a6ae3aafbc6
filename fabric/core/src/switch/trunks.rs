// SPDX-License-Identifier: MIT OR Apache-2.0
//! What comes by a trunk: packets and news of nodes of other switches.

use telegraphos_topology::{Transit, TrunkId};
use telegraphos_wire::packet::MULTICAST;
use telegraphos_wire::{Class, NodeId, Packet};

use super::packets::Crossing;
use super::routes::PortIndex;
use crate::lane::{Paid, Queued};
use crate::{Action, Diagnostic, Violation};

impl Crossing<'_> {
    /// A node of another switch can be reached, or was reset.
    ///
    /// # Errors
    /// Its news do not come by this trunk.
    pub(super) fn reached(
        &mut self,
        trunk: TrunkId,
        node: NodeId,
        incarnation: u64,
        session: u64,
    ) -> Result<(), Violation> {
        self.check_arrival(node, trunk)?;
        self.out.push(Action::Diagnostic(Diagnostic::Reached { node, incarnation }));
        self.arrived(node, incarnation, session);
        Ok(())
    }

    /// A node of another switch is down.
    ///
    /// # Errors
    /// Its news do not come by this trunk.
    pub(super) fn lost(&mut self, trunk: TrunkId, node: NodeId) -> Result<(), Violation> {
        self.check_arrival(node, trunk)?;
        if self.presence.is_up(node) {
            self.node_lost(node);
            self.out.push(Action::Diagnostic(Diagnostic::Lost { node }));
        }
        Ok(())
    }

    /// Checks that news of a node come by this trunk.
    fn check_arrival(&self, node: NodeId, trunk: TrunkId) -> Result<(), Violation> {
        self.valid_destination(node)?;
        if self.routes.arrives_by(node, trunk) { Ok(()) } else { Err(Violation::Astray(node)) }
    }

    /// A packet that another switch forwards.
    pub(super) fn forwarded(
        &mut self,
        index: PortIndex,
        trunk: TrunkId,
        layer: u8,
        members: Vec<NodeId>,
        packet: Packet,
    ) -> Result<(), Violation> {
        let layers = self.routes.layers();
        if layer >= layers {
            return Err(Violation::Layer { layer, layers });
        }
        self.valid_destination(packet.src)?;
        let multicast = packet.dst == MULTICAST;
        let (arrives, next) = if multicast {
            for destination in &members {
                self.valid_destination(*destination)?;
                self.routes.check_route(
                    self.routes.transit(trunk, packet.src, *destination).came,
                    trunk,
                    layer,
                    *destination,
                )?;
            }
            (self.routes.arrives_by(packet.src, trunk), None)
        } else {
            self.valid_destination(packet.dst)?;
            let Transit { came, arrives, next } = self.routes.transit(trunk, packet.src, packet.dst);
            self.routes.check_route(came, trunk, layer, packet.dst)?;
            (arrives, next)
        };
        let class = self.routes.class_of(&packet);
        if multicast && class != Class::Reflected {
            return Err(Violation::MulticastClass(class));
        }
        let channel = self.routes.channel_beyond(class, layer);
        self.received(index, channel, &packet)?;
        let paid = Paid { index: index as u16, channel, multicast: None };
        let astray = !arrives;
        if astray && bug!(BlameMessenger) {
            return Err(Violation::Astray(packet.src));
        }
        if !self.presence.is_up(packet.src) || astray {
            // Either a reply that arrived before the Reach of its sender, for which no request is pending, or a forged
            // source that an honest switch forwarded.
            self.release(Some(paid));
            self.traffic.lost(index, class);
            return Ok(());
        }
        if multicast {
            self.multicast(index, channel, packet, &members);
            return Ok(());
        }
        self.pass(index, Queued { packet, members: Vec::new(), paid: Some(paid) }, next)
    }
}
