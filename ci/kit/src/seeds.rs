// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which seeds a test checks: few for every change, more with `TELEGRAPHOS_SCALE=full`, one alone with
//! `TELEGRAPHOS_SEED`.

use std::any::Any;
use std::fmt::Display;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// So many seeds by [`scale`], or the one in `TELEGRAPHOS_SEED`.
pub fn seeds(ci: u64, full: u64) -> Range<u64> {
    seed().map_or(0..scale(ci, full), |seed| seed..seed + 1)
}

/// Checks [`seeds`]. A failure panics with its seed. How many were checked; `None` if it was the one of
/// `TELEGRAPHOS_SEED`, of which nothing can be demanded that happens with some seed only.
pub fn over_seeds<E: Display>(ci: u64, full: u64, mut check: impl FnMut(u64) -> Result<(), E>) -> Option<u64> {
    let seeds = seeds(ci, full);
    for seed in seeds.clone() {
        check(seed).unwrap_or_else(|e| panic!("TELEGRAPHOS_SEED={seed}: {e}"));
    }
    self::seed().is_none().then_some(seeds.end)
}

/// The same on all processors. How many, and the sum of what their checks have counted. A check that panics has failed.
pub fn over_seeds_on_all_processors<T: Default + Send>(
    ci: u64,
    full: u64,
    add: impl Fn(&mut T, T) + Sync,
    check: impl Fn(u64) -> Result<T, String> + Sync,
) -> (u64, T) {
    let seeds = seeds(ci, full);
    let (next, failed) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    let total = Mutex::new(T::default());
    let lock = "no other thread has panicked with the lock";
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while failed.lock().expect(lock).is_empty() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
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
    (seeds.end - seeds.start, total.into_inner().expect(lock))
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
