// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ticket locks.

use super::memory::LockMemory;
use crate::access::fence;
use crate::bounds::check;
use crate::error::{Error, Result};
use crate::remote::Remote;
use crate::word_wait::WordWait;
use std::time::Duration;
use telegraphos_wire::{Rights, Status};

/// Offset of the word with the ticket that holds the lock, after the word from which tickets are drawn.
pub(super) const SERVING: u64 = 8;
/// Pause between two polls of another node's memory, for each ticket ahead but the first.
const TURN: Duration = Duration::from_micros(50);
const TURN_MAX: Duration = Duration::from_millis(1);

/// A fair lock of 16 bytes in a segment: a ticket is drawn by [`Remote::fetch_inc`], and the ticket that is served
/// holds it.
///
/// The bytes are zero at first, at a multiple of 8. The lock belongs to the thread that has drawn the ticket, not to
/// its process; one that dies with the lock, or while it waits for it, leaves it locked for ever: such a segment
/// must be made anew.
///
/// A thread that waits in a [`Replicated`](crate::Replicated) segment polls memory for 20 ms, and then sleeps until its
/// board's interrupt at the unlock. In a [`Remote`] no board tells it: it polls the other node after an eighth of what
/// it has waited, 10 ms at most.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use std::time::Duration;
/// use telegraphos::sync::TicketLock;
/// # let shared = node.import(0, "shared").open()?;
/// let lock = TicketLock::new(&shared, 0)?;
/// let guard = lock.lock_timeout(Duration::from_secs(1))?;
/// shared.put64(64, 7)?; // under the lock
/// guard.unlock()?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct TicketLock<'a, M: LockMemory = Remote> {
    memory: &'a M,
    offset: u64,
}

impl<M: LockMemory> Clone for TicketLock<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: LockMemory> Copy for TicketLock<'_, M> {}

/// A lock that is held; dropping it unlocks, and only logs errors.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use telegraphos::sync::TicketLock;
/// # let shared = node.import(0, "shared").open()?;
/// # let lock = TicketLock::new(&shared, 0)?;
/// if let Some(guard) = lock.try_lock()? {
///     println!("ticket {}", guard.ticket());
///     guard.unlock()?; // dropping it would only log that a store was lost
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "the lock is free again when this is dropped"]
pub struct TicketGuard<'a, M: LockMemory = Remote> {
    lock: TicketLock<'a, M>,
    ticket: u64,
    held: bool,
}

impl TicketLock<'_> {
    /// Bytes of a lock.
    pub const SIZE: u64 = 16;
}

impl<'a, M: LockMemory> TicketLock<'a, M> {
    /// The lock at `offset` of that segment, which must be imported or joined with the rights to load, to store and to
    /// atomics.
    pub fn new(memory: &'a M, offset: u64) -> Result<TicketLock<'a, M>> {
        check::<u64>(offset, 2, memory.size(), || memory.what())?;
        let needed = Rights(Rights::READ.0 | Rights::WRITE.0 | Rights::ATOMIC.0);
        if !memory.rights().contains(needed) {
            return Err(Error::Right {
                what: memory.what(),
                right: "lock in it",
                remedy: "a lock needs the rights to load, to store and to atomics",
            });
        }
        Ok(TicketLock { memory, offset })
    }

    /// The ticket that holds the lock, or will next. Fails when the word cannot be loaded.
    pub(super) fn serving(&self) -> Result<u64> {
        let serving = self.memory.load_word(self.offset + SERVING)?;
        if serving == u64::MAX {
            // The result of a load that cannot be served; no ticket has this number.
            let status = self.memory.failure()?.0.unwrap_or(Status::Timeout);
            return Err(Error::Failed { what: self.memory.what(), status });
        }
        Ok(serving)
    }

    fn guard(&self, ticket: u64) -> TicketGuard<'a, M> {
        // Later accesses see those made under the lock before.
        fence();
        TicketGuard { lock: *self, ticket, held: true }
    }

    /// Waits for [`quiet`](crate::Node::quiet) of this process's earlier stores, then takes the lock, in the order of
    /// tickets. Fails as quiet does, if stores were lost; then no ticket is drawn. When it fails while waiting (the
    /// node is gone, for example), the lock is lost.
    pub fn lock(&self) -> Result<TicketGuard<'a, M>> {
        // Before the ticket is drawn: later tickets need not wait for this.
        self.memory.quiet()?;
        let ticket = self.memory.draw(self.offset)?;
        let mut wait = WordWait::new(None);
        loop {
            let ahead = ticket.wrapping_sub(self.serving()?);
            match u32::try_from(ahead) {
                Ok(0) => return Ok(self.guard(ticket)),
                Ok(ahead) => {
                    // Each poll of an import is a load from the other node, and only the next ticket is in a hurry.
                    if let (false, Some(others)) = (M::IS_HERE, ahead.checked_sub(1).filter(|others| *others > 0)) {
                        std::thread::sleep((TURN * others.min(1000)).min(TURN_MAX));
                    }
                    self.memory.pause(self.offset + SERVING, &mut wait)?;
                }
                Err(_) => {
                    return Err(Error::argument(
                        "the two words of a lock",
                        format!("such that ticket {ticket} has been served, at {:#x}", self.offset),
                        "words that only the lock's functions change",
                    ));
                }
            }
        }
    }

    /// As [`TicketLock::lock`], if the lock is free and no ticket waits for it.
    pub fn try_lock(&self) -> Result<Option<TicketGuard<'a, M>>> {
        self.memory.quiet()?;
        self.attempt()
    }

    fn attempt(&self) -> Result<Option<TicketGuard<'a, M>>> {
        let serving = self.serving()?;
        let found = self.memory.exchange(self.offset, serving, serving + 1)?;
        Ok((found == serving).then(|| self.guard(serving)))
    }

    /// Whether an attempt makes sense, where that is known without asking another node.
    fn may_be_free(&self) -> Result<bool> {
        Ok(!M::IS_HERE || self.memory.load_word(self.offset)? == self.serving()?)
    }

    /// Takes the lock, but not after `timeout`: then [`Error::Pending`]. A drawn ticket cannot be given back, so this
    /// tries repeatedly without one, and is not fair.
    pub fn lock_timeout(&self, timeout: Duration) -> Result<TicketGuard<'a, M>> {
        let mut wait = WordWait::new(Some(timeout));
        self.memory.quiet()?;
        loop {
            if self.may_be_free()? {
                if let Some(guard) = self.attempt()? {
                    return Ok(guard);
                }
            }
            if !self.memory.pause(self.offset + SERVING, &mut wait)? {
                let what = format!("the lock in {}", self.memory.what());
                let waited = wait.backoff.waited();
                return Err(Error::Pending { what, waited, operations: self.memory.unfinished() });
            }
        }
    }

    /// Unlocks the lock of that ticket, after quiet; see [`TicketGuard::unlock`].
    pub(crate) fn unlock(&self, ticket: u64) -> Result<()> {
        // Everything stored under the lock, to any node, has arrived before the next ticket enters.
        let quiet = self.memory.quiet();
        if quiet.is_err() && self.memory.failure()?.1 {
            return quiet;
        }
        // Stores that were lost stay lost: to keep the lock would not bring them back.
        self.memory.store_word(self.offset + SERVING, ticket + 1)?;
        quiet
    }
}

impl<M: LockMemory> TicketGuard<'_, M> {
    /// The ticket: the lock was taken so many times before.
    pub fn ticket(&self) -> u64 {
        self.ticket
    }

    /// Waits for [`quiet`](crate::Node::quiet), then hands the lock to the next ticket. Fails as quiet does, if
    /// stores were lost; the lock is free regardless.
    pub fn unlock(mut self) -> Result<()> {
        self.held = false;
        self.lock.unlock(self.ticket)
    }
}

impl<M: LockMemory> Drop for TicketGuard<'_, M> {
    fn drop(&mut self) {
        if self.held {
            if let Err(error) = self.lock.unlock(self.ticket) {
                log::warn!("unlocking: {error}");
            }
        }
    }
}
