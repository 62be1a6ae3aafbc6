// SPDX-License-Identifier: MIT OR Apache-2.0
//! The responder: requests from other nodes, and from this node to itself.
//!
//! The requests of one source are performed in order, one at a time (SPEC I8); sources interleave. The responder
//! performs accesses to granted memory itself, each by one guest-memory step. `hib` passes requests for replicated
//! pages, names and receive credits to other parts, and calls the responder to accept, start and finish requests.

use crate::arrived::{Arrived, Charge};
use crate::by_node::ByNode;
use crate::config::Bug;
use crate::ctx::{Ctx, FollowUp, StepOwner};
use crate::grants::Grants;
use crate::loan::{Data, Loan};
use crate::{HibConfig, Step, StepResult};
use std::collections::VecDeque;
use telegraphos_wire::{Block, Body, NodeId, Packet, Rights, Status};

/// A request that is not answered.
#[derive(Clone, Debug, Hash)]
struct Inbound {
    arrived: Arrived,
    /// The export page of the request, while it is in service.
    page: Option<u32>,
    /// A store of a burst, of which the next one follows: the last one counts as the request.
    followed: bool,
}

/// Stores of a request, of those that are acknowledged.
fn stores(packet: &Packet) -> u64 {
    if let Body::WriteBurst { stores, .. } = &packet.body { stores.len() as u64 } else { 1 }
}

/// Returns whether a request is about a block, which has bytes, or memory that is lent instead.
pub(crate) fn is_block(packet: &Packet) -> bool {
    matches!(packet.body, Body::ReadBlock { .. } | Body::WriteBlock { .. })
}

/// The inbound requests of the board.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Responder {
    /// By source, in order of arrival; the first may be in service.
    inbound: ByNode<VecDeque<Inbound>>,
    /// By source: the value that the first step of an atomic loaded ([`Bug::SplitAtomic`]).
    #[cfg(feature = "bugs")]
    halves: std::collections::BTreeMap<NodeId, u64>,
}

impl Responder {
    /// No requests.
    pub(crate) fn new(config: &HibConfig) -> Responder {
        Responder {
            inbound: ByNode::new(config.window.nodes(), VecDeque::new()),
            #[cfg(feature = "bugs")]
            halves: Default::default(),
        }
    }

    /// Reads what a request of `source` needs.
    pub(crate) fn look_ahead(&self, source: NodeId) {
        std::hint::black_box(self.inbound[usize::from(source)].front().is_some());
    }

    /// Queues a request, which occupies `charge` until it is answered. Returns true if it is the first of its source,
    /// so that the caller must serve the source.
    pub(crate) fn accept(&mut self, ctx: &mut Ctx, packet: Packet, loan: Option<Loan>, charge: Charge) -> bool {
        let Some(queue) = self.inbound.get_mut(packet.src) else {
            // Only a switch that serves more nodes than the window addresses sends this.
            ctx.consumed(charge, packet.src, packet.class());
            return false;
        };
        queue.push_back(Inbound { arrived: Arrived { packet, loan, charge }, page: None, followed: false });
        queue.len() == 1 || ctx.has(Bug::ServeOutOfOrder)
    }

    /// Returns the first request of a source, unless it is in service.
    #[inline]
    pub(crate) fn first_of(&mut self, ctx: &Ctx, source: NodeId) -> Option<&Packet> {
        let queue = self.inbound.existing_mut(source)?;
        if ctx.has(Bug::ServeOutOfOrder) && queue.front().is_some_and(|r| r.page.is_none()) {
            let newest = queue.iter().rposition(|r| r.page.is_none()).unwrap_or(0);
            queue.swap(0, newest);
        }
        queue.front().filter(|request| request.page.is_none()).map(|request| &request.arrived.packet)
    }

    /// Returns the first request of a source, in service or not.
    #[inline]
    pub(crate) fn first(&self, source: NodeId) -> Option<&Packet> {
        self.inbound[usize::from(source)].front().map(|request| &request.arrived.packet)
    }

    /// Starts the guest-memory step of a source's first request, an access to granted memory. The grant is checked at
    /// this point and not on arrival, so that a revocation takes effect at once. A burst fails if its stores are not
    /// allowed, or are not one step: they are to be performed [one by one](Responder::unfold).
    pub(crate) fn start(&mut self, ctx: &mut Ctx, grants: &Grants, source: NodeId) -> Result<(), Status> {
        let request = self.inbound.existing_mut(source).and_then(VecDeque::front_mut).ok_or(Status::Invalid)?;
        let Inbound { arrived, page, .. } = request;
        if let Body::WriteBurst { on, stores, .. } = &arrived.packet.body {
            let base = grants.translate_burst(ctx, source, *on, stores).ok_or(Status::Invalid)?;
            *page = Some(on.page);
            let stores = stores.clone();
            ctx.step(Step::StoreBurst { base, stores }, StepOwner::Serve(source));
            return Ok(());
        }
        let loan = &arrived.loan;
        let (at, length, right) = match &arrived.packet.body {
            Body::Write { at, size, .. } => (at, u64::from(*size), Rights::WRITE),
            Body::Read { at, size, .. } => (at, u64::from(*size), Rights::READ),
            Body::Atomic { at, size, .. } => (at, u64::from(*size), Rights::ATOMIC),
            Body::ReadBlock { at, length, .. } => (at, u64::from(*length), Rights(Rights::DMA.0 | Rights::READ.0)),
            Body::WriteBlock { at, .. } => (at, arrived.block_len(), Rights(Rights::DMA.0 | Rights::WRITE.0)),
            _ => return Err(Status::Invalid),
        };
        let step = match &arrived.packet.body {
            // Its order among the requests of its source is that of this moment.
            Body::ReadBlock { length: bytes, .. } => {
                let place = grants.translate_block(ctx, source, at, length, right)?;
                let (length, into) = (*bytes, loan.clone());
                place.step(|address| Step::LoadBlock { address, length, lend: false, into })
            }
            Body::WriteBlock { data, .. } => {
                let place = grants.translate_block(ctx, source, at, length, right)?;
                let data = Data::of(data.clone(), loan.clone());
                place.step(|address| Step::StoreBlock { address, data })
            }
            body => {
                let address = grants.translate(ctx, source, at, length, right)?;
                match *body {
                    Body::Write { size, data, .. } => Step::Store { address, size, data },
                    Body::Atomic { size, .. } if ctx.has(Bug::SplitAtomic) => Step::Load { address, size },
                    Body::Atomic { size, op, operand, compare, .. } => {
                        Step::Atomic { address, size, op, operand, compare }
                    }
                    _ => Step::Load { address, size: length as u8 },
                }
            }
        };
        *page = Some(at.page);
        if is_block(&arrived.packet) {
            ctx.copied(length);
        }
        ctx.step(step, StepOwner::Serve(source));
        Ok(())
    }

    /// Replaces the first request of a source, a burst, by its stores, which are answered together.
    pub(crate) fn unfold(&mut self, ctx: &mut Ctx, source: NodeId) {
        let Some(queue) = self.inbound.existing_mut(source) else { return };
        let Some(Inbound { arrived: Arrived { packet, charge, .. }, .. }) = queue.pop_front() else { return };
        let Packet { src, dst, tag, incarnation, target, .. } = packet;
        let Body::WriteBurst { on, context, epoch, stores } = &packet.body else { return };
        ctx.bursts.begin(&packet, stores.len());
        for (behind, store) in stores.iter().rev().enumerate() {
            let (at, followed) = (on.at(store.offset.into()), behind > 0);
            let body = Body::Write { at, context: *context, epoch: *epoch, size: store.size, data: store.data };
            let packet = Packet { src, dst, tag, incarnation, target, body };
            let charge = if followed { Charge::Nothing } else { charge };
            queue.push_front(Inbound { arrived: Arrived { packet, loan: None, charge }, page: None, followed });
        }
    }

    /// The export page that the first request of a source, which is in service, changes; `None` if it only loads.
    pub(crate) fn changes(&self, source: NodeId) -> Option<u32> {
        let request = self.inbound[usize::from(source)].front()?;
        let changes = matches!(
            request.arrived.packet.body,
            Body::Write { .. } | Body::WriteBurst { .. } | Body::Atomic { .. } | Body::WriteBlock { .. }
        );
        request.page.filter(|_| changes)
    }

    /// Handles the result of the first request's step and answers the request. Returns false if another step is in
    /// flight for it.
    pub(crate) fn stepped(&mut self, ctx: &mut Ctx, grants: &Grants, source: NodeId, result: StepResult) -> bool {
        #[cfg(feature = "bugs")]
        let result = match self.second_half(ctx, grants, source, result) {
            Some(result) => result,
            None => return false,
        };
        #[cfg(not(feature = "bugs"))]
        let _ = grants;
        let Some(request) = self.inbound[usize::from(source)].front() else { return false };
        let body = match (&request.arrived.packet.body, result) {
            (Body::WriteBurst { .. }, StepResult::StoredPart { stores, status }) => {
                self.refuse_part(ctx, source, stores, status);
                return true;
            }
            (_, StepResult::Failed(status)) => {
                self.refuse(ctx, source, status);
                return true;
            }
            (Body::Read { .. }, StepResult::Loaded(data)) => Body::ReadReply { status: Status::Ok, data },
            (Body::Atomic { .. }, StepResult::Loaded(data)) => Body::AtomicReply { status: Status::Ok, data },
            (Body::ReadBlock { .. }, StepResult::Block(data)) => {
                self.answer_block(ctx, source, data);
                return true;
            }
            _ => {
                self.acknowledge(ctx, source);
                return true;
            }
        };
        self.answer(ctx, source, body);
        true
    }

    /// [`Bug::SplitAtomic`]: starts the store of an atomic after its load. Returns the loaded value when both are
    /// complete.
    #[cfg(feature = "bugs")]
    fn second_half(&mut self, ctx: &mut Ctx, grants: &Grants, from: NodeId, done: StepResult) -> Option<StepResult> {
        let packet = &self.inbound[usize::from(from)].front()?.arrived.packet;
        let (Body::Atomic { at, size, op, operand, compare, .. }, true) = (&packet.body, ctx.has(Bug::SplitAtomic))
        else {
            return Some(done);
        };
        match (done, self.halves.remove(&packet.src)) {
            (StepResult::Stored, old) => Some(StepResult::Loaded(old.unwrap_or(u64::MAX))),
            (StepResult::Loaded(old), None) => {
                let address = grants.translate(ctx, packet.src, at, u64::from(*size), Rights::ATOMIC);
                let Ok(address) = address else { return Some(StepResult::Loaded(old)) };
                self.halves.insert(packet.src, old);
                let data = op.apply(*size, old, *operand, *compare);
                ctx.step(Step::Store { address, size: *size, data }, StepOwner::Serve(packet.src));
                None
            }
            (done, _) => Some(done),
        }
    }

    /// Returns whether a request of this source for this export page is not answered.
    pub(crate) fn has_for(&self, source: NodeId, page: u32) -> bool {
        self.inbound[usize::from(source)].iter().any(|r| r.arrived.packet.body.page() == page)
    }

    /// A connection is gone: the queued requests that it brought return no credits to the next one. `gone` tells of a
    /// source and a charge whether that is it.
    pub(crate) fn forget_credits(&mut self, gone: impl Fn(NodeId, Charge) -> bool) {
        for request in self.inbound.values_mut().flatten().filter(|r| gone(r.arrived.packet.src, r.arrived.charge)) {
            request.arrived.charge = Charge::Nothing;
        }
    }

    /// Returns whether a request for one of these export pages is in service.
    pub(crate) fn serves(&self, page: u32, count: u32) -> bool {
        let end = u64::from(page) + u64::from(count);
        self.inbound
            .existing()
            .filter_map(|(_, queue)| queue.front())
            .filter_map(|request| request.page)
            .any(|p| p >= page && u64::from(p) < end)
    }

    /// Marks the first request of a source as in service on an export page, or as not in service.
    pub(crate) fn in_service(&mut self, source: NodeId, page: Option<u32>) {
        if let Some(request) = self.inbound.existing_mut(source).and_then(VecDeque::front_mut) {
            request.page = page;
        }
    }

    /// Refuses the first request of a source; counts and reports the refusal.
    pub(crate) fn refuse(&mut self, ctx: &mut Ctx, source: NodeId, status: Status) {
        let Some(packet) = self.detach(ctx, source) else { return };
        ctx.note_refusal(source, packet.body.page(), status);
        ctx.refuse(&packet, status);
        Responder::ended(ctx, &packet);
    }

    /// Refuses the first request of a source, a burst of which only the first stores have been performed.
    fn refuse_part(&mut self, ctx: &mut Ctx, source: NodeId, performed: usize, status: Status) {
        let Some(packet) = self.detach(ctx, source) else { return };
        ctx.counters.served += performed as u64;
        for later in performed as u64..stores(&packet) {
            let status = if later == performed as u64 { status } else { Status::Cut };
            ctx.note_refusal(source, packet.body.page(), status);
        }
        ctx.reply_to(&packet, Body::BurstRefused { status, performed: performed as u16 });
        Responder::ended(ctx, &packet);
    }

    /// Answers the first request of a source, which has been performed.
    pub(crate) fn answer(&mut self, ctx: &mut Ctx, source: NodeId, body: Body) {
        let Some(packet) = self.detach(ctx, source) else { return };
        ctx.counters.served += 1;
        ctx.reply_to(&packet, body);
        Responder::ended(ctx, &packet);
    }

    /// Answers the first request of a source, whose block was loaded, or copied to the loan beside it.
    fn answer_block(&mut self, ctx: &mut Ctx, source: NodeId, data: Data) {
        let reply = |data| Body::BlockReply { status: Status::Ok, data };
        match data {
            Data::Bytes(block) => self.answer(ctx, source, reply(block)),
            Data::Lent(loan) => {
                let Some(packet) = self.detach(ctx, source) else { return };
                ctx.counters.served += 1;
                ctx.reply_lent(&packet, reply(Block::default()), loan);
                Responder::ended(ctx, &packet);
            }
        }
    }

    /// Acknowledges the first request of a source, a store, a burst or a block, which has been performed.
    fn acknowledge(&mut self, ctx: &mut Ctx, source: NodeId) {
        let Some(packet) = self.detach(ctx, source) else { return };
        ctx.counters.served += stores(&packet);
        ctx.acknowledge(&packet);
        Responder::ended(ctx, &packet);
    }

    /// A removed request has been answered.
    fn ended(ctx: &mut Ctx, packet: &Packet) {
        if packet.src == ctx.config.node {
            ctx.defer(FollowUp::OwnEnded(packet.body.page()));
        }
    }

    /// Removes the first request of a source, performed or refused, without a reply. Returns its credit and counts it
    /// as performed.
    pub(crate) fn detach(&mut self, ctx: &mut Ctx, source: NodeId) -> Option<Packet> {
        let queue = self.inbound.existing_mut(source)?;
        let Inbound { arrived: request, followed, .. } = queue.pop_front()?;
        if queue.is_empty() {
            // Restarts the ring at the same place in memory, which stays in the cache.
            queue.clear();
        }
        ctx.consumed(request.charge, source, request.packet.class());
        if !followed {
            ctx.count_performed(&request.packet);
        }
        if ctx.elements_wait {
            ctx.defer(FollowUp::Performed(source));
        }
        Some(request.packet)
    }

    /// Takes the requests of a source that are not in service.
    fn take_waiting(&mut self, source: NodeId) -> Vec<Arrived> {
        let Some(queue) = self.inbound.existing_mut(source) else { return Vec::new() };
        let keep = usize::from(queue.front().is_some_and(|r| r.page.is_some()));
        queue.drain(keep..).map(|request| request.arrived).collect()
    }

    /// Drops the requests of a node that is down. A request in service completes, and its reply is dropped.
    pub(crate) fn forget_requests_of(&mut self, ctx: &mut Ctx, node: NodeId) {
        for Arrived { packet, charge, .. } in self.take_waiting(node) {
            ctx.consumed(charge, node, packet.class());
        }
    }

    /// Refuses the requests that are not in service. Called on reset.
    pub(crate) fn refuse_all(&mut self, ctx: &mut Ctx, status: Status) {
        let sources: Vec<NodeId> = self.inbound.existing().map(|(source, _)| source).collect();
        for source in sources {
            let waiting = self.take_waiting(source);
            if source == ctx.config.node {
                continue;
            }
            for Arrived { packet, charge, .. } in waiting {
                ctx.consumed(charge, source, packet.class());
                ctx.refuse(&packet, status);
            }
        }
    }
}
