// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moving a page's home to one of its copies, while stores go on (`docs/replication.md`, "Moving the home").
//!
//! The order of the page is the old home's up to its [`Body::Rehome`], then the new home's. The new home has no store
//! of its own on the way when it begins, so it has no counters; the other copies keep theirs, and send again what the
//! old home did not take.

use super::{Mode, Replica, Served, Source, Work};
use crate::config::Bug;
use crate::ctx::FollowUp;
use crate::events::Cause;
use crate::hib::Hib;
use crate::requester::RequestKind;
use telegraphos_wire::{Body, NodeId, Packet, RemoteAddr, Status};

/// What a page waits for while its home moves. Stores of this node's processors wait too.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Moving {
    /// A copy that becomes the home; released: the old home has sent everything.
    Taking { released: bool },
    /// The home until now; it has the request to answer once all copies have been told.
    Giving { to: Source, packet: Option<Packet> },
    /// A copy, or the old home; announced: the new home has said that it is.
    Following { announced: bool },
}

/// What has become of a multicast at a copy.
pub(super) enum Arrival {
    /// It is acknowledged with this.
    Done(Status),
    /// It is work now, and acknowledged by its end.
    Working,
    /// It is acknowledged later; what follows does not wait.
    Held,
}

impl Replica {
    /// Whether stores of this node's processors wait: for the new home, or behind others that it must get first.
    pub(super) fn holds_own(&self) -> bool {
        self.moving.is_some() || !self.returned.is_empty()
    }

    /// Whether stores that are in the own copy already wait for the new home.
    pub(super) fn keeps(&self) -> bool {
        matches!(self.moving, Some(Moving::Following { .. })) || !self.returned.is_empty()
    }

    fn moves(&self) -> bool {
        matches!(self.mode, Mode::Owner | Mode::Counters) && self.orphaned.is_none() && self.filled && !self.gone
    }
}

impl Hib {
    // ---- at the copy that becomes the home ----

    /// `Ok` if it completes later.
    pub(crate) fn replica_move(&mut self, slot: u32, page: u32) -> Result<(), Status> {
        let replica = self.replicas.pages.get_mut(&page).ok_or(Status::Invalid)?;
        if !matches!(replica.mode, Mode::Owner | Mode::Counters) {
            return Err(Status::Invalid);
        }
        if replica.setting.is_some() || replica.clearing.is_some() || replica.holds_own() {
            return Err(Status::Busy);
        }
        if replica.home || !replica.moves() {
            return Err(Status::NotHome);
        }
        replica.moving = Some(Moving::Taking { released: false });
        replica.setting = Some(slot);
        replica.work.push_back(Work::Take);
        self.work_on(page);
        Ok(())
    }

    /// All earlier stores of this node's processors are on their way to the home.
    pub(super) fn take_home(&mut self, page: u32) {
        let Some(replica) = self.replicas.pages.get(&page) else { return };
        let Some(&(node, home_page, home_generation)) = replica.sources.first() else { return };
        if !matches!(replica.moving, Some(Moving::Taking { .. })) {
            // It has gone to another copy in the meantime.
            return self.move_failed(page, Status::NotHome);
        }
        let at = RemoteAddr { page: home_page, offset: 0, generation: home_generation };
        let body = Body::Move { at, page, generation: replica.generation };
        self.ask(node, RequestKind::Move { page }, body);
    }

    /// The home does not move, or its answer has not come in time.
    pub(crate) fn move_failed(&mut self, page: u32, status: Status) {
        let Some(replica) = self.replicas.pages.get_mut(&page).filter(|replica| !replica.home) else {
            return;
        };
        match replica.moving {
            Some(Moving::Taking { released: true }) => return self.orphan(page, status),
            Some(Moving::Taking { released: false }) => replica.moving = None,
            // It moves to another copy.
            _ => {}
        }
        if let Some(slot) = replica.setting.take() {
            self.ctx.complete_status(slot, status);
        }
        self.end_copies(page, status);
        self.ctx.then(FollowUp::Serve(self.ctx.config.node));
        self.leave_if_done(page);
    }

    /// A copy that has everything the old home has sent.
    pub(super) fn join_kept(&mut self, source: NodeId, packet: &Packet, page: u32) -> Served {
        let Body::Join { mode, .. } = packet.body else { return Served::Refused(Status::Invalid) };
        let Some(replica) = self.replicas.pages.get_mut(&page) else {
            return Served::Refused(Status::NotHome);
        };
        let Some(Moving::Taking { released }) = replica.moving else { return Served::Refused(Status::NotHome) };
        let old_home = replica.sources.first().is_some_and(|home| home.0 == source);
        if mode != replica.mode as u16 || source == self.ctx.config.node || (old_home && !released) {
            return Served::Refused(Status::NotHome);
        }
        replica.copies.insert(source, packet.incarnation);
        self.announce_group(page);
        if old_home {
            self.become_home(page);
        }
        Served::Answer(Body::WriteAck { status: Status::Ok })
    }

    /// The old home has joined, the last of all.
    fn become_home(&mut self, page: u32) {
        let Some(replica) = self.replicas.pages.get_mut(&page) else { return };
        replica.home = true;
        replica.moving = None;
        replica.moves += 1;
        replica.sources.clear();
        let (slot, generation) = (replica.setting.take(), replica.generation);
        let copies: Vec<NodeId> = replica.copies.keys().copied().collect();
        self.replicas.sources.retain(|_, p| *p != page);
        let at = RemoteAddr { page, offset: 0, generation };
        let announcement = Body::Rehome { at, to: self.ctx.config.node, page, generation };
        self.multicast(&copies, announcement, None);
        if let Some(slot) = slot {
            self.ctx.complete_status(slot, Status::Ok);
        }
        self.ctx.cause(Cause::Replica(page));
        // The caller serves a request of the old home; this node's own are in another queue.
        self.ctx.then(FollowUp::Serve(self.ctx.config.node));
    }

    // ---- at the home until now ----

    /// A copy asks for the page.
    pub(super) fn asked_to_move(&mut self, source: NodeId, page: u32) -> Served {
        let Some(replica) = self.replicas.pages.get_mut(&page) else {
            return Served::Refused(Status::NotHome);
        };
        if !replica.home || !replica.moves() || !replica.copies.contains_key(&source) {
            return Served::Refused(Status::NotHome);
        }
        let asked = replica.work.iter().any(|work| matches!(work, Work::Move(_)));
        if replica.moving.is_some() || replica.clearing.is_some() || asked {
            return Served::Refused(Status::Busy);
        }
        if let Some(packet) = self.responder.detach(&mut self.ctx, source) {
            self.begin_work(page, Work::Move(packet));
        }
        Served::Left
    }

    /// Its turn has come: everything before it has been multicast, and nothing after it will be from here.
    pub(super) fn give_home(&mut self, page: u32, packet: Packet) {
        let Body::Move { page: new_page, generation: new_generation, .. } = packet.body else { return };
        let Some(replica) = self.replicas.pages.get_mut(&page) else { return };
        if replica.copies.get(&packet.src) != Some(&packet.incarnation) || replica.orphaned.is_some() || replica.gone {
            return self.refuse_forward(packet, Status::NotHome);
        }
        let to = (packet.src, new_page, new_generation);
        replica.moving = Some(Moving::Giving { to, packet: None });
        let copies: Vec<NodeId> = replica.copies.keys().copied().collect();
        let at = RemoteAddr { page, offset: 0, generation: replica.generation };
        // Requests that were to be performed behind it are not: their sources are told, or wait.
        let mut again = Vec::new();
        replica.work.retain(|work| match work {
            Work::Request(source, _) => {
                again.push(*source);
                false
            }
            _ => true,
        });
        let rehome = Body::Rehome { at, to: to.0, page: to.1, generation: to.2 };
        self.multicast(&copies, rehome, Some((packet, Body::WriteAck { status: Status::Ok })));
        for source in again {
            self.responder.in_service(source, None);
            self.ctx.then(FollowUp::Serve(source));
        }
    }

    /// All copies have joined the new home, or are copies no more.
    pub(super) fn all_told(&mut self, page: u32, packet: Packet) {
        let Some(replica) = self.replicas.pages.get_mut(&page) else {
            return self.refuse_forward(packet, Status::NotHome);
        };
        let Some(Moving::Giving { to, packet: asked @ None }) = &mut replica.moving else {
            return self.refuse_forward(packet, Status::NotHome);
        };
        let to = *to;
        let there = replica.copies.get(&to.0) == Some(&packet.incarnation);
        *asked = Some(packet);
        if !there || self.replicas.sources.contains_key(&to) {
            return self.stay_home(page, Status::NotHome);
        }
        let mode = replica.mode as u16;
        // The new home's announcement may come before its answer.
        self.replicas.sources.insert(to, page);
        let at = RemoteAddr { page: to.1, offset: 0, generation: to.2 };
        let asked = RequestKind::Keep { page, source: to, packet: None };
        self.ask(to.0, asked, Body::Join { at, mode, keep: true });
    }

    /// The copy that was to be the home is not. The others are with it already, and orphans.
    fn stay_home(&mut self, page: u32, status: Status) {
        let Some(replica) = self.replicas.pages.get_mut(&page) else { return };
        let Some(Moving::Giving { to, packet }) = replica.moving.take() else { return };
        let copies: Vec<NodeId> = replica.copies.keys().copied().collect();
        self.replicas.sources.remove(&to);
        for node in copies {
            self.forget_copy(page, node);
        }
        if let Some(packet) = packet {
            self.refuse_forward(packet, status);
        }
        self.ctx.then(FollowUp::Serve(self.ctx.config.node));
        self.work_on(page);
        self.leave_if_done(page);
    }

    /// The new home has taken this one as a copy.
    fn hand_over(&mut self, page: u32, source: Source) {
        let Some(replica) = self.replicas.pages.get_mut(&page).filter(|replica| replica.home) else { return };
        let Some(Moving::Giving { packet, .. }) = replica.moving.replace(Moving::Following { announced: false }) else {
            return;
        };
        replica.home = false;
        replica.moves += 1;
        replica.copies.clear();
        replica.sources.insert(source);
        self.announce_group(page);
        self.await_home(page);
        if let Some(packet) = packet {
            self.ctx.reply_to(&packet, Body::WriteAck { status: Status::Ok });
        }
        self.ctx.cause(Cause::Replica(page));
    }

    // ---- at all copies ----

    /// The home says where the page is going.
    pub(super) fn rehomed(&mut self, page: u32, source: Source, packet: &Packet) -> Arrival {
        let Body::Rehome { to, page: new_page, generation, .. } = packet.body else {
            return Arrival::Done(Status::Invalid);
        };
        let Some(replica) = self.replicas.pages.get_mut(&page) else { return Arrival::Done(Status::NotHome) };
        if to == source.0 {
            return self.announced(page, source);
        }
        let new = (to, new_page, generation);
        if to == self.ctx.config.node {
            let known = new_page == page && generation == replica.generation;
            if let Some(Moving::Taking { released }) = replica.moving.as_mut().filter(|_| known) {
                *released = true;
                return Arrival::Done(Status::Ok);
            }
            self.source_lost(page, source, Status::NotHome);
            return Arrival::Done(Status::NotHome);
        }
        if !replica.moves() || self.reachable(to).is_err() || self.replicas.sources.contains_key(&new) {
            self.source_lost(page, source, Status::Stale);
            return Arrival::Done(Status::NotHome);
        }
        let Some(replica) = self.replicas.pages.get_mut(&page) else { return Arrival::Done(Status::NotHome) };
        replica.sources = [new].into();
        replica.moving = Some(Moving::Following { announced: false });
        replica.moves += 1;
        let mode = replica.mode as u16;
        self.replicas.sources.remove(&source);
        self.replicas.sources.insert(new, page);
        self.ctx.cause(Cause::Replica(page));
        let at = RemoteAddr { page: new_page, offset: 0, generation };
        let asked = RequestKind::Keep { page, source: new, packet: Some(packet.clone()) };
        self.ask(to, asked, Body::Join { at, mode, keep: true });
        Arrival::Held
    }

    /// The new home has answered a copy's, or the old home's, request to stay a copy.
    pub(crate) fn kept(&mut self, page: u32, source: Source, packet: Option<Packet>, status: Status) {
        let Some(packet) = packet else {
            return match status {
                Status::Ok => self.hand_over(page, source),
                // It may be the home: there must not be two.
                Status::Timeout | Status::NodeDown | Status::LinkDown | Status::Reset => {
                    self.replicas.sources.remove(&source);
                    self.orphan(page, status);
                }
                _ => self.stay_home(page, status),
            };
        };
        if status != Status::Ok {
            self.source_lost(page, source, status);
        }
        let there = self.replicas.sources.get(&source) == Some(&page);
        let follows = self.replicas.pages.get(&page).and_then(|replica| replica.moving.as_ref());
        if there && follows == Some(&Moving::Following { announced: false }) {
            self.await_home(page);
        }
        let status = if there { Status::Ok } else { Status::NotHome };
        self.ctx.reply_to(&packet, Body::CopyAck { status });
    }

    fn announced(&mut self, page: u32, source: Source) -> Arrival {
        self.hand_over(page, source);
        let Some(replica) = self.replicas.pages.get_mut(&page) else { return Arrival::Done(Status::NotHome) };
        let Some(Moving::Following { announced }) = &mut replica.moving else { return Arrival::Done(Status::Invalid) };
        *announced = true;
        self.await_no_longer(page);
        self.follow_if_ready(page);
        Arrival::Done(Status::Ok)
    }

    /// Goes on with the new home, once the old one has answered everything: what it did not take comes first.
    pub(super) fn follow_if_ready(&mut self, page: u32) {
        let Some(replica) = self.replicas.pages.get_mut(&page) else { return };
        let ready = replica.moving == Some(Moving::Following { announced: true });
        let moves = replica.moves;
        if !ready {
            return;
        }
        let old = self.replicas.forwards.values().any(|forward| forward.page == page && forward.moves != moves);
        if old {
            return;
        }
        replica.moving = None;
        let returned = std::mem::take(&mut replica.returned);
        for packet in returned.into_values() {
            self.forward(packet, page);
        }
        self.ctx.then(FollowUp::Serve(self.ctx.config.node));
        self.leave_if_done(page);
    }

    /// The page moves no more, because it is an orphan or is gone: whoever waits for it is told.
    pub(super) fn end_moving(&mut self, page: u32, status: Status) {
        let Some(replica) = self.replicas.pages.get_mut(&page) else { return };
        let (moving, returned) = (replica.moving.take(), std::mem::take(&mut replica.returned));
        if let Some(Moving::Giving { to, packet }) = moving {
            self.replicas.sources.remove(&to);
            if let Some(packet) = packet {
                self.refuse_forward(packet, Status::NotHome);
            }
        }
        for packet in returned.into_values() {
            self.refuse_forward(packet, status);
        }
    }

    /// Whether the home serves nobody, because the page is going elsewhere.
    pub(super) fn gives(&self, page: u32) -> bool {
        let replica = self.replicas.pages.get(&page);
        let gives = replica.is_some_and(|replica| matches!(replica.moving, Some(Moving::Giving { .. })));
        gives && !self.ctx.has(Bug::ServeWhileMoving)
    }
}
