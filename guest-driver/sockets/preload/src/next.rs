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
