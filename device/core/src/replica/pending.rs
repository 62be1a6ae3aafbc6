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

    /// The parts (offset, bytes, value) of a reflected store whose bytes have no pending write of this node; only these
    /// are stored (SPEC item 25).
    pub(super) fn unmasked(&self, ctx: &Ctx, page: u32, offset: u32, size: u8, data: u64) -> Vec<(u32, u8, u64)> {
        let Some(counts) = self.counts.get(&(page, offset & !7)) else {
            return vec![(offset, size, data)];
        };
        let free = |from: u32, size: u8| lanes(ctx, from, size).all(|lane| counts[lane] == 0);
        let mut parts = Vec::new();
        let mut at = 0u32;
        while at < u32::from(size) {
            // The widest naturally aligned piece at this offset.
            let piece = [8u8, 4, 2, 1].into_iter().find(|piece| {
                let fits = at + u32::from(*piece) <= u32::from(size) && (offset + at) % u32::from(*piece) == 0;
                fits && free(offset + at, *piece)
            });
            match piece {
                Some(piece) => {
                    parts.push((offset + at, piece, data >> (8 * at) & ones(piece.into())));
                    at += u32::from(piece);
                }
                None => at += 1,
            }
        }
        parts
    }
}
