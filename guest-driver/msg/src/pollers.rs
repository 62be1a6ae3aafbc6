// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that look for their messages themselves, and whether that is worth it (`Progress::Adaptive`).
//!
//! While there are such threads, those of the ports stand aside: they would have the board interrupt the guest for each
//! message, and would then have to wake a thread that is awake. A thread that sleeps in its port when others begin to
//! look is left there until its next message.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// For how long a thread looks. About what an interrupt and the waking of two threads cost.
const LOOKS: Duration = Duration::from_micros(200);
/// How long ports stand aside when nobody looks any more: threads that exchange messages look again soon.
const ASIDE: Duration = Duration::from_millis(1);
/// Of so many waits, at least one looks, however the others ended.
const PROBE: u32 = 16;

#[derive(Debug)]
pub(crate) struct Pollers {
    looking: AtomicU32,
    /// How the last 32 looks ended: a bit each, 1 if a message came.
    history: AtomicU32,
    waits: AtomicU32,
    /// When somebody last looked.
    last: Mutex<Instant>,
    /// All of them sleep.
    gone: Condvar,
}

impl Pollers {
    pub(crate) fn new() -> Pollers {
        Pollers {
            looking: AtomicU32::new(0),
            history: AtomicU32::new(u32::MAX),
            waits: AtomicU32::new(0),
            // Nobody has, for long.
            last: Mutex::new(Instant::now().checked_sub(ASIDE).unwrap_or_else(Instant::now)),
            gone: Condvar::new(),
        }
    }

    fn note(&self, came: bool) {
        // Others may do the same: it need not be exact.
        let history = self.history.load(Ordering::Relaxed);
        self.history.store(history << 1 | u32::from(came), Ordering::Relaxed);
    }

    /// Whether a thread that waits is to look first: a quarter of the last looks were worth it, or it is time to try.
    fn is_worth_it(&self) -> bool {
        self.history.load(Ordering::Relaxed).count_ones() >= 8
            || self.waits.fetch_add(1, Ordering::Relaxed) % PROBE == 0
    }

    /// Looks until `came`, for a while. Returns what came, or nothing: the thread is to sleep.
    pub(crate) fn look<T>(&self, limit: Option<Instant>, mut came: impl FnMut() -> Option<T>) -> Option<T> {
        if let Some(came) = came() {
            return Some(came);
        }
        if !self.is_worth_it() {
            return None;
        }
        self.looking.fetch_add(1, Ordering::SeqCst);
        let end = Instant::now() + LOOKS;
        let end = limit.map_or(end, |limit| limit.min(end));
        let result = loop {
            let found = came();
            if found.is_some() || Instant::now() >= end {
                break found;
            }
            std::thread::yield_now();
        };
        self.note(result.is_some());
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
        assert_eq!(pollers.look(None, || Some(1)), Some(1));
        assert!(!pollers.stand_aside());
    }

    #[test]
    fn looks_that_are_not_worth_it_become_rare() {
        let pollers = Pollers::new();
        let mut looks = 0;
        for _ in 0..200 {
            let mut asked = 0;
            assert_eq!(
                pollers.look(None, || {
                    asked += 1;
                    None::<()>
                }),
                None
            );
            looks += u32::from(asked > 1);
        }
        // 25 until three quarters have failed, and then one of 16.
        assert!((25..=25 + 175 / PROBE + 1).contains(&looks), "{looks}");
        for _ in 0..PROBE * 10 {
            let mut asked = 0;
            pollers.look(None, || {
                asked += 1;
                (asked > 1).then_some(())
            });
        }
        assert!(pollers.is_worth_it() && pollers.is_worth_it(), "it has become worth it");
    }

    #[test]
    fn ports_stand_aside_while_somebody_looks() {
        let pollers = Pollers::new();
        let mut aside = None;
        pollers.look(None, || {
            aside = Some(pollers.stand_aside());
            aside.filter(|aside| *aside)
        });
        assert_eq!(aside, Some(true));
        std::thread::sleep(2 * ASIDE);
        assert!(!pollers.stand_aside());
        assert_eq!(pollers.look(Some(Instant::now()), || None::<()>), None);
        assert!(!pollers.stand_aside(), "it sleeps");
    }
}
