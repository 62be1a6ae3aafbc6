// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that write text to a descriptor: libc's own write past those that are replaced.

use crate::fail;
use crate::next::{aliases, replaced};
use crate::writing::write;
use libc::{c_char, c_int, c_void, size_t};
use std::ffi::CStr;
use telegraphos_sockets::is_tracked;

/// `va_list`, as functions get it: a pointer, on x86-64 and on aarch64.
type Arguments = *mut c_void;

unsafe extern "C" {
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, arguments: Arguments) -> c_int;
    fn __vasprintf_chk(text: *mut *mut c_char, flag: c_int, format: *const c_char, arguments: Arguments) -> c_int;
    fn backtrace_symbols(addresses: *const *mut c_void, count: c_int) -> *mut *mut c_char;
}

/// Writes all bytes. False if that has failed, with errno.
fn write_all(fd: c_int, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        // SAFETY: valid bytes.
        let written = unsafe { write(fd, bytes.as_ptr().cast(), bytes.len()) };
        let Ok(written @ 1..) = usize::try_from(written) else { return false };
        bytes = &bytes[written.min(bytes.len())..];
    }
    true
}

/// Writes what `make` puts into a buffer of libc's, of which it returns the length.
fn write_made(fd: c_int, make: impl FnOnce(*mut *mut c_char) -> c_int) -> c_int {
    let mut text = std::ptr::null_mut();
    let length = make(&raw mut text);
    let Ok(bytes) = usize::try_from(length) else { return -1 };
    // SAFETY: libc has made it.
    let written = write_all(fd, unsafe { std::slice::from_raw_parts(text.cast(), bytes) });
    // SAFETY: as above, and freed once.
    unsafe { libc::free(text.cast()) };
    if written { length } else { -1 }
}

replaced! {
    fn vdprintf(fd: c_int, format: *const c_char, arguments: Arguments) -> c_int = |next| {
        if !is_tracked(fd) {
            return next();
        }
        write_made(fd, |text| vasprintf(text, format, arguments))
    };

    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: Arguments) -> c_int = |next| {
        if !is_tracked(fd) {
            return next();
        }
        write_made(fd, |text| __vasprintf_chk(text, flag, format, arguments))
    };

    /// libc's writes to a copy of the descriptor of the standard error.
    fn perror(what: *const c_char) -> () = |next| {
        if !is_tracked(libc::STDERR_FILENO) {
            return next();
        }
        // This thread's.
        let errno = *libc::__errno_location();
        let mut text = Vec::new();
        if !what.is_null() {
            let what = CStr::from_ptr(what);
            if !what.is_empty() {
                text.extend([what.to_bytes(), b": "].concat());
            }
        }
        // The text of an errno stays until the next call in this thread.
        text.extend(CStr::from_ptr(libc::strerror(errno)).to_bytes());
        text.push(b'\n');
        write_all(libc::STDERR_FILENO, &text);
        fail(errno);
    };

    fn backtrace_symbols_fd(addresses: *const *mut c_void, count: c_int, fd: c_int) -> () = |next| {
        if !is_tracked(fd) {
            return next();
        }
        // As many names as addresses, in one piece of memory that libc makes.
        let names = backtrace_symbols(addresses, count);
        if names.is_null() {
            return;
        }
        for at in 0..size_t::try_from(count).unwrap_or(0) {
            let name = CStr::from_ptr(*names.add(at)).to_bytes();
            // Where these have a space before the address, the other function has none.
            let space = name.windows(2).position(|pair| pair == b" [").unwrap_or(name.len());
            write_all(fd, &[&name[..space], name.get(space + 1..).unwrap_or_default(), b"\n"].concat());
        }
        libc::free(names.cast());
    };
}

aliases! {
    __backtrace_symbols_fd = backtrace_symbols_fd(addresses: *const *mut c_void, count: c_int, fd: c_int) -> ();
}

/// What a function with variable arguments is called with behind its named ones. The x86-64 ABI passes numbers and
/// pointers in six registers, floating-point values in eight others, and the rest on the stack; of a function that is
/// declared to take as many of each kind, the compiler finds them there. Such a function needs no variable arguments,
/// which Rust's functions do not have.
#[cfg(target_arch = "x86_64")]
mod variable {
    use super::*;

    /// What the caller has put on the stack; a structure of this size is passed there, where the arguments are.
    #[derive(Clone, Copy)]
    #[repr(C, align(16))]
    pub(super) struct Stack([u64; 64]);

    /// Registers as functions save them that take variable arguments.
    #[repr(C, align(16))]
    struct Registers {
        numbers: [u64; 6],
        vectors: [[f64; 2]; 8],
    }

    /// `va_list` of the ABI.
    #[repr(C)]
    struct List {
        numbers_used: u32,
        vectors_used: u32,
        stack: *const Stack,
        registers: *const Registers,
    }

    /// Calls `with` the arguments behind the first `named` ones, all of which are numbers.
    fn list(
        named: u32,
        numbers: [u64; 6],
        vectors: [f64; 8],
        stack: &Stack,
        with: impl FnOnce(Arguments) -> c_int,
    ) -> c_int {
        let registers = Registers { numbers, vectors: vectors.map(|low| [low, 0.0]) };
        // Bytes of the registers: eight of each number, all of which come before the others.
        let mut list = List { numbers_used: 8 * named, vectors_used: 48, stack, registers: &raw const registers };
        with((&raw mut list).cast())
    }

    /// Functions of the named arguments, of as many numbers as there are registers for, and of `va_list`'s other parts.
    macro_rules! variable {
        ($( $name:ident($($named:ident: $type:ty),*; $($number:ident)*) = $count:literal, $with:ident; )*) => { $(
            #[unsafe(no_mangle)]
            #[allow(clippy::too_many_arguments, reason = "the registers of the ABI")]
            unsafe extern "C-unwind" fn $name(
                $($named: $type,)* $($number: u64,)*
                v0: f64, v1: f64, v2: f64, v3: f64, v4: f64, v5: f64, v6: f64, v7: f64, stack: Stack,
            ) -> c_int {
                let mut numbers = [0; 6];
                numbers[$count..].copy_from_slice(&[$($number),*]);
                let vectors = [v0, v1, v2, v3, v4, v5, v6, v7];
                // SAFETY: as ours, with the program's arguments.
                list($count, numbers, vectors, &stack, |arguments| unsafe { $with($($named,)* arguments) })
            }
        )* };
    }

    variable! {
        dprintf(fd: c_int, format: *const c_char; a b c d) = 2, vdprintf;
        __dprintf_chk(fd: c_int, flag: c_int, format: *const c_char; a b c) = 3, __vdprintf_chk;
    }
}
