// SPDX-License-Identifier: MIT OR Apache-2.0
//! The context's 64 slots, shared by quiet and operations, and the two pages behind them.
//!
//! Every request to the board that takes time occupies one slot until its answer, and no two threads share one. A
//! caller may stop waiting sooner; then its slot is an *orphan*: a launch into a slot whose operation is unfinished
//! would be refused, so it stays taken until the answer has come, which the next search for a free slot finds. Only the
//! orphan of a quiet may be taken over, by another quiet, for which the board drops the older request. A caller may
//! also fetch its answer much later. When slots are short, the answer is *parked* for it and the slot is reused, so
//! that no number of open handles stops a launch.
//!
//! Cookies are used once: a stale answer to an older request bears the older cookie. The cookie of a slot is 0 unless
//! it has a request, and the thread that changes it from that request's cookie owns the slot: the caller that fetches
//! the answer, or the thread that parks it.

use crate::access::Instructions;
use crate::sys::Mapping;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use telegraphos_wire::{Status, context};

const COOKIE_MASK: u64 = (1 << context::COOKIE_BITS) - 1;

/// What a slot is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotUse {
    Quiet,
    Operation,
}

/// How a request ended, and its value: an atomic's previous word, else 0.
pub(crate) type Answer = (Status, u64);

/// The slots of a context.
#[derive(Debug)]
pub(crate) struct Slots {
    context_page: Mapping,
    status_page: Mapping,
    /// One bit per slot that has an owner or an unfinished request.
    used: AtomicU64,
    /// Those of them without an owner. Changed under `parked`.
    orphans: AtomicU64,
    /// Those of them that hold an operation.
    operations: AtomicU64,
    /// The cookie of the request in each slot, or 0.
    cookies: [AtomicU64; context::SLOTS],
    cookie: AtomicU64,
    /// Answers whose slot was needed.
    parked: Mutex<BTreeMap<u64, Answer>>,
}

impl Slots {
    /// The slots of a context by its two pages, each mapped whole.
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

    /// Continues after the cookies of the process that used this context before: its answers are still in the status
    /// page.
    pub(crate) fn continue_cookies(&self) {
        let last = (0..context::SLOTS as u64).map(|slot| self.status_word(8 * slot) & (COOKIE_MASK >> 1)).max();
        // After those that it was still waiting for, too.
        self.cookie.store(last.unwrap_or_default() + (1 << 32), Ordering::Relaxed);
    }

    /// The number of errors latched so far on imports of this context.
    pub(crate) fn errors(&self) -> u64 {
        self.status_word(context::ERRORS_OFFSET)
    }

    /// How often registrations of this context may have lost their memory.
    pub(crate) fn revoked(&self) -> u64 {
        self.status_word(context::REVOKED_OFFSET)
    }

    /// The number of stores of a replicated segment that the board has put into this node's copy, by the segment's
    /// index in the status page.
    #[inline]
    pub(crate) fn taken(&self, index: u32) -> u64 {
        debug_assert!(index < context::TAKEN_WORDS);
        self.status_word(context::TAKEN_OFFSET + 8 * u64::from(index))
    }

    fn next_cookie(&self) -> u64 {
        // Never 0, which is what an unused slot of the status page holds, and never with the highest bit, which marks
        // the driver's; 2^47 requests take longer than any uptime.
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

    /// Takes a slot for a new request: its number and cookie; `None` if all are in use.
    pub(crate) fn take(&self, purpose: SlotUse) -> Option<(u32, u64)> {
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
                    self.set_use(slot, purpose);
                    self.cookies[slot as usize].store(cookie, Ordering::Release);
                    return Some((slot, cookie));
                }
                Err(now) => seen = now,
            }
        }
    }

    fn set_use(&self, slot: u32, purpose: SlotUse) {
        let bit = 1 << slot;
        match purpose {
            SlotUse::Quiet => self.operations.fetch_and(!bit, Ordering::Relaxed),
            SlotUse::Operation => self.operations.fetch_or(bit, Ordering::Relaxed),
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
    fn make_room(&self, purpose: SlotUse, cookie: u64) -> Option<u32> {
        let mut parked = self.parked();
        let orphans = self.orphans.load(Ordering::Relaxed);
        let operations = self.operations.load(Ordering::Relaxed);
        for slot in bits(operations & !orphans) {
            let older = self.cookie(slot);
            let Some(answer) = self.answer(slot, older) else { continue };
            if self.replace(slot, older, cookie) {
                parked.insert(older, answer);
                self.set_use(slot, purpose);
                return Some(slot);
            }
        }
        let slot = bits(orphans & !operations).next().filter(|_| purpose == SlotUse::Quiet)?;
        self.orphans.fetch_and(!(1 << slot), Ordering::Relaxed);
        self.cookies[slot as usize].store(cookie, Ordering::Release);
        Some(slot)
    }

    /// Replaces a request by another, or by none (0); false if another thread has done so first.
    fn replace(&self, slot: u32, older: u64, cookie: u64) -> bool {
        self.cookies[slot as usize].compare_exchange(older, cookie, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Frees a slot that the caller owns and that has no request.
    pub(crate) fn release(&self, slot: u32) {
        self.cookies[slot as usize].store(0, Ordering::Relaxed);
        self.used.fetch_and(!(1 << slot), Ordering::Release);
    }

    /// The answer to a request will not be fetched.
    pub(crate) fn abandon(&self, slot: u32, cookie: u64) {
        let mut parked = self.parked();
        if parked.remove(&cookie).is_none() {
            self.orphans.fetch_or(1 << slot, Ordering::Relaxed);
        }
    }

    /// The answer to a request, if it is there: then the slot is free, and the caller has the only copy.
    pub(crate) fn fetch(&self, slot: u32, cookie: u64) -> Option<Answer> {
        match self.answer(slot, cookie) {
            // The slot still has this request after its value was read: the value is this request's, too.
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

    /// One 8-byte store to a register of the context page.
    pub(crate) fn write_register(&self, offset: u64, value: u64) {
        debug_assert!(offset % 8 == 0 && offset < context::STATUS_SIZE);
        // SAFETY: callers pass register offsets of the context page, which is mapped at least that long.
        unsafe { u64::window_store(self.context_page.at().add(offset as usize).cast(), value) }
    }

    /// One load of 4 or 8 bytes from the context page, which the board answers when it has performed the operation
    /// behind the register.
    pub(crate) fn read_register(&self, offset: u64, size: u8) -> u64 {
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

    /// The board's answer to a request, if that was the slot's last; acquires what the board did before.
    fn answer(&self, slot: u32, cookie: u64) -> Option<Answer> {
        let at = 8 * u64::from(slot);
        let word = self.status_word(at);
        if cookie == 0 || word & COOKIE_MASK != cookie {
            return None;
        }
        Some((Status::from_u16((word >> context::COOKIE_BITS) as u16), self.status_word(context::VALUE_OFFSET + at)))
    }

    /// The number of operations launched and not yet done.
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

#[cfg(test)]
mod tests {
    use super::*;

    impl Slots {
        /// Takes the word last stored to a register, as the board does: 0 if there is none since.
        pub(crate) fn take_register(&self, offset: u64) -> u64 {
            // SAFETY: the test's own page.
            unsafe { AtomicU64::from_ptr(self.context_page.at().add(offset as usize).cast()) }.swap(0, Ordering::AcqRel)
        }

        /// The word last stored to a register of the context page.
        pub(crate) fn register(&self, offset: u64) -> u64 {
            // SAFETY: the test's own page.
            unsafe { u64::load_acquire(self.context_page.at().add(offset as usize).cast()) }
        }

        /// Answers the request in a slot, as the board does.
        pub(crate) fn give_answer(&self, slot: u32, status: Status, value: u64) {
            let at = 8 * u64::from(slot);
            self.write(context::VALUE_OFFSET + at, value);
            self.write(at, (status as u64) << context::COOKIE_BITS | self.cookie(slot));
        }

        pub(crate) fn count_error(&self) {
            self.write(context::ERRORS_OFFSET, self.errors() + 1);
        }

        pub(crate) fn count_taken(&self, index: u32, count: u64) {
            self.write(context::TAKEN_OFFSET + 8 * u64::from(index), count);
        }

        fn write(&self, offset: u64, word: u64) {
            // SAFETY: the test's own page.
            unsafe { u64::store_release(self.status_page.at().add(offset as usize).cast(), word) };
        }
    }

    fn slots() -> Slots {
        Slots::new(Mapping::anonymous(8192), Mapping::anonymous(4096))
    }

    #[test]
    fn slots_are_taken_once_and_given_back() {
        let slots = slots();
        let all: Vec<_> = (0..64).map(|_| slots.take(SlotUse::Operation).unwrap()).collect();
        assert!(all.iter().map(|(slot, _)| *slot).eq(0..64));
        assert!(slots.take(SlotUse::Operation).is_none());
        assert!(slots.take(SlotUse::Quiet).is_none());
        all.iter().for_each(|(slot, _)| slots.release(*slot));
        assert_eq!(slots.used.load(Ordering::Relaxed), 0);
    }

    /// Many threads make more requests than there are slots; some fetch their answers much later, some never. A board
    /// answers each request with its cookie as the value: every thread gets its own.
    #[test]
    fn every_request_gets_its_own_answer() {
        const THREADS: u64 = 8;
        const ROUNDS: u64 = 3000;
        let slots = slots();
        // The cookie of the request in each slot, 0 once it is answered.
        let requests: [AtomicU64; 64] = std::array::from_fn(|_| AtomicU64::new(0));
        let running = AtomicU64::new(THREADS);
        let request = |purpose, unfetched: &mut Vec<(u32, u64)>| {
            let (slot, cookie) = loop {
                match slots.take(purpose) {
                    Some(found) => break found,
                    None => std::thread::yield_now(),
                }
            };
            let before = requests[slot as usize].swap(cookie, Ordering::AcqRel);
            assert!(before == 0 || purpose == SlotUse::Quiet, "slot {slot} has an unfinished request");
            unfetched.push((slot, cookie));
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
                        let cookie = requests[slot as usize].load(Ordering::Acquire);
                        if cookie == 0 || cookie % 7 == pass % 7 {
                            continue;
                        }
                        // Before the answer: with it the slot may be another thread's.
                        if requests[slot as usize]
                            .compare_exchange(cookie, 0, Ordering::AcqRel, Ordering::Relaxed)
                            .is_ok()
                        {
                            slots.write(context::VALUE_OFFSET + 8 * u64::from(slot), cookie);
                            slots.write(8 * u64::from(slot), cookie);
                        }
                    }
                    std::thread::yield_now();
                }
            });
            for thread in 0..THREADS {
                let (request, finish, slots, running) = (&request, &finish, &slots, &running);
                scope.spawn(move || {
                    let mut unfetched = Vec::new();
                    for round in 0..ROUNDS {
                        request(SlotUse::Operation, &mut unfetched);
                        // More are kept in all than there are slots.
                        if unfetched.len() > 20 {
                            let older = unfetched.remove((round as usize * 7 + thread as usize) % unfetched.len());
                            match (round + thread) % 3 {
                                0 if slots.fetch(older.0, older.1).is_none() => slots.abandon(older.0, older.1),
                                0 => {}
                                _ => finish(older),
                            }
                        }
                    }
                    unfetched.into_iter().for_each(finish);
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
            let (slot, cookie) = before.take(SlotUse::Operation).unwrap();
            before.give_answer(slot, Status::Ok, cookie);
        }
        let page = before.status_page.at();
        let slots = slots();
        // SAFETY: the test's own pages.
        unsafe { slots.status_page.at().copy_from(page, 4096) };
        slots.continue_cookies();
        let (slot, cookie) = slots.take(SlotUse::Operation).unwrap();
        assert_eq!(slots.fetch(slot, cookie), None);
        assert!(cookie > 3);
    }

    #[test]
    fn an_unfinished_operation_keeps_its_slot_until_its_answer() {
        let slots = slots();
        let all: Vec<_> = (0..64).map(|_| slots.take(SlotUse::Operation).unwrap()).collect();
        all.iter().for_each(|(slot, cookie)| slots.abandon(*slot, *cookie));
        assert_eq!(slots.unfinished(), 64);
        assert!(slots.take(SlotUse::Operation).is_none());
        assert!(slots.take(SlotUse::Quiet).is_none(), "a quiet must not take the slot of an operation");
        slots.give_answer(17, Status::Stale, 0);
        assert_eq!(slots.unfinished(), 63);
        let (slot, cookie) = slots.take(SlotUse::Operation).unwrap();
        assert_eq!(slot, 17);
        assert_eq!(slots.fetch(17, cookie), None, "the answer to an older request");
        slots.give_answer(17, Status::Rights, 42);
        assert_eq!(slots.fetch(17, cookie), Some((Status::Rights, 42)));
        assert!(slots.parked().is_empty());
    }

    #[test]
    fn an_answer_not_yet_fetched_is_parked_when_slots_are_short() {
        let slots = slots();
        let all: Vec<_> = (0..64).map(|_| slots.take(SlotUse::Operation).unwrap()).collect();
        slots.give_answer(9, Status::Ok, 99);
        slots.give_answer(10, Status::Bounds, 100);
        let (slot, cookie) = slots.take(SlotUse::Operation).unwrap();
        assert_eq!(slot, 9);
        assert_eq!(slots.fetch(9, cookie), None);
        assert_eq!(slots.fetch(9, all[9].1), Some((Status::Ok, 99)));
        assert_eq!(slots.take(SlotUse::Quiet).unwrap().0, 10);
        slots.abandon(10, all[10].1);
        assert!(slots.parked().is_empty(), "its caller has abandoned it");
        assert_eq!(slots.orphans.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_abandoned_quiet_leaves_its_slot_to_the_next_quiet() {
        let slots = slots();
        for _ in 0..1000 {
            let (slot, cookie) = slots.take(SlotUse::Quiet).unwrap();
            slots.abandon(slot, cookie);
        }
        assert!(slots.take(SlotUse::Operation).is_none());
        slots.give_answer(3, Status::Ok, 0);
        assert_eq!(slots.take(SlotUse::Operation).unwrap().0, 3);
    }
}
