// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that make the process another user's.

use crate::next::replaced;
use libc::{c_int, uid_t};
use telegraphos_sockets::user_has_changed;

pub(crate) fn changed<T: Default + PartialEq>(returned: T) -> T {
    if returned == T::default() {
        user_has_changed();
    }
    returned
}

replaced! {
    fn setuid(user: uid_t) -> c_int = |next| changed(next());
    fn seteuid(user: uid_t) -> c_int = |next| changed(next());
    fn setreuid(real: uid_t, effective: uid_t) -> c_int = |next| changed(next());
    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int = |next| changed(next());
}
