// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each descriptor of this process is: a connection that is looked after, a file of ours, or neither.

use libc::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where descriptors of the board and of memory are put, so that programs get the numbers that they expect.
pub(crate) const HIGH: c_int = 1000;
/// Descriptors from this number on are not looked after.
const DESCRIPTORS: usize = 1 << 16;
/// In place of a slot: a file of ours.
const OWN: u32 = u32::MAX;

/// Slots by descriptor: their number plus one, 0 for none.
static TABLE: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];

/// What is noted of a descriptor: the number of its connection's slot plus one, 0 for none.
pub(crate) fn entry(fd: c_int) -> Option<&'static AtomicU32> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// Whether the descriptor's connection is looked after.
pub fn is_tracked(fd: c_int) -> bool {
    entry(fd).is_some_and(|entry| !matches!(entry.load(Ordering::Relaxed), 0 | OWN))
}

/// Descriptors whose connections are looked after.
pub(crate) fn tracked() -> impl Iterator<Item = c_int> {
    (0..DESCRIPTORS as c_int).filter(|fd| is_tracked(*fd))
}

/// Whether it is a file of ours.
pub(crate) fn is_own(fd: c_int) -> bool {
    entry(fd).is_some_and(|entry| entry.load(Ordering::Relaxed) == OWN)
}

/// A file is ours from now on. False if that cannot be noted.
pub(crate) fn own(fd: c_int) -> bool {
    entry(fd).map(|entry| entry.store(OWN, Ordering::SeqCst)).is_some()
}

/// A file is not ours any more. False if it was not.
pub(crate) fn disown(fd: c_int) -> bool {
    entry(fd).is_some_and(|entry| entry.compare_exchange(OWN, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok())
}

/// Files of ours.
pub(crate) fn owned() -> impl Iterator<Item = c_int> {
    (0..DESCRIPTORS as c_int).filter(|fd| is_own(*fd))
}
