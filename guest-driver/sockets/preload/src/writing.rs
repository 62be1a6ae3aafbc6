// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that write.

use crate::descriptors::may_pass;
use crate::next::{aliases, replaced};
use crate::reading::{flags_of, many, one, parts, parts_of};
use crate::{fail, outcome, returned};
use libc::{c_int, c_uint, c_void, iovec, loff_t, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};
use telegraphos_sockets::{is_tracked, send as transmit, send_file};

replaced! {
    pub(crate) fn write(fd: c_int, memory: *const c_void, length: size_t) -> ssize_t = |next| {
        one(fd, memory, length, next, |parts| transmit(fd, parts, 0, || outcome(next())))
    };

    pub(crate) fn writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t = |next| {
        many(fd, vector, parts_of(count), next, |parts| transmit(fd, parts, 0, || outcome(next())))
    };

    /// Without an offset (-1) it is as writev.
    pub(crate) fn pwritev2(
        fd: c_int, vector: *const iovec, count: c_int, at: off_t, flags: c_int
    ) -> ssize_t = |next| match flags_of(flags) {
        Some(flags) if at == -1 => {
            many(fd, vector, parts_of(count), next, |parts| transmit(fd, parts, flags, || outcome(next())))
        }
        _ => next(),
    };

    /// libc's writes past these functions.
    fn eventfd_write(fd: c_int, value: u64) -> c_int = |_next| {
        if write(fd, (&raw const value).cast(), size_of::<u64>()) == size_of::<u64>() as ssize_t { 0 } else { -1 }
    };

    fn send(fd: c_int, memory: *const c_void, length: size_t, flags: c_int) -> ssize_t = |next| {
        one(fd, memory, length, next, |parts| transmit(fd, parts, flags, || outcome(next())))
    };

    pub(crate) fn sendto(
        fd: c_int, memory: *const c_void, length: size_t, flags: c_int, to: *const sockaddr, size: socklen_t
    ) -> ssize_t = |next| one(fd, memory, length, next, |parts| transmit(fd, parts, flags, || outcome(next())));

    pub(crate) fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t = |next| {
        let Some(header) = message.as_ref() else { return next() };
        if header.msg_controllen > 0 && !header.msg_control.is_null() && !may_pass(message) {
            fail(libc::EOPNOTSUPP);
            return -1;
        }
        many(fd, header.msg_iov, header.msg_iovlen, next, |parts| transmit(fd, parts, flags, || outcome(next())))
    };

    pub(crate) fn sendmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int) -> c_int = |next| {
        if !is_tracked(fd) || messages.is_null() {
            return next();
        }
        for n in 0..count {
            let message = messages.add(n as usize);
            let sent = sendmsg(fd, &raw const (*message).msg_hdr, flags);
            let Ok(bytes) = c_uint::try_from(sent) else { return if n > 0 { n as c_int } else { -1 } };
            (*message).msg_len = bytes;
            // The next one would be behind a part of this one.
            let header = &(*message).msg_hdr;
            let all = parts(header.msg_iov, header.msg_iovlen).unwrap_or(&[]);
            if (bytes as usize) < all.iter().map(|part| part.iov_len).sum::<usize>() {
                return n as c_int + 1;
            }
        }
        count as c_int
    };

    pub(crate) fn sendfile(to: c_int, from: c_int, at: *mut off_t, count: size_t) -> ssize_t = |next| {
        match if is_tracked(to) { send_file(to, from, at.as_mut(), count) } else { None } {
            Some(outcome) => returned(outcome),
            None => next(),
        }
    };

    /// Between descriptors of which one is framed there is no splice, as between some of the system's: programs read
    /// and write then. A connection of which nothing is framed yet stays so.
    pub(crate) fn splice(
        from: c_int, from_at: *mut loff_t, to: c_int, to_at: *mut loff_t, length: size_t, flags: c_uint
    ) -> ssize_t = |next| {
        for fd in [from, to] {
            if !telegraphos_sockets::refuse(fd) {
                fail(libc::EINVAL);
                return -1;
            }
        }
        next()
    };
}

aliases! {
    __write = write(fd: c_int, memory: *const c_void, length: size_t) -> ssize_t;
    __send = send(fd: c_int, memory: *const c_void, length: size_t, flags: c_int) -> ssize_t;
    pwritev64v2 = pwritev2(fd: c_int, vector: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    sendfile64 = sendfile(to: c_int, from: c_int, at: *mut off_t, count: size_t) -> ssize_t;
}
