// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that write.

use crate::descriptors::may_pass;
use crate::next::next;
use crate::reading::{flags_of, parts};
use crate::{fail, outcome, returned};
use libc::{c_int, c_uint, c_void, iovec, loff_t, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};
use telegraphos_sockets::{is_tracked, send_file};

/// Writes one buffer; `raw` calls libc's function.
///
/// # Safety
///
/// The buffer may be read, if the kernel would read it.
unsafe fn write_one(
    fd: c_int,
    memory: *const c_void,
    length: size_t,
    flags: c_int,
    raw: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if !is_tracked(fd) {
        return raw();
    }
    let part = [iovec { iov_base: memory.cast_mut(), iov_len: length }];
    // SAFETY: as promised.
    returned(unsafe { telegraphos_sockets::send(fd, &part, flags, || outcome(raw())) })
}

/// Writes the buffers of a vector, as [`write_one`] one.
///
/// # Safety
///
/// The buffers may be read, if the kernel would read them.
unsafe fn write_vector(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    flags: c_int,
    raw: impl FnOnce() -> ssize_t,
) -> ssize_t {
    // SAFETY: as promised.
    match unsafe { parts(vector, size_t::try_from(count).unwrap_or(0)) } {
        Some(parts) if is_tracked(fd) => {
            // SAFETY: as promised.
            returned(unsafe { telegraphos_sockets::send(fd, parts, flags, || outcome(raw())) })
        }
        _ => raw(),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn write(fd: c_int, memory: *const c_void, length: size_t) -> ssize_t {
    let raw = || next!(write(fd: c_int, memory: *const c_void, length: size_t) -> ssize_t);
    // SAFETY: the program's buffer.
    unsafe { write_one(fd, memory, length, 0, raw) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    let raw = || next!(writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t);
    // SAFETY: the program's buffers.
    unsafe { write_vector(fd, vector, count, 0, raw) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __write(fd: c_int, memory: *const c_void, length: size_t) -> ssize_t {
    // SAFETY: as ours.
    unsafe { write(fd, memory, length) }
}

/// Without an offset (-1) it is as writev.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn pwritev2(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
) -> ssize_t {
    let raw = || next!(pwritev2(fd: c_int, vector: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t);
    match flags_of(flags) {
        // SAFETY: the program's buffers.
        Some(flags) if at == -1 => unsafe { write_vector(fd, vector, count, flags, raw) },
        _ => raw(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwritev64v2(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: as ours: both have offsets of 64 bits.
    unsafe { pwritev2(fd, vector, count, at, flags) }
}

/// libc's writes past these functions.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn eventfd_write(fd: c_int, value: u64) -> c_int {
    // SAFETY: a number.
    if unsafe { write(fd, (&raw const value).cast(), size_of::<u64>()) } == size_of::<u64>() as ssize_t {
        0
    } else {
        -1
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __send(fd: c_int, memory: *const c_void, length: size_t, flags: c_int) -> ssize_t {
    // SAFETY: as ours.
    unsafe { send(fd, memory, length, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn send(fd: c_int, memory: *const c_void, length: size_t, flags: c_int) -> ssize_t {
    let raw = || next!(send(fd: c_int, memory: *const c_void, length: size_t, flags: c_int) -> ssize_t);
    // SAFETY: the program's buffer.
    unsafe { write_one(fd, memory, length, flags, raw) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    memory: *const c_void,
    length: size_t,
    flags: c_int,
    to: *const sockaddr,
    size: socklen_t,
) -> ssize_t {
    let raw = || {
        next!(sendto(
            fd: c_int,
            memory: *const c_void,
            length: size_t,
            flags: c_int,
            to: *const sockaddr,
            size: socklen_t
        ) -> ssize_t)
    };
    // SAFETY: the program's buffer.
    unsafe { write_one(fd, memory, length, flags, raw) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let raw = || next!(sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t);
    // SAFETY: the program's message.
    let Some(header) = (unsafe { message.as_ref() }) else { return raw() };
    // SAFETY: as above.
    if header.msg_controllen > 0 && !header.msg_control.is_null() && !unsafe { may_pass(message) } {
        fail(libc::EOPNOTSUPP);
        return -1;
    }
    // SAFETY: the program's vector.
    match unsafe { parts(header.msg_iov, header.msg_iovlen) } {
        Some(parts) if is_tracked(fd) => {
            // SAFETY: the program's buffers.
            returned(unsafe { telegraphos_sockets::send(fd, parts, flags, || outcome(raw())) })
        }
        _ => raw(),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut libc::mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    if !is_tracked(fd) || messages.is_null() {
        return next!(sendmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int) -> c_int);
    }
    for n in 0..count {
        // SAFETY: the program's messages.
        let (message, sent) = unsafe {
            let message = messages.add(n as usize);
            (&mut *message, sendmsg(fd, &raw const (*message).msg_hdr, flags))
        };
        let Ok(bytes) = c_uint::try_from(sent) else { return if n > 0 { n as c_int } else { -1 } };
        message.msg_len = bytes;
    }
    count as c_int
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn sendfile(to: c_int, from: c_int, at: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: the program's offset.
    match if is_tracked(to) { send_file(to, from, unsafe { at.as_mut() }, count) } else { None } {
        Some(outcome) => returned(outcome),
        None => next!(sendfile(to: c_int, from: c_int, at: *mut off_t, count: size_t) -> ssize_t),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile64(to: c_int, from: c_int, at: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: as ours: both have offsets of 64 bits.
    unsafe { sendfile(to, from, at, count) }
}

/// Between descriptors of which one is framed there is no splice, as between some of the system's: programs read and
/// write then. A connection of which nothing is framed yet stays so.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_at: *mut loff_t,
    to: c_int,
    to_at: *mut loff_t,
    length: size_t,
    flags: c_uint,
) -> ssize_t {
    for fd in [from, to] {
        if !telegraphos_sockets::refuse(fd) {
            fail(libc::EINVAL);
            return -1;
        }
    }
    next!(splice(
        from: c_int,
        from_at: *mut loff_t,
        to: c_int,
        to_at: *mut loff_t,
        length: size_t,
        flags: c_uint
    ) -> ssize_t)
}
