// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets of tags, for packets that answer several requests.

/// Tags in a block.
const TAGS: u32 = 256;

/// Tags of requests, at least one, of a block of 256 that begins at a multiple of 256.
///
/// ```
/// use telegraphos_wire::Tags;
///
/// let mut tags = Tags::of(0x1203);
/// tags.insert(0x12ff);
/// assert_eq!(tags.within(0x1203).collect::<Vec<_>>(), [0x1203, 0x12ff]);
/// assert_ne!(Tags::block(0x1203), Tags::block(0x1300), "it needs a set of its own");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tags([u64; 4]);

impl Tags {
    /// The first tag of the block of `tag`.
    #[inline]
    pub fn block(tag: u32) -> u32 {
        tag & !(TAGS - 1)
    }

    /// The set of this tag alone.
    #[inline]
    pub fn of(tag: u32) -> Tags {
        let mut tags = Tags([0; 4]);
        tags.insert(tag);
        tags
    }

    /// Adds a tag, which must be of the same [block](Tags::block) as the others: the set does not know it.
    #[inline]
    pub fn insert(&mut self, tag: u32) {
        let at = tag % TAGS;
        self.0[at as usize / 64] |= 1 << (at % 64);
    }

    /// Number of tags.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The tags of the block of `tag`, ascending.
    pub fn within(self, tag: u32) -> impl Iterator<Item = u32> {
        let bits = move |(at, mut word): (u32, u64)| {
            core::iter::from_fn(move || {
                let bit = word.trailing_zeros();
                (bit < 64).then(|| {
                    word &= word - 1;
                    Tags::block(tag) + 64 * at + bit
                })
            })
        };
        (0..).zip(self.0).flat_map(bits)
    }

    /// As in a packet: tag n of the block is bit n % 8 of byte n / 8.
    pub(crate) fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (place, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Inverts [`Tags::to_bytes`]; `None` for the empty set.
    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Option<Tags> {
        let mut words = [0; 4];
        for (word, place) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = place.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        (words != [0; 4]).then_some(Tags(words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_the_set_of_what_was_inserted(
            tag in any::<u32>(),
            offsets in proptest::collection::vec(0u32..256, 1..300),
        ) {
            let block = Tags::block(tag);
            let expected: BTreeSet<u32> = offsets.iter().map(|offset| block + offset).collect();
            let mut tags = Tags::of(block + offsets[0]);
            offsets.iter().for_each(|offset| tags.insert(block + offset));
            prop_assert_eq!(tags.count() as usize, expected.len());
            prop_assert_eq!(tags.within(tag).collect::<Vec<_>>(), expected.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(Tags::from_bytes(tags.to_bytes()), Some(tags));
            prop_assert_eq!(tags.to_bytes()[offsets[0] as usize / 8] >> (offsets[0] % 8) & 1, 1);
        }
    }

    #[test]
    fn the_empty_set_is_refused() {
        assert_eq!(Tags::from_bytes([0; 32]), None);
    }
}
