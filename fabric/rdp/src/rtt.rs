// SPDX-License-Identifier: MIT OR Apache-2.0
//! The round-trip time, and the retransmission timeout that follows from it.
//!
//! The estimate is that of RFC 6298: a smoothed time and its mean deviation. Samples come from stamps that the other
//! side echoes (as in RFC 7323), so that a segment sent twice gives a true sample too: after many losses the timer is
//! as good as before.

use crate::config::Config;

/// Samples above this, in microseconds, are ignored.
const LONGEST: u32 = 60_000_000;

/// The estimate of one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundTrip {
    /// Smoothed time and mean deviation, microseconds.
    measured: Option<(u64, u64)>,
}

impl RoundTrip {
    /// Adds a sample: a datagram that arrived at `now` echoes the stamp `echo` (0: none).
    pub(crate) fn answered(&mut self, now: u64, echo: u32) {
        let sample = (now as u32).wrapping_sub(echo);
        if echo == 0 || sample > LONGEST {
            return;
        }
        let sample = u64::from(sample);
        self.measured = Some(match self.measured {
            None => (sample, sample / 2),
            Some((time, deviation)) => {
                ((7 * time + sample).div_ceil(8), (3 * deviation + time.abs_diff(sample)).div_ceil(4))
            }
        });
    }

    /// The retransmission timeout, in microseconds.
    pub(crate) fn timeout(&self, config: &Config) -> u64 {
        match self.measured {
            None => config.timeout_initial,
            Some((time, deviation)) => {
                (time + (4 * deviation).max(1000) + config.ack_delay).clamp(config.timeout_min, config.timeout_max)
            }
        }
    }

    /// The smoothed round-trip time in microseconds, `None` before the first sample.
    pub(crate) fn smoothed(&self) -> Option<u64> {
        self.measured.map(|(time, _)| time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timer_follows_what_is_measured() {
        let (config, mut trip) = (Config::default(), RoundTrip::default());
        assert_eq!(trip.timeout(&config), config.timeout_initial);
        for n in 0..100u64 {
            trip.answered(n * 1000 + 200, (n * 1000).max(1) as u32);
        }
        assert!(trip.smoothed().is_some_and(|t| (199..=201).contains(&t)), "{trip:?}");
        assert_eq!(trip.timeout(&config), config.timeout_min);
        for n in 200..300u64 {
            trip.answered(n * 100_000 + 80_000, (n * 100_000) as u32);
        }
        assert!((80_000..90_000).contains(&trip.timeout(&config)), "{trip:?}");
        // No echo, and one that cannot be.
        let before = trip.measured;
        trip.answered(5, 0);
        trip.answered(5, 6);
        assert_eq!(trip.measured, before);
        // The stamp wraps.
        trip.measured = None;
        trip.answered((1 << 32) + 5, u32::MAX - 4);
        assert_eq!(trip.smoothed(), Some(10));
    }
}
