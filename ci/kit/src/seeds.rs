// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which seeds a test checks: few for every change, more with `TELEGRAPHOS_SCALE=full`, one alone with
//! `TELEGRAPHOS_SEED`.
//!
//! All seeds of all tests take days. `TELEGRAPHOS_TURN` says how many seconds each loop over seeds or rounds lasts at
//! most in the long form; it begins at another seed each day, so that what it does not reach today it reaches another
//! time.

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

/// The seed in `TELEGRAPHOS_SEED`. Panics if that is no number.
pub fn seed() -> Option<u64> {
    let text = std::env::var("TELEGRAPHOS_SEED").ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("TELEGRAPHOS_SEED is {text:?}: expected a number")))
}

/// The same; `usual` without the variable.
pub fn seed_or(usual: u64) -> u64 {
    seed().unwrap_or(usual)
}

/// How long the tests of endurance last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Short, for every change.
    Ci,
    /// As long as promised (`TELEGRAPHOS_SCALE=full`).
    Full,
}

impl Scale {
    /// The choice of the environment.
    pub fn from_env() -> Scale {
        match std::env::var("TELEGRAPHOS_SCALE").as_deref() {
            Ok("full") => Scale::Full,
            _ => Scale::Ci,
        }
    }

    /// One of two.
    pub fn pick<T>(self, ci: T, full: T) -> T {
        match self {
            Scale::Ci => ci,
            Scale::Full => full,
        }
    }
}

/// `full` with `TELEGRAPHOS_SCALE=full`, else `ci`.
pub fn scale<T>(ci: T, full: T) -> T {
    Scale::from_env().pick(ci, full)
}

/// The numbers of a test's seeds or rounds. At full scale they end with the test's turn, if `TELEGRAPHOS_TURN` sets
/// one; but not before they are as many as for each change.
#[derive(Debug)]
pub struct Rounds {
    /// The first, and how many there are.
    range: (u64, u64),
    /// Of which so many were taken, beginning with the `offset`th.
    done: u64,
    offset: u64,
    /// As many as these are taken after the end, too.
    least: u64,
    ends: Option<Instant>,
}

impl Rounds {
    fn new(range: (u64, u64), least: u64, turn: Option<Duration>, day: u64) -> Rounds {
        // A large prime: days that follow each other are far apart.
        let offset = if turn.is_some() { day.wrapping_mul(15_485_863) % range.1.max(1) } else { 0 };
        Rounds { range, done: 0, offset, least, ends: turn.map(|turn| Instant::now() + turn) }
    }

    /// How many were taken.
    pub fn done(&self) -> u64 {
        self.done
    }
}

impl Iterator for Rounds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let (first, count) = self.range;
        let over = self.done >= self.least && self.ends.is_some_and(|ends| Instant::now() >= ends);
        if self.done == count || over {
            return None;
        }
        self.done += 1;
        Some(first + (self.offset + self.done - 1) % count)
    }
}

/// `ci` or `full` rounds by [`scale`]; `full` ones end with the turn.
pub fn rounds(ci: u64, full: u64) -> Rounds {
    let day = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs() / 86_400);
    Rounds::new((0, scale(ci, full)), ci, turn(), day)
}

/// The same as seeds, or the one in `TELEGRAPHOS_SEED`.
pub fn seeds(ci: u64, full: u64) -> Rounds {
    seed().map_or_else(|| rounds(ci, full), |seed| Rounds::new((seed, 1), 1, None, 0))
}

/// How long a loop lasts at most: `TELEGRAPHOS_TURN` in seconds at full scale, else without a bound. Panics if that is
/// no number.
pub fn turn() -> Option<Duration> {
    let text = std::env::var("TELEGRAPHOS_TURN").ok().filter(|_| Scale::from_env() == Scale::Full)?;
    let seconds = text.parse().unwrap_or_else(|_| panic!("TELEGRAPHOS_TURN is {text:?}: expected seconds"));
    Some(Duration::from_secs(seconds))
}

/// Checks [`seeds`]. A failure panics with its seed. How many were checked; `None` if it was the one of
/// `TELEGRAPHOS_SEED`, of which nothing can be demanded that happens with some seed only.
pub fn over_seeds<E: Display>(ci: u64, full: u64, mut check: impl FnMut(u64) -> Result<(), E>) -> Option<u64> {
    let mut seeds = seeds(ci, full);
    for seed in seeds.by_ref() {
        check(seed).unwrap_or_else(|e| panic!("TELEGRAPHOS_SEED={seed}: {e}"));
    }
    seed().is_none().then_some(seeds.done())
}

/// The same on all processors. How many, and the sum of what their checks have counted. A check that panics has failed.
pub fn over_seeds_on_all_processors<T: Default + Send>(
    ci: u64,
    full: u64,
    add: impl Fn(&mut T, T) + Sync,
    check: impl Fn(u64) -> Result<T, String> + Sync,
) -> (u64, T) {
    let (seeds, failed) = (Mutex::new(seeds(ci, full)), Mutex::new(Vec::new()));
    let total = Mutex::new(T::default());
    let lock = "no other thread has panicked with the lock";
    let next = || seeds.lock().expect(lock).next();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while failed.lock().expect(lock).is_empty() {
                    let Some(seed) = next() else { break };
                    match caught(|| check(seed)) {
                        Ok(tally) => add(&mut total.lock().expect(lock), tally),
                        Err(e) => failed.lock().expect(lock).push(format!("TELEGRAPHOS_SEED={seed}: {e}")),
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect(lock);
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    (seeds.into_inner().expect(lock).done(), total.into_inner().expect(lock))
}

/// What it returns; the message if it panics.
pub(crate) fn caught<T>(check: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|panic| Err(panic_message(panic.as_ref())))
}

/// The words of a panic.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_else(|| "a panic".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(run: impl FnOnce()) -> String {
        caught(|| {
            run();
            Ok(())
        })
        .unwrap_err()
    }

    #[test]
    fn a_turn_takes_other_seeds_each_day_and_none_twice() {
        let long = Some(Duration::from_secs(3600));
        let all = |day| Rounds::new((5, 10), 1, long, day).collect::<Vec<_>>();
        let (one, other) = (all(20_000), all(20_001));
        assert_ne!(one[0], other[0]);
        for mut all in [one, other] {
            all.sort_unstable();
            assert_eq!(all, (5..15).collect::<Vec<_>>());
        }
        // Without a turn each begins with the first.
        assert_eq!(Rounds::new((5, 10), 1, None, 20_001).collect::<Vec<_>>(), (5..15).collect::<Vec<_>>());
        // As many as for each change, however short the turn.
        let mut over = Rounds::new((0, 10), 2, Some(Duration::ZERO), 0);
        assert_eq!((over.by_ref().collect::<Vec<_>>(), over.done()), (vec![0, 1], 2));
        assert_eq!(Rounds::new((0, 0), 0, long, 3).next(), None);
    }

    #[test]
    fn a_failure_names_its_seed() {
        if seed().is_some() {
            return;
        }
        let check = |seed| if seed == 3 { Err("no".to_owned()) } else { Ok(()) };
        assert_eq!(over_seeds(3, 3, check), Some(3));
        assert_eq!(failure(|| _ = over_seeds(4, 4, check)), "TELEGRAPHOS_SEED=3: no");
        let panics = |seed: u64| if seed == 3 { panic!("oh") } else { Ok(seed) };
        let sum = |sum: &mut u64, seed| *sum += seed;
        assert_eq!(over_seeds_on_all_processors(3, 3, sum, panics), (3, 3));
        let said = failure(|| _ = over_seeds_on_all_processors(4, 4, sum, panics));
        assert_eq!(said, "TELEGRAPHOS_SEED=3: oh");
    }
}
