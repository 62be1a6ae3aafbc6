// SPDX-License-Identifier: MIT OR Apache-2.0
//! What every organ of the board is given: its configuration, the time, and the ways out of the core.
//!
//! Nothing in here knows an organ. What an organ does to the outside (a packet, a step, a word of a table, an event) it
//! does through its [`Ctx`].

use crate::admin::Admin;
use crate::answers::Answers;
use crate::config::Bug;
use crate::control::Registers;
use crate::events::Events;
use crate::launch::TURN_BLOCKS;
use crate::link::Link;
use crate::tables::Tables;
use crate::{Action, Bar, Counters, HibConfig, Notice, Step, StepId, Token};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use telegraphos_wire::{NodeId, Packet, Status};

/// Why a step was started: who gets its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StepOwner {
    /// The request at the head of a source's queue.
    Serve(NodeId),
    /// The command of an admin slot.
    Command(u32),
    /// The next store of the table write with this number.
    TableWrite(u64),
    /// A block of a copy at this node's end, and the export page it touches.
    Block { operation: u64, offset: u64, page: u32 },
    /// The state machine of the queue at this export page.
    Queue(u32),
    /// The work of the replicated page at this export page.
    Replica(u32),
    /// Its owner was reset away.
    Cancelled,
}

/// What one organ leaves for another that may call it, and that it may not call itself: handed on by the board when the
/// organ has returned, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FollowUp {
    /// A packet of this node's for itself: it takes the same path as others, without the fabric.
    Packet(Packet),
    /// The request in service of this source has ended, or may find what it waited for.
    Serve(NodeId),
    /// A request of this source has been performed, or refused: elements that came after it may go on.
    Performed(NodeId),
    /// A request of this node's own for this page of it has been performed, or refused.
    OwnEnded(u32),
    /// A step on export pages is done: one that is being revoked may be free.
    StepEnded,
}

/// Things under the lowest numbers that are free: so that boards in the same state behave alike, whatever their past.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Numbered<T> {
    used: BTreeMap<u64, T>,
    /// Numbers below the highest used one that are free.
    free: BTreeSet<u64>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Numbered<T> {
        Numbered { used: BTreeMap::new(), free: BTreeSet::new() }
    }
}

impl<T> Numbered<T> {
    pub(crate) fn insert(&mut self, thing: T) -> u64 {
        // With no number free below the highest, those in use are 0 to their count.
        let number = self.free.pop_first().unwrap_or(self.used.len() as u64);
        self.used.insert(number, thing);
        number
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.used.get_mut(&number)
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let thing = self.used.remove(&number)?;
        match self.used.last_key_value() {
            Some((last, _)) if *last > number => {
                self.free.insert(number);
            }
            last => {
                let end = last.map_or(0, |(last, _)| last + 1);
                self.free.split_off(&end);
            }
        }
        Some(thing)
    }

    /// The numbers in use, ascending.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.used.keys().copied().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.used.is_empty()
    }
}

/// The greatest value of so many bytes: also what a load gives that cannot be served.
pub(crate) fn ones(size: u32) -> u64 {
    if size >= 8 { u64::MAX } else { (1 << (8 * size)) - 1 }
}

/// The lowest number that is not in use: so that boards in the same state go on alike, whatever their past.
pub(crate) fn lowest_free<T>(used: &BTreeMap<u64, T>) -> u64 {
    (0..).zip(used.keys()).find(|(free, used)| free != *used).map_or(used.len() as u64, |(free, _)| free)
}

/// What may still be begun before the shell's loop serves other events.
#[derive(Clone, Debug, Hash)]
struct Turn {
    /// Blocks of copies.
    blocks: u32,
    /// The next turn has been asked for.
    asked: bool,
}

impl Default for Turn {
    fn default() -> Turn {
        Turn { blocks: TURN_BLOCKS, asked: false }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Ctx {
    pub(crate) config: HibConfig,
    /// The clock of [`Event::Tick`](crate::Event::Tick), in microseconds.
    pub(crate) now: u64,
    pub(crate) bus_master: bool,
    /// This board's present life, as the others know it.
    pub(crate) incarnation: u64,
    /// Resets so far: a node's lives as it sees them itself.
    pub(crate) resets: u64,
    /// A reset waits for steps in flight.
    pub(crate) resetting: bool,
    pub(crate) link: Link,
    pub(crate) registers: Registers,
    pub(crate) admin: Admin,
    pub(crate) events: Events,
    pub(crate) tables: Tables,
    pub(crate) answers: Answers,
    /// What has been done since the last reset; no decision depends on it.
    pub(crate) counters: Counters,
    /// What is to be done; the shell's, while an event is handled.
    pub(crate) out: Vec<Action>,
    follow_ups: VecDeque<FollowUp>,
    steps: Numbered<StepOwner>,
    turn: Turn,
}

impl std::hash::Hash for Ctx {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        let Ctx {
            config: _,
            now: _,
            counters: _,
            out: _,
            follow_ups: _,
            bus_master,
            incarnation,
            resets,
            resetting,
            link,
            ..
        } = self;
        (bus_master, incarnation, resets, resetting, link).hash(state);
        let Ctx { registers, admin, events, tables, answers, steps, turn, .. } = self;
        (registers, admin, events, tables, answers, steps, turn).hash(state);
    }
}

impl Ctx {
    /// No link, nothing written, no step.
    pub(crate) fn new(config: HibConfig) -> Ctx {
        Ctx {
            now: 0,
            bus_master: false,
            incarnation: 1,
            resets: 0,
            resetting: false,
            link: Link::default(),
            registers: Registers::default(),
            admin: Admin::default(),
            events: Events::default(),
            tables: Tables::default(),
            answers: Answers::new(&config),
            counters: Counters::default(),
            out: Vec::new(),
            follow_ups: VecDeque::new(),
            steps: Numbered::default(),
            turn: Turn::default(),
            config,
        }
    }

    /// Whether this deliberate bug is to be shown.
    pub(crate) fn has(&self, bug: Bug) -> bool {
        self.config.has(bug)
    }

    pub(crate) fn notice(&mut self, notice: Notice) {
        self.out.push(Action::Notice(notice));
    }

    // ---- what leaves an organ ----

    /// Sends a packet. Without a link a reply goes nowhere: its requester has been told that this node went down.
    pub(crate) fn transmit(&mut self, packet: Packet) {
        if packet.dst == self.config.node {
            self.follow_ups.push_back(FollowUp::Packet(packet));
        } else if self.link.is_up() {
            self.out.push(Action::Send(packet));
        }
    }

    /// Answers a load of the guest's.
    pub(crate) fn read_done(&mut self, token: Token, data: u64) {
        self.out.push(Action::ReadDone { token, data });
    }

    /// Leaves something for an organ above.
    pub(crate) fn then(&mut self, follow_up: FollowUp) {
        self.follow_ups.push_back(follow_up);
    }

    /// The oldest of what has been left.
    pub(crate) fn next_follow_up(&mut self) -> Option<FollowUp> {
        self.follow_ups.pop_front()
    }

    pub(crate) fn has_none_to_follow(&self) -> bool {
        self.follow_ups.is_empty()
    }

    // ---- steps ----

    /// Starts a guest-memory step; its owner gets the result.
    pub(crate) fn step(&mut self, op: Step, owner: StepOwner) {
        let step = self.steps.insert(owner);
        self.out.push(Action::Step { step, op });
    }

    /// The owner of a step that is done; `None` for one that never was.
    pub(crate) fn take_step(&mut self, step: StepId) -> Option<StepOwner> {
        self.steps.remove(step)
    }

    /// Whether no step is in flight.
    pub(crate) fn is_quiescent(&self) -> bool {
        self.steps.is_empty()
    }

    /// Whether a step of a copy touches one of these export pages.
    pub(crate) fn copies_touch(&self, pages: std::ops::Range<u64>) -> bool {
        let touches = |p: &StepOwner| matches!(p, StepOwner::Block { page, .. } if pages.contains(&u64::from(*page)));
        self.steps.used.values().any(touches)
    }

    // ---- the turn of the shell's loop ----

    /// Takes one of the blocks that may be started before other events are served; without one asks for the next turn.
    pub(crate) fn take_block(&mut self) -> bool {
        if self.has(Bug::CopyAtOnce) {
            return true;
        }
        if self.turn.blocks > 0 {
            self.turn.blocks -= 1;
            return true;
        }
        if !self.turn.asked {
            self.turn.asked = true;
            self.out.push(Action::Continue);
        }
        false
    }

    /// The shell has served other events.
    pub(crate) fn begin_turn(&mut self) {
        self.turn = Turn::default();
    }

    // ---- errors that belong to no import ----

    /// Latches the first error that belongs to no import, counts every one.
    pub(crate) fn latch_error(&mut self, bar: Bar, offset: u64, size: u32, status: Status) {
        self.counters.errors += 1;
        if self.registers.latch(bar, offset, size, status) {
            self.cause(crate::events::Cause::Error);
        }
    }

    /// An access of the guest's that cannot be served.
    pub(crate) fn bad_access(&mut self, bar: Bar, offset: u64, size: u32, status: Status) {
        self.notice(Notice::BadAccess { bar, offset, size, status });
        self.latch_error(bar, offset, size, status);
    }

    /// The board cannot store to, or load from, one of its own tables.
    pub(crate) fn own_memory_failed(&mut self, address: u64, status: Status) {
        self.notice(Notice::Memory { address, status });
        self.latch_error(Bar::Control, address, 8, status);
    }

    // ---- reset ----

    /// A new life: what is of the link and of time stays, and steps in flight for others, which end.
    pub(crate) fn reset(&mut self) {
        for owner in self.steps.used.values_mut() {
            if !matches!(owner, StepOwner::Serve(_)) {
                *owner = StepOwner::Cancelled;
            }
        }
        self.turn.blocks = TURN_BLOCKS;
        self.tables = Tables::default();
        self.registers = Registers::default();
        self.admin = Admin::default();
        self.events = Events::default();
        self.counters = Counters::default();
        self.bus_master = false;
        self.incarnation = self.incarnation.saturating_add(1);
        self.resets = self.resets.wrapping_add(1);
        if self.link.is_up() {
            self.out.push(Action::AnnounceReset { incarnation: self.incarnation });
        }
        self.resetting = true;
    }
}
