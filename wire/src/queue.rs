// SPDX-License-Identifier: MIT OR Apache-2.0
//! Layout of a notification-queue buffer (s0 §3; SPEC items 5-6, E5-E8).
//!
//! Word 0 = `size << 16 | tail` (written by the HIB alone), word 1 = `size << 16 | head` (written by the CPU alone), word 2 =
//! `next` (a word offset in the queue's arena, never read by the HIB), data from index 3. Indices count words; a buffer is
//! a power of two words and aligned to its size, so `base | index` addresses an entry.

/// First data index.
pub const FIRST: u16 = 3;
/// Smallest buffer in words (E7).
pub const MIN_WORDS: u16 = 8;
/// Largest buffer in 32-bit words (64 KiB).
pub const MAX_WORDS: u16 = 1 << 14;

/// A header word: size and an index (tail in word 0, head in word 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeaderWord {
    /// Buffer size in words, header included.
    pub size: u16,
    /// Tail or head, in `FIRST..size`.
    pub index: u16,
}

impl HeaderWord {
    /// Checks size and index (SPEC I11: 3 <= index < size).
    pub fn decode(word: u32) -> Option<HeaderWord> {
        let (size, index) = ((word >> 16) as u16, word as u16);
        let ok = size.is_power_of_two() && (MIN_WORDS..=MAX_WORDS).contains(&size) && (FIRST..size).contains(&index);
        ok.then_some(HeaderWord { size, index })
    }

    /// The word in memory.
    pub fn encode(self) -> u32 {
        u32::from(self.size) << 16 | u32::from(self.index)
    }

    /// The index after this one: wraps size - 1 -> 3 (SPEC item 8, E5).
    pub fn advanced(self) -> HeaderWord {
        let next = self.index + 1;
        HeaderWord { index: if next & self.size != 0 { FIRST } else { next }, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i11_index_stays_between_three_and_size() {
        for shift in 3..=14 {
            let size = 1u16 << shift;
            let mut word = HeaderWord { size, index: FIRST };
            for _ in 0..u32::from(size) * 2 {
                word = word.advanced();
                assert_eq!(HeaderWord::decode(word.encode()), Some(word));
            }
        }
        for bad in [0, 7 << 16 | 3, 8 << 16 | 2, 8 << 16 | 8, 12 << 16 | 4, 0x8000 << 16 | 3] {
            assert_eq!(HeaderWord::decode(bad), None, "{bad:#x}");
        }
    }
}
