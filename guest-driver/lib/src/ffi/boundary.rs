// SPDX-License-Identifier: MIT OR Apache-2.0
//! What functions of a C interface are made of, here and in crates on top of this one: what C gives, what it is given,
//! and an end for panics.
//!
//! What a function is to do stands in a closure, whose error becomes a negative errno and the text of `tg_last_error`:
//! [`call`] for functions of an object, [`give`] for those that make one, [`take`] and [`free`] for those that end it,
//! [`guard`] for others. The table that declares them is made by [`c_functions!`](crate::c_functions).

use super::error::keep;
use crate::{Error, Status};
use rustix::io::Errno;
use std::ffi::{CStr, c_char, c_int};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

type Result<T, E = Error> = std::result::Result<T, E>;

/// A type of which C has pointers only.
pub trait Handle {
    /// Its name in errors.
    const WHAT: &'static str;
    /// Why its functions fail.
    type Error: CError + From<Error>;
}

/// Why a function of a C interface fails. Its text is what `tg_last_error` returns.
pub trait CError: Display {
    /// The closest errno, which is positive.
    fn errno(&self) -> c_int;

    /// The board's reason, if there is one.
    fn status(&self) -> Option<Status>;
}

impl CError for Error {
    fn errno(&self) -> c_int {
        Error::errno(self)
    }

    fn status(&self) -> Option<Status> {
        Error::status(self)
    }
}

/// What C functions return when they succeed: a number that is not negative.
pub trait Success {
    /// That number.
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

/// Runs `action` for C: its number, or a negative errno, with the message kept for `tg_last_error`. A panic ends here.
pub fn guard<R: Success, E: CError>(action: impl FnOnce() -> Result<R, E>) -> c_int {
    let (text, errno, status) = match catch_unwind(AssertUnwindSafe(action)) {
        Ok(Ok(value)) => return value.number(),
        Ok(Err(error)) => (error.to_string(), error.errno(), error.status()),
        Err(_) => ("a bug in the library: please report it".to_owned(), Errno::NOTRECOVERABLE.raw_os_error(), None),
    };
    keep(text, errno, status);
    -errno
}

/// [`Error::Argument`] for a NULL.
pub fn missing(what: &'static str) -> Error {
    Error::argument(what, "NULL", "a pointer")
}

/// The object that a pointer from C points to; `what` names it in the error for NULL.
///
/// # Safety
/// As [`ffi`](super) says.
pub unsafe fn given_as<'a, T>(pointer: *const T, what: &'static str) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| missing(what))
}

/// The object behind a handle from C.
///
/// # Safety
/// As [`ffi`](super) says.
pub unsafe fn given<'a, T: Handle>(handle: *const T) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { given_as(handle, T::WHAT) }
}

/// `count` elements from C.
///
/// # Safety
/// As [`ffi`](super) says.
pub unsafe fn given_slice<'a, T>(first: *const T, count: usize, what: &'static str) -> Result<&'a [T]> {
    match count {
        0 => Ok(&[]),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts(given_as(first, what)?, count) }),
    }
}

/// A string from C.
///
/// # Safety
/// As [`ffi`](super) says.
pub unsafe fn text<'a>(pointer: *const c_char, what: &'static str) -> Result<&'a str> {
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
/// As [`ffi`](super) says.
pub unsafe fn name_of<'a>(pointer: *const c_char) -> Result<&'a str> {
    // SAFETY: the caller's promise.
    unsafe { text(pointer, "the name") }
}

/// Calls `action` with the object behind a handle.
///
/// # Safety
/// As [`ffi`](super) says.
pub unsafe fn call<T: Handle, R: Success>(handle: *const T, action: impl FnOnce(&T) -> Result<R, T::Error>) -> c_int {
    // SAFETY: the caller's promise.
    guard(|| action(unsafe { given(handle) }?))
}

/// Calls `action` with the object behind a handle that no other thread uses meanwhile.
///
/// # Safety
/// As [`ffi`](super) says.
pub unsafe fn call_mut<T: Handle, R: Success>(
    handle: *mut T,
    action: impl FnOnce(&mut T) -> Result<R, T::Error>,
) -> c_int {
    // SAFETY: the caller's promise.
    guard(|| action(unsafe { handle.as_mut() }.ok_or_else(|| missing(T::WHAT))?))
}

/// A property of the object behind a handle; `default` for NULL.
///
/// # Safety
/// As [`ffi`](super) says.
pub unsafe fn get_or<T, R>(handle: *const T, default: R, property: impl FnOnce(&T) -> R) -> R {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.map_or(default, property)
}

/// Stores what `make` returns for C; `what` names the place for it in the error for NULL, before which nothing is done.
///
/// # Safety
/// As [`ffi`](super) says.
pub unsafe fn fill<T>(out: *mut T, what: &'static str, make: impl FnOnce() -> Result<T>) -> c_int {
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
/// As [`ffi`](super) says.
pub unsafe fn offer<T, E>(out: *mut T, value: T) -> Result<(), E> {
    if !out.is_null() {
        // SAFETY: the caller's promise.
        unsafe { out.write(value) };
    }
    Ok(())
}

/// Hands a new object to C.
///
/// # Safety
/// As [`ffi`](super) says.
pub unsafe fn give<T: Handle>(out: *mut *mut T, make: impl FnOnce() -> Result<T, T::Error>) -> c_int {
    guard(|| {
        if out.is_null() {
            return Err(missing("the place for the result").into());
        }
        let made = Box::into_raw(Box::new(make()?));
        // SAFETY: the caller's promise.
        unsafe { out.write(made) };
        Ok::<_, T::Error>(())
    })
}

/// Takes an object back from C, which is not NULL.
///
/// # Safety
/// As [`ffi`](super) says.
pub unsafe fn taken<T: Handle>(handle: *mut T) -> Result<T> {
    match handle.is_null() {
        true => Err(missing(T::WHAT)),
        // SAFETY: the caller's promise: it came from `give`, and is not used any more.
        false => Ok(*unsafe { Box::from_raw(handle) }),
    }
}

/// Takes an object back from C to close it; for NULL nothing is done.
///
/// # Safety
/// As [`ffi`](super) says.
pub unsafe fn take<T: Handle>(handle: *mut T, close: impl FnOnce(T) -> Result<(), T::Error>) -> c_int {
    guard(|| match handle.is_null() {
        true => Ok(()),
        // SAFETY: the caller's promise.
        false => close(unsafe { taken(handle) }?),
    })
}

/// Takes an object back from C to drop it.
///
/// # Safety
/// As [`ffi`](super) says.
pub unsafe fn free<T: Handle>(handle: *mut T) {
    // SAFETY: the caller's promise.
    unsafe { take(handle, |_| Ok(())) };
}

/// Nanoseconds from C, negative for no limit.
pub fn limit(nanoseconds: i64) -> Option<Duration> {
    u64::try_from(nanoseconds).ok().map(Duration::from_nanos)
}
