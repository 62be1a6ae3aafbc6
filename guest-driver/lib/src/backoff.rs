// SPDX-License-Identifier: MIT OR Apache-2.0
//! Polling with growing pauses, and a deadline. How long a pause is [`policy`] says; here are the clock and the sleep.

mod policy;

pub(crate) use policy::{CopyPace, Pause, seen, unwoken};

use crate::error::Result;
use std::time::{Duration, Instant};

/// Sleeps between two checks with the driver.
const CHECK_EVERY: u32 = 64;

/// A wait by polling: spins, then yields, then sleeps for a part of what it has waited, at most a millisecond at a
/// time; never past the time at which something is expected.
#[derive(Debug)]
pub(crate) struct Backoff {
    polls: u32,
    /// Without a limit from the first pause on: a poll that finds something at once needs no clock.
    begun: Option<Instant>,
    limit: Option<Duration>,
    expected: Option<Instant>,
    late: Duration,
}

impl Backoff {
    /// A wait that begins now and ends after `limit` (`None`: never).
    pub(crate) fn new(limit: Option<Duration>) -> Backoff {
        Backoff { polls: 0, begun: limit.map(|_| Instant::now()), limit, expected: None, late: Duration::ZERO }
    }

    /// What is waited for is expected then. It can come earlier or later. Sleeps of this thread end `late`.
    pub(crate) fn expect(&mut self, at: Option<Instant>, late: Duration) {
        (self.expected, self.late) = (at, late);
    }

    /// Pauses once before the next poll; false when the limit is reached. A limit of zero allows one poll, before the
    /// first pause.
    pub(crate) fn wait(&mut self) -> bool {
        match self.next() {
            Some(Pause::Sleep(time) | Pause::Block(time)) => std::thread::sleep(time),
            Some(Pause::Yield) => std::thread::yield_now(),
            Some(Pause::Spin) => std::hint::spin_loop(),
            None => return false,
        }
        true
    }

    /// The next pause, for a caller that makes it itself; `None` when the limit is reached.
    pub(crate) fn next(&mut self) -> Option<Pause> {
        self.polls = self.polls.saturating_add(1);
        let begun = *self.begun.get_or_insert_with(Instant::now);
        if let Pause::Spin = policy::pause(self.polls, Duration::ZERO, None, Duration::ZERO) {
            // Without a look at the clock.
            return (self.limit != Some(Duration::ZERO)).then_some(Pause::Spin);
        }
        let waited = begun.elapsed();
        let left = self.limit.map_or(Duration::MAX, |limit| limit.saturating_sub(waited));
        if left.is_zero() {
            return None;
        }
        let expected = self.expected.map(|at| at.saturating_duration_since(begun));
        Some(match policy::pause(self.polls, waited, expected, self.late) {
            Pause::Sleep(time) => Pause::Sleep(time.min(left)),
            Pause::Block(time) => Pause::Block(time.min(left)),
            pause => pause,
        })
    }

    /// [`Backoff::wait`] that from time to time checks with the driver that waiting still makes sense. A system call
    /// costs as much as many polls, so this calls `check` after some 64 sleeps, and each 64 after that.
    pub(crate) fn wait_checked(&mut self, check: impl FnOnce() -> Result<()>) -> Result<bool> {
        let more = self.wait();
        if more && self.is_time_to_check() {
            check()?;
        }
        Ok(more)
    }

    /// Whether the caller of [`Backoff::next`] should check with the driver that waiting still makes sense.
    pub(crate) fn is_time_to_check(&self) -> bool {
        policy::is_patient(self.polls) && self.polls % CHECK_EVERY == 0
    }

    /// What is waited for has begun to come: polls again without sleeps at first.
    pub(crate) fn restart(&mut self) {
        self.polls = 0;
    }

    /// Time until the limit; `None` without one.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.limit.map(|limit| limit.saturating_sub(self.waited()))
    }

    /// Whether the limit has passed.
    pub(crate) fn expired(&self) -> bool {
        self.left() == Some(Duration::ZERO)
    }

    /// Time since the wait began; without a limit, since its first pause.
    pub(crate) fn waited(&self) -> Duration {
        self.begun.map_or(Duration::ZERO, |begun| begun.elapsed())
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

    #[test]
    fn a_wait_continues_past_what_was_expected() {
        let mut backoff = Backoff::new(Some(Duration::from_millis(30)));
        backoff.expect(Some(Instant::now() + Duration::from_millis(2)), Duration::ZERO);
        let mut blocked = false;
        while let Some(pause) = backoff.next() {
            blocked |= matches!(pause, Pause::Block(_));
            if let Pause::Sleep(time) | Pause::Block(time) = pause {
                std::thread::sleep(time);
            }
        }
        assert!(blocked && backoff.waited() >= Duration::from_millis(30));
    }
}
