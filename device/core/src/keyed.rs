// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables of things in progress whose names are never used again: a name that outlives its entry (in a queue, in a
//! packet on its way) finds nothing, not another entry.

use crate::numbered::Numbered;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

/// The name of an entry: its ordinal among all of its table, and its place in the table. Names ascend with age.
///
/// 12 bytes and not 16: the entries of send queues contain one. Equality, order and hash are those of the ordinal; the
/// place only finds it.
#[derive(Clone, Copy)]
pub(crate) struct Key {
    ordinal: [u32; 2],
    place: u32,
}

impl Key {
    fn ordinal(self) -> u64 {
        u64::from(self.ordinal[0]) << 32 | u64::from(self.ordinal[1])
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.ordinal == other.ordinal
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> Ordering {
        self.ordinal.cmp(&other.ordinal)
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.ordinal.hash(state);
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ordinal().fmt(f)
    }
}

/// A table that gives each entry a new name. A look-up costs the same however many entries there are.
#[derive(Clone, Debug)]
pub(crate) struct Keyed<T> {
    entries: Numbered<(Key, T)>,
    len: usize,
    /// Number of entries so far.
    next: u64,
}

impl<T> Default for Keyed<T> {
    fn default() -> Keyed<T> {
        Keyed { entries: Numbered::default(), len: 0, next: 0 }
    }
}

impl<T> Keyed<T> {
    /// Stores an entry and returns its name.
    pub(crate) fn insert(&mut self, entry: T) -> Key {
        let ordinal = [(self.next >> 32) as u32, self.next as u32];
        self.next += 1;
        self.len += 1;
        let key = |place: u64| Key { ordinal, place: place as u32 };
        key(self.entries.insert_with(|place| (key(place), entry)))
    }

    /// The entry with this name.
    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        self.entries.get(key.place.into()).filter(|(of, _)| *of == key).map(|(_, entry)| entry)
    }

    /// The entry with this name, for modification.
    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.entries.get_mut(key.place.into()).filter(|(of, _)| *of == key).map(|(_, entry)| entry)
    }

    /// Returns whether there is an entry with this name.
    pub(crate) fn contains(&self, key: Key) -> bool {
        self.get(key).is_some()
    }

    /// Removes the entry with this name.
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        self.get(key)?;
        self.len -= 1;
        self.entries.remove(key.place.into()).map(|(_, entry)| entry)
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Names and entries, in any order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.entries.iter().map(|(_, (key, entry))| (*key, entry))
    }

    /// The names of the entries, ascending.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = self.iter().map(|(key, _)| key).collect();
        keys.sort_unstable();
        keys
    }

    /// An empty table that repeats no name of this one.
    pub(crate) fn emptied(&self) -> Keyed<T> {
        Keyed { next: self.next, ..Keyed::default() }
    }
}

impl<T: Hash> Hash for Keyed<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.next, self.len).hash(state);
        for key in self.keys() {
            (key, self.get(key)).hash(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    use telegraphos_testkit::{Rng, seeds};

    #[test]
    fn a_name_finds_its_entry_only_and_ascends_with_age() {
        for seed in seeds(20, 2000) {
            let (mut rng, mut table, mut map) = (Rng::new(seed), Keyed::default(), BTreeMap::new());
            let mut names: Vec<Key> = Vec::new();
            for entry in 0..200u64 {
                if names.is_empty() || rng.percent(50) {
                    let key = table.insert(entry);
                    assert!(names.last().is_none_or(|last| *last < key) && map.insert(key, entry).is_none());
                    names.push(key);
                } else {
                    let key = names[rng.below(names.len() as u64) as usize];
                    assert_eq!(table.remove(key), map.remove(&key), "seed {seed}");
                }
                assert!(names.iter().all(|name| table.get(*name) == map.get(name)), "seed {seed}");
                assert!(table.keys().iter().eq(map.keys()) && table.len() == map.len(), "seed {seed}");
            }
            let emptied = table.emptied();
            assert!(names.iter().all(|name| !emptied.contains(*name)) && emptied.clone().insert(0) > names[0]);
        }
    }

    #[test]
    fn the_place_of_an_entry_is_not_part_of_the_state() {
        let (mut one, mut other) = (Keyed::default(), Keyed::default());
        let [first, ..] = [0, 1, 2].map(|entry| one.insert(entry));
        one.remove(first);
        let [first, _] = [0, 1].map(|entry| other.insert(entry));
        other.remove(first);
        other.insert(2);
        let hash = BuildHasherDefault::<DefaultHasher>::default();
        assert_eq!(hash.hash_one(&one), hash.hash_one(&other));
        assert_eq!(one.keys(), other.keys());
    }
}
