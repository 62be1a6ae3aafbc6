// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is sent, in the order of acceptance, as far as windows and credits allow; and the replies to it.

use super::{InFlight, RequestKind, TAG_INDEX_BITS, Waiting, WaitingForward, emptied};
use crate::config::Bug;
use crate::ctx::ones;
use crate::hib::Hib;
use crate::{LostStore, Notice};
use telegraphos_wire::admin::Completion;
use telegraphos_wire::{Body, Class, ImportEpoch, NodeId, Packet, Status};

impl Hib {
    /// Sends what has waited for credits, as far as they reach.
    pub(crate) fn pump_short(&mut self) {
        for node in std::mem::take(&mut self.requester.short) {
            self.requester.peers[usize::from(node)].short = false;
            self.pump(node);
        }
    }

    /// Whether a packet of this class may be sent to another node now; if not, it waits for credits. Each node that is
    /// present has a share of them that the others cannot hold, however long they take (`Shares::half_guaranteed`).
    pub(crate) fn has_credit(&mut self, node: NodeId, class: Class) -> bool {
        if !self.ctx.link.is_up() {
            return false;
        }
        let peer = &mut self.requester.peers[usize::from(node)];
        let unanswered = if class == Class::Enqueue { peer.elements } else { peer.unanswered() };
        let any = self.ctx.has(Bug::ShareAllCredits) && self.ctx.link.has_credit(class);
        let admitted = any || self.ctx.link.admits(class, unanswered) && !self.ctx.has(Bug::ShareAllCredits);
        if !admitted && !std::mem::replace(&mut peer.short, true) {
            self.requester.short.push_back(node);
        }
        admitted
    }

    /// Sends what waits for the own window, if requests that were passed on have left it.
    pub(crate) fn pump_own(&mut self) {
        let own = &self.requester.peers[usize::from(self.ctx.config.node)];
        if !own.waiting.is_empty() && own.outstanding < self.ctx.config.outstanding {
            self.pump_requests(self.ctx.config.node);
        }
    }

    /// Sends what the window of outstanding requests, the holds of queues and the credits allow.
    pub(crate) fn pump(&mut self, node: NodeId) {
        self.pump_requests(node);
        self.pump_elements(node);
    }

    fn pump_requests(&mut self, node: NodeId) {
        let own = node == self.ctx.config.node;
        loop {
            let peer = &mut self.requester.peers[usize::from(node)];
            let shared = self.ctx.has(Bug::ForwardsShareWindow);
            let used = |window: u32| if shared { peer.unanswered() } else { window };
            let waiting = peer.waiting.front().filter(|_| used(peer.outstanding) < self.ctx.config.outstanding);
            let forward = peer.forwards.front().filter(|_| used(peer.forwarded) < self.ctx.config.outstanding);
            // A copy that asks for a page does so behind all its stores to it.
            let asks = |waiting: &(u64, Waiting)| match &waiting.1 {
                Waiting::PendingRequest { body, .. } => matches!(**body, Body::Move { .. }),
                _ => false,
            };
            let behind = |number: u64| peer.forwards.front().is_some_and(|(first, _)| *first < number);
            let waiting = waiting.filter(|waiting| !(asks(waiting) && behind(waiting.0)));
            let forward = match (waiting, forward) {
                (None, None) => return,
                // In the order of acceptance as far as their windows allow.
                (Some(waiting), Some(forward)) => forward.0 < waiting.0,
                (waiting, _) => waiting.is_none(),
            };
            if !own && !self.has_credit(node, Class::Request) {
                return;
            }
            if forward {
                self.send_forward(node);
                continue;
            }
            let peer = &mut self.requester.peers[usize::from(node)];
            let Some((_, waiting)) = peer.waiting.pop_front() else { return };
            if peer.waiting.is_empty() {
                emptied(&mut peer.waiting);
            }
            let (body, sent) = match waiting {
                Waiting::Store { import, at, size, data } => {
                    let context = self.left_queue(import);
                    // What waits is of the present epoch: a refusal, which comes before another one, has left nothing
                    // waiting.
                    let epoch = self.epoch_of(import);
                    (Body::Write { at, context, epoch, size, data }, InFlight::Store { import, epoch: epoch.epoch })
                }
                Waiting::PendingRequest { number, body } => {
                    if !self.requester.pending_requests.contains_key(&number) {
                        continue; // It has timed out already.
                    }
                    (*body, InFlight::PendingRequest { number })
                }
                Waiting::Part { operation, offset, body } => (*body, InFlight::Part { operation, offset }),
            };
            self.requester.peers[usize::from(node)].outstanding += 1;
            self.send_request(node, body, sent);
        }
    }

    /// Sends a request. The caller has seen a credit for it.
    fn send_request(&mut self, node: NodeId, body: Body, sent: InFlight) {
        if node != self.ctx.config.node {
            let spent = self.ctx.link.spend(Class::Request);
            debug_assert!(spent, "the caller has seen a credit");
        }
        let peer = &mut self.requester.peers[usize::from(node)];
        peer.requests = peer.requests.wrapping_add(1);
        let target = self.target(node);
        let tag = self.requester.take_tag(node, sent);
        let packet =
            Packet { src: self.ctx.config.node, dst: node, tag, incarnation: self.ctx.incarnation, target, body };
        self.ctx.transmit(packet);
    }

    /// Sends the oldest request for the home of a page that waits, if anybody still waits for it.
    fn send_forward(&mut self, node: NodeId) {
        let forwards = &mut self.requester.peers[usize::from(node)].forwards;
        let Some((_, waiting)) = forwards.pop_front() else { return };
        if forwards.is_empty() {
            emptied(forwards);
        }
        let WaitingForward { number, body, import } = waiting;
        self.left_send_queue(import);
        // Behind a lost store of its import it must not be made.
        let cut = |(import, opening): (u16, u64)| {
            self.requester.open_import(import).is_some_and(|import| import.opening == opening && import.cut)
        };
        let cut = import.is_some_and(cut);
        if self.drop_forward(number, cut) {
            return;
        }
        self.requester.peers[usize::from(node)].forwarded += 1;
        self.send_request(node, body, InFlight::Forward { number });
    }

    /// A store of this node's processors to a copy here waits for its home from now on: it is one of its import's
    /// waiting stores.
    pub(crate) fn enter_send_queue(&mut self, tag: u32) -> Option<(u16, u64)> {
        let congest_at = self.ctx.config.congest_at;
        let number = self.store_of(tag)?;
        let import = self.requester.import(number)?;
        let opening = import.opening;
        import.waiting += 1;
        self.requester.waiting_total += 1;
        if let Some(import) =
            self.requester.import(number).filter(|import| import.waiting >= congest_at && !import.congested)
        {
            import.congested = true;
            self.stopped(number, true);
        }
        Some((number, opening))
    }

    pub(super) fn left_send_queue(&mut self, import: Option<(u16, u64)>) {
        let Some((number, opening)) = import else { return };
        match self.requester.open_import(number).filter(|import| import.opening == opening) {
            Some(_) => {
                self.left_queue(number);
            }
            None => self.requester.waiting_total -= 1,
        }
    }

    /// The import of this node's own store with that tag.
    fn store_of(&self, tag: u32) -> Option<u16> {
        let index = tag & ((1 << TAG_INDEX_BITS) - 1);
        match self.requester.sent.get(index as usize).copied().flatten() {
            Some((t, _, InFlight::Store { import, .. })) if t == tag => Some(import),
            _ => None,
        }
    }

    /// A request of this node to itself has been passed on to a home: its place in the own window is free.
    pub(crate) fn pass_tag(&mut self, tag: u32) {
        let own = &mut self.requester.peers[usize::from(self.ctx.config.node)];
        if !self.ctx.has(Bug::ForwardsShareWindow) && self.requester.passed.insert(tag) {
            own.outstanding = own.outstanding.saturating_sub(1);
        }
    }

    /// A store of `import` leaves the waiting queue; ends the import's congestion when few are left.
    pub(crate) fn left_queue(&mut self, number: u16) -> u16 {
        self.requester.waiting_total -= 1;
        let clear_at = self.ctx.config.clear_at;
        let Some(import) = self.requester.import(number) else { return 0 };
        import.waiting -= 1;
        let context = import.context;
        if import.congested && import.waiting <= clear_at {
            import.congested = false;
            let free = !import.throttled;
            if free {
                self.stopped(number, false);
            }
        }
        context
    }

    /// The store with this tag is in this node's copy: context, word of its status page, and count.
    pub(crate) fn count_taken(&mut self, tag: u32) -> Option<(u16, u32, u64)> {
        let import = self.store_of(tag)?;
        let import = self.requester.import(import)?;
        let (word, count) = import.taken.as_mut()?;
        *count += 1;
        Some((import.context, *word, *count))
    }

    // ---- replies ----

    pub(crate) fn reply(&mut self, packet: Packet) {
        if packet.incarnation != self.ctx.incarnation && packet.src != self.ctx.config.node {
            return; // An answer to an earlier life.
        }
        if let Body::CopyAck { status } = packet.body {
            return self.copy_acknowledged(packet.src, packet.tag, status);
        }
        let Some(sent) = self.requester.release_tag(packet.tag, packet.src) else { return };
        let passed = self.requester.passed.remove(&packet.tag) && packet.src == self.ctx.config.node;
        let peer = &mut self.requester.peers[usize::from(packet.src)];
        match sent {
            InFlight::Element { .. } => peer.elements = peer.elements.saturating_sub(1),
            InFlight::Forward { .. } => peer.forwarded = peer.forwarded.saturating_sub(1),
            _ if passed => {}
            _ => peer.outstanding = peer.outstanding.saturating_sub(1),
        }
        match (sent, packet.body) {
            (InFlight::Element { opening, epoch }, body) => {
                let status = if let Body::WriteAck { status } = body { status } else { Status::Invalid };
                self.element_finished(opening, epoch, status);
            }
            (InFlight::Store { import, epoch }, Body::WriteAck { status }) => {
                self.store_finished(import, epoch, status);
            }
            (InFlight::PendingRequest { number }, body) => self.answered(number, body),
            (InFlight::Forward { number }, body) => self.forward_answered(number, body),
            (InFlight::Part { operation, offset }, body) => self.part_answered(operation, offset, body),
            // A store that is answered with something else counts as lost.
            (InFlight::Store { import, epoch }, _) => self.store_finished(import, epoch, Status::Invalid),
        }
        self.pump(packet.src);
    }

    /// A question has its answer, or one of another kind: then it has failed.
    fn answered(&mut self, number: u64, body: Body) {
        let Some(asked) = self.requester.pending_requests.get(&number).map(|request| request.asked.clone()) else {
            return;
        };
        match (asked, body) {
            (RequestKind::Load { token, size, .. }, Body::ReadReply { status: Status::Ok, data }) => {
                self.take_pending(number);
                self.ctx.read_done(token, data & ones(size.into()));
            }
            (RequestKind::Reserve { opens }, Body::ReserveReply { status: Status::Ok, holds }) => {
                self.take_pending(number);
                self.reserved(opens, Ok(holds));
            }
            (RequestKind::Return { node, at }, _) => {
                self.take_pending(number);
                self.holds_returned(node, at);
            }
            (
                RequestKind::Lookup { slot },
                Body::LookupReply { status: Status::Ok, page, count, length, generation, rights, width },
            ) => {
                self.take_pending(number);
                let completion = Completion {
                    index: page,
                    count,
                    generation,
                    length,
                    rights: u32::from(rights.0),
                    width: u32::from(width),
                    ..Completion::of(0, Status::Ok)
                };
                self.ctx.complete(slot, completion);
            }
            // What follows fills the copy, or says who the home is.
            (RequestKind::Join { page, source }, Body::WriteAck { status: Status::Ok }) => {
                self.take_pending(number);
                self.join_accepted(page, source);
            }
            (RequestKind::Move { .. }, Body::WriteAck { status: Status::Ok }) => {
                self.take_pending(number);
            }
            (RequestKind::Keep { page, source, packet }, Body::WriteAck { status: Status::Ok }) => {
                self.take_pending(number);
                self.kept(page, source, packet, Status::Ok);
            }
            (_, body) => {
                let status = match body {
                    Body::ReadReply { status, .. }
                    | Body::LookupReply { status, .. }
                    | Body::ReserveReply { status, .. }
                    | Body::WriteAck { status } => status,
                    _ => Status::Invalid,
                };
                self.fail_pending(number, if status.is_ok() { Status::Invalid } else { status });
            }
        }
    }

    /// A store (or element) of this epoch of an import has been acknowledged or refused.
    pub(crate) fn store_finished(&mut self, number: u16, epoch: u32, status: Status) {
        let Some(import) = self.requester.import(number) else { return };
        import.finished += 1;
        let node = import.node;
        if !status.is_ok() && import.epoch == epoch {
            let first = !std::mem::replace(&mut import.refused, true);
            self.lose(node, number, status, first);
            if self.ctx.has(Bug::PassLostStore) {
                self.begin_epoch(number);
            }
        } else if !status.is_ok() {
            // Its epoch has been acknowledged as lost: what is issued now does not come behind it.
            self.ctx.counters.dropped += 1;
            self.ctx.notice(Notice::LostStore(LostStore { node, import: Some(number), status }));
        }
        self.progressed(number);
    }

    /// What identifies stores of an open import at their receiver.
    pub(crate) fn epoch_of(&self, number: u16) -> ImportEpoch {
        ImportEpoch { import: number, epoch: self.requester.open_import(number).map_or(0, |import| import.epoch) }
    }

    /// The stores of an import do not belong to its earlier ones any more.
    pub(super) fn begin_epoch(&mut self, number: u16) {
        self.requester.epochs = self.requester.epochs.wrapping_add(1);
        let epoch = self.requester.epochs;
        if let Some(import) = self.requester.import(number) {
            (import.epoch, import.refused) = (epoch, false);
        }
        self.begin_epoch_of_queue(number, epoch);
    }
}
