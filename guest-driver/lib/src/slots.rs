// SPDX-License-Identifier: MIT OR Apache-2.0
//! The context's 64 slots, shared by quiet and operations, and the two pages behind them.
//!
//! Whatever the board is asked that takes time occupies one slot from the question to its answer, and no two threads share
//! one. A caller may give up waiting sooner; then its slot is an *orphan*: a launch into a slot whose operation is unfinished
//! would be refused, so it stays taken until the answer has come, which somebody who looks for a slot later notices. Only
//! the orphan of a quiet may be taken over, by another quiet, for which the board forgets the older question.
//!
//! Cookies are used once: a late answer to an older question bears the older cookie.

use crate::access::Instructions;
use crate::error::Result;
use crate::node::Inner;
use crate::sys::Mapping;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use telegraphos_wire::{Status, context};

/// Looks at a word before the thread gives up its processor for the first time: the board may well run on another one.
const SPINS: u32 = 256;
/// Looks between which other threads may run, before it sleeps.
const YIELDS: u32 = 64;
const SLEEP_MIN: Duration = Duration::from_micros(20);
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// Sleeps between questions to the driver whether an answer can still come.
const CHECK_EVERY: u32 = 64;

const COOKIE_MASK: u64 = (1 << context::COOKIE_BITS) - 1;

/// What a slot is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Quiet,
    Operation,
}

/// The slots of a context.
#[derive(Debug)]
pub(crate) struct Slots {
    context_page: Mapping,
    status_page: Mapping,
    /// One bit per slot that has an owner or an unfinished question.
    used: AtomicU64,
    /// Those of them that nobody owns any more.
    orphans: AtomicU64,
    /// Those of them that hold an operation.
    operations: AtomicU64,
    /// The last question of each slot.
    cookies: [AtomicU64; context::SLOTS],
    cookie: AtomicU64,
}

impl Slots {
    pub(crate) fn new(context_page: Mapping, status_page: Mapping) -> Slots {
        Slots {
            context_page,
            status_page,
            used: AtomicU64::new(0),
            orphans: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            cookies: std::array::from_fn(|_| AtomicU64::new(0)),
            cookie: AtomicU64::new(0),
        }
    }

    fn next_cookie(&self) -> u64 {
        // Never 0, which is what an unused slot of the status page holds; 2^48 questions take longer than machines live.
        loop {
            let cookie = (self.cookie.fetch_add(1, Ordering::Relaxed) + 1) & COOKIE_MASK;
            if cookie != 0 {
                return cookie;
            }
        }
    }

    /// Takes a slot for a new question; `None` if all are in use.
    fn take(&self, purpose: Use) -> Option<u32> {
        if self.orphans.load(Ordering::Relaxed) != 0 {
            self.reap();
        }
        let mut seen = self.used.load(Ordering::Relaxed);
        let slot = loop {
            let free = seen.trailing_ones();
            if free >= context::SLOTS as u32 {
                break match purpose {
                    Use::Quiet => self.inherit()?,
                    Use::Operation => return None,
                };
            }
            match self.used.compare_exchange_weak(seen, seen | 1 << free, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break free,
                Err(now) => seen = now,
            }
        };
        let bit = 1 << slot;
        match purpose {
            Use::Quiet => self.operations.fetch_and(!bit, Ordering::Relaxed),
            Use::Operation => self.operations.fetch_or(bit, Ordering::Relaxed),
        };
        self.cookies[slot as usize].store(self.next_cookie(), Ordering::Relaxed);
        Some(slot)
    }

    /// Makes one orphan the caller's own; false if it is no orphan any more.
    fn adopt(&self, slot: u32) -> bool {
        self.orphans.fetch_and(!(1 << slot), Ordering::Acquire) & 1 << slot != 0
    }

    /// Frees the orphans whose answer has come.
    fn reap(&self) {
        for slot in bits(self.orphans.load(Ordering::Relaxed)) {
            // Whoever has adopted it looks at its cookie alone.
            if !self.adopt(slot) {
                continue;
            }
            match self.answer(slot) {
                Some(_) => self.release(slot),
                None => self.abandon(slot),
            }
        }
    }

    /// The orphan of a quiet, for another quiet.
    fn inherit(&self) -> Option<u32> {
        let quiets = self.orphans.load(Ordering::Relaxed) & !self.operations.load(Ordering::Relaxed);
        bits(quiets).find(|slot| {
            if !self.adopt(*slot) {
                return false;
            }
            let operation = self.operations.load(Ordering::Relaxed) & 1 << slot != 0;
            if operation {
                self.abandon(*slot);
            }
            !operation
        })
    }

    fn release(&self, slot: u32) {
        self.used.fetch_and(!(1 << slot), Ordering::Release);
    }

    fn abandon(&self, slot: u32) {
        self.orphans.fetch_or(1 << slot, Ordering::Release);
    }

    fn cookie(&self, slot: u32) -> u64 {
        self.cookies[slot as usize].load(Ordering::Relaxed)
    }

    /// One 8-byte store to the context page.
    pub(crate) fn tell(&self, offset: u64, value: u64) {
        debug_assert!(offset % 8 == 0 && offset < context::STATUS_SIZE);
        // SAFETY: callers pass register offsets of the context page, which is mapped at least that long.
        unsafe { u64::window_store(self.context_page.at().add(offset as usize).cast(), value) }
    }

    fn status_word(&self, offset: u64) -> u64 {
        // SAFETY: callers pass offsets of words of the status page, which is mapped whole; the board writes it word by word.
        unsafe { u64::load_acquire(self.status_page.at().add(offset as usize).cast()) }
    }

    /// The answer to the slot's question, with the word an atomic found; acquires what the board did before.
    fn answer(&self, slot: u32) -> Option<(Status, u64)> {
        let at = 8 * u64::from(slot);
        let word = self.status_word(at);
        if word & COOKIE_MASK != self.cookie(slot) {
            return None;
        }
        Some((Status::from_u16((word >> context::COOKIE_BITS) as u16), self.status_word(context::VALUE_OFFSET + at)))
    }

    /// What the board would see at an offset of the context page.
    #[cfg(test)]
    pub(crate) fn told(&self, offset: u64) -> u64 {
        // SAFETY: the test's own page.
        unsafe { u64::load_acquire(self.context_page.at().add(offset as usize).cast()) }
    }

    /// What the board does at last.
    #[cfg(test)]
    pub(crate) fn give_answer(&self, slot: u32, status: Status, value: u64) {
        let word = (status as u64) << context::COOKIE_BITS | self.cookie(slot);
        for (offset, word) in [(context::VALUE_OFFSET, value), (0, word)] {
            // SAFETY: the test's own page.
            unsafe { u64::store_release(self.status_page.at().add(offset as usize + 8 * slot as usize).cast(), word) };
        }
    }

    /// Operations launched and not yet done.
    pub(crate) fn unfinished(&self) -> u32 {
        let operations = self.used.load(Ordering::Relaxed) & self.operations.load(Ordering::Relaxed);
        bits(operations).filter(|slot| self.answer(*slot).is_none()).count() as u32
    }
}

/// The numbers of the bits set.
fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (bit < u64::BITS).then_some(bit)
    })
}

/// A slot taken for one question, until it is dropped.
#[derive(Debug)]
pub(crate) struct Question<I: Deref<Target = Inner>> {
    pub(crate) inner: I,
    pub(crate) slot: u32,
    asked: bool,
    armed: bool,
    answer: Option<(Status, u64)>,
}

impl<I: Deref<Target = Inner>> Question<I> {
    /// A slot, once there is one; `None` when patience has ended first.
    pub(crate) fn new(inner: I, purpose: Use, backoff: &mut Backoff) -> Option<Question<I>> {
        loop {
            if let Some(slot) = inner.slots.take(purpose) {
                return Some(Question { inner, slot, asked: false, armed: false, answer: None });
            }
            if !backoff.wait() {
                return None;
            }
        }
    }

    /// The number by which the answer will be known.
    pub(crate) fn cookie(&self) -> u64 {
        self.inner.slots.cookie(self.slot)
    }

    /// Stores to the context page the word that asks; from now on the slot is the board's until it answers.
    pub(crate) fn ask(&mut self, offset: u64, word: u64) {
        self.asked = true;
        self.inner.slots.tell(offset, word);
    }

    /// The answer, if it is there: one look at memory.
    pub(crate) fn look(&mut self) -> Option<(Status, u64)> {
        if self.answer.is_none() {
            self.answer = self.inner.slots.answer(self.slot);
        }
        self.answer
    }

    /// The answer; `None` when patience has ended first.
    pub(crate) fn wait(
        &mut self,
        backoff: &mut Backoff,
        doubt: impl Fn(&Inner) -> Result<()>,
    ) -> Result<Option<(Status, u64)>> {
        loop {
            if let Some(answer) = self.look() {
                return Ok(Some(answer));
            }
            if !backoff.wait() {
                return Ok(None);
            }
            if backoff.doubts() {
                doubt(&self.inner)?;
            }
        }
    }

    /// Asks for an event when the answer is there; at once if it is there already.
    pub(crate) fn arm(&mut self) {
        if !self.armed {
            self.armed = true;
            self.inner.slots.tell(context::ARM + 8 * u64::from(self.slot), self.cookie());
        }
    }
}

impl<I: Deref<Target = Inner>> Drop for Question<I> {
    fn drop(&mut self) {
        if !self.asked || self.look().is_some() {
            self.inner.slots.release(self.slot);
        } else {
            self.inner.slots.abandon(self.slot);
        }
    }
}

/// Waits in growing steps.
#[derive(Debug)]
pub(crate) struct Backoff {
    round: u32,
    sleep: Duration,
    begun: Instant,
    limit: Option<Duration>,
}

impl Backoff {
    pub(crate) fn new(limit: Option<Duration>) -> Backoff {
        Backoff { round: 0, sleep: SLEEP_MIN, begun: Instant::now(), limit }
    }

    /// One step; false when the limit is reached.
    pub(crate) fn wait(&mut self) -> bool {
        self.round = self.round.saturating_add(1);
        if self.round <= SPINS {
            std::hint::spin_loop();
            // A limit of zero means one look.
            return self.limit != Some(Duration::ZERO);
        }
        let left = match self.left() {
            Some(Duration::ZERO) => return false,
            left => left.unwrap_or(SLEEP_MAX),
        };
        if self.round <= SPINS + YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(self.sleep.min(left));
            self.sleep = (self.sleep * 2).min(SLEEP_MAX);
        }
        true
    }

    /// Whether it is time to ask the driver.
    pub(crate) fn doubts(&self) -> bool {
        self.round > SPINS + YIELDS && self.round % CHECK_EVERY == 0
    }

    /// Time until the limit; `None` without one.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.limit.map(|limit| limit.saturating_sub(self.begun.elapsed()))
    }

    pub(crate) fn waited(&self) -> Duration {
        self.begun.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots() -> Slots {
        Slots::new(Mapping::anonymous(8192), Mapping::anonymous(4096))
    }

    #[test]
    fn slots_are_taken_once_and_given_back() {
        let slots = slots();
        let mut all: Vec<_> = (0..64).map(|_| slots.take(Use::Operation).unwrap()).collect();
        all.dedup();
        assert_eq!(all, (0..64).collect::<Vec<_>>());
        assert!(slots.take(Use::Operation).is_none());
        assert!(slots.take(Use::Quiet).is_none());
        all.iter().for_each(|slot| slots.release(*slot));
        assert_eq!(slots.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn threads_never_share_a_slot() {
        let slots = slots();
        let holders: [AtomicU64; 64] = std::array::from_fn(|_| AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (slots, holders) = (&slots, &holders);
                scope.spawn(move || {
                    for round in 0..2000 {
                        let purpose = if round % 3 == 0 { Use::Quiet } else { Use::Operation };
                        let Some(slot) = slots.take(purpose) else { continue };
                        let holder = &holders[slot as usize];
                        assert_eq!(holder.fetch_add(1, Ordering::Relaxed), 0);
                        if (round + thread) % 2 == 0 {
                            slots.give_answer(slot, Status::Ok, 0);
                            holder.fetch_sub(1, Ordering::Relaxed);
                            slots.abandon(slot);
                        } else {
                            holder.fetch_sub(1, Ordering::Relaxed);
                            slots.release(slot);
                        }
                    }
                });
            }
        });
        slots.reap();
        assert_eq!(slots.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_unfinished_operation_keeps_its_slot_until_its_answer() {
        let slots = slots();
        let all: Vec<_> = (0..64).map(|_| slots.take(Use::Operation).unwrap()).collect();
        all.iter().for_each(|slot| slots.abandon(*slot));
        assert_eq!(slots.unfinished(), 64);
        assert!(slots.take(Use::Operation).is_none());
        assert!(slots.take(Use::Quiet).is_none(), "a quiet must not take the slot of an operation");
        slots.give_answer(17, Status::Stale, 0);
        assert_eq!(slots.unfinished(), 63);
        assert_eq!(slots.take(Use::Operation), Some(17));
        assert_eq!(slots.answer(17), None, "the answer to an older question");
        slots.give_answer(17, Status::Rights, 42);
        assert_eq!(slots.answer(17), Some((Status::Rights, 42)));
    }

    #[test]
    fn a_quiet_given_up_gives_its_slot_to_the_next_quiet() {
        let slots = slots();
        for _ in 0..1000 {
            let slot = slots.take(Use::Quiet).unwrap();
            slots.abandon(slot);
        }
        assert!(slots.take(Use::Operation).is_none());
        slots.give_answer(3, Status::Ok, 0);
        assert_eq!(slots.take(Use::Operation), Some(3));
    }

    #[test]
    fn patience_ends_at_its_limit() {
        let mut once = Backoff::new(Some(Duration::ZERO));
        assert!(!once.wait());
        let mut short = Backoff::new(Some(Duration::from_millis(3)));
        while short.wait() {}
        assert!(short.waited() >= Duration::from_millis(3));
    }
}
