// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that ask for, and set, properties of descriptors.

use crate::next::next;
use crate::{fail, returned};
use libc::{c_int, c_ulong, c_void, socklen_t};
use telegraphos_sockets::{available, is_tracked, option_of, refuse, set_option_of};

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let asked = request == libc::FIONREAD && is_tracked(fd);
    if let Some(outcome) = asked.then(|| available(fd)).flatten() {
        let bytes = returned(outcome);
        if bytes >= 0 {
            // SAFETY: the program's number.
            unsafe { argument.cast::<c_int>().write_unaligned(bytes as c_int) };
            return 0;
        }
        return -1;
    }
    next!(ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    // It reads, into pages of the program's.
    const TCP_ZEROCOPY_RECEIVE: c_int = 35;
    if level == libc::IPPROTO_TCP && name == TCP_ZEROCOPY_RECEIVE && !refuse(fd) {
        fail(libc::ENOPROTOOPT);
        return -1;
    }
    let got = next!(getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        length: *mut socklen_t
    ) -> c_int);
    if let Some(known) = Some(fd).filter(|fd| got == 0 && is_tracked(*fd)).and_then(|fd| option_of(fd, level, name)) {
        // SAFETY: the kernel has written as many bytes there.
        unsafe {
            if *length as usize == size_of::<c_int>() {
                value.cast::<c_int>().write_unaligned(known);
            }
        }
    }
    got
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    if is_tracked(fd) {
        // What makes bytes pass in other ways: the connection stays as it is, or the option is refused.
        let other = match level {
            libc::SOL_SOCKET => {
                [libc::SO_OOBINLINE, libc::SO_ZEROCOPY, libc::SO_PEEK_OFF, libc::SO_RCVLOWAT].contains(&name)
            }
            libc::IPPROTO_TCP => [libc::TCP_ULP, libc::TCP_REPAIR].contains(&name),
            _ => false,
        };
        if other && !refuse(fd) {
            fail(libc::ENOPROTOOPT);
            return -1;
        }
        if length as usize == size_of::<c_int>() && !value.is_null() {
            // SAFETY: the program's number.
            let wanted = unsafe { value.cast::<c_int>().read_unaligned() };
            if set_option_of(fd, level, name, wanted) {
                return 0;
            }
        }
    }
    next!(setsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        length: socklen_t
    ) -> c_int)
}
