// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls on sockets, past libc's functions, which may be ours.

use libc::{c_int, c_long, iovec, msghdr};
use std::ffi::CStr;
use std::mem::MaybeUninit;

/// An errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(
    /// Its number.
    pub c_int,
);

/// What a system call returns.
pub type Outcome = Result<usize, Errno>;

/// Nothing to read, or no room to write.
pub(crate) const AGAIN: Errno = Errno(libc::EAGAIN);

fn outcome(returned: c_long) -> Outcome {
    usize::try_from(returned).map_err(|_| {
        // SAFETY: this thread's errno.
        Errno(unsafe { *libc::__errno_location() })
    })
}

fn header(parts: &mut [iovec]) -> msghdr {
    // SAFETY: all zeros is a message without anything.
    let mut header: msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    (header.msg_iov, header.msg_iovlen) = (parts.as_mut_ptr(), parts.len());
    header
}

/// The part of memory that a slice is, to be read.
pub(crate) fn part(bytes: &[u8]) -> iovec {
    iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// The part of memory that a slice is, to be written.
pub(crate) fn part_mut(bytes: &mut [u8]) -> iovec {
    iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

/// recvmsg(2). The parts are valid for writes; the kernel refuses others.
pub(crate) fn receive(fd: c_int, parts: &mut [iovec], flags: c_int) -> Outcome {
    let mut header = header(parts);
    // SAFETY: the kernel checks what the parts name, and `header` is one.
    outcome(unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut header, flags) })
}

/// sendmsg(2).
pub(crate) fn send(fd: c_int, parts: &mut [iovec], flags: c_int) -> Outcome {
    let header = header(parts);
    // SAFETY: as for `receive`.
    outcome(unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const header, flags) })
}

/// Consumes bytes that are there, without copying them.
pub(crate) fn discard(fd: c_int, bytes: usize) -> Outcome {
    let null = std::ptr::null_mut::<u8>();
    let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // SAFETY: with MSG_TRUNC the kernel writes nothing.
    outcome(unsafe {
        libc::syscall(libc::SYS_recvfrom, fd, null, bytes, flags, std::ptr::null::<u8>(), std::ptr::null::<u8>())
    })
}

/// Waits until there is something to read, or the end, as a read would: SO_RCVTIMEO, signals.
pub(crate) fn wait_readable(fd: c_int) -> Outcome {
    let mut byte = [0];
    receive(fd, &mut [part_mut(&mut byte)], libc::MSG_PEEK)
}

/// Waits until there is room to write, as a write would: SO_SNDTIMEO, signals.
pub(crate) fn wait_writable(fd: c_int) -> Outcome {
    let mut limit: libc::timeval =
        option(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO).unwrap_or(libc::timeval { tv_sec: 0, tv_usec: 0 });
    let forever = limit.tv_sec == 0 && limit.tv_usec == 0;
    limit.tv_usec *= 1000;
    let limit = libc::timespec { tv_sec: limit.tv_sec, tv_nsec: limit.tv_usec };
    let limit: *const libc::timespec = if forever { std::ptr::null() } else { &raw const limit };
    let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one pollfd, and a limit or none; no signal mask.
    let ready = outcome(unsafe { libc::syscall(libc::SYS_ppoll, &raw mut poll, 1, limit, std::ptr::null::<u8>(), 0) })?;
    if ready == 0 { Err(AGAIN) } else { Ok(ready) }
}

/// Whether operations on it do not wait.
pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: no memory is passed.
    outcome(unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFL) })
        .is_ok_and(|flags| flags & libc::O_NONBLOCK as usize != 0)
}

/// An option of a socket. `T` is plain data of the kind that the kernel writes for it.
pub(crate) fn option<T: Copy>(fd: c_int, level: c_int, name: c_int) -> Result<T, Errno> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes; callers name plain data, for which zeros are valid.
    outcome(unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, value.as_mut_ptr(), &raw mut length) })?;
    // SAFETY: as above.
    Ok(unsafe { value.assume_init() })
}

/// Sets an option of a socket.
pub(crate) fn set_option(fd: c_int, level: c_int, name: c_int, value: c_int) -> Result<(), Errno> {
    // SAFETY: a pointer to an int, and its size.
    outcome(unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, name, &raw const value, size_of::<c_int>()) })?;
    Ok(())
}

/// An address of IPv4 of one end: this one, or the peer's; also of a socket of IPv6 that has such a connection.
pub(crate) fn address(fd: c_int, peer: bool) -> Option<std::net::Ipv4Addr> {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    let call = if peer { libc::SYS_getpeername } else { libc::SYS_getsockname };
    // SAFETY: the kernel writes at most `length` bytes.
    outcome(unsafe { libc::syscall(call, fd, storage.as_mut_ptr(), &raw mut length) }).ok()?;
    // SAFETY: all zeros is valid, and the kernel has written an address.
    let storage = unsafe { storage.assume_init() };
    match c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: that is what it is.
            let address = unsafe { &*(&raw const storage).cast::<libc::sockaddr_in>() };
            Some(u32::from_be(address.sin_addr.s_addr).into())
        }
        libc::AF_INET6 => {
            // SAFETY: that is what it is.
            let address = unsafe { &*(&raw const storage).cast::<libc::sockaddr_in6>() };
            std::net::Ipv6Addr::from(address.sin6_addr.s6_addr).to_ipv4_mapped()
        }
        _ => None,
    }
}

/// Bytes that have been received and not been read.
pub(crate) fn unread(fd: c_int) -> Result<usize, Errno> {
    count(fd, libc::FIONREAD)
}

/// Bytes that have been written and that the peer has not acknowledged.
pub(crate) fn unacknowledged(fd: c_int) -> Result<usize, Errno> {
    count(fd, libc::TIOCOUTQ)
}

fn count(fd: c_int, request: libc::Ioctl) -> Result<usize, Errno> {
    let mut count: c_int = 0;
    // SAFETY: both requests write an int.
    outcome(unsafe { libc::syscall(libc::SYS_ioctl, fd, request, &raw mut count) })?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Ends both directions: what was done to the connection cannot be understood.
pub(crate) fn shut_down(fd: c_int) {
    // SAFETY: no memory is passed.
    let _ = outcome(unsafe { libc::syscall(libc::SYS_shutdown, fd, libc::SHUT_RDWR) });
}

/// A file of zeros in memory, which does not shrink; its descriptor is from a number on, if possible, and stays open
/// across `exec`.
pub(crate) fn memory_file(name: &CStr, bytes: usize, from: c_int) -> Option<c_int> {
    // SAFETY: a name.
    let make = |flags: libc::c_uint| outcome(unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags) });
    // Before Linux 6.3 nobody asked whether it is to be run; now the kernel notes who does not say.
    let made = make(libc::MFD_ALLOW_SEALING | libc::MFD_NOEXEC_SEAL).or_else(|_| make(libc::MFD_ALLOW_SEALING));
    let low = made.ok()? as c_int;
    // SAFETY: no memory is passed.
    let file = outcome(unsafe { libc::syscall(libc::SYS_fcntl, low, libc::F_DUPFD, from) });
    close(low);
    let file = file.ok()? as c_int;
    // SAFETY: as above.
    let sized = outcome(unsafe { libc::syscall(libc::SYS_ftruncate, file, bytes) })
        .and_then(|_| outcome(unsafe { libc::syscall(libc::SYS_fcntl, file, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) }));
    if sized.is_err() {
        close(file);
    }
    sized.ok().map(|_| file)
}

/// Whether a file in memory does not shrink.
pub(crate) fn does_not_shrink(file: c_int) -> bool {
    // SAFETY: no memory is passed.
    outcome(unsafe { libc::syscall(libc::SYS_fcntl, file, libc::F_GET_SEALS) })
        .is_ok_and(|seals| seals & libc::F_SEAL_SHRINK as usize != 0)
}

/// Closes a descriptor of ours.
pub(crate) fn close(fd: c_int) {
    // SAFETY: no memory is passed.
    let _ = outcome(unsafe { libc::syscall(libc::SYS_close, fd) });
}

/// Has a descriptor closed by `exec`.
pub(crate) fn close_at_exec(fd: c_int) {
    // SAFETY: no memory is passed.
    let _ = outcome(unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETFD, libc::FD_CLOEXEC) });
}

/// What the system says of an open file.
pub(crate) fn status(fd: c_int) -> Option<libc::stat> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel writes one.
    outcome(unsafe { libc::syscall(libc::SYS_fstat, fd, status.as_mut_ptr()) }).ok()?;
    // SAFETY: all zeros is valid, and the kernel has written one.
    Some(unsafe { status.assume_init() })
}

/// The number of a socket's inode. `None` if it is no socket.
pub(crate) fn socket_inode(fd: c_int) -> Option<u64> {
    status(fd).filter(|status| status.st_mode & libc::S_IFMT == libc::S_IFSOCK).map(|status| status.st_ino)
}

/// Maps a file in memory, in common with all that have it. `None` if that is not possible.
pub(crate) fn map_shared(file: c_int, bytes: usize) -> Option<*mut [u8]> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: memory of its own, anywhere.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, file, 0) };
    (memory != libc::MAP_FAILED).then(|| std::ptr::slice_from_raw_parts_mut(memory.cast(), bytes))
}

/// Unmaps memory that nobody uses any more.
pub(crate) fn unmap(memory: *mut [u8]) {
    // SAFETY: callers have mapped it, and nothing refers to it.
    unsafe { libc::munmap(memory.cast(), memory.len()) };
}

/// read(2) or pread(2) from a file.
pub(crate) fn read_file(fd: c_int, at: Option<i64>, bytes: &mut [u8]) -> Outcome {
    // SAFETY: the slice is valid for writes.
    outcome(unsafe {
        match at {
            Some(at) => libc::syscall(libc::SYS_pread64, fd, bytes.as_mut_ptr(), bytes.len(), at),
            None => libc::syscall(libc::SYS_read, fd, bytes.as_mut_ptr(), bytes.len()),
        }
    })
}

/// Sends from a file to a socket: from an offset, which is moved, or from the file's place.
pub(crate) fn send_file(fd: c_int, file: c_int, at: Option<&mut i64>, count: usize) -> Outcome {
    let at = at.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: an offset, or none.
    outcome(unsafe { libc::syscall(libc::SYS_sendfile, fd, file, at, count) })
}

/// Moves the place of a file back by so many bytes.
pub(crate) fn seek_back(fd: c_int, bytes: usize) {
    // SAFETY: no memory is passed.
    let _ = outcome(unsafe { libc::syscall(libc::SYS_lseek, fd, -(bytes as i64), libc::SEEK_CUR) });
}
