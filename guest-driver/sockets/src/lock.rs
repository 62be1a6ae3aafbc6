// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lock in memory that processes share, any of which may end while it holds it, or write anything there.
//!
//! The lock is one word: 0 where it is free, else its holder, a thread by its number and by the time at which it
//! started, since numbers are used again. There is no list of held locks, as glibc's robust mutexes and the kernel have
//! one for each thread: its entries are addresses in the holder's memory, which another process could change.
//! Instead, a waiter sleeps in short steps, and after each one it looks whether the holder's thread is there. If it is
//! not, the lock is broken for good, since what it protects may be in between. All waits have a bound, after which the
//! waiter ends the connection: a holder that is alive has the lock for milliseconds.

use std::fmt;

/// No thread holds it.
const FREE: u64 = 0;
/// A holder has ended: for good.
const BROKEN: u64 = u64::MAX;
/// Some thread may be asleep.
const WAITERS: u64 = 1 << 31;
/// The number of the holder's thread.
const THREAD: u64 = WAITERS - 1;
/// What a waiter may do until it fails: a look at the word costs 1 of it, a sleep that ends by itself [`STEP`].
const BUDGET: u32 = 20_000;
/// With sleeps of [`kernel::STEP`](crate::kernel), BUDGET is 10 s without a holder that lets go.
const STEP: u32 = 100;

/// A thread, as it is written to the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u64);

impl Owner {
    /// The thread of a number, which started then (0: not known).
    pub(crate) fn new(thread: u32, started: u32) -> Owner {
        Owner(u64::from(started) << 32 | u64::from(thread) & THREAD)
    }

    fn of(word: u64) -> Owner {
        Owner(word & !WAITERS)
    }

    pub(crate) fn thread(self) -> u32 {
        (self.0 & THREAD) as u32
    }

    pub(crate) fn started(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slept {
    /// By a wake-up, or the word was another one.
    Woken,
    Out,
}

/// The word, and the system.
pub(crate) trait Word {
    fn load(&self) -> u64;
    /// Replaces `from` by `to`, as an acquire and a release.
    fn replace(&self, from: u64, to: u64) -> bool;
    /// Sleeps while the word is `word`, for a bounded time.
    fn sleep(&self, word: u64) -> Slept;
    /// Wakes one sleeper, or all.
    fn wake(&self, all: bool);
    /// Whether the thread is there.
    fn is_alive(&self, owner: Owner) -> bool;
}

/// Why a lock could not be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// A holder has ended: what it protects may be in between.
    Ended,
    /// The holder does not let go.
    Stuck,
    /// What it protects is nothing that a process of this kind writes.
    State,
    /// This process has become another user's, and has left it.
    Left,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Broken::Ended => "a process has ended amid a read or a write",
            Broken::Stuck => "another process is amid a read or a write for 10 s",
            Broken::State => "what is known of it in shared memory is out of range",
            Broken::Left => "this process has become another user's",
        })
    }
}

/// Takes the lock if it is free.
pub(crate) fn try_lock(word: &impl Word, own: Owner) -> bool {
    word.replace(FREE, own.0)
}

/// Takes the lock, or fails in bounded time.
#[inline]
pub(crate) fn lock(word: &impl Word, own: Owner) -> Result<(), Broken> {
    if try_lock(word, own) { Ok(()) } else { wait(word, own) }
}

#[cold]
fn wait(word: &impl Word, own: Owner) -> Result<(), Broken> {
    let (mut budget, mut waiters) = (BUDGET, 0);
    loop {
        budget = budget.checked_sub(1).ok_or(Broken::Stuck)?;
        let seen = word.load();
        if seen == FREE {
            // Others may sleep that have been woken by none.
            if word.replace(FREE, own.0 | waiters) {
                return Ok(());
            }
            continue;
        }
        if seen == BROKEN {
            return Err(Broken::Ended);
        }
        let marked = seen | WAITERS;
        // A thread does not take what it holds: a child of vfork, which has the number that its parent has noted of
        // itself, has ended.
        if Owner::of(seen) != own {
            if seen != marked && !word.replace(seen, marked) {
                continue;
            }
            waiters = WAITERS;
            if word.sleep(marked) == Slept::Woken {
                continue;
            }
            budget = budget.saturating_sub(STEP);
            if word.is_alive(Owner::of(marked)) {
                continue;
            }
        }
        if word.replace(seen, BROKEN) || word.replace(marked, BROKEN) {
            word.wake(true);
            return Err(Broken::Ended);
        }
    }
}

/// Whether this thread holds it still: another process may have declared it dead.
pub(crate) fn is_held(word: &impl Word, own: Owner) -> bool {
    Owner::of(word.load()) == own
}

#[inline]
pub(crate) fn unlock(word: &impl Word, own: Owner) {
    // Else it is broken, or has been written by a process that keeps no rules: it is not this thread's any more.
    if !word.replace(own.0, FREE) && word.replace(own.0 | WAITERS, FREE) {
        word.wake(false);
    }
}

#[cfg(test)]
#[path = "lock_tests.rs"]
mod tests;
