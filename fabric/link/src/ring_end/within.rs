// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a ring to a board of the same process: frames are handed over whole, each with what is beside it, without
//! bytes, copies of blocks or system calls. What was sent in one turn is handed over under one lock.
//!
//! An end has no descriptor. Its board has one [`Calls`] for all its rings, in which a peer notes what has something to
//! do: so a board finds that without a look at each of its rings, however many they are.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::io::Errno;
use telegraphos_wire::NodeId;
use telegraphos_wire::link::{Frame, packet_len};

use super::{Beside, Passing, RingEnd};
use crate::bell::Bell;
use crate::queue::{Queue, Waits, locked};

/// Ends of one board's rings that have something to do; see the module.
#[derive(Debug, Default)]
pub struct Calls {
    called: Mutex<Vec<NodeId>>,
    /// There are some in `called`, to be read without its lock.
    any: AtomicBool,
    bell: Option<Bell>,
}

impl Calls {
    /// For boards that one thread serves: it looks.
    pub fn new() -> Calls {
        Calls::default()
    }

    /// For boards that several threads serve: a call costs a system call, unless one before it was not taken. Fails if
    /// the process has no descriptor left.
    pub fn with_bell() -> Result<Calls, Errno> {
        Ok(Calls { bell: Some(Bell::new()?), ..Calls::default() })
    }

    fn call(&self, node: NodeId) {
        let mut called = locked(&self.called);
        called.push(node);
        let first = !self.any.swap(true, Ordering::SeqCst);
        if let (true, Some(bell)) = (first, &self.bell) {
            bell.raise();
        }
    }

    /// Whether an end has something to do.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    /// Takes the nodes at the other ends of those that have something to do, and perhaps of some that had; appends them
    /// to `nodes`.
    pub fn take(&self, nodes: &mut Vec<NodeId>) {
        if !self.any() {
            return;
        }
        let mut called = locked(&self.called);
        // Under the lock, so that the next call raises it again.
        if let Some(bell) = &self.bell {
            bell.clear();
        }
        self.any.store(false, Ordering::SeqCst);
        nodes.append(&mut called);
    }

    /// Readable while an end has something to do; `None` for one thread.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().map(Bell::fd)
    }
}

impl Waits for Passing {
    /// What is beside it is its lender's.
    fn held(&self) -> usize {
        self.frame.held() + size_of::<Option<Beside>>()
    }
}

#[derive(Debug, Default)]
struct Way {
    queue: Mutex<Queue<Passing>>,
    /// The end that receives has something to do.
    attention: AtomicBool,
    /// Where it is called, and by the name of which node.
    calls: OnceLock<(Arc<Calls>, NodeId)>,
    /// The end that sends has gone.
    ended: AtomicBool,
    /// Of each class, the packets that were handed over and their bytes on a link; see [`Passed`].
    passed: [[AtomicU64; 2]; 4],
}

impl Way {
    /// Calls the receiving end. What it is to find was written before.
    fn call(&self) {
        if !self.attention.swap(true, Ordering::SeqCst) {
            // Either this sees where to call, or the end that says so sees that it needs attention.
            fence(Ordering::SeqCst);
            if let Some((calls, node)) = self.calls.get() {
                calls.call(*node);
            }
        }
    }
}

/// What passes a ring, to be counted by another part of the process, also when its ends have gone.
#[derive(Debug)]
pub struct Passed(Arc<[Way; 2]>);

impl Passed {
    /// Of each class, the packets to the end of this number, and their bytes on a link, since the last call.
    pub fn take(&self, to: usize) -> [[u64; 2]; 4] {
        // A count, which nothing else depends on.
        self.0[to].passed.each_ref().map(|class| class.each_ref().map(|count| count.swap(0, Ordering::Relaxed)))
    }
}

/// See the module.
#[derive(Debug)]
pub struct Within {
    /// By the end that receives.
    ways: Arc<[Way; 2]>,
    me: usize,
    /// Sent in this turn.
    output: Queue<Passing>,
    /// Of each class, its packets and their bytes.
    counted: [[u64; 2]; 4],
    ended: bool,
}

impl Within {
    /// The two ends of a ring.
    pub fn pair() -> [Within; 2] {
        let ways: Arc<[Way; 2]> = Arc::default();
        [0, 1].map(|me| Within {
            ways: Arc::clone(&ways),
            me,
            output: Queue::default(),
            counted: [[0; 2]; 4],
            ended: false,
        })
    }

    /// From now on, this end is called here, by the name of the node at the other end. At once if it needs attention.
    pub fn call_at(&self, calls: &Arc<Calls>, node: NodeId) {
        let way = self.inward();
        if way.calls.set((Arc::clone(calls), node)).is_ok() {
            fence(Ordering::SeqCst);
            if way.attention.load(Ordering::SeqCst) {
                calls.call(node);
            }
        }
    }

    /// What passes this ring.
    pub fn passed(&self) -> Passed {
        Passed(Arc::clone(&self.ways))
    }

    fn inward(&self) -> &Way {
        &self.ways[self.me]
    }

    fn outward(&self) -> &Way {
        &self.ways[1 - self.me]
    }
}

impl RingEnd for Within {
    fn send(&mut self, frame: Frame, beside: Option<Beside>) {
        if !self.ended {
            if let Frame::Packet(packet) = &frame {
                let [packets, bytes] = &mut self.counted[packet.body.class() as usize];
                *packets += 1;
                *bytes += packet_len(packet) + beside.as_ref().map_or(0, |beside| beside.length.into());
            }
            // More than may wait there: the flush fails.
            self.output.put(Passing { frame, beside });
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.output.len() == 0 {
            return Ok(());
        }
        if self.inward().ended.load(Ordering::SeqCst) {
            self.output = Queue::default();
            return Ok(());
        }
        let way = &self.ways[1 - self.me];
        locked(&way.queue).append(&mut self.output).map_err(|_| io::Error::other("it does not read"))?;
        let sums = way.passed.iter().flatten().zip(self.counted.iter_mut().flatten());
        sums.filter(|(_, count)| **count > 0).for_each(|(sum, count)| {
            sum.fetch_add(std::mem::take(count), Ordering::Relaxed);
        });
        way.call();
        Ok(())
    }

    fn is_short_of_room(&self) -> bool {
        false
    }

    fn receive(&mut self, _now: u64, frames: &mut VecDeque<Passing>) -> io::Result<()> {
        let way = self.inward();
        way.attention.store(false, Ordering::SeqCst);
        // Before the frames: what was sent before the end is found.
        let ended = way.ended.load(Ordering::SeqCst);
        locked(&way.queue).take(frames);
        self.ended |= ended;
        Ok(())
    }

    fn needs_attention(&self) -> bool {
        false
    }

    fn has_ended(&self) -> bool {
        self.ended
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        let way = self.outward();
        way.ended.store(true, Ordering::SeqCst);
        way.call();
        // Nothing will take them.
        *locked(&self.inward().queue) = Queue::default();
    }
}
