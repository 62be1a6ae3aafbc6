// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that look for their messages themselves, and whether that is worth it (`Progress::Adaptive`).
//!
//! While there are such threads, those of the ports stand aside: they would have the board interrupt the guest for each
//! message, and would then have to wake a thread that is awake. A thread that sleeps in its port when others begin to
//! look is left there until its next message.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a thread looks, at most. An interrupt and the waking of two threads cost some part of it.
const MOST: Duration = Duration::from_millis(1);
/// Of so many waits, one goes the other way, so that a change is found out.
const TRY: u32 = 32;
/// How long ports stand aside when no thread looks any more: threads that exchange messages look again soon.
const ASIDE: Duration = Duration::from_millis(1);

/// Looks between two of the clock, which may be a device that an emulator serves.
const READ: u32 = 16;

#[derive(Debug)]
pub(crate) struct Pollers {
    yields: bool,
    looking: AtomicU32,
    /// How long waits take of threads that look first, and of those that sleep at once, in nanoseconds: means, in which
    /// the last one has the weight of an eighth.
    means: [AtomicU64; 2],
    waits: AtomicU32,
    /// When a thread last looked.
    last: Mutex<Instant>,
    /// All of them sleep.
    gone: Condvar,
}

impl Pollers {
    pub(crate) fn new(yields: bool) -> Pollers {
        Pollers {
            yields,
            looking: AtomicU32::new(0),
            // The first ones look, and then one tries otherwise.
            means: [AtomicU64::new(0), AtomicU64::new(MOST.as_nanos() as u64 / 2)],
            waits: AtomicU32::new(0),
            // As if no thread had looked for the last ASIDE.
            last: Mutex::new(Instant::now().checked_sub(ASIDE).unwrap_or_else(Instant::now)),
            gone: Condvar::new(),
        }
    }

    /// Between two looks of a thread.
    pub(crate) fn rest(&self) {
        if self.yields { std::thread::yield_now() } else { std::hint::spin_loop() }
    }

    /// A wait has taken so long.
    fn note(&self, looked: bool, took: Duration) {
        // One that took for ever does not count for ever.
        let took = took.min(8 * MOST).as_nanos() as u64;
        // Others may do the same: it need not be exact.
        let mean = &self.means[usize::from(!looked)];
        let before = mean.load(Ordering::Relaxed);
        mean.store(before - before / 8 + took / 8, Ordering::Relaxed);
    }

    /// How long a thread that waits is to look first, or not at all. Looking takes a processor from others, perhaps
    /// from those who are waited for: it has to make waits shorter.
    fn time(&self) -> Option<Duration> {
        let [looked, slept] = [0, 1].map(|n| Duration::from_nanos(self.means[n].load(Ordering::Relaxed)));
        let tries = self.waits.fetch_add(1, Ordering::Relaxed) % TRY == TRY - 1;
        ((looked <= slept) != tries).then(|| (2 * looked).clamp(MOST / 10, MOST))
    }

    /// Waits for something: looks for it for a while, if that is worth it, and then sleeps until it has come.
    pub(crate) fn wait<T>(
        &self,
        limit: Option<Instant>,
        mut came: impl FnMut() -> Option<T>,
        sleep: impl FnOnce() -> Option<T>,
    ) -> Option<T> {
        // What is there already has not been waited for.
        if let Some(came) = came() {
            return Some(came);
        }
        let begun = Instant::now();
        let time = self.time();
        let found = time.and_then(|time| {
            let end = begun + time;
            self.look(limit.map_or(end, |limit| limit.min(end)), came)
        });
        let found = found.or_else(|| {
            self.leave();
            sleep()
        });
        self.note(time.is_some(), begun.elapsed());
        found
    }

    fn look<T>(&self, end: Instant, mut came: impl FnMut() -> Option<T>) -> Option<T> {
        self.looking.fetch_add(1, Ordering::SeqCst);
        let mut looks = 0_u32;
        let result = loop {
            let found = came();
            looks = looks.wrapping_add(1);
            if found.is_some() || looks % READ == 0 && Instant::now() >= end {
                break found;
            }
            self.rest();
        };
        // It will wait again soon, most likely.
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.looking.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// A thread sleeps: the ports are to wake it, unless others look.
    fn leave(&self) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if self.looking.load(Ordering::SeqCst) == 0 {
            *last = last.checked_sub(ASIDE).unwrap_or(*last);
            self.gone.notify_all();
        }
    }

    /// For a port: sleeps for a moment if others look, and returns true.
    pub(crate) fn stand_aside(&self) -> bool {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let aside = self.looking.load(Ordering::SeqCst) > 0 || last.elapsed() < ASIDE;
        if aside {
            drop(self.gone.wait_timeout(last, ASIDE).unwrap_or_else(PoisonError::into_inner));
        }
        aside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_already_is_not_looked_for() {
        let pollers = Pollers::new(true);
        assert_eq!(pollers.wait(None, || Some(1), || unreachable!("it is there")), Some(1));
        assert!(!pollers.stand_aside());
        assert_eq!(pollers.waits.load(Ordering::Relaxed), 0, "nor is it a wait");
    }

    /// Of 320 waits that take so long, how many look.
    fn looks(pollers: &Pollers, looked: u64, slept: u64) -> usize {
        let waits = (0..10 * TRY).map(|_| {
            let looks = pollers.time().is_some();
            pollers.note(looks, Duration::from_micros(if looks { looked } else { slept }));
            looks
        });
        waits.filter(|looks| *looks).count()
    }

    #[test]
    fn what_makes_waits_shorter_is_done_and_the_other_tried() {
        let pollers = Pollers::new(true);
        assert_eq!(looks(&pollers, 100, 300), 310);
        looks(&pollers, 900, 300);
        assert_eq!(looks(&pollers, 900, 300), 10);
        looks(&pollers, 100, 300);
        looks(&pollers, 100, 300);
        assert_eq!(looks(&pollers, 100, 300), 310);
    }

    #[test]
    fn who_looks_for_too_long_sleeps() {
        let (pollers, mut asked) = (Pollers::new(true), 0);
        let came = || {
            asked += 1;
            None
        };
        assert_eq!(pollers.wait(None, came, || Some("slept")), Some("slept"));
        assert!(asked > 1, "it has looked");
    }

    #[test]
    fn ports_stand_aside_while_a_thread_looks() {
        let pollers = Pollers::new(true);
        let mut aside = None;
        let came = || {
            aside = Some(pollers.stand_aside());
            aside.filter(|aside| *aside)
        };
        pollers.wait(None, came, || None);
        assert_eq!(aside, Some(true));
        std::thread::sleep(2 * ASIDE);
        assert!(!pollers.stand_aside());
        let sleeps = || {
            assert!(!pollers.stand_aside(), "it sleeps");
            Some(())
        };
        assert_eq!(pollers.wait(Some(Instant::now()), || None::<()>, sleeps), Some(()));
    }
}
