// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processors of a simulated guest: they issue operations, and see them end.
//!
//! Stores and elements have no completion of their own; a store has ended when the board counts it as finished, which
//! is what quiet waits for ([`Hib::import_progress`]). Loads end by their value, everything else by the word of its
//! slot in the status page.

mod issue;

use crate::agenda::Kind;
use crate::driver::{Driver, Task};
use crate::layout::Segment;
use crate::plan::Plan;
use crate::random::Random;
use crate::units::Time;
use crate::workload::Operation;
use crate::world::World;
use std::collections::VecDeque;
use std::hint::black_box;
use telegraphos_device_core::Hib;
use telegraphos_wire::{NodeId, Status, context};

/// An import of a partner's segment, and what was accepted through it and has not ended: when each was to be issued.
#[derive(Debug)]
struct Path {
    node: NodeId,
    segment: Segment,
    open: bool,
    /// Number of the last store or element, counted from 1 since it was opened.
    number: u64,
    pending: VecDeque<Time>,
    /// What the board has counted as finished.
    finished: u64,
}

/// When an import is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retry {
    Never,
    /// The driver's next turn: its name may have been published.
    Later,
    WhenUp,
}

/// An operation that ends by a word.
#[derive(Clone, Copy, Debug)]
struct Launched {
    operation: Operation,
    since: Time,
    cookie: u64,
}

/// The import of the own data segment, and of the own page.
pub(crate) const OWN_DATA: u16 = 0;
pub(crate) const OWN_PAGE: u16 = 1;
/// The first of the imports of partners: data and queue of each.
pub(crate) const PARTNERS: u16 = 2;

/// See the module.
#[derive(Debug)]
pub(crate) struct Guest {
    random: Random,
    /// By import - [`PARTNERS`].
    paths: Vec<Path>,
    /// Of each path that could not be opened: what it waits for. Apart, since every notification of a node asks for it.
    retries: Vec<Retry>,
    own_data: bool,
    own_page: bool,
    has_copy: bool,
    loads: Vec<Option<Time>>,
    free_loads: Vec<u32>,
    /// By slot of the status page.
    slots: Vec<Option<Launched>>,
    free_slots: Vec<u8>,
    cookie: u64,
    /// Operations that are to be issued: from when on.
    ready: VecDeque<Time>,
    /// The moment on the agenda.
    called: Option<Time>,
    /// Free again from then on.
    busy_until: Time,
    pub(crate) under_way: u32,
    /// Operations that are still to become ready.
    pub(crate) left: u64,
    /// Nothing becomes ready from then on.
    ends: Time,
    /// With a rate: when the next become ready.
    next_burst: Time,
    /// Operations that have ended well, by class.
    pub(crate) completed: [u64; 4],
    pub(crate) last_end: Time,
    /// By partner: operations issued, and their bytes.
    pub(crate) traffic: Vec<(u64, u64)>,
}

impl Guest {
    pub(crate) fn new(id: NodeId, plan: &Plan) -> Guest {
        let partners = &plan.partners[usize::from(id)].nodes;
        let path =
            |node, segment| Path { node, segment, open: false, number: 0, pending: VecDeque::new(), finished: 0 };
        Guest {
            random: Random::new(plan.seed, id.into()),
            paths: partners.iter().flat_map(|n| [path(*n, Segment::Data), path(*n, Segment::Queue)]).collect(),
            retries: vec![Retry::Never; 2 * partners.len()],
            own_data: false,
            own_page: false,
            has_copy: false,
            loads: Vec::new(),
            free_loads: Vec::new(),
            slots: vec![None; context::SLOTS],
            free_slots: (0..context::SLOTS as u8).rev().collect(),
            cookie: 0,
            ready: VecDeque::new(),
            called: None,
            busy_until: 0,
            under_way: 0,
            left: 0,
            ends: 0,
            next_burst: 0,
            completed: [0; 4],
            last_end: 0,
            traffic: vec![(0, 0); partners.len()],
        }
    }

    /// Reads what is used of it, whatever happens; changes nothing.
    pub(crate) fn look_ahead(&self) {
        black_box((self.ready.front(), self.under_way, self.left, self.completed, self.busy_until));
    }

    // ---- imports ----

    /// Everything this guest is to import, for the driver.
    pub(crate) fn imports(&mut self, id: NodeId, plan: &Plan) -> Vec<Task> {
        let mut tasks = Vec::new();
        if plan.needs_own_data() {
            tasks.push(Task::Import { node: id, segment: Segment::Data, import: OWN_DATA });
        }
        if plan.home(id).is_some() {
            tasks.push(Task::Import { node: id, segment: Segment::Page, import: OWN_PAGE });
        }
        for (import, path) in (PARTNERS..).zip(&mut self.paths) {
            if plan.needs(path.segment) {
                tasks.push(Task::Import { node: path.node, segment: path.segment, import });
            }
        }
        tasks
    }

    fn path(&mut self, import: u16) -> Option<&mut Path> {
        self.paths.get_mut(usize::from(import.checked_sub(PARTNERS)?))
    }

    /// An import has been opened, or could not be.
    pub(crate) fn imported(&mut self, world: &mut World<'_>, id: NodeId, import: u16, status: Status) {
        let ok = status.is_ok();
        match import {
            OWN_DATA => self.own_data = ok,
            OWN_PAGE => self.own_page = ok,
            _ => {
                if let Some(path) = self.path(import) {
                    path.open = ok;
                    if ok {
                        (path.number, path.finished) = (0, 0);
                    }
                    self.retries[usize::from(import - PARTNERS)] = match status {
                        Status::Ok => Retry::Never,
                        Status::NodeDown | Status::LinkDown => Retry::WhenUp,
                        _ => Retry::Later,
                    };
                }
            }
        }
        self.call(world, id);
    }

    /// The board has cut an import: it is closed, and opened again.
    pub(crate) fn import_lost(&mut self, driver: &mut Driver, import: u16) {
        let Some(path) = self.path(import).filter(|path| path.open) else { return };
        path.open = false;
        let task = Task::Import { node: path.node, segment: path.segment, import };
        driver.add(Task::Close { import });
        driver.add(task);
    }

    /// A node has come up: imports of it that are not open are opened.
    pub(crate) fn node_up(&self, driver: &mut Driver, node: NodeId) {
        self.open_again(driver, |path, _| path.node == node);
    }

    /// The driver tries again what did not succeed.
    pub(crate) fn retry_imports(&self, driver: &mut Driver) {
        self.open_again(driver, |_, retry| retry == Retry::Later);
    }

    fn open_again(&self, driver: &mut Driver, which: impl Fn(&Path, Retry) -> bool) {
        let retries = self.retries.iter().enumerate().filter(|(_, retry)| **retry != Retry::Never);
        for (index, retry) in retries {
            let path = &self.paths[index];
            if !which(path, *retry) {
                continue;
            }
            let import = PARTNERS + index as u16;
            let task = Task::Import { node: path.node, segment: path.segment, import };
            if !driver.has(task) {
                driver.add(task);
            }
        }
    }

    /// The own page has been joined to its home, or could not be.
    pub(crate) fn joined(&mut self, ok: bool) {
        self.has_copy = ok;
    }

    /// Whether everything could be opened and joined.
    pub(crate) fn is_ready(&self, id: NodeId, plan: &Plan) -> bool {
        let wanted = |path: &&Path| plan.needs(path.segment);
        let page = plan.home(id).is_none() || (self.own_page && self.has_copy);
        page && (self.own_data || !plan.needs_own_data()) && self.paths.iter().filter(wanted).all(|path| path.open)
    }

    // ---- when ----

    pub(crate) fn begin(&mut self, world: &mut World<'_>, id: NodeId) {
        let load = &world.plan.workload.load;
        let idle = self.paths.is_empty() && !world.plan.has(Operation::Multicast);
        self.ends = load.duration.map_or(Time::MAX, |duration| world.now.saturating_add(duration));
        self.left = if idle { 0 } else { load.duration.map_or(load.operations, |_| u64::MAX) };
        if load.rate.is_some() {
            let interval = world.plan.interval * u64::from(load.burst);
            self.next_burst = world.now + self.random.below(interval);
        } else {
            // Not all at once: nodes do not begin at the same picosecond.
            let spread = world.plan.workload.costs.processor * u64::from(load.outstanding);
            let first = world.now + self.random.below(spread);
            for _ in 0..load.outstanding {
                self.become_ready(first);
            }
        }
        self.call(world, id);
    }

    fn become_ready(&mut self, at: Time) {
        if self.left == 0 || at >= self.ends {
            return;
        }
        self.left -= 1;
        let place = self.ready.partition_point(|other| *other <= at);
        self.ready.insert(place, at);
    }

    /// With a rate: what has become ready by now.
    fn arrive(&mut self, world: &World<'_>) {
        let load = &world.plan.workload.load;
        if load.rate.is_none() {
            return;
        }
        while self.next_burst <= world.now && self.left > 0 && self.next_burst < self.ends {
            let at = self.next_burst;
            for _ in 0..load.burst {
                self.become_ready(at);
            }
            // Between half and one and a half of the mean.
            let mean = world.plan.interval * u64::from(load.burst);
            self.next_burst += (mean / 2 + self.random.below(mean)).max(1);
        }
    }

    /// Whether operations are ready or will be, without an end of another.
    fn has_more(&self, world: &World<'_>) -> bool {
        let load = &world.plan.workload.load;
        !self.ready.is_empty() || (load.rate.is_some() && self.left > 0 && self.next_burst < self.ends)
    }

    /// Whether all operations have ended.
    pub(crate) fn has_ended(&self, world: &World<'_>) -> bool {
        self.under_way == 0 && !self.has_more(world)
    }

    /// Puts the processor on the agenda for its next operation.
    fn call(&mut self, world: &mut World<'_>, id: NodeId) {
        let load = &world.plan.workload.load;
        if self.under_way >= load.outstanding || !self.has_more(world) {
            return;
        }
        let ready = match self.ready.front() {
            Some(at) => *at,
            None => self.next_burst,
        };
        let at = ready.max(self.busy_until).max(world.now);
        if self.called.is_none_or(|called| called > at) {
            self.called = Some(at);
            world.call(at, Kind::Processor, id.into());
        }
    }

    // ---- what ends ----

    fn ended(&mut self, world: &mut World<'_>, id: NodeId, operation: Operation, since: Time, ok: bool) {
        if let Some(trace) = &mut world.trace {
            trace.operation(id, operation, since, world.now, ok);
        }
        let statistics = world.statistics.of(operation);
        if ok {
            statistics.latency.add(world.now - since);
            self.completed[class_of(operation)] += 1;
            world.watch.completed(id, class_of(operation));
            self.last_end = world.now;
        } else {
            statistics.failed += 1;
        }
        world.statistics.under_way -= 1;
        world.statistics.ended(world.now);
        self.under_way -= 1;
        self.next(world, id, 0);
    }

    /// Without a rate an operation that has ended makes room for the next.
    fn next(&mut self, world: &mut World<'_>, id: NodeId, pause: Time) {
        let load = &world.plan.workload.load;
        if load.rate.is_none() {
            self.become_ready(world.now + load.think + pause);
        }
        self.call(world, id);
    }

    /// The load with this token has its value, or has failed.
    pub(crate) fn load_done(&mut self, world: &mut World<'_>, id: NodeId, token: u64, ok: bool) {
        let Some(since) = self.loads.get_mut(token as usize).and_then(Option::take) else { return };
        self.free_loads.push(token as u32);
        self.ended(world, id, Operation::Load, since, ok);
    }

    /// A word was stored into a slot of the status page.
    pub(crate) fn slot_done(&mut self, world: &mut World<'_>, id: NodeId, slot: usize, word: u64) {
        let cookie = word & ((1 << context::COOKIE_BITS) - 1);
        let Some(launched) = self.slots[slot].filter(|launched| launched.cookie == cookie) else { return };
        self.slots[slot] = None;
        self.free_slots.push(slot as u8);
        self.ended(world, id, launched.operation, launched.since, word >> context::COOKIE_BITS == 0);
    }

    /// The board may have finished stores and elements for `node`; `ok`: with success.
    pub(crate) fn settle(&mut self, world: &mut World<'_>, id: NodeId, hib: &Hib, node: NodeId, ok: bool) {
        // The node ids of all partners are one cache line or two; their paths are forty.
        let plan = world.plan;
        for (partner, other) in plan.partners[usize::from(id)].nodes.iter().enumerate() {
            if *other != node {
                continue;
            }
            for index in [2 * partner, 2 * partner + 1] {
                if self.paths.get(index).is_some_and(|path| !path.pending.is_empty()) {
                    self.settle_path(world, id, hib, index, ok);
                }
            }
        }
    }

    pub(crate) fn settle_all(&mut self, world: &mut World<'_>, id: NodeId, hib: &Hib) {
        for index in 0..self.paths.len() {
            self.settle_path(world, id, hib, index, false);
        }
    }

    fn settle_path(&mut self, world: &mut World<'_>, id: NodeId, hib: &Hib, index: usize, ok: bool) {
        let (issued, finished) = hib.import_progress(index as u16 + PARTNERS).unwrap_or((0, 0));
        let path = &mut self.paths[index];
        let operation = if path.segment == Segment::Queue { Operation::Enqueue } else { Operation::Store };
        let answered = finished.saturating_sub(path.finished);
        path.finished = finished;
        // What the board does not count any more was dropped while it waited.
        let still = (issued - finished) as usize;
        let mut count = 0;
        while self.paths[index].pending.len() > still {
            let Some(since) = self.paths[index].pending.pop_front() else { return };
            if self.paths[index].pending.is_empty() {
                // The next goes to the same place in memory.
                self.paths[index].pending.clear();
            }
            count += 1;
            self.ended(world, id, operation, since, ok && count <= answered);
        }
    }

    /// The node crashes: operations in progress never end.
    pub(crate) fn abort(&mut self, world: &mut World<'_>) {
        for path in &mut self.paths {
            let operation = if path.segment == Segment::Queue { Operation::Enqueue } else { Operation::Store };
            world.statistics.of(operation).aborted += path.pending.len() as u64;
        }
        world.statistics.of(Operation::Load).aborted += self.loads.iter().flatten().count() as u64;
        for launched in self.slots.iter().flatten() {
            world.statistics.of(launched.operation).aborted += 1;
        }
        world.statistics.under_way -= u64::from(self.under_way);
        self.under_way = 0;
    }

    /// Continues where the guest of the node's previous incarnation ended.
    pub(crate) fn succeed(&mut self, earlier: &Guest) {
        self.left = earlier.left + earlier.ready.len() as u64;
        self.random = earlier.random.clone();
        self.ends = earlier.ends;
        self.completed = earlier.completed;
        self.last_end = earlier.last_end;
        self.traffic = earlier.traffic.clone();
        // Cookies of this incarnation differ from those of the last.
        self.cookie = earlier.cookie;
    }

    /// Issues operations again after the node has rejoined.
    pub(crate) fn resume(&mut self, world: &mut World<'_>, id: NodeId) {
        let load = &world.plan.workload.load;
        if load.rate.is_some() {
            self.next_burst = world.now;
        } else {
            for _ in 0..load.outstanding {
                self.become_ready(world.now);
            }
        }
        self.call(world, id);
    }
}

/// Which class an operation's first packet travels in.
pub(crate) fn class_of(operation: Operation) -> usize {
    use telegraphos_wire::Class;
    match operation {
        Operation::Enqueue => Class::Enqueue as usize,
        Operation::Multicast => Class::Reflected as usize,
        _ => Class::Request as usize,
    }
}
