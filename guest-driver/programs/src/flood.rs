// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `tg-flood` and `tg-watch` agree on: a segment is a word that takes the final count, and a ring of words.

use crate::cli::{Failure, Outcome};

/// Offset of the word that has, after quiet, the number of stores.
pub const COUNT: u64 = 0;
const FIRST: u64 = 64;

/// The words that take the stores, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    words: u64,
}

impl Ring {
    /// Of a segment of so many bytes.
    pub fn of(size: u64) -> Outcome<Ring> {
        match size.checked_sub(FIRST).map(|bytes| bytes / 8) {
            Some(words @ 8..) => Ok(Ring { words }),
            _ => Err(Failure::Refused(format!("the segment has {size} bytes: expected at least {}", FIRST + 64))),
        }
    }

    /// Number of words.
    pub fn words(&self) -> u64 {
        self.words
    }

    /// Where store number `number`, from 1, goes.
    pub fn place(&self, number: u64) -> u64 {
        FIRST + number % self.words * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lie_within() {
        assert!(Ring::of(127).is_err());
        for size in [128, 131, 4096] {
            let ring = Ring::of(size).unwrap();
            for number in 1..2000 {
                assert!(ring.place(number) >= FIRST && ring.place(number) + 8 <= size);
                assert_eq!(ring.place(number), ring.place(number + ring.words()));
            }
        }
    }
}
