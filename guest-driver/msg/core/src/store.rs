// SPDX-License-Identifier: MIT OR Apache-2.0
//! Control blocks of a fixed number, found by a hash of whom they are from and for, or in their order (SPEC item 41).

use std::collections::BTreeMap;

/// Whom a message is from and for: what the hash is of. The order is that of s4's section 5.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) process: crate::Process,
    pub(crate) thread: u32,
    pub(crate) to: u32,
    pub(crate) tag: u32,
}

impl Key {
    /// Another process chooses what it sends: a chain is no longer than its slots for all that.
    fn bucket(&self, buckets: usize) -> usize {
        let words = [u32::from(self.process.node), self.process.number, self.thread, self.to, self.tag];
        let hash = words.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, word| {
            (hash ^ u64::from(*word)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
        });
        (hash >> 32) as usize % buckets
    }
}

/// No block.
const NONE: u32 = u32::MAX;

/// Neighbours in a list, or its first and last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ends {
    first: u32,
    last: u32,
}

const EMPTY: Ends = Ends { first: NONE, last: NONE };

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Block<T> {
    generation: u32,
    /// Next free one, if `value` is none.
    free: u32,
    value: Option<T>,
    /// In the chain of its hash, and in the list of its thread: `first` is the one before, `last` the one behind.
    places: [Option<(u32, Ends)>; 2],
    key: Option<Key>,
}

const CHAIN: usize = 0;
const ORDER: usize = 1;

/// Which block, for as long as it is not freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Id {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Store<T> {
    most: u32,
    blocks: Vec<Block<T>>,
    free: u32,
    used: u32,
    chains: Vec<Ends>,
    /// By the thread that they are for.
    orders: BTreeMap<u32, Ends>,
}

impl<T> Store<T> {
    /// `most` blocks, found through `buckets` chains.
    pub(crate) fn new(most: u32, buckets: usize) -> Store<T> {
        let chains = vec![EMPTY; buckets];
        Store { most, blocks: Vec::new(), free: NONE, used: 0, chains, orders: BTreeMap::new() }
    }

    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// A block in no list, unless all are used.
    pub(crate) fn allocate(&mut self, value: T) -> Option<Id> {
        let index = if self.free != NONE {
            self.free
        } else if (self.blocks.len() as u32) < self.most {
            self.blocks.push(Block { generation: 0, free: NONE, value: None, places: [None; 2], key: None });
            self.blocks.len() as u32 - 1
        } else {
            return None;
        };
        let block = &mut self.blocks[index as usize];
        self.free = block.free;
        block.free = NONE;
        block.value = Some(value);
        self.used += 1;
        Some(Id { index, generation: block.generation })
    }

    pub(crate) fn get(&self, id: Id) -> Option<&T> {
        self.blocks.get(id.index as usize).filter(|block| block.generation == id.generation)?.value.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        self.blocks.get_mut(id.index as usize).filter(|block| block.generation == id.generation)?.value.as_mut()
    }

    /// Frees a block, which leaves its lists.
    pub(crate) fn free(&mut self, id: Id) -> Option<T> {
        self.get(id)?;
        self.unlink(id);
        let block = &mut self.blocks[id.index as usize];
        block.generation = block.generation.wrapping_add(1);
        block.free = self.free;
        self.free = id.index;
        self.used -= 1;
        block.value.take()
    }

    /// All that are used.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Id, &T)> {
        self.blocks.iter().enumerate().filter_map(|(index, block)| {
            let id = Id { index: index as u32, generation: block.generation };
            block.value.as_ref().map(|value| (id, value))
        })
    }

    /// Puts a block at the end of the chain of its key.
    pub(crate) fn chain(&mut self, id: Id, key: Key) {
        let bucket = key.bucket(self.chains.len());
        self.blocks[id.index as usize].key = Some(key);
        self.append(CHAIN, bucket as u32, id.index);
    }

    /// Puts a block at the end of the list of a thread.
    pub(crate) fn list(&mut self, id: Id, thread: u32) {
        self.append(ORDER, thread, id.index);
    }

    /// Takes a block out of its lists. It stays used.
    pub(crate) fn unlink(&mut self, id: Id) {
        for kind in [CHAIN, ORDER] {
            let Some((of, Ends { first: before, last: behind })) = self.blocks[id.index as usize].places[kind].take()
            else {
                continue;
            };
            let mut ends = self.ends(kind, of);
            match self.place(kind, before) {
                Some(place) => place.last = behind,
                None => ends.first = behind,
            }
            match self.place(kind, behind) {
                Some(place) => place.first = before,
                None => ends.last = before,
            }
            self.set_ends(kind, of, ends);
        }
        self.blocks[id.index as usize].key = None;
    }

    /// The oldest block of a key.
    pub(crate) fn first_of(&self, key: &Key) -> Option<Id> {
        let chain = self.chains[key.bucket(self.chains.len())];
        self.walk(CHAIN, chain).find(|id| self.blocks[id.index as usize].key.as_ref() == Some(key))
    }

    /// The blocks in the list of a thread, the oldest first.
    pub(crate) fn of_thread(&self, thread: u32) -> impl Iterator<Item = Id> {
        self.walk(ORDER, self.ends(ORDER, thread))
    }

    fn walk(&self, kind: usize, ends: Ends) -> impl Iterator<Item = Id> {
        let mut at = ends.first;
        std::iter::from_fn(move || {
            let block = self.blocks.get(at as usize)?;
            let id = Id { index: at, generation: block.generation };
            at = block.places[kind].map_or(NONE, |(_, place)| place.last);
            Some(id)
        })
    }

    fn ends(&self, kind: usize, of: u32) -> Ends {
        match kind {
            CHAIN => self.chains[of as usize],
            _ => self.orders.get(&of).copied().unwrap_or(EMPTY),
        }
    }

    fn set_ends(&mut self, kind: usize, of: u32, ends: Ends) {
        match kind {
            CHAIN => self.chains[of as usize] = ends,
            // A list of nothing takes no memory: threads come and go.
            _ if ends == EMPTY => drop(self.orders.remove(&of)),
            _ => drop(self.orders.insert(of, ends)),
        }
    }

    fn place(&mut self, kind: usize, index: u32) -> Option<&mut Ends> {
        self.blocks.get_mut(index as usize)?.places[kind].as_mut().map(|(_, place)| place)
    }

    fn append(&mut self, kind: usize, of: u32, index: u32) {
        let mut ends = self.ends(kind, of);
        match self.place(kind, ends.last) {
            Some(place) => place.last = index,
            None => ends.first = index,
        }
        self.blocks[index as usize].places[kind] = Some((of, Ends { first: ends.last, last: NONE }));
        ends.last = index;
        self.set_ends(kind, of, ends);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::Process;
    use proptest::prelude::*;

    fn key(tag: u32) -> Key {
        Key { process: Process { node: 1, number: 2 }, thread: 3, to: 4, tag }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add { tag: u32, thread: u32, chained: bool, listed: bool },
        Free(usize),
        Unlink(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..4_u32, 0..3_u32, any::<bool>(), any::<bool>())
                .prop_map(|(tag, thread, chained, listed)| Step::Add { tag, thread, chained, listed }),
            2 => (0..16_usize).prop_map(Step::Free),
            1 => (0..16_usize).prop_map(Step::Unlink),
        ]
    }

    proptest! {
        /// Against a plain list.
        #[test]
        fn finds_what_a_list_finds(steps in prop::collection::vec(step(), 0..200), buckets in 1..4_usize) {
            let mut store = Store::new(10, buckets);
            // Id, number, tag if chained, thread if listed.
            let mut list: Vec<(Id, usize, Option<u32>, Option<u32>)> = Vec::new();
            for (n, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Add { tag, thread, chained, listed } => {
                        let Some(id) = store.allocate(n) else {
                            prop_assert_eq!(list.len(), 10);
                            continue;
                        };
                        if chained { store.chain(id, key(tag)); }
                        if listed { store.list(id, thread); }
                        list.push((id, n, chained.then_some(tag), listed.then_some(thread)));
                    }
                    Step::Free(at) if at < list.len() => {
                        let (id, n, ..) = list.remove(at);
                        prop_assert_eq!(store.free(id), Some(n));
                        prop_assert_eq!(store.free(id), None);
                        prop_assert_eq!(store.get(id), None);
                    }
                    Step::Unlink(at) if at < list.len() => {
                        store.unlink(list[at].0);
                        list[at].2 = None;
                        list[at].3 = None;
                    }
                    _ => {}
                }
                prop_assert_eq!(store.used() as usize, list.len());
                // Unlinked and linked anew would be at the end; here nothing is, so the list is in order of insertion.
                for tag in 0..4 {
                    let first = list.iter().find(|(.., of, _)| *of == Some(tag)).map(|(id, ..)| *id);
                    prop_assert_eq!(store.first_of(&key(tag)), first);
                }
                for thread in 0..3 {
                    let all: Vec<_> = list.iter().filter(|(.., of)| *of == Some(thread)).map(|(id, ..)| *id).collect();
                    prop_assert_eq!(store.of_thread(thread).collect::<Vec<_>>(), all);
                }
            }
        }
    }

    #[test]
    fn ids_of_freed_blocks_are_nobodys() {
        let mut store = Store::new(1, 1);
        let first = store.allocate('a').unwrap();
        assert_eq!(store.allocate('b'), None);
        store.free(first);
        let second = store.allocate('b').unwrap();
        assert_ne!(first, second);
        assert_eq!((store.get(first), store.get(second)), (None, Some(&'b')));
        assert_eq!(store.get_mut(second), Some(&mut 'b'));
    }
}
