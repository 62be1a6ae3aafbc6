// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions that would be called without us.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The function of that name behind ours: libc's, or that of another library that was preloaded, too.
pub(crate) fn find(name: &CStr, found: &AtomicPtr<c_void>) -> *mut c_void {
    let known = found.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a name; the function behind this library's.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if next.is_null() {
        // Our function exists since libc's does.
        std::process::abort();
    }
    found.store(next, Ordering::Relaxed);
    next
}

/// Calls the function behind ours: `next!(close(fd: c_int) -> c_int)`.
macro_rules! next {
    ($name:ident($($arg:ident: $type:ty),*) -> $returns:ty) => {{
        static FOUND: std::sync::atomic::AtomicPtr<std::ffi::c_void> =
            std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
        const NAME: &str = concat!(stringify!($name), "\0");
        const NAME_C: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(NAME.as_bytes()) {
            Ok(name) => name,
            Err(_) => c"",
        };
        let next = crate::next::find(NAME_C, &FOUND);
        // SAFETY: libc's function of that name has this type, and gets what ours was called with.
        #[allow(unused_unsafe, reason = "called in unsafe functions, too")]
        unsafe {
            let next: unsafe extern "C-unwind" fn($($type),*) -> $returns = std::mem::transmute(next);
            next($($arg),*)
        }
    }};
}
pub(crate) use next;

/// Functions in place of libc's: `replaced! { fn NAME(ARGUMENTS) -> RESULT = |next| BODY; ... }`, where `next()` calls
/// the function behind ours with the arguments of ours. Bodies are unsafe code that relies on what the program promises
/// to libc: its buffers, vectors, messages and numbers are such.
macro_rules! replaced {
    ($(
        $(#[$meta:meta])*
        $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $returns:ty = |$next:ident| $body:expr;
    )*) => { $(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "some have no use for the program's promises")]
        #[allow(clippy::macro_metavars_in_unsafe, reason = "bodies are unsafe code, as said above")]
        $vis unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $returns {
            let $next = move || crate::next::next!($name($($arg: $type),*) -> $returns);
            // SAFETY: as the program calls it, which keeps what it promises to libc.
            unsafe { $body }
        }
    )* };
}
pub(crate) use replaced;

/// Other names of libc's for functions above: `aliases! { NAME = FUNCTION(ARGUMENTS) -> RESULT; ... }`. Offsets of both
/// have 64 bits.
macro_rules! aliases {
    ($( $name:ident = $of:ident($($arg:ident: $type:ty),*) -> $returns:ty; )*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $returns {
            // SAFETY: as ours.
            unsafe { $of($($arg),*) }
        }
    )* };
}
pub(crate) use aliases;
