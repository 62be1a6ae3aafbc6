// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rings to other boards of the same host, beside the link to the switch: requests, elements and their replies.
//!
//! The fabric offers a ring to two boards and may withdraw it. A board chooses the path of its own requests; the reply
//! to a request takes the path by which the request came. Requests to one node change their path only where none can
//! pass another: to the ring when nothing to the node is unanswered, and back to the switch when the peer has answered
//! a probe behind the last of them. Multicasts and their replies always go by the switch.
//!
//! The peer may be hostile. What a switch checks between two nodes, this end of the ring checks: [`Ring::admit`].

use crate::RingViolation;
use crate::arrived::Arrived;
use crate::by_node::ByNode;
use telegraphos_wire::{Body, Class, NodeId, Packet, Status};

/// The path of this board's requests to a node that it has a ring to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Path {
    /// By the switch. By the ring from the moment on at which nothing is unanswered, if the ring is `wanted`.
    Switch,
    Ring,
    /// None: the ring is withdrawn, and the probe behind its last request is not answered.
    Draining,
}

/// The way of a request or element that is sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// To this node itself.
    Own,
    /// There is a credit of the link.
    Switch,
    /// There is a credit of the ring.
    Ring,
}

/// What the peer has taken of one class, and returned; see the fields.
#[derive(Clone, Copy, Debug, Hash)]
struct Credits {
    /// Credits of this board that are left.
    left: u32,
    /// Credits of the peer that are left: packets that it may still send.
    room: u32,
    /// Packets of the peer that have left the buffers of this board, and whose credits are not returned.
    returned: u32,
}

#[derive(Clone, Debug, Hash)]
pub(crate) struct Ring {
    /// The incarnation of the peer.
    pub(crate) incarnation: u64,
    path: Path,
    /// The fabric offers it, and has not withdrawn it since.
    wanted: bool,
    /// The peer has answered a probe: its end is open.
    open: bool,
    /// It carries loans beside packets.
    lends: bool,
    /// Of each class that needs credits: elements, requests.
    credits: [Credits; 2],
    /// Credits of each class in the beginning.
    given: u32,
    /// Requests and elements sent by the ring and not answered.
    in_flight: u32,
    /// Tags of the peer's requests and elements that came by the ring and are not answered, ascending: a few at a time,
    /// and never more than the peer has credits and elements in this board's receive buffers.
    requests: Vec<u32>,
    /// It is among [`Rings::due`].
    due: bool,
}

/// The classes that need credits.
const CLASSES: [Class; 2] = [Class::Enqueue, Class::Request];

impl Ring {
    fn new(incarnation: u64, given: u32, lends: bool) -> Ring {
        let credits = Credits { left: given, room: given, returned: 0 };
        let (path, wanted, open) = (Path::Switch, true, false);
        let (credits, requests) = ([credits; 2], Vec::new());
        Ring { incarnation, path, wanted, open, lends, credits, given, in_flight: 0, requests, due: false }
    }

    /// Returns whether credits of this class are to be returned: a quarter of all or more.
    fn is_due(&self, class: Class) -> bool {
        let returned = self.credits[class as usize].returned;
        returned > 0 && returned >= self.given / 4
    }

    /// The path of the next request. `is_idle`: nothing to the node is unanswered.
    fn next_path(&self, is_idle: bool) -> Path {
        if self.path == Path::Switch && self.open && self.wanted && is_idle { Path::Ring } else { self.path }
    }

    /// Returns whether what is beside a packet of the peer may be there.
    fn may_have(&self, arrived: &Arrived) -> bool {
        let Some(loan) = &arrived.loan else { return true };
        self.lends
            && match &arrived.packet.body {
                Body::ReadBlock { length, .. } => *length == loan.length(),
                Body::WriteBlock { data, .. } | Body::BlockReply { status: Status::Ok, data } => data.is_empty(),
                _ => false,
            }
    }

    /// Checks a packet of the peer, and counts it. `block` is the length of the longest block between both nodes.
    pub(crate) fn admit(&mut self, arrived: &Arrived, own: NodeId, block: u64) -> Result<(), RingViolation> {
        let packet = &arrived.packet;
        if packet.dst != own {
            return Err(RingViolation::Destination(packet.dst));
        }
        if !self.may_have(arrived) {
            return Err(RingViolation::Loan);
        }
        let length = arrived.block_len();
        if length > block {
            return Err(RingViolation::Block { length, most: block });
        }
        match packet.class() {
            class @ (Class::Enqueue | Class::Request) => {
                if packet.incarnation != self.incarnation {
                    return Err(RingViolation::Incarnation(packet.incarnation));
                }
                let room = &mut self.credits[class as usize].room;
                *room = room.checked_sub(1).ok_or(RingViolation::NoCredit(class))?;
                let Err(place) = self.requests.binary_search(&packet.tag) else {
                    return Err(RingViolation::Tag(packet.tag));
                };
                self.requests.insert(place, packet.tag);
                Ok(())
            }
            Class::Reply if !matches!(packet.body, Body::CopyAck { .. } | Body::WriteAcks { .. }) => {
                self.in_flight = self.in_flight.checked_sub(1).ok_or(RingViolation::Reply)?;
                Ok(())
            }
            class => Err(RingViolation::Class(class)),
        }
    }

    pub(crate) fn credit(&mut self, class: Class, count: u32) -> Result<(), RingViolation> {
        let left = match class {
            Class::Enqueue | Class::Request => &mut self.credits[class as usize].left,
            class => return Err(RingViolation::Class(class)),
        };
        *left = left.checked_add(count).filter(|left| *left <= self.given).ok_or(RingViolation::Credits(class))?;
        Ok(())
    }

    /// The peer has answered a probe. Returns whether requests waited for that, and may be sent now.
    pub(crate) fn answered_probe(&mut self) -> bool {
        self.open = true;
        let drained = self.path == Path::Draining;
        if drained {
            self.path = if self.wanted { Path::Ring } else { Path::Switch };
        }
        drained
    }

    /// The fabric withdraws the ring or offers it again. Returns whether a probe must be sent, whose answer ends the
    /// withdrawal.
    pub(crate) fn want(&mut self, on: bool, drains: bool) -> bool {
        self.wanted = on;
        let used = self.path == Path::Ring && !on;
        if used {
            self.path = if drains { Path::Draining } else { Path::Switch };
        }
        used && drains
    }

    /// Returns whether no request takes the ring any more.
    pub(crate) fn is_withdrawn(&self) -> bool {
        !self.wanted && self.path == Path::Switch
    }
}

/// The rings of a board, by the node at the other end; see the module documentation.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Rings {
    rings: ByNode<Option<Ring>>,
    count: u32,
    /// To these nodes credits are to be returned.
    due: Vec<NodeId>,
}

impl Rings {
    /// No rings, in a fabric of so many nodes.
    pub(crate) fn new(nodes: u32) -> Rings {
        Rings { rings: ByNode::new(nodes, None), count: 0, due: Vec::new() }
    }

    /// A ring to a node; `given` credits of each class, both ways.
    pub(crate) fn open(&mut self, node: NodeId, incarnation: u64, given: u32, lends: bool) {
        if let Some(ring) = self.rings.get_mut(node) {
            self.count += u32::from(ring.replace(Ring::new(incarnation, given, lends)).is_none());
        }
    }

    /// Returns whether there is no ring.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The ring to a node, if there is one.
    #[inline]
    pub(crate) fn get(&mut self, node: NodeId) -> Option<&mut Ring> {
        // A board without rings pays no more than this.
        if self.is_empty() { None } else { self.rings.existing_mut(node)?.as_mut() }
    }

    /// Returns whether there is a ring to a node.
    pub(crate) fn contains(&self, node: NodeId) -> bool {
        self.rings[usize::from(node)].is_some()
    }

    /// Removes the ring to a node. Returns whether there was one.
    pub(crate) fn close(&mut self, node: NodeId) -> bool {
        let closed = self.rings.existing_mut(node).and_then(Option::take).is_some();
        self.count -= u32::from(closed);
        closed
    }

    /// Removes all rings.
    pub(crate) fn close_all(&mut self) {
        self.rings.values_mut().for_each(|ring| *ring = None);
        self.count = 0;
    }

    /// The way of the next request or element to a node. `None` if it waits: for a credit of the ring, or for the end
    /// of its withdrawal. `is_idle`: nothing to the node is unanswered.
    pub(crate) fn way(&mut self, node: NodeId, class: Class, is_idle: bool) -> Option<Way> {
        let Some(ring) = self.get(node) else { return Some(Way::Switch) };
        ring.path = ring.next_path(is_idle);
        match ring.path {
            Path::Switch => Some(Way::Switch),
            Path::Ring => (ring.credits[class as usize].left > 0).then_some(Way::Ring),
            Path::Draining => None,
        }
    }

    /// Returns whether the next request to a node goes by a ring that carries loans.
    pub(crate) fn lends(&self, node: NodeId, is_idle: bool) -> bool {
        let ring = if self.is_empty() { None } else { self.rings[usize::from(node)].as_ref() };
        ring.is_some_and(|ring| ring.lends && ring.next_path(is_idle) == Path::Ring)
    }

    /// Takes a credit for a request or element that is sent by the ring now.
    pub(crate) fn spend(&mut self, node: NodeId, class: Class) {
        let Some(ring) = self.get(node) else { return };
        let left = &mut ring.credits[class as usize].left;
        debug_assert!(*left > 0, "the caller has seen a credit");
        *left = left.saturating_sub(1);
        ring.in_flight += 1;
    }

    /// Returns whether this request or element came by a ring and is not answered.
    pub(crate) fn brought(&mut self, packet: &Packet) -> bool {
        self.get(packet.src).is_some_and(|ring| ring.requests.binary_search(&packet.tag).is_ok())
            && packet.class() != Class::Reflected
    }

    /// A request or element is answered now. Returns whether it came by a ring: so does its answer.
    pub(crate) fn answer(&mut self, packet: &Packet) -> bool {
        let Some(ring) = self.get(packet.src) else { return false };
        if packet.class() == Class::Reflected {
            return false;
        }
        let found = ring.requests.binary_search(&packet.tag);
        found.map(|place| ring.requests.remove(place)).is_ok()
    }

    /// A packet that came by a ring has left the buffers of this board. Returns whether credits are to be
    /// [returned](Rings::return_credits): a quarter of all or more at a time.
    pub(crate) fn consumed(&mut self, node: NodeId, class: Class) -> bool {
        let (Some(ring), Class::Enqueue | Class::Request) = (self.get(node), class) else { return false };
        ring.credits[class as usize].returned += 1;
        if !ring.is_due(class) {
            return false;
        }
        if !std::mem::replace(&mut ring.due, true) {
            self.due.push(node);
        }
        true
    }

    /// Returns the credits that are due.
    pub(crate) fn return_credits(&mut self, mut give: impl FnMut(NodeId, Class, u32)) {
        if self.due.is_empty() {
            return;
        }
        // Boards in the same state behave alike, whichever node's packet was the first.
        self.due.sort_unstable();
        for node in self.due.drain(..) {
            // Closed since, or closed and opened.
            let Some(Some(ring)) = self.rings.existing_mut(node) else { continue };
            ring.due = false;
            for class in CLASSES {
                if ring.is_due(class) {
                    let Credits { room, returned, .. } = &mut ring.credits[class as usize];
                    *room += *returned;
                    give(node, class, std::mem::take(returned));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Loan;
    use crate::arrived::Charge;
    use std::sync::Arc;
    use telegraphos_wire::{Block, ImportEpoch, MAX_BLOCK, RemoteAddr, Tags};

    const PEER: NodeId = 1;

    fn packet(tag: u32, body: Body) -> Packet {
        Packet { src: PEER, dst: 0, tag, incarnation: 7, target: 0, body }
    }

    fn bare(packet: Packet) -> Arrived {
        Arrived { packet, loan: None, charge: Charge::Ring }
    }

    fn read(length: u32) -> Body {
        Body::ReadBlock { at: RemoteAddr { page: 0, offset: 0, generation: 1 }, context: 0, length }
    }

    fn ack() -> Body {
        Body::WriteAck { status: Status::Ok }
    }

    fn used() -> Rings {
        let mut rings = Rings::new(8);
        rings.open(PEER, 7, 4, true);
        assert!(!rings.get(PEER).unwrap().answered_probe());
        assert_eq!(rings.way(PEER, Class::Request, true), Some(Way::Ring));
        rings
    }

    #[test]
    fn it_is_used_when_the_peer_has_opened_it_and_nothing_is_unanswered() {
        let mut rings = Rings::new(8);
        assert_eq!(rings.way(PEER, Class::Request, true), Some(Way::Switch));
        rings.open(PEER, 7, 4, true);
        assert_eq!(rings.way(PEER, Class::Request, true), Some(Way::Switch));
        rings.get(PEER).unwrap().answered_probe();
        assert_eq!(rings.way(PEER, Class::Request, false), Some(Way::Switch));
        assert_eq!(rings.way(PEER, Class::Request, true), Some(Way::Ring));
        assert_eq!(rings.way(PEER, Class::Request, false), Some(Way::Ring), "it stays there");
        assert_eq!(rings.way(2, Class::Request, true), Some(Way::Switch));
    }

    #[test]
    fn it_is_left_when_its_last_request_has_arrived() {
        let mut rings = used();
        assert!(rings.get(PEER).unwrap().want(false, true));
        assert_eq!(rings.way(PEER, Class::Request, true), None);
        assert!(!rings.get(PEER).unwrap().is_withdrawn());
        assert!(rings.get(PEER).unwrap().answered_probe());
        assert!(rings.get(PEER).unwrap().is_withdrawn());
        assert_eq!(rings.way(PEER, Class::Request, true), Some(Way::Switch));
        assert!(!rings.get(PEER).unwrap().want(true, true));
        assert_eq!(rings.way(PEER, Class::Request, false), Some(Way::Switch));
        assert_eq!(rings.way(PEER, Class::Request, true), Some(Way::Ring));
    }

    #[test]
    fn what_the_peer_sends_is_bounded() {
        let mut rings = used();
        let limit = MAX_BLOCK as u64;
        let mut admit = |packet: Packet| rings.get(PEER).unwrap().admit(&bare(packet), 0, limit);
        let to_another = Packet { dst: 3, ..packet(9, read(1)) };
        assert_eq!(admit(to_another), Err(RingViolation::Destination(3)));
        let of_another_life = Packet { incarnation: 6, ..packet(9, read(1)) };
        assert_eq!(admit(of_another_life), Err(RingViolation::Incarnation(6)));
        let long = limit as u32 + 1;
        assert_eq!(admit(packet(9, read(long))), Err(RingViolation::Block { length: limit + 1, most: limit }));
        assert_eq!(admit(packet(9, ack())), Err(RingViolation::Reply), "nothing was requested");
        let copy_ack = Body::CopyAck { status: Status::Ok };
        assert_eq!(admit(packet(9, copy_ack)), Err(RingViolation::Class(Class::Reply)));
        let several = Body::WriteAcks { tags: Tags::of(9) };
        assert_eq!(admit(packet(9, several)), Err(RingViolation::Class(Class::Reply)), "they are not counted");
        (0..4).for_each(|tag| assert_eq!(admit(packet(tag, read(1))), Ok(())));
        assert_eq!(admit(packet(4, read(1))), Err(RingViolation::NoCredit(Class::Request)));
    }

    #[test]
    fn a_loan_is_beside_a_packet_whose_block_it_is() {
        let at = RemoteAddr { page: 0, offset: 0, generation: 1 };
        let write = |data: Block| Body::WriteBlock { at, context: 0, epoch: ImportEpoch::default(), data };
        let reply = |status, data| Body::BlockReply { status, data };
        let admit = |lends, body, length, limit| {
            let mut rings = used();
            rings.close(PEER);
            rings.open(PEER, 7, 4, lends);
            rings.spend(PEER, Class::Request);
            let arrived = Arrived { loan: Some(Loan::new(length, Arc::new(()))), ..bare(packet(9, body)) };
            rings.get(PEER).unwrap().admit(&arrived, 0, limit)
        };
        for body in [write(Block::default()), reply(Status::Ok, Block::default()), read(4096)] {
            assert_eq!(admit(true, body.clone(), 4096, 4096), Ok(()), "{body:?}");
            assert_eq!(admit(false, body.clone(), 4096, 4096), Err(RingViolation::Loan), "{body:?}");
            let long = Err(RingViolation::Block { length: 4096, most: 4095 });
            assert_eq!(admit(true, body, 4096, 4095), long);
        }
        let bytes = || Block::from([7; 8]);
        let refused = reply(Status::Bounds, Block::default());
        for body in [write(bytes()), reply(Status::Ok, bytes()), refused, read(4097), ack()] {
            assert_eq!(admit(true, body.clone(), 4096, 8192), Err(RingViolation::Loan), "{body:?}");
        }
    }

    #[test]
    fn a_ring_lends_where_it_carries_the_next_request() {
        let mut rings = Rings::new(8);
        assert!(!rings.lends(PEER, true));
        rings.open(PEER, 7, 4, true);
        assert!(!rings.lends(PEER, true), "it is not open");
        rings.get(PEER).unwrap().answered_probe();
        assert_eq!((rings.lends(PEER, false), rings.lends(PEER, true)), (false, true));
        assert_eq!(rings.way(PEER, Class::Request, true), Some(Way::Ring));
        assert!(rings.lends(PEER, false));
        rings.get(PEER).unwrap().want(false, true);
        assert!(!rings.lends(PEER, true), "it is withdrawn");
        rings.open(2, 7, 4, false);
        rings.get(2).unwrap().answered_probe();
        assert!(!rings.lends(2, true));
    }

    #[test]
    fn a_tag_that_is_not_answered_is_not_used_again() {
        let mut rings = used();
        let request = packet(5, read(1));
        assert_eq!(rings.get(PEER).unwrap().admit(&bare(request.clone()), 0, 8192), Ok(()));
        assert_eq!(rings.get(PEER).unwrap().admit(&bare(request.clone()), 0, 8192), Err(RingViolation::Tag(5)));
        assert!(rings.brought(&request) && rings.answer(&request) && !rings.answer(&request));
    }

    #[test]
    fn credits_return_in_batches_and_not_more_than_were_given() {
        let mut rings = Rings::new(8);
        rings.open(PEER, 7, 8, false);
        rings.get(PEER).unwrap().answered_probe();
        assert_eq!(rings.way(PEER, Class::Request, true), Some(Way::Ring));
        rings.spend(PEER, Class::Request);
        assert_eq!(rings.get(PEER).unwrap().credit(Class::Request, 1), Ok(()));
        let over = Err(RingViolation::Credits(Class::Request));
        assert_eq!(rings.get(PEER).unwrap().credit(Class::Request, 1), over);
        assert_eq!(rings.get(PEER).unwrap().credit(Class::Request, u32::MAX), over);
        let reflected = Err(RingViolation::Class(Class::Reflected));
        assert_eq!(rings.get(PEER).unwrap().credit(Class::Reflected, 1), reflected);
        let mut returned = Vec::new();
        for tag in 0..3 {
            assert_eq!(rings.get(PEER).unwrap().admit(&bare(packet(tag, read(1))), 0, 8192), Ok(()));
            rings.consumed(PEER, Class::Request);
            rings.return_credits(|node, class, count| returned.push((node, class, count)));
        }
        assert_eq!(returned, [(PEER, Class::Request, 2)]);
    }

    #[test]
    fn without_credits_requests_wait() {
        let mut rings = used();
        (0..4).for_each(|_| rings.spend(PEER, Class::Request));
        assert_eq!(rings.way(PEER, Class::Request, false), None);
        assert_eq!(rings.way(PEER, Class::Enqueue, false), Some(Way::Ring));
        for tag in 0..4 {
            assert_eq!(rings.get(PEER).unwrap().admit(&bare(packet(tag, ack())), 0, 8192), Ok(()));
        }
        assert_eq!(rings.get(PEER).unwrap().admit(&bare(packet(4, ack())), 0, 8192), Err(RingViolation::Reply));
    }
}
