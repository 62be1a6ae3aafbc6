// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clock of a server.

use std::time::Instant;

/// A monotonic clock, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// A clock that starts at zero.
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    /// Microseconds since the start.
    pub fn now(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}
