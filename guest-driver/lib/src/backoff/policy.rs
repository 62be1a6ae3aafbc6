// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a wait by polling does between two polls, and how long a copy is expected to take. No clocks: the caller says
//! how long it has waited.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use telegraphos_wire::context::MAX_COPY;

/// Polls before the thread yields its processor for the first time: the board may well run on another one.
const SPINS: u32 = 256;
/// Polls between which other threads may run, before the thread sleeps.
const YIELDS: u32 = 64;
const SLEEP_MIN: Duration = Duration::from_micros(20);
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// The longest sleep of a thread that waits for a change that raises no event.
const UNWOKEN_MAX: Duration = Duration::from_millis(10);
/// A sleep lasts at most this part of the time waited before it, so that it adds little to the whole.
const PART: u32 = 8;
/// A thread that is to wake at a given time sleeps until so long before it, at least: the timer's slack, and its way
/// back to a processor. Where sleeps end later than that, until so much earlier ([`CopyPace::late`]).
const EARLY: Duration = Duration::from_micros(100);
/// The most that sleeps are taken to end late by.
const LATE_MAX: Duration = Duration::from_millis(10);
/// What is overdue by this will not come soon: a thread that can be woken stops polling.
const OVERDUE: Duration = Duration::from_millis(20);

/// Between two polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    Spin,
    Yield,
    Sleep(Duration),
    /// Sleep until an event wakes the thread; where none does, sleep so long.
    Block(Duration),
}

/// The pause after poll number `polls`, `waited` after the wait began; what is waited for is expected `expected` after
/// that, and sleeps end `late`. A sleep never ends past the expected time, and past it never lasts longer than an
/// eighth of the delay, nor than a millisecond. Where it would by what it ends late, the thread yields.
pub(super) fn pause(polls: u32, waited: Duration, expected: Option<Duration>, late: Duration) -> Pause {
    if polls <= SPINS {
        return Pause::Spin;
    }
    if polls <= SPINS + YIELDS {
        return Pause::Yield;
    }
    let expected = expected.unwrap_or_default();
    if let Some(left) = expected.checked_sub(waited).filter(|left| !left.is_zero()) {
        // A part of what is left, since sleeps that are long end late by more.
        let early = (left / PART).max(EARLY).max(late);
        return match left.checked_sub(early) {
            Some(sleep) if sleep >= SLEEP_MIN => Pause::Sleep(sleep),
            _ => Pause::Yield,
        };
    }
    let overdue = waited.saturating_sub(expected);
    if !late.is_zero() && overdue / PART < SLEEP_MIN + late {
        return Pause::Yield;
    }
    let sleep = (overdue / PART).saturating_sub(late).clamp(SLEEP_MIN, SLEEP_MAX);
    if overdue < OVERDUE { Pause::Sleep(sleep) } else { Pause::Block(sleep) }
}

/// How long a thread sleeps that has waited so long, and would block if an event woke it.
pub(crate) fn unwoken(waited: Duration) -> Duration {
    (waited / PART).clamp(SLEEP_MAX, UNWOKEN_MAX)
}

/// How long a copy has taken that was found done `at` after its begin, when it was not `before`: in the middle, since
/// the moment in between is unknown.
pub(crate) fn seen(before: Duration, at: Duration) -> Duration {
    before + at.saturating_sub(before) / 2
}

/// Whether the pauses after poll number `polls` are long.
pub(super) fn is_patient(polls: u32) -> bool {
    polls > SPINS + YIELDS
}

/// Classes of lengths: powers of two, up to that of the longest copy.
const CLASSES: usize = MAX_COPY.ilog2() as usize + 1;

/// How fast copies have been, by the power of two in their length, and how late sleeps have ended.
#[derive(Debug)]
pub(crate) struct CopyPace {
    /// Nanoseconds for 2^20 bytes at the pace of the class; 0: not known yet.
    classes: [AtomicU64; CLASSES],
    /// Nanoseconds.
    late: AtomicU64,
}

impl Default for CopyPace {
    fn default() -> CopyPace {
        CopyPace { classes: std::array::from_fn(|_| AtomicU64::new(0)), late: AtomicU64::new(0) }
    }
}

impl CopyPace {
    fn class(&self, length: u64) -> &AtomicU64 {
        &self.classes[(length.max(1).ilog2() as usize).min(CLASSES - 1)]
    }

    /// The expected time of a copy; `None` before the first one of about that length.
    pub(crate) fn expected(&self, length: u64) -> Option<Duration> {
        let pace = u128::from(self.class(length).load(Ordering::Relaxed));
        let nanos = (pace * u128::from(length)) >> 20;
        (pace != 0).then(|| Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// How much later than asked for a sleep may end, from what was seen.
    pub(crate) fn late(&self) -> Duration {
        Duration::from_nanos(self.late.load(Ordering::Relaxed))
    }

    /// A sleep has ended later than asked for by so much: more than before counts by half, less by and by.
    pub(crate) fn overslept(&self, by: Duration) {
        let by = by.min(LATE_MAX).as_nanos() as u64;
        let before = self.late.load(Ordering::Relaxed);
        let after = if by > before { before + (by - before) / 2 } else { before - (before - by) / u64::from(PART) };
        self.late.store(after, Ordering::Relaxed);
    }

    /// A waiter has seen that a copy has taken so long, and may have seen it late: a shorter time counts at once, a
    /// longer one by and by. Of two threads at the same moment one counts.
    pub(crate) fn learn(&self, length: u64, took: Duration) {
        let class = self.class(length);
        let pace = (took.as_nanos() << 20) / u128::from(length.max(1));
        let pace = u64::try_from(pace).unwrap_or(u64::MAX).max(1);
        let before = class.load(Ordering::Relaxed);
        let after = if before == 0 || pace < before { pace } else { before + (pace - before) / u64::from(PART) };
        class.store(after, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PATIENT: u32 = SPINS + YIELDS + 1;

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn a_wait_spins_then_yields_then_sleeps_then_blocks() {
        let at = |polls, waited| pause(polls, micros(waited), None, Duration::ZERO);
        assert_eq!([at(1, 0), at(SPINS, 50_000)], [Pause::Spin; 2]);
        assert_eq!([at(SPINS + 1, 0), at(PATIENT - 1, 50_000)], [Pause::Yield; 2]);
        assert_eq!(at(PATIENT, 0), Pause::Sleep(SLEEP_MIN));
        assert_eq!(at(PATIENT, 800), Pause::Sleep(micros(100)));
        assert_eq!(at(PATIENT, 19_999), Pause::Sleep(SLEEP_MAX));
        assert_eq!(at(u32::MAX, 20_000), Pause::Block(SLEEP_MAX));
    }

    #[test]
    fn a_copy_of_known_length_is_slept_through() {
        let at = |waited| pause(PATIENT, micros(waited), Some(micros(16_000)), Duration::ZERO);
        assert_eq!(at(0), Pause::Sleep(micros(14_000)));
        assert_eq!(at(14_000), Pause::Sleep(micros(1750)));
        assert_eq!(at(15_800), Pause::Sleep(micros(100)));
        assert_eq!([at(15_890), at(15_999)], [Pause::Yield; 2]);
        assert_eq!(at(16_000), Pause::Sleep(SLEEP_MIN));
        assert_eq!(at(16_800), Pause::Sleep(micros(100)));
        assert_eq!(at(36_000), Pause::Block(SLEEP_MAX));
    }

    #[test]
    fn a_thread_whose_sleeps_end_late_yields_where_a_sleep_would_cost_more_than_it_waits_for() {
        let late = micros(300);
        let at = |waited, expected| pause(PATIENT, micros(waited), Some(micros(expected)), late);
        assert_eq!(at(0, 319), Pause::Yield);
        assert_eq!(at(0, 1000), Pause::Sleep(micros(700)));
        assert_eq!(at(1000, 1000), Pause::Yield);
        assert_eq!(at(1000 + 2559, 1000), Pause::Yield);
        assert_eq!(at(1000 + 3200, 1000), Pause::Sleep(micros(100)));
        assert_eq!(at(21_000, 1000), Pause::Block(SLEEP_MAX));
    }

    #[test]
    fn how_late_sleeps_end_is_learned_soon_and_forgotten_slowly() {
        let pace = CopyPace::default();
        (0..4).for_each(|_| pace.overslept(micros(320)));
        assert_eq!(pace.late(), micros(300));
        pace.overslept(micros(60));
        assert_eq!(pace.late(), micros(270));
        (0..100).for_each(|_| pace.overslept(Duration::MAX));
        assert!(pace.late() <= LATE_MAX);
        (0..1000).for_each(|_| pace.overslept(Duration::ZERO));
        assert!(pace.late() < micros(1));
    }

    /// What made copies of 1 MiB five times as slow as they were: a first copy was slow, each later one was waited for
    /// by a sleep of that length, and found done, as late as the first.
    #[test]
    fn a_time_that_was_slept_through_is_not_learned_as_the_copys() {
        let (pace, truth, late) = (CopyPace::default(), 300u64, 200u64);
        pace.learn(4096, micros(1600));
        let mut took = 0;
        for _ in 0..10 {
            let expected = pace.expected(4096);
            let (mut waited, mut slept) = (0, None);
            while waited < truth {
                slept = None;
                match pause(PATIENT, micros(waited), expected, pace.late()) {
                    Pause::Sleep(time) | Pause::Block(time) => {
                        slept = Some(waited);
                        waited += time.as_micros() as u64 + late;
                        pace.overslept(micros(late));
                    }
                    Pause::Spin | Pause::Yield => waited += 1,
                }
            }
            pace.learn(4096, seen(micros(slept.unwrap_or(waited)), micros(waited)));
            took = waited;
        }
        assert!(took <= truth + 100, "{took}");
    }

    proptest! {
        /// Whatever is expected: no sleep passes the expected time, or is long against what is late already.
        #[test]
        fn no_sleep_is_too_long(
            polls: u32, waited in 0..u64::MAX / 4, expected in prop::option::of(0..u64::MAX / 4), late in 0..10_000_000u64
        ) {
            let (waited, expected) = (Duration::from_nanos(waited), expected.map(Duration::from_nanos));
            let (due, late) = (expected.unwrap_or_default(), Duration::from_nanos(late));
            match pause(polls, waited, expected, late) {
                Pause::Sleep(sleep) if waited < due => prop_assert!(waited + sleep + EARLY.max(late) <= due),
                Pause::Sleep(sleep) | Pause::Block(sleep) => {
                    prop_assert!(waited >= due && sleep <= SLEEP_MAX);
                    prop_assert!(sleep == SLEEP_MIN || sleep <= (waited - due) / PART);
                }
                Pause::Spin | Pause::Yield => {}
            }
        }

        /// From wherever a wait is, it gets past the expected time within a bounded number of sleeps.
        #[test]
        fn sleeps_towards_the_expected_time_are_few(expected in 0..100_000_000u64) {
            let expected = micros(expected);
            let (mut waited, mut sleeps) = (Duration::ZERO, 0);
            while let Pause::Sleep(sleep) = pause(PATIENT, waited, Some(expected), Duration::ZERO) {
                if waited >= expected {
                    break;
                }
                (waited, sleeps) = (waited + sleep, sleeps + 1);
            }
            prop_assert!(sleeps <= 16 && expected.saturating_sub(waited) <= EARLY + SLEEP_MIN, "{} {:?}", sleeps, waited);
        }

        /// The estimate stays between what was measured, and never panics.
        #[test]
        fn a_pace_lies_between_what_was_seen(
            length in prop_oneof![1..64u64, 1..=MAX_COPY], took in prop::collection::vec(0..u64::MAX / 4, 1..20)
        ) {
            let pace = CopyPace::default();
            took.iter().for_each(|took| pace.learn(length, Duration::from_nanos(*took)));
            let expected = pace.expected(length).unwrap();
            // One for rounding, and one part in 2^20 of the length.
            let (least, most) = (took.iter().min().unwrap(), took.iter().max().unwrap());
            let slack = Duration::from_nanos(1 + (length >> 20));
            // The slowest pace there is: five hours for a byte.
            let slowest = (u128::from(u64::MAX) * u128::from(length)) >> 20;
            let slowest = Duration::from_nanos(u64::try_from(slowest).unwrap_or(u64::MAX));
            prop_assert!(expected + slack >= Duration::from_nanos(*least).min(slowest), "{:?}", expected);
            prop_assert!(expected <= Duration::from_nanos(*most) + slack, "{:?}", expected);
        }
    }

    #[test]
    fn a_pace_scales_with_the_length_and_follows_what_is_faster() {
        let pace = CopyPace::default();
        assert_eq!(pace.expected(4096), None);
        pace.learn(4096, micros(80));
        assert_eq!(pace.expected(4096), Some(micros(80)));
        assert_eq!(pace.expected(6144), Some(micros(120)));
        assert_eq!(pace.expected(8192), None, "another power of two, another pace");
        pace.learn(4096, micros(160));
        assert_eq!(pace.expected(4096), Some(micros(90)), "late once");
        pace.learn(4096, micros(40));
        assert_eq!(pace.expected(4096), Some(micros(40)));
    }
}
