// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts of things by a small number: stores or writes by context.

use std::fmt;
use std::hash::{Hash, Hasher};

/// A count for each number that is below a bound of the configuration; all are zero at first. Memory is taken up to the
/// highest number that was counted. The hash, and the text for debugging, cover the counts that are not zero.
#[derive(Clone, Default)]
pub(crate) struct Counts {
    counts: Vec<u32>,
    /// Numbers whose count may differ from zero, so that clearing costs as much as counting.
    counted: Vec<u16>,
}

impl Counts {
    /// The count of a number.
    pub(crate) fn get(&self, number: u16) -> u32 {
        self.counts.get(usize::from(number)).copied().unwrap_or(0)
    }

    /// Counts one more of a number.
    pub(crate) fn increment(&mut self, number: u16) {
        if self.counts.len() <= usize::from(number) {
            self.counts.resize(usize::from(number) + 1, 0);
        }
        let count = &mut self.counts[usize::from(number)];
        if *count == 0 {
            self.counted.push(number);
        }
        *count += 1;
    }

    /// Sets the count of a number to zero.
    pub(crate) fn reset(&mut self, number: u16) {
        if let Some(count) = self.counts.get_mut(usize::from(number)).filter(|count| **count > 0) {
            *count = 0;
            self.counted.retain(|other| *other != number);
        }
    }

    /// Counts one less of a number, unless its count is zero.
    pub(crate) fn decrement(&mut self, number: u16) {
        match self.get(number) {
            0 => {}
            1 => self.reset(number),
            count => self.counts[usize::from(number)] = count - 1,
        }
    }

    /// Sets all counts to zero.
    pub(crate) fn clear(&mut self) {
        for number in self.counted.drain(..) {
            self.counts[usize::from(number)] = 0;
        }
    }

    /// The numbers whose count is not zero, ascending, with their counts. All are zero afterwards.
    pub(crate) fn take(&mut self) -> Vec<(u16, u32)> {
        let mut taken: Vec<(u16, u32)> = self.counted.iter().map(|number| (*number, self.get(*number))).collect();
        taken.sort_unstable();
        self.clear();
        taken
    }
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.clone().take()).finish()
    }
}

impl Hash for Counts {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.clone().take().hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

    #[test]
    fn counts_are_taken_in_order_and_zero_ones_are_not_seen() {
        let (hash, mut counts) = (BuildHasherDefault::<DefaultHasher>::default(), Counts::default());
        let unused = hash.hash_one(&counts);
        for number in [7, 3, 7, 250, 9] {
            counts.increment(number);
        }
        counts.decrement(250);
        counts.decrement(7);
        counts.reset(9);
        counts.decrement(4);
        counts.reset(400);
        assert_eq!([3, 7, 9, 250, 999].map(|number| counts.get(number)), [1, 1, 0, 0, 0]);
        let used = hash.hash_one(&counts);
        assert_eq!(counts.take(), [(3, 1), (7, 1)]);
        assert!(used != unused && hash.hash_one(&counts) == unused);
        counts.increment(7);
        counts.clear();
        assert_eq!((counts.get(7), hash.hash_one(&counts)), (0, unused));
    }
}
