// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pending-write counters (SPEC items 25 and 26, E18): one for each byte that this node's processors have stored to
//! in mode `counters` and that the home has not reflected.

use crate::config::Bug;
use crate::ctx::{Ctx, FollowUp};
use crate::numbered::ones;
use std::collections::BTreeMap;

/// The counter cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct PendingWrites {
    /// For (page, offset of an aligned 8-byte word) the pending writes of each byte (E18).
    counts: BTreeMap<(u32, u32), [u16; 8]>,
    /// A store of this node's processors waits for a free counter.
    stalled: bool,
}

/// The counters of its aligned 8-byte word that a store of `size` bytes at `offset` uses.
fn lanes(ctx: &Ctx, offset: u32, size: u8) -> std::ops::Range<usize> {
    let first = (offset & 7) as usize;
    if ctx.has(Bug::CountWords) { 0..1 } else { first..(first + usize::from(size)).min(8) }
}

impl PendingWrites {
    /// Counters in use, out of [`crate::HibConfig::pending_writes`].
    pub(crate) fn len(&self) -> usize {
        self.counts.len()
    }

    /// Counts a store of this node's processor as pending (SPEC items 25 and 26). False if the cache or a counter is
    /// full: the store must wait.
    pub(super) fn count(&mut self, ctx: &mut Ctx, page: u32, offset: u32, size: u8) -> bool {
        let counted = self.try_count(ctx, page, offset, size);
        if !counted {
            ctx.counters.counter_stalls += u64::from(!self.stalled);
            self.stalled = true;
        }
        counted
    }

    fn try_count(&mut self, ctx: &Ctx, page: u32, offset: u32, size: u8) -> bool {
        let capacity = usize::from(ctx.config.pending_writes.max(1));
        let word = (page, offset & !7);
        if !self.counts.contains_key(&word) && self.counts.len() >= capacity {
            return false;
        }
        let counts = &mut self.counts.entry(word).or_default()[lanes(ctx, offset, size)];
        if counts.contains(&u16::MAX) {
            return false;
        }
        counts.iter_mut().for_each(|count| *count += 1);
        true
    }

    /// Counts one pending store of these bytes less: the home has reflected it.
    pub(super) fn reflected(&mut self, ctx: &mut Ctx, page: u32, offset: u32, size: u8) {
        let word = (page, offset & !7);
        let Some(counts) = self.counts.get_mut(&word) else { return };
        counts[lanes(ctx, offset, size)].iter_mut().for_each(|count| *count = count.saturating_sub(1));
        // SPEC item 26: only counters that are not zero occupy the cache.
        if *counts == [0; 8] && !ctx.has(Bug::KeepCounters) {
            self.counts.remove(&word);
        }
        self.resume_stalled(ctx);
    }

    /// Drops the counters of a page.
    pub(super) fn forget_page(&mut self, ctx: &mut Ctx, page: u32) {
        self.counts.retain(|(p, _), _| *p != page);
        self.resume_stalled(ctx);
    }

    /// Serves this node's own requests again if one of them stalled for a counter.
    fn resume_stalled(&mut self, ctx: &mut Ctx) {
        if std::mem::take(&mut self.stalled) {
            ctx.defer(FollowUp::Serve(ctx.config.node));
        }
    }

    /// The bytes of a reflected store, one bit for each, that have no pending write of this node; only these are stored
    /// (SPEC item 25).
    pub(super) fn unmasked(&self, ctx: &Ctx, page: u32, offset: u32, size: u8) -> u8 {
        let Some(counts) = self.counts.get(&(page, offset & !7)) else { return bytes(size) };
        let free = |byte: u8| lanes(ctx, offset + u32::from(byte), 1).all(|lane| counts[lane] == 0);
        (0..size).filter(|byte| free(*byte)).fold(0, |free, byte| free | 1 << byte)
    }
}

/// A bit for each byte of a store, of which there are 8 at most.
pub(super) fn bytes(size: u8) -> u8 {
    ((1u16 << size.min(8)) - 1) as u8
}

/// Takes the first part of a store at `offset` of which these bytes are `left`: the widest naturally aligned one that
/// begins with the first of them. Its offset, size and value; `None` if none is left.
pub(super) fn next_part(offset: u32, data: u64, left: &mut u8) -> Option<(u32, u8, u64)> {
    let first = left.trailing_zeros();
    let adjacent = left.checked_shr(first)?.trailing_ones();
    let fits = |size: u32| size <= adjacent && (offset + first) % size == 0;
    let size = [8, 4, 2, 1].into_iter().find(|size| fits(*size))? as u8;
    *left &= !(bytes(size) << first);
    Some((offset + first, size, data >> (8 * first) & ones(size.into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte that is left is stored once, with its value, by aligned accesses.
    #[test]
    fn the_parts_of_a_store_are_the_bytes_that_are_left() {
        let data = 0x1122_3344_5566_7788u64;
        for (size, offset) in [(1, 5), (2, 2), (4, 4), (8, 8)].into_iter().flat_map(|(s, at)| [(s, at), (s, at + 8)]) {
            for free in 0..=bytes(size) {
                let (mut left, mut stored, mut parts) = (free, 0, 0);
                while let Some((at, part, value)) = next_part(offset, data, &mut left) {
                    assert!(at % u32::from(part) == 0 && at >= offset, "{size} at {offset}: {part} at {at}");
                    let first = at - offset;
                    assert_eq!(value, data >> (8 * first) & ones(part.into()));
                    assert_eq!(stored & bytes(part) << first, 0, "a byte is stored twice");
                    stored |= bytes(part) << first;
                    parts += 1;
                }
                assert_eq!((stored, left), (free, 0), "{size} at {offset}");
                assert!(free != bytes(size) || parts == 1, "a whole store is one access");
            }
        }
    }
}
