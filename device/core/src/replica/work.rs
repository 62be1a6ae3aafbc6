// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a replicated page is asked to do: requests, which are admitted, forwarded to the home or become work items;
//! packets of the home; and the work items, which run one at a time, so that the multicasts have the order of the
//! page's memory.

use super::forwards::Forward;
use super::multicasts::{Acknowledged, answer_to};
use super::page::{Arrival, Mode, ReplicaPage, Work};
use super::pending::{PendingWrites, bytes, next_part};
use super::{Below, Replicas, Served};
use crate::answers::refusal;
use crate::config::Bug;
use crate::ctx::{Ctx, FollowUp, StepOwner};
use crate::events::Cause;
use crate::loan::Data;
use crate::requester::{Source, WaitingForward};
use crate::{Notice, Step, StepResult};
use std::collections::BTreeSet;
use telegraphos_wire::packet::NO_NODE;
use telegraphos_wire::{Body, NodeId, Packet, RemoteAddr, Rights, STREAM_BLOCK, Status};

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

/// The first guest-memory step of a page's item; `None` if it needs none, or if guest memory is not accessible now.
fn first_step(
    below: &mut Below<'_>,
    pending: &mut PendingWrites,
    page: u32,
    mode: Mode,
    work: &mut Work,
) -> Option<Step> {
    let base = below.grants.pages.get(page).filter(|_| below.ctx.bus_master)?.address;
    let address_of = |offset: u32| base + u64::from(offset);
    match work {
        Work::Request(source) => match below.responder.first(*source)?.body {
            Body::Write { at, size, data, .. } | Body::Update { at, size, data, .. } => {
                Some(Step::Store { address: address_of(at.offset), size, data })
            }
            Body::Atomic { at, size, op, operand, compare, .. } => {
                Some(Step::Atomic { address: address_of(at.offset), size, op, operand, compare })
            }
            _ => None,
        },
        Work::Apply(packet, left) => {
            *left = to_store(below.ctx, pending, page, mode, packet);
            store_part(packet, left, base)
        }
        Work::Fill(Packet { body: Body::Fill { at, data, .. }, .. }) => {
            Some(Step::StoreBlock { address: address_of(at.offset), data: Data::Bytes(data.clone()) })
        }
        Work::Fill(_) | Work::Cancelled | Work::Move(_) | Work::Take => None,
        Work::Read(_, offset) => {
            Some(Step::LoadBlock { address: address_of(*offset), length: STREAM_BLOCK as u32, lend: false, into: None })
        }
    }
}

/// The bytes of a reflected store that must be stored, one bit for each. Decided when the item runs, since the counters
/// may change before that.
fn to_store(ctx: &mut Ctx, pending: &mut PendingWrites, page: u32, mode: Mode, packet: &Packet) -> u8 {
    let Body::Reflected { at, size, writer, .. } = packet.body else { return 0 };
    if mode == Mode::Counters && writer == ctx.config.node {
        pending.reflected(ctx, page, at.offset, size);
        0
    } else if mode == Mode::Counters && !ctx.has(Bug::IgnoreCounters) {
        pending.unmasked(ctx, page, at.offset, size)
    } else {
        bytes(size)
    }
}

/// Takes the first part of a reflected store of which these bytes are `left`, to a page at this address.
fn store_part(packet: &Packet, left: &mut u8, base: u64) -> Option<Step> {
    let Body::Reflected { at, data, .. } = packet.body else { return None };
    let (offset, size, data) = next_part(at.offset, data, left)?;
    Some(Step::Store { address: base + u64::from(offset), size, data })
}

impl Replicas {
    // ---- requests ----

    /// Returns whether [`Replicas::serve`] must be asked about this request of a current incarnation: for all others it
    /// is an ordinary access.
    #[inline]
    pub(crate) fn concern(&self, body: &Body) -> bool {
        match body {
            Body::Update { .. } | Body::Join { .. } | Body::Move { .. } | Body::Leave { .. } => true,
            body => self.pages.contains(body.page()),
        }
    }

    /// Serves the first request of a source, which may [concern](Replicas::concern) a replicated page; `None` for an
    /// ordinary access. The caller has checked that its incarnation is current.
    pub(crate) fn serve(&mut self, below: &mut Below<'_>, source: NodeId) -> Option<Served> {
        let packet = below.responder.first(source)?;
        let (at, size, right) = target(&packet.body)?;
        let Some(replica) = self.pages.get(at.page) else { return Some(Served::Refused(Status::NotHome)) };
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
        if !matches!(packet.body, Body::Join { .. } | Body::Move { .. } | Body::Leave { .. }) {
            return Some(self.serve_access(below, source, at, size as u8));
        }
        let packet = packet.clone();
        let served = match packet.body {
            Body::Join { keep: true, .. } => self.join_kept(below, &packet, at.page),
            Body::Join { .. } => self.join(below, source, &packet, at.page),
            Body::Move { .. } => self.queue_move(below, source, at.page),
            _ => {
                self.remove_copy(below, at.page, source);
                Ok(Served::Answer(Body::WriteAck { status: Status::Ok }))
            }
        };
        Some(served.unwrap_or_else(Served::Refused))
    }

    /// Serves the first request of a source: a store, an atomic, or a load of an own copy that can be invalid. `at` and
    /// `size` are those of the access; the page exists, is no orphan, and grants the access.
    fn serve_access(&mut self, below: &mut Below<'_>, source: NodeId, at: RemoteAddr, size: u8) -> Served {
        let Some(replica) = self.pages.get(at.page) else { return Served::Refused(Status::NotHome) };
        let Some(packet) = below.responder.first(source) else { return Served::Refused(Status::Invalid) };
        let own = source == below.ctx.config.node;
        let (mode, orders, served_by_home) = (replica.mode, replica.orders_stores(), replica.is_served_by_home());
        let ready = replica.filled && !replica.revoked;
        let (leaving, stalls_own) = (replica.is_leaving(), replica.stalls_own_stores());
        let giving = replica.is_giving(below.ctx);
        // This node has no copy of its own page.
        let member = !own && replica.copies.get(&source) == Some(&packet.incarnation);
        let tag = packet.tag;
        match packet.body {
            // Blocks have no position in the order of the page's stores.
            Body::WriteBlock { .. } => Served::Refused(Status::Rights),
            Body::Update { .. } if !orders || mode == Mode::Naive || !member && mode != Mode::Invalidate => {
                Served::Refused(Status::NotHome)
            }
            // The requester's copy keeps it for the new home.
            ref body if !own && member && giving => Served::Answer(refusal(body, Status::Moving)),
            _ if own && served_by_home && !leaving => self.detach_and_forward(below, source, at.page),
            _ if !ready || leaving => Served::Refused(Status::Busy),
            _ if !own && giving => Served::Refused(Status::NotHome),
            _ if own && stalls_own && !below.ctx.has(Bug::ServeWhileMoving) => Served::Stalled,
            _ if orders && !self.multicasts.may_wait(source) => Served::Stalled,
            _ if orders => self.begin_request(below, at.page, source),
            // A copy accepts stores only of its own processors.
            _ if !own => Served::Refused(Status::NotHome),
            Body::Atomic { .. } => self.detach_and_forward(below, source, at.page),
            _ if mode == Mode::Owner && below.ctx.has(Bug::NoLocalUpdate) => {
                below.requester.count_taken(below.ctx, tag);
                self.detach_and_forward(below, source, at.page)
            }
            // In mode counters it stalls without a free counter.
            _ if mode == Mode::Counters && !self.pending.count(below.ctx, at.page, at.offset, size) => Served::Stalled,
            _ => self.begin_request(below, at.page, source),
        }
    }

    /// The first request of a source becomes a work item of its page.
    fn begin_request(&mut self, below: &mut Below<'_>, page: u32, source: NodeId) -> Served {
        if source == below.ctx.config.node && below.ctx.has(Bug::TakenEarly) {
            if let Some(tag) = below.responder.first(source).map(|packet| packet.tag) {
                below.requester.count_taken(below.ctx, tag);
            }
        }
        self.begin_work(below, page, Work::Request(source))
    }

    /// Appends a work item to a page.
    pub(super) fn begin_work(&mut self, below: &mut Below<'_>, page: u32, work: Work) -> Served {
        if let Some(replica) = self.pages.get_mut(page) {
            replica.work.push_back(work);
        }
        self.run_work(below, page);
        Served::Working
    }

    // ---- requests of this node's processors that the home performs ----

    /// Detaches the request in service and forwards it to the home.
    fn detach_and_forward(&mut self, below: &mut Below<'_>, source: NodeId, page: u32) -> Served {
        if let Some(packet) = below.responder.detach(below.ctx, source) {
            self.forward(below, packet, page);
        }
        Served::Left
    }

    /// Forwards a request of this node's processors to the home, or keeps it for the new home while the home moves.
    pub(super) fn forward(&mut self, below: &mut Below<'_>, packet: Packet, page: u32) {
        let Some(replica) = self.pages.get_mut(page) else { return below.ctx.refuse(&packet, Status::NotHome) };
        let ordinal = self.forwards.next_ordinal(page);
        if replica.keeps_stores() {
            let ordinal = replica.returned.last_key_value().map_or(ordinal, |(last, _)| ordinal.max(last + 1));
            replica.returned.insert(ordinal, packet);
            return;
        }
        let Some(home) = replica.source() else { return below.ctx.refuse(&packet, Status::NotHome) };
        let at_home = |at: RemoteAddr| RemoteAddr { offset: at.offset, ..home.address() };
        let body = match packet.body.clone() {
            Body::Write { at, context, epoch, size, data } => {
                Body::Update { at: at_home(at), context, epoch, size, data }
            }
            Body::Read { at, context, size } => Body::Read { at: at_home(at), context, size },
            Body::Atomic { at, context, epoch, size, op, operand, compare } => {
                Body::Atomic { at: at_home(at), context, epoch, size, op, operand, compare }
            }
            _ => return below.ctx.refuse(&packet, Status::Invalid),
        };
        let home = home.node;
        if let Err(status) = below.requester.peers.reachable(below.ctx, home) {
            return below.ctx.refuse(&packet, status);
        }
        let (tag, is_store) = (packet.tag, matches!(packet.body, Body::Write { .. }));
        // A store that the copy already contains is sent even after an earlier one was lost.
        let unconditional = replica.mode != Mode::Invalidate;
        let number = self.forwards.insert(replica, home, packet, ordinal);
        let forward = WaitingForward { number, body, import: None, unconditional };
        below.requester.submit_forward(below.ctx, home, tag, is_store, forward);
    }

    /// Answers a forwarded request, and sends the answers that are next in order.
    fn answer_in_order(&mut self, below: &mut Below<'_>, number: u64, packet: Packet, body: Body) {
        self.forwards.answer(below.ctx, number, packet, body);
        while let Some((page, packet, body)) = self.forwards.next_answer() {
            if matches!(body, Body::WriteAck { status: Status::Ok }) {
                below.requester.count_taken(below.ctx, packet.tag);
            }
            below.ctx.reply_to(&packet, body);
            self.leave_if_done(below, page);
        }
    }

    /// Refuses a forwarded request, in order.
    pub(super) fn refuse_in_order(&mut self, below: &mut Below<'_>, number: u64, packet: Packet, status: Status) {
        let body = refusal(&packet.body, status);
        self.answer_in_order(below, number, packet, body);
    }

    /// The home has answered a forwarded request (`Ok`: all copies have the store, or it refuses), or the request was
    /// lost with the home (`Err`).
    pub(crate) fn forward_answered(&mut self, below: &mut Below<'_>, number: u64, answer: Result<Body, Status>) {
        let Some(forward) = self.forwards.take(number) else { return };
        let Forward { packet, page, moves, ordinal, refused, .. } = forward;
        match answer {
            _ if refused => {}
            Ok(body) => {
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
                if let Some(replica) = self.pages.get_mut(page).filter(returns) {
                    replica.returned.insert(ordinal, packet);
                } else if status.is_ok() {
                    self.answer_in_order(below, number, packet, body);
                } else {
                    self.forward_refused(below, number, packet, page, status);
                }
                self.follow_if_ready(below, page);
            }
            Err(status) => {
                self.refuse_in_order(below, number, packet, status);
                self.orphan(below, page, status);
            }
        }
        self.leave_if_done(below, page);
    }

    /// The home has refused a forwarded request. Makes the page an orphan if the copy now contains a store that the
    /// others do not get.
    fn forward_refused(&mut self, below: &mut Below<'_>, number: u64, packet: Packet, page: u32, status: Status) {
        let here = self.pages.get(page).is_some_and(|replica| replica.mode != Mode::Invalidate);
        let is_store = matches!(packet.body, Body::Write { .. });
        self.refuse_in_order(below, number, packet, status);
        // An atomic may be refused without a difference between copies. A store that the home does not take leaves this
        // copy different from the others; so does a store refused because an earlier one was lost.
        if is_store && (here || status == Status::Cut)
            || matches!(status, Status::NotHome | Status::NotGranted | Status::Stale | Status::Rights | Status::Reset)
        {
            self.orphan(below, page, status);
        }
    }

    /// A forwarded request was dropped before it was sent, because an earlier store was lost.
    pub(crate) fn forward_dropped(&mut self, below: &mut Below<'_>, number: u64) {
        let Some(Forward { packet, page, refused, .. }) = self.forwards.take(number) else { return };
        if !refused {
            self.refuse_in_order(below, number, packet, Status::Cut);
        }
        self.follow_if_ready(below, page);
        self.leave_if_done(below, page);
    }

    // ---- work items ----

    /// Runs a page's work items until one needs a step.
    pub(super) fn run_work(&mut self, below: &mut Below<'_>, page: u32) {
        while let Some(replica) = self.pages.get_mut(page).filter(|replica| !replica.busy) {
            let Some(work) = replica.work.front_mut() else { return };
            if matches!(work, Work::Move(_) | Work::Take) {
                if self.run_move(below, page) {
                    continue;
                }
                return;
            }
            if let Some(op) = first_step(below, &mut self.pending, page, replica.mode, work) {
                replica.busy = true;
                below.ctx.step(op, StepOwner::Replica(page));
                return;
            }
            let Some(work) = replica.work.pop_front() else { return };
            let failed = !below.ctx.bus_master || below.grants.pages.get(page).is_none();
            match work {
                work if failed => self.refuse_work(below, page, work, Status::MemoryFault),
                Work::Apply(packet, _) => self.acknowledge_copy(below, &packet, Status::Ok),
                work => self.refuse_work(below, page, work, Status::Invalid),
            }
        }
    }

    /// Runs the first item of a page, which concerns a move of its home and needs no step. False if it must wait.
    fn run_move(&mut self, below: &mut Below<'_>, page: u32) -> bool {
        let Some(replica) = self.pages.get_mut(page) else { return false };
        match replica.work.pop_front() {
            // New copies are completed before the home moves.
            Some(work @ Work::Move(_))
                if !replica.filling.is_empty() || replica.work.iter().any(|work| matches!(work, Work::Read(..))) =>
            {
                replica.work.push_back(work);
                return replica.work.len() > 1;
            }
            Some(Work::Move(packet)) => self.give_home(below, page, packet),
            _ => self.take_home(below, page),
        }
        true
    }

    /// Continues a page after its step in flight.
    pub(crate) fn stepped(&mut self, below: &mut Below<'_>, page: u32, result: StepResult) {
        let Some(replica) = self.pages.get_mut(page) else { return };
        // A store of which some bytes are masked takes a step for each part.
        if let (Some(Work::Apply(packet, left @ 1..)), StepResult::Stored) = (replica.work.front_mut(), &result) {
            if let (false, Some(grant)) = (replica.revoked, below.grants.pages.get(page)) {
                if let Some(op) = store_part(packet, left, grant.address) {
                    return below.ctx.step(op, StepOwner::Replica(page));
                }
            }
        }
        replica.busy = false;
        let stale = std::mem::take(&mut replica.stale);
        match replica.work.pop_front() {
            // The page may have joined the same home again, which must not count this as applied.
            Some(Work::Apply(packet, _) | Work::Fill(packet)) if stale => {
                self.acknowledge_copy(below, &packet, Status::NotHome);
            }
            Some(work) if stale => self.refuse_work(below, page, work, Status::NotHome),
            Some(work) => self.work_done(below, page, work, result),
            None => {}
        }
        let Some(replica) = self.pages.get(page) else { return };
        let (works, clears) = (!replica.work.is_empty(), replica.clearing.is_some());
        if replica.revoked && self.end_if_revoked(below, page) {
            return below.ctx.defer(FollowUp::StepEnded);
        }
        if works {
            self.run_work(below, page);
        }
        if clears {
            self.leave_if_done(below, page);
        }
    }

    /// Completes an item after its last step.
    fn work_done(&mut self, below: &mut Below<'_>, page: u32, work: Work, result: StepResult) {
        match (work, result) {
            (work, StepResult::Failed(status)) => self.refuse_work(below, page, work, status),
            (Work::Request(source), result) => self.request_performed(below, page, source, result),
            (Work::Apply(packet, _), _) => self.acknowledge_copy(below, &packet, Status::Ok),
            (Work::Fill(packet), _) => {
                let last = matches!(packet.body, Body::Fill { last: true, .. });
                // Before the next packet is processed: a store behind the last block is one to a complete copy.
                if let Some(replica) = self.pages.get_mut(page) {
                    if last {
                        self.homes.stop_timer(replica);
                        replica.filled = true;
                        replica.joining = None;
                        replica.complete_setting(below.ctx, Status::Ok);
                    } else if replica.home_deadline.is_some() {
                        self.homes.start_timer(below.ctx, replica);
                    }
                }
                self.acknowledge_copy(below, &packet, Status::Ok);
            }
            (Work::Read(to, offset), StepResult::Block(Data::Bytes(data))) => {
                let replica = self.pages.get_mut(page).filter(|replica| replica.copies.contains_key(&to));
                let Some(replica) = replica else { return self.release_block(below, to) };
                let next = ReplicaPage::next_block(offset);
                // The share of the block is released when the copy has acknowledged it.
                let fill = Body::Fill { at: replica.address(offset), data, last: next.is_none() };
                let copy = self.multicasts.list([to]);
                self.multicasts.send(below, copy, fill, None);
                if let Some(next) = next {
                    self.fills.fill_from(replica, to, next);
                }
            }
            (Work::Read(..) | Work::Cancelled | Work::Move(_) | Work::Take, _) => {}
        }
    }

    /// A store or atomic is in this node's memory: multicasts it, or at a copy forwards it to the home.
    fn request_performed(&mut self, below: &mut Below<'_>, page: u32, source: NodeId, result: StepResult) {
        let own = source == below.ctx.config.node;
        let Some(packet) = below.responder.detach(below.ctx, source) else { return };
        if own && !below.ctx.has(Bug::TakenEarly) {
            below.requester.count_taken(below.ctx, packet.tag);
        }
        let Some(replica) = self.pages.get_mut(page) else { return };
        if !replica.orders_stores() {
            self.forward(below, packet, page);
            below.ctx.defer(FollowUp::Serve(source));
            return;
        }
        let mut copies = self.multicasts.list(replica.members());
        if replica.mode == Mode::Invalidate {
            // Copies that an earlier store invalidates and that have not acknowledged it. A processor there may still
            // read the content before that store, so the next store waits for them too.
            let earlier = self.multicasts.waited_for(page).filter(|node| !replica.copies.contains_key(node));
            copies.extend(earlier.collect::<BTreeSet<NodeId>>());
        }
        let (at, size, data, loaded) = match (&packet.body, result) {
            (Body::Atomic { at, size, op, operand, compare, .. }, StepResult::Loaded(old)) => {
                (*at, *size, op.apply(*size, old, *operand, *compare), old)
            }
            (Body::Write { at, size, data, .. } | Body::Update { at, size, data, .. }, _) => (*at, *size, *data, 0),
            _ => return,
        };
        let update = matches!(packet.body, Body::Update { .. });
        let writer = if update { source } else { below.ctx.config.node };
        let body = Body::Reflected { at, size, data, writer };
        below.ctx.counters.reflected += copies.len() as u64;
        self.multicasts.send(below, copies, body, Some((packet, loaded)));
        if replica.remove_invalidated() {
            self.multicasts.announce_group(below.ctx, replica);
        }
        below.ctx.defer(FollowUp::Serve(source));
    }

    /// Refuses an item that cannot be performed.
    pub(super) fn refuse_work(&mut self, below: &mut Below<'_>, page: u32, work: Work, status: Status) {
        match work {
            Work::Request(source) => {
                below.responder.refuse(below.ctx, source, status);
                below.ctx.defer(FollowUp::Serve(source));
            }
            Work::Apply(packet, _) | Work::Fill(packet) => {
                self.leave_home(below, &packet, status);
                self.acknowledge_copy(below, &packet, status);
            }
            Work::Move(packet) => below.ctx.refuse(&packet, status),
            Work::Read(to, _) => {
                self.release_block(below, to);
                // A copy that cannot be filled is removed.
                if self.pages.get(page).is_some_and(|replica| replica.copies.contains_key(&to)) {
                    self.remove_copy(below, page, to);
                    if let Some(replica) = self.pages.get(page) {
                        let copy = self.multicasts.list([to]);
                        self.multicasts.send_end(below, replica, copy, status);
                    }
                }
            }
            Work::Cancelled | Work::Take => {}
        }
    }

    /// Leaves the home whose packet this copy refuses: the home drops the copy when it gets the refusal.
    fn leave_home(&mut self, below: &mut Below<'_>, packet: &Packet, status: Status) {
        let (Body::Reflected { at, .. } | Body::Fill { at, .. }) = packet.body else { return };
        let source = Source { node: packet.src, page: at.page, generation: at.generation };
        let Some(page) = self.homes.sources.get(&source).copied() else { return };
        if self.pages.get(page).is_some_and(|replica| !replica.revoked) {
            self.source_lost(below, page, source, status);
        }
    }

    // ---- packets of homes, and acknowledgements of copies ----

    /// Takes in a packet of a home.
    pub(crate) fn reflected(&mut self, below: &mut Below<'_>, packet: Packet) {
        if let Some(packet) = self.arrivals.admit(packet) {
            self.take_arrivals(below, packet);
        }
    }

    /// Processes packets of a node, this one first, until one becomes a work item.
    fn take_arrivals(&mut self, below: &mut Below<'_>, first: Packet) {
        let (source, mut next) = (first.src, Some(first));
        while let Some(packet) = next {
            self.take_arrival(below, packet);
            next = self.arrivals.next(source);
        }
    }

    /// Processes one packet: acknowledges it, or makes it a work item of its page, which is acknowledged at its end.
    fn take_arrival(&mut self, below: &mut Below<'_>, packet: Packet) {
        if packet.target != below.ctx.incarnation {
            return self.acknowledge_copy(below, &packet, Status::Reset);
        }
        let (Body::Reflected { at, .. } | Body::Fill { at, .. } | Body::Rehome { at, .. }) = packet.body else {
            return self.acknowledge_copy(below, &packet, Status::Invalid);
        };
        let source = Source { node: packet.src, page: at.page, generation: at.generation };
        let page = self.homes.sources.get(&source).copied();
        let Some((page, replica)) = page.and_then(|page| Some((page, self.pages.get_mut(page)?))) else {
            // The sender is not the page's home: the packet is refused.
            below.ctx.note_refusal(packet.src, at.page, Status::NotHome);
            return self.acknowledge_copy(below, &packet, Status::NotHome);
        };
        let arrival = match packet.body {
            Body::Rehome { to: NO_NODE, page: why, .. } => {
                let status = u16::try_from(why).ok().filter(|why| *why > 0).map_or(Status::Stale, Status::from_u16);
                self.source_lost(below, page, source, status);
                Arrival::Done(Status::Ok)
            }
            Body::Rehome { .. } => self.rehomed(below, page, source, &packet),
            Body::Reflected { .. } if replica.is_valid_copy() => self.invalidate_copy(below, page, &packet),
            _ => {
                self.arrivals.work(packet.src);
                let fill = matches!(packet.body, Body::Fill { .. });
                replica.work.push_back(if fill { Work::Fill(packet) } else { Work::Apply(packet, 0) });
                return self.run_work(below, page);
            }
        };
        match arrival {
            Arrival::Done(status) => self.acknowledge_copy(below, &packet, status),
            // Packets that follow it do not wait.
            Arrival::Deferred => self.arrivals.release(below.ctx, packet.src),
        }
    }

    /// Acknowledges the packet of its node that is being processed with this status, and processes the next.
    pub(super) fn acknowledge_copy(&mut self, below: &mut Below<'_>, packet: &Packet, status: Status) {
        self.arrivals.release(below.ctx, packet.src);
        below.ctx.reply_to(packet, Body::CopyAck { status });
        if let Some(next) = self.arrivals.resume(packet.src) {
            self.take_arrivals(below, next);
        }
    }

    /// Processes a store to a valid copy in mode invalidate (SPEC item 28; `docs/replication.md`, "Invalidation"): it
    /// is not applied. The copy is reported as invalid, and the acknowledgement is deferred until the driver has
    /// unmapped the page.
    fn invalidate_copy(&mut self, below: &mut Below<'_>, page: u32, packet: &Packet) -> Arrival {
        let Some(replica) = self.pages.get_mut(page) else { return Arrival::Done(Status::NotHome) };
        let early = below.ctx.has(Bug::AcknowledgeMapped);
        if !early && !self.homes.defer(replica, packet) {
            // A conforming home never has this many unacknowledged stores.
            if let Some(source) = replica.source() {
                self.source_lost(below, page, source, Status::NoSpace);
            }
            return Arrival::Done(Status::NotHome);
        }
        if !std::mem::replace(&mut replica.invalid, true) {
            below.ctx.cause(Cause::Replica(page));
        }
        if early { Arrival::Done(Status::Invalidated) } else { Arrival::Deferred }
    }

    /// REPLICA_INVALID: the driver has unmapped the page. Sends the deferred acknowledgements. `Err` if the page is not
    /// replicated in mode invalidate.
    pub(crate) fn unmapped(&mut self, ctx: &mut Ctx, page: u32) -> Result<(), Status> {
        let replica = self.pages.get_mut(page).filter(|replica| replica.mode == Mode::Invalidate);
        let replica = replica.ok_or(Status::Invalid)?;
        if std::mem::take(&mut replica.invalid) {
            replica.filled = false;
        }
        self.homes.send_deferred(ctx, replica, Status::Invalidated);
        Ok(())
    }

    /// Processes the acknowledgement of a multicast by one copy; also called for a copy that was dropped.
    pub(crate) fn copy_acknowledged(&mut self, below: &mut Below<'_>, node: NodeId, tag: u32, status: Status) {
        let pages = &self.pages;
        let revoked = |page: u32| pages.get(page).is_none_or(|replica| replica.revoked);
        let acknowledged = self.multicasts.acknowledged(below.ctx, node, tag, status, revoked);
        let Some(Acknowledged { page, done, rejoined, missed, early }) = acknowledged else { return };
        if done {
            self.end_multicast(below, tag, missed);
        } else if early {
            let mut answer = self.multicasts.take_answer(tag);
            self.answer(below, page, &mut answer, missed);
        }
        if !matches!(status, Status::Ok | Status::Invalidated) {
            // The node has no such copy, or cannot write it. One that it has joined with since is another one, which
            // refuses what is sent to itself.
            if !rejoined {
                self.remove_copy(below, page, node);
            }
            below.ctx.notice(Notice::FailedOperation { node, status });
        }
    }

    /// Answers the request, if there is one, of a multicast that waits for no copy. `missed` says that one of them has
    /// not applied it.
    pub(super) fn answer(
        &mut self,
        below: &mut Below<'_>,
        page: u32,
        answer: &mut Option<(Packet, u64)>,
        missed: bool,
    ) {
        let Some((packet, loaded)) = answer else { return };
        let requester = packet.src;
        match packet.body {
            Body::Move { .. } => {
                if let Some((packet, _)) = answer.take() {
                    self.rehome_acknowledged(below, page, packet);
                }
            }
            _ if missed => below.ctx.refuse(packet, Status::Stale),
            _ => below.ctx.reply_to(packet, answer_to(packet, *loaded)),
        }
        self.multicasts.release_wait(below.ctx, requester);
    }
}
