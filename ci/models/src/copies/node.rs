// SPDX-License-Identifier: MIT OR Apache-2.0
//! One node of the model: its board, its program, its memory, and its local properties.

use super::{Fault, I3, I4, I5, Op, Setup, Steps, Word};
use std::collections::{BTreeMap, VecDeque};
use std::hash::Hash;
use telegraphos_device_core::{Action, Bar, Event, Hib, Step, StepId, StepResult};
use telegraphos_testkit::world::{EXPORTS, STATUS_PAGES};
use telegraphos_wire::admin;
use telegraphos_wire::{Aperture, Body, Class, NodeId, Packet, UNIT, WindowAddress, context};

/// A store in memory: the first granule, how many, and their value.
type Stored = (Word, u32, u64);

/// A step of a node. Only steps change the node, and a step affects other nodes only by the packets it sends.
#[derive(Clone, Debug)]
pub(super) enum Local {
    /// The next operation of its program.
    Run,
    /// The oldest posted store, at its board.
    Arrive,
    /// A step of its board, in memory.
    Perform(StepId),
    Take(Packet),
}

/// Hashes of equal nodes are equal, the board's included: two boards that hash alike behave alike.
#[derive(Clone, Debug, Hash)]
pub(super) struct Node {
    id: NodeId,
    hib: Hib,
    memory: BTreeMap<Word, u64>,
    /// Values of each granule here, in order.
    pub(super) had: BTreeMap<Word, Vec<u64>>,
    steps: BTreeMap<StepId, Stored>,
    pub(super) posted: VecDeque<Stored>,
    pub(super) next: usize,
    /// By page: stores that the board has taken, of this program; stores by any node that were performed here.
    taken: BTreeMap<u32, u64>,
    stored: BTreeMap<u32, u64>,
    /// By page and aligned 8-byte word: own stores that have returned.
    reflected: BTreeMap<(u32, u32), u64>,
    /// A fence waits for the board's answer; the answer has arrived.
    fencing: Option<bool>,
    /// The values read by loads.
    pub(super) read: Vec<u64>,
    /// The faults of this node so far.
    pub(super) faults: BTreeMap<&'static str, String>,
}

impl Node {
    pub(super) fn new(setup: &Setup, id: NodeId, hib: Hib) -> Node {
        let mut node = Node {
            id,
            hib,
            memory: BTreeMap::new(),
            had: BTreeMap::new(),
            steps: BTreeMap::new(),
            posted: VecDeque::new(),
            next: 0,
            taken: BTreeMap::new(),
            stored: BTreeMap::new(),
            reflected: BTreeMap::new(),
            fencing: None,
            read: Vec::new(),
            faults: BTreeMap::new(),
        };
        if setup.steps == Steps::Reduced {
            node.post(setup);
        }
        node
    }

    fn program<'a>(&self, setup: &'a Setup) -> &'a [Op] {
        &setup.programs[usize::from(self.id)]
    }

    pub(super) fn taken(&self, page: u32) -> u64 {
        self.taken.get(&page).copied().unwrap_or(0)
    }

    pub(super) fn stored(&self, page: u32) -> u64 {
        self.stored.get(&page).copied().unwrap_or(0)
    }

    pub(super) fn value(&self, word: Word) -> u64 {
        self.memory.get(&word).copied().unwrap_or(0)
    }

    pub(super) fn pending_counters(&self) -> usize {
        self.hib.pending_counters()
    }

    /// The program and everything it has begun have ended.
    pub(super) fn is_idle(&self, setup: &Setup) -> bool {
        let ended = self.next == self.program(setup).len() && self.fencing.is_none();
        let all = |page| own_stores(self.program(setup), page).count() as u64;
        let taken = (0..setup.homes.len() as u32).all(|page| self.taken(page) == all(page));
        ended && taken && self.posted.is_empty() && self.steps.is_empty()
    }

    /// Whether the program's next operation is possible.
    pub(super) fn can_run(&self, setup: &Setup) -> bool {
        match self.program(setup).get(self.next) {
            None => false,
            Some(Op::Store(..) | Op::Wide(..) | Op::Raw(_)) => true,
            // E22b: the board has taken what the program has stored to the page.
            Some(Op::Await(word, value)) => self.value(*word) == *value,
            Some(Op::Load(word)) if setup.stalled_reads => {
                let made = own_stores(&self.program(setup)[..self.next], word.page).count() as u64;
                let home = setup.homes[word.page as usize] == self.id;
                let back = self.reflected.iter().filter(|((page, _), _)| *page == word.page).map(|(_, n)| n).sum();
                let here: u64 = if home { self.taken(word.page) } else { back };
                here >= made && self.steps.values().all(|(at, ..)| at.page != word.page)
            }
            Some(Op::Load(word)) => {
                let made = own_stores(&self.program(setup)[..self.next], word.page).count();
                self.taken(word.page) >= made as u64
            }
            // The fence's own store is posted behind the others.
            Some(Op::Fence) => self.fencing != Some(false) && (self.fencing.is_some() || self.posted.is_empty()),
        }
    }

    pub(super) fn fence_is_over(&self) -> bool {
        self.fencing == Some(true)
    }

    pub(super) fn steps(&self) -> impl Iterator<Item = StepId> {
        self.steps.keys().copied()
    }

    /// The step's location and value.
    pub(super) fn step(&self, step: StepId) -> Option<Stored> {
        self.steps.get(&step).copied()
    }

    /// Performs a step and returns the packets sent. In a reduced model, the steps listed in `reduce.rs` happen at
    /// once.
    pub(super) fn happens(&mut self, setup: &Setup, event: Local, sent: &mut Vec<Packet>) {
        match event {
            Local::Run => self.run(setup, sent),
            Local::Arrive => {
                let Some((word, count, value)) = self.posted.pop_front() else { return };
                let layout = self.hib.config().window;
                let offset = u64::from(word.page) * UNIT + u64::from(word.index * setup.granule);
                let place = WindowAddress { aperture: Aperture::Plain, node: self.id, offset };
                let Some(offset) = layout.encode(place) else { return };
                let size = count * setup.granule;
                let data = (0..count).fold(0, |data, n| data | value.wrapping_shl(8 * setup.granule * n));
                self.handle(setup, Event::Write { bar: Bar::Window, offset, size, data }, sent);
            }
            Local::Perform(step) => self.perform(setup, step, sent),
            Local::Take(packet) => {
                if let Body::Reflected { at, writer, .. } = packet.body {
                    *self.reflected.entry((at.page, at.offset / 8)).or_default() += u64::from(writer == self.id);
                }
                self.handle(setup, Event::Packet(packet), sent);
            }
        }
        if setup.steps == Steps::Reduced {
            while let Some(step) = self.steps.keys().next().copied() {
                self.perform(setup, step, sent);
            }
            self.post(setup);
        }
        self.check_counters(setup);
    }

    fn run(&mut self, setup: &Setup, sent: &mut Vec<Packet>) {
        let Some(op) = self.program(setup).get(self.next).copied() else { return };
        match op {
            Op::Store(word, value) => self.posted.push_back((word, 1, value)),
            Op::Wide(word, count, value) => self.posted.push_back((word, count, value)),
            Op::Load(word) | Op::Raw(word) => self.read.push(self.value(word)),
            Op::Await(..) => {}
            Op::Fence if self.fencing == Some(true) => self.fencing = None,
            Op::Fence => {
                self.fencing = Some(false);
                let data = context::QUIET_ALL << context::COOKIE_BITS | (self.next as u64 + 1);
                let quiet = Event::Write { bar: Bar::Contexts, offset: context::QUIET, size: 8, data };
                return self.handle(setup, quiet, sent);
            }
        }
        self.next += 1;
    }

    fn post(&mut self, setup: &Setup) {
        while let Some(Op::Store(..) | Op::Wide(..)) = self.program(setup).get(self.next) {
            self.run(setup, &mut Vec::new());
        }
    }

    fn perform(&mut self, setup: &Setup, step: StepId, sent: &mut Vec<Packet>) {
        let Some((word, count, data)) = self.steps.remove(&step) else { return };
        for n in 0..count {
            let word = Word { index: word.index + n, ..word };
            let bits = 8 * setup.granule;
            let value = data.wrapping_shr(bits * n) & u64::MAX >> (64 - bits);
            self.memory.insert(word, value);
            let had = self.had.entry(word).or_default();
            if setup.mode == admin::OWNER && had.last() == Some(&value) {
                continue; // The writer's own store has returned: no reader sees a change.
            }
            had.push(value);
            if had[..had.len() - 1].contains(&value) {
                let text = format!("{word} of node {} had {had:?}", self.id);
                self.faults.entry(I5).or_insert(text);
            }
        }
        *self.stored.entry(word.page).or_default() += 1;
        self.handle(setup, Event::StepDone { step, result: StepResult::Stored }, sent);
        self.check_own(setup, word.page);
    }

    /// Lets the board handle an event, and all steps at its own tables. The network takes each packet at once.
    fn handle(&mut self, setup: &Setup, event: Event, sent: &mut Vec<Packet>) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut actions = Vec::new();
            self.hib.handle(event, &mut actions);
            // Stores to replicated pages are acknowledged at once, whatever a turn is.
            assert!(!self.hib.owes_acknowledgements());
            for action in actions {
                match action {
                    Action::Send(packet) => {
                        let class = packet.class();
                        if class != Class::Reply {
                            events.push_back(Event::Credit { class, count: 1 });
                        }
                        sent.push(packet);
                    }
                    Action::Step { step, op: Step::Store { address, size, data } } if address >= EXPORTS => {
                        let at = address - EXPORTS;
                        let index = (at % UNIT) as u32 / setup.granule;
                        let word = Word { page: (at / UNIT) as u32, index };
                        self.steps.insert(step, (word, u32::from(size) / setup.granule, data));
                    }
                    Action::Step { step, op: Step::Store { address, data, .. } } => {
                        let taken = STATUS_PAGES + context::TAKEN_OFFSET;
                        if (taken..taken + 8 * 256).contains(&address) {
                            let page = ((address - taken) / 8) as u32;
                            self.taken.insert(page, data);
                            self.check_own(setup, page);
                        } else if address == STATUS_PAGES {
                            self.fencing = Some(true);
                        }
                        events.push_back(Event::StepDone { step, result: StepResult::Stored });
                    }
                    Action::Step { op, .. } => panic!("unexpected action of the board: {op:?}"),
                    _ => {}
                }
            }
        }
    }

    /// I4, E22b: a load that waited for the stores taken so far reads the last of them, or a later store of another
    /// node.
    fn check_own(&mut self, setup: &Setup, page: u32) {
        if setup.stalled_reads {
            return; // Such a load waits for more.
        }
        let taken = self.taken(page) as usize;
        let mine: Vec<Stored> = own_stores(self.program(setup), page).take(taken).collect();
        let touched =
            mine.iter().flat_map(|(word, count, _)| (0..*count).map(move |n| Word { index: word.index + n, ..*word }));
        for word in touched {
            let covers = |(at, count, _): &&Stored| (at.index..at.index + count).contains(&word.index);
            let own: Vec<u64> = mine.iter().filter(covers).map(|(_, _, value)| *value).collect();
            let had = self.had.get(&word).map_or(&[][..], Vec::as_slice);
            let (Some(last), now) = (own.last(), had.last().copied().unwrap_or(0)) else { continue };
            if now != *last && (own.contains(&now) || !had.contains(last)) {
                let text = format!("node {} stored {own:?} to {word}, and then reads {now}", self.id);
                self.faults.entry(I4).or_insert(text);
            }
        }
    }

    /// I3: whenever no step is in progress, the number of counters in use is that of words with stores taken here that
    /// have not returned.
    fn check_counters(&mut self, setup: &Setup) {
        if !self.steps.is_empty() || setup.mode == admin::NAIVE {
            return;
        }
        let mut taken: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        for (page, home) in setup.homes.iter().enumerate() {
            if *home != self.id && setup.mode == admin::COUNTERS {
                let page = page as u32;
                let mine = own_stores(self.program(setup), page).take(self.taken(page) as usize);
                mine.for_each(|(at, ..)| *taken.entry((page, at.index * setup.granule / 8)).or_default() += 1);
            }
        }
        let out = |(word, taken): &(&(u32, u32), &u64)| **taken != self.reflected.get(*word).copied().unwrap_or(0);
        let (expected, found) = (taken.iter().filter(out).count(), self.hib.pending_counters());
        if expected != found {
            let text = format!("node {} has {found} counters in use, and {expected} words not come back", self.id);
            self.faults.entry(I3).or_insert(text);
        }
    }

    /// The faults of this node.
    pub(super) fn fault(&self, property: &str) -> Option<Fault> {
        self.faults.get(property).cloned()
    }
}

/// A program's stores to a page, in order.
fn own_stores(program: &[Op], page: u32) -> impl Iterator<Item = Stored> {
    program.iter().filter_map(move |op| match op {
        Op::Store(word, value) if word.page == page => Some((*word, 1, *value)),
        Op::Wide(word, count, value) if word.page == page => Some((*word, *count, *value)),
        _ => None,
    })
}
