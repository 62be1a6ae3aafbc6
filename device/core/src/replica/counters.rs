// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pending-write counters (SPEC items 25 and 26, E18): one for each byte that this node's processors have stored to
//! in mode `counters` and that the home has not reflected. `requests` and `work` call this part.

use super::Replicas;
use crate::config::Bug;
use crate::ctx::{Ctx, FollowUp};
use crate::numbered::ones;

/// The bytes of its aligned 8-byte word that an access of `size` bytes at `offset` touches.
pub(super) fn lanes(offset: u32, size: u8) -> std::ops::Range<usize> {
    let first = (offset & 7) as usize;
    first..(first + usize::from(size)).min(8)
}

impl Replicas {
    /// The counters of a word that a store of these bytes uses.
    pub(super) fn counters_of(&self, ctx: &Ctx, offset: u32, size: u8) -> std::ops::Range<usize> {
        if ctx.has(Bug::CountWords) { 0..1 } else { lanes(offset, size) }
    }

    /// Counts a store of this node's processor as pending (SPEC items 25 and 26). False if the cache or a counter is
    /// full: the store must wait.
    pub(super) fn count_pending(&mut self, ctx: &mut Ctx, page: u32, offset: u32, size: u8) -> bool {
        let capacity = usize::from(ctx.config.pending_writes.max(1));
        let lanes = self.counters_of(ctx, offset, size);
        let pending = &mut self.pending;
        let word = (page, offset & !7);
        if !pending.contains_key(&word) && pending.len() >= capacity {
            return false;
        }
        let counts = pending.entry(word).or_default();
        if lanes.clone().any(|lane| counts[lane] == u16::MAX) {
            return false;
        }
        for lane in lanes {
            counts[lane] += 1;
        }
        true
    }

    /// Counts one pending store of these bytes less: the home has reflected it.
    pub(super) fn count_reflected(&mut self, ctx: &mut Ctx, page: u32, offset: u32, size: u8) {
        let (lanes, keep) = (self.counters_of(ctx, offset, size), ctx.has(Bug::KeepCounters));
        let pending = &mut self.pending;
        let word = (page, offset & !7);
        let Some(counts) = pending.get_mut(&word) else { return };
        for lane in lanes {
            counts[lane] = counts[lane].saturating_sub(1);
        }
        // SPEC item 26: only counters that are not zero occupy the cache.
        if counts.iter().all(|count| *count == 0) && !keep {
            pending.remove(&word);
        }
        self.resume_stalled(ctx);
    }

    /// Serves this node's own requests again if one of them stalled for a counter.
    pub(super) fn resume_stalled(&mut self, ctx: &mut Ctx) {
        if std::mem::take(&mut self.stalled) {
            ctx.defer(FollowUp::Serve(ctx.config.node));
        }
    }

    /// The parts (offset, bytes, value) of a reflected store whose bytes have no pending write of this node; only these
    /// are stored (SPEC item 25).
    pub(super) fn unmasked(&self, ctx: &Ctx, page: u32, offset: u32, size: u8, data: u64) -> Vec<(u32, u8, u64)> {
        let Some(counts) = self.pending.get(&(page, offset & !7)) else {
            return vec![(offset, size, data)];
        };
        let free = |from: u32, size: u8| self.counters_of(ctx, from, size).all(|lane| counts[lane] == 0);
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
