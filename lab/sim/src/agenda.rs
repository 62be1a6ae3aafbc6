// SPDX-License-Identifier: MIT OR Apache-2.0
//! The schedule of calls.
//!
//! An entry names the pipe, processor or timer to call, which holds the reason itself. Each has one entry at most (or a
//! few that have become idle), for its next moment, so the agenda stays as small as the cluster, whatever is in flight.
//! Calls at the same moment are made in the order of kinds and numbers: the order is total, and a run is reproducible.
//!
//! A *cell* is a switch with its nodes, or, of a switch with many nodes, the switch and each of its nodes. It has its
//! own list of entries. Nothing that one cell does concerns another before the look-ahead has passed
//! (`Plan::look_ahead`). So calls are made in *windows*, which are at most as long: [`Agenda::begin`] says how far to
//! go, [`Agenda::next_cell`] names a cell that has calls before then, those with switches first, and
//! [`Agenda::next_of_cell`] gives all of them, in their order, before it is the turn of the next cell. What a call
//! needs the call before it has left in the processor's caches; in the order of their moments, calls of a thousand
//! cells would follow each other, and each would find nothing there.
//!
//! Which cell is next is found in a ring of buckets, each at most the look-ahead wide. What concerns several cells, and
//! deadlines and ticks, which are no work in progress, wait in a heap of their own, since a run must know when the next
//! of them is. Where the order between cells matters ([`Agenda::next`]), all entries are put into one heap first.

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
    Processor,
    /// A node's driver looks at its interrupts and retries.
    Driver,
    /// A node's consumer takes an element.
    Consumer,
    /// A node's board has a deadline.
    Deadline,
    /// A node sends Hello again after its link was closed.
    Link,
    Switch,
    /// A node is switched on.
    Start,
}

const KINDS: [Kind; 13] = [
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
    Kind::Start,
];

/// Buckets of the ring: a power of two.
const BUCKETS: u64 = 256;
/// Calls that are looked at together before they are made.
const AHEAD: usize = 32;
/// The bucket of a cell that is in none.
const NOWHERE: u64 = u64::MAX;

/// A moment, and kind and number of a call in one word: calls are made in ascending order.
pub(crate) type Moment = (Time, u32);
/// The number of a cell.
pub(crate) type CellId = u32;

/// Kind and number in one word.
pub(crate) fn code(kind: Kind, number: u32) -> u32 {
    (kind as u32) << 27 | number
}

/// Kind and number.
fn decoded(call: u32) -> (Kind, u32) {
    (KINDS[(call >> 27) as usize], call & ((1 << 27) - 1))
}

/// Whether a call means that work is in progress.
fn is_work(call: u32) -> bool {
    let kind = call >> 27;
    kind != Kind::Deadline as u32 && kind != Kind::Switch as u32 && kind != Kind::Fault as u32
}

#[derive(Debug)]
struct Cell {
    /// The moment of the first of its entries; the greatest if there is none.
    first: Time,
    /// The bucket it is in. It may be in later ones too, from before there was an earlier entry.
    bucket: u64,
    /// In no order.
    entries: Vec<Moment>,
}

/// Cells by the bucket of their first entry, counted from the beginning of time.
#[derive(Debug)]
struct Ring {
    buckets: Vec<Vec<CellId>>,
    /// One bit for each bucket that is not empty.
    filled: [u64; BUCKETS as usize / 64],
    /// No cell is in an earlier bucket.
    present: u64,
    /// Cells whose bucket is beyond the ring.
    far: BinaryHeap<Reverse<(u64, CellId)>>,
}

impl Ring {
    fn new() -> Ring {
        Ring {
            buckets: vec![Vec::new(); BUCKETS as usize],
            filled: [0; BUCKETS as usize / 64],
            present: 0,
            far: BinaryHeap::new(),
        }
    }

    fn clear(&mut self, present: u64) {
        self.buckets.iter_mut().for_each(Vec::clear);
        self.filled = [0; BUCKETS as usize / 64];
        self.far.clear();
        self.present = present;
    }

    fn add(&mut self, bucket: u64, cell: CellId) {
        self.present = self.present.min(bucket);
        if bucket >= self.present + BUCKETS {
            return self.far.push(Reverse((bucket, cell)));
        }
        let index = (bucket % BUCKETS) as usize;
        self.filled[index / 64] |= 1 << (index % 64);
        self.buckets[index].push(cell);
    }

    fn first(&self) -> Option<u64> {
        let far = self.far.peek().map(|Reverse((bucket, _))| *bucket);
        self.next_filled(self.present).into_iter().chain(far).min()
    }

    /// Advances to the first bucket that is not empty, which it returns.
    fn advance(&mut self) -> Option<u64> {
        self.present = self.first()?;
        let end = self.present + BUCKETS;
        while self.far.peek().is_some_and(|Reverse((bucket, _))| *bucket < end) {
            if let Some(Reverse((bucket, cell))) = self.far.pop() {
                self.add(bucket, cell);
            }
        }
        Some(self.present)
    }

    /// Exchanges a bucket for an empty list.
    fn take(&mut self, bucket: u64, empty: &mut Vec<CellId>) {
        let index = (bucket % BUCKETS) as usize;
        self.filled[index / 64] &= !(1 << (index % 64));
        std::mem::swap(empty, &mut self.buckets[index]);
    }

    /// The first bucket from this on, up to the end of the ring, that is not empty.
    fn next_filled(&self, from: u64) -> Option<u64> {
        let end = self.present.saturating_add(BUCKETS);
        let mut bucket = from;
        while bucket < end {
            let index = (bucket % BUCKETS) as usize;
            let bits = self.filled[index / 64] >> (index % 64);
            if bits != 0 {
                return Some(bucket + u64::from(bits.trailing_zeros())).filter(|bucket| *bucket < end);
            }
            bucket += 64 - (index % 64) as u64;
        }
        None
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Agenda {
    /// Those with switches, then the others.
    cells: Vec<Cell>,
    switches: CellId,
    /// Bits of a bucket's width.
    width: u32,
    /// Of cells with switches, and of the others.
    rings: [Ring; 2],
    /// Calls that are no work, and those that concern several cells.
    waiting: BinaryHeap<Reverse<Moment>>,
    /// Calls that are work.
    work: usize,
    /// No call is earlier.
    earliest: Time,
    /// The end of the window, exclusively.
    end: Time,
    /// A window is in progress: in this ring.
    window: Option<usize>,
    /// The bucket of the window after those that have been taken.
    next: u64,
    /// The cells of the last of them that are still to be looked at.
    turns: Vec<CellId>,
    running: Option<CellId>,
    /// Of the running cell: its calls within the window, the next last, and those that were added to them.
    near: Vec<Moment>,
    added: BinaryHeap<Reverse<Moment>>,
    /// The running cell has just begun.
    fresh: bool,
    /// All entries of all cells, if calls are made in the order of their moments.
    ordered: Option<BinaryHeap<Reverse<(Moment, CellId)>>>,
}

impl Agenda {
    /// Of so many cells, of which so many are with switches and numbered first, with windows of at most this length.
    pub(crate) fn new(cells: usize, switches: usize, look_ahead: Time) -> Agenda {
        let cell = || Cell { first: Time::MAX, bucket: NOWHERE, entries: Vec::new() };
        Agenda {
            cells: (0..cells).map(|_| cell()).collect(),
            switches: switches as CellId,
            width: look_ahead.max(1).ilog2(),
            rings: [Ring::new(), Ring::new()],
            waiting: BinaryHeap::new(),
            work: 0,
            earliest: 0,
            end: 0,
            window: None,
            next: 0,
            turns: Vec::new(),
            running: None,
            near: Vec::new(),
            added: BinaryHeap::new(),
            fresh: false,
            ordered: None,
        }
    }

    /// Calls `number` of `kind`, which is of this cell, at `at`: not before what was called last in that cell, and not
    /// within the window if that cell is not the running one.
    pub(crate) fn add(&mut self, at: Time, cell: CellId, kind: Kind, number: u32) {
        let call = code(kind, number);
        let within = self.running == Some(cell) && at < self.end;
        debug_assert!(number < 1 << 27 && (within || self.window.is_none() || at >= self.end));
        if within {
            // Whether one that is no work is made is known: something is in progress until the end of the window.
            self.work += usize::from(is_work(call));
            return self.added.push(Reverse((at, call)));
        }
        if !is_work(call) {
            return self.waiting.push(Reverse((at, call)));
        }
        self.work += 1;
        match &mut self.ordered {
            Some(ordered) => ordered.push(Reverse(((at, call), cell))),
            None => self.enter(cell, (at, call)),
        }
    }

    /// The same of what concerns several cells: not within the window.
    pub(crate) fn add_common(&mut self, at: Time, kind: Kind, number: u32) {
        let call = code(kind, number);
        debug_assert!(number < 1 << 27 && (self.window.is_none() || at >= self.end));
        self.work += usize::from(is_work(call));
        self.waiting.push(Reverse((at, call)));
    }

    fn enter(&mut self, number: CellId, entry: Moment) {
        let Some(cell) = self.cells.get_mut(number as usize) else { return };
        cell.entries.push(entry);
        if entry.0 < cell.first {
            cell.first = entry.0;
            // The running cell is put into its bucket when it ends.
            if self.running != Some(number) {
                self.earliest = self.earliest.min(entry.0);
                self.place(number);
            }
        }
    }

    /// Puts a cell into the bucket of its first entry.
    fn place(&mut self, number: CellId) {
        let cell = &mut self.cells[number as usize];
        let bucket = cell.first >> self.width;
        if bucket < cell.bucket {
            cell.bucket = bucket;
            self.rings[usize::from(number >= self.switches)].add(bucket, number);
        }
    }

    /// Whether any work is in progress.
    pub(crate) fn is_busy(&self) -> bool {
        self.work > 0
    }

    /// Calls for work in progress.
    pub(crate) fn work(&self) -> usize {
        self.work
    }

    /// The moment of the first call that is no work, or concerns several cells.
    pub(crate) fn next_idle(&self) -> Option<Time> {
        self.waiting.peek().map(|Reverse((at, _))| *at)
    }

    // ---- window by window, cell by cell ----

    /// A moment that no call which is work is before, if there is such a call.
    pub(crate) fn earliest(&self) -> Option<Time> {
        if self.work == 0 {
            return None;
        }
        if let Some(ordered) = &self.ordered {
            return ordered.peek().map(|Reverse(((at, _), _))| *at);
        }
        let first = self.rings.iter().filter_map(Ring::first).min().map_or(0, |bucket| bucket << self.width);
        Some(self.earliest.max(first))
    }

    /// Begins a window, which ends at `end`, exclusively. All that is in [`Agenda::next_idle`] is behind it.
    pub(crate) fn begin(&mut self, end: Time) {
        if let Some(ordered) = self.ordered.take() {
            self.earliest = Time::MAX;
            let first = ordered.peek().map_or(0, |Reverse(((at, _), _))| at >> self.width);
            self.rings.iter_mut().for_each(|ring| ring.clear(first));
            for Reverse((entry, cell)) in ordered.into_vec() {
                self.enter(cell, entry);
            }
        }
        self.end = end;
        self.begin_ring(0);
    }

    fn begin_ring(&mut self, ring: usize) {
        self.window = Some(ring);
        self.next = self.rings[ring].advance().unwrap_or(u64::MAX);
    }

    /// Makes the next cell that has calls within the window the running one; false if there is none, which ends the
    /// window.
    pub(crate) fn next_cell(&mut self) -> bool {
        self.stop_running();
        while let Some(ring) = self.window {
            let Some(number) = self.turns.pop() else {
                if !self.next_bucket(ring) {
                    match ring {
                        0 => self.begin_ring(1),
                        _ => (self.earliest, self.window) = (self.end, None),
                    }
                }
                continue;
            };
            let bucket = self.next - 1;
            let cell = &self.cells[number as usize];
            if cell.bucket == bucket && cell.first < self.end {
                self.run(number);
                return true;
            }
            // Else it was put into an earlier bucket later; or it is to stay here: behind the window, or in another
            // round of the ring.
            if cell.bucket >= bucket && cell.bucket != NOWHERE && cell.bucket % BUCKETS == bucket % BUCKETS {
                self.rings[ring].add(cell.bucket, number);
            }
        }
        false
    }

    /// Takes the cells of the next bucket of the window.
    fn next_bucket(&mut self, ring: usize) -> bool {
        let last = self.end.saturating_sub(1) >> self.width;
        let next = self.rings[ring].next_filled(self.next).filter(|bucket| *bucket <= last);
        let Some(bucket) = next else { return false };
        self.next = bucket + 1;
        self.rings[ring].take(bucket, &mut self.turns);
        // The last is next. Cells that follow each other lie beside each other in memory.
        self.turns.sort_unstable_by_key(|cell| Reverse(*cell));
        true
    }

    /// A cell begins: what it has within the window is sorted.
    fn run(&mut self, number: CellId) {
        let cell = &mut self.cells[number as usize];
        let (near, end) = (&mut self.near, self.end);
        let mut first = Time::MAX;
        cell.entries.retain(|entry| {
            if entry.0 < end {
                near.push(*entry);
                return false;
            }
            first = first.min(entry.0);
            true
        });
        (cell.first, cell.bucket) = (first, NOWHERE);
        near.sort_unstable_by_key(|entry| Reverse(*entry));
        (self.running, self.fresh) = (Some(number), true);
    }

    fn stop_running(&mut self) {
        let Some(number) = self.running.take() else { return };
        debug_assert!(self.near.is_empty() && self.added.is_empty());
        if self.cells[number as usize].first != Time::MAX {
            self.place(number);
        }
    }

    /// The next call of the running cell within the window.
    pub(crate) fn next_of_cell(&mut self) -> Option<(Time, Kind, u32)> {
        let added = self.added.peek().map(|Reverse(entry)| *entry);
        let (at, call) = match (self.near.last().copied(), added) {
            (Some(near), Some(added)) if added < near => self.added.pop()?.0,
            (None, Some(_)) => self.added.pop()?.0,
            _ => self.near.pop()?,
        };
        self.work -= usize::from(is_work(call));
        let (kind, number) = decoded(call);
        Some((at, kind, number))
    }

    pub(crate) fn running(&self) -> Option<CellId> {
        self.running
    }

    /// Whether the running cell has just begun.
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// The calls after the one that [`Agenda::next_of_cell`] has returned last, if it is time to look at them, each
    /// once. Few need no look: what they need is fetched with the first of them.
    pub(crate) fn ahead(&mut self) -> Option<impl Iterator<Item = (Kind, u32)> + '_> {
        let rest = self.near.len();
        if rest < 2 || !std::mem::take(&mut self.fresh) && rest % AHEAD != 0 {
            return None;
        }
        // So many that the next time is when the rest is a multiple.
        let count = match rest % AHEAD {
            0 => AHEAD,
            count => count,
        };
        Some(self.near.iter().rev().take(count).map(|(_, call)| decoded(*call)))
    }

    // ---- call by call, in the order of their moments ----

    /// The next call of all cells. Others may still be added before it.
    pub(crate) fn next_moment(&mut self) -> Option<Moment> {
        let first = self.ordered().peek().map(|Reverse((moment, _))| *moment);
        first.into_iter().chain(self.waiting.peek().map(|Reverse(moment)| *moment)).min()
    }

    /// Takes the next call of all cells.
    pub(crate) fn next(&mut self) -> Option<(Time, Kind, u32)> {
        let next = self.next_moment()?;
        if self.waiting.peek() == Some(&Reverse(next)) {
            self.waiting.pop();
        } else {
            self.ordered().pop();
        }
        self.work -= usize::from(is_work(next.1));
        let (kind, number) = decoded(next.1);
        Some((next.0, kind, number))
    }

    fn ordered(&mut self) -> &mut BinaryHeap<Reverse<(Moment, CellId)>> {
        let cells = &mut self.cells;
        self.ordered.get_or_insert_with(|| {
            let mut all = Vec::new();
            for (number, cell) in (0..).zip(cells) {
                all.extend(cell.entries.drain(..).map(|entry| Reverse((entry, number))));
                (cell.first, cell.bucket) = (Time::MAX, NOWHERE);
            }
            all.into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const LOOK_AHEAD: Time = 700_640;
    const CELLS: u64 = 5;

    /// Against a plain heap: in one order, and in windows, in which each cell has its calls in their order; moments
    /// near and far, many of them equal.
    #[test]
    fn calls_come_in_order() {
        for seed in 0..40 {
            let mut random = Random::new(seed, 0);
            let mut agenda = Agenda::new(CELLS as usize, 2, LOOK_AHEAD);
            let mut plain: BinaryHeap<Reverse<(Moment, CellId)>> = BinaryHeap::new();
            let add = |agenda: &mut Agenda, plain: &mut BinaryHeap<_>, random: &mut Random, cell: CellId, after| {
                let spans = [1, 10_000, 100_000, LOOK_AHEAD, 3 * LOOK_AHEAD, 1000 * LOOK_AHEAD];
                let span = spans[random.below(6) as usize];
                let at = after + random.below(span);
                // The number tells the cell.
                let (kind, number) =
                    (KINDS[random.below(KINDS.len() as u64) as usize], random.below(1000) as u32 * 8 + cell);
                agenda.add(at, cell, kind, number);
                plain.push(Reverse(((at, code(kind, number)), cell)));
            };
            let mut now = 0;
            for _ in 0..300 {
                for _ in 0..random.below(8) {
                    let cell = random.below(CELLS) as CellId;
                    add(&mut agenda, &mut plain, &mut random, cell, now);
                }
                let work: Vec<Time> = plain.iter().filter(|e| is_work(e.0.0.1)).map(|e| e.0.0.0).collect();
                let idle = plain.iter().filter(|e| !is_work(e.0.0.1)).map(|e| e.0.0.0).min();
                assert_eq!((agenda.work(), agenda.next_idle()), (work.len(), idle), "seed {seed}");
                let first = agenda.earliest();
                assert_eq!(first.is_some(), !work.is_empty(), "seed {seed}");
                assert!(first <= work.iter().min().copied(), "seed {seed}");
                let end = first.map(|first| (first + LOOK_AHEAD).min(idle.unwrap_or(Time::MAX)));
                if random.below(3) > 0 {
                    if let Some(end) = end.filter(|end| Some(*end) > first) {
                        // A window: what is within it comes once, each cell's in order.
                        let mut made = Vec::new();
                        agenda.begin(end);
                        while agenda.next_cell() {
                            let mut cell_now = 0;
                            while let Some((at, kind, number)) = agenda.next_of_cell() {
                                let moment = (at, code(kind, number));
                                assert!(at >= cell_now && at < end, "seed {seed}");
                                (cell_now, now) = (at, now.max(at));
                                made.push(moment);
                                let cell = number % 8;
                                if random.below(3) == 0 {
                                    add(&mut agenda, &mut plain, &mut random, cell, at);
                                }
                                if random.below(3) == 0 {
                                    let other = random.below(CELLS) as CellId;
                                    add(&mut agenda, &mut plain, &mut random, other, end);
                                }
                            }
                        }
                        made.sort_unstable();
                        for moment in made {
                            assert_eq!(plain.pop().map(|e| e.0.0), Some(moment), "seed {seed}");
                        }
                        assert!(plain.peek().is_none_or(|e| e.0.0.0 >= end), "seed {seed}");
                        continue;
                    }
                }
                for _ in 0..random.below(5) {
                    assert_eq!(agenda.next_moment(), plain.peek().map(|e| e.0.0), "seed {seed}");
                    let next = agenda.next().map(|(at, kind, number)| (at, code(kind, number)));
                    assert_eq!(next, plain.pop().map(|e| e.0.0), "seed {seed}");
                    now = next.map_or(now, |next| next.0);
                }
            }
        }
    }
}
