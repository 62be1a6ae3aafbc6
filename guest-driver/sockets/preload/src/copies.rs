// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that copy descriptors: a copy of a connection's is that connection, and may be a standard stream's.

use crate::descriptors::quietly;
use crate::fail;
use crate::next::{aliases, replaced};
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

/// The same, where `new` is the program's wish; a descriptor of ours is not to be had.
fn copied_to(old: c_int, new: c_int, next: impl FnOnce() -> c_int) -> c_int {
    if is_own_descriptor(new) {
        fail(libc::EBADF);
        return -1;
    }
    copied(old, next())
}

replaced! {
    pub(crate) fn dup(old: c_int) -> c_int = |next| copied(old, next());
    pub(crate) fn dup2(old: c_int, new: c_int) -> c_int = |next| copied_to(old, new, next);
    pub(crate) fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int = |next| copied_to(old, new, next);
}

/// Whether a descriptor is to be marked, by a program that does not know it, that is to stay open across exec.
fn is_kept(fd: c_int, command: c_int) -> bool {
    command == libc::F_SETFD && is_own_descriptor(fd)
}

/// Functions with commands for a descriptor. Only some commands have a third argument; the others ignore its value.
macro_rules! commanding {
    ($($name:ident),*) => { replaced! { $(
        pub(crate) fn $name(fd: c_int, command: c_int, argument: c_ulong) -> c_int = |next| {
            if is_kept(fd, command) {
                return 0;
            }
            let returned = next();
            if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) { copied(fd, returned) } else { returned }
        };
    )* } };
}

commanding!(fcntl, fcntl64);

aliases! {
    __dup2 = dup2(old: c_int, new: c_int) -> c_int;
    __fcntl = fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
}
