// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random words that both ends can derive from one seed: no one has to carry the expected values.
//!
//! A function of seed and index, and not the generator of the other crates (`fastrand`): that one draws in a row, and a
//! reader here checks any word in any order.

/// The word number `index` of a seed (splitmix64).
pub fn word(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

pub fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library seeds its hash maps from the kernel's random numbers.
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// A seed for one purpose out of another.
pub fn derive(seed: u64, purpose: u64) -> u64 {
    word(seed ^ 0x7465_6c65_6772_6166, purpose)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_differ() {
        let mut words: Vec<_> = (0..1000).map(|i| word(1, i)).chain((0..1000).map(|i| word(2, i))).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), 2000);
        assert_ne!(derive(1, 0), derive(1, 1));
        assert_ne!(seed(), seed());
    }
}
