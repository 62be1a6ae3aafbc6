// SPDX-License-Identifier: MIT OR Apache-2.0
//! `quiet`: when stores have arrived (the papers' FENCE, SPEC item 27, E19; OpenSHMEM's `shmem_quiet`).
//!
//! A thread takes one of the context's 64 slots, stores `import << 48 | cookie` to the slot's word of the context page,
//! and waits until the board has written `status << 48 | cookie` to the slot's word of the status page. The store
//! travels behind the process's earlier stores, and that is all the ordering there is to it: on x86, stores to
//! uncached memory are performed in program order and after earlier ordinary stores; on aarch64 `fence` sees to the
//! second half.
//!
//! A cookie is used once, so a slot given up by an impatient caller can be used again at once: the board forgets the
//! older question, and should it have answered already, the answer bears the older cookie.

use crate::access::{Instructions, fence};
use crate::error::{Error, Result};
use crate::node::Inner;
use crate::remote::State;
use crate::sys::Mapping;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use telegraphos_wire::{Status, context};

/// Looks at the status word before the thread gives up its processor for the first time: the board may well run on
/// another one.
const SPINS: u32 = 256;
/// Looks between which other threads may run, before it sleeps.
const YIELDS: u32 = 64;
const SLEEP_MIN: Duration = Duration::from_micros(20);
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// Sleeps between questions to the driver whether an answer can still come.
const CHECK_EVERY: u32 = 64;

/// Whose stores.
#[derive(Clone, Copy)]
pub(crate) enum Scope<'a> {
    /// Of one import: its handle, and what to call it.
    Import(u32, &'a dyn Fn() -> String),
    /// Of the whole context.
    All,
}

/// The quiet slots of a context.
#[derive(Debug)]
pub(crate) struct Quiets {
    context_page: Mapping,
    status_page: Mapping,
    /// One bit per slot in use.
    used: AtomicU64,
    cookie: AtomicU64,
}

impl Quiets {
    pub(crate) fn new(context_page: Mapping, status_page: Mapping) -> Quiets {
        Quiets { context_page, status_page, used: AtomicU64::new(0), cookie: AtomicU64::new(0) }
    }

    fn next_cookie(&self) -> u64 {
        // Never 0, which is what an unused slot of the status page holds; 2^48 quiets take longer than machines live.
        loop {
            let cookie = (self.cookie.fetch_add(1, Ordering::Relaxed) + 1) & ((1 << context::COOKIE_BITS) - 1);
            if cookie != 0 {
                return cookie;
            }
        }
    }
}

/// A slot taken out of a bitmap until drop.
struct Slot<'a> {
    used: &'a AtomicU64,
    number: u32,
}

impl<'a> Slot<'a> {
    fn take(used: &'a AtomicU64) -> Option<Slot<'a>> {
        let mut seen = used.load(Ordering::Relaxed);
        loop {
            let number = seen.trailing_ones();
            if number >= context::QUIET_SLOTS as u32 {
                return None;
            }
            match used.compare_exchange_weak(seen, seen | 1 << number, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Slot { used, number }),
                Err(now) => seen = now,
            }
        }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.used.fetch_and(!(1 << self.number), Ordering::Release);
    }
}

/// Waits in growing steps.
struct Backoff {
    round: u32,
    sleep: Duration,
    begun: Instant,
    limit: Option<Duration>,
}

impl Backoff {
    fn new(limit: Option<Duration>) -> Backoff {
        Backoff { round: 0, sleep: SLEEP_MIN, begun: Instant::now(), limit }
    }

    /// One step; false when the limit is reached.
    fn wait(&mut self) -> bool {
        self.round = self.round.saturating_add(1);
        if self.round <= SPINS {
            std::hint::spin_loop();
            // A limit of zero means one look.
            return self.limit != Some(Duration::ZERO);
        }
        let left = match self.limit.map(|l| l.saturating_sub(self.begun.elapsed())) {
            Some(Duration::ZERO) => return false,
            left => left.unwrap_or(SLEEP_MAX),
        };
        if self.round <= SPINS + YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(self.sleep.min(left));
            self.sleep = (self.sleep * 2).min(SLEEP_MAX);
        }
        true
    }

    /// Whether it is time to ask the driver.
    fn doubts(&self) -> bool {
        self.round > SPINS + YIELDS && self.round % CHECK_EVERY == 0
    }
}

impl Inner {
    pub(crate) fn quiet(&self, scope: Scope<'_>, limit: Option<Duration>) -> Result<()> {
        let quiets = &self.quiets;
        let what = || match scope {
            Scope::Import(_, what) => what(),
            Scope::All => format!("all imports of {}", self.path.display()),
        };
        let mut backoff = Backoff::new(limit);
        let pending = |backoff: &Backoff| Error::Pending { what: what(), waited: backoff.begun.elapsed() };
        let slot = loop {
            match Slot::take(&quiets.used) {
                Some(slot) => break slot,
                None if backoff.wait() => {}
                None => return Err(pending(&backoff)),
            }
        };
        let cookie = quiets.next_cookie();
        let number = match scope {
            Scope::Import(handle, _) => u64::from(handle),
            Scope::All => context::QUIET_ALL,
        };
        let at = 8 * slot.number as usize;
        fence();
        // SAFETY: slot numbers are below 64, so the word lies, aligned, in the mapped context page.
        unsafe {
            let quiet = quiets.context_page.at().add(context::QUIET as usize + at).cast::<u64>();
            u64::window_store(quiet, number << context::COOKIE_BITS | cookie);
        }
        loop {
            // SAFETY: as above, in the status page, which the board writes one word at a time.
            let word = unsafe { u64::load_acquire(quiets.status_page.at().add(at).cast()) };
            if word & ((1 << context::COOKIE_BITS) - 1) == cookie {
                fence();
                return match Status::from_u16((word >> context::COOKIE_BITS) as u16) {
                    Status::Ok => Ok(()),
                    status => Err(Error::Failed { what: what(), status }),
                };
            }
            if !backoff.wait() {
                return Err(pending(&backoff));
            }
            if backoff.doubts() {
                self.can_still_answer(scope)?;
            }
        }
    }

    /// A board that is gone never answers, and neither does one that has forgotten a dead import.
    fn can_still_answer(&self, scope: Scope<'_>) -> Result<()> {
        match scope {
            Scope::All => {
                let mut info = telegraphos_wire::uapi::Info::default();
                crate::sys::info(self.fd(), &mut info).map_err(|errno| self.error("waiting for stores", errno))
            }
            Scope::Import(handle, what) => {
                let State { dead, error, .. } = self.import_state(handle, what)?;
                if dead {
                    return Err(Error::Failed { what: what(), status: error.unwrap_or(Status::Stale) });
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_taken_once_and_given_back() {
        let used = AtomicU64::new(0);
        let all: Vec<_> = (0..64).map(|_| Slot::take(&used).unwrap()).collect();
        let mut numbers: Vec<_> = all.iter().map(|s| s.number).collect();
        numbers.dedup();
        assert_eq!(numbers, (0..64).collect::<Vec<_>>());
        assert!(Slot::take(&used).is_none());
        drop(all);
        assert_eq!(used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn threads_never_share_a_slot() {
        let used = AtomicU64::new(0);
        let holders: [AtomicU64; 64] = std::array::from_fn(|_| AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let Some(slot) = Slot::take(&used) else { continue };
                        let holder = &holders[slot.number as usize];
                        assert_eq!(holder.fetch_add(1, Ordering::Relaxed), 0);
                        holder.fetch_sub(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn patience_ends_at_its_limit() {
        let mut once = Backoff::new(Some(Duration::ZERO));
        assert!(!once.wait());
        let mut short = Backoff::new(Some(Duration::from_millis(3)));
        while short.wait() {}
        assert!(short.begun.elapsed() >= Duration::from_millis(3));
    }
}
