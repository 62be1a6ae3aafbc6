// SPDX-License-Identifier: MIT OR Apache-2.0
//! Polling with growing pauses, and a deadline.

use crate::error::Result;
use std::time::{Duration, Instant};

/// Polls before the thread yields its processor for the first time: the board may well run on another one.
const SPINS: u32 = 256;
/// Polls between which other threads may run, before the thread sleeps.
const YIELDS: u32 = 64;
const SLEEP_MIN: Duration = Duration::from_micros(20);
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// Sleeps between two checks with the driver.
const CHECK_EVERY: u32 = 64;

/// A wait by polling: spins, then yields, then sleeps up to a millisecond at a time.
#[derive(Debug)]
pub(crate) struct Backoff {
    polls: u32,
    sleep: Duration,
    begun: Instant,
    limit: Option<Duration>,
}

impl Backoff {
    /// A wait that begins now and ends after `limit` (`None`: never).
    pub(crate) fn new(limit: Option<Duration>) -> Backoff {
        Backoff { polls: 0, sleep: SLEEP_MIN, begun: Instant::now(), limit }
    }

    /// Pauses once before the next poll; false when the limit is reached. A limit of zero allows one poll, before the
    /// first pause.
    pub(crate) fn wait(&mut self) -> bool {
        self.polls = self.polls.saturating_add(1);
        if self.polls <= SPINS {
            std::hint::spin_loop();
            return self.limit != Some(Duration::ZERO);
        }
        let left = match self.left() {
            Some(Duration::ZERO) => return false,
            left => left.unwrap_or(SLEEP_MAX),
        };
        if self.polls <= SPINS + YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(self.sleep.min(left));
            self.sleep = (self.sleep * 2).min(SLEEP_MAX);
        }
        true
    }

    /// [`Backoff::wait`] that from time to time checks with the driver that waiting still makes sense. A system call
    /// costs as much as many polls, so this calls `check` after some 64 ms of sleeping, and each 64 ms after that.
    pub(crate) fn wait_checked(&mut self, check: impl FnOnce() -> Result<()>) -> Result<bool> {
        let more = self.wait();
        if more && self.polls > SPINS + YIELDS && self.polls % CHECK_EVERY == 0 {
            check()?;
        }
        Ok(more)
    }

    /// Time until the limit; `None` without one.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.limit.map(|limit| limit.saturating_sub(self.begun.elapsed()))
    }

    /// Whether the limit has passed.
    pub(crate) fn expired(&self) -> bool {
        self.left() == Some(Duration::ZERO)
    }

    /// Time since the wait began.
    pub(crate) fn waited(&self) -> Duration {
        self.begun.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_at_its_limit() {
        let mut once = Backoff::new(Some(Duration::ZERO));
        assert!(!once.wait());
        let mut short = Backoff::new(Some(Duration::from_millis(3)));
        while short.wait() {}
        assert!(short.waited() >= Duration::from_millis(3));
    }
}
