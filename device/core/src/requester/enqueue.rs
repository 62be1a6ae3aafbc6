// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notification queues at the senders: elements wait in a send queue of their import, so that a full queue delays no
//! other queue and no other traffic (SPEC items 2, 3, 7, 13; E12; `docs/queues.md`).
//!
//! An element is sent when all requests that were accepted for its node before it have been sent, and its import has a
//! receive credit left. The packet carries the number of requests sent, and the receiver performs the element after
//! those (SPEC I8).

use super::send_queue::{SendQueue, WaitingElement};
use super::{InFlight, RequestKind, Requester};
use crate::config::Bug;
use crate::ctx::Ctx;
use crate::keyed::Key;
use crate::{LostStore, Notice};
use std::collections::VecDeque;
use telegraphos_wire::{Body, Class, NodeId, Packet, RemoteAddr, Status};

impl Requester {
    /// The send queue of an open import; `None` if it is not the import of a queue.
    fn send_queue(&mut self, number: u16) -> Option<&mut SendQueue> {
        let send_queue = self.open_import(number)?.send_queue?;
        self.send_queues.get_mut(send_queue)
    }

    /// Sets the epoch of an import's elements.
    pub(crate) fn begin_epoch_of_queue(&mut self, number: u16, epoch: u32) {
        if let Some(send_queue) = self.send_queue(number) {
            send_queue.epoch.epoch = epoch;
        }
    }

    /// Returns whether an import waits for its receive credits.
    pub(crate) fn is_opening(&self, number: u16) -> bool {
        let send_queue = self.open_import(number).and_then(|import| self.send_queues.get(import.send_queue?));
        send_queue.is_some_and(|send_queue| send_queue.receive_credits.is_none())
    }

    /// Drops the waiting elements of an import and returns their number.
    pub(crate) fn drop_waiting(&mut self, number: u16) -> u32 {
        self.send_queue(number).map_or(0, |send_queue| std::mem::take(&mut send_queue.waiting).len() as u32)
    }

    /// Appends an element to the send queue of its import.
    pub(crate) fn accept_element(
        &mut self,
        ctx: &mut Ctx,
        node: NodeId,
        number: u16,
        at: RemoteAddr,
        size: u8,
        data: u64,
    ) {
        let Some(key) = self.open_import(number).and_then(|import| import.send_queue) else { return };
        let Some(send_queue) = self.send_queues.get_mut(key) else { return };
        let peer = &mut self.peers[usize::from(node)];
        let behind = peer.accepted();
        if !send_queue.has_turn {
            send_queue.has_turn = true;
            peer.enqueuers.push_back(key);
        }
        send_queue.waiting.push_back(WaitingElement { behind, at, size, data });
        ctx.counters.enqueues += 1;
    }

    /// Sends elements to a node while credits last, the imports in round-robin order.
    pub(crate) fn pump_elements(&mut self, ctx: &mut Ctx, node: NodeId) {
        let own = node == ctx.config.node;
        let mut blocked = 0;
        loop {
            if blocked >= self.peers[usize::from(node)].enqueuers.len() {
                return;
            }
            if !own && !self.may_send(ctx, node, Class::Enqueue) {
                return;
            }
            let peer = &mut self.peers[usize::from(node)];
            let Some(key) = peer.enqueuers.pop_front() else { return };
            let Some(send_queue) = self.send_queues.get_mut(key) else { continue };
            let Some(behind) = send_queue.waiting.front().map(|waiting| waiting.behind) else {
                send_queue.has_turn = false;
                continue;
            };
            let room = send_queue.receive_credits.is_some_and(|credits| send_queue.unacknowledged < credits);
            peer.enqueuers.push_back(key);
            if !room || !peer.has_sent(behind) {
                blocked += 1;
                continue;
            }
            blocked = 0;
            self.send_element(ctx, node, key);
        }
    }

    /// Sends the first waiting element of a send queue. The caller has checked for a link credit and a receive credit.
    fn send_element(&mut self, ctx: &mut Ctx, node: NodeId, key: Key) {
        let Some(send_queue) = self.send_queues.get_mut(key) else { return };
        let Some(WaitingElement { at, size, data, .. }) = send_queue.waiting.pop_front() else { return };
        if send_queue.waiting.is_empty() {
            super::reset_empty_ring(&mut send_queue.waiting);
        }
        send_queue.unacknowledged += 1;
        let (import, context, epoch) = (send_queue.import, send_queue.context, send_queue.epoch);
        match import {
            Some(import) => {
                self.uncount_waiting(ctx, import);
            }
            None => self.waiting_total -= 1,
        }
        let target = self.target(ctx, node);
        let peer = &mut self.peers[usize::from(node)];
        peer.elements_in_flight += 1;
        let after = peer.requests_sent;
        let tag = self.take_tag(ctx, node, InFlight::Element { send_queue: key, epoch: epoch.epoch });
        let body = Body::Enqueue { at, context, epoch, size, data, after };
        let packet = Packet { src: ctx.config.node, dst: node, tag, incarnation: ctx.incarnation, target, body };
        ctx.transmit_request(packet);
    }

    /// Handles the acknowledgement or refusal of an element.
    pub(crate) fn element_finished(&mut self, ctx: &mut Ctx, key: Key, epoch: u32, status: Status) {
        let Some(send_queue) = self.send_queues.get_mut(key) else { return };
        send_queue.unacknowledged = send_queue.unacknowledged.saturating_sub(1);
        if let Some(import) = send_queue.import {
            return self.store_finished(ctx, import, epoch, status);
        }
        if !status.is_ok() {
            // The import is closed, so the loss has no import to report it. Later elements are dropped as well, so that
            // none passes a lost one.
            let (node, dropped) = (send_queue.node, std::mem::take(&mut send_queue.waiting).len() as u32);
            self.waiting_total -= dropped;
            ctx.counters.dropped += u64::from(dropped) + 1;
            ctx.notice(Notice::LostStore(LostStore { node, import: None, status }));
        }
        self.end_send_queue(ctx, key);
    }

    /// An element in flight is lost with its node. Returns its import, if that is open.
    pub(crate) fn element_lost(&mut self, key: Key) -> Option<u16> {
        let send_queue = self.send_queues.get_mut(key)?;
        send_queue.unacknowledged = send_queue.unacknowledged.saturating_sub(1);
        send_queue.import
    }

    /// Detaches a send queue from its closed import. Its elements are still sent.
    pub(crate) fn detach_send_queue(&mut self, ctx: &mut Ctx, key: Key) {
        if let Some(send_queue) = self.send_queues.get_mut(key) {
            send_queue.import = None;
        }
        self.end_send_queue(ctx, key);
    }

    /// Removes a send queue that has no import and no elements, and returns its receive credits.
    fn end_send_queue(&mut self, ctx: &mut Ctx, key: Key) {
        let done = |send_queue: &&SendQueue| {
            send_queue.import.is_none() && send_queue.waiting.is_empty() && send_queue.unacknowledged == 0
        };
        if self.send_queues.get(key).as_ref().is_some_and(done) {
            if let Some(send_queue) = self.send_queues.remove(key) {
                self.return_receive_credits(ctx, send_queue.node, send_queue.queue);
            }
        }
    }

    /// Removes the send queues of closed imports to a node that is down or silent, drops their elements, and returns
    /// their receive credits to a node that is up.
    pub(crate) fn end_send_queues_to(&mut self, ctx: &mut Ctx, node: NodeId) {
        let ends = |send_queue: &SendQueue| send_queue.node == node && send_queue.import.is_none();
        let ended: Vec<Key> = self.send_queues.iter().filter(|(_, s)| ends(s)).map(|(key, _)| key).collect();
        let ended: Vec<SendQueue> = ended.into_iter().filter_map(|key| self.send_queues.remove(key)).collect();
        for SendQueue { waiting, queue, .. } in ended {
            let dropped = waiting.len() as u32;
            self.waiting_total -= dropped;
            ctx.counters.dropped += u64::from(dropped);
            self.return_receive_credits(ctx, node, queue);
        }
    }

    /// Number of elements of an import in flight.
    pub(crate) fn elements_in_flight(&self, import: u16) -> u32 {
        let send_queue = self.open_import(import).and_then(|import| self.send_queues.get(import.send_queue?));
        send_queue.map_or(0, |send_queue| send_queue.unacknowledged)
    }

    // ---- receive credits ----

    /// Number of send queues of this node to the queue at `at`, of open and closed imports.
    fn send_queues_to(&self, node: NodeId, at: &RemoteAddr) -> u32 {
        let dead = |send_queue: &SendQueue| {
            let import = send_queue.import.and_then(|number| self.open_import(number));
            import.is_some_and(|import| import.dead)
        };
        let all = self.send_queues.iter().map(|(_, send_queue)| send_queue);
        all.filter(|send_queue| send_queue.node == node && send_queue.queue == *at && !dead(send_queue)).count() as u32
    }

    /// Requests receive credits for one more import of a queue. The reply completes the admin slot.
    pub(crate) fn open_queue(&mut self, ctx: &mut Ctx, slot: u32, number: u16) {
        let Some(import) = self.open_import(number) else { return };
        let (node, at, context) = (import.node, import.address(0), import.context);
        // Send queues of closed imports remain until the receivers have acknowledged their elements; this bounds their
        // number.
        if self.send_queues.len() >= 2 * usize::from(ctx.config.imports) {
            return self.reserve_answered(ctx, (slot, number), Err(Status::NoSpace));
        }
        let send_queue = SendQueue {
            node,
            context,
            epoch: self.epoch_of(number),
            queue: at,
            import: Some(number),
            receive_credits: None,
            unacknowledged: 0,
            waiting: VecDeque::new(),
            has_turn: false,
        };
        let key = self.send_queues.insert(send_queue);
        if let Some(import) = self.import(number) {
            import.send_queue = Some(key);
        }
        if let Err(status) = self.reachable(ctx, node) {
            return self.reserve_answered(ctx, (slot, number), Err(status));
        }
        let imports = self.send_queues_to(node, &at);
        self.submit(ctx, node, RequestKind::Reserve { opens: (slot, number) }, Body::Reserve { at, imports });
    }

    /// Handles the reply to a request of receive credits, and completes the admin slot. A refusal removes the import.
    pub(crate) fn reserve_answered(&mut self, ctx: &mut Ctx, opens: (u32, u16), answer: Result<u32, Status>) {
        let (slot, number) = opens;
        // Accept at most the credits that this board itself grants to an import: the receiver's reply must not decide
        // how much memory waits here.
        let most = if ctx.has(Bug::AcceptAnyHolds) { u32::MAX } else { ctx.config.hold };
        let dead = self.open_import(number).and_then(|import| import.error.filter(|_| import.dead));
        let status = match (answer, dead) {
            (Err(status), _) | (Ok(_), Some(status)) => status,
            (Ok(credits), None) => {
                if let Some(send_queue) = self.send_queue(number) {
                    send_queue.receive_credits = Some(credits.clamp(1, most));
                }
                return ctx.complete_status(slot, Status::Ok);
            }
        };
        // The driver has no completion for the import yet, so no error is latched.
        let waiting = self.drop_waiting(number);
        self.waiting_total -= waiting;
        self.unmap_import(number);
        self.remove_import(ctx, number);
        ctx.complete_status(slot, status);
    }

    /// Sends the queue's node the number of imports that are left, so that it releases receive credits. Absolute
    /// numbers make lost or stale replies harmless.
    pub(crate) fn return_receive_credits(&mut self, ctx: &mut Ctx, node: NodeId, at: RemoteAddr) {
        // One such request is in flight at a time, however fast imports are opened and closed; the next one covers all
        // changes made meanwhile.
        if let Some(again) = self.credit_returns.get_mut(&(node, at.page, at.generation)) {
            *again = true;
        } else if self.reachable(ctx, node).is_ok() {
            self.credit_returns.insert((node, at.page, at.generation), false);
            let imports = self.send_queues_to(node, &at);
            self.submit(ctx, node, RequestKind::Return { node, at }, Body::Reserve { at, imports });
        }
    }

    /// Handles the end of a return of receive credits, successful or not. Sends another one if the number has changed.
    pub(crate) fn receive_credits_returned(&mut self, ctx: &mut Ctx, node: NodeId, at: RemoteAddr) {
        if self.credit_returns.remove(&(node, at.page, at.generation)) == Some(true) {
            self.return_receive_credits(ctx, node, at);
        }
    }
}
