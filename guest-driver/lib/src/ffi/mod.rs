// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C interface: the same functions as in Rust, with the same meaning.
//!
//! `include/telegraphos.h` is printed by [`header`] from the types of the Rust functions, so the two cannot differ; a
//! test compares the committed file. Functions return 0 or a negative errno, and never unwind into C: a panic, which
//! would be a bug of this library, becomes `-ENOTRECOVERABLE`.
//!
//! ```text
//! header      the C declarations, and the text of the header
//! node, segment, remote, operation, sync, queue, counter, replicated, broadcast, error
//!             one file per kind of object: its records, its functions, and helpers of its own
//! ```
//!
//! # Safety
//!
//! What C promises, for all functions: a handle is NULL or came from this library and has not been closed; a string is
//! NULL or ends with a zero byte; any other pointer is NULL or points to a value of its type. NULL where a value is
//! required is `-EINVAL`. Handles may be used by several threads at once, but closed by only one, after all other use;
//! operations, barriers, broadcasts and their consumers are for one thread at a time. All of them keep their node open.

#[macro_use]
mod header;
mod broadcast;
mod counter;
mod error;
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

use crate::{Error, Result, Secret};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::time::Duration;

use error::guard;

/// The window of an import in C.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Window(pub *mut c_void);

/// A type of which C has pointers only.
trait Handle {
    /// Its name in errors.
    const WHAT: &'static str;
}

/// What C functions return when they succeed: a number that is not negative.
trait Success {
    fn number(self) -> c_int;
}

impl Success for () {
    fn number(self) -> c_int {
        0
    }
}

impl Success for bool {
    fn number(self) -> c_int {
        self.into()
    }
}

impl Success for c_int {
    fn number(self) -> c_int {
        self
    }
}

/// [`Error::Argument`] for a NULL.
fn missing(what: &'static str) -> Error {
    Error::argument(what, "NULL", "a pointer")
}

/// The object that a pointer from C points to; `what` names it in the error for NULL.
///
/// # Safety
/// As the module says.
unsafe fn given_as<'a, T>(pointer: *const T, what: &'static str) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| missing(what))
}

/// The object behind a handle from C.
///
/// # Safety
/// As the module says.
unsafe fn given<'a, T: Handle>(handle: *const T) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { given_as(handle, T::WHAT) }
}

/// `count` elements from C.
///
/// # Safety
/// As the module says.
unsafe fn given_slice<'a, T>(first: *const T, count: usize, what: &'static str) -> Result<&'a [T]> {
    match count {
        0 => Ok(&[]),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts(given_as(first, what)?, count) }),
    }
}

/// A string from C.
///
/// # Safety
/// As the module says.
unsafe fn text<'a>(pointer: *const c_char, what: &'static str) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(missing(what));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) }.to_str();
    text.map_err(|_| Error::argument(what, "not UTF-8", "UTF-8 text"))
}

/// The name of an object, from C.
///
/// # Safety
/// As the module says.
unsafe fn name_of<'a>(pointer: *const c_char) -> Result<&'a str> {
    // SAFETY: the caller's promise.
    unsafe { text(pointer, "the name") }
}

/// Calls `action` with the object behind a handle.
///
/// # Safety
/// As the module says.
unsafe fn call<T: Handle, R: Success>(handle: *const T, action: impl FnOnce(&T) -> Result<R>) -> c_int {
    // SAFETY: the caller's promise.
    guard(|| action(unsafe { given(handle) }?))
}

/// Calls `action` with the object behind a handle that no other thread uses meanwhile.
///
/// # Safety
/// As the module says.
unsafe fn call_mut<T: Handle, R: Success>(handle: *mut T, action: impl FnOnce(&mut T) -> Result<R>) -> c_int {
    // SAFETY: the caller's promise.
    guard(|| action(unsafe { handle.as_mut() }.ok_or_else(|| missing(T::WHAT))?))
}

/// A property of the object behind a handle; `default` for NULL.
///
/// # Safety
/// As the module says.
unsafe fn get_or<T, R>(handle: *const T, default: R, property: impl FnOnce(&T) -> R) -> R {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.map_or(default, property)
}

/// Stores what `make` returns for C; `what` names the place for it in the error for NULL, before which nothing is done.
///
/// # Safety
/// As the module says.
unsafe fn fill<T>(out: *mut T, what: &'static str, make: impl FnOnce() -> Result<T>) -> c_int {
    guard(|| {
        if out.is_null() {
            return Err(missing(what));
        }
        let value = make()?;
        // SAFETY: the caller's promise.
        unsafe { out.write(value) };
        Ok(())
    })
}

/// Stores `value` for C, unless `out` is NULL.
///
/// # Safety
/// As the module says.
unsafe fn offer<T>(out: *mut T, value: T) -> Result<()> {
    if !out.is_null() {
        // SAFETY: the caller's promise.
        unsafe { out.write(value) };
    }
    Ok(())
}

/// Hands a new object to C.
///
/// # Safety
/// As the module says.
unsafe fn give<T>(out: *mut *mut T, make: impl FnOnce() -> Result<T>) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { fill(out, "the place for the result", || Ok(Box::into_raw(Box::new(make()?)))) }
}

/// Takes an object back from C to close it; for NULL nothing is done.
///
/// # Safety
/// As the module says.
unsafe fn take<T>(handle: *mut T, close: impl FnOnce(T) -> Result<()>) -> c_int {
    guard(|| match handle.is_null() {
        true => Ok(()),
        // SAFETY: the caller's promise: it came from `give`, and is not used any more.
        false => close(*unsafe { Box::from_raw(handle) }),
    })
}

/// Takes an object back from C to drop it.
///
/// # Safety
/// As the module says.
unsafe fn free<T>(handle: *mut T) {
    // SAFETY: the caller's promise.
    unsafe { take(handle, |_| Ok(())) };
}

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

/// Nanoseconds from C, negative for no limit.
fn limit(nanoseconds: i64) -> Option<Duration> {
    u64::try_from(nanoseconds).ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

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
        let result = guard::<()>(|| panic!("a bug"));
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
        let result = guard::<()>(open);
        assert!(text(result).starts_with("Permission denied"), "{}", text(result));
        assert!(text(-missing).starts_with("No segment of that name"));
        let import = || Err(crate::Error::Failed { what: "x".into(), status: crate::Status::Denied });
        let result = guard::<()>(import);
        assert!(text(result).starts_with("The segment's mode"), "{}", text(result));
        for odd in [c_int::MIN, c_int::MAX, -4095, 12345] {
            assert!(!text(odd).is_empty());
        }
    }
}
