// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that make and close descriptors.

use crate::fail;
use crate::next::next;
use libc::{FILE, c_char, c_int, c_uint, msghdr, posix_spawn_file_actions_t, sockaddr, socklen_t};
use telegraphos_sockets::{
    closed, duplicated, is_own_descriptor, is_tcp, is_tracked, opened, refuse, revalidate, same_as, tracked_from,
};

fn connected(fd: c_int) {
    if fd >= 0 && is_tcp(fd) {
        tracked_from(fd);
    } else if fd >= 0 {
        opened(fd);
    }
}

/// Runs `calls` and leaves errno as it was before.
pub(crate) fn quietly(calls: impl FnOnce()) {
    // SAFETY: this thread's errno.
    let errno = unsafe { *libc::__errno_location() };
    calls();
    fail(errno);
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let fd = next!(socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int);
    opened(fd);
    fd
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn connect(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int {
    let returned = next!(connect(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int);
    // A second call says how the first one ended.
    if !is_tracked(fd) {
        quietly(|| {
            // SAFETY: this thread's errno.
            if returned == 0 || unsafe { *libc::__errno_location() } == libc::EINPROGRESS {
                connected(fd);
            }
        });
    }
    returned
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn accept(fd: c_int, from: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let new = next!(accept(fd: c_int, from: *mut sockaddr, length: *mut socklen_t) -> c_int);
    quietly(|| connected(new));
    new
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    from: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let new = next!(accept4(fd: c_int, from: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int);
    quietly(|| connected(new));
    new
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if is_own_descriptor(fd) {
        fail(libc::EBADF);
        return -1;
    }
    closed(fd);
    next!(close(fd: c_int) -> c_int)
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

/// Files of ours are opened again in the program that is started, which cannot find its connections without them.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawn_file_actions_addclosefrom_np(
    actions: *mut posix_spawn_file_actions_t,
    first: c_int,
) -> c_int {
    let mut failed = next!(posix_spawn_file_actions_addclosefrom_np(
        actions: *mut posix_spawn_file_actions_t,
        first: c_int
    ) -> c_int);
    for (fd, path) in telegraphos_sockets::inherited() {
        if failed == 0 && fd >= first {
            // SAFETY: the program's actions; the path is copied.
            failed = unsafe { libc::posix_spawn_file_actions_addopen(actions, fd, path.as_ptr(), libc::O_RDWR, 0) };
        }
    }
    failed
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __close(fd: c_int) -> c_int {
    // SAFETY: as ours.
    unsafe { close(fd) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __connect(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: as ours.
    unsafe { connect(fd, to, length) }
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

/// What libc has put something else in the place of.
fn standard_streams_have_changed() {
    quietly(|| (0..=libc::STDERR_FILENO).for_each(revalidate));
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn daemon(stays: c_int, keeps: c_int) -> c_int {
    let returned = next!(daemon(stays: c_int, keeps: c_int) -> c_int);
    standard_streams_have_changed();
    returned
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn login_tty(fd: c_int) -> c_int {
    let returned = next!(login_tty(fd: c_int) -> c_int);
    standard_streams_have_changed();
    returned
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn forkpty(
    terminal: *mut c_int,
    name: *mut c_char,
    properties: *const libc::termios,
    size: *const libc::winsize,
) -> libc::pid_t {
    let returned = next!(forkpty(
        terminal: *mut c_int,
        name: *mut c_char,
        properties: *const libc::termios,
        size: *const libc::winsize
    ) -> libc::pid_t);
    if returned == 0 {
        standard_streams_have_changed();
    }
    returned
}

/// Functions that open another file in the place of a stream's.
macro_rules! reopening {
    ($($name:ident),*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
            let returned = next!($name(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE);
            standard_streams_have_changed();
            returned
        }
    )* };
}

reopening!(freopen, freopen64);

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: as ours.
    unsafe { fdopen(fd, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _IO_file_attach(stream: *mut FILE, fd: c_int) -> *mut FILE {
    if !refuse(fd) {
        fail(libc::EINVAL);
        return std::ptr::null_mut();
    }
    next!(_IO_file_attach(stream: *mut FILE, fd: c_int) -> *mut FILE)
}

/// libc's buffers read and write past these functions.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if !refuse(fd) {
        fail(libc::EINVAL);
        return std::ptr::null_mut();
    }
    next!(fdopen(fd: c_int, mode: *const c_char) -> *mut FILE)
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
