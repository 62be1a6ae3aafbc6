// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that read.

use crate::next::{aliases, replaced};
use crate::{outcome, returned};
use libc::{c_int, c_uint, c_void, iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use telegraphos_sockets::{Outcome, is_tracked, receive};

/// Has `pass` read into one buffer, or write it, if the descriptor is a connection's; `next` calls libc's function.
pub(crate) fn one(
    fd: c_int,
    memory: *const c_void,
    length: size_t,
    next: impl FnOnce() -> ssize_t,
    pass: impl FnOnce(&[iovec]) -> Outcome,
) -> ssize_t {
    if !is_tracked(fd) {
        return next();
    }
    returned(pass(&[iovec { iov_base: memory.cast_mut(), iov_len: length }]))
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

/// The same as [`one`] with the buffers of a vector.
///
/// # Safety
///
/// As of [`parts`].
pub(crate) unsafe fn many(
    fd: c_int,
    vector: *const iovec,
    count: size_t,
    next: impl FnOnce() -> ssize_t,
    pass: impl FnOnce(&[iovec]) -> Outcome,
) -> ssize_t {
    // SAFETY: as promised.
    match unsafe { parts(vector, count) } {
        Some(parts) if is_tracked(fd) => returned(pass(parts)),
        _ => next(),
    }
}

/// How many parts a vector has, of which the kernel takes none if the program's number is negative.
pub(crate) fn parts_of(count: c_int) -> size_t {
    size_t::try_from(count).unwrap_or(0)
}

/// What a flag of preadv2(2) and pwritev2(2) is for a connection; `None` if it has none such.
pub(crate) fn flags_of(flags: c_int) -> Option<c_int> {
    // Priority, and when a file is synchronised, mean nothing here.
    let known = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_NOWAIT | libc::RWF_APPEND;
    let nowait = if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
    (flags & !known == 0).then_some(nowait)
}

replaced! {
    pub(crate) fn read(fd: c_int, memory: *mut c_void, length: size_t) -> ssize_t = |next| {
        one(fd, memory, length, next, |parts| receive(fd, parts, 0, || outcome(next())))
    };

    fn __read_chk(fd: c_int, memory: *mut c_void, length: size_t, size: size_t) -> ssize_t = |next| {
        if !is_tracked(fd) || length > size { next() } else { read(fd, memory, length) }
    };

    pub(crate) fn readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t = |next| {
        many(fd, vector, parts_of(count), next, |parts| receive(fd, parts, 0, || outcome(next())))
    };

    /// Without an offset (-1) it is as readv.
    pub(crate) fn preadv2(
        fd: c_int, vector: *const iovec, count: c_int, at: off_t, flags: c_int
    ) -> ssize_t = |next| match flags_of(flags) {
        Some(flags) if at == -1 => {
            many(fd, vector, parts_of(count), next, |parts| receive(fd, parts, flags, || outcome(next())))
        }
        _ => next(),
    };

    /// libc's reads past these functions.
    fn eventfd_read(fd: c_int, value: *mut u64) -> c_int = |_next| {
        if read(fd, value.cast(), size_of::<u64>()) == size_of::<u64>() as ssize_t { 0 } else { -1 }
    };

    fn recv(fd: c_int, memory: *mut c_void, length: size_t, flags: c_int) -> ssize_t = |next| {
        one(fd, memory, length, next, |parts| receive(fd, parts, flags, || outcome(next())))
    };

    fn __recv_chk(fd: c_int, memory: *mut c_void, length: size_t, size: size_t, flags: c_int) -> ssize_t = |next| {
        if !is_tracked(fd) || length > size { next() } else { recv(fd, memory, length, flags) }
    };

    pub(crate) fn recvfrom(
        fd: c_int, memory: *mut c_void, length: size_t, flags: c_int, from: *mut sockaddr, size: *mut socklen_t
    ) -> ssize_t = |next| {
        if is_tracked(fd) && !from.is_null() && !size.is_null() {
            // As the kernel does for a connection.
            *size = 0;
        }
        one(fd, memory, length, next, |parts| receive(fd, parts, flags, || outcome(next())))
    };

    fn __recvfrom_chk(
        fd: c_int, memory: *mut c_void, length: size_t, room: size_t, flags: c_int,
        from: *mut sockaddr, size: *mut socklen_t
    ) -> ssize_t = |next| {
        if !is_tracked(fd) || length > room { next() } else { recvfrom(fd, memory, length, flags, from, size) }
    };

    pub(crate) fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = |next| {
        let Some(header) = message.as_mut().filter(|_| is_tracked(fd)) else { return next() };
        let Some(parts) = parts(header.msg_iov, header.msg_iovlen) else { return next() };
        let mut called = false;
        let outcome = receive(fd, parts, flags, || {
            called = true;
            outcome(next())
        });
        if !called && outcome.is_ok() {
            (header.msg_namelen, header.msg_controllen, header.msg_flags) = (0, 0, 0);
        }
        returned(outcome)
    };

    pub(crate) fn recvmmsg(
        fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int, limit: *mut timespec
    ) -> c_int = |next| {
        if !is_tracked(fd) || count == 0 || messages.is_null() {
            return next();
        }
        // Of a stream, the first message may as well have all there is.
        let received = recvmsg(fd, &raw mut (*messages).msg_hdr, flags);
        let Ok(bytes) = c_uint::try_from(received) else { return -1 };
        (*messages).msg_len = bytes;
        1
    };
}

aliases! {
    __read = read(fd: c_int, memory: *mut c_void, length: size_t) -> ssize_t;
    preadv64v2 = preadv2(fd: c_int, vector: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
}
