// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls by their numbers, processes that are made past `fork`, and libraries that are loaded.

use crate::copies::{dup, dup2, dup3, fcntl};
use crate::descriptors::{accept, accept4, close_range, closing, connect, pidfd_getfd, socket};
use crate::next::{aliases, next, replaced};
use crate::options::{getsockopt, ioctl, setsockopt};
use crate::reading::{preadv2, read, readv, recvfrom, recvmmsg, recvmsg};
use crate::users::changed;
use crate::writing::{pwritev2, sendfile, sendmmsg, sendmsg, sendto, splice, write, writev};
use crate::{fail, returned};
use libc::{c_char, c_int, c_long, c_void, pid_t};
use telegraphos_sockets::{forked, forking, is_tracked, retire, system_call};

/// A system call by its number: what is done to connections above is done to them here. There is no ring of the
/// kernel's (`io_uring`), which reads and writes past all functions: programs have another way where a kernel has none.
///
/// All others are made at once, without libc: allocators of memory make some while they begin, when the dynamic loader
/// cannot be asked for a function, since it would ask for memory.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: as the program calls it.
    let raw = || returned(unsafe { system_call(number, [a, b, c, d, e, f]) }) as c_long;
    let call = || next!(syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long);
    let fd = a as c_int;
    // SAFETY: as the program calls these system calls, which take what the functions take.
    unsafe {
        match number {
            libc::SYS_close => closing(fd, raw),
            libc::SYS_close_range => close_range(a as _, b as _, c as _).into(),
            libc::SYS_socket => socket(fd, b as _, c as _).into(),
            libc::SYS_connect => connect(fd, b as _, c as _).into(),
            libc::SYS_accept => accept(fd, b as _, c as _).into(),
            libc::SYS_accept4 => accept4(fd, b as _, c as _, d as _).into(),
            libc::SYS_dup => dup(fd).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => dup2(fd, b as _).into(),
            libc::SYS_dup3 => dup3(fd, b as _, c as _).into(),
            libc::SYS_fcntl => fcntl(fd, b as _, c as _).into(),
            libc::SYS_pidfd_getfd => pidfd_getfd(fd, b as _, c as _).into(),
            libc::SYS_seccomp => {
                retire(FILTER);
                raw()
            }
            libc::SYS_prctl if confines(a) => {
                retire(FILTER);
                raw()
            }
            libc::SYS_io_uring_setup => {
                fail(libc::ENOSYS);
                -1
            }
            // Of the thread alone, which may be the only one.
            libc::SYS_setuid | libc::SYS_setreuid | libc::SYS_setresuid => changed(raw()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork => as_forked(raw),
            libc::SYS_clone if a & libc::CLONE_VM as usize == 0 => as_forked(raw),
            // Its first argument is a structure that begins with the flags.
            libc::SYS_clone3 if a != 0 && *(a as *const u64) & libc::CLONE_VM as u64 == 0 => as_forked(raw),
            // The other process may have another stack, where this function could not return.
            #[cfg(target_arch = "x86_64")]
            libc::SYS_vfork => call(),
            libc::SYS_clone | libc::SYS_clone3 => call(),
            libc::SYS_sendmsg => sendmsg(fd, b as _, c as _) as c_long,
            libc::SYS_sendmmsg => sendmmsg(fd, b as _, c as _, d as _).into(),
            libc::SYS_splice => splice(fd, b as _, c as _, d as _, e, f as _) as c_long,
            _ if !is_tracked(fd) => raw(),
            libc::SYS_read => read(fd, b as _, c) as c_long,
            libc::SYS_readv => readv(fd, b as _, c as _) as c_long,
            libc::SYS_preadv2 => preadv2(fd, b as _, c as _, d as _, f as _) as c_long,
            libc::SYS_recvfrom => recvfrom(fd, b as _, c, d as _, e as _, f as _) as c_long,
            libc::SYS_recvmsg => recvmsg(fd, b as _, c as _) as c_long,
            libc::SYS_recvmmsg => recvmmsg(fd, b as _, c as _, d as _, e as _).into(),
            libc::SYS_write => write(fd, b as _, c) as c_long,
            libc::SYS_writev => writev(fd, b as _, c as _) as c_long,
            libc::SYS_pwritev2 => pwritev2(fd, b as _, c as _, d as _, f as _) as c_long,
            libc::SYS_sendto => sendto(fd, b as _, c, d as _, e as _, f as _) as c_long,
            libc::SYS_sendfile => sendfile(fd, b as _, c as _, d) as c_long,
            libc::SYS_ioctl => ioctl(fd, b as _, c as _).into(),
            libc::SYS_getsockopt => getsockopt(fd, b as _, c as _, d as _, e as _).into(),
            libc::SYS_setsockopt => setsockopt(fd, b as _, c as _, d as _, e as _).into(),
            _ => raw(),
        }
    }
}

/// Makes a process, as `fork` does.
fn as_forked(call: impl FnOnce() -> c_long) -> c_long {
    forking();
    let returned = call();
    if returned == 0 {
        forked();
    }
    returned
}

const FILTER: &str = "a filter of system calls is set";

/// Whether these arguments of prctl(2) confine this process to some system calls.
fn confines(option: usize) -> bool {
    option == libc::PR_SET_SECCOMP as usize
}

replaced! {
    /// All have five arguments if the option needs them.
    fn prctl(option: c_int, b: usize, c: usize, d: usize, e: usize) -> c_int = |next| {
        if confines(option as usize) {
            retire(FILTER);
        }
        next()
    };

    /// With `RTLD_DEEPBIND` a library finds libc's functions before ours. The dynamic loader looks for the library
    /// where the object that calls it says (`RUNPATH`), which it knows by the address that it returns to: this has to
    /// end with a jump, so it has nothing to do after that (`tests/loading.rs`).
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void = |next| {
        if flags & libc::RTLD_DEEPBIND != 0 {
            retire("a library is loaded that finds libc first (RTLD_DEEPBIND)");
        }
        next()
    };

    /// The same as `fork` without what is registered with `pthread_atfork`: a handler of a signal may call it.
    fn _Fork() -> pid_t = |next| {
        let returned = next();
        if returned == 0 {
            forked();
        }
        returned
    };
}

type Begin = unsafe extern "C" fn(*mut c_void) -> c_int;

/// What a process begins with that `clone` makes.
struct Child {
    begin: Begin,
    argument: *mut c_void,
}

unsafe extern "C" fn begin(child: *mut c_void) -> c_int {
    forked();
    // SAFETY: of `clone` below, in the memory that this process has a copy of.
    let child = unsafe { &*child.cast::<Child>() };
    // SAFETY: the program's function.
    unsafe { (child.begin)(child.argument) }
}

// All have seven arguments if the flags need them.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn clone(
    function: Option<Begin>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: usize,
    local: usize,
    child: usize,
) -> c_int {
    let next = |function: Option<Begin>, argument: *mut c_void| {
        next!(clone(
            function: Option<Begin>,
            stack: *mut c_void,
            flags: c_int,
            argument: *mut c_void,
            parent: usize,
            local: usize,
            child: usize
        ) -> c_int)
    };
    match function {
        Some(function) if flags & libc::CLONE_VM == 0 => {
            forking();
            let mut own = Child { begin: function, argument };
            next(Some(begin), (&raw mut own).cast())
        }
        _ => next(function, argument),
    }
}

aliases! {
    __clone = clone(
        function: Option<Begin>, stack: *mut c_void, flags: c_int, argument: *mut c_void,
        parent: usize, local: usize, child: usize
    ) -> c_int;
}
