// SPDX-License-Identifier: MIT OR Apache-2.0
//! One direction of a ring: which side writes which word in which order, so that no wake-up is lost or superfluous.
//!
//! | word | written by | says |
//! |---|---|---|
//! | `tail` | producer | bytes put in so far, modulo 2^32 |
//! | `head` | consumer | bytes taken out so far, modulo 2^32 |
//! | `asleep` | consumer sets it, producer clears it | the consumer has seen the ring empty: wake it for the next bytes |
//! | `wanting` | producer sets it, consumer clears it | the producer has seen the ring full: wake it for room |
//!
//! Bytes are copied before the Release store of `tail`, and read after the Acquire load of it; the same for room and
//! `head`.
//!
//! Sleeping is the pattern of two flags, each side writing its own and then reading the other's:
//!
//! ```text
//!   consumer                          producer
//!     asleep := 1                       tail := tail + n
//!     fence(SeqCst)                     fence(SeqCst)
//!     tail = head? then sleep           swap(asleep, 0) = 1? then wake
//! ```
//!
//! The fences are totally ordered. If the consumer's is first, the producer sees `asleep`; if the producer's is, the
//! consumer sees the new `tail`. So at least one of them notices, and the swap makes it one wake-up for each time that
//! `asleep` was set. Until it is set again, the producer makes no system call. The same with `head` for `tail` and
//! `wanting` for `asleep`.
//!
//! The peer may be malicious. Every index it writes is checked to leave between 0 and `capacity` bytes, and nothing
//! else is relied upon. Its flags can add or suppress wake-ups, which harms only the connection to it.

use std::sync::atomic::{AtomicU32, Ordering};

/// A word of shared memory: the real one, or a model checker's.
pub(super) trait Word {
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, value: u32, order: Ordering);
    fn swap(&self, value: u32, order: Ordering) -> u32;
    fn fence(order: Ordering);
}

impl Word for AtomicU32 {
    fn load(&self, order: Ordering) -> u32 {
        AtomicU32::load(self, order)
    }

    fn store(&self, value: u32, order: Ordering) {
        AtomicU32::store(self, value, order);
    }

    fn swap(&self, value: u32, order: Ordering) -> u32 {
        AtomicU32::swap(self, value, order)
    }

    fn fence(order: Ordering) {
        std::sync::atomic::fence(order);
    }
}

/// The words of one direction.
#[derive(Debug)]
pub(super) struct Words<'a, W> {
    pub(super) tail: &'a W,
    pub(super) head: &'a W,
    pub(super) asleep: &'a W,
    pub(super) wanting: &'a W,
}

/// The peer wrote an index that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Violation;

/// Deliberate bugs; the tests of this file show that each is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// The consumer sleeps without reading `tail` again.
    SleepsAtOnce,
    /// There is no fence between the own word and the other side's.
    NoFence,
    /// Indices of the peer are not checked.
    AcceptAnyIndex,
}

/// The private state of one side of a direction: its own index is never read back from shared memory.
#[derive(Debug)]
pub(super) struct Side {
    /// Bytes of the ring, a power of two below 2^31.
    pub(super) capacity: u32,
    /// The producer's tail or the consumer's head.
    own: u32,
    /// This side has set its flag, and has not yet seen it cleared.
    pub(super) armed: bool,
    /// Set by tests only.
    bug: Option<Bug>,
}

impl Side {
    /// A side at index 0; `armed` if its flag is set initially.
    pub(super) fn new(capacity: u32, armed: bool) -> Side {
        Side { capacity, own: 0, armed, bug: None }
    }

    /// The hook of deliberate bugs: always false outside tests.
    #[inline]
    fn has(&self, bug: Bug) -> bool {
        cfg!(test) && self.bug == Some(bug)
    }

    /// The offset in the ring of the next byte to write or read.
    pub(super) fn position(&self) -> usize {
        (self.own & (self.capacity - 1)) as usize
    }

    fn checked(&self, waiting: u32) -> Result<u32, Violation> {
        if waiting > self.capacity && !self.has(Bug::AcceptAnyIndex) { Err(Violation) } else { Ok(waiting) }
    }

    fn fence<W: Word>(&self) {
        if !self.has(Bug::NoFence) {
            W::fence(Ordering::SeqCst);
        }
    }

    // ---- the producer's ----

    /// Bytes for which there is room.
    pub(super) fn room<W: Word>(&self, words: &Words<'_, W>) -> Result<u32, Violation> {
        let waiting = self.checked(self.own.wrapping_sub(words.head.load(Ordering::Acquire)))?;
        Ok(self.capacity.wrapping_sub(waiting))
    }

    /// `n` more bytes were written.
    pub(super) fn put<W: Word>(&mut self, words: &Words<'_, W>, n: u32) {
        self.own = self.own.wrapping_add(n);
        words.tail.store(self.own, Ordering::Release);
    }

    /// Whether the consumer must be woken for what was written.
    pub(super) fn wake_consumer<W: Word>(&self, words: &Words<'_, W>) -> bool {
        self.fence::<W>();
        words.asleep.load(Ordering::Relaxed) == 1 && words.asleep.swap(0, Ordering::AcqRel) == 1
    }

    /// Requests a wake-up for room. [`Side::room`] must be read afterwards.
    pub(super) fn want<W: Word>(&mut self, words: &Words<'_, W>) {
        if !self.armed {
            words.wanting.store(1, Ordering::Release);
            self.armed = true;
        }
        self.fence::<W>();
    }

    // ---- the consumer's ----

    /// Bytes that can be read.
    pub(super) fn available<W: Word>(&self, words: &Words<'_, W>) -> Result<u32, Violation> {
        self.checked(words.tail.load(Ordering::Acquire).wrapping_sub(self.own))
    }

    /// `n` bytes were read and `left` remain. Returns whether the producer must be woken: from half-full on, so that it
    /// does not wake for each few bytes of room.
    pub(super) fn take<W: Word>(&mut self, words: &Words<'_, W>, n: u32, left: u32) -> bool {
        self.own = self.own.wrapping_add(n);
        words.head.store(self.own, Ordering::Release);
        if left > self.capacity / 2 {
            return false;
        }
        self.fence::<W>();
        words.wanting.load(Ordering::Relaxed) == 1 && words.wanting.swap(0, Ordering::AcqRel) == 1
    }

    /// Requests a wake-up for the next bytes. Returns how many have arrived meanwhile.
    pub(super) fn sleep<W: Word>(&mut self, words: &Words<'_, W>) -> Result<u32, Violation> {
        if !self.armed {
            words.asleep.store(1, Ordering::Release);
            self.armed = true;
        }
        self.fence::<W>();
        if self.has(Bug::SleepsAtOnce) {
            return Ok(0);
        }
        self.available(words)
    }

    /// Whether the peer has cleared this side's `flag` since it was set: it has sent a wake-up, or is about to.
    pub(super) fn woken<W: Word>(&mut self, flag: &W) -> bool {
        let woken = self.armed && flag.load(Ordering::Acquire) == 0;
        self.armed &= !woken;
        woken
    }
}

#[cfg(test)]
#[path = "protocol_tests.rs"]
mod tests;
