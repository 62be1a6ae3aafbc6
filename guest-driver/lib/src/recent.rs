// SPDX-License-Identifier: MIT OR Apache-2.0
//! Caches of few entries, which go in the order of their last use.

use std::collections::VecDeque;
use std::collections::vec_deque::Iter;

/// What is kept for when it is used again, with a key each. That used last is behind, and looked at first.
#[derive(Debug)]
pub struct Recent<K, V>(VecDeque<(K, V)>);

impl<K, V> Default for Recent<K, V> {
    fn default() -> Recent<K, V> {
        Recent(VecDeque::new())
    }
}

impl<K, V> Recent<K, V> {
    /// The entry for which `is_it` is true, which is the one used last from now on.
    pub fn find(&mut self, is_it: impl Fn(&K, &V) -> bool) -> Option<&(K, V)> {
        let entry = self.take(is_it)?;
        self.0.push_back(entry);
        self.0.back()
    }

    /// Takes the entry out for which `is_it` is true.
    pub fn take(&mut self, is_it: impl Fn(&K, &V) -> bool) -> Option<(K, V)> {
        let at = self.0.iter().rposition(|(key, value)| is_it(key, value))?;
        self.0.remove(at)
    }

    /// Keeps an entry as the one used last.
    pub fn insert(&mut self, key: K, value: V) {
        self.0.push_back((key, value));
    }

    /// Takes the entry out whose last use is longest ago.
    pub fn evict(&mut self) -> Option<(K, V)> {
        self.0.pop_front()
    }

    /// Drops the entries for which `keeps` is false.
    pub fn retain(&mut self, mut keeps: impl FnMut(&V) -> bool) {
        self.0.retain(|(_, value)| keeps(value));
    }

    /// All entries, that used last behind.
    pub fn iter(&self) -> Iter<'_, (K, V)> {
        self.0.iter()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
