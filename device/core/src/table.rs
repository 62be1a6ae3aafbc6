// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables of things that have a small number of their own: export pages, contexts, slots of contexts.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;

/// Entries that are allocated together. A board with a few pages stays small, and neighbours share cache lines.
const CHUNK: usize = 16;

/// The entries of [`CHUNK`] consecutive numbers.
#[derive(Clone)]
struct Chunk<T> {
    used: usize,
    entries: [Option<T>; CHUNK],
}

/// A table by number in which a look-up costs the same however many entries there are. Numbers are bounded by the
/// configuration; memory is taken for the chunks that have entries, and one pointer for each chunk below the highest.
/// Iteration is in the order of the numbers.
///
/// Equality and hash cover the entries only, not the memory that they take.
#[derive(Clone)]
pub(crate) struct Table<T> {
    chunks: Vec<Option<Box<Chunk<T>>>>,
    len: usize,
    /// The chunk that became empty last, for the next one: an entry that comes and goes needs no allocation.
    spare: Option<Box<Chunk<T>>>,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { chunks: Vec::new(), len: 0, spare: None }
    }
}

/// Chunk, and place in it, of a number.
fn place(number: u32) -> (usize, usize) {
    (number as usize / CHUNK, number as usize % CHUNK)
}

impl<T> Table<T> {
    /// The entry with this number.
    #[inline]
    pub(crate) fn get(&self, number: impl Into<u32>) -> Option<&T> {
        let (chunk, at) = place(number.into());
        self.chunks.get(chunk)?.as_ref()?.entries[at].as_ref()
    }

    /// The entry with this number, for modification.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: impl Into<u32>) -> Option<&mut T> {
        let (chunk, at) = place(number.into());
        self.chunks.get_mut(chunk)?.as_mut()?.entries[at].as_mut()
    }

    /// Returns whether there is an entry with this number.
    pub(crate) fn contains(&self, number: impl Into<u32>) -> bool {
        self.get(number).is_some()
    }

    /// The chunk with this index, allocated if it is not yet.
    fn chunk(&mut self, index: usize) -> &mut Chunk<T> {
        if self.chunks.len() <= index {
            self.chunks.resize_with(index + 1, || None);
        }
        let spare = &mut self.spare;
        let new = || spare.take().unwrap_or_else(|| Box::new(Chunk { used: 0, entries: [const { None }; CHUNK] }));
        self.chunks[index].get_or_insert_with(new)
    }

    /// Stores an entry under a number, and returns the one that was there. The caller has checked the bound of the
    /// number.
    pub(crate) fn insert(&mut self, number: impl Into<u32>, entry: T) -> Option<T> {
        let (index, at) = place(number.into());
        let chunk = self.chunk(index);
        let old = chunk.entries[at].replace(entry);
        if old.is_none() {
            chunk.used += 1;
            self.len += 1;
        }
        old
    }

    /// The entry with this number, a new one if there was none. The caller has checked the bound of the number.
    pub(crate) fn get_or_insert_with(&mut self, number: impl Into<u32>, new: impl FnOnce() -> T) -> &mut T {
        let (index, at) = place(number.into());
        let chunk = self.chunk(index);
        let absent = usize::from(chunk.entries[at].is_none());
        chunk.used += absent;
        self.len += absent;
        self.chunk(index).entries[at].get_or_insert_with(new)
    }

    /// Removes the entry with this number.
    pub(crate) fn remove(&mut self, number: impl Into<u32>) -> Option<T> {
        let (index, at) = place(number.into());
        let slot = self.chunks.get_mut(index)?;
        let chunk = slot.as_mut()?;
        let entry = chunk.entries[at].take()?;
        chunk.used -= 1;
        self.len -= 1;
        if chunk.used == 0 {
            self.spare = slot.take();
        }
        Some(entry)
    }

    /// Numbers and entries whose number is in this range.
    pub(crate) fn range(&self, range: Range<u32>) -> impl Iterator<Item = (u32, &T)> {
        let (first, last) = (range.start as usize / CHUNK, (range.end as usize).div_ceil(CHUNK));
        let last = last.min(self.chunks.len());
        let chunks = (first..last).filter_map(|index| Some((index, self.chunks[index].as_ref()?)));
        let entries = chunks.flat_map(|(index, chunk)| ((index * CHUNK) as u32..).zip(&chunk.entries));
        entries.filter_map(|(number, entry)| Some((number, entry.as_ref()?))).filter(move |(n, _)| range.contains(n))
    }

    /// Numbers and entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let chunks = (0..).zip(&self.chunks).filter_map(|(index, chunk)| Some((index, chunk.as_ref()?)));
        let entries = chunks.flat_map(|(index, chunk)| (index * CHUNK as u32..).zip(&chunk.entries));
        entries.filter_map(|(number, entry)| Some((number, entry.as_ref()?)))
    }

    /// The numbers of the entries.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.iter().map(|(number, _)| number)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.chunks.iter_mut().flatten().flat_map(|chunk| chunk.entries.iter_mut().flatten())
    }

    pub(crate) fn into_values(self) -> impl Iterator<Item = T> {
        self.chunks.into_iter().flatten().flat_map(|chunk| chunk.entries.into_iter().flatten())
    }

    /// Removes all entries and gives back their memory.
    pub(crate) fn clear(&mut self) {
        *self = Table::default();
    }
}

impl<T: PartialEq> PartialEq for Table<T> {
    fn eq(&self, other: &Table<T>) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<T: Eq> Eq for Table<T> {}

impl<T: Hash> Hash for Table<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len.hash(state);
        self.iter().for_each(|entry| entry.hash(state));
    }
}

impl<T: fmt::Debug> fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    use telegraphos_testkit::{Rng, seeds};

    #[test]
    fn it_behaves_as_an_ordered_map() {
        for seed in seeds(20, 2000) {
            let (mut rng, mut table, mut map) = (Rng::new(seed), Table::default(), BTreeMap::new());
            for step in 0..300u64 {
                let number = rng.below(100) as u32;
                match rng.below(5) {
                    0 | 1 => assert_eq!(table.insert(number, step), map.insert(number, step), "seed {seed}"),
                    2 => {
                        *table.get_or_insert_with(number, || 0) =
                            *map.entry(number).and_modify(|e| *e += 1).or_insert(0)
                    }
                    _ => assert_eq!(table.remove(number), map.remove(&number), "seed {seed}"),
                }
                let range = number..number + rng.below(60) as u32;
                assert!(table.range(range.clone()).eq(map.range(range).map(|(n, e)| (*n, e))), "seed {seed}");
                assert_eq!((table.get(number), table.contains(number)), (map.get(&number), map.contains_key(&number)));
                assert!(table.iter().eq(map.iter().map(|(n, e)| (*n, e))) && table.len == map.len(), "seed {seed}");
            }
            let chunks = table.chunks.iter().flatten();
            assert!(chunks.clone().all(|chunk| chunk.used == chunk.entries.iter().flatten().count() && chunk.used > 0));
            assert!(table.clone().into_values().eq(map.clone().into_values()));
            assert!(table.values_mut().eq(map.values_mut()));
        }
    }

    #[test]
    fn what_was_there_before_is_not_seen() {
        let (mut one, mut other) = (Table::default(), Table::default());
        one.insert(3u32, 7);
        for number in [900u32, 20, 3] {
            other.insert(number, 7);
        }
        for number in [900u32, 20] {
            other.remove(number);
        }
        let hash = BuildHasherDefault::<DefaultHasher>::default();
        assert!(one == other && hash.hash_one(&one) == hash.hash_one(&other));
        other.insert(4u32, 7);
        assert!(one != other && format!("{other:?}") == "{3: 7, 4: 7}");
    }

    #[test]
    fn a_number_out_of_range_is_not_there() {
        let table = Table::<u8>::default();
        assert!(table.get(u32::MAX).is_none() && table.range(5..u32::MAX).next().is_none());
    }
}
