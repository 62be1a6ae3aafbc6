// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events per time.

/// A token bucket: `per_second` events in the long run, `burst` at once.
///
/// Time is microseconds of any clock that does not go back; an earlier time than the last one counts as that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Rate {
    per_second: u32,
    burst: u32,
    /// Events in hand, in millionths.
    level: u64,
    at: u64,
}

/// Level that is one event.
const ONE: u64 = 1_000_000;

impl Rate {
    /// A full bucket. A rate of zero allows the burst once and then nothing.
    pub const fn new(per_second: u32, burst: u32) -> Rate {
        Rate { per_second, burst, level: burst as u64 * ONE, at: 0 }
    }

    /// Takes one event at `now`; false if the rate is exceeded, and nothing is taken.
    pub fn take(&mut self, now: u64) -> bool {
        self.refill(now);
        if self.level < ONE {
            return false;
        }
        self.level -= ONE;
        true
    }

    /// When the next event will be allowed: `now` or later; never if the burst is zero, or used up at a rate of zero.
    pub fn ready_at(&mut self, now: u64) -> Option<u64> {
        self.refill(now);
        if self.level >= ONE {
            return Some(self.at);
        }
        let missing = ONE - self.level;
        (self.per_second > 0 && self.burst > 0)
            .then(|| self.at.saturating_add(missing.div_ceil(u64::from(self.per_second))))
    }

    /// Whether nothing is missing from the bucket at `now`.
    pub fn is_full(&mut self, now: u64) -> bool {
        self.refill(now);
        self.level == u64::from(self.burst) * ONE
    }

    /// Events per second in the long run.
    pub const fn per_second(&self) -> u32 {
        self.per_second
    }

    /// Events at once.
    pub const fn burst(&self) -> u32 {
        self.burst
    }

    fn refill(&mut self, now: u64) {
        let passed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        // A microsecond is a millionth of a second, the level is in millionths: the factors cancel.
        let gained = passed.saturating_mul(u64::from(self.per_second));
        self.level = self.level.saturating_add(gained).min(u64::from(self.burst) * ONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_burst_then_the_rate() {
        let mut rate = Rate::new(2, 3);
        assert!((0..3).all(|_| rate.take(0)));
        assert!(!rate.take(0));
        assert_eq!(rate.ready_at(0), Some(500_000));
        assert!(!rate.take(499_999));
        assert!(rate.take(500_000));
        assert!(!rate.take(400_000), "time does not go back");
        assert_eq!((Rate::new(0, 0).ready_at(7), Rate::new(1, 0).ready_at(7)), (None, None));
    }

    proptest! {
        #[test]
        fn never_more_than_burst_and_rate(per_second in 0u32..1000, burst in 0u32..100, steps in proptest::collection::vec(0u64..100_000, 0..300)) {
            let mut rate = Rate::new(per_second, burst);
            let (mut now, mut taken) = (0u64, 0u64);
            for step in steps {
                now += step;
                taken += u64::from(rate.take(now));
                let bound = u64::from(burst) + now * u64::from(per_second) / 1_000_000;
                prop_assert!(taken <= bound);
                if let Some(at) = rate.ready_at(now) {
                    prop_assert!(rate.clone().take(at));
                }
            }
        }
    }
}
