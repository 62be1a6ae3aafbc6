// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admission of requests for replicated pages, and forwarding to the home of those requests of this node's processors
//! that the home performs. `hib` calls this part.

use super::page::{Forward, Mode, ReplicaPage, Work};
use super::{Below, Replicas, Served};
use crate::answers::refusal;
use crate::config::Bug;
use crate::ctx::Ctx;
use crate::requester::WaitingForward;
use telegraphos_wire::{Body, NodeId, Packet, RemoteAddr, Rights, Status, context};

/// The address, the number of bytes and the right that a request for a page needs; `None` for other packets.
fn target(body: &Body) -> Option<(RemoteAddr, u64, Rights)> {
    Some(match body {
        Body::Write { at, size, .. } | Body::Update { at, size, .. } => (*at, u64::from(*size), Rights::WRITE),
        Body::Atomic { at, size, .. } => (*at, u64::from(*size), Rights::ATOMIC),
        Body::WriteBlock { at, .. } => (*at, 1, Rights::WRITE),
        Body::Join { at, .. } | Body::Leave { at } => (*at, 1, Rights::READ),
        // The home decides what all copies contain, so a Move needs the right to write.
        Body::Move { at, .. } => (*at, 1, Rights::WRITE),
        Body::Read { at, size, .. } => (*at, u64::from(*size), Rights::READ),
        Body::ReadBlock { at, length, .. } => (*at, u64::from(*length), Rights::READ),
        _ => return None,
    })
}

impl Replicas {
    /// Serves a request if it concerns a replicated page; `None` for an ordinary access. The caller has checked that
    /// its incarnation is current.
    pub(crate) fn serve(&mut self, below: &mut Below<'_>, source: NodeId, packet: &Packet) -> Option<Served> {
        let (at, size, right) = target(&packet.body)?;
        let Some(replica) = self.pages.get(at.page) else {
            return match packet.body {
                Body::Update { .. } | Body::Join { .. } | Body::Move { .. } | Body::Leave { .. } => {
                    Some(Served::Refused(Status::NotHome))
                }
                _ => None,
            };
        };
        // A copy is read by its own node only; one that can be invalid is read at its home.
        let own = source == below.ctx.config.node;
        let reads = matches!(packet.body, Body::Read { .. } | Body::ReadBlock { .. });
        if reads && !own && !replica.orders_stores() {
            return Some(Served::Refused(Status::NotHome));
        }
        if reads && !(own && replica.is_served_by_home()) {
            return None;
        }
        let orphaned = replica.orphaned;
        if let Err(status) = below.grants.translate(below.ctx, source, &at, size, right) {
            return Some(Served::Refused(status));
        }
        if let Some(status) = orphaned {
            return Some(Served::Refused(status));
        }
        Some(match packet.body {
            Body::Join { keep: true, .. } => self.join_kept(below, source, packet, at.page),
            Body::Join { .. } => self.join(below, source, packet, at.page),
            Body::Move { .. } => self.queue_move(below, source, at.page),
            Body::Leave { .. } => {
                self.remove_copy(below, at.page, source);
                Served::Answer(Body::WriteAck { status: Status::Ok })
            }
            _ => self.serve_access(below, source, packet, at),
        })
    }

    /// Serves a store, an atomic, or a load of an own copy that can be invalid. `at` is the address of the access; the
    /// page exists, is no orphan, and grants the access.
    fn serve_access(&mut self, below: &mut Below<'_>, source: NodeId, packet: &Packet, at: RemoteAddr) -> Served {
        let Some(replica) = self.pages.get(at.page) else { return Served::Refused(Status::NotHome) };
        let own = source == below.ctx.config.node;
        let (mode, orders, served_by_home) = (replica.mode, replica.orders_stores(), replica.is_served_by_home());
        let ready = replica.filled && !replica.revoked;
        let (leaving, stalls_own) = (replica.leaving > 0, replica.stalls_own_stores());
        let member = replica.copies.get(&source) == Some(&packet.incarnation);
        match packet.body {
            // Blocks have no position in the order of the page's stores.
            Body::WriteBlock { .. } => Served::Refused(Status::Rights),
            Body::Update { .. } if !orders || mode == Mode::Naive || !member && mode != Mode::Invalidate => {
                Served::Refused(Status::NotHome)
            }
            // The requester's copy keeps it for the new home.
            ref body if !own && member && self.is_giving(below.ctx, at.page) => {
                Served::Answer(refusal(body, Status::Moving))
            }
            _ if own && served_by_home && !leaving => self.detach_and_forward(below, source, at.page),
            _ if !ready || leaving => Served::Refused(Status::Busy),
            _ if !own && self.is_giving(below.ctx, at.page) => Served::Refused(Status::NotHome),
            _ if own && stalls_own && !below.ctx.has(Bug::ServeWhileMoving) => Served::Stalled,
            _ if orders && !self.may_wait_for_copies(source) => Served::Stalled,
            _ if orders => self.begin_work(below, at.page, Work::Request(source, packet.clone())),
            // A copy accepts stores only of its own processors.
            _ if !own => Served::Refused(Status::NotHome),
            Body::Atomic { .. } => self.detach_and_forward(below, source, at.page),
            _ if mode == Mode::Owner && below.ctx.has(Bug::NoLocalUpdate) => {
                self.count_taken(below, packet);
                self.detach_and_forward(below, source, at.page)
            }
            _ => self.store_to_copy(below, source, packet, at, mode),
        }
    }

    /// Begins a store of this node's processors to its copy; in mode counters it stalls without a free counter.
    fn store_to_copy(
        &mut self,
        below: &mut Below<'_>,
        source: NodeId,
        packet: &Packet,
        at: RemoteAddr,
        mode: Mode,
    ) -> Served {
        let size = target(&packet.body).map_or(0, |(_, size, _)| size);
        if mode == Mode::Counters && !self.count_pending(below.ctx, at.page, at.offset, size as u8) {
            below.ctx.counters.counter_stalls += u64::from(!self.stalled);
            self.stalled = true;
            return Served::Stalled;
        }
        self.begin_work(below, at.page, Work::Request(source, packet.clone()))
    }

    /// Whether a block copy may load from (or store to) this page of this node. `Err` for a store to a replicated page,
    /// since the other copies would not get it, and for a load from a copy that may be invalid.
    pub(crate) fn block_of_replica(&self, page: u32, right: Rights) -> Result<(), Status> {
        match self.pages.get(page) {
            Some(_) if right.contains(Rights::WRITE) => Err(Status::Rights),
            Some(replica) if replica.is_served_by_home() => Err(Status::Invalidated),
            _ => Ok(()),
        }
    }

    /// Whether this page of this node is replicated.
    pub(crate) fn has(&self, page: u32) -> bool {
        self.pages.get(page).is_some()
    }

    /// A Join of a new copy: enters it and starts to send the page's content.
    pub(super) fn join(&mut self, below: &mut Below<'_>, source: NodeId, packet: &Packet, page: u32) -> Served {
        let Some(replica) = self.pages.get_mut(page) else {
            return Served::Refused(Status::NotHome);
        };
        let Body::Join { mode, .. } = packet.body else { return Served::Refused(Status::Invalid) };
        if !replica.orders_stores() || source == below.ctx.config.node || mode != replica.mode as u16 {
            return Served::Refused(Status::NotHome);
        }
        if replica.revoked || !replica.filled && replica.home || replica.moving.is_some() {
            return Served::Refused(Status::Busy);
        }
        if self.is_barred(below.ctx, page, source) {
            return Served::Refused(Status::Timeout);
        }
        let Some(replica) = self.pages.get_mut(page) else {
            return Served::Refused(Status::NotHome);
        };
        if replica.copies.insert(source, packet.incarnation) == Some(packet.incarnation) {
            return Served::Refused(Status::Busy);
        }
        self.note_rejoin(below.ctx, page, source);
        self.announce_group(below.ctx, page);
        self.fill_from(page, source, 0);
        self.run_work(below, page);
        Served::Answer(Body::WriteAck { status: Status::Ok })
    }

    /// Appends a work item to a page.
    pub(super) fn begin_work(&mut self, below: &mut Below<'_>, page: u32, work: Work) -> Served {
        if let Work::Request(source, packet) = &work {
            if *source == below.ctx.config.node && below.ctx.has(Bug::TakenEarly) {
                self.count_taken(below, packet);
            }
        }
        if let Some(replica) = self.pages.get_mut(page) {
            replica.work.push_back(work);
        }
        self.run_work(below, page);
        Served::Working
    }

    /// Detaches the request in service and forwards it to the home.
    fn detach_and_forward(&mut self, below: &mut Below<'_>, source: NodeId, page: u32) -> Served {
        if let Some(packet) = below.responder.detach(below.ctx, source) {
            self.forward(below, packet, page);
        }
        Served::Left
    }

    /// Forwards a request of this node's processors to the home, or keeps it for the new home while the home moves.
    pub(super) fn forward(&mut self, below: &mut Below<'_>, packet: Packet, page: u32) {
        let last = self.ordinals_of(page).next_back();
        let ordinal = last.map_or(0, |last| last + 1);
        if let Some(replica) = self.pages.get_mut(page).filter(|replica| replica.keeps_stores()) {
            let ordinal = replica.returned.last_key_value().map_or(ordinal, |(last, _)| ordinal.max(last + 1));
            replica.returned.insert(ordinal, packet);
            return;
        }
        let source = self.pages.get(page).and_then(|replica| replica.sources.first().copied());
        let Some((home, home_page, generation)) = source else {
            return self.refuse_forward(below.ctx, packet, Status::NotHome);
        };
        let tag = packet.tag;
        let is_store = matches!(packet.body, Body::Write { .. });
        let at_home = |at: RemoteAddr| RemoteAddr { page: home_page, offset: at.offset, generation };
        let body = match packet.body.clone() {
            Body::Write { at, context, epoch, size, data } => {
                Body::Update { at: at_home(at), context, epoch, size, data }
            }
            Body::Read { at, context, size } => Body::Read { at: at_home(at), context, size },
            Body::Atomic { at, context, epoch, size, op, operand, compare } => {
                Body::Atomic { at: at_home(at), context, epoch, size, op, operand, compare }
            }
            _ => return self.refuse_forward(below.ctx, packet, Status::Invalid),
        };
        if let Err(status) = below.requester.reachable(below.ctx, home) {
            return self.refuse_forward(below.ctx, packet, status);
        }
        let forwards = &self.forwards;
        let number = match forwards.last_key_value() {
            // Searching for a free lower number takes too long here. Models never have this many, so they reuse low
            // numbers.
            Some((last, _)) if forwards.len() > 1000 => last + 1,
            _ => crate::numbered::lowest_free(forwards),
        };
        self.begin_in_order(number, page);
        let replica = self.pages.get(page);
        let moves = replica.map_or(0, |replica| replica.moves);
        // A store that the copy already contains is sent even after an earlier one was lost.
        let unconditional = replica.is_some_and(|replica| replica.mode != Mode::Invalidate);
        self.ordinals.insert((page, ordinal));
        self.forwards.insert(number, Forward { packet, home, page, moves, ordinal, refused: false });
        below.requester.pass_tag(below.ctx, tag);
        let import = if is_store { below.requester.enter_send_queue(below.ctx, tag) } else { None };
        below.requester.peers[usize::from(home)].accept_forward(WaitingForward { number, body, import, unconditional });
        below.requester.pump(below.ctx, home);
    }

    /// Answers a request with a refusal.
    pub(super) fn refuse_forward(&mut self, ctx: &mut Ctx, packet: Packet, status: Status) {
        let body = refusal(&packet.body, status);
        ctx.reply_to(&packet, body);
    }

    /// The home has answered a forwarded request (`Ok`: all copies have the store, or it refuses), or the request was
    /// lost with the home (`Err`).
    pub(crate) fn forward_answered(&mut self, below: &mut Below<'_>, number: u64, answer: Result<Body, Status>) {
        let body = match answer {
            Ok(body) => body,
            Err(status) => return self.forward_lost(below, number, status),
        };
        let Some(forward) = self.take_forward(number) else { return };
        let Forward { packet, page, moves, ordinal, refused, .. } = forward;
        if refused {
            return self.leave_if_done(below, page);
        }
        let status = match (&packet.body, &body) {
            (Body::Write { .. }, Body::WriteAck { status })
            | (Body::Read { .. }, Body::ReadReply { status, .. })
            | (Body::Atomic { .. }, Body::AtomicReply { status, .. }) => *status,
            _ => Status::Invalid,
        };
        // The request goes to the new home, of which this node has been or will be notified.
        let returns = |replica: &&mut ReplicaPage| {
            let for_new_home = status == Status::Moving || status == Status::NotHome && replica.moves != moves;
            for_new_home && replica.orphaned.is_none()
        };
        match self.pages.get_mut(page).filter(returns) {
            Some(replica) => {
                replica.returned.insert(ordinal, packet);
            }
            None => {
                self.forward_ended(below, number, packet, page, Some(body).filter(|_| status == Status::Ok), status)
            }
        }
        self.follow_if_ready(below, page);
        self.leave_if_done(below, page);
    }

    /// Answers a forwarded request with the home's answer, or with a refusal. Makes the page an orphan if the copy now
    /// contains a store that the others do not get.
    pub(super) fn forward_ended(
        &mut self,
        below: &mut Below<'_>,
        number: u64,
        packet: Packet,
        page: u32,
        body: Option<Body>,
        status: Status,
    ) {
        let here = self.pages.get(page).is_some_and(|replica| replica.mode != Mode::Invalidate);
        let alone = here && !status.is_ok() && matches!(packet.body, Body::Write { .. });
        let body = body.unwrap_or_else(|| refusal(&packet.body, status));
        let is_store = matches!(packet.body, Body::Write { .. });
        self.answer_in_order(below, number, packet, body);
        // An atomic may be refused without a difference between copies. A store that the home does not take leaves this
        // copy different from the others; so does a store refused because an earlier one was lost.
        let behind = status == Status::Cut && is_store;
        if alone
            || behind
            || matches!(status, Status::NotHome | Status::NotGranted | Status::Stale | Status::Rights | Status::Reset)
        {
            self.orphan(below, page, status);
        }
    }

    /// A forwarded request was dropped before it was sent, because an earlier store was lost.
    pub(crate) fn forward_dropped(&mut self, below: &mut Below<'_>, number: u64) {
        let Some(Forward { packet, page, refused, .. }) = self.take_forward(number) else { return };
        if !refused {
            let refusal = refusal(&packet.body, Status::Cut);
            self.answer_in_order(below, number, packet, refusal);
        }
        self.follow_if_ready(below, page);
        self.leave_if_done(below, page);
    }

    /// The home of a forwarded request is lost: refuses the request and makes the page an orphan.
    fn forward_lost(&mut self, below: &mut Below<'_>, number: u64, status: Status) {
        let Some(Forward { packet, page, refused, .. }) = self.take_forward(number) else { return };
        if !refused {
            let refusal = refusal(&packet.body, status);
            self.answer_in_order(below, number, packet, refusal);
            self.orphan(below, page, status);
        }
        self.leave_if_done(below, page);
    }

    /// Counts a store as taken in the status page of its context: this node's memory contains it (SPEC E22b).
    pub(super) fn count_taken(&mut self, below: &mut Below<'_>, packet: &Packet) {
        let Some((context, index, count)) = below.requester.count_taken(packet.tag) else { return };
        let Some(page) = below.requester.contexts.get(context).map(|c| c.status_page) else { return };
        below.ctx.count_in_status(context, page + context::TAKEN_OFFSET + 8 * u64::from(index), count);
    }
}
