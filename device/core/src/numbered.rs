// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocation of the lowest free number for objects in progress, and the mask of an access size.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::{Hash, Hasher};

/// A table that stores each entry under the lowest free number. The numbers depend on the current entries only, so that
/// two boards in the same state behave alike.
#[derive(Clone, Debug)]
pub(crate) struct Numbered<T> {
    /// By number; the last is in use.
    entries: Vec<Option<T>>,
    /// The free numbers below the highest used one, and others that are skipped: numbers that are in use again, or
    /// above the highest. Never more than there were entries at once.
    free: BinaryHeap<Reverse<usize>>,
}

impl<T: Hash> Hash for Numbered<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.entries.hash(state);
    }
}

impl<T> Default for Numbered<T> {
    fn default() -> Numbered<T> {
        Numbered { entries: Vec::new(), free: BinaryHeap::new() }
    }
}

impl<T> Numbered<T> {
    /// Stores an entry and returns its number.
    pub(crate) fn insert(&mut self, entry: T) -> u64 {
        self.insert_with(|_| entry)
    }

    /// Stores an entry that contains its number, and returns the number.
    pub(crate) fn insert_with(&mut self, entry: impl FnOnce(u64) -> T) -> u64 {
        while let Some(Reverse(number)) = self.free.pop() {
            if let Some(slot @ None) = self.entries.get_mut(number) {
                *slot = Some(entry(number as u64));
                return number as u64;
            }
        }
        let number = self.entries.len() as u64;
        self.entries.push(Some(entry(number)));
        number
    }

    /// Stores an entry under a number that is free. What is free below it is found again.
    pub(crate) fn insert_at(&mut self, number: u64, entry: T) {
        let number = number as usize;
        while self.entries.len() <= number {
            self.free.push(Reverse(self.entries.len()));
            self.entries.push(None);
        }
        self.entries[number] = Some(entry);
    }

    /// Returns the entry with this number.
    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        self.entries.get(usize::try_from(number).ok()?)?.as_ref()
    }

    /// Returns the entry with this number for modification.
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.entries.get_mut(usize::try_from(number).ok()?)?.as_mut()
    }

    /// Removes the entry with this number and frees the number.
    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let number = usize::try_from(number).ok()?;
        let entry = self.entries.get_mut(number)?.take()?;
        if number + 1 < self.entries.len() {
            self.free.push(Reverse(number));
        }
        while let Some(None) = self.entries.last() {
            self.entries.pop();
        }
        if self.entries.is_empty() {
            self.free.clear();
        }
        Some(entry)
    }

    /// Numbers and entries for modification, in the order of the numbers.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut T)> {
        (0..).zip(&mut self.entries).filter_map(|(number, entry)| Some((number, entry.as_mut()?)))
    }

    /// The numbers in use, ascending.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.iter().map(|(number, _)| number).collect()
    }

    /// Numbers and entries, in the order of the numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        (0..).zip(&self.entries).filter_map(|(number, entry)| Some((number, entry.as_ref()?)))
    }

    /// Returns whether the table has no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// The all-ones value of `size` bytes: the mask of an access, and the data of a load that fails.
pub(crate) fn ones(size: u32) -> u64 {
    if size >= 8 { u64::MAX } else { (1 << (8 * size)) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use telegraphos_testkit::{Rng, seeds};

    #[test]
    fn a_number_is_the_lowest_free_one_whatever_happened_before() {
        for seed in seeds(20, 2000) {
            let (mut rng, mut table, mut expected) = (Rng::new(seed), Numbered::default(), BTreeMap::new());
            for entry in 0..200u64 {
                let free = 12 + rng.below(3);
                if rng.percent(5) && !expected.contains_key(&free) {
                    table.insert_at(free, entry);
                    expected.insert(free, entry);
                } else if rng.percent(50) {
                    let number = (0..).find(|number| !expected.contains_key(number)).unwrap();
                    assert_eq!(table.insert(entry), number);
                    expected.insert(number, entry);
                } else {
                    let number = rng.below(16);
                    assert_eq!(table.remove(number), expected.remove(&number), "seed {seed}");
                }
                let expected = expected.iter().map(|(number, entry)| (*number, entry));
                assert!(table.iter().eq(expected) && table.free.len() <= 200, "seed {seed}");
            }
        }
    }
}
