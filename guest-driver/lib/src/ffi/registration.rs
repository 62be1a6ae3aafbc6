// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registered memory.

use super::segment::{ExportOptions, access_of};
use super::{get_or, give, given, name_of, take};
use crate::{Node, Registration, Remote};
use std::ffi::{c_char, c_int, c_void};

c_functions! { REGISTRATIONS;
    /// Registers memory of the process, of any alignment and 1 byte to 16 GiB: for copies (tg_registration_remote), and
    /// for other nodes under a name, unless that is NULL. The options' group is not used. The memory is writable, and
    /// anonymous, of huge pages, or of a file in memory; it stays pinned until tg_unregister.
    fn tg_register(
        node: *const Node, memory: *mut c_void, size: u64, name: *const c_char, options: *const ExportOptions, registration: *mut *mut Registration
    ) -> c_int = give(registration, || {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        // What C promises: it accesses the memory accordingly.
        let mut builder = given(node)?.register(std::ptr::slice_from_raw_parts_mut(memory.cast(), size));
        if !name.is_null() {
            builder = builder.name(name_of(name)?);
        }
        builder.access(access_of(options)?).create()
    });

    /// Ends a registration; returns when nothing can reach the memory by it.
    fn tg_unregister(registration: *mut Registration) -> c_int = take(registration, Registration::close);

    /// A registration as an import of its own node, for copies and atomics; offsets count from its first byte. It
    /// belongs to the registration: do not close it.
    fn tg_registration_remote(registration: *const Registration) -> *const Remote =
        get_or(registration, std::ptr::null(), |r| std::ptr::from_ref(r.remote()));

    /// 1 if a registration still is the memory at its address, 0 after that was unmapped or discarded: then copies of
    /// it fail, and its pages are no longer pinned.
    fn tg_registration_alive(registration: *const Registration) -> c_int =
        super::call(registration, |r| Ok(c_int::from(r.is_alive()?)));
}
