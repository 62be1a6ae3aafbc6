// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a replicated page is asked to do: requests, which are admitted, forwarded to the home or become work items;
//! packets of the home; and the work items, which run one at a time, so that the multicasts have the order of the
//! page's memory.

use super::forwards::Forward;
use super::multicasts::Acknowledged;
use super::page::{Arrival, Mode, ReplicaPage, Work};
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

    /// Serves a request that may [concern](Replicas::concern) a replicated page; `None` for an ordinary access. The
    /// caller has checked that its incarnation is current.
    pub(crate) fn serve(&mut self, below: &mut Below<'_>, source: NodeId, packet: &Packet) -> Option<Served> {
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
        let served = match packet.body {
            Body::Join { keep: true, .. } => self.join_kept(below, packet, at.page),
            Body::Join { .. } => self.join(below, source, packet, at.page),
            Body::Move { .. } => self.queue_move(below, source, at.page),
            Body::Leave { .. } => {
                self.remove_copy(below, at.page, source);
                Ok(Served::Answer(Body::WriteAck { status: Status::Ok }))
            }
            _ => Ok(self.serve_access(below, source, packet, at)),
        };
        Some(served.unwrap_or_else(Served::Refused))
    }

    /// Serves a store, an atomic, or a load of an own copy that can be invalid. `at` is the address of the access; the
    /// page exists, is no orphan, and grants the access.
    fn serve_access(&mut self, below: &mut Below<'_>, source: NodeId, packet: &Packet, at: RemoteAddr) -> Served {
        let Some(replica) = self.pages.get(at.page) else { return Served::Refused(Status::NotHome) };
        let own = source == below.ctx.config.node;
        let (mode, orders, served_by_home) = (replica.mode, replica.orders_stores(), replica.is_served_by_home());
        let ready = replica.filled && !replica.revoked;
        let (leaving, stalls_own) = (replica.is_leaving(), replica.stalls_own_stores());
        let giving = replica.is_giving(below.ctx);
        let member = replica.copies.get(&source) == Some(&packet.incarnation);
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
            _ if orders => self.begin_work(below, at.page, Work::Request(source, packet.clone())),
            // A copy accepts stores only of its own processors.
            _ if !own => Served::Refused(Status::NotHome),
            Body::Atomic { .. } => self.detach_and_forward(below, source, at.page),
            _ if mode == Mode::Owner && below.ctx.has(Bug::NoLocalUpdate) => {
                below.requester.count_taken(below.ctx, packet.tag);
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
        if mode == Mode::Counters && !self.pending.count(below.ctx, at.page, at.offset, size as u8) {
            return Served::Stalled;
        }
        self.begin_work(below, at.page, Work::Request(source, packet.clone()))
    }

    /// Appends a work item to a page.
    pub(super) fn begin_work(&mut self, below: &mut Below<'_>, page: u32, work: Work) -> Served {
        if let Work::Request(source, packet) = &work {
            if *source == below.ctx.config.node && below.ctx.has(Bug::TakenEarly) {
                below.requester.count_taken(below.ctx, packet.tag);
            }
        }
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
        loop {
            let Some(replica) = self.pages.get_mut(page).filter(|replica| !replica.busy) else {
                return;
            };
            let (mode, Some(work)) = (replica.mode, replica.work.front().cloned()) else { return };
            if matches!(work, Work::Move(_) | Work::Take) {
                replica.work.pop_front();
                match work {
                    // New copies are completed before the home moves.
                    Work::Move(_)
                        if !replica.filling.is_empty()
                            || replica.work.iter().any(|work| matches!(work, Work::Read(..))) =>
                    {
                        replica.work.push_back(work);
                        if replica.work.len() == 1 {
                            return;
                        }
                    }
                    Work::Move(packet) => self.give_home(below, page, packet),
                    _ => self.take_home(below, page),
                }
                continue;
            }
            // Set before the call: a counter that it frees may let the next store of this node begin.
            replica.busy = true;
            if let Some(op) = self.first_step(below, page, mode, &work) {
                below.ctx.step(op, StepOwner::Replica(page));
                return;
            }
            let failed = !below.ctx.bus_master || below.grants.pages.get(page).is_none();
            if let Some(replica) = self.pages.get_mut(page) {
                replica.busy = false;
                replica.work.pop_front();
            }
            match work {
                work if failed => self.refuse_work(below, page, work, Status::MemoryFault),
                Work::Apply(packet, _) => self.acknowledge_copy(below, &packet, Status::Ok),
                work => self.refuse_work(below, page, work, Status::Invalid),
            }
        }
    }

    /// The first guest-memory step of an item; `None` if it needs none, or if guest memory is not accessible now.
    fn first_step(&mut self, below: &mut Below<'_>, page: u32, mode: Mode, work: &Work) -> Option<Step> {
        let base = below.grants.pages.get(page).filter(|_| below.ctx.bus_master)?.address;
        let address_of = |offset: u32| base + u64::from(offset);
        match work {
            Work::Request(_, packet) => match packet.body {
                Body::Write { at, size, data, .. } | Body::Update { at, size, data, .. } => {
                    Some(Step::Store { address: address_of(at.offset), size, data })
                }
                Body::Atomic { at, size, op, operand, compare, .. } => {
                    Some(Step::Atomic { address: address_of(at.offset), size, op, operand, compare })
                }
                _ => None,
            },
            Work::Apply(packet, _) => {
                let (offset, size, data) = self.apply(below.ctx, page, mode, packet)?;
                Some(Step::Store { address: address_of(offset), size, data })
            }
            Work::Fill(Packet { body: Body::Fill { at, data, .. }, .. }) => {
                Some(Step::StoreBlock { address: address_of(at.offset), data: Data::Bytes(data.clone()) })
            }
            Work::Fill(_) | Work::Cancelled | Work::Move(_) | Work::Take => None,
            Work::Read(_, offset) => Some(Step::LoadBlock {
                address: address_of(*offset),
                length: STREAM_BLOCK as u32,
                lend: false,
                into: None,
            }),
        }
    }

    /// The first part of a reflected store that must be stored; the others stay in the item. Decided when the item
    /// runs, since the counters may change before that.
    fn apply(&mut self, ctx: &mut Ctx, page: u32, mode: Mode, packet: &Packet) -> Option<(u32, u8, u64)> {
        let Body::Reflected { at, size, data, writer } = packet.body else { return None };
        let parts = if mode == Mode::Counters && writer == ctx.config.node {
            self.pending.reflected(ctx, page, at.offset, size);
            Vec::new()
        } else if mode == Mode::Counters && !ctx.has(Bug::IgnoreCounters) {
            self.pending.unmasked(ctx, page, at.offset, size, data)
        } else {
            vec![(at.offset, size, data)]
        };
        let first = parts.first().copied();
        let replica = self.pages.get_mut(page)?;
        if let Some(Work::Apply(_, rest)) = replica.work.front_mut() {
            *rest = parts.into_iter().skip(1).collect();
        }
        first
    }

    /// Continues a page after its step in flight.
    pub(crate) fn stepped(&mut self, below: &mut Below<'_>, page: u32, result: StepResult) {
        let Some(replica) = self.pages.get_mut(page) else { return };
        // A store of which some bytes are masked takes a step for each part.
        if let (Some(Work::Apply(_, rest)), StepResult::Stored) = (replica.work.front_mut(), &result) {
            if !rest.is_empty() && !replica.revoked {
                let (offset, size, data) = rest.remove(0);
                if let Some(address) = below.grants.pages.get(page).map(|grant| grant.address + u64::from(offset)) {
                    below.ctx.step(Step::Store { address, size, data }, StepOwner::Replica(page));
                    return;
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
        if self.end_if_revoked(below, page) {
            below.ctx.defer(FollowUp::StepEnded);
            return;
        }
        self.run_work(below, page);
        self.leave_if_done(below, page);
    }

    /// Completes an item after its last step.
    fn work_done(&mut self, below: &mut Below<'_>, page: u32, work: Work, result: StepResult) {
        match (work, result) {
            (work, StepResult::Failed(status)) => self.refuse_work(below, page, work, status),
            (Work::Request(source, _), result) => self.request_performed(below, page, source, result),
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
                self.multicasts.send(below, &[to], fill, None);
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
        let mut copies = replica.members();
        if replica.mode == Mode::Invalidate {
            // Copies that an earlier store invalidates and that have not acknowledged it. A processor there may still
            // read the content before that store, so the next store waits for them too.
            let earlier = self.multicasts.waited_for(page).filter(|node| !replica.copies.contains_key(node));
            copies.extend(earlier.collect::<BTreeSet<NodeId>>());
        }
        let (at, size, data, answer) = match (&packet.body, result) {
            (Body::Atomic { at, size, op, operand, compare, .. }, StepResult::Loaded(old)) => {
                let new = op.apply(*size, old, *operand, *compare);
                (*at, *size, new, Body::AtomicReply { status: Status::Ok, data: old })
            }
            (Body::Write { at, size, data, .. } | Body::Update { at, size, data, .. }, _) => {
                (*at, *size, *data, Body::WriteAck { status: Status::Ok })
            }
            _ => return,
        };
        let update = matches!(packet.body, Body::Update { .. });
        let writer = if update { source } else { below.ctx.config.node };
        let body = Body::Reflected { at, size, data, writer };
        below.ctx.counters.reflected += copies.len() as u64;
        self.multicasts.send(below, &copies, body, Some((packet, answer)));
        if replica.remove_invalidated() {
            self.multicasts.announce_group(below.ctx, replica);
        }
        below.ctx.defer(FollowUp::Serve(source));
    }

    /// Refuses an item that cannot be performed.
    pub(super) fn refuse_work(&mut self, below: &mut Below<'_>, page: u32, work: Work, status: Status) {
        match work {
            Work::Request(source, _) => {
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
                        self.multicasts.send_end(below, replica, &[to], status);
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
        let source = packet.src;
        self.arrivals.push(packet);
        self.take_arrivals(below, source);
    }

    /// Processes packets of a node until one becomes a work item.
    fn take_arrivals(&mut self, below: &mut Below<'_>, source: NodeId) {
        if !self.arrivals.begin(source) {
            return;
        }
        while let Some(packet) = self.arrivals.next(source) {
            match self.take_arrival(below, &packet) {
                Arrival::Done(status) => self.acknowledge_copy(below, &packet, status),
                Arrival::Working => {}
                Arrival::Deferred => self.arrivals.release(below.ctx, source),
            }
        }
        self.arrivals.end(source);
    }

    /// Processes one packet.
    fn take_arrival(&mut self, below: &mut Below<'_>, packet: &Packet) -> Arrival {
        if packet.target != below.ctx.incarnation {
            return Arrival::Done(Status::Reset);
        }
        let (Body::Reflected { at, .. } | Body::Fill { at, .. } | Body::Rehome { at, .. }) = packet.body else {
            return Arrival::Done(Status::Invalid);
        };
        let source = Source { node: packet.src, page: at.page, generation: at.generation };
        let page = self.homes.sources.get(&source).copied();
        let Some((page, replica)) = page.and_then(|page| Some((page, self.pages.get_mut(page)?))) else {
            // The sender is not the page's home: the packet is refused.
            below.ctx.note_refusal(packet.src, at.page, Status::NotHome);
            return Arrival::Done(Status::NotHome);
        };
        let work = match packet.body {
            Body::Rehome { to: NO_NODE, page: why, .. } => {
                let status = u16::try_from(why).ok().filter(|why| *why > 0).map_or(Status::Stale, Status::from_u16);
                self.source_lost(below, page, source, status);
                return Arrival::Done(Status::Ok);
            }
            Body::Rehome { .. } => return self.rehomed(below, page, source, packet),
            Body::Reflected { .. } if replica.is_valid_copy() => return self.invalidate_copy(below, page, packet),
            Body::Fill { .. } => Work::Fill(packet.clone()),
            _ => Work::Apply(packet.clone(), Vec::new()),
        };
        self.arrivals.work(packet.src);
        replica.work.push_back(work);
        self.run_work(below, page);
        Arrival::Working
    }

    /// Acknowledges the first packet of its node with this status, and processes the next.
    pub(super) fn acknowledge_copy(&mut self, below: &mut Below<'_>, packet: &Packet, status: Status) {
        self.arrivals.release(below.ctx, packet.src);
        below.ctx.reply_to(packet, Body::CopyAck { status });
        self.take_arrivals(below, packet.src);
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
        let Some(Acknowledged { page, done, rejoined, missed, answer }) = acknowledged else { return };
        if done {
            self.end_multicast(below, tag);
        }
        if let Some((packet, body)) = answer {
            let requester = packet.src;
            match packet.body {
                Body::Move { .. } => self.rehome_acknowledged(below, page, packet),
                _ if missed => below.ctx.refuse(&packet, Status::Stale),
                _ => below.ctx.reply_to(&packet, body),
            }
            self.multicasts.release_wait(below.ctx, requester);
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
}
