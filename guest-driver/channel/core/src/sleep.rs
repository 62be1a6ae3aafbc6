// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sleep: how an end learns that the other one sleeps.

#[cfg(feature = "bugs")]
use crate::bugs::Bugs;
use crate::bugs::has_bug;
use crate::layout::ASLEEP;
use crate::memory::{Far, Near};

/// A sleeper waits for records, or for the end of the other's.
pub const RECORDS: u64 = 1;
/// A sleeper waits for credits.
pub const ROOM: u64 = 2;

/// How an end that has stored something learns whether the other one must be woken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Announce {
    /// It looks, in memory in common. The sleeper stores that it sleeps, has a full fence, and looks for what it waits
    /// for once more; the other end stores that, has a full fence, and looks whether the sleeper sleeps. Of the two
    /// fences one is first, so at least one of the two looks sees the other end's store (as in Dekker's algorithm):
    /// the sleeper does not sleep, or it is woken.
    ///
    /// That takes fences after which a store *is* in the other end's memory. After a store through a board an
    /// instruction of the processor is no such fence: the store is posted, and may be under way at either side, so that
    /// both looks miss it, and the sleeper sleeps for ever. A wait for the board's acknowledgement is one, and costs a
    /// round trip for each record.
    Look,
    /// Not at all: each time the other end is woken. That is right where stores are posted, as the wake-up takes the
    /// same way behind them.
    Always,
    /// Not at all, and it wakes nothing: the sleeper has armed its board for the words that it waits for, through which
    /// all stores into them come. The board compares the words when it is armed, and notices all that change later.
    Armed,
}

/// What this end has said about its own sleep.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sleeper {
    sleeps: u64,
    #[cfg(feature = "bugs")]
    pub(crate) bug: Bugs,
}

impl Sleeper {
    pub(crate) fn new() -> Sleeper {
        Sleeper {
            sleeps: 0,
            #[cfg(feature = "bugs")]
            bug: None,
        }
    }

    /// Says that this end sleeps until there is one of `what`. It looks once more before it does.
    pub(crate) fn begin(&mut self, far: &mut impl Far, what: u64) {
        if self.sleeps == 0 || !has_bug!(self, SameSleep) {
            self.sleeps += 1;
        }
        far.store(ASLEEP, self.sleeps << 2 | what);
        if !has_bug!(self, SleeperWithoutFence) {
            far.fence();
        }
    }

    /// Says that it does not sleep. No order is needed: what comes too late is a wake-up that was not necessary.
    pub(crate) fn end(&mut self, far: &mut impl Far) {
        far.store(ASLEEP, 0);
    }
}

/// What this end knows about the other one's sleep.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Waker {
    pub(crate) announce: Announce,
    /// The sleep for which the other end was last woken: once is enough.
    woken: u64,
    #[cfg(feature = "bugs")]
    pub(crate) bug: Bugs,
}

impl Waker {
    pub(crate) fn new(announce: Announce) -> Waker {
        Waker {
            announce,
            woken: 0,
            #[cfg(feature = "bugs")]
            bug: None,
        }
    }

    /// Whether the other end must be woken for `what`, which was stored before.
    pub(crate) fn must_wake(&mut self, near: &impl Near, far: &mut impl Far, what: u64) -> bool {
        match self.announce {
            Announce::Armed => return false,
            Announce::Always => return true,
            Announce::Look => {}
        }
        if !has_bug!(self, WakerWithoutFence) {
            far.fence();
        }
        let asleep = near.load(ASLEEP);
        let is_due = asleep & what != 0 && asleep != self.woken;
        if is_due {
            self.woken = asleep;
        }
        is_due
    }
}
