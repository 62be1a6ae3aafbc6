// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where stores go: sets of words of all sizes, none of which hides another.

/// Bytes of the area of one access size: two pages, so that it has inner and outer page ends.
pub(crate) const AREA: u64 = 8192;
pub(crate) const SIZES: [usize; 4] = [1, 2, 4, 8];
/// After the areas of all sizes: pages for their last words, then the long run.
const PAGES: u64 = 16;
const PAGE: u64 = 4096;
const LAST_WORDS: u64 = 4 * AREA;
pub(crate) const RUN: u64 = LAST_WORDS + PAGES * PAGE;
/// Stores of the long run.
pub(crate) const RUN_COUNT: u64 = 20_000;
/// A word for processes that store without end.
pub(crate) const SPARE: u64 = RUN + RUN_COUNT * 8;
/// The word whose atomics give tickets, and a place for each ticket.
pub(crate) const COUNTER: u64 = SPARE + 8;
pub(crate) const MARKS: u64 = COUNTER + 8;
pub(crate) const TICKETS: u64 = 3000;
/// Bytes of the segment that each node exports.
pub(crate) const SIZE: u64 = MARKS + TICKETS * 8;

/// One set of stores: at which offset and of which size the one number `index` is.
#[derive(Clone, Copy)]
pub(crate) enum Pattern {
    /// Every aligned offset of an area, in order.
    Size(usize),
    /// The last word of each page, of every size: the larger first, then the smaller over its end.
    LastWords,
    /// The long run: each store to another word.
    Run,
}

impl Pattern {
    /// All of them.
    pub(crate) fn all() -> impl Iterator<Item = Pattern> {
        SIZES.into_iter().map(Pattern::Size).chain([Pattern::LastWords, Pattern::Run])
    }

    pub(crate) fn count(self) -> u64 {
        match self {
            Pattern::Size(size) => AREA / size as u64,
            Pattern::LastWords => PAGES * 4,
            Pattern::Run => RUN_COUNT,
        }
    }

    /// Offset and size of a store.
    pub(crate) fn at(self, index: u64) -> (u64, usize) {
        match self {
            Pattern::Size(size) => (size.trailing_zeros() as u64 * AREA + index * size as u64, size),
            Pattern::LastWords => {
                let size = SIZES[(index / PAGES % 4) as usize];
                // Sizes have pages of their own, so that no store hides another.
                let page = (index % PAGES) / 4 * 4 + index / PAGES % 4;
                (LAST_WORDS + (page + 1) * PAGE - size as u64 - (index % 4) * 8, size)
            }
            Pattern::Run => (RUN + index * 8, 8),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_store_of_a_pattern_hides_another() {
        for (number, pattern) in Pattern::all().enumerate() {
            let mut bytes = std::collections::BTreeSet::new();
            let mut page_ends = [false; 4];
            for index in 0..pattern.count() {
                let (offset, size) = pattern.at(index);
                assert_eq!(offset % size as u64, 0);
                assert!(offset + size as u64 <= SPARE);
                page_ends[size.trailing_zeros() as usize] |= (offset + size as u64) % PAGE == 0;
                for byte in offset..offset + size as u64 {
                    assert!(bytes.insert(byte), "pattern {number}, {index}: byte {byte:#x}");
                }
            }
            if matches!(pattern, Pattern::LastWords) {
                assert_eq!(page_ends, [true; 4]);
            }
        }
    }
}
