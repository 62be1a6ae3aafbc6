// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rings to other boards of this host: frames in shared memory, without the fabric. The fabric hands out their ends
//! (`fabric_link`), the core decides what passes by them, and `board` owns them.
//!
//! The peer may be hostile: what is no index, no frame, or of a source that is not the peer breaks the ring.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use telegraphos_link::ring::{Ring, Taken};
use telegraphos_link::{BATCH, Input, OUT_LIMIT};
use telegraphos_service::wait::{Places, Readiness, WaitSet, Watched};
use telegraphos_wire::NodeId;
use telegraphos_wire::link::{Frame, MAX_LEN};

/// The place of all rings among those of their board.
pub(crate) const PLACE: u32 = 4;

/// An end of a ring, as the fabric offers it ([`Frame::Ring`]).
#[derive(Debug)]
pub struct Offer {
    /// The node at the other end.
    pub node: NodeId,
    pub incarnation: u64,
    /// The incarnation of this board that it is offered to.
    pub own: u64,
    /// Bytes of each direction.
    pub bytes: u32,
    /// Requests, and as many elements, that either end may have in the other's buffers.
    pub credits: u32,
    /// The direction in which this board writes.
    pub side: u8,
    /// The socket for wake-ups, and the memory; `None` if they were lost.
    pub fds: Option<[OwnedFd; 2]>,
}

#[derive(Debug)]
struct End {
    ring: Ring,
    /// The incarnation of the peer.
    incarnation: u64,
    input: Input,
    output: Vec<u8>,
    /// Bytes of `output` that the ring has taken.
    taken: usize,
    /// It is in the list of ends to flush.
    dirty: bool,
    /// The last receive has ended with its limit: there may be more, of which no wake-up tells.
    unfinished: bool,
    /// The peer has closed its end. Whether it is down the fabric tells.
    ended: bool,
}

impl End {
    fn send(&mut self, frame: &Frame) {
        if !self.ended {
            frame.encode(&mut self.output);
        }
    }

    /// Writes what is queued, as far as there is room, and wakes the peer.
    fn flush(&mut self) -> io::Result<()> {
        self.taken += self.ring.send(&self.output[self.taken..])?;
        if self.taken == self.output.len() {
            self.output.clear();
            self.taken = 0;
        } else if self.taken >= self.output.len() / 2 {
            self.output.drain(..self.taken);
            self.taken = 0;
        }
        self.ring.flush()?;
        if self.output.len() + MAX_LEN > OUT_LIMIT {
            return Err(io::Error::other("it does not read"));
        }
        Ok(())
    }

    /// Takes out what is there, at most [`BATCH`] bytes.
    fn receive(&mut self, now: u64, frames: &mut VecDeque<Frame>) -> io::Result<()> {
        let mut taken = 0;
        self.unfinished = false;
        while !self.ended {
            if taken >= BATCH {
                self.unfinished = true;
                break;
            }
            match self.ring.receive(now, self.input.space())? {
                Taken::Bytes(n) => {
                    self.input.filled(n);
                    taken += n;
                }
                Taken::Nothing => break,
                Taken::End => self.ended = true,
            }
            while let Some(frame) = self.input.frame().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))? {
                frames.push_back(frame);
            }
        }
        Ok(())
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    /// By node; as long as the highest node needs that a ring was ever open to.
    ends: Vec<Option<Box<End>>>,
    /// The nodes that have one.
    nodes: Vec<NodeId>,
    /// Of the sockets of all ends; made with the first, and waited for at [`PLACE`].
    set: Option<Watched<WaitSet>>,
    /// Ends with something to write.
    dirty: Vec<NodeId>,
    /// Ends that are [unfinished](End::unfinished), and some that were.
    unfinished: Vec<NodeId>,
}

impl Rings {
    fn end(&mut self, node: NodeId) -> Option<&mut End> {
        self.ends.get_mut(usize::from(node))?.as_deref_mut()
    }

    /// Opens an end. While something has arrived at any, [`PLACE`] is readable.
    pub(crate) fn open(&mut self, offer: Offer, places: &Places) -> io::Result<()> {
        let lost = || io::Error::other("its descriptors were lost; raise the limit of open files (ulimit -n)");
        let [socket, memory] = offer.fds.ok_or_else(lost)?;
        let ring = Ring::open(socket, memory.as_fd(), offer.bytes, offer.side, 0)?;
        let set = match &mut self.set {
            Some(set) => set,
            none => none.insert(places.watch(PLACE, WaitSet::new()?, Readiness::READ)?),
        };
        set.add(ring.fd(), offer.node.into(), Readiness::READ)?;
        let (input, output) = (Input::new(), Vec::new());
        let end = End {
            ring,
            incarnation: offer.incarnation,
            input,
            output,
            taken: 0,
            dirty: false,
            unfinished: false,
            ended: false,
        };
        self.close(offer.node);
        let place = usize::from(offer.node);
        if self.ends.len() <= place {
            self.ends.resize_with(place + 1, || None);
        }
        self.ends[place] = Some(Box::new(end));
        self.nodes.push(offer.node);
        Ok(())
    }

    /// Closes the end of the ring to a node. Returns the incarnation of that node.
    pub(crate) fn close(&mut self, node: NodeId) -> Option<u64> {
        let end = self.ends.get_mut(usize::from(node))?.take()?;
        self.nodes.retain(|of| *of != node);
        self.unfinished.retain(|of| *of != node);
        Some(end.incarnation)
    }

    /// Closes all, behind what was sent.
    pub(crate) fn close_all(&mut self) {
        for mut end in self.ends.drain(..).flatten() {
            // What does not fit is lost with the ring.
            let _ = end.flush();
        }
        self.nodes.clear();
        self.dirty.clear();
        self.unfinished.clear();
    }

    /// The incarnation of the node that a ring leads to.
    pub(crate) fn incarnation(&self, node: NodeId) -> Option<u64> {
        self.ends.get(usize::from(node))?.as_ref().map(|end| end.incarnation)
    }

    /// Queues a frame. Dropped if there is no such end: the core is, or will be, notified.
    pub(crate) fn send(&mut self, node: NodeId, frame: &Frame) {
        let Some(end) = self.end(node) else { return };
        end.send(frame);
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
            if let Err(e) = end.flush() {
                broken.push((node, e));
            }
        }
        broken
    }

    /// The nodes whose ends have something to receive, or room; in `ready`, which is empty.
    pub(crate) fn ready(&mut self, ready: &mut Vec<NodeId>) {
        ready.append(&mut self.unfinished);
        if let [node] = self.nodes[..] {
            ready.clear();
            return ready.push(node);
        }
        let Some(set) = &self.set else { return };
        // An error leaves them for the next turn.
        let _ = set.wait(Some(0), |node, _| ready.push(node as NodeId));
        ready.sort_unstable();
        ready.dedup();
    }

    /// Whether to receive again although nothing is readable.
    pub(crate) fn is_unfinished(&self) -> bool {
        !self.unfinished.is_empty()
    }

    /// Receives from one end: appends its frames, the last ones even if it has broken behind them.
    pub(crate) fn receive(&mut self, now: u64, node: NodeId, frames: &mut VecDeque<Frame>) -> io::Result<()> {
        let Some(Some(end)) = self.ends.get_mut(usize::from(node)) else { return Ok(()) };
        let received = end.receive(now, frames);
        if end.unfinished {
            self.unfinished.push(node);
        }
        if end.ended {
            if let Some(set) = &self.set {
                // It stays readable for ever.
                let _ = set.remove(end.ring.fd());
            }
            end.output = Vec::new();
            end.taken = 0;
        } else if !end.output.is_empty() && !std::mem::replace(&mut end.dirty, true) {
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

    fn offer(node: NodeId, side: u8, socket: OwnedFd, memory: BorrowedFd<'_>) -> Offer {
        let fds = Some([socket, memory.try_clone_to_owned().unwrap()]);
        Offer { node, incarnation: 7, own: 8, bytes: 4096, credits: 4, side, fds }
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
        Ok(frames.into())
    }

    #[test]
    fn frames_pass_both_ways_also_when_the_ring_is_full() {
        let (mut a, mut b) = pair();
        let sent: Vec<Frame> = (0..1000).map(|node| Frame::NodeDown { node }).collect();
        sent.iter().for_each(|frame| a.send(1, frame));
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
        b.send(0, &Frame::Alive);
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
        assert!(ready(&mut a).is_empty() && !a.is_unfinished());
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
        assert!(a.is_unfinished() && first * frame.len() >= BATCH);
        assert!(ready(&mut a).contains(&2) && !a.is_unfinished());
        let mut rest = 0;
        while rest + first < many.len() / frame.len() {
            rest += received(&mut a, 2).unwrap().len();
        }
        // A closed end is not waited for, finished or not.
        peers[1].send(&many).unwrap();
        peers[1].flush().unwrap();
        received(&mut a, 2).unwrap();
        assert!(a.is_unfinished() && a.close(2) == Some(7) && !a.is_unfinished());
        assert!(ready(&mut a).is_empty() && a.incarnation(2).is_none() && a.incarnation(9) == Some(7));
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
            a.send(1, &frame);
            if sent % 100_000 == 0 && !a.flush().is_empty() {
                break;
            }
        }
    }

    #[test]
    fn a_peer_that_has_gone_is_no_error() {
        let (mut a, mut b) = pair();
        b.send(0, &Frame::Alive);
        b.close_all();
        assert_eq!(received(&mut a, 1).unwrap(), [Frame::Alive]);
        a.send(1, &Frame::Alive);
        assert!(a.flush().is_empty());
        assert_eq!((a.close(1), a.close(1)), (Some(7), None));
    }

    #[test]
    fn an_offer_without_descriptors_is_refused() {
        let mut rings = Rings::default();
        let offer = Offer { node: 1, incarnation: 7, own: 8, bytes: 4096, credits: 4, side: 0, fds: None };
        assert!(rings.open(offer, &Places::default()).unwrap_err().to_string().contains("ulimit"));
    }
}
