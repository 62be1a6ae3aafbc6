// SPDX-License-Identifier: MIT OR Apache-2.0
//! Log lines that a peer can trigger: a few at once, then a trickle, and what is left out is counted.

use std::time::{Duration, Instant};

/// Lines admitted at once.
const BURST: u32 = 20;
/// Time after which one more is admitted.
const REFILL: Duration = Duration::from_secs(1);

/// A token bucket for one kind of line.
#[derive(Debug, Default)]
pub(crate) struct Limiter {
    used: u32,
    since: Option<Instant>,
    suppressed: u64,
}

impl Limiter {
    /// Whether a line may be written now, and if so how many were left out since the last.
    pub(crate) fn admit(&mut self, now: Instant) -> Option<u64> {
        let since = *self.since.get_or_insert(now);
        let refilled = now.saturating_duration_since(since).as_secs() / REFILL.as_secs();
        if refilled > 0 {
            self.used = self.used.saturating_sub(u32::try_from(refilled).unwrap_or(u32::MAX));
            self.since = Some(now);
        }
        if self.used >= BURST {
            self.suppressed += 1;
            return None;
        }
        self.used += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_becomes_a_trickle_that_counts() {
        let (mut limiter, start) = (Limiter::default(), Instant::now());
        let (mut admitted, mut accounted) = (0, 0);
        for ms in 0..10_500 {
            if let Some(left_out) = limiter.admit(start + Duration::from_millis(ms)) {
                admitted += 1;
                accounted += 1 + left_out;
            }
        }
        assert_eq!(admitted, u64::from(BURST) + 10);
        assert_eq!(accounted, 10_001);
    }
}
