// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conversion between the microseconds of the callers and the instants of the QUIC engine.

use std::time::{Duration, Instant};

/// The time, as callers set it. An `Instant` can only be obtained by reading the clock, so that is read once, as a
/// base.
#[derive(Debug)]
pub(crate) struct Clock {
    base: Instant,
    /// The callers' time at `base`.
    first: Option<u64>,
    last: u64,
}

impl Clock {
    /// A clock that starts with the first call of [`Clock::advance`].
    pub(crate) fn new() -> Clock {
        Clock { base: Instant::now(), first: None, last: 0 }
    }

    /// Sets the time to `now`; an earlier time than the latest is ignored.
    pub(crate) fn advance(&mut self, now: u64) {
        self.first.get_or_insert(now);
        self.last = self.last.max(now);
    }

    /// The latest time set, in microseconds.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    pub(crate) fn instant(&self) -> Instant {
        // Microseconds in 64 bits are 600 000 years: no overflow.
        self.base + Duration::from_micros(self.last.saturating_sub(self.first.unwrap_or(0)))
    }

    /// `at` in microseconds, rounded up, so that then it is not before `at`.
    pub(crate) fn micros(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.base).as_nanos().div_ceil(1000);
        self.first.unwrap_or(0).saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_go_forth_and_back_and_never_backwards() {
        let mut clock = Clock::new();
        clock.advance(5_000_000);
        assert_eq!(clock.micros(clock.instant()), 5_000_000);
        clock.advance(7_000_001);
        assert_eq!(clock.micros(clock.instant()), 7_000_001);
        assert_eq!(clock.micros(clock.instant() + Duration::from_nanos(1)), 7_000_002);
        clock.advance(6_000_000);
        assert_eq!(clock.last(), 7_000_001);
        clock.advance(u64::MAX);
        assert_eq!(clock.micros(clock.instant()), u64::MAX);
    }
}
