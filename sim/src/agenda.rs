// SPDX-License-Identifier: MIT OR Apache-2.0
//! The schedule of calls, earliest first.
//!
//! An entry names the pipe, processor or timer to call, which holds the reason itself. Each has one entry at most (or a
//! few that have become idle), for its next moment, so the agenda stays as small as the cluster, whatever is in flight.
//! Calls at the same moment are made in the order of kinds and numbers: the order is total, and a run is reproducible.
//!
//! Almost all moments are near. Those within the next 4 microseconds go into a ring of buckets, each four nanoseconds
//! wide; the others wait in a heap. Deadlines, faults and ticks, which are no work in progress, wait in a heap of their
//! own, since a run must know when the next of them is.

use crate::units::Time;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A fault of the workload.
    Fault,
    /// The first frame of the pipe from a node to its switch is there.
    Up,
    /// The first frame of the pipe from a switch to a node is there.
    Down,
    /// The first frame of one direction of a trunk is there.
    Trunk,
    /// The oldest guest-memory step of a node is done.
    Step,
    /// A port can take frames again.
    Room,
    /// A node's processor issues.
    Processor,
    /// A node's driver looks at its interrupts and retries.
    Driver,
    /// A node's consumer takes an element.
    Consumer,
    /// A node's board has a deadline.
    Deadline,
    /// A node sends Hello again after its link was closed.
    Link,
    /// A switch's clock advances.
    Switch,
}

const KINDS: [Kind; 12] = [
    Kind::Fault,
    Kind::Up,
    Kind::Down,
    Kind::Trunk,
    Kind::Step,
    Kind::Room,
    Kind::Processor,
    Kind::Driver,
    Kind::Consumer,
    Kind::Deadline,
    Kind::Link,
    Kind::Switch,
];

/// Bits of a bucket's width.
const WIDTH: u32 = 12;
/// Buckets.
const BUCKETS: usize = 1 << 10;
/// Calls that are looked at together before they are made.
const AHEAD: usize = 32;
/// What the ring of buckets covers, in picoseconds.
#[cfg(test)]
const SPAN: Time = (BUCKETS as Time) << WIDTH;

/// A moment, and kind and number of a call in one word: calls are made in ascending order.
pub(crate) type Moment = (Time, u32);
type Entry = Moment;

/// Kind and number in one word.
pub(crate) fn code(kind: Kind, number: u32) -> u32 {
    (kind as u32) << 27 | number
}

/// An entry of a bucket: the moment within its width, then kind and number. Compares like the entry, in one
/// instruction.
type Near = u64;

fn near((at, call): Entry) -> Near {
    (at & ((1 << WIDTH) - 1)) << 32 | u64::from(call)
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Agenda {
    ring: Vec<Vec<Near>>,
    /// One bit for each bucket that is not empty.
    filled: [u64; BUCKETS / 64],
    /// The bucket of the present moment, counted from the beginning of time; its entries are sorted, the next last.
    present: u64,
    sorted: bool,
    /// The present bucket has been sorted since [`Agenda::next`] was called last.
    fresh: bool,
    far: BinaryHeap<Reverse<Entry>>,
    /// Calls that are no work, of later buckets than the present one.
    waiting: BinaryHeap<Reverse<Entry>>,
    /// Those in the ring and in `far`.
    entries: usize,
    /// Of those, the ones that are no work; they are in the present bucket.
    idle: usize,
}

/// Whether a call means that work is in progress.
fn is_work(call: u32) -> bool {
    let kind = call >> 27;
    kind != Kind::Deadline as u32 && kind != Kind::Switch as u32 && kind != Kind::Fault as u32
}

impl Agenda {
    pub(crate) fn new() -> Agenda {
        Agenda {
            ring: vec![Vec::new(); BUCKETS],
            filled: [0; BUCKETS / 64],
            present: 0,
            sorted: false,
            fresh: false,
            far: BinaryHeap::new(),
            waiting: BinaryHeap::new(),
            entries: 0,
            idle: 0,
        }
    }

    /// Calls `number` of `kind` at `at`, which is not before what was called last.
    pub(crate) fn add(&mut self, at: Time, kind: Kind, number: u32) {
        debug_assert!(at >> WIDTH >= self.present && number < 1 << 27);
        let call = code(kind, number);
        if !is_work(call) && at >> WIDTH != self.present {
            return self.waiting.push(Reverse((at, call)));
        }
        self.enter((at, call));
    }

    fn enter(&mut self, entry: Entry) {
        self.entries += 1;
        self.idle += usize::from(!is_work(entry.1));
        self.place(entry);
    }

    /// Whether any work is in progress.
    pub(crate) fn is_busy(&self) -> bool {
        self.entries > self.idle
    }

    /// Calls for work in progress.
    pub(crate) fn work(&self) -> usize {
        self.entries - self.idle
    }

    /// The moment of the first call that is no work.
    pub(crate) fn next_idle(&self) -> Option<Time> {
        let waiting = self.waiting.peek().map(|Reverse((at, _))| *at);
        if self.idle == 0 {
            return waiting;
        }
        let present = self.ring[self.present as usize % BUCKETS].iter().filter(|entry| !is_work(**entry as u32));
        present.map(|entry| self.present << WIDTH | entry >> 32).min().or(waiting)
    }

    fn place(&mut self, entry: Entry) {
        let bucket = entry.0 >> WIDTH;
        if bucket >= self.present + BUCKETS as u64 {
            self.far.push(Reverse(entry));
            return;
        }
        let index = bucket as usize % BUCKETS;
        self.filled[index / 64] |= 1 << (index % 64);
        let entries = &mut self.ring[index];
        let entry = near(entry);
        if bucket == self.present && self.sorted {
            let at = entries.partition_point(|other| *other > entry);
            entries.insert(at, entry);
        } else {
            entries.push(entry);
        }
    }

    /// The next call. Others may still be added before it.
    pub(crate) fn next_moment(&self) -> Option<Moment> {
        let entries = &self.ring[self.present as usize % BUCKETS];
        if let (true, Some(entry)) = (self.sorted, entries.last()) {
            return Some((self.present << WIDTH | entry >> 32, *entry as u32));
        }
        let bucket = if self.entries == 0 { None } else { self.next_filled() };
        let near = bucket.and_then(|bucket| {
            let entry = self.ring[bucket as usize % BUCKETS].iter().min()?;
            Some((bucket << WIDTH | entry >> 32, *entry as u32))
        });
        let first = |heap: &BinaryHeap<Reverse<Entry>>| heap.peek().map(|Reverse(entry)| *entry);
        near.into_iter().chain(first(&self.far)).chain(first(&self.waiting)).min()
    }

    /// Takes the next call.
    pub(crate) fn next(&mut self) -> Option<(Time, Kind, u32)> {
        self.advance()?;
        let index = self.present as usize % BUCKETS;
        let entries = &mut self.ring[index];
        let entry = entries.pop()?;
        let (at, call) = (self.present << WIDTH | entry >> 32, entry as u32);
        if entries.is_empty() {
            self.filled[index / 64] &= !(1 << (index % 64));
        }
        self.entries -= 1;
        self.idle -= usize::from(!is_work(call));
        Some((at, KINDS[(call >> 27) as usize], call & ((1 << 27) - 1)))
    }

    /// The calls after the one that [`Agenda::next`] has returned last, if it is time to look at them: some of those of
    /// the same few nanoseconds, each of which is among them once.
    pub(crate) fn ahead(&mut self) -> Option<impl Iterator<Item = (Kind, u32)> + '_> {
        let entries = &self.ring[self.present as usize % BUCKETS];
        if entries.len() < 2 || !std::mem::take(&mut self.fresh) && entries.len() % AHEAD != 0 {
            return None;
        }
        // So many that the next time is when the rest is a multiple.
        let count = match entries.len() % AHEAD {
            0 => AHEAD,
            rest => rest,
        };
        Some(entries.iter().rev().take(count).map(|entry| {
            let call = *entry as u32;
            (KINDS[(call >> 27) as usize], call & ((1 << 27) - 1))
        }))
    }

    /// Makes the bucket of the next entry the present one, sorted.
    fn advance(&mut self) -> Option<()> {
        if self.ring[self.present as usize % BUCKETS].is_empty() {
            self.sorted = false;
            let far = |heap: &BinaryHeap<Reverse<Entry>>| heap.peek().map(|Reverse((at, _))| at >> WIDTH);
            let work = if self.entries == 0 { None } else { self.next_filled().or_else(|| far(&self.far)) };
            self.present = work.into_iter().chain(far(&self.waiting)).min()?;
            while far(&self.far).is_some_and(|bucket| bucket < self.present + BUCKETS as u64) {
                let Some(Reverse(entry)) = self.far.pop() else { break };
                self.place(entry);
            }
            while far(&self.waiting) == Some(self.present) {
                let Some(Reverse(entry)) = self.waiting.pop() else { break };
                self.enter(entry);
            }
        }
        if !self.sorted {
            self.ring[self.present as usize % BUCKETS].sort_unstable_by_key(|entry| Reverse(*entry));
            (self.sorted, self.fresh) = (true, true);
        }
        Some(())
    }

    /// The next bucket in the ring that is not empty.
    fn next_filled(&self) -> Option<u64> {
        let start = self.present as usize % BUCKETS;
        let words = BUCKETS / 64;
        for step in 0..=words {
            let word = (start / 64 + step) % words;
            let mut bits = self.filled[word];
            if step == 0 {
                bits &= u64::MAX << (start % 64);
            } else if step == words {
                bits &= !(u64::MAX << (start % 64));
            }
            if bits != 0 {
                let index = word * 64 + bits.trailing_zeros() as usize;
                return Some(self.present + ((index + BUCKETS - start) % BUCKETS) as u64);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Against a plain heap, with moments near and far, many of them equal.
    #[test]
    fn calls_come_in_order() {
        let first = |plain: &BinaryHeap<Reverse<(Time, Kind, u32)>>| {
            plain.peek().map(|Reverse((at, kind, number))| (*at, code(*kind, *number)))
        };
        for seed in 0..20 {
            let mut random = Random::new(seed, 0);
            let (mut agenda, mut plain) = (Agenda::new(), BinaryHeap::new());
            let mut now = 0;
            for number in 0..2000 {
                assert_eq!(agenda.next_moment(), first(&plain), "seed {seed}");
                for _ in 0..random.below(3) {
                    let spans = [1, 10_000, 1 << WIDTH, SPAN, 3 * SPAN, 1000 * SPAN];
                    let span = spans[random.below(6) as usize];
                    let at = now + random.below(span);
                    let kind = KINDS[random.below(12) as usize];
                    agenda.add(at, kind, number);
                    plain.push(Reverse((at, kind, number)));
                }
                let idle = plain.iter().filter(|e| !is_work(code(e.0.1, 0))).map(|e| e.0.0).min();
                assert_eq!(agenda.next_idle(), idle, "seed {seed}");
                assert_eq!(agenda.work(), plain.iter().filter(|e| is_work(code(e.0.1, 0))).count(), "seed {seed}");
                assert_eq!(agenda.next_moment(), first(&plain), "seed {seed}");
                let next = agenda.next();
                assert_eq!(next, plain.pop().map(|e| e.0), "seed {seed}");
                now = next.map_or(now, |n| n.0);
            }
        }
    }
}
