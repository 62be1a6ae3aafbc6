// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process's own page on the board (BAR2, one unit per context) and its status page in guest memory.
//!
//! `quiet` (the papers' FENCE, s1; SPEC item 27): the process stores `import << 48 | cookie` to `QUIET[k]`. When every
//! earlier store of that import (or, with import `ffff`, of the whole context) is performed at its destination and
//! acknowledged (SPEC E19), the HIB writes `status << 48 | cookie` to `quiet[k]` of the status page. Reaching the HIB
//! on the same path as the stores, a `QUIET` store never passes them. While an import has an unacknowledged
//! (latched) error, its status is reported.

/// Number of quiet slots per context.
pub const QUIET_SLOTS: usize = 64;
/// Bits of the cookie.
pub const COOKIE_BITS: u32 = 48;

c_consts! {
    /// Context page layout for the C header.
    pub ALL: u64, prefix "TG_CONTEXT_" {
        /// Number of contexts.
        COUNT = 256,
        /// Offset of quiet slot 0 in the context page; slot k is 8 * k further.
        QUIET = 0,
        /// Quiet slots per context.
        QUIET_COUNT = 64,
        /// Import number that means the whole context.
        QUIET_ALL = 0xffff,
        /// Size of the status page in bytes.
        STATUS_SIZE = 4096,
    }
}

c_struct! {
    /// The status page: written by the HIB, one 8-byte word at a time with release ordering, read by the process.
    pub struct StatusPage as "tg_status_page" {
        /// Last completed quiet of each slot: `status << 48 | cookie`.
        pub quiet: [u64; 64] = "__u64[64]",
        /// Number of errors latched on imports of this context.
        pub errors: u64 = "__u64",
        /// Zero.
        pub reserved: [u64; 447] = "__u64[447]",
    }
}

const _: () = assert!(size_of::<StatusPage>() == STATUS_SIZE as usize);
