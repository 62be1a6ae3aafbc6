// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that look for their messages themselves, and whether that is worth it (`Progress::Adaptive`).
//!
//! While there are such threads, those of the ports stand aside: they would have the board interrupt the guest for each
//! message, and would then have to wake a thread that is awake. A thread that sleeps in its port when others begin to
//! look is left there until its next message.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Who usually waits for longer sleeps at once. An interrupt and the waking of two threads cost some part of it.
const WORTH: Duration = Duration::from_millis(1);
/// How long ports stand aside when nobody looks any more: threads that exchange messages look again soon.
const ASIDE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Pollers {
    looking: AtomicU32,
    /// How long a wait takes, in nanoseconds: the mean, in which the last one has the weight of an eighth.
    usual: AtomicU64,
    /// When somebody last looked.
    last: Mutex<Instant>,
    /// All of them sleep.
    gone: Condvar,
}

impl Pollers {
    pub(crate) fn new() -> Pollers {
        Pollers {
            looking: AtomicU32::new(0),
            // The first ones look.
            usual: AtomicU64::new(WORTH.as_nanos() as u64 / 2),
            // Nobody has, for long.
            last: Mutex::new(Instant::now().checked_sub(ASIDE).unwrap_or_else(Instant::now)),
            gone: Condvar::new(),
        }
    }

    /// A wait has taken so long.
    fn note(&self, took: Duration) {
        // One that took for ever does not count for ever.
        let took = took.min(8 * WORTH).as_nanos() as u64;
        // Others may do the same: it need not be exact.
        let usual = self.usual.load(Ordering::Relaxed);
        self.usual.store(usual - usual / 8 + took / 8, Ordering::Relaxed);
    }

    /// How long a thread that waits is to look first: twice as long as waits usually take, or not at all.
    fn time(&self) -> Option<Duration> {
        let usual = Duration::from_nanos(self.usual.load(Ordering::Relaxed));
        (usual < WORTH).then_some(2 * usual)
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
        let found = match self.time() {
            Some(time) => {
                let end = begun + time;
                self.look(limit.map_or(end, |limit| limit.min(end)), came)
            }
            None => None,
        };
        let found = found.or_else(sleep);
        self.note(begun.elapsed());
        found
    }

    fn look<T>(&self, end: Instant, mut came: impl FnMut() -> Option<T>) -> Option<T> {
        self.looking.fetch_add(1, Ordering::SeqCst);
        let result = loop {
            let found = came();
            if found.is_some() || Instant::now() >= end {
                break found;
            }
            std::thread::yield_now();
        };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let alone = self.looking.fetch_sub(1, Ordering::SeqCst) == 1;
        match result {
            // It will wait again, most likely.
            Some(_) => *last = Instant::now(),
            // It sleeps, and the ports are to wake it.
            None if alone => {
                *last = last.checked_sub(ASIDE).unwrap_or(*last);
                self.gone.notify_all();
            }
            None => {}
        }
        result
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
        let pollers = Pollers::new();
        let before = pollers.usual.load(Ordering::Relaxed);
        assert_eq!(pollers.wait(None, || Some(1), || unreachable!("it is there")), Some(1));
        assert!(!pollers.stand_aside());
        assert_eq!(pollers.usual.load(Ordering::Relaxed), before, "nor does it say how long one waits");
    }

    #[test]
    fn long_waits_are_slept_through_and_short_ones_are_not() {
        let pollers = Pollers::new();
        for _ in 0..32 {
            pollers.note(Duration::from_secs(1));
        }
        let mut asked = 0;
        let slept = pollers.wait(
            None,
            || {
                asked += 1;
                None
            },
            || Some("slept"),
        );
        assert_eq!((slept, asked), (Some("slept"), 1), "once whether it is there, and no look");
        for _ in 0..64 {
            pollers.note(Duration::from_micros(20));
        }
        let mut asked = 0;
        let found = pollers.wait(
            None,
            || {
                asked += 1;
                (asked > 1).then_some("found")
            },
            || Some("slept"),
        );
        assert_eq!(found, Some("found"));
    }

    #[test]
    fn ports_stand_aside_while_somebody_looks() {
        let pollers = Pollers::new();
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
