// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranges: granted memory that a process had before, whose pages of 4 KiB to 1 GiB are scattered.
//!
//! A range has [`UNITS`] export page numbers of its own, from [`first_page`] of its number on. They are numbers
//! only: the board has one entry for the range, and a list of its *runs*, which are adjacent for DMA. A page of an
//! access is the byte's place in the range divided by the unit, whatever the size of the memory's pages.

c_consts! {
    /// Numbers of ranges for the C header.
    pub ALL: u64, prefix "TG_RANGE_" {
        /// First export page number of range 0. Those below are granted by TG_ADMIN_GRANT_SET.
        PAGE = 0x8000_0000,
        /// Export page numbers of each range: it has at most 16 GiB.
        UNITS = 0x4_0000,
        /// Number of ranges.
        COUNT = 4096,
        /// Most runs in the list of one TG_ADMIN_GRANT_RANGE.
        LIST = 4096,
        /// Least bytes of a run, except for the first and the last of a range.
        RUN_MIN = 4096,
    }
}

/// Bytes of a range, at most.
pub const MAX_BYTES: u64 = UNITS * crate::UNIT;

macro_rules! run_struct {
    (run $($rest:tt)*) => {
        c_struct! { LITTLE {} $($rest)* }
    };
}

c_structs! {
    /// The structures of lists.
    pub STRUCTS, run_struct;

    /// A run in the list of TG_ADMIN_GRANT_RANGE.
    run pub struct Run as "tg_range_run" {
        /// DMA address, of any alignment.
        pub address: u64,
        /// Bytes.
        pub length: u64,
    }
}

const _: () = assert!(LIST as usize * size_of::<Run>() == crate::MAX_BLOCK);

/// The number of the range to which an export page belongs; `None` if it is a page by itself.
pub const fn number(page: u32) -> Option<u32> {
    match page.checked_sub(PAGE as u32) {
        Some(at) if at < (COUNT * UNITS) as u32 => Some(at / UNITS as u32),
        _ => None,
    }
}

/// The first export page number of a range.
pub const fn first_page(number: u32) -> u32 {
    PAGE as u32 + number * UNITS as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_divide_their_numbers() {
        assert_eq!((number(0), number(PAGE as u32 - 1), number(u32::MAX)), (None, None, None));
        for range in [0, 1, COUNT as u32 - 1] {
            let first = first_page(range);
            assert_eq!((number(first), number(first + UNITS as u32 - 1)), (Some(range), Some(range)));
        }
        assert_eq!(number(first_page(COUNT as u32 - 1) + UNITS as u32), None);
    }
}
