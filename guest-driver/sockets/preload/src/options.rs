// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that ask for, and set, properties of descriptors.

use crate::next::replaced;
use crate::{fail, returned};
use libc::{c_int, c_ulong, c_void, socklen_t};
use telegraphos_sockets::{available, is_tracked, option_of, refuse, set_option_of};

replaced! {
    pub(crate) fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int = |next| {
        let asked = request == libc::FIONREAD && is_tracked(fd);
        let Some(outcome) = asked.then(|| available(fd)).flatten() else { return next() };
        let bytes = returned(outcome);
        if bytes < 0 {
            return -1;
        }
        argument.cast::<c_int>().write_unaligned(bytes as c_int);
        0
    };

    pub(crate) fn getsockopt(
        fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t
    ) -> c_int = |next| {
        // It reads, into pages of the program's.
        const TCP_ZEROCOPY_RECEIVE: c_int = 35;
        if level == libc::IPPROTO_TCP && name == TCP_ZEROCOPY_RECEIVE && !refuse(fd) {
            fail(libc::ENOPROTOOPT);
            return -1;
        }
        let got = next();
        let known = Some(fd).filter(|fd| got == 0 && is_tracked(*fd)).and_then(|fd| option_of(fd, level, name));
        // The kernel has written as many bytes there.
        if let Some(known) = known.filter(|_| *length as usize == size_of::<c_int>()) {
            value.cast::<c_int>().write_unaligned(known);
        }
        got
    };

    pub(crate) fn setsockopt(
        fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t
    ) -> c_int = |next| {
        if !is_tracked(fd) {
            return next();
        }
        // What makes bytes pass in other ways: the connection stays as it is, or the option is refused.
        let other = match level {
            libc::SOL_SOCKET => {
                [libc::SO_OOBINLINE, libc::SO_ZEROCOPY, libc::SO_PEEK_OFF, libc::SO_RCVLOWAT].contains(&name)
            }
            libc::IPPROTO_TCP => [libc::TCP_ULP, libc::TCP_REPAIR].contains(&name),
            _ => false,
        };
        if other && !refuse(fd) {
            if level == libc::SOL_SOCKET && name == libc::SO_RCVLOWAT {
                // The kernel would wait for so many bytes that announce others. Without it the connection is readable
                // from the first byte on, as it is where a kernel does not ask for the option.
                return 0;
            }
            fail(libc::ENOPROTOOPT);
            return -1;
        }
        let is_number = length as usize == size_of::<c_int>() && !value.is_null();
        if is_number && set_option_of(fd, level, name, value.cast::<c_int>().read_unaligned()) {
            return 0;
        }
        next()
    };
}
