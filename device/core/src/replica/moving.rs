// SPDX-License-Identifier: MIT OR Apache-2.0
//! A page whose home moves to one of its copies while stores continue (`docs/replication.md`, "Moving the home").
//!
//! Stores to the page are ordered by the old home up to its [`Body::Rehome`], then by the new home. The new home has no
//! store of its own in flight when it begins, so it has no pending-write counters. The other copies keep their
//! counters, and send again to the new home what the old home did not take.

use super::page::{Mode, Moving, ReplicaPage, Work};
use crate::config::Bug;
use crate::ctx::Ctx;
use crate::requester::Source;
use telegraphos_wire::{Body, NodeId, Packet, Status};

impl ReplicaPage {
    /// Whether stores of this node's processors stall: for the new home, or behind returned ones that it must get
    /// first.
    pub(super) fn stalls_own_stores(&self) -> bool {
        self.moving.is_some() || !self.returned.is_empty()
    }

    /// Whether stores that this node's copy already contains are kept for the new home instead of sent.
    pub(super) fn keeps_stores(&self) -> bool {
        matches!(self.moving, Some(Moving::Following { .. })) || !self.returned.is_empty()
    }

    /// Whether the home of this page can move now.
    pub(super) fn can_move(&self) -> bool {
        matches!(self.mode, Mode::Owner | Mode::Counters) && self.orphaned.is_none() && self.filled && !self.revoked
    }

    /// Whether the home refuses requests because the page is moving away.
    pub(super) fn is_giving(&self, ctx: &Ctx) -> bool {
        matches!(self.moving, Some(Moving::Giving { .. })) && !ctx.has(Bug::ServeWhileMoving)
    }

    // ---- at the copy that becomes the home ----

    /// REPLICA_MOVE: this copy is to become the home.
    pub(super) fn begin_move(&mut self, slot: u32) -> Result<(), Status> {
        if !matches!(self.mode, Mode::Owner | Mode::Counters) {
            return Err(Status::Invalid);
        }
        if self.setting.is_some() || self.clearing.is_some() || self.stalls_own_stores() {
            return Err(Status::Busy);
        }
        if self.home || !self.can_move() {
            return Err(Status::NotHome);
        }
        self.moving = Some(Moving::Taking { released: false });
        self.setting = Some(slot);
        self.work.push_back(Work::Take);
        Ok(())
    }

    /// A Join with `keep`: its node has a copy with everything that the old home sent, and stays a copy of this new
    /// home. Returns whether that is the old home, the last copy: this node, `own`, is the home from now on.
    pub(super) fn join_kept(&mut self, own: NodeId, packet: &Packet) -> Result<bool, Status> {
        let Body::Join { mode, .. } = packet.body else { return Err(Status::Invalid) };
        let Some(Moving::Taking { released }) = self.moving else { return Err(Status::NotHome) };
        let old_home = self.source().is_some_and(|home| home.node == packet.src);
        if mode != self.mode as u16 || packet.src == own || (old_home && !released) {
            return Err(Status::NotHome);
        }
        self.copies.insert(packet.src, packet.incarnation);
        if old_home {
            self.home = true;
            self.moving = None;
            self.moves += 1;
            self.sources.clear();
        }
        Ok(old_home)
    }

    // ---- at the old home ----

    /// Whether a copy may request to become the home.
    pub(super) fn admit_move(&self, source: NodeId) -> Result<(), Status> {
        if !self.home || !self.can_move() || !self.copies.contains_key(&source) {
            return Err(Status::NotHome);
        }
        let queued = self.work.iter().any(|work| matches!(work, Work::Move(_)));
        if self.moving.is_some() || self.clearing.is_some() || queued { Err(Status::Busy) } else { Ok(()) }
    }

    /// Begins to hand the page over to the copy that has requested it. Returns the new home, and the sources of the
    /// requests behind, which are not performed here; serving them again refuses them or makes them wait.
    pub(super) fn give(&mut self, packet: &Packet) -> Result<(Source, Vec<NodeId>), Status> {
        let Body::Move { page, generation, .. } = packet.body else { return Err(Status::Invalid) };
        if self.copies.get(&packet.src) != Some(&packet.incarnation) || self.orphaned.is_some() || self.revoked {
            return Err(Status::NotHome);
        }
        let to = Source { node: packet.src, page, generation };
        self.moving = Some(Moving::Giving { to, packet: None });
        let mut again = Vec::new();
        self.work.retain(|work| match work {
            Work::Request(source) => {
                again.push(*source);
                false
            }
            _ => true,
        });
        Ok((to, again))
    }

    /// The new home has accepted this node as a copy: this node stops being the home. Returns the Move request to
    /// answer; `Err` if this node is not handing the page over.
    pub(super) fn hand_over(&mut self, source: Source) -> Result<Option<Packet>, Status> {
        if !self.home {
            return Err(Status::NotHome);
        }
        let Some(Moving::Giving { packet, .. }) = self.moving.replace(Moving::Following { announced: false }) else {
            return Err(Status::NotHome);
        };
        self.home = false;
        self.moves += 1;
        self.copies.clear();
        self.sources.insert(source);
        Ok(packet)
    }

    // ---- at the other copies ----

    /// The home moves to another node, which this copy follows.
    pub(super) fn follow(&mut self, new: Source) {
        self.sources = [new].into();
        self.moving = Some(Moving::Following { announced: false });
        self.moves += 1;
    }
}
