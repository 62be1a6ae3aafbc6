// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits with an end, for what comes of other processes and nodes: by looking again and again.

use crate::cli::{Failure, Outcome};
use std::time::{Duration, Instant};
use telegraphos::{Error, Status};

/// Between two looks other threads get the processor, and no more.
pub const YIELD: Duration = Duration::ZERO;
/// Between two looks at what takes a while.
pub const MILLISECOND: Duration = Duration::from_millis(1);
/// Refusals by a node, or for a name, that may be there soon.
pub const ABSENT: &[Status] = &[Status::NoSegment, Status::NodeDown, Status::LinkDown];

/// Looks until what is found is as wanted: that, or what `late` says of the last when the time is over.
pub fn becomes<T, E>(
    limit: Duration,
    pause: Duration,
    mut look: impl FnMut() -> Result<T, E>,
    wanted: impl Fn(&T) -> bool,
    late: impl FnOnce(&T) -> E,
) -> Result<T, E> {
    let deadline = Instant::now() + limit;
    loop {
        let found = look()?;
        if wanted(&found) {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            return Err(late(&found));
        }
        match pause {
            YIELD => std::thread::yield_now(),
            pause => std::thread::sleep(pause),
        }
    }
}

/// The same for what is so, or is not yet.
pub fn until(
    limit: Duration,
    pause: Duration,
    ready: impl FnMut() -> Outcome<bool>,
    late: impl FnOnce() -> Failure,
) -> Outcome<()> {
    becomes(limit, pause, ready, |ready| *ready, |_| late()).map(drop)
}

/// Calls until it does not fail, or with what does not pass, or the time is over: the last result.
pub fn patiently<T, E>(
    limit: Duration,
    pause: Duration,
    passes: impl Fn(&E) -> bool,
    mut call: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let deadline = Instant::now() + limit;
    loop {
        match call() {
            Err(error) if passes(&error) && Instant::now() < deadline => std::thread::sleep(pause),
            result => return result,
        }
    }
}

/// The same for calls of the library, which other nodes refuse for one of these reasons.
pub fn admitted<T>(limit: Duration, passing: &[Status], call: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let passes = |error: &Error| error.status().is_some_and(|status| passing.contains(&status));
    patiently(limit, 5 * MILLISECOND, passes, call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_when_it_has_come_and_when_the_time_is_over() {
        let mut looks = 0;
        let mut look = || {
            looks += 1;
            Ok::<_, String>(looks)
        };
        let late = |found: &i32| format!("{found}");
        assert_eq!(becomes(Duration::from_secs(60), YIELD, &mut look, |found| *found == 3, late), Ok(3));
        assert_eq!(becomes(Duration::ZERO, MILLISECOND, look, |_| false, late), Err("4".into()));
        let refused = until(Duration::ZERO, YIELD, || Ok(false), || Failure::Refused("late".into()));
        assert_eq!(refused.unwrap_err().to_string(), "late");
    }

    #[test]
    fn what_passes_is_called_again() {
        let failed = |status| Err(Error::Failed { what: "it".into(), status });
        let mut results = vec![failed(Status::Rights), failed(Status::NodeDown), failed(Status::NoSegment)];
        let last = admitted(Duration::from_secs(60), ABSENT, || results.pop().unwrap_or(Ok(())));
        assert_eq!(last.unwrap_err().status(), Some(Status::Rights));
    }
}
