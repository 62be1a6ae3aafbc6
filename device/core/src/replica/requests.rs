// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests for replicated pages: what becomes of each, and those of this node's processors that the home performs.

use super::{Forward, Mode, Replica, Served, Work};
use crate::answers::refusal;
use crate::config::Bug;
use crate::hib::Hib;
use crate::requester::WaitingForward;
use telegraphos_wire::{Body, NodeId, Packet, RemoteAddr, Rights, Status, context};

impl Hib {
    /// Takes over a request in service if it concerns a replicated page. The caller has checked that it is not late.
    pub(crate) fn serve_replica(&mut self, source: NodeId, packet: &Packet) -> Served {
        let own = source == self.ctx.config.node;
        let (at, size, right) = match &packet.body {
            Body::Write { at, size, .. } | Body::Update { at, size, .. } => (*at, u64::from(*size), Rights::WRITE),
            Body::Atomic { at, size, .. } => (*at, u64::from(*size), Rights::ATOMIC),
            Body::WriteBlock { at, .. } => (*at, 1, Rights::WRITE),
            Body::Join { at, .. } | Body::Leave { at } => (*at, 1, Rights::READ),
            // Whoever is the home says what all copies hold.
            Body::Move { at, .. } => (*at, 1, Rights::WRITE),
            Body::Read { at, size, .. } => (*at, u64::from(*size), Rights::READ),
            Body::ReadBlock { at, length, .. } => (*at, u64::from(*length), Rights::READ),
            _ => return Served::Ordinary,
        };
        let Some(replica) = self.replicas.pages.get(&at.page) else {
            return match packet.body {
                Body::Update { .. } | Body::Join { .. } | Body::Move { .. } | Body::Leave { .. } => {
                    Served::Refused(Status::NotHome)
                }
                _ => Served::Ordinary,
            };
        };
        // A copy is its own node's; one that can be invalid is read at its home.
        let elsewhere = replica.mode == Mode::Invalidate && !replica.home;
        let reads = matches!(packet.body, Body::Read { .. } | Body::ReadBlock { .. });
        if reads && !own && !replica.orders() {
            return Served::Refused(Status::NotHome);
        }
        if reads && !(own && elsewhere) {
            return Served::Ordinary;
        }
        let (orders, mode, ready) = (replica.orders(), replica.mode, replica.filled && !replica.gone);
        let (orphaned, leaving, holds) = (replica.orphaned, replica.leaving > 0, replica.holds_own());
        let member = replica.copies.get(&source) == Some(&packet.incarnation);
        if let Err(status) = self.grants.translate(&self.ctx, source, &at, size, right) {
            return Served::Refused(status);
        }
        if let Some(status) = orphaned {
            return Served::Refused(status);
        }
        match packet.body {
            Body::Join { keep: true, .. } => self.join_kept(source, packet, at.page),
            Body::Join { .. } => self.join(source, packet, at.page),
            Body::Move { .. } => self.asked_to_move(source, at.page),
            Body::Leave { .. } => {
                self.forget_copy(at.page, source);
                Served::Answer(Body::WriteAck { status: Status::Ok })
            }
            // Blocks would need an order of their own.
            Body::WriteBlock { .. } => Served::Refused(Status::Rights),
            Body::Update { .. } if !orders || mode == Mode::Naive || !member && mode != Mode::Invalidate => {
                Served::Refused(Status::NotHome)
            }
            // Its copy keeps it for the home to come.
            ref body if !own && member && self.gives(at.page) => Served::Answer(refusal(body, Status::Moving)),
            _ if own && elsewhere && !leaving => self.pass_on(source, at.page),
            _ if !ready || leaving => Served::Refused(Status::Busy),
            _ if !own && self.gives(at.page) => Served::Refused(Status::NotHome),
            _ if own && holds && !self.ctx.has(Bug::ServeWhileMoving) => Served::Stalled,
            _ if orders && !self.may_wait_for_copies(source) => Served::Stalled,
            _ if orders => self.begin_work(at.page, Work::Request(source, packet.clone())),
            // A copy takes stores of its own processors alone.
            _ if !own => Served::Refused(Status::NotHome),
            Body::Atomic { .. } => self.pass_on(source, at.page),
            _ if mode == Mode::Owner && self.ctx.has(Bug::NoLocalUpdate) => {
                self.taken(packet);
                self.pass_on(source, at.page)
            }
            _ => {
                if mode == Mode::Counters && !self.count_pending(at.page, at.offset, size as u8) {
                    self.ctx.counters.counter_stalls += u64::from(!self.replicas.stalled);
                    self.replicas.stalled = true;
                    return Served::Stalled;
                }
                self.begin_work(at.page, Work::Request(source, packet.clone()))
            }
        }
    }

    /// Whether a block may be loaded from (or stored to) a page of this node's at the near end of a copy: never stored,
    /// since the other copies would not get it, nor loaded from one that may be invalid.
    pub(crate) fn block_of_replica(&self, page: u32, right: Rights) -> Result<(), Status> {
        match self.replicas.pages.get(&page) {
            Some(_) if right.contains(Rights::WRITE) => Err(Status::Rights),
            Some(replica) if replica.mode == Mode::Invalidate && !replica.home => Err(Status::Invalidated),
            _ => Ok(()),
        }
    }

    pub(super) fn join(&mut self, source: NodeId, packet: &Packet, page: u32) -> Served {
        let Some(replica) = self.replicas.pages.get_mut(&page) else {
            return Served::Refused(Status::NotHome);
        };
        let Body::Join { mode, .. } = packet.body else { return Served::Refused(Status::Invalid) };
        if !replica.orders() || source == self.ctx.config.node || mode != replica.mode as u16 {
            return Served::Refused(Status::NotHome);
        }
        if replica.gone || !replica.filled && replica.home || replica.moving.is_some() {
            return Served::Refused(Status::Busy);
        }
        if self.is_barred(page, source) {
            return Served::Refused(Status::Timeout);
        }
        let Some(replica) = self.replicas.pages.get_mut(&page) else {
            return Served::Refused(Status::NotHome);
        };
        if replica.copies.insert(source, packet.incarnation) == Some(packet.incarnation) {
            return Served::Refused(Status::Busy);
        }
        self.announce_group(page);
        self.fill_from(page, source, 0);
        self.work_on(page);
        Served::Answer(Body::WriteAck { status: Status::Ok })
    }

    pub(super) fn begin_work(&mut self, page: u32, work: Work) -> Served {
        if let Work::Request(source, packet) = &work {
            if *source == self.ctx.config.node && self.ctx.has(Bug::TakenEarly) {
                self.taken(packet);
            }
        }
        if let Some(replica) = self.replicas.pages.get_mut(&page) {
            replica.work.push_back(work);
        }
        self.work_on(page);
        Served::Working
    }

    /// The request in service is the home's to perform.
    fn pass_on(&mut self, source: NodeId, page: u32) -> Served {
        if let Some(packet) = self.responder.detach(&mut self.ctx, source) {
            self.forward(packet, page);
        }
        Served::Left
    }

    /// Sends a request of this node's processors on to the home.
    pub(super) fn forward(&mut self, packet: Packet, page: u32) {
        let last = self.replicas.places_of(page).next_back();
        let place = last.map_or(0, |last| last + 1);
        if let Some(replica) = self.replicas.pages.get_mut(&page).filter(|replica| replica.keeps()) {
            let place = replica.returned.last_key_value().map_or(place, |(last, _)| place.max(last + 1));
            replica.returned.insert(place, packet);
            return;
        }
        let source = self.replicas.pages.get(&page).and_then(|replica| replica.sources.first().copied());
        let Some((home, home_page, generation)) = source else {
            return self.refuse_forward(packet, Status::NotHome);
        };
        let tag = packet.tag;
        let is_store = matches!(packet.body, Body::Write { .. });
        let there = |at: RemoteAddr| RemoteAddr { page: home_page, offset: at.offset, generation };
        let body = match packet.body.clone() {
            Body::Write { at, context, epoch, size, data } => {
                Body::Update { at: there(at), context, epoch, size, data }
            }
            Body::Read { at, context, size } => Body::Read { at: there(at), context, size },
            Body::Atomic { at, context, epoch, size, op, operand, compare } => {
                Body::Atomic { at: there(at), context, epoch, size, op, operand, compare }
            }
            _ => return self.refuse_forward(packet, Status::Invalid),
        };
        if let Err(status) = self.reachable(home) {
            return self.refuse_forward(packet, status);
        }
        let forwards = &self.replicas.forwards;
        let number = match forwards.last_key_value() {
            // To look for a lower one takes time; and so many is no state of a model.
            Some((last, _)) if forwards.len() > 1000 => last + 1,
            _ => crate::ctx::lowest_free(forwards),
        };
        self.begin_in_order(number, page);
        let moves = self.replicas.pages.get(&page).map_or(0, |replica| replica.moves);
        self.replicas.places.insert((page, place));
        self.replicas.forwards.insert(number, Forward { packet, page, moves, place, refused: false });
        self.pass_tag(tag);
        let import = if is_store { self.enter_send_queue(tag) } else { None };
        self.requester.peers[usize::from(home)].accept_forward(WaitingForward { number, body, import });
        self.pump(home);
    }

    pub(super) fn refuse_forward(&mut self, packet: Packet, status: Status) {
        let body = refusal(&packet.body, status);
        self.ctx.reply_to(&packet, body);
    }

    /// The home has answered: everybody has the store, or it is lost.
    pub(crate) fn forward_answered(&mut self, number: u64, body: Body) {
        let Some(forward) = self.replicas.take_forward(number) else { return };
        let Forward { packet, page, moves, place, refused } = forward;
        if refused {
            return self.leave_if_done(page);
        }
        let status = match (&packet.body, &body) {
            (Body::Write { .. }, Body::WriteAck { status })
            | (Body::Read { .. }, Body::ReadReply { status, .. })
            | (Body::Atomic { .. }, Body::AtomicReply { status, .. }) => *status,
            _ => Status::Invalid,
        };
        // It goes to the new home, which this node will be told of or knows already.
        let returns = |replica: &&mut Replica| {
            let elsewhere = status == Status::Moving || status == Status::NotHome && replica.moves != moves;
            elsewhere && replica.orphaned.is_none()
        };
        match self.replicas.pages.get_mut(&page).filter(returns) {
            Some(replica) => {
                replica.returned.insert(place, packet);
            }
            None => self.forward_ended(number, packet, page, Some(body).filter(|_| status == Status::Ok), status),
        }
        self.follow_if_ready(page);
        self.leave_if_done(page);
    }

    /// The answer to a request that was forwarded goes to the processor, or a refusal.
    pub(super) fn forward_ended(&mut self, number: u64, packet: Packet, page: u32, body: Option<Body>, status: Status) {
        let here = self.replicas.pages.get(&page).is_some_and(|replica| replica.mode != Mode::Invalidate);
        let alone = here && !status.is_ok() && matches!(packet.body, Body::Write { .. });
        let body = body.unwrap_or_else(|| refusal(&packet.body, status));
        let is_store = matches!(packet.body, Body::Write { .. });
        self.answer_in_order(number, packet, body);
        // An atomic may be refused for itself; a store that the home does not take leaves this copy alone with it.
        // So does one that is refused behind another one.
        let behind = status == Status::Cut && is_store;
        if alone
            || behind
            || matches!(status, Status::NotHome | Status::NotGranted | Status::Stale | Status::Rights | Status::Reset)
        {
            self.orphan(page, status);
        }
    }

    /// Whether a request that was to be sent to the home is not, because nobody waits for it any more, or a store
    /// before it was lost. A copy that has it already sends it in any case.
    pub(crate) fn drop_forward(&mut self, number: u64, cut: bool) -> bool {
        let Some(forward) = self.replicas.forwards.get(&number) else { return true };
        let replica = self.replicas.pages.get(&forward.page);
        let here = replica.is_some_and(|replica| replica.mode != Mode::Invalidate);
        if !forward.refused && (!cut || here) {
            return false;
        }
        let Some(Forward { packet, page, refused, .. }) = self.replicas.take_forward(number) else {
            return true;
        };
        if !refused {
            let refusal = refusal(&packet.body, Status::Cut);
            self.answer_in_order(number, packet, refusal);
        }
        self.follow_if_ready(page);
        self.leave_if_done(page);
        true
    }

    pub(crate) fn forward_lost(&mut self, number: u64, status: Status) {
        let Some(Forward { packet, page, refused, .. }) = self.replicas.take_forward(number) else {
            return;
        };
        if !refused {
            let refusal = refusal(&packet.body, status);
            self.answer_in_order(number, packet, refusal);
            self.orphan(page, status);
        }
        self.leave_if_done(page);
    }

    /// The board has taken a store of this import: it is in this node's memory (SPEC E22b).
    pub(super) fn taken(&mut self, packet: &Packet) {
        let Some((context, index, count)) = self.count_taken(packet.tag) else { return };
        let Some(page) = self.requester.contexts.get(&context).map(|c| c.status_page) else { return };
        self.ctx.count_in_status(context, page + context::TAKEN_OFFSET + 8 * u64::from(index), count);
    }
}
