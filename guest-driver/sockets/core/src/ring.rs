// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where records lie in the ring: what both ends must compute alike.

/// Bytes of the word before a record's data: their number.
pub const HEAD: u64 = 8;
/// Records begin at multiples of it.
pub const ALIGN: u64 = 64;
/// The smallest ring.
pub const SMALLEST: u64 = 8192;

/// A position that no direction reaches, far from where sums overflow.
pub(crate) const FARTHEST: u64 = 1 << 62;

/// Where fewer bytes are left before the end of a ring of that size, a record begins at the ring's start.
fn least_room(size: u64) -> u64 {
    size / 8
}

/// Where a record begins that does not begin before `position`.
pub(crate) fn begin(position: u64, size: u64) -> u64 {
    let position = position.next_multiple_of(ALIGN);
    let left = size - position % size;
    if left < least_room(size) { position + left } else { position }
}

/// Data of the longest record that begins at a position, whatever else is in the ring: no record takes more than half
/// of it, so that one can be written while another is read.
pub(crate) fn most(position: u64, size: u64) -> u64 {
    (size - position % size).min(longest(size) + HEAD).saturating_sub(HEAD)
}

/// Data of the longest record of a ring of that size.
pub fn longest(size: u64) -> u64 {
    size / 2 - ALIGN
}

/// Whether a ring may have so many bytes.
pub(crate) fn is_size(size: u64) -> bool {
    size >= SMALLEST && size % ALIGN == 0 && size <= 1 << 32
}
