// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notification queues at their senders: elements wait in a line of their import, so that a full queue holds up no other, and nothing
//! but elements (SPEC items 2, 3, 7, 13; E12; `docs/queues.md`).
//!
//! An element is sent when all requests that were accepted for its node before it have been sent, and fewer than `hold` elements of its import
//! are unacknowledged; the packet says how many requests have been sent, and the receiver performs it after them (SPEC I8).

use crate::Action;
use crate::hib::Hib;
use crate::imports::{Asked, Sent};
use std::collections::VecDeque;
use telegraphos_wire::{Body, Class, NodeId, Packet, RemoteAddr, Status};

/// An accepted enqueue that has not been sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    /// Requests that its node had accepted before.
    behind: u64,
    at: RemoteAddr,
    size: u8,
    data: u64,
}

/// What an import of a queue has under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Elements {
    /// Reserved at the queue's node; none while the import is being opened.
    hold: Option<u32>,
    unacknowledged: u32,
    waiting: VecDeque<Waiting>,
}

impl Elements {
    pub(crate) fn is_opening(&self) -> bool {
        self.hold.is_none()
    }

    /// Drops what has not been sent; how many.
    pub(crate) fn drop_waiting(&mut self) -> u32 {
        std::mem::take(&mut self.waiting).len() as u32
    }
}

impl Hib {
    pub(crate) fn accept_element(&mut self, node: NodeId, number: u16, at: RemoteAddr, size: u8, data: u64) {
        let peer = &mut self.issuer.peers[usize::from(node)];
        let behind = peer.accepted();
        if !peer.enqueuers.contains(&number) {
            peer.enqueuers.push_back(number);
        }
        if let Some(elements) = self.issuer.import(number).and_then(|import| import.queue.as_mut()) {
            elements.waiting.push_back(Waiting { behind, at, size, data });
        }
        self.counters.enqueues += 1;
    }

    /// Sends elements for a node, the imports in turns.
    pub(crate) fn pump_elements(&mut self, node: NodeId, out: &mut Vec<Action>) {
        let own = node == self.config.node;
        let mut in_vain = 0;
        loop {
            let peer = &mut self.issuer.peers[usize::from(node)];
            if in_vain >= peer.enqueuers.len() {
                return;
            }
            if !own && self.link.as_ref().is_none_or(|link| link.credits[Class::Enqueue as usize] == 0) {
                return;
            }
            let Some(number) = peer.enqueuers.pop_front() else { return };
            // A number may by now mean another import, of another node.
            let import = self.issuer.import(number).filter(|import| import.node == node);
            let Some(elements) = import.and_then(|import| import.queue.as_mut()) else { continue };
            let Some(behind) = elements.waiting.front().map(|waiting| waiting.behind) else { continue };
            let room = elements.hold.is_some_and(|hold| elements.unacknowledged < hold);
            let peer = &mut self.issuer.peers[usize::from(node)];
            peer.enqueuers.push_back(number);
            if !room || !peer.has_sent(behind) {
                in_vain += 1;
                continue;
            }
            in_vain = 0;
            self.send_element(node, number, out);
        }
    }

    fn send_element(&mut self, node: NodeId, number: u16, out: &mut Vec<Action>) {
        let own = node == self.config.node;
        let elements = self.issuer.import(number).and_then(|import| import.queue.as_mut());
        let Some((elements, Waiting { at, size, data, .. })) =
            elements.and_then(|elements| elements.waiting.pop_front().map(|waiting| (elements, waiting)))
        else {
            return;
        };
        elements.unacknowledged += 1;
        if let Some(link) = self.link.as_mut().filter(|_| !own) {
            link.credits[Class::Enqueue as usize] -= 1; // The caller has seen one.
        }
        let context = self.left_queue(number, out);
        let (after, target) = (self.issuer.peers[usize::from(node)].requests, self.target(node));
        let tag = self.issuer.take_tag(node, Sent::Element { import: number });
        let body = Body::Enqueue { at, context, size, data, after };
        let packet = Packet { src: self.config.node, dst: node, tag, incarnation: self.incarnation, target, body };
        self.transmit(packet, out);
    }

    /// An element has been acknowledged or is lost.
    pub(crate) fn element_finished(&mut self, number: u16) {
        if let Some(elements) = self.issuer.import(number).and_then(|import| import.queue.as_mut()) {
            elements.unacknowledged = elements.unacknowledged.saturating_sub(1);
        }
    }

    /// Elements of an import that were sent and are not acknowledged.
    pub fn elements_under_way(&self, import: u16) -> u32 {
        let elements = self.issuer.open_import(import).and_then(|import| import.queue.as_ref());
        elements.map_or(0, |elements| elements.unacknowledged)
    }

    // ---- hold slots ----

    /// How many imports of the queue at `at` this node has open.
    fn imports_of(&self, node: NodeId, at: &RemoteAddr) -> u32 {
        let same = |n: &u16| {
            let import = self.issuer.open_import(*n);
            import.is_some_and(|i| i.queue.is_some() && !i.dead && i.node == node && i.address(0) == *at)
        };
        (0..self.config.imports).filter(same).count() as u32
    }

    /// Asks the queue's node for hold slots for one more import; the admin slot waits for the answer.
    pub(crate) fn open_queue(&mut self, slot: u32, number: u16, out: &mut Vec<Action>) {
        let Some(import) = self.issuer.open_import(number) else { return };
        let (node, at) = (import.node, import.address(0));
        if let Err(status) = self.reachable(node) {
            return self.reserved(Some((slot, number)), Err(status), out);
        }
        let imports = self.imports_of(node, &at);
        self.ask(node, Asked::Reserve { opens: Some((slot, number)) }, Body::Reserve { at, imports }, out);
    }

    /// The answer. A refused import is taken back.
    pub(crate) fn reserved(&mut self, opens: Option<(u32, u16)>, answer: Result<u32, Status>, out: &mut Vec<Action>) {
        let Some((slot, number)) = opens else { return };
        let dead = self.issuer.open_import(number).and_then(|import| import.error.filter(|_| import.dead));
        let status = match (answer, dead) {
            (Err(status), _) | (Ok(_), Some(status)) => status,
            (Ok(holds), None) => {
                if let Some(elements) = self.issuer.import(number).and_then(|import| import.queue.as_mut()) {
                    elements.hold = Some(holds.max(1));
                }
                return self.complete_status(slot, Status::Ok, out);
            }
        };
        self.unmap_import(number);
        self.remove_import(number, out);
        self.complete_status(slot, status, out);
    }

    /// An import of a queue has gone: the queue's node hears how many are left. Absolute numbers leave nothing behind if an answer is late.
    pub(crate) fn give_back_holds(&mut self, node: NodeId, at: RemoteAddr, out: &mut Vec<Action>) {
        if self.reachable(node).is_ok() {
            let imports = self.imports_of(node, &at);
            self.ask(node, Asked::Reserve { opens: None }, Body::Reserve { at, imports }, out);
        }
    }
}
