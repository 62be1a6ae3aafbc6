// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets and bytes by pair of source and destination. No part of the protocol state: models neither hash nor compare
//! it.
//!
//! A cluster of 4096 nodes has 16 million pairs, so only some are kept, in the manner of a set-associative cache: the
//! pair gives the set, each set has [`WAYS`] ways. In a full set, each packet of a pair without a way decrements the
//! worth of the least used pair; at 0 that pair's counters are added to the rest and its way is free. So a busy pair
//! stays, whatever the number of idle ones, and a pair that has become idle is evicted. Nothing is lost: all pairs and
//! the rest together are all packets.

use serde::{Deserialize, Serialize};
use telegraphos_wire::{Class, NodeId};

/// Ways of a set. Each packet compares all of them: 32 bytes of keys, half a cache line.
pub const WAYS: usize = 8;
/// Pairs kept by default: all of a cluster of 64 nodes, in 1.1 MiB.
pub const DEFAULT_PAIRS: usize = 1 << 14;
/// The most pairs that can be kept.
pub const MAX_PAIRS: usize = 1 << 20;
/// No pair: no node has the id of a multicast.
const NONE: u32 = u32::MAX;

/// Packets and their bytes on the link. Reports leave out what is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename = "Traffic")]
pub struct Count {
    #[serde(skip_serializing_if = "is_zero")]
    pub packets: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Count {
    /// The sum of both; it wraps around.
    #[must_use]
    pub fn plus(self, other: Count) -> Count {
        Count { packets: self.packets.wrapping_add(other.packets), bytes: self.bytes.wrapping_add(other.bytes) }
    }

    /// What is left of it without another; it wraps around.
    #[must_use]
    pub fn minus(self, other: Count) -> Count {
        Count { packets: self.packets.wrapping_sub(other.packets), bytes: self.bytes.wrapping_sub(other.bytes) }
    }
}

/// Counters of one pair, or of all that are not kept, by class number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairStatistics {
    pub classes: [Count; 4],
}

impl PairStatistics {
    /// All classes together.
    pub fn total(&self) -> Count {
        self.classes.into_iter().fold(Count::default(), Count::plus)
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: &PairStatistics) -> PairStatistics {
        PairStatistics { classes: std::array::from_fn(|class| self.classes[class].plus(other.classes[class])) }
    }

    /// What is left of it without another.
    #[must_use]
    pub fn minus(self, other: &PairStatistics) -> PairStatistics {
        PairStatistics { classes: std::array::from_fn(|class| self.classes[class].minus(other.classes[class])) }
    }
}

/// One pair, as it is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    pub source: NodeId,
    pub destination: NodeId,
    /// What was counted since the pair was first kept.
    pub counted: PairStatistics,
}

/// Deliberate bugs that the checks must find.
#[cfg(feature = "bugs")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairsBug {
    /// Completeness: counters of a pair that goes are forgotten.
    ForgetEvicted,
    /// A busy pair stays: a new pair takes the first way.
    EvictAnyone,
    /// Counters belong to their pair: the source is not looked at.
    IgnoreSource,
}

#[derive(Clone, Debug)]
struct Set {
    keys: [u32; WAYS],
    /// Packets of other pairs that it takes to evict the pair.
    worth: [u16; WAYS],
}

/// Counters by pair of source and destination, bounded.
#[derive(Clone, Debug)]
pub struct Pairs {
    /// A power of two, or none: nothing is counted.
    sets: Vec<Set>,
    /// [`WAYS`] for each set.
    counted: Vec<PairStatistics>,
    rest: PairStatistics,
    evicted: u64,
    #[cfg(feature = "bugs")]
    bug: Option<PairsBug>,
}

impl Pairs {
    /// Keeps at most `limit` pairs, rounded up to a power of two, from 8 to [`MAX_PAIRS`]; 0 counts nothing and takes
    /// no memory.
    pub fn new(limit: usize) -> Pairs {
        let sets = match limit {
            0 => 0,
            limit => limit.clamp(WAYS, MAX_PAIRS).next_power_of_two() / WAYS,
        };
        Pairs {
            sets: vec![Set { keys: [NONE; WAYS], worth: [0; WAYS] }; sets],
            counted: vec![PairStatistics::default(); sets * WAYS],
            rest: PairStatistics::default(),
            evicted: 0,
            #[cfg(feature = "bugs")]
            bug: None,
        }
    }

    /// The same with a bug.
    #[cfg(feature = "bugs")]
    pub fn with_bug(mut self, bug: PairsBug) -> Pairs {
        self.bug = Some(bug);
        self
    }

    /// Pairs that can be kept; 0 when nothing is counted.
    pub fn capacity(&self) -> usize {
        self.sets.len() * WAYS
    }

    /// Counts one packet of so many bytes.
    pub fn count(&mut self, source: NodeId, destination: NodeId, class: Class, bytes: u64) {
        self.add(source, destination, class, Count { packets: 1, bytes });
    }

    /// Counts packets of a pair together; to keep the pair they are worth as much as one.
    pub fn add(&mut self, source: NodeId, destination: NodeId, class: Class, packets: Count) {
        if self.sets.is_empty() {
            return;
        }
        let key = self.key(source, destination);
        // An odd factor takes all senders to one destination apart, and destinations of one sender are neighbours, so
        // that a small cluster fills the sets evenly. A collision costs other pairs their ways, not time.
        let index = (source as usize * 65).wrapping_add(destination as usize) & (self.sets.len() - 1);
        let set = &mut self.sets[index];
        let way = set.keys.iter().position(|k| *k == key).filter(|_| key != NONE);
        if let Some(way) = way {
            set.worth[way] = set.worth[way].saturating_add(1);
            let counted = &mut self.counted[index * WAYS + way].classes[class as usize];
            *counted = counted.plus(packets);
            return;
        }
        match self.place(index) {
            Some(way) if key != NONE => {
                let set = &mut self.sets[index];
                set.keys[way] = key;
                set.worth[way] = 1;
                self.counted[index * WAYS + way].classes[class as usize] = packets;
            }
            _ => self.rest.classes[class as usize] = self.rest.classes[class as usize].plus(packets),
        }
    }

    fn key(&self, source: NodeId, destination: NodeId) -> u32 {
        #[cfg(feature = "bugs")]
        if self.bug == Some(PairsBug::IgnoreSource) {
            return u32::from(destination);
        }
        u32::from(source) << 16 | u32::from(destination)
    }

    /// A free way of the set, with zero counters; else decrements the worth of the least used pair, and may evict it.
    #[cold]
    fn place(&mut self, index: usize) -> Option<usize> {
        let set = &mut self.sets[index];
        if let Some(free) = set.keys.iter().position(|k| *k == NONE) {
            return Some(free);
        }
        let (way, _) = set.worth.iter().enumerate().min_by_key(|(_, worth)| **worth)?;
        #[cfg(feature = "bugs")]
        let way = if self.bug == Some(PairsBug::EvictAnyone) { 0 } else { way };
        #[cfg(feature = "bugs")]
        if self.bug == Some(PairsBug::EvictAnyone) {
            set.worth[way] = 0;
        }
        if set.worth[way] > 0 {
            set.worth[way] -= 1;
            return None;
        }
        let gone = std::mem::take(&mut self.counted[index * WAYS + way]);
        set.keys[way] = NONE;
        self.evicted += 1;
        #[cfg(feature = "bugs")]
        if self.bug == Some(PairsBug::ForgetEvicted) {
            return Some(way);
        }
        self.rest = self.rest.plus(&gone);
        Some(way)
    }

    /// All pairs that are kept, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = Pair> + '_ {
        let keys = self.sets.iter().flat_map(|set| set.keys);
        keys.zip(&self.counted).filter(|(key, _)| *key != NONE).map(|(key, counted)| Pair {
            source: (key >> 16) as NodeId,
            destination: key as NodeId,
            counted: *counted,
        })
    }

    /// The `most` pairs with the most bytes, the greatest first; of equals the lower ids.
    pub fn hottest(&self, most: usize) -> Vec<Pair> {
        let order = |p: &Pair| (std::cmp::Reverse(p.counted.total().bytes), p.source, p.destination);
        let mut pairs: Vec<Pair> = self.iter().collect();
        if most < pairs.len() {
            pairs.select_nth_unstable_by_key(most, order);
            pairs.truncate(most);
        }
        pairs.sort_unstable_by_key(order);
        pairs
    }

    /// Packets of all pairs that are not kept.
    pub fn rest(&self) -> &PairStatistics {
        &self.rest
    }

    /// Pairs that were evicted.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Everything together: all packets ever counted.
    pub fn total(&self) -> PairStatistics {
        self.counted.iter().fold(self.rest, PairStatistics::plus)
    }
}
