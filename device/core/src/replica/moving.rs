// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moving a page's home to one of its copies while stores continue (`docs/replication.md`, "Moving the home").
//! `control` calls this part for REPLICA_MOVE; `requests`, `reflected`, `work` and `members` call it for the other
//! nodes' steps of the protocol.
//!
//! Stores to the page are ordered by the old home up to its [`Body::Rehome`], then by the new home. The new home has no
//! store of its own in flight when it begins, so it has no pending-write counters. The other copies keep their
//! counters, and send again to the new home what the old home did not take.

use super::page::{Arrival, Mode, Moving, Work};
use super::{Below, Replicas, Served};
use crate::config::Bug;
use crate::ctx::{Ctx, FollowUp};
use crate::events::Cause;
use crate::requester::Source;
use crate::requester::{ReplicaRequest, RequestKind};
use telegraphos_wire::{Body, NodeId, Packet, RemoteAddr, Status};

impl Replicas {
    // ---- at the copy that becomes the home ----

    /// REPLICA_MOVE at the copy that is to become the home. `Ok`: the command completes later.
    pub(crate) fn move_home(&mut self, below: &mut Below<'_>, slot: u32, page: u32) -> Result<(), Status> {
        let replica = self.pages.get_mut(page).ok_or(Status::Invalid)?;
        if !matches!(replica.mode, Mode::Owner | Mode::Counters) {
            return Err(Status::Invalid);
        }
        if replica.setting.is_some() || replica.clearing.is_some() || replica.stalls_own_stores() {
            return Err(Status::Busy);
        }
        if replica.home || !replica.can_move() {
            return Err(Status::NotHome);
        }
        replica.moving = Some(Moving::Taking { released: false });
        replica.setting = Some(slot);
        replica.work.push_back(Work::Take);
        self.run_work(below, page);
        Ok(())
    }

    /// Sends the Move request: all earlier stores of this node's processors have been sent to the home.
    pub(super) fn take_home(&mut self, below: &mut Below<'_>, page: u32) {
        let Some(replica) = self.pages.get(page) else { return };
        let Some(&(node, home_page, home_generation)) = replica.sources.first() else { return };
        if !matches!(replica.moving, Some(Moving::Taking { .. })) {
            // Another copy has become the home in the meantime.
            return self.move_failed(below, page, Status::NotHome);
        }
        let at = RemoteAddr { page: home_page, offset: 0, generation: home_generation };
        let body = Body::Move { at, page, generation: replica.generation };
        below.requester.submit(below.ctx, node, RequestKind::Replica(ReplicaRequest::Move { page }), body);
    }

    /// The home has refused the Move, or has not answered in time.
    pub(super) fn move_failed(&mut self, below: &mut Below<'_>, page: u32, status: Status) {
        let Some(replica) = self.pages.get_mut(page).filter(|replica| !replica.home) else {
            return;
        };
        match replica.moving {
            Some(Moving::Taking { released: true }) => return self.orphan(below, page, status),
            Some(Moving::Taking { released: false }) => replica.moving = None,
            // The home moves to another copy.
            _ => {}
        }
        if let Some(slot) = replica.setting.take() {
            below.ctx.complete_status(slot, status);
        }
        self.end_copies(below, page, status);
        below.ctx.defer(FollowUp::Serve(below.ctx.config.node));
        self.leave_if_done(below, page);
    }

    /// A Join with `keep`: the node has a copy with everything that the old home sent, and stays a copy of this new
    /// home.
    pub(super) fn join_kept(&mut self, below: &mut Below<'_>, source: NodeId, packet: &Packet, page: u32) -> Served {
        let Body::Join { mode, .. } = packet.body else { return Served::Refused(Status::Invalid) };
        let Some(replica) = self.pages.get_mut(page) else {
            return Served::Refused(Status::NotHome);
        };
        let Some(Moving::Taking { released }) = replica.moving else { return Served::Refused(Status::NotHome) };
        let old_home = replica.sources.first().is_some_and(|home| home.0 == source);
        if mode != replica.mode as u16 || source == below.ctx.config.node || (old_home && !released) {
            return Served::Refused(Status::NotHome);
        }
        replica.copies.insert(source, packet.incarnation);
        self.note_rejoin(below.ctx, page, source);
        self.announce_group(below.ctx, page);
        if old_home {
            self.become_home(below, page);
        }
        Served::Answer(Body::WriteAck { status: Status::Ok })
    }

    /// Makes this node the home, after the old home has joined as the last copy.
    fn become_home(&mut self, below: &mut Below<'_>, page: u32) {
        let Some(replica) = self.pages.get_mut(page) else { return };
        replica.home = true;
        replica.moving = None;
        replica.moves += 1;
        replica.sources.clear();
        let (slot, generation) = (replica.setting.take(), replica.generation);
        let copies: Vec<NodeId> = replica.copies.keys().copied().collect();
        self.sources.retain(|_, p| *p != page);
        let at = RemoteAddr { page, offset: 0, generation };
        let announcement = Body::Rehome { at, to: below.ctx.config.node, page, generation };
        self.multicast(below, &copies, announcement, None);
        if let Some(slot) = slot {
            below.ctx.complete_status(slot, Status::Ok);
        }
        below.ctx.cause(Cause::Replica(page));
        // The caller serves the next request of the old home; requests of this node's processors are in a queue of
        // their own.
        below.ctx.defer(FollowUp::Serve(below.ctx.config.node));
    }

    // ---- at the old home ----

    /// A Move request of a copy: queued as a work item.
    pub(super) fn queue_move(&mut self, below: &mut Below<'_>, source: NodeId, page: u32) -> Served {
        let Some(replica) = self.pages.get_mut(page) else {
            return Served::Refused(Status::NotHome);
        };
        if !replica.home || !replica.can_move() || !replica.copies.contains_key(&source) {
            return Served::Refused(Status::NotHome);
        }
        let queued = replica.work.iter().any(|work| matches!(work, Work::Move(_)));
        if replica.moving.is_some() || replica.clearing.is_some() || queued {
            return Served::Refused(Status::Busy);
        }
        if let Some(packet) = below.responder.detach(below.ctx, source) {
            self.begin_work(below, page, Work::Move(packet));
        }
        Served::Left
    }

    /// Runs a Move item: everything before it has been multicast, and this node multicasts nothing after it.
    pub(super) fn give_home(&mut self, below: &mut Below<'_>, page: u32, packet: Packet) {
        let Body::Move { page: new_page, generation: new_generation, .. } = packet.body else { return };
        let Some(replica) = self.pages.get_mut(page) else { return };
        if replica.copies.get(&packet.src) != Some(&packet.incarnation) || replica.orphaned.is_some() || replica.revoked
        {
            return self.refuse_forward(below.ctx, packet, Status::NotHome);
        }
        let to = (packet.src, new_page, new_generation);
        replica.moving = Some(Moving::Giving { to, packet: None });
        let copies: Vec<NodeId> = replica.copies.keys().copied().collect();
        let at = RemoteAddr { page, offset: 0, generation: replica.generation };
        // Requests behind the Move are not performed here; serving them again refuses them or makes them wait.
        let mut again = Vec::new();
        replica.work.retain(|work| match work {
            Work::Request(source, _) => {
                again.push(*source);
                false
            }
            _ => true,
        });
        let rehome = Body::Rehome { at, to: to.0, page: to.1, generation: to.2 };
        self.multicast(below, &copies, rehome, Some((packet, Body::WriteAck { status: Status::Ok })));
        for source in again {
            below.responder.in_service(source, None);
            below.ctx.defer(FollowUp::Serve(source));
        }
    }

    /// All copies have acknowledged the Rehome, or have been dropped: joins the new home as its last copy.
    pub(super) fn rehome_acknowledged(&mut self, below: &mut Below<'_>, page: u32, packet: Packet) {
        let Some(replica) = self.pages.get_mut(page) else {
            return self.refuse_forward(below.ctx, packet, Status::NotHome);
        };
        let Some(Moving::Giving { to, packet: request @ None }) = &mut replica.moving else {
            return self.refuse_forward(below.ctx, packet, Status::NotHome);
        };
        let to = *to;
        let is_copy = replica.copies.get(&to.0) == Some(&packet.incarnation);
        *request = Some(packet);
        if !is_copy || self.sources.contains_key(&to) {
            return self.stay_home(below, page, Status::NotHome);
        }
        let mode = replica.mode as u16;
        // The new home's announcement may arrive before its answer to this Join.
        self.sources.insert(to, page);
        let at = RemoteAddr { page: to.1, offset: 0, generation: to.2 };
        let purpose = RequestKind::Replica(ReplicaRequest::Keep { page, source: to, packet: None });
        below.requester.submit(below.ctx, to.0, purpose, Body::Join { at, mode, keep: true });
    }

    /// The new home has failed to take over: this node remains the home. Copies that already joined the other one
    /// become orphans.
    fn stay_home(&mut self, below: &mut Below<'_>, page: u32, status: Status) {
        let Some(replica) = self.pages.get_mut(page) else { return };
        let Some(Moving::Giving { to, packet }) = replica.moving.take() else { return };
        let copies: Vec<NodeId> = replica.copies.keys().copied().collect();
        self.sources.remove(&to);
        for node in copies {
            self.remove_copy(below, page, node);
        }
        if let Some(packet) = packet {
            self.refuse_forward(below.ctx, packet, status);
        }
        below.ctx.defer(FollowUp::Serve(below.ctx.config.node));
        self.run_work(below, page);
        self.leave_if_done(below, page);
    }

    /// The new home has accepted this node as a copy: this node stops being the home.
    fn hand_over(&mut self, ctx: &mut Ctx, page: u32, source: Source) {
        let Some(replica) = self.pages.get_mut(page).filter(|replica| replica.home) else { return };
        let Some(Moving::Giving { packet, .. }) = replica.moving.replace(Moving::Following { announced: false }) else {
            return;
        };
        replica.home = false;
        replica.moves += 1;
        replica.copies.clear();
        replica.sources.insert(source);
        self.announce_group(ctx, page);
        self.start_home_timer(ctx, page);
        if let Some(packet) = packet {
            ctx.reply_to(&packet, Body::WriteAck { status: Status::Ok });
        }
        ctx.cause(Cause::Replica(page));
    }

    // ---- at all copies ----

    /// A Rehome that names a node: the home's announcement that the page moves there, or that the sender is the new
    /// home.
    pub(super) fn rehomed(&mut self, below: &mut Below<'_>, page: u32, source: Source, packet: &Packet) -> Arrival {
        let Body::Rehome { to, page: new_page, generation, .. } = packet.body else {
            return Arrival::Done(Status::Invalid);
        };
        let Some(replica) = self.pages.get_mut(page) else { return Arrival::Done(Status::NotHome) };
        if to == source.0 {
            return self.announced(below, page, source);
        }
        let new = (to, new_page, generation);
        if to == below.ctx.config.node {
            let is_this_page = new_page == page && generation == replica.generation;
            if let Some(Moving::Taking { released }) = replica.moving.as_mut().filter(|_| is_this_page) {
                *released = true;
                return Arrival::Done(Status::Ok);
            }
            self.source_lost(below, page, source, Status::NotHome);
            return Arrival::Done(Status::NotHome);
        }
        if !replica.can_move() || below.requester.reachable(below.ctx, to).is_err() || self.sources.contains_key(&new) {
            self.source_lost(below, page, source, Status::Stale);
            return Arrival::Done(Status::NotHome);
        }
        let Some(replica) = self.pages.get_mut(page) else { return Arrival::Done(Status::NotHome) };
        replica.sources = [new].into();
        replica.moving = Some(Moving::Following { announced: false });
        replica.moves += 1;
        let mode = replica.mode as u16;
        self.sources.remove(&source);
        self.sources.insert(new, page);
        below.ctx.cause(Cause::Replica(page));
        let at = RemoteAddr { page: new_page, offset: 0, generation };
        let purpose = RequestKind::Replica(ReplicaRequest::Keep { page, source: new, packet: Some(packet.clone()) });
        below.requester.submit(below.ctx, to, purpose, Body::Join { at, mode, keep: true });
        Arrival::Deferred
    }

    /// The new home has answered the Join of a copy, or (`packet` is `None`) of the old home.
    pub(super) fn keep_answered(
        &mut self,
        below: &mut Below<'_>,
        page: u32,
        source: Source,
        packet: Option<Packet>,
        status: Status,
    ) {
        let Some(packet) = packet else {
            return match status {
                Status::Ok => self.hand_over(below.ctx, page, source),
                // The other node may be the home by now, and there must not be two.
                Status::Timeout | Status::NodeDown | Status::LinkDown | Status::Reset => {
                    self.sources.remove(&source);
                    self.orphan(below, page, status);
                }
                _ => self.stay_home(below, page, status),
            };
        };
        if status != Status::Ok {
            self.source_lost(below, page, source, status);
        }
        let is_source = self.sources.get(&source) == Some(&page);
        let moving = self.pages.get(page).and_then(|replica| replica.moving.as_ref());
        if is_source && moving == Some(&Moving::Following { announced: false }) {
            self.start_home_timer(below.ctx, page);
        }
        let status = if is_source { Status::Ok } else { Status::NotHome };
        below.ctx.reply_to(&packet, Body::CopyAck { status });
    }

    /// The new home has confirmed that it is the home.
    fn announced(&mut self, below: &mut Below<'_>, page: u32, source: Source) -> Arrival {
        self.hand_over(below.ctx, page, source);
        let Some(replica) = self.pages.get_mut(page) else { return Arrival::Done(Status::NotHome) };
        let Some(Moving::Following { announced }) = &mut replica.moving else { return Arrival::Done(Status::Invalid) };
        *announced = true;
        self.stop_home_timer(page);
        self.follow_if_ready(below, page);
        Arrival::Done(Status::Ok)
    }

    /// Resumes stores with the new home, once the old home has answered everything; the stores it refused are sent
    /// first.
    pub(super) fn follow_if_ready(&mut self, below: &mut Below<'_>, page: u32) {
        let Some(replica) = self.pages.get_mut(page) else { return };
        let ready = replica.moving == Some(Moving::Following { announced: true });
        let moves = replica.moves;
        if !ready {
            return;
        }
        let old = self.forwards.values().any(|forward| forward.page == page && forward.moves != moves);
        if old {
            return;
        }
        replica.moving = None;
        let returned = std::mem::take(&mut replica.returned);
        for packet in returned.into_values() {
            self.forward(below, packet, page);
        }
        below.ctx.defer(FollowUp::Serve(below.ctx.config.node));
        self.leave_if_done(below, page);
    }

    /// Ends a move because the page is an orphan or revoked: refuses the requests that wait for it.
    pub(super) fn end_moving(&mut self, ctx: &mut Ctx, page: u32, status: Status) {
        let Some(replica) = self.pages.get_mut(page) else { return };
        let (moving, returned) = (replica.moving.take(), std::mem::take(&mut replica.returned));
        if let Some(Moving::Giving { to, packet }) = moving {
            self.sources.remove(&to);
            if let Some(packet) = packet {
                self.refuse_forward(ctx, packet, Status::NotHome);
            }
        }
        for packet in returned.into_values() {
            self.refuse_forward(ctx, packet, status);
        }
    }

    /// Whether the home refuses requests because the page is moving away.
    pub(super) fn is_giving(&self, ctx: &Ctx, page: u32) -> bool {
        let replica = self.pages.get(page);
        let giving = replica.is_some_and(|replica| matches!(replica.moving, Some(Moving::Giving { .. })));
        giving && !ctx.has(Bug::ServeWhileMoving)
    }
}
