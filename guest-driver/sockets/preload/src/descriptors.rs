// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that make and close descriptors.

use crate::fail;
use crate::next::{aliases, next, replaced};
use libc::{FILE, c_char, c_int, c_uint, msghdr, posix_spawn_file_actions_t, sockaddr, socklen_t};
use telegraphos_sockets::{
    closed, duplicated, is_own_descriptor, is_retired, is_tcp, is_tracked, opened, refuse, revalidate, same_as,
    tracked_from,
};

fn connected(fd: c_int) {
    if fd >= 0 && !is_retired() && is_tcp(fd) {
        tracked_from(fd);
    } else if fd >= 0 {
        opened(fd);
    }
}

/// Closes what is not ours, by `next`.
pub(crate) fn closing<T: From<i8>>(fd: c_int, next: impl FnOnce() -> T) -> T {
    if is_own_descriptor(fd) {
        fail(libc::EBADF);
        return T::from(-1);
    }
    closed(fd);
    next()
}

fn accepted(new: c_int) -> c_int {
    quietly(|| connected(new));
    new
}

/// What libc has put something else in the place of, and has `returned` from.
fn standard_streams_have_changed<T>(returned: T) -> T {
    quietly(|| (0..=libc::STDERR_FILENO).for_each(revalidate));
    returned
}

/// A stream of libc's for a descriptor: its buffers read and write past these functions.
fn buffered(fd: c_int, next: impl FnOnce() -> *mut FILE) -> *mut FILE {
    if !refuse(fd) {
        fail(libc::EINVAL);
        return std::ptr::null_mut();
    }
    next()
}

/// Runs `calls` and leaves errno as it was before.
pub(crate) fn quietly(calls: impl FnOnce()) {
    // SAFETY: this thread's errno.
    let errno = unsafe { *libc::__errno_location() };
    calls();
    fail(errno);
}

replaced! {
    pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = |next| {
        let fd = next();
        opened(fd);
        fd
    };

    pub(crate) fn connect(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int = |next| {
        let returned = next();
        // A second call says how the first one ended.
        if !is_tracked(fd) {
            quietly(|| {
                // The latter is this thread's errno.
                if returned == 0 || *libc::__errno_location() == libc::EINPROGRESS {
                    connected(fd);
                }
            });
        }
        returned
    };

    pub(crate) fn accept(fd: c_int, from: *mut sockaddr, length: *mut socklen_t) -> c_int = |next| accepted(next());

    pub(crate) fn accept4(
        fd: c_int, from: *mut sockaddr, length: *mut socklen_t, flags: c_int
    ) -> c_int = |next| accepted(next());

    pub(crate) fn close(fd: c_int) -> c_int = |next| closing(fd, next);

    /// Files of ours are opened again in the program that is started, which cannot find its connections without them.
    fn posix_spawn_file_actions_addclosefrom_np(
        actions: *mut posix_spawn_file_actions_t, first: c_int
    ) -> c_int = |next| {
        let mut failed = next();
        for (fd, path) in telegraphos_sockets::inherited() {
            if failed == 0 && fd >= first {
                // The path is copied.
                failed = libc::posix_spawn_file_actions_addopen(actions, fd, path.as_ptr(), libc::O_RDWR, 0);
            }
        }
        failed
    };

    fn daemon(stays: c_int, keeps: c_int) -> c_int = |next| standard_streams_have_changed(next());

    fn login_tty(fd: c_int) -> c_int = |next| standard_streams_have_changed(next());

    fn forkpty(
        terminal: *mut c_int, name: *mut c_char, properties: *const libc::termios, size: *const libc::winsize
    ) -> libc::pid_t = |next| match next() {
        0 => standard_streams_have_changed(0),
        other => other,
    };

    // These open another file in the place of a stream's.
    fn freopen(
        path: *const c_char, mode: *const c_char, stream: *mut FILE
    ) -> *mut FILE = |next| standard_streams_have_changed(next());

    fn freopen64(
        path: *const c_char, mode: *const c_char, stream: *mut FILE
    ) -> *mut FILE = |next| standard_streams_have_changed(next());

    fn _IO_file_attach(stream: *mut FILE, fd: c_int) -> *mut FILE = |next| buffered(fd, next);

    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = |next| buffered(fd, next);
}

aliases! {
    __close = close(fd: c_int) -> c_int;
    __connect = connect(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int;
    _IO_fdopen = fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
}

/// Closes what is not ours, from `first` to `last`, or does something else to it; `each` is called with each.
fn others(first: c_uint, last: c_uint, each: impl Fn(c_int), close: impl Fn(c_uint, c_uint) -> c_int) -> c_int {
    let mut from = first;
    for fd in first..=last.min(1 << 16) {
        let fd = fd as c_int;
        if is_own_descriptor(fd) {
            if fd as c_uint > from && close(from, fd as c_uint - 1) < 0 {
                return -1;
            }
            from = fd as c_uint + 1;
        } else {
            each(fd);
        }
    }
    if from > last { 0 } else { close(from, last) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let next = |first: c_uint, last: c_uint| next!(close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int);
    if first > last {
        return next(first, last);
    }
    let marks = flags as c_uint & libc::CLOSE_RANGE_CLOEXEC != 0;
    others(
        first,
        last,
        |fd| {
            if !marks {
                closed(fd)
            }
        },
        next,
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn closefrom(first: c_int) {
    others(first.max(0) as c_uint, c_uint::MAX, closed, telegraphos_sockets::close_range);
}

/// A descriptor of another process, or one more of this one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn pidfd_getfd(process: c_int, theirs: c_int, flags: c_uint) -> c_int {
    let new = match telegraphos_sockets::get_descriptor(process, theirs, flags) {
        Ok(new) => new as c_int,
        Err(errno) => {
            fail(errno.0);
            return -1;
        }
    };
    quietly(|| match same_as(new) {
        Some(own) => duplicated(own, new),
        None => opened(new),
    });
    new
}

/// Whether descriptors are passed with a message; those of connections are left alone from now on. False if it is too
/// late for that.
///
/// # Safety
///
/// `message` is one.
pub(crate) unsafe fn may_pass(message: *const msghdr) -> bool {
    let mut may = true;
    // SAFETY: as promised; the macros keep inside.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(message);
        while let Some(header) = control.as_ref() {
            if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
                let bytes = header.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let fds = libc::CMSG_DATA(control).cast::<c_int>();
                for n in 0..bytes / size_of::<c_int>() {
                    may &= telegraphos_sockets::refuse(fds.add(n).read_unaligned());
                }
            }
            control = libc::CMSG_NXTHDR(message, control);
        }
    }
    may
}
