// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pending-write counters (SPEC items 25 and 26, E18).

use crate::config::Bug;
use crate::ctx::{FollowUp, ones};
use crate::hib::Hib;

pub(super) fn lanes(offset: u32, size: u8) -> std::ops::Range<usize> {
    let first = (offset & 7) as usize;
    first..(first + usize::from(size)).min(8)
}

impl Hib {
    /// Which counts of a word a store of these bytes has.
    pub(super) fn counts(&self, offset: u32, size: u8) -> std::ops::Range<usize> {
        if self.ctx.has(Bug::CountWords) { 0..1 } else { lanes(offset, size) }
    }

    /// Counts a store of this node's processor as pending, if the cache has room (SPEC items 25 and 26).
    pub(super) fn count_pending(&mut self, page: u32, offset: u32, size: u8) -> bool {
        let capacity = usize::from(self.ctx.config.pending_writes.max(1));
        let lanes = self.counts(offset, size);
        let pending = &mut self.replicas.pending;
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

    /// The store has come back.
    pub(super) fn count_reflected(&mut self, page: u32, offset: u32, size: u8) {
        let (lanes, keep) = (self.counts(offset, size), self.ctx.has(Bug::KeepCounters));
        let pending = &mut self.replicas.pending;
        let word = (page, offset & !7);
        let Some(counts) = pending.get_mut(&word) else { return };
        for lane in lanes {
            counts[lane] = counts[lane].saturating_sub(1);
        }
        // Only counters that are not zero are kept.
        if counts.iter().all(|count| *count == 0) && !keep {
            pending.remove(&word);
        }
        self.counters_freed();
    }

    pub(super) fn counters_freed(&mut self) {
        if std::mem::take(&mut self.replicas.stalled) {
            self.ctx.then(FollowUp::Serve(self.ctx.config.node));
        }
    }

    /// The parts of a store whose bytes have no pending write of this node.
    pub(super) fn unmasked(&self, page: u32, offset: u32, size: u8, data: u64) -> Vec<(u32, u8, u64)> {
        let Some(counts) = self.replicas.pending.get(&(page, offset & !7)) else {
            return vec![(offset, size, data)];
        };
        let free = |from: u32, size: u8| self.counts(from, size).all(|lane| counts[lane] == 0);
        let mut parts = Vec::new();
        let mut at = 0u32;
        while at < u32::from(size) {
            // The widest aligned piece from here on.
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
