// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls on sockets, past libc's functions, which may be ours.

use crate::lock::{Owner, Slept, Word};
use libc::{c_int, c_long, iovec, msghdr};
use std::cell::Cell;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub c_int);

/// What a system call returns.
pub type Outcome = Result<usize, Errno>;

/// Nothing to read, or no room to write.
pub(crate) const AGAIN: Errno = Errno(libc::EAGAIN);
/// A signal has come.
const INTERRUPTED: Errno = Errno(libc::EINTR);

/// A system call by its instruction: libc's `syscall` is replaced, too.
///
/// # Safety
///
/// As for the system call.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: c_long, arguments: [usize; 6]) -> c_long {
    let returned: c_long;
    // SAFETY: the kernel's convention; the caller answers for what the call does.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => returned,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    returned
}

/// As above.
///
/// # Safety
///
/// As for the system call.
#[cfg(target_arch = "aarch64")]
unsafe fn call(number: c_long, arguments: [usize; 6]) -> c_long {
    let returned: c_long;
    // SAFETY: the kernel's convention; the caller answers for what the call does.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") arguments[0] as c_long => returned,
            in("x1") arguments[1],
            in("x2") arguments[2],
            in("x3") arguments[3],
            in("x4") arguments[4],
            in("x5") arguments[5],
            options(nostack),
        );
    }
    returned
}

/// `call` with as many arguments as there are: numbers and pointers.
macro_rules! call {
    ($number:ident $(, $argument:expr)* $(,)?) => {{
        let mut arguments = [0; 6];
        let given = [$($argument as usize),*];
        arguments[..given.len()].copy_from_slice(&given);
        call(libc::$number, arguments)
    }};
}

/// The outcome of such a call that is passed no memory.
macro_rules! numbers {
    ($($call:tt)*) => {{
        // SAFETY: all are numbers.
        outcome(unsafe { call!($($call)*) })
    }};
}

/// A system call of the program's.
///
/// # Safety
///
/// As for the system call. It does not make a process or thread with a stack of its own.
pub unsafe fn system_call(number: c_long, arguments: [usize; 6]) -> Outcome {
    // SAFETY: as promised.
    outcome(unsafe { call(number, arguments) })
}

fn outcome(returned: c_long) -> Outcome {
    // The last 4095 numbers are errors; others may be addresses.
    if (-4095..0).contains(&returned) { Err(Errno((-returned) as c_int)) } else { Ok(returned as usize) }
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
    outcome(unsafe { call!(SYS_recvmsg, fd, &raw mut header, flags) })
}

/// sendmsg(2).
pub(crate) fn send(fd: c_int, parts: &mut [iovec], flags: c_int) -> Outcome {
    let header = header(parts);
    // SAFETY: as for `receive`.
    outcome(unsafe { call!(SYS_sendmsg, fd, &raw const header, flags) })
}

/// Consumes bytes that are there, without copying them.
pub(crate) fn discard(fd: c_int, bytes: usize) -> Outcome {
    let null = std::ptr::null_mut::<u8>();
    let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // SAFETY: with MSG_TRUNC the kernel writes nothing.
    outcome(unsafe { call!(SYS_recvfrom, fd, null, bytes, flags, std::ptr::null::<u8>(), std::ptr::null::<u8>()) })
}

/// Whether nothing more will come: the other end has said so, or there is an error.
pub(crate) fn has_ended(fd: c_int) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one pollfd, a limit, no signal mask.
    let ready = outcome(unsafe { call!(SYS_ppoll, &raw mut poll, 1, &raw const none, std::ptr::null::<u8>(), 0) });
    ready.is_ok_and(|ready| ready > 0)
}

/// Waits until there is something to read, or the end, as a read would: SO_RCVTIMEO, signals.
pub(crate) fn wait_readable(fd: c_int) -> Outcome {
    let mut byte = [0];
    receive(fd, &mut [part_mut(&mut byte)], libc::MSG_PEEK)
}

/// Waits until there is room to write, as a write would: SO_SNDTIMEO, and signals, of which those do not end it whose
/// handlers were set with SA_RESTART.
pub(crate) fn wait_writable(fd: c_int) -> Outcome {
    let mut limit: libc::timeval =
        option(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO).unwrap_or(libc::timeval { tv_sec: 0, tv_usec: 0 });
    let forever = limit.tv_sec == 0 && limit.tv_usec == 0;
    limit.tv_usec *= 1000;
    let limit = libc::timespec { tv_sec: limit.tv_sec, tv_nsec: limit.tv_usec };
    let limit: *const libc::timespec = if forever { std::ptr::null() } else { &raw const limit };
    loop {
        let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
        // SAFETY: one pollfd, and a limit or none; no signal mask.
        match outcome(unsafe { call!(SYS_ppoll, &raw mut poll, 1, limit, std::ptr::null::<u8>(), 0) }) {
            Ok(0) => return Err(AGAIN),
            // As the kernel: a write with a limit is not begun again.
            Err(INTERRUPTED) if forever && all_handlers_restart() => {}
            other => return other,
        }
    }
}

/// Waits so long, or until a signal comes.
pub(crate) fn pause(time: std::time::Duration) -> Result<(), Errno> {
    let time = libc::timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    // SAFETY: no descriptor, a limit, no signal mask.
    let ended = unsafe { call!(SYS_ppoll, std::ptr::null::<u8>(), 0, &raw const time, std::ptr::null::<u8>(), 0) };
    outcome(ended).map(drop)
}

/// What a fault of a thread itself raises: it interrupts no system call, and is not kept waiting.
pub(crate) const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Whether system calls begin again behind each handler of this process. Which signal has interrupted one is not known,
/// so it is not begun again where handlers differ.
fn all_handlers_restart() -> bool {
    /// The kernel's structure, which libc's is not.
    #[repr(C)]
    struct Action {
        handler: usize,
        flags: u64,
        restorer: usize,
        mask: u64,
    }
    (1..=64).filter(|signal| !FAULTS.contains(signal)).all(|signal: c_int| {
        let mut action = Action { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };
        // SAFETY: the kernel writes one.
        let got = unsafe { call!(SYS_rt_sigaction, signal, std::ptr::null::<u8>(), &raw mut action, size_of::<u64>()) };
        let handles = got == 0 && action.handler != libc::SIG_DFL && action.handler != libc::SIG_IGN;
        !handles || action.flags & libc::SA_RESTART as u64 != 0
    })
}

/// A page whose content each child of this process has as zeros. `None` if there is none: the kernel is older than
/// 4.14.
pub(crate) fn wiped_page() -> Option<*mut std::sync::atomic::AtomicU32> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: memory of its own, anywhere.
    let page = outcome(unsafe { call!(SYS_mmap, 0, 4096, access, flags, usize::MAX, 0) }).ok()?;
    match numbers!(SYS_madvise, page, 4096, libc::MADV_WIPEONFORK) {
        Ok(_) => Some(std::ptr::with_exposed_provenance_mut(page)),
        Err(_) => {
            let _ = numbers!(SYS_munmap, page, 4096);
            None
        }
    }
}

/// Whether it is a socket of TCP.
pub fn is_tcp(fd: c_int) -> bool {
    option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP)
}

/// Closes descriptors, as close_range(2).
pub fn close_range(first: libc::c_uint, last: libc::c_uint) -> c_int {
    numbers!(SYS_close_range, first, last, 0).map_or(-1, |_| 0)
}

/// A descriptor of a process, as pidfd_getfd(2).
pub fn get_descriptor(process: c_int, theirs: c_int, flags: libc::c_uint) -> Outcome {
    numbers!(SYS_pidfd_getfd, process, theirs, flags)
}

/// Whether operations on it do not wait.
pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    numbers!(SYS_fcntl, fd, libc::F_GETFL).is_ok_and(|flags| flags & libc::O_NONBLOCK as usize != 0)
}

/// An option of a socket. `T` is plain data of the kind that the kernel writes for it.
pub(crate) fn option<T: Copy>(fd: c_int, level: c_int, name: c_int) -> Result<T, Errno> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes; callers name plain data, for which zeros are valid.
    outcome(unsafe { call!(SYS_getsockopt, fd, level, name, value.as_mut_ptr(), &raw mut length) })?;
    // SAFETY: as above.
    Ok(unsafe { value.assume_init() })
}

/// Sets an option of a socket.
pub(crate) fn set_option(fd: c_int, level: c_int, name: c_int, value: c_int) -> Result<(), Errno> {
    // SAFETY: a pointer to an int, and its size.
    outcome(unsafe { call!(SYS_setsockopt, fd, level, name, &raw const value, size_of::<c_int>()) })?;
    Ok(())
}

/// An address of IPv4 of one end: this one, or the peer's; also of a socket of IPv6 that has such a connection.
pub(crate) fn address(fd: c_int, peer: bool) -> Option<std::net::Ipv4Addr> {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes.
    outcome(unsafe {
        if peer {
            call!(SYS_getpeername, fd, storage.as_mut_ptr(), &raw mut length)
        } else {
            call!(SYS_getsockname, fd, storage.as_mut_ptr(), &raw mut length)
        }
    })
    .ok()?;
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
    outcome(unsafe { call!(SYS_ioctl, fd, request, &raw mut count) })?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Ends both directions: what was done to the connection cannot be understood.
pub(crate) fn shut_down(fd: c_int) {
    let _ = numbers!(SYS_shutdown, fd, libc::SHUT_RDWR);
}

/// A file of zeros in memory, which does not shrink; its descriptor is from a number on, if possible, and stays open
/// across `exec`.
pub(crate) fn memory_file(name: &CStr, bytes: usize, from: c_int) -> Option<c_int> {
    // SAFETY: a name.
    let make = |flags: libc::c_uint| outcome(unsafe { call!(SYS_memfd_create, name.as_ptr(), flags) });
    // Since 6.3 Linux logs a call that does not say whether the file may be run; older kernels refuse the flag.
    let made = make(libc::MFD_ALLOW_SEALING | libc::MFD_NOEXEC_SEAL).or_else(|_| make(libc::MFD_ALLOW_SEALING));
    let low = made.ok()? as c_int;
    let file = numbers!(SYS_fcntl, low, libc::F_DUPFD, from);
    close(low);
    let file = file.ok()? as c_int;
    let sized = numbers!(SYS_ftruncate, file, bytes)
        .and_then(|_| numbers!(SYS_fcntl, file, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK));
    if sized.is_err() {
        close(file);
    }
    sized.ok().map(|_| file)
}

/// Whether a file in memory does not shrink.
pub(crate) fn does_not_shrink(file: c_int) -> bool {
    numbers!(SYS_fcntl, file, libc::F_GET_SEALS).is_ok_and(|seals| seals & libc::F_SEAL_SHRINK as usize != 0)
}

/// Closes a descriptor of ours.
pub(crate) fn close(fd: c_int) {
    let _ = numbers!(SYS_close, fd);
}

/// Has a descriptor closed by `exec`.
pub(crate) fn close_at_exec(fd: c_int) {
    let _ = numbers!(SYS_fcntl, fd, libc::F_SETFD, libc::FD_CLOEXEC);
}

/// What the system says of an open file.
pub(crate) fn status(fd: c_int) -> Option<libc::stat> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel writes one.
    outcome(unsafe { call!(SYS_fstat, fd, status.as_mut_ptr()) }).ok()?;
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

/// Unmaps memory that is not used any more.
pub(crate) fn unmap(memory: *mut [u8]) {
    // SAFETY: callers have mapped it, and nothing refers to it.
    unsafe { libc::munmap(memory.cast(), memory.len()) };
}

/// read(2) or pread(2) from a file.
pub(crate) fn read_file(fd: c_int, at: Option<i64>, bytes: &mut [u8]) -> Outcome {
    // SAFETY: the slice is valid for writes.
    outcome(unsafe {
        match at {
            Some(at) => call!(SYS_pread64, fd, bytes.as_mut_ptr(), bytes.len(), at),
            None => call!(SYS_read, fd, bytes.as_mut_ptr(), bytes.len()),
        }
    })
}

/// Sends from a file to a socket: from an offset, which is moved, or from the file's place.
pub(crate) fn send_file(fd: c_int, file: c_int, at: Option<&mut i64>, count: usize) -> Outcome {
    let at = at.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: an offset, or none.
    outcome(unsafe { call!(SYS_sendfile, fd, file, at, count) })
}

/// Moves the place of a file back by so many bytes.
pub(crate) fn seek_back(fd: c_int, bytes: usize) {
    let _ = numbers!(SYS_lseek, fd, -(bytes as i64), libc::SEEK_CUR);
}

/// The users of this process: real, effective, saved.
pub(crate) fn users() -> [libc::uid_t; 3] {
    let mut users = [0; 3];
    let [real, effective, saved] = users.each_mut();
    // SAFETY: three numbers.
    let _ = outcome(unsafe { call!(SYS_getresuid, real as *mut _, effective as *mut _, saved as *mut _) });
    users
}

/// Puts a socket that has no connection in the place of a descriptor: reads and writes fail from now on, also in
/// programs that inherit it, and the connection itself stays as it is for other processes.
pub(crate) fn disconnect(fd: c_int) {
    let marks = numbers!(SYS_fcntl, fd, libc::F_GETFD).unwrap_or(0);
    let marks = if marks & libc::FD_CLOEXEC as usize == 0 { 0 } else { libc::O_CLOEXEC };
    let socket = numbers!(SYS_socket, libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
    let Ok(socket) = socket else {
        // No descriptor is left.
        return close(fd);
    };
    let _ = numbers!(SYS_dup3, socket, fd, marks);
    close(socket as c_int);
}

/// Puts zeros, which are this process's own, in the place of memory that it has in common with others.
pub(crate) fn leave(memory: *mut [u8]) {
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: the caller has mapped it; what other threads read there from now on are zeros.
    let _ = outcome(unsafe { call!(SYS_mmap, memory.cast::<u8>(), memory.len(), access, flags, usize::MAX, 0) });
}

thread_local! {
    /// This thread, once it has been asked for.
    static THREAD: Cell<Option<Owner>> = const { Cell::new(None) };
}

/// This thread, as the holder of a lock.
pub(crate) fn thread() -> Owner {
    THREAD.get().unwrap_or_else(|| {
        let number = numbers!(SYS_gettid).unwrap_or(0) as u32;
        // Handlers of signals get here, too: nothing here asks for memory.
        let own = Owner::new(number, started(number).flatten().unwrap_or(0));
        THREAD.set(Some(own));
        own
    })
}

/// This thread is another one now, in a child.
pub(crate) fn forget_thread() {
    THREAD.set(None);
}

/// When a thread started, in ticks of the system, as far as they fit; `None` if the system does not say, and `None`
/// inside if it has ended.
fn started(thread: u32) -> Option<Option<u32>> {
    let (mut path, mut line) = ([0u8; 32], [0u8; 512]);
    {
        use std::io::Write;
        write!(&mut path[..], "/proc/{thread}/stat").ok()?;
    }
    // SAFETY: a path that ends with a zero.
    let file = outcome(unsafe { call!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC, 0) })
        .ok()? as c_int;
    let read = read_file(file, None, &mut line);
    close(file);
    start_of(&line[..read.ok()?])
}

/// When a thread started, by its line of the system's.
fn start_of(line: &[u8]) -> Option<Option<u32>> {
    // The name, in brackets, may have any bytes.
    let behind = line.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = line[behind..].split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    let state = fields.next()?;
    // Behind the third field, the state, the 22nd.
    let started = std::str::from_utf8(fields.nth(18)?).ok()?.parse::<u64>().ok()?;
    Some((!matches!(state, b"Z" | b"X")).then_some(started as u32))
}

/// How long a waiter sleeps for a lock until it looks whether the holder is there.
static STEP: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: if cfg!(test) { 1 } else { 50 } * 1_000_000 };

impl Word for AtomicU64 {
    fn load(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    fn replace(&self, from: u64, to: u64) -> bool {
        self.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn sleep(&self, word: u64) -> Slept {
        let none = std::ptr::null::<u8>();
        // The half with the thread's number and the mark, which is the first one on these machines.
        // SAFETY: a word and a limit, both valid.
        let slept = outcome(unsafe {
            call!(SYS_futex, self.as_ptr(), libc::FUTEX_WAIT, word as u32, &raw const STEP, none, 0)
        });
        if slept == Err(Errno(libc::ETIMEDOUT)) { Slept::Out } else { Slept::Woken }
    }

    fn wake(&self, all: bool) {
        let count = if all { c_int::MAX } else { 1 };
        // SAFETY: a valid word.
        let _ = outcome(unsafe { call!(SYS_futex, self.as_ptr(), libc::FUTEX_WAKE, count) });
    }

    fn is_alive(&self, owner: Owner) -> bool {
        match started(owner.thread()) {
            Some(Some(started)) if owner.started() != 0 => started == owner.started(),
            Some(started) => started.is_some(),
            // Nothing is said: of no thread, or of this one not to this process.
            None => numbers!(SYS_kill, owner.thread(), 0) != Err(Errno(libc::ESRCH)),
        }
    }
}

#[cfg(target_endian = "big")]
compile_error!("the first half of a lock's word is that with the thread's number on machines of little endian only");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_a_thread_started_is_read_behind_its_name() {
        let line = b"7 (a) b) (c) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 9 10";
        assert_eq!(start_of(line), Some(Some(123_456)));
        let ended = line.iter().map(|byte| if *byte == b'S' { b'Z' } else { *byte }).collect::<Vec<_>>();
        assert_eq!((start_of(&ended), start_of(b"7 (a"), start_of(b"7 (a) S 1")), (Some(None), None, None));
        let own = thread();
        assert_ne!((own.thread(), own.started()), (0, 0));
        let word = AtomicU64::new(0);
        assert!(word.is_alive(own) && word.is_alive(Owner::new(own.thread(), 0)));
        assert!(!word.is_alive(Owner::new(own.thread(), own.started() ^ 1)), "the same number, used again");
        assert!(!word.is_alive(Owner::new(0x3f_ffff, own.started())), "no thread has this number");
    }
}
