// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C interface: the same functions as in Rust, with the same meaning.
//!
//! `include/telegraphos.h` is printed by [`header`] from the types of the Rust functions, so the two cannot differ; a
//! test compares the committed file. Functions return 0 or a negative errno, and never unwind into C: a panic, which
//! would be a bug of this library, becomes `-ENOTRECOVERABLE`.
//!
//! ```text
//! boundary    what functions are made of: arguments from C, results for C, and an end for panics
//! declarations
//!             the C declarations of types and functions, and the text of a header
//! header      the text of this library's
//! node, segment, remote, operation, sync, queue, counter, replicated, broadcast, error
//!             one file per kind of object: its records, its functions, and helpers of its own
//! ```
//!
//! [`boundary`] and [`declarations`] are for crates on top of this one, too, which then have the same C interface: what
//! they fail with is in `tg_last_error`.
//!
//! # Safety
//!
//! What C promises, for all functions: a handle is NULL or came from this library and has not been closed; a string is
//! NULL or ends with a zero byte; any other pointer is NULL or points to a value of its type. NULL where a value is
//! required is `-EINVAL`. Handles may be used by several threads at once, but closed by only one, after all other use;
//! operations, barriers, broadcasts and their consumers are for one thread at a time. All of them keep their node open.

#[macro_use]
pub mod declarations;
pub mod boundary;
mod broadcast;
mod counter;
mod error;
mod header;
mod node;
mod operation;
mod queue;
mod registration;
mod remote;
mod replicated;
mod segment;
mod sync;

pub use broadcast::*;
pub use counter::*;
pub use error::*;
pub use header::header;
pub use node::*;
pub use operation::*;
pub use queue::*;
pub use registration::*;
pub use remote::*;
pub use replicated::*;
pub use segment::*;
pub use sync::*;

use crate::Secret;
use boundary::{
    Handle, call, call_mut, fill, free, get_or, give, given, given_as, given_slice, guard, limit, missing, name_of,
    offer, take, text,
};
use std::ffi::c_void;

/// The window of an import in C.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Window(pub *mut c_void);

/// A secret from C; zeros, which mean none, for NULL.
///
/// # Safety
/// As the module says.
unsafe fn secret_of(bytes: *const u8) -> Secret {
    // SAFETY: the caller's promise.
    unsafe { bytes.cast::<Secret>().as_ref() }.copied().unwrap_or_default()
}

/// A builder with an option from C, where zero stands for the default.
fn with<B, T: Default + PartialEq>(builder: B, option: T, set: impl FnOnce(B, T) -> B) -> B {
    if option == T::default() { builder } else { set(builder, option) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::ffi::{CStr, c_int};

    fn last_error() -> String {
        // SAFETY: the text of this thread, until its next failure.
        unsafe { CStr::from_ptr(tg_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn null_is_refused_and_explained() {
        let invalid = -Errno::INVAL.raw_os_error();
        let (mut value, mut node) = (0, std::ptr::null_mut());
        // SAFETY: NULL is allowed everywhere.
        unsafe {
            assert_eq!(tg_put64(std::ptr::null(), 0, 1), invalid);
            assert_eq!(last_error(), "the import is NULL: expected a pointer");
            assert_eq!(tg_get8(std::ptr::null(), 0, &mut value), invalid);
            assert_eq!(tg_open(std::ptr::null(), std::ptr::null_mut()), invalid);
            assert_eq!(tg_open(c"/no/such/board".as_ptr(), &mut node), -Errno::NOENT.raw_os_error());
            assert!(last_error().contains("/no/such/board"), "{}", last_error());
            assert_eq!(tg_open(c"/dev/null".as_ptr(), &mut node), invalid);
            assert!(last_error().contains("expected a /dev/telegraphosN"), "{}", last_error());
            tg_close(std::ptr::null_mut());
            assert_eq!(tg_open_fd(-1, &mut node), invalid);
            assert!(last_error().contains("-1"), "{}", last_error());
            assert_eq!(tg_queue_enqueue(std::ptr::null(), 1), invalid);
            assert_eq!(last_error(), "the imported queue is NULL: expected a pointer");
            let (queue, mut element) = (std::ptr::null(), 0u64);
            assert_eq!(tg_queue_try_pop(queue, &mut element), invalid);
            assert_eq!(last_error(), "the queue is NULL: expected a pointer");
            assert_eq!(tg_queue_pop_batch(queue, std::ptr::null_mut(), 1), invalid);
            assert_eq!(tg_queue_put_notify(std::ptr::null(), std::ptr::null(), 0, &element, u64::MAX, 0), invalid);
            assert_eq!(tg_queue_close(std::ptr::null_mut()) | tg_queue_unimport(std::ptr::null_mut()), 0);
            assert_eq!(tg_unexport(std::ptr::null_mut()), 0);
            assert!(tg_segment_memory(std::ptr::null()).is_null());
            assert!(
                tg_replicated_memory(std::ptr::null()).is_null() && tg_replicated_remote(std::ptr::null()).is_null()
            );
            assert_eq!(tg_replicated_take_home(std::ptr::null()), invalid);
            assert_eq!(tg_replicated_lock(std::ptr::null(), 0, 0, std::ptr::null_mut()), invalid);
            assert_eq!(last_error(), "the replicated segment is NULL: expected a pointer");
            assert_eq!(tg_store8(std::ptr::null(), 0, 1), invalid);
            assert_eq!(last_error(), "the replicated segment is NULL: expected a pointer");
            assert_eq!(tg_load64(std::ptr::null(), 0, std::ptr::null_mut()), invalid);
            assert_eq!(tg_broadcast_push(std::ptr::null_mut(), std::ptr::null(), 8, 0), invalid);
            assert_eq!(tg_broadcast_finish(std::ptr::null_mut(), 0), 0);
            assert_eq!(tg_consumer_leave(std::ptr::null_mut()), 0);
        }
    }

    #[test]
    fn a_panic_does_not_reach_c() {
        std::panic::set_hook(Box::new(|_| ()));
        let result = guard::<(), crate::Error>(|| panic!("a bug"));
        let _ = std::panic::take_hook();
        assert_eq!(result, -Errno::NOTRECOVERABLE.raw_os_error());
        assert!(last_error().contains("bug"));
    }

    #[test]
    fn errors_have_texts() {
        let text = |error| {
            // SAFETY: the text of this thread, until its next call.
            unsafe { CStr::from_ptr(tg_strerror(error)) }.to_str().unwrap().to_owned()
        };
        assert_eq!(text(0), "Done.");
        let missing = Errno::NOENT.raw_os_error();
        assert!(text(-missing).starts_with("No segment of that name"));
        assert_eq!(text(missing), text(-missing));
        // The device file's EACCES is no segment's.
        let denied = Errno::ACCESS;
        assert!(text(-denied.raw_os_error()).starts_with("The segment's mode"));
        let open = || Err(crate::Error::Open { path: "/dev/telegraphos0".into(), errno: denied });
        let result = guard::<(), crate::Error>(open);
        assert!(text(result).starts_with("Permission denied"), "{}", text(result));
        assert!(text(-missing).starts_with("No segment of that name"));
        let import = || Err(crate::Error::Failed { what: "x".into(), status: crate::Status::Denied });
        let result = guard::<(), crate::Error>(import);
        assert!(text(result).starts_with("The segment's mode"), "{}", text(result));
        for odd in [c_int::MIN, c_int::MAX, -4095, 12345] {
            assert!(!text(odd).is_empty());
        }
    }
}
