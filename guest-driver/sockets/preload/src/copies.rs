// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that copy descriptors: a copy of a connection's is that connection, and may be a standard stream's.

use crate::descriptors::quietly;
use crate::fail;
use crate::next::next;
use crate::streams::take;
use libc::{c_int, c_ulong};
use telegraphos_sockets::{duplicated, is_own_descriptor};

fn copied(old: c_int, new: c_int) -> c_int {
    if new >= 0 {
        quietly(|| {
            duplicated(old, new);
            if new <= libc::STDERR_FILENO {
                take(new);
            }
        });
    }
    new
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn dup(old: c_int) -> c_int {
    let new = next!(dup(old: c_int) -> c_int);
    copied(old, new)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    if is_own_descriptor(new) {
        fail(libc::EBADF);
        return -1;
    }
    copied(old, next!(dup2(old: c_int, new: c_int) -> c_int))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if is_own_descriptor(new) {
        fail(libc::EBADF);
        return -1;
    }
    copied(old, next!(dup3(old: c_int, new: c_int, flags: c_int) -> c_int))
}

/// Whether a descriptor is to be marked, by a program that does not know it, that is to stay open across exec.
fn is_kept(fd: c_int, command: c_int) -> bool {
    command == libc::F_SETFD && is_own_descriptor(fd)
}

/// Functions with commands for a descriptor. Only some commands have a third argument; the others ignore its value.
macro_rules! commanding {
    ($($name:ident),*) => { $(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
            if is_kept(fd, command) {
                return 0;
            }
            let returned = next!($name(fd: c_int, command: c_int, argument: c_ulong) -> c_int);
            if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) { copied(fd, returned) } else { returned }
        }
    )* };
}

commanding!(fcntl, fcntl64);

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: as ours.
    unsafe { dup2(old, new) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: as ours.
    unsafe { fcntl(fd, command, argument) }
}
