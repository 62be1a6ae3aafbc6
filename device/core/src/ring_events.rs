// SPDX-License-Identifier: MIT OR Apache-2.0
//! The board's side of the events of its rings: the fabric's offers and withdrawals, and what peers send.

use crate::config::Bug;
use crate::rings::Ring;
use crate::{Action, Hib, RingAction, RingEvent, RingViolation};
use telegraphos_wire::{NodeId, Packet, Status};

impl Hib {
    /// Returns whether a ring to this incarnation of a node, offered to incarnation `own` of this one, can be opened:
    /// both are those of now, and there is no such ring.
    pub fn accepts_ring(&self, node: NodeId, incarnation: u64, own: u64) -> bool {
        self.ctx.link.is_up()
            && own == self.ctx.incarnation
            && node != self.ctx.config.node
            && self.requester.peers.presence.incarnation(node) == Some(incarnation)
            && !self.ctx.rings.contains(node)
    }

    /// An event of the ring to a node.
    pub(crate) fn ring_event(&mut self, peer: NodeId, event: RingEvent) {
        match event {
            RingEvent::Up { incarnation, own, credits } => {
                if self.accepts_ring(peer, incarnation, own) {
                    self.ctx.rings.open(peer, incarnation, credits);
                    self.ctx.out.push(Action::Ring { peer, what: RingAction::Probe });
                }
            }
            RingEvent::Credit { class, count } => {
                let Some(ring) = self.ctx.rings.get(peer) else { return };
                match ring.credit(class, count) {
                    Ok(()) => self.requester.pump(&mut self.ctx, peer),
                    Err(why) => self.end_ring(peer, Some(why)),
                }
            }
            RingEvent::Alive => {
                if self.ctx.rings.get(peer).is_some_and(|ring| ring.answered_probe()) {
                    self.report_withdrawn(peer);
                    self.requester.pump(&mut self.ctx, peer);
                }
            }
            RingEvent::Use { incarnation, on } => {
                let drains = !self.ctx.has(Bug::LeaveRingAtOnce);
                match self.ctx.rings.get(peer).filter(|ring| ring.incarnation == incarnation) {
                    Some(ring) => {
                        if ring.want(on, drains) {
                            self.ctx.out.push(Action::Ring { peer, what: RingAction::Probe });
                        }
                        self.report_withdrawn(peer);
                    }
                    // This end could not be opened. A withdrawal waits for both.
                    None if !on => self.ctx.out.push(Action::Ring { peer, what: RingAction::Unused { incarnation } }),
                    None => {}
                }
            }
            RingEvent::Lost { incarnation } => {
                if self.ctx.rings.get(peer).is_some_and(|ring| ring.incarnation == incarnation) {
                    self.node_down(peer, Status::NodeDown);
                }
            }
            RingEvent::Broken => {
                if self.ctx.rings.contains(peer) {
                    self.end_ring(peer, Some(RingViolation::Bytes));
                }
            }
        }
    }

    /// A packet that came by the ring to its source.
    pub(crate) fn ring_packet(&mut self, packet: Packet) {
        let (peer, own) = (packet.src, self.ctx.config.node);
        let block = self.requester.peers.presence.block(peer);
        let unchecked = self.ctx.has(Bug::TrustRing);
        // A packet of a ring that is closed: its sender is, or will be, notified.
        let Some(ring) = self.ctx.rings.get(peer) else { return };
        match ring.admit(&packet, own, block) {
            Err(why) if !unchecked => self.end_ring(peer, Some(why)),
            _ => self.packet(packet),
        }
    }

    /// Tells the fabric when requests to a node pass it again.
    fn report_withdrawn(&mut self, peer: NodeId) {
        if let Some(Ring { incarnation, .. }) = self.ctx.rings.get(peer).filter(|ring| ring.is_withdrawn()) {
            let what = RingAction::Unused { incarnation: *incarnation };
            self.ctx.out.push(Action::Ring { peer, what });
        }
    }

    /// Closes the ring to a node, which then counts as down: nothing that it was sent, or has sent, will be answered.
    fn end_ring(&mut self, peer: NodeId, why: Option<RingViolation>) {
        self.close_ring(peer, why);
        self.node_down(peer, Status::NodeDown);
    }

    /// Closes the ring to a node, if there is one. Its credits are gone with it.
    pub(crate) fn close_ring(&mut self, peer: NodeId, why: Option<RingViolation>) {
        if self.ctx.rings.close(peer) {
            self.responder.forget_ring(peer);
            self.ctx.out.push(Action::Ring { peer, what: RingAction::Close(why) });
        }
    }
}
