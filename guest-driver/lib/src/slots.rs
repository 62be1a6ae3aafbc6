// SPDX-License-Identifier: MIT OR Apache-2.0
//! The context's 64 slots, shared by quiet and operations, and the two pages behind them.
//!
//! Whatever the board is asked that takes time occupies one slot from the question to its answer, and no two threads
//! share one. A caller may give up waiting sooner; then its slot is an *orphan*: a launch into a slot whose operation
//! is unfinished would be refused, so it stays taken until the answer has come, which somebody who looks for a slot
//! later notices. Only the orphan of a quiet may be taken over, by another quiet, for which the board forgets the older
//! question. A caller may also be in no hurry to fetch its answer. When slots are short, the answer is *parked* for it
//! and the slot goes to whoever needs it, so that no number of handles held stops a launch.
//!
//! Cookies are used once: a late answer to an older question bears the older cookie. The cookie of a slot is 0 unless
//! there is a question in it, and whoever changes it from that question's owns the slot: its caller when it fetches the
//! answer, or the one who parks it.

use crate::access::Instructions;
use crate::error::Result;
use crate::node::Inner;
use crate::sys::Mapping;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
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

type Answer = (Status, u64);

/// The slots of a context.
#[derive(Debug)]
pub(crate) struct Slots {
    context_page: Mapping,
    status_page: Mapping,
    /// One bit per slot that has an owner or an unfinished question.
    used: AtomicU64,
    /// Those of them that nobody owns any more. Changed under `parked`.
    orphans: AtomicU64,
    /// Those of them that hold an operation.
    operations: AtomicU64,
    /// The question in each slot, or 0.
    cookies: [AtomicU64; context::SLOTS],
    cookie: AtomicU64,
    /// Answers whose slot was needed.
    parked: Mutex<BTreeMap<u64, Answer>>,
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
            parked: Mutex::default(),
        }
    }

    /// Begins behind the cookies of the process that had this context before: its answers are still in the status page.
    pub(crate) fn follow(&self) {
        let last = (0..context::SLOTS as u64).map(|slot| self.status_word(8 * slot) & (COOKIE_MASK >> 1)).max();
        // Those that it was still waiting for, too.
        self.cookie.store(last.unwrap_or_default() + (1 << 32), Ordering::Relaxed);
    }

    /// How many errors have been latched on imports of this context.
    pub(crate) fn errors(&self) -> u64 {
        self.status_word(context::ERRORS_OFFSET)
    }

    /// How many stores of a replicated segment the board has put into this node's copy, by its index in the status
    /// page.
    #[inline]
    pub(crate) fn taken(&self, index: u32) -> u64 {
        debug_assert!(index < context::TAKEN_WORDS);
        self.status_word(context::TAKEN_OFFSET + 8 * u64::from(index))
    }

    fn next_cookie(&self) -> u64 {
        // Never 0, which is what an unused slot of the status page holds, and never with the highest bit, which marks
        // the driver's; 2^47 questions take longer than machines live.
        loop {
            let cookie = (self.cookie.fetch_add(1, Ordering::Relaxed) + 1) & (COOKIE_MASK >> 1);
            if cookie != 0 {
                return cookie;
            }
        }
    }

    fn parked(&self) -> MutexGuard<'_, BTreeMap<u64, Answer>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for a new question: its number and cookie; `None` if all are in use.
    fn take(&self, purpose: Use) -> Option<(u32, u64)> {
        if self.orphans.load(Ordering::Relaxed) != 0 {
            self.reap();
        }
        let cookie = self.next_cookie();
        let mut seen = self.used.load(Ordering::Relaxed);
        loop {
            let slot = seen.trailing_ones();
            if slot >= context::SLOTS as u32 {
                return Some((self.make_room(purpose, cookie)?, cookie));
            }
            match self.used.compare_exchange_weak(seen, seen | 1 << slot, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    self.label(slot, purpose);
                    self.cookies[slot as usize].store(cookie, Ordering::Release);
                    return Some((slot, cookie));
                }
                Err(now) => seen = now,
            }
        }
    }

    fn label(&self, slot: u32, purpose: Use) {
        let bit = 1 << slot;
        match purpose {
            Use::Quiet => self.operations.fetch_and(!bit, Ordering::Relaxed),
            Use::Operation => self.operations.fetch_or(bit, Ordering::Relaxed),
        };
    }

    /// Frees the orphans whose answer has come.
    fn reap(&self) {
        let _alone = self.parked();
        for slot in bits(self.orphans.load(Ordering::Relaxed)) {
            if self.answer(slot, self.cookie(slot)).is_some() {
                self.orphans.fetch_and(!(1 << slot), Ordering::Relaxed);
                self.release(slot);
            }
        }
    }

    /// A slot when none is free: one whose answer is there but was not fetched, or for a quiet the orphan of another.
    fn make_room(&self, purpose: Use, cookie: u64) -> Option<u32> {
        let mut parked = self.parked();
        let orphans = self.orphans.load(Ordering::Relaxed);
        let operations = self.operations.load(Ordering::Relaxed);
        for slot in bits(operations & !orphans) {
            let older = self.cookie(slot);
            let Some(answer) = self.answer(slot, older) else { continue };
            if self.replace(slot, older, cookie) {
                parked.insert(older, answer);
                self.label(slot, purpose);
                return Some(slot);
            }
        }
        let slot = bits(orphans & !operations).next().filter(|_| purpose == Use::Quiet)?;
        self.orphans.fetch_and(!(1 << slot), Ordering::Relaxed);
        self.cookies[slot as usize].store(cookie, Ordering::Release);
        Some(slot)
    }

    /// Puts another question, or none, in place of one; false if somebody else has done so.
    fn replace(&self, slot: u32, older: u64, cookie: u64) -> bool {
        self.cookies[slot as usize].compare_exchange(older, cookie, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Frees a slot that the caller owns.
    fn release(&self, slot: u32) {
        self.cookies[slot as usize].store(0, Ordering::Relaxed);
        self.used.fetch_and(!(1 << slot), Ordering::Release);
    }

    /// The caller of a question is interested in its answer no more.
    fn abandon(&self, slot: u32, cookie: u64) {
        let mut parked = self.parked();
        if parked.remove(&cookie).is_none() {
            self.orphans.fetch_or(1 << slot, Ordering::Relaxed);
        }
    }

    /// The answer to a question, if it is there: then the slot is free, and the caller has the only copy.
    fn fetch(&self, slot: u32, cookie: u64) -> Option<Answer> {
        match self.answer(slot, cookie) {
            // Still this question's after the value was read: so the value was, too.
            Some(answer) if self.replace(slot, cookie, 0) => {
                self.used.fetch_and(!(1 << slot), Ordering::Release);
                Some(answer)
            }
            None if self.cookie(slot) == cookie => None,
            _ => self.parked().remove(&cookie),
        }
    }

    fn cookie(&self, slot: u32) -> u64 {
        self.cookies[slot as usize].load(Ordering::Acquire)
    }

    /// One 8-byte store to the context page.
    pub(crate) fn tell(&self, offset: u64, value: u64) {
        debug_assert!(offset % 8 == 0 && offset < context::STATUS_SIZE);
        // SAFETY: callers pass register offsets of the context page, which is mapped at least that long.
        unsafe { u64::window_store(self.context_page.at().add(offset as usize).cast(), value) }
    }

    /// One load of 4 or 8 bytes from the context page, which the board answers when it has done what the load asks for.
    pub(crate) fn fetch_word(&self, offset: u64, size: u8) -> u64 {
        debug_assert!(offset % 8 == 0 && offset < context::STATUS_SIZE);
        // SAFETY: callers pass register offsets of the context page, which is mapped at least that long.
        unsafe {
            let at = self.context_page.at().add(offset as usize);
            match size {
                4 => u64::from(u32::window_load(at.cast())),
                _ => u64::window_load(at.cast()),
            }
        }
    }

    fn status_word(&self, offset: u64) -> u64 {
        // SAFETY: callers pass offsets of words of the status page, which is mapped whole; the board writes it word by
        // word.
        unsafe { u64::load_acquire(self.status_page.at().add(offset as usize).cast()) }
    }

    /// What the board has answered to a question, if that was the slot's last; acquires what the board did before.
    fn answer(&self, slot: u32, cookie: u64) -> Option<Answer> {
        let at = 8 * u64::from(slot);
        let word = self.status_word(at);
        if cookie == 0 || word & COOKIE_MASK != cookie {
            return None;
        }
        Some((Status::from_u16((word >> context::COOKIE_BITS) as u16), self.status_word(context::VALUE_OFFSET + at)))
    }

    /// Takes a word that was told, as the board does: 0 if there is none since.
    #[cfg(test)]
    pub(crate) fn hear(&self, offset: u64) -> u64 {
        // SAFETY: the test's own page.
        unsafe { AtomicU64::from_ptr(self.context_page.at().add(offset as usize).cast()) }.swap(0, Ordering::AcqRel)
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
        let at = 8 * u64::from(slot);
        self.write(context::VALUE_OFFSET + at, value);
        self.write(at, (status as u64) << context::COOKIE_BITS | self.cookie(slot));
    }

    #[cfg(test)]
    pub(crate) fn count_error(&self) {
        self.write(context::ERRORS_OFFSET, self.errors() + 1);
    }

    #[cfg(test)]
    pub(crate) fn count_taken(&self, index: u32, count: u64) {
        self.write(context::TAKEN_OFFSET + 8 * u64::from(index), count);
    }

    #[cfg(test)]
    fn write(&self, offset: u64, word: u64) {
        // SAFETY: the test's own page.
        unsafe { u64::store_release(self.status_page.at().add(offset as usize).cast(), word) };
    }

    /// Operations launched and not yet done.
    pub(crate) fn unfinished(&self) -> u32 {
        let operations = self.used.load(Ordering::Relaxed) & self.operations.load(Ordering::Relaxed);
        bits(operations).filter(|slot| self.answer(*slot, self.cookie(*slot)).is_none()).count() as u32
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

/// A question to the board and, until it is answered, a slot.
#[derive(Debug)]
pub(crate) struct Question<I: Deref<Target = Inner>> {
    pub(crate) inner: I,
    pub(crate) slot: u32,
    cookie: u64,
    asked: bool,
    armed: bool,
    answer: Option<Answer>,
}

impl<I: Deref<Target = Inner>> Question<I> {
    /// A slot, once there is one; `None` when patience has ended first.
    pub(crate) fn new(inner: I, purpose: Use, backoff: &mut Backoff) -> Option<Question<I>> {
        loop {
            if let Some((slot, cookie)) = inner.slots.take(purpose) {
                return Some(Question { inner, slot, cookie, asked: false, armed: false, answer: None });
            }
            if !backoff.wait() {
                return None;
            }
        }
    }

    /// The number by which the answer will be known.
    pub(crate) fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Stores to the context page the word that asks; from now on the slot is the board's until it answers.
    pub(crate) fn ask(&mut self, offset: u64, word: u64) {
        self.asked = true;
        self.inner.slots.tell(offset, word);
    }

    /// The answer, if it is there: one look at memory.
    pub(crate) fn look(&mut self) -> Option<Answer> {
        if self.answer.is_none() {
            self.answer = self.inner.slots.fetch(self.slot, self.cookie);
        }
        self.answer
    }

    /// The answer; `None` when patience has ended first.
    pub(crate) fn wait(
        &mut self,
        backoff: &mut Backoff,
        doubt: impl Fn(&Inner) -> Result<()>,
    ) -> Result<Option<Answer>> {
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
            self.inner.slots.tell(context::ARM + 8 * u64::from(self.slot), self.cookie);
        }
    }
}

impl<I: Deref<Target = Inner>> Drop for Question<I> {
    fn drop(&mut self) {
        if !self.asked {
            self.inner.slots.release(self.slot);
        } else if self.look().is_none() {
            self.inner.slots.abandon(self.slot, self.cookie);
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
        let all: Vec<_> = (0..64).map(|_| slots.take(Use::Operation).unwrap()).collect();
        assert!(all.iter().map(|(slot, _)| *slot).eq(0..64));
        assert!(slots.take(Use::Operation).is_none());
        assert!(slots.take(Use::Quiet).is_none());
        all.iter().for_each(|(slot, _)| slots.release(*slot));
        assert_eq!(slots.used.load(Ordering::Relaxed), 0);
    }

    /// Many threads ask more than there are slots; some fetch their answers late, some never. A board answers each
    /// question with its cookie as the value: everybody gets his own.
    #[test]
    fn everybody_gets_his_own_answer() {
        const THREADS: u64 = 8;
        const ROUNDS: u64 = 3000;
        let slots = slots();
        // What was asked in each slot, 0 once it is answered.
        let asked: [AtomicU64; 64] = std::array::from_fn(|_| AtomicU64::new(0));
        let running = AtomicU64::new(THREADS);
        let ask = |purpose, late: &mut Vec<(u32, u64)>| {
            let (slot, cookie) = loop {
                match slots.take(purpose) {
                    Some(found) => break found,
                    None => std::thread::yield_now(),
                }
            };
            let before = asked[slot as usize].swap(cookie, Ordering::AcqRel);
            assert!(before == 0 || purpose == Use::Quiet, "slot {slot} has an unfinished question");
            late.push((slot, cookie));
        };
        let finish = |(slot, cookie): (u32, u64)| loop {
            if let Some((status, value)) = slots.fetch(slot, cookie) {
                assert_eq!((status, value), (Status::Ok, cookie));
                break;
            }
            std::thread::yield_now();
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut pass = 0;
                while running.load(Ordering::Acquire) > 0 {
                    pass += 1;
                    for slot in 0..64u32 {
                        let cookie = asked[slot as usize].load(Ordering::Acquire);
                        if cookie == 0 || cookie % 7 == pass % 7 {
                            continue;
                        }
                        // Before the answer: with it the slot may be somebody else's.
                        if asked[slot as usize].compare_exchange(cookie, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
                        {
                            slots.write(context::VALUE_OFFSET + 8 * u64::from(slot), cookie);
                            slots.write(8 * u64::from(slot), cookie);
                        }
                    }
                    std::thread::yield_now();
                }
            });
            for thread in 0..THREADS {
                let (ask, finish, slots, running) = (&ask, &finish, &slots, &running);
                scope.spawn(move || {
                    let mut late = Vec::new();
                    for round in 0..ROUNDS {
                        ask(Use::Operation, &mut late);
                        // More are kept in all than there are slots.
                        if late.len() > 20 {
                            let question = late.remove((round as usize * 7 + thread as usize) % late.len());
                            match (round + thread) % 3 {
                                0 if slots.fetch(question.0, question.1).is_none() => {
                                    slots.abandon(question.0, question.1)
                                }
                                0 => {}
                                _ => finish(question),
                            }
                        }
                    }
                    late.into_iter().for_each(finish);
                    running.fetch_sub(1, Ordering::Release);
                });
            }
        });
        assert!(slots.parked().is_empty(), "{:?}", slots.parked());
        let orphans = slots.orphans.load(Ordering::Relaxed);
        assert_eq!(slots.used.load(Ordering::Relaxed) & !orphans, 0);
    }

    #[test]
    fn older_answers_are_not_taken_for_new_ones() {
        let before = slots();
        for _ in 0..3 {
            let (slot, cookie) = before.take(Use::Operation).unwrap();
            before.give_answer(slot, Status::Ok, cookie);
        }
        let page = before.status_page.at();
        let slots = slots();
        // SAFETY: the test's own pages.
        unsafe { slots.status_page.at().copy_from(page, 4096) };
        slots.follow();
        let (slot, cookie) = slots.take(Use::Operation).unwrap();
        assert_eq!(slots.fetch(slot, cookie), None);
        assert!(cookie > 3);
    }

    #[test]
    fn an_unfinished_operation_keeps_its_slot_until_its_answer() {
        let slots = slots();
        let all: Vec<_> = (0..64).map(|_| slots.take(Use::Operation).unwrap()).collect();
        all.iter().for_each(|(slot, cookie)| slots.abandon(*slot, *cookie));
        assert_eq!(slots.unfinished(), 64);
        assert!(slots.take(Use::Operation).is_none());
        assert!(slots.take(Use::Quiet).is_none(), "a quiet must not take the slot of an operation");
        slots.give_answer(17, Status::Stale, 0);
        assert_eq!(slots.unfinished(), 63);
        let (slot, cookie) = slots.take(Use::Operation).unwrap();
        assert_eq!(slot, 17);
        assert_eq!(slots.fetch(17, cookie), None, "the answer to an older question");
        slots.give_answer(17, Status::Rights, 42);
        assert_eq!(slots.fetch(17, cookie), Some((Status::Rights, 42)));
        assert!(slots.parked().is_empty());
    }

    #[test]
    fn an_answer_not_yet_fetched_is_parked_when_slots_are_short() {
        let slots = slots();
        let all: Vec<_> = (0..64).map(|_| slots.take(Use::Operation).unwrap()).collect();
        slots.give_answer(9, Status::Ok, 99);
        slots.give_answer(10, Status::Bounds, 100);
        let (slot, cookie) = slots.take(Use::Operation).unwrap();
        assert_eq!(slot, 9);
        assert_eq!(slots.fetch(9, cookie), None);
        assert_eq!(slots.fetch(9, all[9].1), Some((Status::Ok, 99)));
        assert_eq!(slots.take(Use::Quiet).unwrap().0, 10);
        slots.abandon(10, all[10].1);
        assert!(slots.parked().is_empty(), "nobody wants it any more");
        assert_eq!(slots.orphans.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_quiet_given_up_gives_its_slot_to_the_next_quiet() {
        let slots = slots();
        for _ in 0..1000 {
            let (slot, cookie) = slots.take(Use::Quiet).unwrap();
            slots.abandon(slot, cookie);
        }
        assert!(slots.take(Use::Operation).is_none());
        slots.give_answer(3, Status::Ok, 0);
        assert_eq!(slots.take(Use::Operation).unwrap().0, 3);
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
