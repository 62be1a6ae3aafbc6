// SPDX-License-Identifier: MIT OR Apache-2.0
//! The board: its state, the dispatch of events, and the order of its own stores into guest memory.

use crate::config::Bug;
use crate::control::{Admin, Registers};
use crate::events::{Cause, EventQueue};
use crate::launch::{Launcher, TURN_BLOCKS};
use crate::link::Link;
use crate::page_counters;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::{Action, Bar, Event, HibConfig, MAX_CONTEXTS, Notice, Step, StepId, StepResult};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use telegraphos_wire::link::RESET_BITS;
use telegraphos_wire::regs::Register;
use telegraphos_wire::{Class, NodeId, Packet, Status};

/// What the board has done since its last reset; no protocol decision depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Remote stores accepted from this node's processors.
    pub stores: u64,
    /// Remote loads accepted.
    pub loads: u64,
    /// Remote loads answered all-ones at once, since an earlier one to that node timed out and the node has been silent since.
    pub silent_loads: u64,
    /// Requests served for others (and for itself).
    pub served: u64,
    /// Requests of others refused.
    pub refused: u64,
    /// Stores dropped; each is reported on its import or in ERROR.
    pub dropped: u64,
    /// Times an import became congested.
    pub congested: u64,
    /// Events posted.
    pub events: u64,
    /// Atomics launched.
    pub atomics: u64,
    /// Copies launched.
    pub copies: u64,
    /// Elements for queues accepted from this node's processors.
    pub enqueues: u64,
    /// Elements committed to this node's queues.
    pub elements: u64,
    /// Overflows of this node's queues.
    pub overflows: u64,
    /// Stores that this node sent to copies as their home, counted once for each copy.
    pub reflected: u64,
    /// Copies that were dropped because they did not acknowledge in time.
    pub silent_copies: u64,
    /// Times a store of this node waited for a pending-write counter.
    pub counter_stalls: u64,
    /// Arguments refused for their key or context.
    pub bad_keys: u64,
    /// Errors latched or found latched.
    pub errors: u64,
}

/// Why a step was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StepOwner {
    /// The request at the head of a source's queue.
    Serve(NodeId),
    /// The command of an admin slot.
    Command(u32),
    /// The next store of the status write with this number.
    StatusWrite(u64),
    /// A block of a copy at this node's end, and the export page it touches.
    Block { operation: u64, offset: u64, page: u32 },
    /// The state machine of the queue at this export page.
    Queue(u32),
    /// The work of the replicated page at this export page.
    Replica(u32),
    /// Its owner was reset away.
    Cancelled,
}

/// What follows the last store of a status write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AfterWrite {
    Nothing,
    AdminDone(u32),
    EventPosted,
    ContextDone(u16),
    /// The counting word of a context's status page at this address holds this.
    Counted(u16, u64, u64),
}

/// Stores of whole words into the board's own tables in guest memory, one after the other.
#[derive(Clone, Debug, Hash)]
pub(crate) struct StatusWrite {
    pub(crate) stores: VecDeque<(u64, u64)>,
    pub(crate) then: AfterWrite,
    /// The context whose status page this is: it cannot be closed before.
    pub(crate) context: Option<u16>,
    /// It holds a unit of its context's account of status words.
    charged: bool,
    /// The first of its stores is a step in flight.
    storing: bool,
}

/// Things under the lowest numbers that are free: so that boards in the same state behave alike, whatever their past.
#[derive(Clone, Debug, Hash)]
struct Numbered<T> {
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
    fn insert(&mut self, thing: T) -> u64 {
        // With no number free below the highest, those in use are 0 to their count.
        let number = self.free.pop_first().unwrap_or(self.used.len() as u64);
        self.used.insert(number, thing);
        number
    }

    fn remove(&mut self, number: u64) -> Option<T> {
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

    fn clear(&mut self) {
        self.used.clear();
        self.free.clear();
    }
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

impl std::hash::Hash for Hib {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        let Hib {
            config: _,
            now: _,
            counters: _,
            bus_master,
            incarnation,
            link,
            registers,
            admin,
            events,
            requester,
            ..
        } = self;
        (bus_master, incarnation, link, registers, admin, events, requester).hash(state);
        let Hib { responder, launcher, page_counters, steps, status_writes, turn, counting, resetting, resets, .. } =
            self;
        (responder, launcher, page_counters, steps, status_writes, turn, counting, resetting, resets).hash(state);
    }
}

/// The host interface board of one node.
///
/// Its hash is that of its protocol state, for model checkers: without statistics, the time, and its (constant) configuration. Two boards that
/// hash alike behave alike.
#[derive(Clone, Debug)]
pub struct Hib {
    pub(crate) config: HibConfig,
    pub(crate) now: u64,
    pub(crate) bus_master: bool,
    pub(crate) incarnation: u64,
    pub(crate) link: Link,
    pub(crate) registers: Registers,
    pub(crate) admin: Admin,
    pub(crate) events: EventQueue,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    pub(crate) launcher: Launcher,
    pub(crate) page_counters: page_counters::Counters,
    steps: Numbered<StepOwner>,
    status_writes: Numbered<StatusWrite>,
    /// Jobs of each context.
    writes_by_context: BTreeMap<u16, u32>,
    turn: Turn,
    /// Counting words of status pages that are being stored, and what they are to hold in the end.
    counting: BTreeMap<u64, u64>,
    resetting: bool,
    /// Resets so far: a node's lives as it sees them itself.
    pub(crate) resets: u64,
    pub(crate) counters: Counters,
}

impl Hib {
    /// A board that has just been powered on: no link, no grants, no imports.
    pub fn new(mut config: HibConfig) -> Hib {
        config.contexts = config.contexts.min(MAX_CONTEXTS);
        Hib {
            requester: Requester::new(&config),
            responder: Responder::new(&config),
            launcher: Launcher::new(&config),
            page_counters: page_counters::Counters::default(),
            now: 0,
            bus_master: false,
            incarnation: 1,
            link: Link::default(),
            registers: Registers::default(),
            admin: Admin::default(),
            events: EventQueue::default(),
            steps: Numbered::default(),
            status_writes: Numbered::default(),
            writes_by_context: BTreeMap::new(),
            turn: Turn::default(),
            counting: BTreeMap::new(),
            resetting: false,
            resets: 0,
            counters: Counters::default(),
            config,
        }
    }

    /// Sizes and limits.
    pub fn config(&self) -> &HibConfig {
        &self.config
    }

    /// What the board has done since its last reset.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The board's present incarnation.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Whether no guest-memory step is in flight.
    pub fn is_quiescent(&self) -> bool {
        self.steps.used.is_empty()
    }

    /// The moment (of the clock of [`Event::Tick`]) at which a tick is needed, if any.
    pub fn deadline(&self) -> Option<u64> {
        let waits = [self.requester.deadline(), self.launcher.deadline(), self.responder.replicas.deadline()];
        waits.into_iter().flatten().min()
    }

    /// Takes one event and appends what is to be done. Never panics.
    pub fn handle(&mut self, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Read { token, bar, offset, size } => match bar {
                Bar::Control => {
                    let data = self.read_register(offset, size, out);
                    out.push(Action::ReadDone { token, data });
                }
                Bar::Contexts => self.context_read(token, offset, size, out),
                Bar::Window => self.load(token, offset, size, out),
            },
            Event::Write { bar, offset, size, data } => match bar {
                Bar::Control => self.write_register(offset, size, data, out),
                Bar::Contexts => self.context_write(offset, size, data, out),
                Bar::Window => self.store(offset, size, data, out),
            },
            Event::IntakeDry => self.intake_dry(out),
            Event::Packet(packet) => self.packet(packet, out),
            Event::Credit { class, count } => {
                self.link.credit(class, count);
                match class {
                    Class::Enqueue | Class::Request => self.pump_short(out),
                    Class::Reflected => self.pump_reflected(out),
                    Class::Reply => {}
                }
            }
            Event::LinkUp { incarnation, nodes, credits } => self.link_up(incarnation, nodes, credits, out),
            Event::LinkDown => self.link_down(out),
            Event::NodeUp { node, incarnation } => self.node_up(node, incarnation, out),
            Event::NodeDown { node } => self.node_down(node, Status::NodeDown, out),
            Event::StepDone { step, result } => self.step_done(step, result, out),
            Event::Reset => self.reset(out),
            Event::BusMaster(on) => {
                self.bus_master = on;
                if on {
                    self.post_events(out);
                    let status_writes: Vec<u64> = self.status_writes.used.keys().copied().collect();
                    for write in status_writes {
                        self.advance_write(write, out);
                    }
                }
            }
            Event::Tick { now } => {
                self.now = self.now.max(now);
                self.expire(out);
                self.expire_fetches(out);
                self.expire_copies(out);
            }
            Event::Continue => {
                self.turn = Turn::default();
                self.continue_copies(out);
            }
        }
        self.pump_own(out);
        self.link.return_credits(self.config.offered(), out);
        if self.resetting && self.steps.used.is_empty() {
            self.resetting = false;
            out.push(Action::ResetDone);
        }
    }

    fn packet(&mut self, packet: Packet, out: &mut Vec<Action>) {
        self.heard(packet.src);
        match packet.class() {
            Class::Reply => self.reply(packet, out),
            Class::Enqueue => self.element(packet, out),
            Class::Reflected => self.reflected(packet, out),
            _ => self.request(packet, out),
        }
    }

    // ---- steps and status writes ----

    /// Whether a step of a copy touches one of these export pages.
    pub(crate) fn copies_touch(&self, pages: std::ops::Range<u64>) -> bool {
        let touches = |p: &StepOwner| matches!(p, StepOwner::Block { page, .. } if pages.contains(&u64::from(*page)));
        self.steps.used.values().any(touches)
    }

    pub(crate) fn step(&mut self, op: Step, owner: StepOwner, out: &mut Vec<Action>) {
        let step = self.steps.insert(owner);
        out.push(Action::Step { step, op });
    }

    /// Takes one of the blocks that may be started before other events are served; without one asks for the next turn.
    pub(crate) fn take_block(&mut self, out: &mut Vec<Action>) -> bool {
        if self.config.has(Bug::CopyAtOnce) {
            return true;
        }
        let turn = &mut self.turn;
        if turn.blocks > 0 {
            turn.blocks -= 1;
            return true;
        }
        if !turn.asked {
            turn.asked = true;
            out.push(Action::Continue);
        }
        false
    }

    fn step_done(&mut self, step: StepId, result: StepResult, out: &mut Vec<Action>) {
        match self.steps.remove(step) {
            Some(StepOwner::Serve(source)) => self.served(source, result, out),
            Some(StepOwner::Command(slot)) => self.command_loaded(slot, result, out),
            Some(StepOwner::StatusWrite(write)) => self.write_stored(write, result, out),
            Some(StepOwner::Block { operation, offset, .. }) => self.block_stepped(operation, offset, result, out),
            Some(StepOwner::Queue(page)) => self.queue_stepped(page, result, out),
            Some(StepOwner::Replica(page)) => self.replica_stepped(page, result, out),
            Some(StepOwner::Cancelled) | None => {}
        }
    }

    /// Starts a series of 8-byte stores into the board's own tables. While bus mastering is off they wait.
    pub(crate) fn write_table(
        &mut self,
        stores: impl IntoIterator<Item = (u64, u64)>,
        then: AfterWrite,
        out: &mut Vec<Action>,
    ) {
        self.add_write(stores, then, None, false, out);
    }

    /// The same, into the status page of a context. If it is `charged`, a unit of the context's account of status words is given back at its end.
    pub(crate) fn write_status(
        &mut self,
        context: u16,
        stores: impl IntoIterator<Item = (u64, u64)>,
        then: AfterWrite,
        charged: bool,
        out: &mut Vec<Action>,
    ) {
        self.add_write(stores, then, Some(context), charged, out);
    }

    /// A word of a status page that only grows. One store of it is in flight at a time, so that it never falls back.
    pub(crate) fn count_in_status(&mut self, context: u16, address: u64, value: u64, out: &mut Vec<Action>) {
        if self.counting.insert(address, value).is_none() {
            self.write_status(context, [(address, value)], AfterWrite::Counted(context, address, value), false, out);
        }
    }

    /// Whether a count is on its way to the word at `offset` of a context's status page.
    pub(crate) fn counts_in_status(&self, context: u16, offset: u64) -> bool {
        let page = self.requester.contexts.get(&context).map(|context| context.status_page);
        page.is_some_and(|page| self.counting.contains_key(&(page + offset)))
    }

    fn counted(&mut self, context: u16, address: u64, value: u64, out: &mut Vec<Action>) {
        match self.counting.remove(&address) {
            Some(latest) if latest != value => self.count_in_status(context, address, latest, out),
            _ => self.count_stored(out),
        }
    }

    fn add_write(
        &mut self,
        stores: impl IntoIterator<Item = (u64, u64)>,
        then: AfterWrite,
        context: Option<u16>,
        charged: bool,
        out: &mut Vec<Action>,
    ) {
        let write = StatusWrite { stores: stores.into_iter().collect(), then, context, charged, storing: false };
        let number = self.status_writes.insert(write);
        if let Some(context) = context {
            *self.writes_by_context.entry(context).or_default() += 1;
        }
        self.advance_write(number, out);
    }

    /// Whether stores into the status page of a context are still to be made.
    pub(crate) fn writes_status(&self, context: u16) -> bool {
        self.writes_by_context.contains_key(&context)
    }

    /// A status write has ended, well or badly: what follows it, once its context has been served.
    fn end_write(&mut self, number: u64, out: &mut Vec<Action>) -> Option<AfterWrite> {
        let write = self.status_writes.remove(number)?;
        if let Some(context) = write.context {
            match self.writes_by_context.get_mut(&context) {
                Some(count) if *count > 1 => *count -= 1,
                _ => {
                    self.writes_by_context.remove(&context);
                }
            }
            if write.charged {
                self.launcher.give_word(context);
            }
            self.finish_context_close(context, out);
        }
        Some(write.then)
    }

    fn advance_write(&mut self, number: u64, out: &mut Vec<Action>) {
        if !self.bus_master {
            return;
        }
        let Some(write) = self.status_writes.used.get_mut(&number).filter(|write| !write.storing) else { return };
        if let Some(&(address, data)) = write.stores.front() {
            write.storing = true;
            return self.step(Step::Store { address, size: 8, data }, StepOwner::StatusWrite(number), out);
        }
        match self.end_write(number, out) {
            None | Some(AfterWrite::Nothing) => {}
            Some(AfterWrite::AdminDone(slot)) => self.admin_completed(slot, out),
            Some(AfterWrite::EventPosted) => self.event_posted(out),
            Some(AfterWrite::ContextDone(context)) => self.cause(Cause::Context(context), out),
            Some(AfterWrite::Counted(context, address, value)) => self.counted(context, address, value, out),
        }
    }

    fn write_stored(&mut self, number: u64, result: StepResult, out: &mut Vec<Action>) {
        let Some(write) = self.status_writes.used.get_mut(&number) else { return };
        write.storing = false;
        let stored = write.stores.pop_front();
        if let StepResult::Failed(status) = result {
            let address = stored.map_or(0, |(address, _)| address);
            self.own_memory_failed(address, status, out);
            match self.end_write(number, out) {
                // The queue is unusable: causes stay pending until the driver programs another one.
                Some(AfterWrite::EventPosted) => self.events.disable(),
                Some(AfterWrite::AdminDone(slot)) => self.admin.release(slot),
                Some(AfterWrite::Counted(_, address, _)) => {
                    self.counting.remove(&address);
                }
                Some(AfterWrite::Nothing | AfterWrite::ContextDone(_)) | None => {}
            }
            return;
        }
        self.advance_write(number, out);
    }

    pub(crate) fn own_memory_failed(&mut self, address: u64, status: Status, out: &mut Vec<Action>) {
        out.push(Action::Notice(Notice::Memory { address, status }));
        self.latch_error(Bar::Control, address, 8, status, out);
    }

    // ---- link and nodes ----

    fn link_up(&mut self, incarnation: u64, nodes: u32, credits: [u32; 4], out: &mut Vec<Action>) {
        self.link.come_up(credits, nodes);
        self.divide_credits();
        if self.incarnation > incarnation {
            // This board outlived a fabric that counted lower: the others must learn the number it uses.
            out.push(Action::AnnounceReset { incarnation: self.incarnation });
        }
        self.incarnation = self.incarnation.max(incarnation);
        // Generations of this join are greater than all of an earlier process under the same node id.
        // 2^24 of them, before they are those of the next join (`link::incarnation_at`).
        self.responder.raise_generation(incarnation.saturating_mul(1 << RESET_BITS).min(u64::MAX / 2));
        self.responder.forget_performed(self.config.node);
        self.cause(Cause::LinkState, out);
    }

    fn link_down(&mut self, out: &mut Vec<Action>) {
        if !self.link.go_down() {
            return;
        }
        for node in 0..self.config.window.nodes() {
            let node = node as NodeId;
            if node != self.config.node {
                self.node_down(node, Status::LinkDown, out);
            }
        }
        self.responder.forget_credits();
        self.responder.forget_performed(self.config.node);
        self.replica_link_lost();
        self.cause(Cause::LinkState, out);
    }

    fn node_up(&mut self, node: NodeId, incarnation: u64, out: &mut Vec<Action>) {
        if node == self.config.node {
            return;
        }
        let Some(peer) = self.requester.peers.get_mut(usize::from(node)) else { return };
        let before = peer.incarnation.replace(incarnation);
        if before != Some(incarnation) {
            peer.requests = 0;
            self.divide_credits();
            self.responder.refusals.forget(node);
            self.forget_elements_of(node, Some(incarnation));
            if before.is_some() {
                self.forget_member(node, Status::Reset, out);
            }
            if before.is_some() {
                self.kill_imports(node, Status::Reset, out);
            }
            self.cause(Cause::NodeState(node), out);
        }
    }

    fn node_down(&mut self, node: NodeId, status: Status, out: &mut Vec<Action>) {
        if node == self.config.node {
            return;
        }
        let Some(peer) = self.requester.peers.get_mut(usize::from(node)) else { return };
        if peer.incarnation.take().is_none() {
            return;
        }
        self.divide_credits();
        self.fail_peer(node, status, out);
        self.forget_requests_of(node);
        self.responder.refusals.forget(node);
        self.forget_elements_of(node, None);
        self.forget_member(node, status, out);
        self.cause(Cause::NodeState(node), out);
        // The others' shares have grown.
        self.pump_short(out);
    }

    /// Divides the credits of the link among the nodes that are present.
    fn divide_credits(&mut self) {
        let present = self.requester.peers.iter().filter(|peer| peer.incarnation.is_some()).count();
        self.link.divide(present as u64);
    }

    /// The life of a node that requests to it are meant for.
    pub(crate) fn target(&self, node: NodeId) -> u64 {
        if node == self.config.node {
            return self.resets;
        }
        self.requester.peers.get(usize::from(node)).and_then(|peer| peer.incarnation).unwrap_or(0)
    }

    /// Whether a node can be reached now; the node itself always can.
    pub(crate) fn reachable(&self, node: NodeId) -> Result<(), Status> {
        if node == self.config.node {
            return Ok(());
        }
        let Some(nodes) = self.link.nodes() else { return Err(Status::LinkDown) };
        if u32::from(node) >= nodes {
            return Err(Status::BadNode);
        }
        match self.requester.peers.get(usize::from(node)) {
            Some(peer) if peer.incarnation.is_some() => Ok(()),
            Some(_) => Err(Status::NodeDown),
            None => Err(Status::BadNode),
        }
    }

    pub(crate) fn transmit(&mut self, packet: Packet, out: &mut Vec<Action>) {
        if packet.dst == self.config.node {
            // Self-addressed traffic takes the same path without the fabric.
            self.packet(packet, out);
        } else if self.link.is_up() {
            out.push(Action::Send(packet));
        }
        // Without a link a reply goes nowhere: its requester has been told that this node went down.
    }

    // ---- reset ----

    pub(crate) fn is_resetting(&self) -> bool {
        self.resetting
    }

    pub(crate) fn reset(&mut self, out: &mut Vec<Action>) {
        self.fail_all(Status::Reset, out);
        self.fail_fetches(out);
        self.refuse_all(Status::Reset, out);
        self.refuse_elements(Status::Reset, out);
        self.refuse_multicasts(Status::Reset, out);
        for owner in self.steps.used.values_mut() {
            if !matches!(owner, StepOwner::Serve(_)) {
                *owner = StepOwner::Cancelled;
            }
        }
        self.status_writes.clear();
        self.writes_by_context.clear();
        self.turn.blocks = TURN_BLOCKS;
        self.counting.clear();
        self.registers = Registers::default();
        self.admin = Admin::default();
        self.events = EventQueue::default();
        self.launcher.reset(&self.config);
        self.page_counters = page_counters::Counters::default();
        self.counters = Counters::default();
        self.bus_master = false;
        self.incarnation = self.incarnation.saturating_add(1);
        self.resets = self.resets.wrapping_add(1);
        self.responder.forget_performed(self.config.node);
        if self.link.is_up() {
            out.push(Action::AnnounceReset { incarnation: self.incarnation });
        }
        self.resetting = true;
    }

    pub(crate) fn counter(&self, register: Register) -> u64 {
        let c = &self.counters;
        match register {
            Register::CountStores => c.stores,
            Register::CountLoads => c.loads,
            Register::CountServed => c.served,
            Register::CountRefused => c.refused,
            Register::CountDropped => c.dropped,
            Register::CountCongested => c.congested,
            Register::CountEvents => c.events,
            Register::CountAtomics => c.atomics,
            Register::CountCopies => c.copies,
            Register::CountBadKeys => c.bad_keys,
            Register::CountEnqueues => c.enqueues,
            Register::CountElements => c.elements,
            Register::CountOverflows => c.overflows,
            Register::CountReflected => c.reflected,
            Register::CountCounterStalls => c.counter_stalls,
            _ => c.errors,
        }
    }
}
