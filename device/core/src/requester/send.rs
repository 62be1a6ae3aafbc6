// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sending: takes entries from the send queues in the order of acceptance, as far as windows and credits allow, and
//! matches replies to requests in flight. Called by `hib` for credits and replies, and by every part that accepts a
//! request.

use super::{
    Ended, InFlight, PendingRequest, RequestKind, Requester, Tagged, Waiting, WaitingForward, Window, reset_empty_ring,
};
use crate::config::Bug;
use crate::ctx::Ctx;
use crate::ctx::FollowUp;
use crate::keyed::Key;
use crate::numbered::ones;
use crate::rings::Route;
use crate::{LostStore, Notice};
use telegraphos_wire::admin::Completion;
use telegraphos_wire::{Body, Class, ImportEpoch, NodeId, Packet, Status};

impl Requester {
    /// Sends requests and elements that waited for credits, as far as the credits last.
    pub(crate) fn pump_credit_waiters(&mut self, ctx: &mut Ctx) {
        for node in std::mem::take(&mut self.credit_waiters) {
            self.peers[usize::from(node)].awaits_credit = false;
            self.pump(ctx, node);
        }
    }

    /// Returns whether a packet of this class may be sent to another node now, by the ring to it or by the switch. If
    /// it may not for lack of the switch's credits, the node is queued for them. Each present node has a guaranteed
    /// share, so that a slow destination cannot occupy all credits (`Shares::half_guaranteed`).
    pub(crate) fn may_send(&mut self, ctx: &mut Ctx, node: NodeId, class: Class) -> bool {
        if !ctx.link.is_up() {
            return false;
        }
        let peer = &mut self.peers[usize::from(node)];
        let is_idle = peer.window_used() == 0 && peer.elements_in_flight == 0;
        let route = ctx.rings.route(node, class, is_idle);
        if class == Class::Request {
            self.ring_waits(ctx, node, route == Route::Wait);
        }
        match route {
            Route::Switch => {}
            Route::Ring => return true,
            // The ring's next event sends it.
            Route::Wait => return false,
        }
        let peer = &mut self.peers[usize::from(node)];
        let unanswered = if class == Class::Enqueue { peer.elements_in_flight } else { peer.window_used() };
        let any = ctx.has(Bug::ShareAllCredits) && ctx.link.has_credit(class);
        let admitted = any || ctx.link.admits(class, unanswered) && !ctx.has(Bug::ShareAllCredits);
        if !admitted && !std::mem::replace(&mut peer.awaits_credit, true) {
            self.credit_waiters.push_back(node);
        }
        admitted
    }

    /// Sends requests of this node to itself, if forwarded ones have left the window.
    pub(crate) fn pump_own(&mut self, ctx: &mut Ctx) {
        let own = &self.peers[usize::from(ctx.config.node)];
        if !own.waiting.is_empty() && own.outstanding < ctx.config.outstanding {
            self.pump_requests(ctx, ctx.config.node);
        }
    }

    /// Sends requests and elements to a node, as far as the window, the receive credits and the link credits allow.
    pub(crate) fn pump(&mut self, ctx: &mut Ctx, node: NodeId) {
        self.pump_requests(ctx, node);
        self.pump_elements(ctx, node);
    }

    /// Sends requests to a node from both send queues, in the order of acceptance as far as their windows allow.
    fn pump_requests(&mut self, ctx: &mut Ctx, node: NodeId) {
        let own = node == ctx.config.node;
        loop {
            let peer = &mut self.peers[usize::from(node)];
            let shared = ctx.has(Bug::ForwardsShareWindow);
            let used = |window: u32| if shared { peer.window_used() } else { window };
            let waiting = peer.waiting.front().filter(|_| used(peer.outstanding) < ctx.config.outstanding);
            let forward = peer.forwards.front().filter(|_| used(peer.forwards_in_flight) < ctx.config.outstanding);
            // A copy that requests to become the home sends the request behind all its stores to the old home.
            let is_move = |waiting: &(u64, Waiting)| match &waiting.1 {
                Waiting::PendingRequest { body, .. } => matches!(**body, Body::Move { .. }),
                _ => false,
            };
            let behind = |number: u64| peer.forwards.front().is_some_and(|(first, _)| *first < number);
            let waiting = waiting.filter(|waiting| !(is_move(waiting) && behind(waiting.0)));
            let forward = match (waiting, forward) {
                // All are sent, or wait for answers.
                (None, None) => return self.ring_waits(ctx, node, false),
                // In the order of acceptance, as far as the windows allow.
                (Some(waiting), Some(forward)) => forward.0 < waiting.0,
                (waiting, _) => waiting.is_none(),
            };
            if !own && !self.may_send(ctx, node, Class::Request) {
                return;
            }
            if forward {
                self.send_forward(ctx, node);
                continue;
            }
            let peer = &mut self.peers[usize::from(node)];
            let Some((_, waiting)) = peer.waiting.pop_front() else { return };
            if peer.waiting.is_empty() {
                reset_empty_ring(&mut peer.waiting);
            }
            let (body, request) = match waiting {
                Waiting::Store { import, at, size, data } => {
                    let context = self.uncount_waiting(ctx, import);
                    // Waiting stores belong to the current epoch: the refusal that ends an epoch purges the waiting
                    // ones.
                    let epoch = self.epoch_of(import);
                    (Body::Write { at, context, epoch, size, data }, InFlight::Store { import, epoch: epoch.epoch })
                }
                Waiting::PendingRequest { number, body } => {
                    let body = self.bodies.take(body);
                    if !self.pending_requests.contains(number) {
                        continue; // Timed out.
                    }
                    (body, InFlight::PendingRequest { number })
                }
                Waiting::Part { operation, offset, body } => {
                    (self.bodies.take(body), InFlight::Part { operation, offset })
                }
            };
            self.peers[usize::from(node)].outstanding += 1;
            self.send_request(ctx, node, body, request);
        }
    }

    /// Sends a request. The caller has checked for a credit.
    fn send_request(&mut self, ctx: &mut Ctx, node: NodeId, body: Body, request: InFlight) {
        let peer = &mut self.peers[usize::from(node)];
        peer.requests_sent = peer.requests_sent.wrapping_add(1);
        let target = self.target(ctx, node);
        let tag = self.take_tag(ctx, node, request);
        let packet = Packet { src: ctx.config.node, dst: node, tag, incarnation: ctx.incarnation, target, body };
        ctx.transmit_request(packet);
    }

    /// Sends the oldest waiting request to the home of a page, or drops it if its import is in error.
    fn send_forward(&mut self, ctx: &mut Ctx, node: NodeId) {
        let forwards = &mut self.peers[usize::from(node)].forwards;
        let Some((_, waiting)) = forwards.pop_front() else { return };
        if forwards.is_empty() {
            reset_empty_ring(forwards);
        }
        let WaitingForward { number, body, import, unconditional } = waiting;
        self.uncount_waiting_forward(ctx, import);
        let in_error = |(import, opening): (u16, u64)| {
            self.open_import(import).is_some_and(|import| import.opening == opening && import.in_error)
        };
        if !unconditional && import.is_some_and(in_error) {
            return ctx.defer(FollowUp::ForwardDropped(number));
        }
        self.peers[usize::from(node)].forwards_in_flight += 1;
        self.send_request(ctx, node, body, InFlight::Forward { number });
    }

    /// Removes those of `numbers` (ascending) that wait to be sent to the home of a page, in one pass over its queue.
    /// Returns the removed ones.
    pub(crate) fn cancel_forwards(&mut self, ctx: &mut Ctx, home: NodeId, numbers: &[u64]) -> Vec<u64> {
        let mut cancelled = Vec::new();
        self.peers[usize::from(home)].forwards.retain(|(_, waiting)| {
            let cancel = numbers.binary_search(&waiting.number).is_ok();
            if cancel {
                cancelled.push((waiting.number, waiting.import));
            }
            !cancel
        });
        for (_, import) in &cancelled {
            self.uncount_waiting_forward(ctx, *import);
        }
        cancelled.into_iter().map(|(number, _)| number).collect()
    }

    /// A store of this node to a copy on this node now waits for its home: counts it as a waiting store of its import.
    /// Returns the import's number and opening.
    pub(crate) fn enter_send_queue(&mut self, ctx: &mut Ctx, tag: u32) -> Option<(u16, u64)> {
        let number = self.store_of(tag)?;
        let import = self.import(number)?;
        let opening = import.opening;
        import.waiting += 1;
        self.waiting_total += 1;
        self.congest_if_full(ctx, number);
        Some((number, opening))
    }

    /// A request to the home of a page is sent or removed: uncounts it from the waiting stores of its import.
    pub(super) fn uncount_waiting_forward(&mut self, ctx: &mut Ctx, import: Option<(u16, u64)>) {
        let Some((number, opening)) = import else { return };
        match self.open_import(number).filter(|import| import.opening == opening) {
            Some(_) => {
                self.uncount_waiting(ctx, number);
            }
            None => self.waiting_total -= 1,
        }
    }

    /// The import of a store in flight from this node to itself.
    fn store_of(&self, tag: u32) -> Option<u16> {
        match self.tagged(tag) {
            Some((_, Tagged { request: InFlight::Store { import, .. }, .. })) => Some(import),
            _ => None,
        }
    }

    /// A request of this node to itself has been forwarded to a home: releases its place in the node's own window.
    pub(crate) fn pass_tag(&mut self, ctx: &mut Ctx, tag: u32) {
        let own = &mut self.peers[usize::from(ctx.config.node)];
        if !ctx.has(Bug::ForwardsShareWindow) && self.forwarded_tags.insert(tag) {
            own.outstanding = own.outstanding.saturating_sub(1);
        }
    }

    /// Uncounts a waiting store of an import, and ends the import's congestion if few are left. Returns the import's
    /// context.
    pub(crate) fn uncount_waiting(&mut self, ctx: &mut Ctx, number: u16) -> u16 {
        self.waiting_total -= 1;
        let clear_at = ctx.config.clear_at;
        let Some(import) = self.import(number) else { return 0 };
        import.waiting -= 1;
        let context = import.context;
        if import.congested && import.waiting <= clear_at {
            import.congested = false;
            let free = !import.throttled;
            if free {
                self.congestion_changed(ctx, number, false);
            }
        }
        context
    }

    /// Counts the store with this tag as taken by the copy on this node. Returns the context, the word of its status
    /// page, and the count.
    pub(crate) fn count_taken(&mut self, tag: u32) -> Option<(u16, u32, u64)> {
        let import = self.store_of(tag)?;
        let import = self.import(import)?;
        let (word, count) = import.taken.as_mut()?;
        *count += 1;
        Some((import.context, *word, *count))
    }

    // ---- replies ----

    /// Removes the request in flight with this tag, which a reply of `node` answers. `None` if that is no request to
    /// it.
    pub(crate) fn take_in_flight(&mut self, ctx: &Ctx, node: NodeId, tag: u32) -> Option<InFlight> {
        let request = self.release_tag(tag, node)?;
        let was_forwarded = self.forwarded_tags.remove(&tag) && node == ctx.config.node;
        let peer = &mut self.peers[usize::from(node)];
        let used = match request.window() {
            Window::Elements => &mut peer.elements_in_flight,
            Window::Forwards => &mut peer.forwards_in_flight,
            Window::Requests if was_forwarded => return Some(request),
            Window::Requests => &mut peer.outstanding,
        };
        *used = used.saturating_sub(1);
        Some(request)
    }

    /// Handles the reply to a request. Returns the result if a part above issued the request.
    pub(crate) fn answered(&mut self, ctx: &mut Ctx, request: InFlight, body: Body) -> Option<Ended> {
        match (request, body) {
            (InFlight::Element { send_queue, epoch }, body) => {
                let status = if let Body::WriteAck { status } = body { status } else { Status::Invalid };
                self.element_finished(ctx, send_queue, epoch, status);
            }
            (InFlight::Store { import, epoch }, Body::WriteAck { status }) => {
                self.store_finished(ctx, import, epoch, status);
            }
            // A store with a reply of the wrong kind counts as lost.
            (InFlight::Store { import, epoch }, _) => self.store_finished(ctx, import, epoch, Status::Invalid),
            (InFlight::PendingRequest { number }, body) => return self.pending_answered(ctx, number, body),
            (InFlight::Forward { number }, body) => return Some(Ended::Forward { number, answer: Ok(body) }),
            (InFlight::Part { operation, offset }, body) => {
                return Some(Ended::Part { operation, offset, answer: Ok(body) });
            }
            // The request has ended without its answer.
            (InFlight::Abandoned(_), _) => {}
        }
        None
    }

    /// Handles the reply to a pending request; a reply of the wrong kind fails it.
    fn pending_answered(&mut self, ctx: &mut Ctx, number: Key, body: Body) -> Option<Ended> {
        let request = self.take_pending(number)?;
        match (request.kind, body) {
            (RequestKind::Load { token, size, .. }, Body::ReadReply { status: Status::Ok, data }) => {
                ctx.read_done(token, data & ones(size.into()));
            }
            (RequestKind::Reserve { opens }, Body::ReserveReply { status: Status::Ok, holds }) => {
                self.reserve_answered(ctx, opens, Ok(holds));
            }
            (
                RequestKind::Lookup { slot },
                Body::LookupReply { status: Status::Ok, page, count, length, generation, rights, width },
            ) => {
                let completion = Completion {
                    index: page,
                    count,
                    generation,
                    length,
                    rights: u32::from(rights.0),
                    width: u32::from(width),
                    ..Completion::of(0, Status::Ok)
                };
                ctx.complete(slot, completion);
            }
            (RequestKind::Replica(request), Body::WriteAck { status }) => {
                return Some(Ended::Replica { request, status });
            }
            (kind, body) => {
                let status = match body {
                    Body::ReadReply { status, .. }
                    | Body::LookupReply { status, .. }
                    | Body::ReserveReply { status, .. }
                    | Body::WriteAck { status } => status,
                    _ => Status::Invalid,
                };
                let status = if status.is_ok() { Status::Invalid } else { status };
                return self.fail_request(ctx, PendingRequest { kind, ..request }, status);
            }
        }
        None
    }

    /// Handles the acknowledgement or refusal of a store (or element) of this epoch of an import.
    pub(crate) fn store_finished(&mut self, ctx: &mut Ctx, number: u16, epoch: u32, status: Status) {
        let Some(import) = self.import(number) else { return };
        import.finished += 1;
        let node = import.node;
        if !status.is_ok() && import.epoch == epoch {
            let first = !std::mem::replace(&mut import.refused, true);
            self.lose(ctx, node, number, status, first);
            if ctx.has(Bug::PassLostStore) {
                self.begin_epoch(number);
            }
        } else if !status.is_ok() {
            // The driver has acknowledged the error of that epoch: the refusal does not concern the stores issued
            // since.
            ctx.counters.dropped += 1;
            ctx.notice(Notice::LostStore(LostStore { node, import: Some(number), status }));
        }
        self.progressed(ctx, number);
    }

    /// The import and epoch that stores of an open import carry.
    pub(crate) fn epoch_of(&self, number: u16) -> ImportEpoch {
        ImportEpoch { import: number, epoch: self.open_import(number).map_or(0, |import| import.epoch) }
    }

    /// Begins a new epoch of an import: earlier refusals do not concern its later stores.
    pub(super) fn begin_epoch(&mut self, number: u16) {
        self.epochs = self.epochs.wrapping_add(1);
        let epoch = self.epochs;
        if let Some(import) = self.import(number) {
            (import.epoch, import.refused) = (epoch, false);
        }
        self.begin_epoch_of_queue(number, epoch);
    }
}
