// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory for messages, and asynchronous sends and receives.

use super::{ReceivedRecord, length_of};
use crate::error::{Error, Result};
use crate::handle::{Ended, Handle};
use crate::memory::Memory;
use rustix::io::Errno;
use std::ffi::{c_int, c_void};
use std::time::Duration;
use telegraphos::c_functions;
use telegraphos::ffi::boundary::{call, free, get_or, give, guard, offer, taken};

/// New memory of so many bytes, zeroed.
pub(super) fn memory_of(size: u64) -> Result<Memory> {
    let size = length_of(size, "the size of the memory")?;
    let mut bytes = Vec::new();
    let room = bytes.try_reserve_exact(size);
    room.map_err(|_| telegraphos::Error::Os { what: format!("{size} bytes of memory"), errno: Errno::NOMEM })?;
    bytes.resize(size, 0);
    Ok(bytes.into())
}

/// Waits for the end of a handle, and returns its memory to C, or frees it.
///
/// # Safety
/// As the module says.
unsafe fn wait(handle: *mut Handle, memory: *mut *mut Memory, received: *mut ReceivedRecord) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let Ended { memory: returned, outcome } = unsafe { taken(handle)? }.wait();
        if !memory.is_null() {
            // SAFETY: the caller's promise.
            unsafe { memory.write(Box::into_raw(Box::new(returned))) };
        }
        match outcome? {
            // SAFETY: the caller's promise.
            Some(message) => unsafe { offer(received, message.into()) },
            None => Ok::<_, Error>(()),
        }
    })
}

c_functions! { MEMORY;
    /// Makes memory for messages, of size bytes, zeroed. For its first long message it is registered, which takes a
    /// while, and stays so until it is freed: a process that was sent a long message from it can read what is written
    /// there later.
    fn tg_msg_memory_create(size: u64, memory: *mut *mut Memory) -> c_int = give(memory, || memory_of(size));

    /// Where memory lies; NULL for NULL. The address is the same when a handle returns it.
    fn tg_msg_memory_data(memory: *mut Memory) -> *mut c_void =
        memory.as_mut().map_or(std::ptr::null_mut(), |m| m.as_mut_ptr().cast());

    /// Bytes of memory.
    fn tg_msg_memory_size(memory: *const Memory) -> u64 = get_or(memory, 0, |m| m.len() as u64);

    /// Frees memory.
    fn tg_msg_memory_free(memory: *mut Memory) -> () = free(memory);
}

c_functions! { HANDLES;
    /// 1 if a send or a receive has ended, successfully or not, else 0: of a send, whether the receiving thread has the
    /// message. Does not wait.
    fn tg_msg_handle_test(handle: *const Handle) -> c_int = call(handle, |h| Ok(h.test()));

    /// Waits for at most so many nanoseconds: 1 if it has ended, else 0.
    fn tg_msg_handle_wait_timeout(handle: *const Handle, nanoseconds: u64) -> c_int =
        call(handle, |h| Ok(h.wait_timeout(Duration::from_nanos(nanoseconds))));

    /// Waits until it has ended, and closes the handle. memory is the program's again, also if it has failed; if that
    /// place is NULL, it is freed. received is for a receive, and may be NULL.
    fn tg_msg_handle_wait(
        handle: *mut Handle, memory: *mut *mut Memory, received: *mut ReceivedRecord
    ) -> c_int = wait(handle, memory, received);

    /// Withdraws a receive: 1, or 0 if it has a message, has ended, or is a send. It ends in any case.
    fn tg_msg_handle_withdraw(handle: *const Handle) -> c_int = call(handle, |h| Ok(h.withdraw()));

    /// Closes the handle of a send, which continues, or of a receive, which is withdrawn if it has no message. The
    /// memory is freed when it has ended.
    fn tg_msg_handle_free(handle: *mut Handle) -> () = free(handle);
}
