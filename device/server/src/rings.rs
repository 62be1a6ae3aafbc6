// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rings to other boards of this host: frames beside the fabric. The fabric hands out their ends (`fabric_link`),
//! the core decides what passes by them, and `board` owns them.
//!
//! The peer may be hostile. What is no index, or no frame, breaks the ring here; packets the core checks.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use telegraphos_link::ring_end::{Beside, Calls, Passing, RingEnd, Shared, Within};
use telegraphos_service::wait::{Places, Readiness, WaitSet, Watched};
use telegraphos_wire::NodeId;
use telegraphos_wire::link::Frame;

/// The place of all rings among those of their board.
pub(crate) const PLACE: u32 = 4;

/// The place of the bell of [`Calls`] among the descriptors of all ends; those of ends have the node's.
const BELL: u64 = u64::MAX;

/// What carries the frames of a ring that is offered.
#[derive(Debug)]
pub enum Carrier {
    /// To a board of another process: the socket for wake-ups, and the memory.
    Shared([OwnedFd; 2]),
    /// To a board of this process.
    Within(Within),
}

/// An end of a ring, as the fabric offers it ([`Frame::Ring`]).
#[derive(Debug)]
pub struct Offer {
    /// The node at the other end.
    pub node: NodeId,
    pub incarnation: u64,
    /// The incarnation of this board that it is offered to.
    pub own: u64,
    /// Bytes of each direction, in shared memory.
    pub bytes: u32,
    /// Requests, and as many elements, that either end may have in the other's buffers.
    pub credits: u32,
    /// The direction in which this board writes, in shared memory.
    pub side: u8,
    /// `None` if it was lost.
    pub carrier: Option<Carrier>,
}

impl Offer {
    /// Whether it carries loans beside frames.
    pub(crate) fn lends(&self) -> bool {
        matches!(self.carrier, Some(Carrier::Within(_)))
    }
}

#[derive(Debug)]
struct End {
    ring: Box<dyn RingEnd>,
    /// The incarnation of the peer.
    incarnation: u64,
    /// It is in the list of ends to flush.
    dirty: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    /// By node; as long as the highest node needs that a ring was ever open to.
    ends: Vec<Option<End>>,
    /// The nodes that have one.
    nodes: Vec<NodeId>,
    /// Of the descriptors of all ends; made with the first, and waited for at [`PLACE`].
    set: Option<Watched<WaitSet>>,
    /// Ends that have a descriptor.
    watched: usize,
    /// Of the ends that have none; made with the first.
    calls: Option<Arc<Calls>>,
    /// Several threads serve the boards of this process.
    apart: bool,
    /// Ends with something to write.
    dirty: Vec<NodeId>,
    /// Ends that [need attention](RingEnd::needs_attention), and some that did.
    unfinished: Vec<NodeId>,
}

impl Rings {
    /// From now on other threads serve boards of this process. Before the first end is opened.
    pub(crate) fn serve_apart(&mut self) {
        self.apart = true;
    }

    /// The descriptors of all ends.
    fn set<'a>(set: &'a mut Option<Watched<WaitSet>>, places: &Places) -> io::Result<&'a mut Watched<WaitSet>> {
        Ok(match set {
            Some(set) => set,
            none => none.insert(places.watch(PLACE, WaitSet::new()?, Readiness::READ)?),
        })
    }

    /// Where the ends of this process are called.
    fn calls(&mut self, places: &Places) -> io::Result<&Arc<Calls>> {
        let made = match self.calls.take() {
            Some(calls) => calls,
            None if self.apart => {
                let calls = Calls::with_bell()?;
                if let Some(fd) = calls.fd() {
                    Rings::set(&mut self.set, places)?.add(fd, BELL, Readiness::READ)?;
                }
                Arc::new(calls)
            }
            None => Arc::new(Calls::new()),
        };
        Ok(self.calls.insert(made))
    }

    /// Opens an end. While something has arrived at any, [`PLACE`] is readable, or the board
    /// [needs attention](Rings::needs_attention).
    pub(crate) fn open(&mut self, offer: Offer, places: &Places) -> io::Result<()> {
        let ring: Box<dyn RingEnd> = match offer.carrier {
            Some(Carrier::Shared([socket, memory])) => {
                Box::new(Shared::open(socket, memory.as_fd(), offer.bytes, offer.side)?)
            }
            Some(Carrier::Within(end)) => {
                end.call_at(self.calls(places)?, offer.node);
                Box::new(end)
            }
            None => {
                return Err(io::Error::other("its descriptors were lost; raise the limit of open files (ulimit -n)"));
            }
        };
        self.close(offer.node);
        if let Some(fd) = ring.fd() {
            Rings::set(&mut self.set, places)?.add(fd, offer.node.into(), Readiness::READ)?;
            self.watched += 1;
        }
        let place = usize::from(offer.node);
        if self.ends.len() <= place {
            self.ends.resize_with(place + 1, || None);
        }
        self.ends[place] = Some(End { ring, incarnation: offer.incarnation, dirty: false });
        self.nodes.push(offer.node);
        Ok(())
    }

    /// Closes the end of the ring to a node. Returns the incarnation of that node.
    pub(crate) fn close(&mut self, node: NodeId) -> Option<u64> {
        let end = self.ends.get_mut(usize::from(node))?.take()?;
        self.watched -= usize::from(end.ring.fd().is_some());
        self.nodes.retain(|of| *of != node);
        self.unfinished.retain(|of| *of != node);
        Some(end.incarnation)
    }

    /// Closes all, behind what was sent.
    pub(crate) fn close_all(&mut self) {
        for mut end in self.ends.drain(..).flatten() {
            // What does not fit is lost with the ring.
            let _ = end.ring.flush();
        }
        self.watched = 0;
        self.nodes.clear();
        self.dirty.clear();
        self.unfinished.clear();
    }

    /// The incarnation of the node that a ring leads to.
    pub(crate) fn incarnation(&self, node: NodeId) -> Option<u64> {
        self.ends.get(usize::from(node))?.as_ref().map(|end| end.incarnation)
    }

    /// Queues a frame. Dropped if there is no such end: the core is, or will be, notified.
    pub(crate) fn send(&mut self, node: NodeId, frame: Frame) {
        self.send_with(node, frame, None);
    }

    /// The same with something beside it, by an end within this process.
    pub(crate) fn send_with(&mut self, node: NodeId, frame: Frame, beside: Option<Beside>) {
        let Some(Some(end)) = self.ends.get_mut(usize::from(node)) else { return };
        end.ring.send(frame, beside);
        if !std::mem::replace(&mut end.dirty, true) {
            self.dirty.push(node);
        }
    }

    /// Whether something was queued since the last flush.
    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Writes what is queued. Returns the nodes whose rings have broken by it, and why.
    pub(crate) fn flush(&mut self) -> Vec<(NodeId, io::Error)> {
        let mut broken = Vec::new();
        for node in self.dirty.drain(..) {
            let Some(Some(end)) = self.ends.get_mut(usize::from(node)) else { continue };
            end.dirty = false;
            if let Err(e) = end.ring.flush() {
                broken.push((node, e));
            }
        }
        broken
    }

    /// The nodes whose ends have something to receive, or room; in `ready`, which is empty.
    pub(crate) fn ready(&mut self, ready: &mut Vec<NodeId>) {
        ready.append(&mut self.unfinished);
        if let Some(calls) = &self.calls {
            calls.take(ready);
        }
        if let [node] = self.nodes[..] {
            ready.clear();
            return ready.push(node);
        }
        if let (Some(set), 1..) = (&self.set, self.watched) {
            // An error leaves them for the next turn.
            let _ = set.wait(Some(0), |place, _| ready.extend((place != BELL).then_some(place as NodeId)));
        }
        ready.sort_unstable();
        ready.dedup();
    }

    /// Whether to receive although nothing is readable.
    pub(crate) fn needs_attention(&self) -> bool {
        !self.unfinished.is_empty() || self.calls.as_ref().is_some_and(|calls| calls.any())
    }

    /// Receives from one end: appends its frames, the last ones even if it has broken behind them.
    pub(crate) fn receive(&mut self, now: u64, node: NodeId, frames: &mut VecDeque<Passing>) -> io::Result<()> {
        let Some(Some(end)) = self.ends.get_mut(usize::from(node)) else { return Ok(()) };
        let received = end.ring.receive(now, frames);
        if end.ring.needs_attention() {
            self.unfinished.push(node);
        }
        if let (true, Some(set), Some(fd)) = (end.ring.has_ended(), &self.set, end.ring.fd()) {
            // It stays readable for ever.
            let _ = set.remove(fd);
        }
        if end.ring.is_short_of_room() && !std::mem::replace(&mut end.dirty, true) {
            // There may be room now.
            self.dirty.push(node);
        }
        received
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::BorrowedFd;
    use telegraphos_link::ring::Ring;
    use telegraphos_link::{BATCH, OUT_LIMIT};

    fn offer(node: NodeId, side: u8, socket: OwnedFd, memory: BorrowedFd<'_>) -> Offer {
        let carrier = Some(Carrier::Shared([socket, memory.try_clone_to_owned().unwrap()]));
        Offer { node, incarnation: 7, own: 8, bytes: 4096, credits: 4, side, carrier }
    }

    /// The rings of two boards, with one between them.
    fn pair() -> (Rings, Rings) {
        let ([low, high], memory) = Ring::for_others(4096).unwrap();
        let (mut a, mut b) = (Rings::default(), Rings::default());
        a.open(offer(1, 0, low, memory.as_fd()), &Places::default()).unwrap();
        b.open(offer(0, 1, high, memory.as_fd()), &Places::default()).unwrap();
        (a, b)
    }

    fn ready(rings: &mut Rings) -> Vec<NodeId> {
        let mut ready = Vec::new();
        rings.ready(&mut ready);
        ready
    }

    fn received(rings: &mut Rings, node: NodeId) -> io::Result<Vec<Frame>> {
        let mut frames = VecDeque::new();
        rings.receive(0, node, &mut frames)?;
        Ok(frames.into_iter().map(|passing| passing.frame).collect())
    }

    #[test]
    fn frames_pass_both_ways_also_when_the_ring_is_full() {
        let (mut a, mut b) = pair();
        let sent: Vec<Frame> = (0..1000).map(|node| Frame::NodeDown { node }).collect();
        sent.iter().for_each(|frame| a.send(1, frame.clone()));
        assert!(a.is_dirty() && a.flush().is_empty() && !a.is_dirty());
        let mut got = Vec::new();
        while got.len() < sent.len() {
            assert_eq!(ready(&mut b), [0]);
            got.extend(received(&mut b, 0).unwrap());
            // The wake-up for room.
            assert!(received(&mut a, 1).unwrap().is_empty());
            assert!(a.flush().is_empty());
        }
        assert_eq!(got, sent);
        b.send(0, Frame::Alive);
        b.flush();
        assert_eq!(received(&mut a, 1).unwrap(), [Frame::Alive]);
    }

    #[test]
    fn of_several_rings_those_are_ready_that_have_something_or_were_left_unfinished() {
        let mut a = Rings::default();
        let mut peers: Vec<Ring> = Vec::new();
        for node in [5, 2, 9] {
            let ([low, high], memory) = Ring::for_others(1 << 20).unwrap();
            a.open(Offer { bytes: 1 << 20, ..offer(node, 0, low, memory.as_fd()) }, &Places::default()).unwrap();
            peers.push(Ring::open(high, memory.as_fd(), 1 << 20, 1, 0).unwrap());
        }
        assert!(ready(&mut a).is_empty() && !a.needs_attention());
        let mut frame = Vec::new();
        Frame::Alive.encode(&mut frame);
        let many = frame.repeat(2 * BATCH / frame.len());
        for (peer, bytes) in [(0, &frame), (1, &many)] {
            assert_eq!(peers[peer].send(bytes).unwrap(), bytes.len());
            peers[peer].flush().unwrap();
        }
        assert_eq!(ready(&mut a), [2, 5]);
        assert_eq!(received(&mut a, 5).unwrap(), [Frame::Alive]);
        let first = received(&mut a, 2).unwrap().len();
        assert!(a.needs_attention() && first * frame.len() >= BATCH);
        assert!(ready(&mut a).contains(&2) && !a.needs_attention());
        let mut rest = 0;
        while rest + first < many.len() / frame.len() {
            rest += received(&mut a, 2).unwrap().len();
        }
        // A closed end is not waited for, finished or not.
        peers[1].send(&many).unwrap();
        peers[1].flush().unwrap();
        received(&mut a, 2).unwrap();
        assert!(a.needs_attention() && a.close(2) == Some(7) && !a.needs_attention());
        assert!(ready(&mut a).is_empty() && a.incarnation(2).is_none() && a.incarnation(9) == Some(7));
    }

    #[test]
    fn rings_within_a_process_need_no_descriptor_unless_threads_serve_them() {
        for apart in [false, true] {
            let set = WaitSet::new().unwrap();
            let readable = || set.wait(Some(0), |place, _| assert_eq!(place, u64::from(PLACE))).unwrap();
            let mut a = Rings::default();
            if apart {
                a.serve_apart();
            }
            let mut peers = Vec::new();
            for node in [5, 2, 9] {
                let [near, far] = Within::pair();
                let carrier = Some(Carrier::Within(near));
                let offer = Offer { node, incarnation: 7, own: 8, bytes: 4096, credits: 4, side: 0, carrier };
                a.open(offer, &set.places(0)).unwrap();
                peers.push(far);
            }
            assert!(ready(&mut a).is_empty() && !a.needs_attention() && !readable());
            for peer in [2, 0] {
                peers[peer].send(Frame::Alive, None);
                peers[peer].flush().unwrap();
            }
            assert_eq!((a.needs_attention(), readable()), (true, apart));
            assert_eq!(ready(&mut a), [5, 9]);
            assert!(!a.needs_attention() && !readable());
            assert_eq!(received(&mut a, 9).unwrap(), [Frame::Alive]);
            assert_eq!(received(&mut a, 5).unwrap(), [Frame::Alive]);
            a.send(2, Frame::Alive);
            assert!(a.flush().is_empty());
            let mut got = VecDeque::new();
            peers[1].receive(0, &mut got).unwrap();
            assert_eq!((got.len(), a.close(2), a.close(2)), (1, Some(7), None));
            peers[1].receive(0, &mut got).unwrap();
            assert!(peers[1].has_ended());
        }
    }

    #[test]
    fn what_is_no_frame_breaks_the_ring() {
        let ([low, high], memory) = Ring::for_others(4096).unwrap();
        let mut a = Rings::default();
        a.open(offer(1, 0, low, memory.as_fd()), &Places::default()).unwrap();
        let mut peer = Ring::open(high, memory.as_fd(), 4096, 1, 0).unwrap();
        peer.send(&[0xff; 64]).unwrap();
        peer.flush().unwrap();
        assert!(received(&mut a, 1).is_err());
    }

    #[test]
    fn a_peer_that_does_not_read_costs_a_bounded_buffer() {
        let (mut a, _b) = pair();
        let frame = Frame::NodeDown { node: 1 };
        for sent in 0.. {
            assert!(sent < 2 * OUT_LIMIT, "never full");
            a.send(1, frame.clone());
            if sent % 100_000 == 0 && !a.flush().is_empty() {
                break;
            }
        }
    }

    #[test]
    fn a_peer_that_has_gone_is_no_error() {
        let (mut a, mut b) = pair();
        b.send(0, Frame::Alive);
        b.close_all();
        assert_eq!(received(&mut a, 1).unwrap(), [Frame::Alive]);
        a.send(1, Frame::Alive);
        assert!(a.flush().is_empty());
        assert_eq!((a.close(1), a.close(1)), (Some(7), None));
    }

    #[test]
    fn an_offer_without_descriptors_is_refused() {
        let mut rings = Rings::default();
        let offer = Offer { node: 1, incarnation: 7, own: 8, bytes: 4096, credits: 4, side: 0, carrier: None };
        assert!(rings.open(offer, &Places::default()).unwrap_err().to_string().contains("ulimit"));
    }
}
