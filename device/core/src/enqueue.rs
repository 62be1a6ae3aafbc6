// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notification queues at their senders: elements wait in a send queue of their import, so that a full queue holds up
//! no other, and nothing but elements (SPEC items 2, 3, 7, 13; E12; `docs/queues.md`).
//!
//! An element is sent when all requests that were accepted for its node before it have been sent, and fewer than `hold`
//! elements of its import are unacknowledged; the packet says how many requests have been sent, and the receiver
//! performs it after them (SPEC I8).

use crate::config::Bug;
use crate::hib::Hib;
use crate::requester::{InFlight, RequestKind};
use crate::{LostStore, Notice};
use std::collections::VecDeque;
use telegraphos_wire::{Body, Class, ImportEpoch, NodeId, Packet, RemoteAddr, Status};

/// An accepted enqueue that has not been sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    /// Requests that its node had accepted before.
    behind: u64,
    at: RemoteAddr,
    size: u8,
    data: u64,
}

/// The elements of one import of a queue. They outlive it: closing an import waits for no receiver, and what was
/// accepted still goes out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SendQueue {
    node: NodeId,
    context: u16,
    queue: RemoteAddr,
    /// The import, while it is open.
    import: Option<u16>,
    /// What identifies its elements at the queue's node.
    epoch: ImportEpoch,
    /// Reserved at the queue's node; none while the import is being opened.
    hold: Option<u32>,
    unacknowledged: u32,
    waiting: VecDeque<Waiting>,
}

impl Hib {
    /// The send queue of an open import of a queue.
    fn send_queue(&mut self, number: u16) -> Option<&mut SendQueue> {
        let opening = self.requester.open_import(number).filter(|import| import.queue)?.opening;
        self.requester.send_queues.get_mut(&opening)
    }

    /// An import has another epoch.
    pub(crate) fn begin_epoch_of_queue(&mut self, number: u16, epoch: u32) {
        if let Some(send_queue) = self.send_queue(number) {
            send_queue.epoch.epoch = epoch;
        }
    }

    /// Whether an import waits for its hold slots.
    pub(crate) fn is_opening(&self, number: u16) -> bool {
        let send_queue =
            self.requester.open_import(number).and_then(|import| self.requester.send_queues.get(&import.opening));
        send_queue.is_some_and(|send_queue| send_queue.hold.is_none())
    }

    /// Drops what an import has not sent; how many elements.
    pub(crate) fn drop_waiting(&mut self, number: u16) -> u32 {
        self.send_queue(number).map_or(0, |send_queue| std::mem::take(&mut send_queue.waiting).len() as u32)
    }

    pub(crate) fn accept_element(&mut self, node: NodeId, number: u16, at: RemoteAddr, size: u8, data: u64) {
        let Some(opening) = self.requester.open_import(number).map(|import| import.opening) else { return };
        let peer = &mut self.requester.peers[usize::from(node)];
        let behind = peer.accepted();
        if !peer.enqueuers.contains(&opening) {
            peer.enqueuers.push_back(opening);
        }
        if let Some(send_queue) = self.requester.send_queues.get_mut(&opening) {
            send_queue.waiting.push_back(Waiting { behind, at, size, data });
        }
        self.ctx.counters.enqueues += 1;
    }

    /// Sends elements for a node, the imports in turns.
    pub(crate) fn pump_elements(&mut self, node: NodeId) {
        let own = node == self.ctx.config.node;
        let mut in_vain = 0;
        loop {
            let peer = &mut self.requester.peers[usize::from(node)];
            if in_vain >= peer.enqueuers.len() {
                return;
            }
            if !own && !self.has_credit(node, Class::Enqueue) {
                return;
            }
            let peer = &mut self.requester.peers[usize::from(node)];
            let Some(opening) = peer.enqueuers.pop_front() else { return };
            let Some(send_queue) = self.requester.send_queues.get(&opening) else { continue };
            let Some(behind) = send_queue.waiting.front().map(|waiting| waiting.behind) else { continue };
            let room = send_queue.hold.is_some_and(|hold| send_queue.unacknowledged < hold);
            let peer = &mut self.requester.peers[usize::from(node)];
            peer.enqueuers.push_back(opening);
            if !room || !peer.has_sent(behind) {
                in_vain += 1;
                continue;
            }
            in_vain = 0;
            self.send_element(node, opening);
        }
    }

    fn send_element(&mut self, node: NodeId, opening: u64) {
        let own = node == self.ctx.config.node;
        let Some(send_queue) = self.requester.send_queues.get_mut(&opening) else { return };
        let Some(Waiting { at, size, data, .. }) = send_queue.waiting.pop_front() else { return };
        if send_queue.waiting.is_empty() {
            crate::requester::emptied(&mut send_queue.waiting);
        }
        send_queue.unacknowledged += 1;
        let (import, context, epoch) = (send_queue.import, send_queue.context, send_queue.epoch);
        if !own {
            let spent = self.ctx.link.spend(Class::Enqueue);
            debug_assert!(spent, "the caller has seen a credit");
        }
        match import {
            Some(import) => {
                self.left_queue(import);
            }
            None => self.requester.waiting_total -= 1,
        }
        let target = self.target(node);
        let peer = &mut self.requester.peers[usize::from(node)];
        peer.elements += 1;
        let after = peer.requests;
        let tag = self.requester.take_tag(node, InFlight::Element { opening, epoch: epoch.epoch });
        let body = Body::Enqueue { at, context, epoch, size, data, after };
        let packet =
            Packet { src: self.ctx.config.node, dst: node, tag, incarnation: self.ctx.incarnation, target, body };
        self.ctx.transmit(packet);
    }

    /// An element has been acknowledged or refused.
    pub(crate) fn element_finished(&mut self, opening: u64, epoch: u32, status: Status) {
        let Some(send_queue) = self.requester.send_queues.get_mut(&opening) else { return };
        send_queue.unacknowledged = send_queue.unacknowledged.saturating_sub(1);
        if let Some(import) = send_queue.import {
            return self.store_finished(import, epoch, status);
        }
        if !status.is_ok() {
            // Nobody is there to be told; no later element passes a lost one.
            let (node, dropped) = (send_queue.node, std::mem::take(&mut send_queue.waiting).len() as u32);
            self.requester.waiting_total -= dropped;
            self.ctx.counters.dropped += u64::from(dropped) + 1;
            self.ctx.notice(Notice::LostStore(LostStore { node, import: None, status }));
        }
        self.end_send_queue(opening);
    }

    /// Elements that were sent to a node that has gone: the open import they were sent through.
    pub(crate) fn element_lost(&mut self, opening: u64) -> Option<u16> {
        let send_queue = self.requester.send_queues.get_mut(&opening)?;
        send_queue.unacknowledged = send_queue.unacknowledged.saturating_sub(1);
        send_queue.import
    }

    /// The import is closed; what it has under way goes on.
    pub(crate) fn leave_send_queue(&mut self, opening: u64) {
        if let Some(send_queue) = self.requester.send_queues.get_mut(&opening) {
            send_queue.import = None;
        }
        self.end_send_queue(opening);
    }

    /// A send queue without an import ends with its last element, and its hold slots go back.
    fn end_send_queue(&mut self, opening: u64) {
        let done = |send_queue: &&SendQueue| {
            send_queue.import.is_none() && send_queue.waiting.is_empty() && send_queue.unacknowledged == 0
        };
        if self.requester.send_queues.get(&opening).as_ref().is_some_and(done) {
            if let Some(send_queue) = self.requester.send_queues.remove(&opening) {
                self.give_back_holds(send_queue.node, send_queue.queue);
            }
        }
    }

    /// A node has gone: nothing of closed imports goes there any more.
    pub(crate) fn end_send_queues_to(&mut self, node: NodeId) {
        let mut dropped = 0;
        self.requester.send_queues.retain(|_, send_queue| {
            let ends = send_queue.node == node && send_queue.import.is_none();
            dropped += if ends { send_queue.waiting.len() as u32 } else { 0 };
            !ends
        });
        self.requester.waiting_total -= dropped;
        self.ctx.counters.dropped += u64::from(dropped);
    }

    /// Elements of an import that were sent and are not acknowledged.
    pub fn elements_under_way(&self, import: u16) -> u32 {
        let send_queue =
            self.requester.open_import(import).and_then(|import| self.requester.send_queues.get(&import.opening));
        send_queue.map_or(0, |send_queue| send_queue.unacknowledged)
    }

    // ---- hold slots ----

    /// How many send queues to the queue at `at` this node has, of open and of closed imports.
    fn send_queues_to(&self, node: NodeId, at: &RemoteAddr) -> u32 {
        let dead = |send_queue: &SendQueue| {
            let import = send_queue.import.and_then(|number| self.requester.open_import(number));
            import.is_some_and(|import| import.dead)
        };
        let all = self.requester.send_queues.values();
        all.filter(|send_queue| send_queue.node == node && send_queue.queue == *at && !dead(send_queue)).count() as u32
    }

    /// Asks the queue's node for hold slots for one more import; the admin slot waits for the answer.
    pub(crate) fn open_queue(&mut self, slot: u32, number: u16) {
        let Some(import) = self.requester.open_import(number) else { return };
        let (node, at, context, opening) = (import.node, import.address(0), import.context, import.opening);
        // Send queues of closed imports last until the receivers have taken what is in them.
        if self.requester.send_queues.len() >= 2 * usize::from(self.ctx.config.imports) {
            return self.reserved((slot, number), Err(Status::NoSpace));
        }
        let send_queue = SendQueue {
            node,
            context,
            epoch: self.epoch_of(number),
            queue: at,
            import: Some(number),
            hold: None,
            unacknowledged: 0,
            waiting: VecDeque::new(),
        };
        self.requester.send_queues.insert(opening, send_queue);
        if let Err(status) = self.reachable(node) {
            return self.reserved((slot, number), Err(status));
        }
        let imports = self.send_queues_to(node, &at);
        self.ask(node, RequestKind::Reserve { opens: (slot, number) }, Body::Reserve { at, imports });
    }

    /// The answer. A refused import is taken back.
    pub(crate) fn reserved(&mut self, opens: (u32, u16), answer: Result<u32, Status>) {
        let (slot, number) = opens;
        // Asked for is what this board would give to others: the word of the queue's node alone bounds nothing.
        let most = if self.ctx.has(Bug::BelieveHolds) { u32::MAX } else { self.ctx.config.hold };
        let dead = self.requester.open_import(number).and_then(|import| import.error.filter(|_| import.dead));
        let status = match (answer, dead) {
            (Err(status), _) | (Ok(_), Some(status)) => status,
            (Ok(holds), None) => {
                if let Some(send_queue) = self.send_queue(number) {
                    send_queue.hold = Some(holds.clamp(1, most));
                }
                return self.ctx.complete_status(slot, Status::Ok);
            }
        };
        // Nobody has been told of it yet.
        let waiting = self.drop_waiting(number);
        self.requester.waiting_total -= waiting;
        self.unmap_import(number);
        self.remove_import(number);
        self.ctx.complete_status(slot, status);
    }

    /// An import of a queue has gone: the queue's node hears how many are left. Absolute numbers leave nothing behind
    /// if an answer is late.
    pub(crate) fn give_back_holds(&mut self, node: NodeId, at: RemoteAddr) {
        // One such request at a time, however fast imports are opened and closed: the next says all that has changed
        // meanwhile.
        if let Some(again) = self.requester.returning.get_mut(&(node, at.page, at.generation)) {
            *again = true;
        } else if self.reachable(node).is_ok() {
            self.requester.returning.insert((node, at.page, at.generation), false);
            let imports = self.send_queues_to(node, &at);
            self.ask(node, RequestKind::Return { node, at }, Body::Reserve { at, imports });
        }
    }

    /// The queue's node knows, or never will.
    pub(crate) fn holds_returned(&mut self, node: NodeId, at: RemoteAddr) {
        if self.requester.returning.remove(&(node, at.page, at.generation)) == Some(true) {
            self.give_back_holds(node, at);
        }
    }
}
