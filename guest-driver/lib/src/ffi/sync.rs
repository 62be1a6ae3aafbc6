// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks and barriers.

use super::{Handle, call, call_mut, free, give, given, given_slice, limit, missing, name_of};
use crate::sync::{Barrier, LockMemory, TicketLock};
use crate::{Error, Node, Remote};
use std::ffi::{c_char, c_int};
use std::time::Duration;

/// Takes a ticket lock, which C unlocks by the number stored to `ticket`.
///
/// # Safety
/// As the module says.
pub(super) unsafe fn lock<M: LockMemory + Handle<Error = Error>>(
    memory: *const M,
    offset: u64,
    nanoseconds: i64,
    ticket: *mut u64,
) -> c_int {
    let lock = |memory: &M| {
        if ticket.is_null() {
            return Err(missing("the place for the ticket"));
        }
        let lock = TicketLock::new(memory, offset)?;
        let guard = match limit(nanoseconds) {
            Some(limit) => lock.lock_timeout(limit)?,
            None => lock.lock()?,
        };
        // SAFETY: the caller's promise.
        unsafe { ticket.write(guard.ticket()) };
        std::mem::forget(guard);
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(memory, lock) }
}

/// Unlocks a ticket lock by the number that [`lock`] has stored.
///
/// # Safety
/// As the module says.
pub(super) unsafe fn unlock<M: LockMemory + Handle<Error = Error>>(
    memory: *const M,
    offset: u64,
    ticket: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { call(memory, |memory| TicketLock::new(memory, offset)?.unlock(ticket)) }
}

c_functions! { LOCKS_AND_BARRIERS;
    /// Takes the ticket lock in the 16 bytes at offset, a multiple of 8, zero at first; -EAGAIN after so many
    /// nanoseconds (negative: never, and in turn). ticket is for tg_unlock.
    fn tg_lock(remote: *const Remote, offset: u64, nanoseconds: i64, ticket: *mut u64) -> c_int =
        lock(remote, offset, nanoseconds, ticket);

    /// Waits for quiet of all imports of the node handle, then hands the lock to the next ticket.
    fn tg_unlock(remote: *const Remote, offset: u64, ticket: u64) -> c_int = unlock(remote, offset, ticket);

    /// Joins a barrier of count participants, the i-th on the i-th of nodes, as number me; mode as in
    /// tg_export_options. Waits for the other participants, at most so many nanoseconds. For one thread at a time.
    fn tg_barrier_join(
        node: *const Node, name: *const c_char, nodes: *const u16, count: u32, me: u32, mode: u32, nanoseconds: i64,
        barrier: *mut *mut Barrier
    ) -> c_int = give(barrier, || {
        let nodes = given_slice(nodes, count as usize, "the list of nodes")?;
        let mode = if mode == 0 { 0o600 } else { mode };
        let limit = limit(nanoseconds).unwrap_or(Duration::MAX);
        Barrier::join(given(node)?, name_of(name)?, nodes, me as usize, mode, limit)
    });

    /// Waits for quiet, then for all participants; -EAGAIN after so many nanoseconds (negative: never); then it may be
    /// called again.
    fn tg_barrier_wait(barrier: *mut Barrier, nanoseconds: i64) -> c_int =
        call_mut(barrier, |b| b.wait_within(limit(nanoseconds)));

    /// Leaves a barrier, for good.
    fn tg_barrier_leave(barrier: *mut Barrier) -> () = free(barrier);
}
