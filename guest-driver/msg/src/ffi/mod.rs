// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C interface: the same functions as in Rust, with the same meaning.
//!
//! `include/telegraphos_msg.h` is printed by [`header`] from the types of the Rust functions, so the two cannot differ;
//! a test compares the committed file. It stands on that of the user library, [`telegraphos::ffi`]: functions return 0
//! or a negative errno ([`Error::errno`]), `tg_last_error` has the message, and a panic becomes `-ENOTRECOVERABLE`.
//!
//! ```text
//! header      the text of the header
//! records     processes, patterns, options: structures that C fills or reads
//! messages, thread, single, handle
//!             one file per kind of object: its functions, and helpers of its own
//! ```
//!
//! # Safety
//!
//! What C promises, for all functions, is what [`telegraphos::ffi`] says. Messages, threads and handles may be used by
//! several threads at once, but closed by only one, after all other use; memory and single buffers are for one thread
//! at a time. What C lends to a function is left alone by the program until that returns; other nodes do not reach it
//! afterwards. Threads keep their messages open, and single buffers their thread.

mod handle;
mod header;
mod messages;
mod records;
mod single;
mod thread;

pub use handle::*;
pub use header::header;
pub use messages::*;
pub use records::*;
pub use single::*;
pub use thread::*;

use crate::error::{Error, Result};
use rustix::io::Errno;
use rustix::mm::{MsyncFlags, msync};
use std::ffi::c_void;
use std::fmt::Display;
use telegraphos::ffi::boundary::{CError, given_as, given_slice, missing};

impl CError for Error {
    fn errno(&self) -> i32 {
        Error::errno(self)
    }

    fn status(&self) -> Option<telegraphos::Status> {
        match self {
            Error::Board(error) => error.status(),
            _ => None,
        }
    }
}

/// An argument that is never valid.
fn argument(what: &'static str, value: impl Display, expected: &str) -> Error {
    telegraphos::Error::Argument { what, value: value.to_string(), expected: expected.into() }.into()
}

/// A number of bytes from C.
fn length_of(bytes: u64, what: &'static str) -> Result<usize> {
    let size = usize::try_from(bytes).ok().filter(|size| *size <= isize::MAX as usize);
    size.ok_or_else(|| argument(what, bytes, "what fits this process's address space"))
}

/// Bytes of a page.
const PAGE: usize = 4096;

/// Fails if not all of that memory is mapped. What the processor copies would else raise a signal, and what a board
/// moves be refused much later.
fn check_mapped(at: *const c_void, length: usize, what: &str) -> Result<()> {
    let at = at as usize;
    let begin = at / PAGE * PAGE;
    let bytes = (at - begin).checked_add(length).ok_or(Errno::NOMEM);
    // Of mapped memory nothing is done: what it shares with a file is written at some time.
    // SAFETY: it changes nothing.
    match bytes.and_then(|bytes| unsafe { msync(begin as *mut c_void, bytes, MsyncFlags::ASYNC) }) {
        Err(Errno::NOMEM) => Err(telegraphos::Error::Os {
            what: format!("{what}, {length} bytes at {at:#x}, is not mapped"),
            errno: Errno::FAULT,
        })?,
        _ => Ok(()),
    }
}

/// The bytes of a message from C.
///
/// # Safety
/// As the module says, but they may be unmapped.
unsafe fn bytes_of<'a>(bytes: *const c_void, length: u64) -> Result<&'a [u8]> {
    let length = length_of(length, "the length of the message")?;
    if length > 0 && !bytes.is_null() {
        check_mapped(bytes, length, "the message")?;
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { given_slice(bytes.cast(), length, "the message")? })
}

/// Room for a message, from C.
///
/// # Safety
/// As the module says, and nothing else refers to it while the result does; it may be unmapped.
unsafe fn room_of<'a>(buffer: *mut c_void, capacity: u64) -> Result<&'a mut [u8]> {
    let capacity = length_of(capacity, "the size of the buffer")?;
    match (capacity, buffer.is_null()) {
        (0, _) => Ok(&mut []),
        (_, true) => Err(missing("the buffer").into()),
        (_, false) => {
            check_mapped(buffer, capacity, "the buffer")?;
            // SAFETY: the caller's promise.
            Ok(unsafe { std::slice::from_raw_parts_mut(buffer.cast(), capacity) })
        }
    }
}

/// What C sends to.
///
/// # Safety
/// As the module says.
unsafe fn endpoint_of(endpoint: *const EndpointRecord) -> Result<crate::Endpoint> {
    // SAFETY: the caller's promise.
    unsafe { given_as(endpoint, "the receiving endpoint")? }.endpoint()
}

/// What C accepts: anything for NULL.
///
/// # Safety
/// As the module says.
unsafe fn pattern_of(pattern: *const PatternRecord) -> Result<crate::Pattern> {
    // SAFETY: the caller's promise.
    unsafe { pattern.as_ref() }.map_or(Ok(crate::Pattern::default()), PatternRecord::pattern)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    use std::ffi::CStr;
    use std::ptr::{null, null_mut};
    use telegraphos::ffi::tg_last_error;

    const INVALID: i32 = -Errno::INVAL.raw_os_error();

    fn last_error() -> String {
        // SAFETY: the text of this thread, until its next failure.
        unsafe { CStr::from_ptr(tg_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn null_is_refused_and_explained() {
        let (mut messages, mut handle, mut name) = (null_mut(), null_mut(), null_mut());
        let (mut thread, mut buffer) = (null_mut(), null_mut());
        // SAFETY: NULL is allowed everywhere.
        unsafe {
            assert_eq!(tg_msg_open(null_mut(), null(), &mut messages), INVALID);
            assert_eq!(last_error(), "the node is NULL: expected a pointer");
            assert_eq!(tg_msg_ports(null()), INVALID);
            assert_eq!(last_error(), "the messages' handle is NULL: expected a pointer");
            assert_eq!(tg_msg_publish(null(), c"x".as_ptr(), &mut name), INVALID);
            assert_eq!(tg_msg_find(null(), 0, c"x".as_ptr(), null_mut()), INVALID);
            assert_eq!(tg_msg_connect(null(), null(), 0), INVALID);
            assert_eq!(tg_msg_process_of(null(), null_mut()), INVALID);
            assert_eq!(tg_msg_thread_open(null(), 0, &mut thread), INVALID);
            assert_eq!(tg_msg_endpoint_of(null(), null_mut()), INVALID);
            assert_eq!(tg_msg_send(null(), null(), 0, null(), 0), INVALID);
            assert_eq!(tg_msg_receive(null(), null(), null_mut(), 0, null_mut()), INVALID);
            assert_eq!(tg_msg_receive_timeout(null(), null(), null_mut(), 0, 0, null_mut()), INVALID);
            assert_eq!(last_error(), "the thread is NULL: expected a pointer");
            assert_eq!(tg_msg_send_copy(null(), null(), 0, null(), 0, &mut handle), INVALID);
            assert_eq!(tg_msg_send_dma(null(), null(), 0, null_mut(), 0, &mut handle), INVALID);
            assert_eq!(tg_msg_receive_copy(null(), null(), 0, &mut handle), INVALID);
            assert_eq!(tg_msg_receive_dma(null(), null(), null_mut(), &mut handle), INVALID);
            assert_eq!(last_error(), "the thread is NULL: expected a pointer");
            assert_eq!(tg_msg_handle_test(null()), INVALID);
            assert_eq!(tg_msg_handle_wait(null_mut(), null_mut(), null_mut()), INVALID);
            assert_eq!(tg_msg_handle_wait_timeout(null(), 0), INVALID);
            assert_eq!(tg_msg_handle_withdraw(null()), INVALID);
            assert_eq!(last_error(), "the handle of a send or receive is NULL: expected a pointer");
            assert_eq!(tg_msg_buffer_open(null(), null(), 0, &mut buffer), INVALID);
            assert_eq!(tg_msg_buffer_test(null()), INVALID);
            assert_eq!(tg_msg_buffer_next(null_mut(), null_mut(), 0, null_mut()), INVALID);
            assert_eq!(last_error(), "the single buffer is NULL: expected a pointer");
            assert!(tg_msg_memory_data(null_mut()).is_null());
            assert_eq!(tg_msg_memory_size(null()), 0);
            tg_msg_close(null_mut());
            tg_msg_unpublish(null_mut());
            tg_msg_thread_close(null_mut());
            tg_msg_handle_free(null_mut());
            tg_msg_memory_free(null_mut());
            tg_msg_buffer_close(null_mut());
        }
    }

    #[test]
    fn memory_is_zeroed_and_may_be_too_much() {
        let mut memory = null_mut();
        // SAFETY: it is used as C would, and freed once.
        unsafe {
            assert_eq!(tg_msg_memory_create(1000, &mut memory), 0);
            assert_eq!(tg_msg_memory_size(memory), 1000);
            let data = tg_msg_memory_data(memory).cast::<u8>();
            assert!(std::slice::from_raw_parts(data, 1000).iter().all(|byte| *byte == 0));
            data.add(999).write(7);
            tg_msg_memory_free(memory);
            let mut none = null_mut();
            assert_eq!(tg_msg_memory_create(u64::MAX, &mut none), INVALID);
            assert_eq!(tg_msg_memory_create(isize::MAX as u64, &mut none), -Errno::NOMEM.raw_os_error());
            assert!(none.is_null() && last_error().contains("bytes of memory"), "{}", last_error());
        }
    }

    #[test]
    fn memory_for_a_send_is_gone_if_that_fails() {
        let (mut memory, mut handle) = (null_mut(), null_mut());
        // SAFETY: it is not used after it was handed over.
        unsafe {
            assert_eq!(tg_msg_memory_create(8, &mut memory), 0);
            assert_eq!(tg_msg_send_dma(null(), null(), 0, memory, 8, &mut handle), INVALID);
        }
        assert!(handle.is_null());
    }

    #[test]
    fn what_c_lends_is_what_rust_gets() {
        let mut bytes = [1u8, 2, 3];
        // SAFETY: one at a time.
        unsafe {
            assert_eq!(bytes_of(bytes.as_ptr().cast(), 2).unwrap(), [1, 2]);
            assert_eq!(room_of(bytes.as_mut_ptr().cast(), 3).unwrap(), [1, 2, 3]);
            assert!(bytes_of(null(), 0).unwrap().is_empty() && room_of(null_mut(), 0).unwrap().is_empty());
            assert_eq!(bytes_of(null(), 1).unwrap_err().to_string(), "the message is NULL: expected a pointer");
            assert_eq!(room_of(null_mut(), 1).unwrap_err().to_string(), "the buffer is NULL: expected a pointer");
            assert!(bytes_of(bytes.as_ptr().cast(), u64::MAX).unwrap_err().to_string().contains("address space"));
        }
    }

    #[test]
    fn what_is_not_mapped_is_refused() {
        // SAFETY: new memory, of which the middle page is unmapped; nothing refers to it.
        let first = unsafe {
            let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            let first = mmap_anonymous(null_mut(), 3 * PAGE, protection, flags).unwrap();
            munmap(first.byte_add(PAGE), PAGE).unwrap();
            first
        };
        // What is asked for is not touched: tests beside this one may map that page.
        let end = first.wrapping_byte_add(PAGE - 100);
        assert!(check_mapped(end, 100, "it").is_ok() && check_mapped(first, PAGE, "it").is_ok());
        assert!(check_mapped(first.wrapping_byte_add(2 * PAGE), 1, "it").is_ok());
        // Nothing is ever mapped here: the first pages are kept free, and the last are the kernel's.
        let wrong = [(4096 as *mut c_void, 8), (4096 as *mut c_void, 100_000), (first, usize::MAX)];
        for (at, length) in wrong {
            // SAFETY: they may be unmapped.
            let errors = unsafe {
                [bytes_of(at, length as u64).map(drop).unwrap_err(), room_of(at, length as u64).map(drop).unwrap_err()]
            };
            for (error, what) in errors.into_iter().zip(["the message", "the buffer"]) {
                let expected = if length > isize::MAX as usize { "address space" } else { "is not mapped" };
                assert!(error.to_string().contains(expected), "{what}: {error}");
                let errno = if length > isize::MAX as usize { Errno::INVAL } else { Errno::FAULT };
                assert_eq!(error.errno(), errno.raw_os_error(), "{what}: {error}");
            }
        }
        assert!(check_mapped(end, isize::MAX as usize, "it").is_err());
        assert!(check_mapped(end, usize::MAX, "it").is_err());
        // SAFETY: nothing refers to it.
        unsafe {
            munmap(first, PAGE).unwrap();
            munmap(first.byte_add(2 * PAGE), PAGE).unwrap();
        }
    }

    #[test]
    fn handles_may_be_used_by_several_threads() {
        fn check<T: Send + Sync>() {}
        check::<SharedMessages>();
        check::<SharedThread>();
        check::<crate::Handle>();
    }
}
