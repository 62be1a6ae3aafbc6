// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that make the process another user's.

use crate::next::next;
use libc::{c_int, uid_t};
use telegraphos_sockets::user_has_changed;

fn changed(returned: c_int) -> c_int {
    if returned == 0 {
        user_has_changed();
    }
    returned
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setuid(user: uid_t) -> c_int {
    changed(next!(setuid(user: uid_t) -> c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn seteuid(user: uid_t) -> c_int {
    changed(next!(seteuid(user: uid_t) -> c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setreuid(real: uid_t, effective: uid_t) -> c_int {
    changed(next!(setreuid(real: uid_t, effective: uid_t) -> c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int {
    changed(next!(setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int))
}
