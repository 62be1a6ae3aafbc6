// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sending: takes entries from the send queues in the order of acceptance, as far as windows and credits allow, and
//! matches replies to requests in flight; and the end of everything outstanding to a node. Called by `hib` for credits,
//! replies and nodes, and by every part that accepts a request.

use super::peers::{InFlight, Waiting, WaitingForward};
use super::requests::{PendingRequest, RequestKind};
use super::send_queue::{SendQueue, WaitingElement};
use super::{Ended, Requester, reset_empty_ring};
use crate::config::Bug;
use crate::ctx::{Ctx, FollowUp};
use crate::keyed::Key;
use crate::loan::{Content, Loan};
use crate::numbered::ones;
use crate::rings::Way;
use crate::{LostStore, Notice};
use std::collections::VecDeque;
use telegraphos_wire::admin::Completion;
use telegraphos_wire::{Body, Class, ImportEpoch, NodeId, Packet, RemoteAddr, RemotePage, Status};

impl Requester {
    // ---- requests and elements that wait to be sent ----

    /// Appends a pending request to the send queue of its node, behind all earlier stores.
    pub(crate) fn submit(&mut self, ctx: &mut Ctx, node: NodeId, kind: RequestKind, body: Body) {
        let is_load = matches!(kind, RequestKind::Load { .. });
        let number = self.requests.insert(ctx, node, kind);
        let peer = &mut self.peers.table[usize::from(node)];
        if is_load && node != ctx.config.node {
            peer.unheard_since.get_or_insert(number);
        }
        peer.accept(Waiting::PendingRequest { number, content: self.bodies.put(body, None) });
        self.pump(ctx, node);
    }

    /// Appends a request of an operation to the send queue of its node.
    pub(crate) fn submit_part(&mut self, ctx: &mut Ctx, node: NodeId, operation: Key, offset: u64, content: Content) {
        let content = self.bodies.put(content.body, content.loan);
        self.peers.table[usize::from(node)].accept(Waiting::Part { operation, offset, content });
        self.pump(ctx, node);
    }

    /// Appends a request of this node to itself, with this tag, to the send queue of the home of its page. It leaves
    /// the node's own window, and a store counts as a waiting one of its import again.
    pub(crate) fn submit_forward(
        &mut self,
        ctx: &mut Ctx,
        home: NodeId,
        tag: u32,
        is_store: bool,
        mut forward: WaitingForward,
    ) {
        self.peers.pass_tag(ctx, tag);
        let import = self.peers.store_of(tag).filter(|_| is_store);
        if let Some(import) = import.and_then(|number| self.imports.get_mut(number)) {
            import.waiting += 1;
            self.pressure.waiting += 1;
            self.pressure.congest_if_full(ctx, import);
            forward.import = Some((import.number, import.opening));
        }
        self.peers.table[usize::from(home)].accept_forward(forward);
        self.pump(ctx, home);
    }

    /// Sends requests and elements that waited for credits, as far as the credits last.
    pub(crate) fn pump_credit_waiters(&mut self, ctx: &mut Ctx) {
        for node in self.peers.take_credit_waiters() {
            self.pump(ctx, node);
        }
    }

    /// Sends requests of this node to itself, if forwarded ones have left the window.
    pub(crate) fn pump_own(&mut self, ctx: &mut Ctx) {
        if std::mem::take(&mut self.peers.own_window_freed) {
            self.pump_requests(ctx, ctx.config.node);
        }
    }

    /// Sends requests and elements to a node, as far as the window, the receive credits and the link credits allow.
    pub(crate) fn pump(&mut self, ctx: &mut Ctx, node: NodeId) {
        if self.peers.table[usize::from(node)].has_nothing_to_send() {
            return;
        }
        self.pump_requests(ctx, node);
        self.pump_elements(ctx, node);
    }

    /// Sends requests to a node from both send queues, in the order of acceptance as far as their windows allow.
    fn pump_requests(&mut self, ctx: &mut Ctx, node: NodeId) {
        let own = node == ctx.config.node;
        loop {
            let peer = &mut self.peers.table[usize::from(node)];
            let shared = ctx.has(Bug::ForwardsShareWindow);
            let used = |window: u32| if shared { peer.window_used() } else { window };
            let waiting = peer.waiting.front().filter(|_| used(peer.outstanding) < ctx.config.outstanding);
            let forward = peer.forwards.front().filter(|_| used(peer.forwards_in_flight) < ctx.config.outstanding);
            // A copy that requests to become the home sends the request behind all its stores to the old home.
            let is_move = |waiting: &(u64, Waiting)| match &waiting.1 {
                Waiting::PendingRequest { content, .. } => matches!(content.body, Body::Move { .. }),
                _ => false,
            };
            let behind = |number: u64| peer.forwards.front().is_some_and(|(first, _)| *first < number);
            let waiting = waiting.filter(|waiting| !(is_move(waiting) && behind(waiting.0)));
            let forward = match (waiting, forward) {
                // All are sent, or wait for answers.
                (None, None) if peer.ring_waits.is_none() => return,
                (None, None) => return self.peers.ring_waits(ctx, node, false),
                // In the order of acceptance, as far as the windows allow.
                (Some(waiting), Some(forward)) => forward.0 < waiting.0,
                (waiting, _) => waiting.is_none(),
            };
            let way = if own { Some(Way::Own) } else { self.peers.may_send(ctx, node, Class::Request) };
            let Some(way) = way else { return };
            if forward {
                self.send_forward(ctx, node, way);
                continue;
            }
            let peer = &mut self.peers.table[usize::from(node)];
            let Some((_, waiting)) = peer.waiting.pop_front() else { return };
            if peer.waiting.is_empty() {
                reset_empty_ring(&mut peer.waiting);
            }
            let (body, loan, request) = match waiting {
                Waiting::Store { import, at, size, data } => {
                    let open = self.imports.get_mut(import);
                    // Waiting stores belong to the current epoch: the refusal that ends an epoch purges the waiting
                    // ones.
                    let epoch = ImportEpoch { import, epoch: open.as_ref().map_or(0, |open| open.epoch) };
                    let context = self.pressure.uncount(ctx, open, 1);
                    let body = Body::Write { at, context, epoch, size, data };
                    (body, None, InFlight::Store { import, epoch: epoch.epoch })
                }
                Waiting::Burst { import, page, generation, stores } => {
                    let (open, count) = (self.imports.get_mut(import), stores.len() as u16);
                    let epoch = ImportEpoch { import, epoch: open.as_ref().map_or(0, |open| open.epoch) };
                    let context = self.pressure.uncount(ctx, open, count.into());
                    let body = Body::WriteBurst { on: RemotePage { page, generation }, context, epoch, stores };
                    (body, None, InFlight::Burst { import, epoch: epoch.epoch, count })
                }
                Waiting::PendingRequest { number, content } => {
                    let (body, _) = self.bodies.take(content);
                    if !self.requests.table.contains(number) {
                        continue; // Timed out.
                    }
                    (body, None, InFlight::PendingRequest { number })
                }
                Waiting::Part { operation, offset, content } => {
                    let (body, loan) = self.bodies.take(content);
                    (body, loan, InFlight::Part { operation, offset })
                }
            };
            self.transmit(ctx, node, body, loan, request, way);
        }
    }

    /// Sends elements to a node while credits last, the imports in round-robin order.
    fn pump_elements(&mut self, ctx: &mut Ctx, node: NodeId) {
        while !self.peers.table[usize::from(node)].enqueuers.is_empty() {
            let own = node == ctx.config.node;
            let way = if own { Some(Way::Own) } else { self.peers.may_send(ctx, node, Class::Enqueue) };
            let Some(way) = way else { return };
            let Some(key) = self.send_queues.next(&mut self.peers.table[usize::from(node)]) else { return };
            self.send_element(ctx, node, key, way);
        }
    }

    /// Sends the first waiting element of a send queue. The caller has checked for a link credit and a receive credit.
    fn send_element(&mut self, ctx: &mut Ctx, node: NodeId, key: Key, way: Way) {
        let Some(send_queue) = self.send_queues.table.get_mut(key) else { return };
        let Some(WaitingElement { at, size, data, .. }) = send_queue.waiting.pop_front() else { return };
        if send_queue.waiting.is_empty() {
            reset_empty_ring(&mut send_queue.waiting);
        }
        send_queue.unacknowledged += 1;
        let (context, epoch) = (send_queue.context, send_queue.epoch);
        let import = send_queue.import.and_then(|number| self.imports.get_mut(number));
        self.pressure.uncount(ctx, import, 1);
        let after = self.peers.table[usize::from(node)].requests_sent;
        let body = Body::Enqueue { at, context, epoch, size, data, after };
        self.transmit(ctx, node, body, None, InFlight::Element { send_queue: key, epoch: epoch.epoch }, way);
    }

    /// Sends a request or an element, which is in flight from now on. The caller has checked for a credit of this way.
    fn transmit(&mut self, ctx: &mut Ctx, node: NodeId, body: Body, loan: Option<Loan>, request: InFlight, way: Way) {
        let target = self.peers.target(ctx, node);
        let tag = self.peers.take_tag(ctx, node, request);
        let packet = Packet { src: ctx.config.node, dst: node, tag, incarnation: ctx.incarnation, target, body };
        ctx.transmit_request(packet, loan, way);
    }

    /// Sends the oldest waiting request to the home of a page, or drops it if its import is in error.
    fn send_forward(&mut self, ctx: &mut Ctx, node: NodeId, way: Way) {
        let forwards = &mut self.peers.table[usize::from(node)].forwards;
        let Some((_, waiting)) = forwards.pop_front() else { return };
        if forwards.is_empty() {
            reset_empty_ring(forwards);
        }
        let WaitingForward { number, body, import, unconditional } = waiting;
        self.uncount_waiting_forward(ctx, import);
        let in_error = |(import, opening): (u16, u64)| {
            self.imports.get(import).is_some_and(|import| import.opening == opening && import.in_error)
        };
        if !unconditional && import.is_some_and(in_error) {
            return ctx.defer(FollowUp::ForwardDropped(number));
        }
        self.transmit(ctx, node, body, None, InFlight::Forward { number }, way);
    }

    /// Removes those of `numbers` (ascending) that wait to be sent to the home of a page, in one pass over its queue.
    /// Returns the removed ones.
    pub(crate) fn cancel_forwards(&mut self, ctx: &mut Ctx, home: NodeId, numbers: &[u64]) -> Vec<u64> {
        let mut cancelled = Vec::new();
        self.peers.table[usize::from(home)].forwards.retain(|(_, waiting)| {
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

    /// A request to the home of a page is sent or removed: uncounts it from the waiting stores of its import.
    fn uncount_waiting_forward(&mut self, ctx: &mut Ctx, import: Option<(u16, u64)>) {
        let Some((number, opening)) = import else { return };
        let import = self.imports.get_mut(number).filter(|import| import.opening == opening);
        self.pressure.uncount(ctx, import, 1);
    }

    // ---- replies ----

    /// Handles the reply to a request. Returns the result if a part above issued the request.
    pub(crate) fn answered(
        &mut self,
        ctx: &mut Ctx,
        request: InFlight,
        body: Body,
        loan: Option<Loan>,
    ) -> Option<Ended> {
        match (request, body) {
            (InFlight::Element { send_queue, epoch }, body) => {
                let status = if let Body::WriteAck { status } = body { status } else { Status::Invalid };
                self.element_finished(ctx, send_queue, epoch, status);
            }
            (InFlight::Store { import, epoch }, Body::WriteAck { status }) => {
                self.store_finished(ctx, import, epoch, status);
            }
            (InFlight::Burst { import, count, .. }, Body::WriteAck { status: Status::Ok }) => {
                self.finish_stores(ctx, import, count);
            }
            (InFlight::Burst { import, epoch, count }, body) => {
                let (status, performed) = match body {
                    Body::BurstRefused { status, performed } if !status.is_ok() => (status, performed),
                    // All of it counts as lost.
                    _ => (Status::Invalid, 0),
                };
                self.burst_refused(ctx, ImportEpoch { import, epoch }, count, performed, status);
            }
            // A store with a reply of the wrong kind counts as lost.
            (InFlight::Store { import, epoch }, _) => self.store_finished(ctx, import, epoch, Status::Invalid),
            (InFlight::PendingRequest { number }, body) => return self.pending_answered(ctx, number, body),
            (InFlight::Forward { number }, body) => return Some(Ended::Forward { number, answer: Ok(body) }),
            (InFlight::Part { operation, offset }, body) => {
                return Some(Ended::Part { operation, offset, answer: Ok(Content { body, loan }) });
            }
            // The request has ended without its answer.
            (InFlight::Abandoned(_), _) => {}
        }
        None
    }

    /// Handles the reply to a pending request; a reply of the wrong kind fails it.
    fn pending_answered(&mut self, ctx: &mut Ctx, number: Key, body: Body) -> Option<Ended> {
        let request = self.requests.take(number)?;
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
                return self.fail_request(ctx, request.node, kind, status);
            }
        }
        None
    }

    /// Fails a request that has been removed from the pending ones.
    fn fail_request(&mut self, ctx: &mut Ctx, node: NodeId, kind: RequestKind, status: Status) -> Option<Ended> {
        match kind {
            RequestKind::Load { token, import, size } => {
                self.fail_load(ctx, node, import, status);
                ctx.read_done(token, ones(size.into()));
            }
            RequestKind::Lookup { slot } => ctx.complete_status(slot, status),
            RequestKind::Reserve { opens } => self.reserve_answered(ctx, opens, Err(status)),
            RequestKind::Return { node, at } => self.receive_credits_returned(ctx, node, at),
            RequestKind::Replica(request) => return Some(Ended::Replica { request, status }),
        }
        None
    }

    /// Fails a pending request that has no reply.
    fn fail_pending(&mut self, ctx: &mut Ctx, number: Key, status: Status) -> Option<Ended> {
        let request = self.requests.take(number)?;
        self.fail_request(ctx, request.node, request.kind, status)
    }

    /// Fails the pending requests whose deadline has passed, and marks their nodes as silent.
    pub(crate) fn expire(&mut self, ctx: &mut Ctx) -> Vec<Ended> {
        let mut ended = Vec::new();
        while let Some(number) = self.requests.deadlines.take_due(ctx.now) {
            let load = match self.requests.table.get(number) {
                Some(PendingRequest { node, kind: RequestKind::Load { .. }, .. }) => Some(*node),
                _ => None,
            };
            if let Some(peer) = load.and_then(|node| self.peers.table.existing_mut(node)) {
                // Keys ascend with age.
                peer.silent |= peer.unheard_since.is_some_and(|first| number >= first);
            }
            ended.extend(self.fail_pending(ctx, number, Status::Timeout));
        }
        ended
    }

    /// Handles the acknowledgement or refusal of a store (or element) of this epoch of an import.
    fn store_finished(&mut self, ctx: &mut Ctx, number: u16, epoch: u32, status: Status) {
        let Some(import) = self.imports.get_mut(number) else { return };
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

    /// So many stores or elements of an import have been performed, or are lost with their node.
    fn finish_stores(&mut self, ctx: &mut Ctx, number: u16, count: u16) {
        let Some(import) = self.imports.get_mut(number) else { return };
        import.finished += u64::from(count);
        self.progressed(ctx, number);
    }

    /// Handles the refusal of a burst of `count` stores, of which `performed` were performed.
    fn burst_refused(&mut self, ctx: &mut Ctx, of: ImportEpoch, count: u16, performed: u16, status: Status) {
        let performed = performed.min(count - 1);
        self.finish_stores(ctx, of.import, performed);
        let later = if status == Status::Reset { status } else { Status::Cut };
        for refused in performed..count {
            let status = if refused == performed { status } else { later };
            self.store_finished(ctx, of.import, of.epoch, status);
        }
    }

    /// Handles the acknowledgement or refusal of an element.
    fn element_finished(&mut self, ctx: &mut Ctx, key: Key, epoch: u32, status: Status) {
        let Some(send_queue) = self.send_queues.table.get_mut(key) else { return };
        send_queue.unacknowledged = send_queue.unacknowledged.saturating_sub(1);
        if let Some(import) = send_queue.import {
            return self.store_finished(ctx, import, epoch, status);
        }
        if !status.is_ok() {
            // The import is closed, so the loss has no import to report it. Later elements are dropped as well, so that
            // none passes a lost one.
            let (node, dropped) = (send_queue.node, std::mem::take(&mut send_queue.waiting).len() as u32);
            self.pressure.waiting -= dropped;
            ctx.counters.dropped += u64::from(dropped) + 1;
            ctx.notice(Notice::LostStore(LostStore { node, import: None, status }));
        }
        self.end_send_queue(ctx, key);
    }

    // ---- the end of everything outstanding to a node ----

    /// Ends everything outstanding to a node that is down or behind a lost link. Returns the requests of parts above
    /// the requester.
    pub(crate) fn fail_peer(&mut self, ctx: &mut Ctx, node: NodeId, status: Status) -> Vec<Ended> {
        let in_flight = self.peers.take_all_in_flight(node);
        self.fail_outstanding(ctx, node, in_flight, status)
    }

    /// The same for a node that is up and has exceeded the time limit for answers. Its session continues: what it has
    /// not answered is still on its way, keeps its credits, and may be performed.
    pub(crate) fn abandon_peer(&mut self, ctx: &mut Ctx, node: NodeId) -> Vec<Ended> {
        let in_flight = self.peers.abandon(ctx, node);
        self.fail_outstanding(ctx, node, in_flight, Status::Timeout)
    }

    /// Fails the requests to a node that are waiting, and these, which were in flight, and kills its imports.
    fn fail_outstanding(
        &mut self,
        ctx: &mut Ctx,
        node: NodeId,
        in_flight: Vec<InFlight>,
        status: Status,
    ) -> Vec<Ended> {
        self.peers.ring_waits(ctx, node, false);
        let part = |operation, offset| Ended::Part { operation, offset, answer: Err(status) };
        let forward = |number| Ended::Forward { number, answer: Err(status) };
        let peer = &mut self.peers.table[usize::from(node)];
        peer.silent = false;
        peer.unheard_since = None;
        let (mut pending_requests, mut waiting) = (Vec::new(), Vec::new());
        peer.waiting.retain(|(_, w)| match w {
            Waiting::PendingRequest { number, .. } => {
                pending_requests.push(*number);
                false
            }
            Waiting::Part { operation, offset, .. } => {
                waiting.push(part(*operation, *offset));
                false
            }
            Waiting::Store { .. } | Waiting::Burst { .. } => true,
        });
        for (_, WaitingForward { number, import, .. }) in std::mem::take(&mut peer.forwards) {
            self.uncount_waiting_forward(ctx, import);
            waiting.push(forward(number));
        }
        // The waiting stores first: `lose_store` purges them with the first failure of their import.
        for number in self.imports.numbers(|import| import.node == node && import.issued > import.finished) {
            self.lose_store(ctx, node, number, status);
        }
        let mut ended = Vec::new();
        for request in in_flight {
            match request {
                InFlight::Element { send_queue, .. } => {
                    if let Some(send_queue) = self.send_queues.table.get_mut(send_queue) {
                        send_queue.unacknowledged = send_queue.unacknowledged.saturating_sub(1);
                        if let Some(number) = send_queue.import {
                            self.finish_stores(ctx, number, 1);
                        }
                    }
                }
                InFlight::Store { import, .. } => self.finish_stores(ctx, import, 1),
                InFlight::Burst { import, count, .. } => self.finish_stores(ctx, import, count),
                InFlight::PendingRequest { number } => ended.extend(self.fail_pending(ctx, number, status)),
                InFlight::Part { operation, offset } => ended.push(part(operation, offset)),
                InFlight::Forward { number } => ended.push(forward(number)),
                InFlight::Abandoned(_) => {}
            }
        }
        ended.extend(waiting);
        for number in pending_requests {
            ended.extend(self.fail_pending(ctx, number, status));
        }
        // The elements of closed imports are dropped; a node that is up gets its receive credits back.
        for SendQueue { waiting, queue, .. } in self.send_queues.take_closed(node) {
            let dropped = waiting.len() as u32;
            self.pressure.waiting -= dropped;
            ctx.counters.dropped += u64::from(dropped);
            self.return_receive_credits(ctx, node, queue);
        }
        self.kill_imports(ctx, node, status);
        ended
    }

    // ---- receive credits ----

    /// Requests receive credits for one more import of a queue. The reply completes the admin slot.
    pub(super) fn open_queue(&mut self, ctx: &mut Ctx, slot: u32, number: u16) {
        let epoch = self.imports.epoch_of(number);
        let Some(import) = self.imports.get_mut(number) else { return };
        let (node, queue, context) = (import.node, import.address(0), import.context);
        // Send queues of closed imports remain until the receivers have acknowledged their elements; this bounds their
        // number.
        if self.send_queues.table.len() >= 2 * usize::from(ctx.config.imports) {
            return self.reserve_answered(ctx, (slot, number), Err(Status::NoSpace));
        }
        import.send_queue = Some(self.send_queues.table.insert(SendQueue {
            node,
            context,
            epoch,
            queue,
            import: Some(number),
            receive_credits: None,
            unacknowledged: 0,
            waiting: VecDeque::new(),
            has_turn: false,
        }));
        if let Err(status) = self.peers.reachable(ctx, node) {
            return self.reserve_answered(ctx, (slot, number), Err(status));
        }
        self.reserve(ctx, node, queue, RequestKind::Reserve { opens: (slot, number) });
    }

    /// Sends a queue's node the number of imports of this node.
    fn reserve(&mut self, ctx: &mut Ctx, node: NodeId, at: RemoteAddr, kind: RequestKind) {
        let imports = self.send_queues.count_to(&self.imports, node, &at);
        self.submit(ctx, node, kind, Body::Reserve { at, imports });
    }

    /// Handles the reply to a request of receive credits, and completes the admin slot. A refusal removes the import.
    fn reserve_answered(&mut self, ctx: &mut Ctx, opens: (u32, u16), answer: Result<u32, Status>) {
        let (slot, number) = opens;
        // Accept at most the credits that this board itself grants to an import: the receiver's reply must not decide
        // how much memory waits here.
        let most = if ctx.has(Bug::AcceptAnyHolds) { u32::MAX } else { ctx.config.hold };
        let import = self.imports.get(number);
        let dead = import.and_then(|import| import.error.filter(|_| import.dead));
        let status = match (answer, dead) {
            (Err(status), _) | (Ok(_), Some(status)) => status,
            (Ok(credits), None) => {
                if let Some(send_queue) = import.and_then(|import| self.send_queues.of(import)) {
                    send_queue.receive_credits = Some(credits.clamp(1, most));
                }
                return ctx.complete_status(slot, Status::Ok);
            }
        };
        // The driver has no completion for the import yet, so no error is latched.
        if let Some(import) = import {
            self.pressure.waiting -= self.send_queues.drop_waiting(import);
            self.peers.unmap(import);
        }
        self.remove_import(ctx, number);
        ctx.complete_status(slot, status);
    }

    /// Removes a send queue that has no import and no elements, and returns its receive credits.
    pub(super) fn end_send_queue(&mut self, ctx: &mut Ctx, key: Key) {
        if let Some(send_queue) = self.send_queues.take_ended(key) {
            self.return_receive_credits(ctx, send_queue.node, send_queue.queue);
        }
    }

    /// Sends the queue's node the number of imports that are left, so that it releases receive credits. Absolute
    /// numbers make lost or stale replies harmless.
    fn return_receive_credits(&mut self, ctx: &mut Ctx, node: NodeId, at: RemoteAddr) {
        // One such request is in flight at a time, however fast imports are opened and closed; the next one covers all
        // changes made meanwhile.
        if let Some(again) = self.send_queues.credit_returns.get_mut(&(node, at.page, at.generation)) {
            *again = true;
        } else if self.peers.reachable(ctx, node).is_ok() {
            self.send_queues.credit_returns.insert((node, at.page, at.generation), false);
            self.reserve(ctx, node, at, RequestKind::Return { node, at });
        }
    }

    /// Handles the end of a return of receive credits, successful or not. Sends another one if the number has changed.
    fn receive_credits_returned(&mut self, ctx: &mut Ctx, node: NodeId, at: RemoteAddr) {
        if self.send_queues.credit_returns.remove(&(node, at.page, at.generation)) == Some(true) {
            self.return_receive_credits(ctx, node, at);
        }
    }
}
