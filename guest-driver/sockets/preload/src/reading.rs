// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that read.

use crate::next::next;
use crate::{outcome, returned};
use libc::{c_int, c_uint, c_void, iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use telegraphos_sockets::{is_tracked, receive};

/// Reads into one buffer; `raw` calls libc's function.
///
/// # Safety
///
/// The buffer may be written, if the kernel would write it.
unsafe fn read_one(
    fd: c_int,
    memory: *mut c_void,
    length: size_t,
    flags: c_int,
    raw: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if !is_tracked(fd) {
        return raw();
    }
    let part = [iovec { iov_base: memory, iov_len: length }];
    // SAFETY: as promised.
    returned(unsafe { receive(fd, &part, flags, || outcome(raw())) })
}

/// The parts of a vector, if the kernel would take it.
///
/// # Safety
///
/// `vector` has `count` parts, if `count` is one that the kernel takes.
pub(crate) unsafe fn parts<'a>(vector: *const iovec, count: size_t) -> Option<&'a [iovec]> {
    if vector.is_null() || count == 0 || count > 1024 {
        return None;
    }
    // SAFETY: as promised.
    Some(unsafe { std::slice::from_raw_parts(vector, count) })
}

/// Reads into the buffers of a vector, as [`read_one`] into one.
///
/// # Safety
///
/// The buffers may be written, if the kernel would write them.
unsafe fn read_vector(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    flags: c_int,
    raw: impl FnOnce() -> ssize_t,
) -> ssize_t {
    // SAFETY: as promised.
    match unsafe { parts(vector, size_t::try_from(count).unwrap_or(0)) } {
        // SAFETY: as promised.
        Some(parts) if is_tracked(fd) => returned(unsafe { receive(fd, parts, flags, || outcome(raw())) }),
        _ => raw(),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn read(fd: c_int, memory: *mut c_void, length: size_t) -> ssize_t {
    let raw = || next!(read(fd: c_int, memory: *mut c_void, length: size_t) -> ssize_t);
    // SAFETY: the program's buffer.
    unsafe { read_one(fd, memory, length, 0, raw) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(fd: c_int, memory: *mut c_void, length: size_t, size: size_t) -> ssize_t {
    if !is_tracked(fd) || length > size {
        return next!(__read_chk(fd: c_int, memory: *mut c_void, length: size_t, size: size_t) -> ssize_t);
    }
    // SAFETY: as ours.
    unsafe { read(fd, memory, length) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    let raw = || next!(readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t);
    // SAFETY: the program's buffers.
    unsafe { read_vector(fd, vector, count, 0, raw) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read(fd: c_int, memory: *mut c_void, length: size_t) -> ssize_t {
    // SAFETY: as ours.
    unsafe { read(fd, memory, length) }
}

/// What a flag of preadv2(2) and pwritev2(2) is for a connection; `None` if it has none such.
pub(crate) fn flags_of(flags: c_int) -> Option<c_int> {
    // Priority, and when a file is synchronised, mean nothing here.
    let known = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_NOWAIT | libc::RWF_APPEND;
    let nowait = if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
    (flags & !known == 0).then_some(nowait)
}

/// Without an offset (-1) it is as readv.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn preadv2(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
) -> ssize_t {
    let raw = || next!(preadv2(fd: c_int, vector: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t);
    match flags_of(flags) {
        // SAFETY: the program's buffers.
        Some(flags) if at == -1 => unsafe { read_vector(fd, vector, count, flags, raw) },
        _ => raw(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv64v2(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: as ours: both have offsets of 64 bits.
    unsafe { preadv2(fd, vector, count, at, flags) }
}

/// libc's reads past these functions.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn eventfd_read(fd: c_int, value: *mut u64) -> c_int {
    // SAFETY: the program's number.
    if unsafe { read(fd, value.cast(), size_of::<u64>()) } == size_of::<u64>() as ssize_t { 0 } else { -1 }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recv(fd: c_int, memory: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
    let raw = || next!(recv(fd: c_int, memory: *mut c_void, length: size_t, flags: c_int) -> ssize_t);
    // SAFETY: the program's buffer.
    unsafe { read_one(fd, memory, length, flags, raw) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    memory: *mut c_void,
    length: size_t,
    size: size_t,
    flags: c_int,
) -> ssize_t {
    if !is_tracked(fd) || length > size {
        return next!(__recv_chk(
            fd: c_int,
            memory: *mut c_void,
            length: size_t,
            size: size_t,
            flags: c_int
        ) -> ssize_t);
    }
    // SAFETY: as ours.
    unsafe { recv(fd, memory, length, flags) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    memory: *mut c_void,
    length: size_t,
    flags: c_int,
    from: *mut sockaddr,
    size: *mut socklen_t,
) -> ssize_t {
    if is_tracked(fd) && !from.is_null() && !size.is_null() {
        // As the kernel does for a connection.
        // SAFETY: the program's number.
        unsafe { *size = 0 };
    }
    let raw = || {
        next!(recvfrom(
            fd: c_int,
            memory: *mut c_void,
            length: size_t,
            flags: c_int,
            from: *mut sockaddr,
            size: *mut socklen_t
        ) -> ssize_t)
    };
    // SAFETY: the program's buffer.
    unsafe { read_one(fd, memory, length, flags, raw) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    memory: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
    from: *mut sockaddr,
    size: *mut socklen_t,
) -> ssize_t {
    if !is_tracked(fd) || length > room {
        return next!(__recvfrom_chk(
            fd: c_int,
            memory: *mut c_void,
            length: size_t,
            room: size_t,
            flags: c_int,
            from: *mut sockaddr,
            size: *mut socklen_t
        ) -> ssize_t);
    }
    // SAFETY: as ours.
    unsafe { recvfrom(fd, memory, length, flags, from, size) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let raw = || next!(recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t);
    // SAFETY: the program's message.
    let Some(header) = (unsafe { message.as_mut() }).filter(|_| is_tracked(fd)) else { return raw() };
    // SAFETY: the program's vector.
    let Some(parts) = (unsafe { parts(header.msg_iov, header.msg_iovlen) }) else { return raw() };
    let mut called = false;
    // SAFETY: the program's buffers.
    let outcome = unsafe {
        receive(fd, parts, flags, || {
            called = true;
            outcome(raw())
        })
    };
    if !called && outcome.is_ok() {
        (header.msg_namelen, header.msg_controllen, header.msg_flags) = (0, 0, 0);
    }
    returned(outcome)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut libc::mmsghdr,
    count: c_uint,
    flags: c_int,
    limit: *mut timespec,
) -> c_int {
    if !is_tracked(fd) || count == 0 || messages.is_null() {
        return next!(recvmmsg(
            fd: c_int,
            messages: *mut libc::mmsghdr,
            count: c_uint,
            flags: c_int,
            limit: *mut timespec
        ) -> c_int);
    }
    // Of a stream, the first message may as well have all there is.
    // SAFETY: the program's messages.
    let (first, received) = unsafe { (&mut *messages, recvmsg(fd, &raw mut (*messages).msg_hdr, flags)) };
    let Ok(bytes) = c_uint::try_from(received) else { return -1 };
    first.msg_len = bytes;
    1
}
