// SPDX-License-Identifier: MIT OR Apache-2.0
//! Time that counts against others only while this process could have seen what it waits for.

use std::time::{Duration, Instant};

/// Of what passes between two looks, at most so much counts. A loop that waits looks more often.
const STEP: Duration = Duration::from_secs(1);

/// Time since its beginning, less what this process was stopped for (SIGSTOP, a debugger, a container that is frozen):
/// then the others were stopped as well, or nothing of what they did was seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch {
    counted: Duration,
    looked: Instant,
}

impl Stopwatch {
    pub(crate) fn start() -> Stopwatch {
        Stopwatch { counted: Duration::ZERO, looked: Instant::now() }
    }

    /// To be called more often than once a second.
    pub(crate) fn elapsed(&mut self) -> Duration {
        self.at(Instant::now())
    }

    fn at(&mut self, now: Instant) -> Duration {
        self.counted += now.saturating_duration_since(self.looked).min(STEP);
        self.looked = now;
        self.counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_between_looks_counts_up_to_a_step() {
        let mut watch = Stopwatch::start();
        let mut now = watch.looked;
        let mut after = |watch: &mut Stopwatch, milliseconds: u64| {
            now += Duration::from_millis(milliseconds);
            watch.at(now)
        };
        for _ in 0..20 {
            after(&mut watch, 100);
        }
        assert_eq!(after(&mut watch, 0), Duration::from_secs(2));
        // Stopped for an hour.
        assert_eq!(after(&mut watch, 3_600_000), Duration::from_secs(3));
        assert_eq!(after(&mut watch, 500), Duration::from_millis(3500));
    }
}
