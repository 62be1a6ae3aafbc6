// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocation of the lowest free number for objects in progress, and the mask of an access size.

use std::collections::{BTreeMap, BTreeSet};

/// A table that stores each entry under the lowest free number. The numbers depend on the current entries only, so that
/// two boards in the same state behave alike.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Numbered<T> {
    used: BTreeMap<u64, T>,
    /// Free numbers below the highest used one.
    free: BTreeSet<u64>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Numbered<T> {
        Numbered { used: BTreeMap::new(), free: BTreeSet::new() }
    }
}

impl<T> Numbered<T> {
    /// Stores an entry and returns its number.
    pub(crate) fn insert(&mut self, entry: T) -> u64 {
        // Without free numbers below the highest, the numbers 0 to len - 1 are in use.
        let number = self.free.pop_first().unwrap_or(self.used.len() as u64);
        self.used.insert(number, entry);
        number
    }

    /// Returns the entry with this number.
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.used.get_mut(&number)
    }

    /// Removes the entry with this number and frees the number.
    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let entry = self.used.remove(&number)?;
        match self.used.last_key_value() {
            Some((last, _)) if *last > number => {
                self.free.insert(number);
            }
            last => {
                let end = last.map_or(0, |(last, _)| last + 1);
                self.free.split_off(&end);
            }
        }
        Some(entry)
    }

    /// The entries, in the order of their numbers.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.used.values()
    }

    /// The entries for modification, in the order of their numbers.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.used.values_mut()
    }

    /// The numbers in use, ascending.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.used.keys().copied().collect()
    }

    /// Returns whether the table has no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.used.is_empty()
    }
}

/// The all-ones value of `size` bytes: the mask of an access, and the data of a load that fails.
pub(crate) fn ones(size: u32) -> u64 {
    if size >= 8 { u64::MAX } else { (1 << (8 * size)) - 1 }
}

/// The lowest number that is not a key of `used`. It depends on the current keys only, so that boards in the same state
/// behave alike.
pub(crate) fn lowest_free<T>(used: &BTreeMap<u64, T>) -> u64 {
    (0..).zip(used.keys()).find(|(free, used)| free != *used).map_or(used.len() as u64, |(free, _)| free)
}
