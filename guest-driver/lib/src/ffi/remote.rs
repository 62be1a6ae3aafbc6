// SPDX-License-Identifier: MIT OR Apache-2.0
//! Imports: single loads and stores, and locks.

use super::{Window, call, fill, get_or, give, given, name_of, secret_of, take, with};
use crate::{ImportBuilder, Node, Remote, Result, Rights, State, Status};
use std::ffi::{c_char, c_int};
use std::time::Duration;

c_record! { IMPORT_STATE, "tg_state",
    /// The state of an import.
    pub struct ImportState {
        /// 1 while stores are faster than the network: the next one waits.
        pub congested: u8,
        /// 1 after a store was lost, until tg_acknowledge; later stores are dropped.
        pub cut: u8,
        /// 1 if it is gone for good: touching it raises SIGBUS. Import it again.
        pub dead: u8,
        /// 1 if loads and stores are the owner's memory itself: see tg_export_options.group.
        pub direct: u8,
        /// The first error since the last tg_acknowledge: TG_ERR_*, or TG_OK.
        pub status: u32,
    }
}

/// Stores the state of an import.
///
/// # Safety
/// As the module says.
pub(super) unsafe fn state_of(state: *mut ImportState, action: impl FnOnce() -> Result<State>) -> c_int {
    let state_of = || {
        let found = action()?;
        Ok(ImportState {
            congested: found.congested.into(),
            cut: found.cut.into(),
            dead: found.dead.into(),
            direct: found.direct.into(),
            status: found.error.unwrap_or(Status::Ok) as u32,
        })
    };
    // SAFETY: the caller's promise.
    unsafe { fill(state, "the place for the state", state_of) }
}

/// How to import a segment, from C's arguments.
///
/// # Safety
/// As the module says.
unsafe fn import(
    node: *const Node,
    id: u16,
    name: *const c_char,
    rights: u16,
    secret: *const u8,
) -> Result<ImportBuilder> {
    // SAFETY: the caller's promise.
    let builder = unsafe { given(node)?.import(id, name_of(name)?).secret(secret_of(secret)) };
    Ok(with(builder, Rights(rights), ImportBuilder::rights))
}

c_functions! { IMPORTS;
    /// Imports a segment of a node for the rights TG_RIGHT_*; 0 means loads, stores, atomics and copies. The secret has
    /// 16 bytes, or is NULL.
    fn tg_import(
        node: *const Node, id: u16, name: *const c_char, rights: u16, secret: *const u8, remote: *mut *mut Remote
    ) -> c_int = give(remote, || import(node, id, name, rights, secret)?.open());

    /// The same, of an import that raises no SIGBUS when its owner is gone: stores then reach no node, loads return
    /// anything, launches fail, and tg_remote_state says so.
    fn tg_import_soft(
        node: *const Node, id: u16, name: *const c_char, rights: u16, secret: *const u8, remote: *mut *mut Remote
    ) -> c_int = give(remote, || import(node, id, name, rights, secret)?.soft().open());

    /// Closes an import after its outstanding stores.
    fn tg_unimport(remote: *mut Remote) -> c_int = take(remote, Remote::close);

    /// Where the window of an import lies: for aligned words of 1, 2, 4 or 8 bytes, never for memcpy.
    fn tg_remote_window(remote: *const Remote) -> Window =
        Window(get_or(remote, std::ptr::null_mut(), |r| r.as_ptr().cast()));

    /// Bytes of an import.
    fn tg_remote_size(remote: *const Remote) -> u64 = get_or(remote, 0, Remote::size);
}

words! { WORDS(remote: *const Remote, offset);
    [call(remote, |r| r.put(offset, value))]
    /// Stores with one instruction, and returns before the other node has the value.
    tg_put8(value: u8);
    /// See tg_put8.
    tg_put16(value: u16);
    /// See tg_put8.
    tg_put32(value: u32);
    /// See tg_put8.
    tg_put64(value: u64);
    [fill(value, "the place for the value", || given(remote)?.get(offset))]
    /// Loads with one instruction, behind all earlier stores to that node. All ones may mean that it failed: see
    /// tg_state_of.
    tg_get8(value: *mut u8);
    /// See tg_get8.
    tg_get16(value: *mut u16);
    /// See tg_get8.
    tg_get32(value: *mut u32);
    /// See tg_get8.
    tg_get64(value: *mut u64);
}

c_functions! { QUIET;
    /// Returns when every earlier store to this import has been performed and acknowledged.
    fn tg_quiet(remote: *const Remote) -> c_int = call(remote, Remote::quiet);

    /// tg_quiet that fails with -EAGAIN after so many nanoseconds; it may be called again.
    fn tg_quiet_timeout(remote: *const Remote, nanoseconds: u64) -> c_int =
        call(remote, |r| r.quiet_timeout(Duration::from_nanos(nanoseconds)));
}

c_functions! { STATE;
    /// The state of an import.
    fn tg_state_of(remote: *const Remote, state: *mut ImportState) -> c_int =
        state_of(state, || given(remote)?.state());

    /// Clears the latched error of an import and accepts stores again after a cut. Lost stores stay lost.
    fn tg_acknowledge(remote: *const Remote) -> c_int = call(remote, Remote::acknowledge);
}
