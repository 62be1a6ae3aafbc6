// SPDX-License-Identifier: MIT OR Apache-2.0
//! Access counters.

use super::{call, fill, give, given, limit, take};
use crate::{PageCounter, Remote};
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};

c_record! { COUNT, "tg_count",
    /// The values of page access counters.
    pub struct CountState {
        /// Reads left until the event.
        pub reads: u64,
        /// Writes left until the event.
        pub writes: u64,
        /// 1 if the reads have gone from 1 to 0.
        pub reads_fired: u8,
        /// 1 if the writes have gone from 1 to 0.
        pub writes_fired: u8,
        /// Zero.
        pub reserved: [u8; 6],
    }
}

c_functions! { COUNTERS;
    /// Arms access counters for a page (64 KiB, from 0) of an import: an event at the reads-th load and at the
    /// writes-th store of this node there; 0 counts none.
    fn tg_counter_arm(
        remote: *const Remote, page: u32, reads: u64, writes: u64, counter: *mut *mut PageCounter
    ) -> c_int = give(counter, || given(remote)?.arm_counter(page, reads, writes));

    /// The values of access counters.
    fn tg_counter_read(counter: *const PageCounter, count: *mut CountState) -> c_int =
        fill(count, "the place for the count", || {
            let found = given(counter)?.read()?;
            Ok(CountState {
                reads: found.reads,
                writes: found.writes,
                reads_fired: found.reads_fired.into(),
                writes_fired: found.writes_fired.into(),
                reserved: [0; 6],
            })
        });

    /// Waits for an event of access counters: 1, or 0 after so many nanoseconds (negative: for ever).
    fn tg_counter_wait(counter: *const PageCounter, nanoseconds: i64) -> c_int =
        call(counter, |c| c.wait(limit(nanoseconds)));

    /// An eventfd that becomes readable at each event of access counters. It ends with them.
    fn tg_counter_fd(counter: *const PageCounter) -> c_int = call(counter, |c| Ok(c.as_fd().as_raw_fd()));

    /// Disarms access counters.
    fn tg_counter_disarm(counter: *mut PageCounter) -> c_int = take(counter, PageCounter::disarm);
}
