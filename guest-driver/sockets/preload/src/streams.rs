// SPDX-License-Identifier: MIT OR Apache-2.0
//! libc's standard streams, which read and write past these functions, in a program whose standard descriptors are
//! connections of the program that was there before.

use crate::{reading, writing};
use libc::{FILE, c_char, c_int, c_void, size_t, ssize_t};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicPtr, Ordering};
use telegraphos_sockets::is_tracked;

/// What reads and writes for a stream of libc's: `cookie_io_functions_t`.
#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: *const c_void,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

/// The beginning of libc's stream, as its header declares it (`struct _IO_FILE`): up to its descriptor.
#[repr(C)]
struct Stream {
    flags: c_int,
    pointers: [*mut c_void; 13],
    descriptor: c_int,
}

#[repr(transparent)]
struct Variable(UnsafeCell<*mut FILE>);

// SAFETY: a program that copies a descriptor to a standard one does not use that one's stream meanwhile.
unsafe impl Sync for Variable {}

unsafe extern "C" {
    static stdin: Variable;
    static stdout: Variable;
    static stderr: Variable;
    fn __fpending(stream: *mut FILE) -> size_t;
    fn __fpurge(stream: *mut FILE);
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

/// The descriptor, which a stream has in the place of a pointer.
fn descriptor(cookie: *mut c_void) -> c_int {
    cookie as usize as c_int
}

unsafe extern "C" fn read(cookie: *mut c_void, memory: *mut c_char, length: size_t) -> ssize_t {
    // SAFETY: the stream's buffer.
    unsafe { reading::read(descriptor(cookie), memory.cast(), length) }
}

unsafe extern "C" fn write(cookie: *mut c_void, memory: *const c_char, length: size_t) -> ssize_t {
    // SAFETY: the stream's buffer. An error is 0 for such functions.
    unsafe { writing::write(descriptor(cookie), memory.cast(), length) }.max(0)
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: no memory is passed.
    unsafe { crate::descriptors::close(descriptor(cookie)) }
}

/// Puts streams that use these functions in the place of the standard ones, where those are connections.
pub(crate) fn begin() {
    (0..=libc::STDERR_FILENO).for_each(take);
}

/// The same for one of them, if its descriptor is a connection now. What its stream has not written yet is the new
/// one's to write.
pub(crate) fn take(fd: c_int) {
    // SAFETY: libc's variables.
    let streams = unsafe { [(&stdin, c"r"), (&stdout, c"w"), (&stderr, c"w")] };
    let Some((variable, mode)) = usize::try_from(fd).ok().and_then(|fd| streams.get(fd).copied()) else { return };
    // A child of vfork has its parent's streams.
    if !is_tracked(fd) || !telegraphos_sockets::is_this_process() {
        return;
    }
    // SAFETY: the stream of libc's variable.
    let before = unsafe { *variable.0.get() };
    if before.is_null() || is_ours(before) {
        return;
    }
    let functions = Functions { read, write, seek: std::ptr::null(), close };
    // SAFETY: functions as libc calls them; the stream is a new one.
    unsafe {
        let stream = fopencookie(fd as usize as *mut c_void, mode.as_ptr(), functions);
        let Some(known) = stream.cast::<Stream>().as_mut() else { return };
        // What fileno says.
        known.descriptor = fd;
        if fd == 2 {
            libc::setvbuf(stream, std::ptr::null_mut(), libc::_IONBF, 0);
        }
        let waiting = __fpending(before);
        if waiting > 0 {
            // From the beginning of what is to be written: the fourth of its pointers.
            libc::fwrite((*before.cast::<Stream>()).pointers[3], 1, waiting, stream);
            __fpurge(before);
        }
        TAKEN[fd as usize].store(stream, Ordering::Relaxed);
        *variable.0.get() = stream;
    }
}

/// Streams that use these functions.
static TAKEN: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 3];

/// Whether a stream uses these functions.
fn is_ours(stream: *mut FILE) -> bool {
    TAKEN.iter().any(|taken| std::ptr::eq(taken.load(Ordering::Relaxed), stream))
}
