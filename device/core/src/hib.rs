// SPDX-License-Identifier: MIT OR Apache-2.0
//! The board: its state, the dispatch of events, and the order of its own stores into guest memory.

use crate::ctx::{Ctx, FollowUp, StepOwner};
use crate::events::Cause;
use crate::grants::{Clearing, Grants};
use crate::launch::Launcher;
use crate::page_counters::PageCounters;
use crate::queue::NotificationQueues;
use crate::replica::Replicas;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::tables::{AfterWrite, Written};
use crate::{Action, Bar, Event, HibConfig, MAX_CONTEXTS, StepId, StepResult};
use telegraphos_wire::admin::Command;
use telegraphos_wire::link::RESET_BITS;
use telegraphos_wire::regs::Register;
use telegraphos_wire::{Class, NodeId, Packet, Status, event};

/// What the board has done since its last reset; no protocol decision depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Remote stores accepted from this node's processors.
    pub stores: u64,
    /// Remote loads accepted.
    pub loads: u64,
    /// Remote loads answered all-ones at once, since an earlier one to that node timed out and the node has been silent
    /// since.
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

impl std::hash::Hash for Hib {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        let Hib { ctx, requester, responder, grants, queues, replicas, launcher, page_counters } = self;
        (ctx, requester, responder, grants, queues, replicas, launcher, page_counters).hash(state);
    }
}

/// The host interface board of one node.
///
/// Its hash is that of its protocol state, for model checkers: without statistics, the time, and its (constant)
/// configuration. Two boards that hash alike behave alike.
#[derive(Clone, Debug)]
pub struct Hib {
    pub(crate) ctx: Ctx,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    pub(crate) grants: Grants,
    pub(crate) queues: NotificationQueues,
    pub(crate) replicas: Replicas,
    pub(crate) launcher: Launcher,
    pub(crate) page_counters: PageCounters,
}

impl Hib {
    /// A board that has just been powered on: no link, no grants, no imports.
    pub fn new(mut config: HibConfig) -> Hib {
        config.contexts = config.contexts.min(MAX_CONTEXTS);
        Hib {
            requester: Requester::new(&config),
            responder: Responder::new(&config),
            grants: Grants::default(),
            queues: NotificationQueues::new(&config),
            replicas: Replicas::new(&config),
            launcher: Launcher::new(&config),
            page_counters: PageCounters::default(),
            ctx: Ctx::new(config),
        }
    }

    /// Sizes and limits.
    pub fn config(&self) -> &HibConfig {
        &self.ctx.config
    }

    /// What the board has done since its last reset.
    pub fn counters(&self) -> Counters {
        self.ctx.counters
    }

    /// Epochs of imports of which this board has refused a store: at most [`HibConfig::imports`] of each node.
    pub fn refused_epochs(&self) -> usize {
        self.ctx.answers.refused_epochs()
    }

    /// TG_QUEUE_EVENT_* bits of the queue at an export page, as its next event would tell them.
    pub fn queue_state(&self, page: u32) -> u64 {
        self.queues.event(page) & (event::QUEUE_OVERFLOW | event::QUEUE_BROKEN)
    }

    /// The board's present incarnation.
    pub fn incarnation(&self) -> u64 {
        self.ctx.incarnation
    }

    /// Whether no guest-memory step is in flight.
    pub fn is_quiescent(&self) -> bool {
        self.ctx.is_quiescent()
    }

    /// The moment (of the clock of [`Event::Tick`]) at which a tick is needed, if any.
    pub fn deadline(&self) -> Option<u64> {
        let waits = [self.requester.deadline(), self.launcher.deadline(), self.replicas.deadline()];
        waits.into_iter().flatten().min()
    }

    /// Takes one event and appends what is to be done. Never panics.
    pub fn handle(&mut self, event: Event, out: &mut Vec<Action>) {
        std::mem::swap(&mut self.ctx.out, out);
        self.dispatch(event);
        self.follow_up();
        if let Some(cause) = self.ctx.next_cause() {
            let (kind, index, value) = self.event_of(cause);
            self.ctx.post_event(kind, index, value);
        }
        self.ctx.link.return_credits(self.ctx.config.offered(), &mut self.ctx.out);
        if self.ctx.resetting && self.ctx.is_quiescent() {
            self.ctx.resetting = false;
            self.ctx.out.push(Action::ResetDone);
        }
        std::mem::swap(&mut self.ctx.out, out);
    }

    /// Hands on what organs have left for each other, until nothing is left.
    fn follow_up(&mut self) {
        loop {
            while let Some(follow_up) = self.ctx.next_follow_up() {
                match follow_up {
                    FollowUp::Packet(packet) => self.packet(packet),
                    FollowUp::Serve(source) => self.serve(source),
                    FollowUp::Performed(source) => self.queues.follow(&mut self.ctx, &self.grants, source),
                    FollowUp::OwnEnded(page) => self.leave_if_done(page),
                    FollowUp::StepEnded => self.finish_clearing(),
                }
            }
            self.pump_own();
            if self.ctx.has_none_to_follow() {
                return;
            }
        }
    }

    fn dispatch(&mut self, event: Event) {
        match event {
            Event::Read { token, bar, offset, size } => match bar {
                Bar::Control => {
                    let data = self.read_register(offset, size);
                    self.ctx.read_done(token, data);
                }
                Bar::Contexts => self.context_read(token, offset, size),
                Bar::Window => self.load(token, offset, size),
            },
            Event::Write { bar, offset, size, data } => match bar {
                Bar::Control => self.write_register(offset, size, data),
                Bar::Contexts => self.context_write(offset, size, data),
                Bar::Window => self.store(offset, size, data),
            },
            Event::IntakeDry => self.intake_dry(),
            Event::Packet(packet) => self.packet(packet),
            Event::Credit { class, count } => {
                self.ctx.link.credit(class, count);
                match class {
                    Class::Enqueue | Class::Request => self.pump_short(),
                    Class::Reflected => self.pump_reflected(),
                    Class::Reply => {}
                }
            }
            Event::LinkUp { incarnation, nodes, credits } => self.link_up(incarnation, nodes, credits),
            Event::LinkDown => self.link_down(),
            Event::NodeUp { node, incarnation } => self.node_up(node, incarnation),
            Event::NodeDown { node } => self.node_down(node, Status::NodeDown),
            Event::StepDone { step, result } => self.step_done(step, result),
            Event::Reset => self.reset(),
            Event::BusMaster(on) => {
                self.ctx.bus_master = on;
                self.ctx.advance_writes();
            }
            Event::Tick { now } => {
                self.ctx.now = self.ctx.now.max(now);
                self.expire();
                self.expire_fetches();
                self.expire_copies();
            }
            Event::Continue => {
                self.ctx.begin_turn();
                self.continue_copies();
            }
        }
    }

    /// Kind, index and value of the event that tells a cause, as things are now.
    fn event_of(&mut self, cause: Cause) -> (u16, u16, u64) {
        match cause {
            Cause::AdminDone(slot) => (event::ADMIN_DONE, slot as u16, 0),
            Cause::ImportState(import) => (event::IMPORT_STATE, import, self.import_state(import)),
            Cause::NodeState(node) => {
                let peer = self.requester.peers.get(usize::from(node));
                (event::NODE_STATE, node, peer.and_then(|peer| peer.incarnation).unwrap_or(0))
            }
            Cause::LinkState => (event::LINK_STATE, 0, u64::from(self.ctx.link.is_up())),
            Cause::Error => (event::ERROR, 0, self.ctx.registers.error),
            Cause::Context(context) => (event::CONTEXT, context, 0),
            Cause::ContextState(context) => (event::CONTEXT_STATE, context, self.context_state(context)),
            Cause::Replica(page) => {
                let (home, value) = self.replica_event(page);
                (event::REPLICA, home, value)
            }
            Cause::Queue(page) => (event::QUEUE, 0, self.queues.event(page)),
            Cause::Counter(counter) => (event::COUNTER, counter, self.page_counters.take_news(counter)),
        }
    }

    fn packet(&mut self, packet: Packet) {
        self.heard(packet.src);
        match packet.class() {
            Class::Reply => self.reply(packet),
            Class::Enqueue => self.queues.element(&mut self.ctx, &self.grants, packet),
            Class::Reflected => self.reflected(packet),
            _ => self.request(packet),
        }
    }

    // ---- steps and table writes ----

    fn step_done(&mut self, step: StepId, result: StepResult) {
        match self.ctx.take_step(step) {
            Some(StepOwner::Serve(source)) => self.served(source, result),
            Some(StepOwner::Command(slot)) => self.command_loaded(slot, result),
            Some(StepOwner::TableWrite(write)) => {
                if let Some(written) = self.ctx.table_stepped(write, result) {
                    self.written(written);
                }
            }
            Some(StepOwner::Block { operation, offset, .. }) => self.block_stepped(operation, offset, result),
            Some(StepOwner::Queue(page)) => self.queues.stepped(&mut self.ctx, &self.grants, page, result),
            Some(StepOwner::Replica(page)) => self.replica_stepped(page, result),
            Some(StepOwner::Cancelled) | None => {}
        }
    }

    /// A table write has ended, well or badly: what follows it, once its context has been served.
    fn written(&mut self, written: Written) {
        let Written { then, context, charged, stored } = written;
        if let Some(context) = context {
            if charged {
                self.launcher.give_word(context);
            }
            self.finish_context_close(context);
        }
        match then {
            AfterWrite::Nothing => {}
            AfterWrite::AdminDone(slot) => {
                self.ctx.admin.release(slot);
                if stored {
                    self.ctx.cause(Cause::AdminDone(slot));
                }
            }
            AfterWrite::EventPosted if stored => self.ctx.event_posted(),
            AfterWrite::EventPosted => self.ctx.events.disable(),
            AfterWrite::ContextDone(context) if stored => self.ctx.cause(Cause::Context(context)),
            AfterWrite::Counted(..) if stored => self.count_stored(),
            AfterWrite::ContextDone(_) | AfterWrite::Counted(..) => {}
        }
    }

    // ---- revocation ----

    /// Revokes pages at once, with the queues on them; `Ok(false)` if an access to them is still in flight.
    pub(crate) fn grant_clear(&mut self, slot: u32, command: &Command) -> Result<bool, Status> {
        let Command { index, count, .. } = *command;
        if count == 0 || u64::from(index) + u64::from(count) > u64::from(self.ctx.config.export_pages) {
            return Err(Status::Invalid);
        }
        for page in index..index + count {
            self.grants.remove(page);
            self.queues.clear(&mut self.ctx, page);
            self.replica_revoke(page);
        }
        if self.in_flight(index, count) {
            self.grants.clear_later(Clearing { slot, page: index, count });
            return Ok(false);
        }
        Ok(true)
    }

    /// Whether a step touches one of these export pages, for another node or for a copy of our own.
    fn in_flight(&self, page: u32, count: u32) -> bool {
        let queues = self.queues.step_on(page..page + count);
        let queues = queues || self.replica_steps(page..page + count);
        let page = u64::from(page);
        queues || self.responder.serves(page as u32, count) || self.ctx.copies_touch(page..page + u64::from(count))
    }

    pub(crate) fn finish_clearing(&mut self) {
        for c in self.grants.take_clearing() {
            if self.in_flight(c.page, c.count) {
                self.grants.clear_later(c);
            } else {
                self.ctx.complete_status(c.slot, Status::Ok);
            }
        }
    }

    /// Whether this node's processors have requests for one of its own pages that are not performed.
    pub(crate) fn own_requests_for(&self, page: u32) -> bool {
        let served = self.responder.has_for(self.ctx.config.node, page);
        served || self.requester.peers[usize::from(self.ctx.config.node)].stores_to(page)
    }

    // ---- link and nodes ----

    fn link_up(&mut self, incarnation: u64, nodes: u32, credits: [u32; 4]) {
        self.ctx.link.come_up(credits, nodes);
        self.divide_credits();
        if self.ctx.incarnation > incarnation {
            // This board outlived a fabric that counted lower: the others must learn the number it uses.
            self.ctx.out.push(Action::AnnounceReset { incarnation: self.ctx.incarnation });
        }
        self.ctx.incarnation = self.ctx.incarnation.max(incarnation);
        // Generations of this join are greater than all of an earlier process under the same node id.
        // 2^24 of them, before they are those of the next join (`link::incarnation_at`).
        self.grants.raise_generation(incarnation.saturating_mul(1 << RESET_BITS).min(u64::MAX / 2));
        self.ctx.answers.forget_performed(self.ctx.config.node);
        self.ctx.cause(Cause::LinkState);
    }

    fn link_down(&mut self) {
        if !self.ctx.link.go_down() {
            return;
        }
        for node in 0..self.ctx.config.window.nodes() {
            let node = node as NodeId;
            if node != self.ctx.config.node {
                self.node_down(node, Status::LinkDown);
            }
        }
        self.responder.forget_credits();
        self.ctx.answers.forget_performed(self.ctx.config.node);
        self.replica_link_lost();
        self.ctx.cause(Cause::LinkState);
    }

    fn node_up(&mut self, node: NodeId, incarnation: u64) {
        if node == self.ctx.config.node {
            return;
        }
        let Some(peer) = self.requester.peers.get_mut(usize::from(node)) else { return };
        let before = peer.incarnation.replace(incarnation);
        if before != Some(incarnation) {
            peer.requests = 0;
            self.divide_credits();
            self.ctx.answers.forget_refusals(node);
            self.queues.forget_elements_of(node, Some(incarnation));
            if before.is_some() {
                self.forget_member(node, Status::Reset);
            }
            if before.is_some() {
                self.kill_imports(node, Status::Reset);
            }
            self.ctx.cause(Cause::NodeState(node));
        }
    }

    fn node_down(&mut self, node: NodeId, status: Status) {
        if node == self.ctx.config.node {
            return;
        }
        let Some(peer) = self.requester.peers.get_mut(usize::from(node)) else { return };
        if peer.incarnation.take().is_none() {
            return;
        }
        self.divide_credits();
        self.fail_peer(node, status);
        self.responder.forget_requests_of(&mut self.ctx, node);
        self.ctx.answers.forget_refusals(node);
        self.queues.forget_elements_of(node, None);
        self.forget_member(node, status);
        self.ctx.cause(Cause::NodeState(node));
        // The others' shares have grown.
        self.pump_short();
    }

    /// Divides the credits of the link among the nodes that are present.
    fn divide_credits(&mut self) {
        let present = self.requester.peers.iter().filter(|peer| peer.incarnation.is_some()).count();
        self.ctx.link.divide(present as u64);
    }

    /// The life of a node that requests to it are meant for.
    pub(crate) fn target(&self, node: NodeId) -> u64 {
        if node == self.ctx.config.node {
            return self.ctx.resets;
        }
        self.requester.peers.get(usize::from(node)).and_then(|peer| peer.incarnation).unwrap_or(0)
    }

    /// Whether a node can be reached now; the node itself always can.
    pub(crate) fn reachable(&self, node: NodeId) -> Result<(), Status> {
        if node == self.ctx.config.node {
            return Ok(());
        }
        let Some(nodes) = self.ctx.link.nodes() else { return Err(Status::LinkDown) };
        if u32::from(node) >= nodes {
            return Err(Status::BadNode);
        }
        match self.requester.peers.get(usize::from(node)) {
            Some(peer) if peer.incarnation.is_some() => Ok(()),
            Some(_) => Err(Status::NodeDown),
            None => Err(Status::BadNode),
        }
    }

    // ---- reset ----

    pub(crate) fn reset(&mut self) {
        self.fail_all(Status::Reset);
        self.fail_fetches();
        self.grants.reset(&self.ctx);
        self.ctx.answers.forget_all_refusals();
        self.responder.refuse_all(&mut self.ctx, Status::Reset);
        self.queues.refuse_all(&mut self.ctx, Status::Reset);
        self.refuse_multicasts(Status::Reset);
        self.launcher.reset(&self.ctx.config);
        self.page_counters = PageCounters::default();
        self.ctx.reset();
        self.ctx.answers.forget_performed(self.ctx.config.node);
    }

    pub(crate) fn counter(&self, register: Register) -> u64 {
        let c = &self.ctx.counters;
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
