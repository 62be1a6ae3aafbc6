// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits with a deadline.

use std::time::{Duration, Instant};

/// How long [`eventually`] waits: longer than anything takes on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What takes microseconds is not measured in sleeps; what takes longer keeps no processor busy.
const SHORT: Duration = Duration::from_millis(20);
/// The pauses after that: a part of the time that has passed, between these two.
const PAUSES: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(50)];

/// Calls `find` until it gives something. Panics with `what` after [`PATIENCE`].
pub fn eventually<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        match begun.elapsed() {
            waited if waited < SHORT => std::thread::yield_now(),
            waited if waited < PATIENCE => std::thread::sleep((waited / 50).clamp(PAUSES[0], PAUSES[1])),
            _ => panic!("not within {PATIENCE:?}: {what}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_asked_until_it_has_it() {
        let mut times = 0;
        let found = eventually("the third time", || {
            times += 1;
            (times == 3).then_some("here")
        });
        assert_eq!((found, times), ("here", 3));
    }
}
