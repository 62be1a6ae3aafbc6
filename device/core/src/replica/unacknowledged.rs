// SPDX-License-Identifier: MIT OR Apache-2.0
//! The multicasts that not all copies have acknowledged, by tag and by page. To add, find and remove one costs the same
//! however many there are.

use crate::kept::Kept;
use crate::numbered::Numbered;
use crate::table::Table;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use telegraphos_wire::{NodeId, Packet};

/// Low bits of a multicast's tag: the lowest number that was free. The bits above are the tag epoch, which makes
/// acknowledgements recognisable that arrive after their sender was dropped.
const TAG_INDEX_BITS: u32 = 20;

/// A multicast that not all copies have acknowledged.
#[derive(Clone, Debug, Default)]
pub(super) struct Multicast {
    /// The page at this node.
    pub(super) page: u32,
    /// Copies that have not acknowledged it, ascending.
    pub(super) waits: Vec<NodeId>,
    /// Those of them that have joined again since, ascending: a refusal is of their earlier copy, which had left.
    pub(super) rejoined: Vec<NodeId>,
    /// The request to answer when all copies have acknowledged, and what it has loaded if it is an atomic.
    pub(super) answer: Option<(Packet, u64)>,
    /// A copy that may outlive this home has not applied it.
    pub(super) missed: bool,
    /// The multicast is a block for the new copy at this node.
    pub(super) fill: Option<NodeId>,
    /// When copies that have not acknowledged are dropped; `None` until the multicast has been sent to all of them.
    pub(super) deadline: Option<u64>,
    /// Tags of its neighbours in the list of its page, the later one first.
    links: [Option<u32>; 2],
}

/// The order of a page's list is no state: nothing depends on it.
impl Hash for Multicast {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Multicast { page, waits, rejoined, answer, missed, fill, deadline, links: _ } = self;
        (page, waits, rejoined, answer, missed, fill, deadline).hash(state);
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Unacknowledged {
    /// Tag epoch: rises whenever a copy is dropped while it has multicasts to acknowledge.
    tag_epoch: u32,
    /// Those of this tag epoch, by the low bits of their tag.
    current: Numbered<Box<Multicast>>,
    /// Those of other tag epochs, by tag.
    earlier: BTreeMap<u32, Box<Multicast>>,
    /// By page, the tag of its last multicast, with which its list begins.
    last: Table<u32>,
    /// Memory for multicasts, with that of their lists.
    kept: Kept<Box<Multicast>>,
}

impl Hash for Unacknowledged {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.tag_epoch, &self.current, &self.earlier).hash(state);
    }
}

impl Unacknowledged {
    /// The lowest tag of this epoch.
    fn first_tag(&self) -> u32 {
        self.tag_epoch << TAG_INDEX_BITS
    }

    /// Adds a multicast of a page to these nodes under the lowest tag that is free in this epoch, and returns that.
    pub(super) fn insert(&mut self, page: u32, to: &[NodeId], answer: Option<(Packet, u64)>) -> u32 {
        let before = self.last.get(page).copied();
        let mut multicast = self.kept.take().unwrap_or_default();
        multicast.page = page;
        multicast.waits.extend_from_slice(to);
        multicast.waits.sort_unstable();
        multicast.answer = answer;
        multicast.links = [None, before];
        let tag = self.first_tag().wrapping_add(self.current.insert(multicast) as u32);
        if let Some(before) = before.and_then(|before| self.get_mut(before)) {
            before.links[0] = Some(tag);
        }
        self.last.insert(page, tag);
        tag
    }

    /// Keeps the memory of a multicast that was removed.
    pub(super) fn keep(&mut self, mut multicast: Box<Multicast>) {
        multicast.waits.clear();
        multicast.rejoined.clear();
        multicast.answer = None;
        (multicast.missed, multicast.fill, multicast.deadline) = (false, None, None);
        self.kept.put(multicast);
    }

    /// The multicast with this tag.
    fn get(&self, tag: u32) -> Option<&Multicast> {
        let current = self.current.get(tag.wrapping_sub(self.first_tag()).into());
        current.or_else(|| self.earlier.get(&tag)).map(|multicast| &**multicast)
    }

    /// The multicast with this tag, for modification. Its page stays.
    pub(super) fn get_mut(&mut self, tag: u32) -> Option<&mut Multicast> {
        let current = self.current.get_mut(tag.wrapping_sub(self.tag_epoch << TAG_INDEX_BITS).into());
        current.or_else(|| self.earlier.get_mut(&tag)).map(|multicast| &mut **multicast)
    }

    /// Removes the multicast with this tag.
    pub(super) fn remove(&mut self, tag: u32) -> Option<Box<Multicast>> {
        let current = self.current.remove(tag.wrapping_sub(self.first_tag()).into());
        let multicast = current.or_else(|| self.earlier.remove(&tag))?;
        let [later, before] = multicast.links;
        if let Some(before) = before.and_then(|before| self.get_mut(before)) {
            before.links[0] = later;
        }
        match (later, before) {
            (Some(later), _) => {
                if let Some(later) = self.get_mut(later) {
                    later.links[1] = before;
                }
            }
            (None, Some(before)) => _ = self.last.insert(multicast.page, before),
            (None, None) => _ = self.last.remove(multicast.page),
        }
        Some(multicast)
    }

    /// Those of a page with their tags, in any order.
    pub(super) fn of_page(&self, page: u32) -> impl Iterator<Item = (u32, &Multicast)> {
        let mut next = self.last.get(page).copied();
        std::iter::from_fn(move || {
            let tag = next?;
            let multicast = self.get(tag)?;
            next = multicast.links[1];
            Some((tag, multicast))
        })
    }

    /// All of them with their tags, in any order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Multicast)> {
        let first = self.first_tag();
        let current =
            self.current.iter().map(move |(number, multicast)| (first.wrapping_add(number as u32), multicast));
        let all = current.chain(self.earlier.iter().map(|(tag, multicast)| (*tag, multicast)));
        all.map(|(tag, multicast)| (tag, &**multicast))
    }

    /// All of them, by tag.
    pub(super) fn into_values(mut self) -> impl Iterator<Item = Box<Multicast>> {
        self.set_aside();
        self.earlier.into_values()
    }

    /// Begins a new tag epoch: acknowledgements of a dropped copy that are still in flight match no later multicast.
    pub(super) fn next_epoch(&mut self) {
        self.set_aside();
        self.tag_epoch = (self.tag_epoch + 1) & (u32::MAX >> TAG_INDEX_BITS);
        // The number of epochs is limited, so there may be some of an earlier one with the same number.
        let first = self.first_tag();
        let again: Vec<u32> =
            self.earlier.range(first..=first | ((1 << TAG_INDEX_BITS) - 1)).map(|(tag, _)| *tag).collect();
        for tag in again {
            if let Some(multicast) = self.earlier.remove(&tag) {
                self.current.insert_at(u64::from(tag - first), multicast);
            }
        }
    }

    /// Moves those of this tag epoch to the others.
    fn set_aside(&mut self) {
        let first = self.first_tag();
        for number in self.current.numbers() {
            if let Some(multicast) = self.current.remove(number) {
                self.earlier.insert(first.wrapping_add(number as u32), multicast);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    use telegraphos_testkit::{Rng, seeds};

    /// Adds a multicast that is recognised by its deadline.
    fn insert(table: &mut Unacknowledged, page: u32, number: u64) -> u32 {
        let tag = table.insert(page, &[7, 5], None);
        let multicast = table.get_mut(tag).unwrap();
        assert_eq!((&*multicast.waits, multicast.deadline.replace(number)), (&[5, 7][..], None));
        tag
    }

    /// Whether the table has these multicasts: pages and numbers, by tag.
    fn agrees(table: &Unacknowledged, expected: &BTreeMap<u32, (u32, u64)>) -> bool {
        let of = |(tag, multicast): (u32, &Multicast)| Some((tag, (multicast.page, multicast.deadline?)));
        let all: BTreeMap<u32, (u32, u64)> = table.iter().filter_map(of).collect();
        let pages = (0..4).all(|page| {
            let found: BTreeMap<u32, (u32, u64)> = table.of_page(page).filter_map(of).collect();
            let expected = expected.iter().filter(|(_, (of, _))| *of == page);
            found.iter().eq(expected) && table.of_page(page).count() == found.len()
        });
        pages && all == *expected && table.iter().count() == all.len()
    }

    #[test]
    fn a_tag_is_the_lowest_free_one_of_its_epoch_and_finds_its_multicast_in_every_later_one() {
        for seed in seeds(20, 2000) {
            let (mut rng, mut table, mut expected) = (Rng::new(seed), Unacknowledged::default(), BTreeMap::new());
            // The numbers of epochs begin again.
            table.tag_epoch = (u32::MAX >> TAG_INDEX_BITS) - rng.below(20) as u32;
            for number in 0..200 {
                if rng.percent(5) {
                    table.next_epoch();
                }
                if number == 100 {
                    for _ in 0..1 << (u32::BITS - TAG_INDEX_BITS) {
                        table.next_epoch();
                    }
                }
                if rng.percent(55) {
                    let page = rng.below(4) as u32;
                    let tag = (table.first_tag()..).find(|tag| !expected.contains_key(tag)).unwrap();
                    assert_eq!(insert(&mut table, page, number), tag, "seed {seed}");
                    expected.insert(tag, (page, number));
                } else if let Some(tag) = expected.keys().nth(rng.below(1 + expected.len() as u64) as usize).copied() {
                    let removed = table.remove(tag).unwrap();
                    assert_eq!(Some((removed.page, removed.deadline.unwrap())), expected.remove(&tag), "seed {seed}");
                    table.keep(removed);
                    assert!(table.remove(tag).is_none() && table.get_mut(tag).is_none(), "seed {seed}");
                }
                assert!(agrees(&table, &expected), "seed {seed}");
            }
            let values = table.into_values().map(|multicast| (multicast.page, multicast.deadline.unwrap()));
            assert!(values.eq(expected.into_values()), "seed {seed}");
        }
    }

    #[test]
    fn the_order_in_which_they_were_added_is_no_state() {
        let (mut one, mut other) = (Unacknowledged::default(), Unacknowledged::default());
        let tags = [0, 1].map(|number| insert(&mut one, 3, number));
        assert_eq!(tags, [0, 1]);
        for number in [9, 1] {
            insert(&mut other, 3, number);
        }
        other.remove(0);
        insert(&mut other, 3, 0);
        let hash = BuildHasherDefault::<DefaultHasher>::default();
        assert_eq!(hash.hash_one(&one), hash.hash_one(&other));
    }
}
