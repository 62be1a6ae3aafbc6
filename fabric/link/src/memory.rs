// SPDX-License-Identifier: MIT OR Apache-2.0
//! A link whose two ends are in one process: frames are handed over whole, in order, each once, without bytes, copies
//! of blocks or system calls.
//!
//! ```text
//!   HIB ── MemoryLink ⇄ two queues of frames ⇄ MemoryLink ── port of the fabric
//!            ▲                                       ▲
//!            └────────── Door::open ── Door::enter ──┘
//! ```
//!
//! Where one thread serves both ends, nothing here wakes it: it asks each whether it
//! [needs attention](MemoryLink::needs_attention) before it sleeps. Where each end has a thread of its own
//! ([`Door::open_apart`]), both ring: a system call for the first frame after the other end has looked, none for those
//! that follow.
//!
//! A queue is a deque under a lock, which is held for one push, or to swap the deque for an empty one: a receiver takes
//! all that waits at once. It has the memory that waits in it, up to [`OUT_LIMIT`](crate::OUT_LIMIT) bytes. The example
//! `memory_link` measures it beside queues without locks; why none of them is used is in `docs/architecture.md`
//! ("Processes and threads").
//!
//! Both directions are bounded as those of a stream: [`MemoryLink::send`] refuses what would exceed
//! [`OUT_LIMIT`](crate::OUT_LIMIT) bytes.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::io::Errno;
use telegraphos_wire::link::Frame;

use crate::bell::Bell;
use crate::client::{OutputFull, Received};
use crate::queue::{Queue, locked};
use crate::ring_end::Within;

#[derive(Debug)]
struct Way {
    queue: Mutex<Queue<Frame>>,
    /// Frames in `queue`, to be read without its lock.
    waiting: AtomicUsize,
    /// The end that receives has something to do: frames, room for its own, or the end of the other.
    attention: AtomicBool,
    /// The end that sends wants to know of room.
    wants_room: AtomicBool,
    /// The end that sends has gone.
    ended: AtomicBool,
    /// Ends of rings, one for each [`Frame::Ring`] in `queue`.
    ring_ends: Mutex<VecDeque<Within>>,
    /// Rung at each new need of attention, if it is to be.
    bell: Bell,
    rings: AtomicBool,
}

impl Way {
    fn new() -> io::Result<Way> {
        Ok(Way {
            queue: Mutex::default(),
            waiting: AtomicUsize::new(0),
            attention: AtomicBool::new(false),
            wants_room: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            ring_ends: Mutex::default(),
            bell: Bell::new()?,
            rings: AtomicBool::new(false),
        })
    }

    fn queue(&self) -> MutexGuard<'_, Queue<Frame>> {
        locked(&self.queue)
    }

    /// Asks the receiving end for attention. What it is to find was written before.
    fn call(&self) {
        if !self.attention.swap(true, Ordering::SeqCst) && self.rings.load(Ordering::SeqCst) {
            self.bell.raise();
        }
    }

    /// The receiving end looks at all that there is from here on.
    fn answer(&self) {
        // Silenced before the call is taken back: the other way round it would swallow the ring of the next call.
        if self.rings.load(Ordering::SeqCst) {
            self.bell.clear();
        }
        self.attention.store(false, Ordering::SeqCst);
    }
}

/// One end of a link in memory; see the module.
#[derive(Debug)]
pub struct MemoryLink {
    /// By the end that receives.
    ways: Arc<[Way; 2]>,
    me: usize,
}

impl MemoryLink {
    /// Two ends that are connected. Fails if the process has no descriptor left.
    pub fn pair() -> io::Result<(MemoryLink, MemoryLink)> {
        let ways = Arc::new([Way::new()?, Way::new()?]);
        Ok((MemoryLink { ways: Arc::clone(&ways), me: 0 }, MemoryLink { ways, me: 1 }))
    }

    fn inward(&self) -> &Way {
        &self.ways[self.me]
    }

    fn outward(&self) -> &Way {
        &self.ways[1 - self.me]
    }

    /// Hands a frame over. Refused, and nothing handed over, if more than [`OUT_LIMIT`](crate::OUT_LIMIT) bytes would
    /// wait. If the other
    /// end has gone the frame is dropped: [`MemoryLink::receive`] says so.
    pub fn send(&self, frame: Frame) -> Result<(), OutputFull> {
        let way = self.outward();
        if self.inward().ended.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut queue = way.queue();
        queue.push(frame)?;
        way.waiting.store(queue.len(), Ordering::SeqCst);
        drop(queue);
        way.call();
        Ok(())
    }

    /// Hands over the end of a ring between two boards of this process, with the [`Frame::Ring`] that is sent next.
    pub fn attach(&self, end: Within) {
        locked(&self.outward().ring_ends).push_back(end);
    }

    /// The end that came with the next [`Frame::Ring`]. To be called once for each such frame, in order.
    pub fn take_ring_end(&self) -> Option<Within> {
        locked(&self.inward().ring_ends).pop_front()
    }

    /// Takes all that has arrived, behind what `frames` holds.
    pub fn receive(&self, frames: &mut VecDeque<Frame>) -> Received {
        let way = self.inward();
        way.answer();
        // Before the frames: what was sent before the end is found.
        let closed = way.ended.load(Ordering::SeqCst);
        let mut queue = way.queue();
        let received = queue.take(frames);
        way.waiting.store(0, Ordering::SeqCst);
        drop(queue);
        if received > 0 && way.wants_room.swap(false, Ordering::SeqCst) {
            self.outward().call();
        }
        Received { frames: received, closed }
    }

    /// Whether there is something to do at this end: [`MemoryLink::receive`], and then to send what found no room.
    pub fn needs_attention(&self) -> bool {
        self.inward().attention.load(Ordering::SeqCst)
    }

    /// How many more frames may wait for the other end if `most` may. Where that is less than the half, this end
    /// [needs attention](MemoryLink::needs_attention) when the other has taken them.
    pub fn room(&self, most: usize) -> usize {
        let way = self.outward();
        if way.waiting.load(Ordering::SeqCst) > most / 2 {
            way.wants_room.store(true, Ordering::SeqCst);
        }
        // Read after asking: what is taken from here on is reported.
        most.saturating_sub(way.waiting.load(Ordering::SeqCst))
    }

    /// This end needs attention, although all that has arrived was received: it was not processed.
    pub fn remind(&self) {
        self.inward().call();
    }

    /// Whether the other end has gone.
    pub fn has_ended(&self) -> bool {
        self.inward().ended.load(Ordering::SeqCst)
    }

    /// Readable while this end needs attention, after [`MemoryLink::ring`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.inward().bell.fd()
    }

    /// From now on the bell rings for this end, which costs a system call each time.
    pub fn ring(&self) {
        let way = self.inward();
        way.rings.store(true, Ordering::SeqCst);
        if way.attention.load(Ordering::SeqCst) {
            way.bell.raise();
        }
    }
}

impl Drop for MemoryLink {
    fn drop(&mut self) {
        let way = self.outward();
        way.ended.store(true, Ordering::SeqCst);
        way.call();
        // Nothing will take them.
        *self.inward().queue() = Queue::default();
        locked(&self.inward().ring_ends).clear();
    }
}

impl AsFd for MemoryLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

/// Where ends of links are handed in to a fabric of the same process. A clone is the same door.
#[derive(Clone, Debug)]
pub struct Door {
    waiting: Arc<Mutex<Vec<MemoryLink>>>,
    /// Ends in `waiting`, to be read without its lock.
    count: Arc<AtomicUsize>,
    /// Readable while an end waits.
    bell: Arc<Bell>,
}

impl Door {
    /// A door at which no end waits. Fails if the process has no descriptor left.
    pub fn new() -> Result<Door, Errno> {
        Ok(Door { waiting: Arc::default(), count: Arc::default(), bell: Arc::new(Bell::new()?) })
    }

    /// A new link of which one thread serves both ends: the other end waits for the fabric.
    pub fn open(&self) -> io::Result<MemoryLink> {
        let (here, there) = MemoryLink::pair()?;
        self.hand_in(there);
        Ok(here)
    }

    /// The same of which each end has a thread: both ring, and have a descriptor to wait for.
    pub fn open_apart(&self) -> io::Result<MemoryLink> {
        let (here, there) = MemoryLink::pair()?;
        here.ring();
        there.ring();
        self.hand_in(there);
        Ok(here)
    }

    fn hand_in(&self, link: MemoryLink) {
        let mut waiting = locked(&self.waiting);
        waiting.push(link);
        self.count.store(waiting.len(), Ordering::SeqCst);
        self.bell.raise();
    }

    pub fn is_knocked(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// The ends that wait, in the order in which they were handed in.
    pub fn enter(&self) -> Vec<MemoryLink> {
        let mut waiting = locked(&self.waiting);
        // Under the lock, so that it is readable again for what is handed in from here on.
        self.bell.clear();
        self.count.store(0, Ordering::SeqCst);
        std::mem::take(&mut *waiting)
    }

    /// Readable while an end waits.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::OUT_LIMIT;
    use crate::queue::FRAME;

    fn numbered(node: u16) -> Frame {
        Frame::NodeDown { node }
    }

    fn is_rung(link: &MemoryLink) -> bool {
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(link.fd(), rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    #[test]
    fn frames_arrive_in_order_each_once() {
        let (a, b) = MemoryLink::pair().unwrap();
        let mut got = VecDeque::new();
        assert!(!b.needs_attention());
        for n in 0..10 {
            a.send(numbered(2 * n)).unwrap();
            a.send(numbered(2 * n + 1)).unwrap();
            assert!(b.needs_attention());
            // Every other time they are appended to what is there.
            if n % 2 == 0 {
                assert_eq!(b.receive(&mut got), Received { frames: if n == 0 { 2 } else { 4 }, closed: false });
                assert!(!b.needs_attention());
            }
        }
        b.receive(&mut got);
        assert_eq!(got, (0..20).map(numbered).collect::<VecDeque<_>>());
        assert!(!a.needs_attention(), "nothing was sent to this end, which did not ask for room");
    }

    #[test]
    fn what_was_sent_before_the_end_arrives() {
        let (a, b) = MemoryLink::pair().unwrap();
        a.send(numbered(1)).unwrap();
        drop(a);
        assert!(b.needs_attention() && b.has_ended());
        let mut got = VecDeque::new();
        assert_eq!(b.receive(&mut got), Received { frames: 1, closed: true });
        assert_eq!(b.receive(&mut got), Received { frames: 0, closed: true });
        b.send(numbered(2)).unwrap();
    }

    #[test]
    fn what_waits_is_bounded_and_room_is_reported() {
        let (a, b) = MemoryLink::pair().unwrap();
        let mut sent = 0;
        while a.send(numbered(0)).is_ok() {
            sent += 1;
        }
        assert_eq!(sent, OUT_LIMIT / FRAME);
        assert_eq!((a.room(sent + 2), a.room(sent)), (2, 0));
        assert!(!a.needs_attention());
        let mut got = VecDeque::new();
        b.receive(&mut got);
        assert!(a.needs_attention());
        assert_eq!((a.room(3), got.len()), (3, sent));
        a.receive(&mut VecDeque::new());
        a.send(numbered(0)).unwrap();
        assert_eq!(a.room(3), 2);
        b.receive(&mut got);
        assert!(!a.needs_attention(), "it has not run short of room");
    }

    #[test]
    fn the_bell_rings_where_it_is_wanted_and_only_for_what_is_new() {
        let (a, b) = MemoryLink::pair().unwrap();
        a.send(numbered(0)).unwrap();
        assert!(!is_rung(&b));
        b.ring();
        assert!(is_rung(&b), "for what has arrived before");
        let mut got = VecDeque::new();
        b.receive(&mut got);
        assert!(!is_rung(&b));
        a.send(numbered(1)).unwrap();
        a.send(numbered(2)).unwrap();
        assert!(is_rung(&b));
        b.receive(&mut got);
        assert!(!is_rung(&b) && got.len() == 3);
        drop(a);
        assert!(is_rung(&b));
    }

    #[test]
    fn a_sender_in_another_thread_loses_no_call() {
        const FRAMES: usize = 100_000;
        let (a, b) = MemoryLink::pair().unwrap();
        let sender = std::thread::spawn(move || {
            for n in 0..FRAMES {
                while a.send(numbered(n as u16)).is_err() {
                    std::thread::yield_now();
                }
            }
        });
        b.ring();
        let (mut got, mut next) = (VecDeque::new(), 0usize);
        loop {
            let mut fds = [rustix::event::PollFd::from_borrowed_fd(b.fd(), rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, None).unwrap();
            let received = b.receive(&mut got);
            for frame in got.drain(..) {
                assert_eq!(frame, numbered(next as u16));
                next += 1;
            }
            if received.closed {
                break;
            }
        }
        assert_eq!(next, FRAMES);
        sender.join().unwrap();
    }

    #[test]
    fn a_door_hands_over_each_end_once() {
        let door = Door::new().unwrap();
        assert!(!door.is_knocked());
        let first = door.open().unwrap();
        let second = door.clone().open().unwrap();
        assert!(door.is_knocked());
        let ends = door.enter();
        assert!(ends.len() == 2 && !door.is_knocked() && door.enter().is_empty());
        ends[0].send(numbered(7)).unwrap();
        let mut got = VecDeque::new();
        assert_eq!(first.receive(&mut got).frames, 1);
        assert!(!second.needs_attention());
    }
}
