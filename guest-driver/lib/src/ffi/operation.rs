// SPDX-License-Identifier: MIT OR Apache-2.0
//! Atomics and copies.

use super::{call, call_mut, free, given, given_as, guard, limit, offer};
use crate::{Error, Operation, Outcome, Remote, Result};
use std::ffi::c_int;

/// Launches an operation and hands its handle to C; without a place for the handle, only quiet waits for it.
///
/// # Safety
/// As the module says.
unsafe fn launch<T: Outcome>(
    operation: *mut *mut Operation<u64>,
    action: impl FnOnce() -> Result<Operation<T>>,
) -> c_int {
    guard(|| {
        let launched = action()?;
        if !operation.is_null() {
            // SAFETY: the caller's promise.
            unsafe { operation.write(Box::into_raw(Box::new(launched.widen()))) };
        }
        Ok::<_, Error>(())
    })
}

words! { ATOMICS(remote: *const Remote, offset);
    [call(remote, |r| offer(previous, r.swap(offset, value)?))]
    /// Fetch-and-store of a word at a multiple of 4: atomic with all other atomics here, loads and stores through
    /// windows, but not with locked instructions of the owner's processors. previous may be NULL.
    tg_swap32(value: u32, previous: *mut u32);
    /// See tg_swap32; the word lies at a multiple of 8.
    tg_swap64(value: u64, previous: *mut u64);
    [call(remote, |r| offer(previous, r.fetch_add(offset, value)?))]
    /// Fetch-and-add, wrapping; see tg_swap32.
    tg_fetch_add32(value: u32, previous: *mut u32);
    /// Fetch-and-add, wrapping; see tg_swap64.
    tg_fetch_add64(value: u64, previous: *mut u64);
    [call(remote, |r| offer(previous, r.fetch_inc(offset)?))]
    /// Fetch-and-increment; see tg_swap32.
    tg_fetch_inc32(previous: *mut u32);
    /// Fetch-and-increment; see tg_swap64.
    tg_fetch_inc64(previous: *mut u64);
    [call(remote, |r| offer(previous, r.compare_swap(offset, expected, value)?))]
    /// Compare-and-swap: the word has become value exactly if *previous is expected; see tg_swap32.
    tg_compare_swap32(expected: u32, value: u32, previous: *mut u32);
    /// Compare-and-swap: the word has become value exactly if *previous is expected; see tg_swap64.
    tg_compare_swap64(expected: u64, value: u64, previous: *mut u64);
    [launch(operation, || given(remote)?.swap_nbi(offset, value))]
    /// tg_swap32, without waiting. Ends with tg_operation_wait and tg_operation_free; operation may be NULL, then only
    /// quiet waits for it.
    tg_swap32_nbi(value: u32, operation: *mut *mut Operation<u64>);
    /// tg_swap64, without waiting; see tg_swap32_nbi.
    tg_swap64_nbi(value: u64, operation: *mut *mut Operation<u64>);
    [launch(operation, || given(remote)?.fetch_add_nbi(offset, value))]
    /// tg_fetch_add32, without waiting; see tg_swap32_nbi.
    tg_fetch_add32_nbi(value: u32, operation: *mut *mut Operation<u64>);
    /// tg_fetch_add64, without waiting; see tg_swap32_nbi.
    tg_fetch_add64_nbi(value: u64, operation: *mut *mut Operation<u64>);
    [launch(operation, || given(remote)?.compare_swap_nbi(offset, expected, value))]
    /// tg_compare_swap32, without waiting; see tg_swap32_nbi.
    tg_compare_swap32_nbi(expected: u32, value: u32, operation: *mut *mut Operation<u64>);
    /// tg_compare_swap64, without waiting; see tg_swap32_nbi.
    tg_compare_swap64_nbi(expected: u64, value: u64, operation: *mut *mut Operation<u64>);
}

c_functions! { OPERATIONS;
    /// Copies length bytes, 1 to 16 MiB at any alignment, to an import from an import (or from and to
    /// tg_segment_remote); at least one of them is memory of this node, and they do not overlap. Returns when the data
    /// is there.
    fn tg_copy(destination: *const Remote, to: u64, source: *const Remote, from: u64, length: u64) -> c_int = guard(|| {
        let (destination, source) = (given_as(destination, "the destination")?, given_as(source, "the source")?);
        crate::copy(destination, to, source, from, length)
    });

    /// tg_copy, without waiting: returns before the data lands; see tg_swap32_nbi.
    fn tg_copy_nbi(
        destination: *const Remote, to: u64, source: *const Remote, from: u64, length: u64, operation: *mut *mut Operation<u64>
    ) -> c_int = launch(operation, || {
        crate::copy_nbi(given_as(destination, "the destination")?, to, given_as(source, "the source")?, from, length)
    });

    /// 1 if an operation has ended, successfully or not, else 0. A load from memory.
    fn tg_operation_done(operation: *mut Operation<u64>) -> c_int = call_mut(operation, |o| Ok(o.is_done()));

    /// Waits for an operation, -EAGAIN after so many nanoseconds (negative: never); then it may be called again. An
    /// atomic's previous word is stored to value, unless that is NULL.
    fn tg_operation_wait(operation: *mut Operation<u64>, nanoseconds: i64, value: *mut u64) -> c_int =
        call_mut(operation, |o| offer(value, o.wait(limit(nanoseconds))?));

    /// tg_operation_wait that sleeps until the board's interrupt: for long copies.
    fn tg_operation_wait_event(operation: *mut Operation<u64>, nanoseconds: i64, value: *mut u64) -> c_int =
        call_mut(operation, |o| offer(value, o.wait_event(limit(nanoseconds))?));

    /// Makes tg_completions readable when an operation is done; at once if it is.
    fn tg_operation_arm(operation: *mut Operation<u64>) -> c_int = call_mut(operation, |o| o.arm());

    /// Closes the handle. The operation continues; quiet waits for it.
    fn tg_operation_free(operation: *mut Operation<u64>) -> () = free(operation);
}
