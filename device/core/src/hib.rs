// SPDX-License-Identifier: MIT OR Apache-2.0
//! The board: owns the parts, and dispatches events and follow-ups to them.

use crate::access::WindowAccess;
use crate::arrived::{Arrived, Charge};
use crate::config::Bug;
use crate::ctx::{Claim, Ctx, FollowUp, StepOwner, earlier};
use crate::events::Cause;
use crate::grants::{Clearing, Grants};
use crate::launch::{self, Launcher};
use crate::queue::NotificationQueues;
use crate::replica::{self, Replicas, Served};
use crate::requester::{Ended, Import, Life, Requester};
use crate::responder::{Responder, is_block};
use crate::rings::Ring;
use crate::tables::{AfterWrite, Written};
use crate::watch::Watches;
use crate::{Action, Bar, Counters, Event, HibConfig, Loan, MAX_CONTEXTS, Notice, StepId, StepResult, WindowStore};
use crate::{RingAction, RingEvent, RingViolation};
use std::hint::black_box;
use telegraphos_wire::admin::Command;
use telegraphos_wire::context::WordArm;
use telegraphos_wire::link::RESET_BITS;
use telegraphos_wire::{Body, Class, NodeId, Packet, Status, UNIT, UNIT_SHIFT, context, event, range};

/// The host interface board of one node.
///
/// The hash covers the protocol state, for model checkers: not the statistics, the time, or the (constant)
/// configuration. Boards with equal hashes behave alike.
#[derive(Clone, Debug, Hash)]
pub struct Hib {
    pub(crate) ctx: Ctx,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    pub(crate) grants: Grants,
    pub(crate) queues: NotificationQueues,
    pub(crate) replicas: Replicas,
    pub(crate) launcher: Launcher,
    pub(crate) watches: Watches,
}

/// The parts that the replicas use, as the argument of their methods.
macro_rules! below_replicas {
    ($hib:ident) => {
        &mut replica::Below {
            ctx: &mut $hib.ctx,
            requester: &mut $hib.requester,
            responder: &mut $hib.responder,
            grants: &mut $hib.grants,
        }
    };
}

/// The parts that the launcher uses, as the argument of its methods.
macro_rules! below_launcher {
    ($hib:ident) => {
        &mut launch::Below {
            ctx: &mut $hib.ctx,
            requester: &mut $hib.requester,
            grants: &mut $hib.grants,
            replicas: &$hib.replicas,
        }
    };
}
pub(crate) use {below_launcher, below_replicas};

impl Hib {
    /// A board after power-on: no link, no grants, no imports.
    pub fn new(mut config: HibConfig) -> Hib {
        config.contexts = config.contexts.min(MAX_CONTEXTS);
        Hib {
            requester: Requester::new(&config),
            responder: Responder::new(&config),
            grants: Grants::new(&config),
            queues: NotificationQueues::new(&config),
            replicas: Replicas::new(&config),
            launcher: Launcher::new(&config),
            watches: Watches::default(),
            ctx: Ctx::new(config),
        }
    }

    /// The configuration of the board.
    pub fn config(&self) -> &HibConfig {
        &self.ctx.config
    }

    /// Statistics since the last reset.
    pub fn counters(&self) -> Counters {
        self.ctx.counters
    }

    /// Number of epochs of imports of which this board has refused a store: at most [`HibConfig::imports`] of each
    /// node.
    pub fn refused_epochs(&self) -> usize {
        self.ctx.answers.refusals.len
    }

    /// TG_QUEUE_EVENT_* bits of the queue at an export page, as its next event would report them.
    pub fn queue_state(&self, page: u32) -> u64 {
        self.queues.event(page) & (event::QUEUE_OVERFLOW | event::QUEUE_BROKEN)
    }

    /// The home of a replicated page of this node; `None` if the page is not replicated, or an orphan.
    pub fn home_of(&self, page: u32) -> Option<NodeId> {
        self.replicas.home_of(&self.ctx, page)
    }

    /// Pending-write counters in use, of [`HibConfig::pending_writes`].
    pub fn pending_counters(&self) -> usize {
        self.replicas.pending.len()
    }

    /// Elements of an import in flight: sent and not acknowledged.
    pub fn elements_under_way(&self, import: u16) -> u32 {
        self.requester.elements_in_flight(import)
    }

    /// Returns whether so many stores wait that the shell should stop reading from the guest for a while, if it can.
    pub fn is_nearly_full(&self) -> bool {
        self.is_nearly_full_with(0)
    }

    /// The same, if so many more waited, which the shell has not passed on yet.
    pub fn is_nearly_full_with(&self, more: u32) -> bool {
        self.requester.pressure.waiting.saturating_add(more) >= self.ctx.config.reserve / 4
    }

    /// Number of stores and elements of the whole board that wait to be sent, of [`HibConfig::reserve`].
    pub fn waiting(&self) -> u32 {
        self.requester.pressure.waiting
    }

    /// Stores (or elements) accepted through an open import and not dropped, and how many of those are finished; quiet
    /// waits until both are equal. `None` if the import is not open.
    pub fn import_progress(&self, number: u16) -> Option<(u64, u64)> {
        self.requester.imports.get(number).map(|import| (import.issued, import.finished))
    }

    /// The value of the next IMPORT_STATE event of an import: TG_IMPORT_* bits, its latched status in bits 31:16.
    pub fn import_state(&self, number: u16) -> u64 {
        self.requester.imports.get(number).map_or(0, Import::state)
    }

    /// The value of the next CONTEXT_STATE event of a context: TG_CONTEXT_* bits.
    pub fn context_state(&self, context: u16) -> u64 {
        self.launcher.congestion.context_state(context)
    }

    /// Bytes of unfinished copies of a context, of [`HibConfig::copies_limit`].
    pub fn copying(&self, context: u16) -> u64 {
        self.launcher.congestion.bytes.held(&context)
    }

    /// Status words of a context that are reserved or wait to be written, of [`STATUS_WORDS`](crate::STATUS_WORDS).
    pub fn status_words(&self, context: u16) -> u64 {
        self.requester.contexts.status_words.held(&context)
    }

    /// The current incarnation of the board.
    pub fn incarnation(&self) -> u64 {
        self.ctx.incarnation
    }

    /// Returns whether no guest-memory step is in flight.
    pub fn is_quiescent(&self) -> bool {
        self.ctx.steps.is_empty()
    }

    /// The time (of the clock of [`Event::Tick`]) at which the next tick is needed, if any.
    pub fn deadline(&self) -> Option<u64> {
        earlier(earlier(self.requester.deadline(), self.launcher.deadline()), self.replicas.deadline())
    }

    /// Handles one event and appends the resulting actions to `out`. Never panics.
    #[inline]
    pub fn handle(&mut self, event: Event, out: &mut Vec<Action>) {
        match event {
            // These two come in each turn of a shell's loop, nearly always for nothing.
            Event::Tick { now } if !self.tick(now) => {}
            Event::IntakeDry if !self.intake_dry() => {}
            event => self.take(event, out),
        }
    }

    /// Advances the time. Returns whether something has been waited for too long.
    #[inline]
    fn tick(&mut self, now: u64) -> bool {
        self.ctx.now = self.ctx.now.max(now);
        self.deadline().is_some_and(|deadline| deadline <= self.ctx.now)
    }

    /// The guest's socket is empty. Returns whether contexts or imports are to be released.
    #[inline]
    fn intake_dry(&mut self) -> bool {
        let contexts = self.launcher.congestion.intake_dry();
        self.requester.pressure.intake_dry() || contexts
    }

    /// Dispatches one event and what follows from it.
    fn take(&mut self, event: Event, out: &mut Vec<Action>) {
        std::mem::swap(&mut self.ctx.out, out);
        self.dispatch(event);
        if self.ctx.unsettled {
            self.settle();
        }
        std::mem::swap(&mut self.ctx.out, out);
    }

    /// What is left for the end of an event.
    fn settle(&mut self) {
        self.follow_up();
        if let Some(cause) = self.ctx.next_cause() {
            let (kind, index, value) = self.event_of(cause);
            self.ctx.post_event(kind, index, value);
        }
        self.ctx.return_credits();
        if self.ctx.resetting && self.ctx.steps.is_empty() {
            self.ctx.resetting = false;
            self.ctx.out.push(Action::ResetDone);
        }
        self.ctx.settled();
    }

    /// Handles stores that the guest has posted one after the other to the window, as [`Hib::handle`] handles an
    /// [`Event::Write`] for each: with the same effects, errors and counts. Those to one page of another node leave as
    /// one packet, which costs a fraction.
    pub fn stores(&mut self, mut stores: &[WindowStore], out: &mut Vec<Action>) {
        while let Some((first, others)) = stores.split_first() {
            let burst = if others.is_empty() { 0 } else { self.burst(stores, out) };
            stores = match burst {
                0 => {
                    self.handle((*first).into(), out);
                    others
                }
                count => &stores[count..],
            };
        }
    }

    /// Accepts the first of these stores as one burst. Returns how many.
    fn burst(&mut self, stores: &[WindowStore], out: &mut Vec<Action>) -> usize {
        std::mem::swap(&mut self.ctx.out, out);
        let count = self.requester.store_burst(&mut self.ctx, stores);
        (0..count).for_each(|_| self.count_intake());
        if count > 0 && self.ctx.unsettled {
            self.settle();
        }
        std::mem::swap(&mut self.ctx.out, out);
        count
    }

    /// Returns whether acknowledgements wait for the [end of the turn](Hib::end_turn).
    pub fn owes_acknowledgements(&self) -> bool {
        !self.ctx.due.is_empty()
    }

    /// Ends a turn of the shell's loop, which may have consisted of any events: appends the acknowledgements of what
    /// was performed in it to `out`, one packet for all stores, blocks and elements of a node, as far as their tags are
    /// of one block ([`telegraphos_wire::Tags`]). The shell calls it before it sends what a turn has produced, and
    /// never waits with it. Nothing is appended unless the board [owes](Hib::owes_acknowledgements) any.
    #[inline]
    pub fn end_turn(&mut self, out: &mut Vec<Action>) {
        if self.ctx.due.is_empty() || self.ctx.has(Bug::KeepAcknowledgement) {
            return;
        }
        std::mem::swap(&mut self.ctx.out, out);
        self.ctx.send_all_due();
        std::mem::swap(&mut self.ctx.out, out);
    }

    /// Dispatches follow-ups until none is left.
    fn follow_up(&mut self) {
        loop {
            while let Some(follow_up) = self.ctx.follow_ups.pop_front() {
                match follow_up {
                    FollowUp::OwnPacket => {
                        if let Some(packet) = self.ctx.own_packets.pop_front() {
                            self.packet(packet, None, Charge::Nothing);
                        }
                    }
                    FollowUp::OwnLentPacket => {
                        let loan = self.ctx.own_loans.pop_front();
                        if let Some(packet) = self.ctx.own_packets.pop_front() {
                            self.packet(packet, loan, Charge::Nothing);
                        }
                    }
                    FollowUp::Serve(source) => self.serve(source),
                    FollowUp::Performed(source) => self.queues.serve_source(&mut self.ctx, &self.grants, source),
                    FollowUp::OwnEnded(page) => self.replicas.leave_if_done(below_replicas!(self), page),
                    FollowUp::ForwardDropped(number) => {
                        self.replicas.forward_dropped(below_replicas!(self), number);
                    }
                    FollowUp::StepEnded => self.finish_clearing(),
                }
            }
            self.requester.pump_own(&mut self.ctx);
            if !self.ctx.follow_ups.is_empty() {
                continue;
            }
            match self.ctx.next_claim() {
                Some(Claim::Copies(node)) => self.launcher.pump_copies(below_launcher!(self), node),
                Some(Claim::Serve(source)) => self.serve(source),
                None => return,
            }
        }
    }

    /// Passes an event to the part that handles it.
    #[inline(always)]
    fn dispatch(&mut self, event: Event) {
        match event {
            Event::Read { token, bar, offset, size } => match bar {
                Bar::Control => {
                    let data = self.read_register(offset, size);
                    self.ctx.read_done(token, data);
                }
                Bar::Contexts => self.launcher.context_read(below_launcher!(self), token, offset, size),
                Bar::Window => {
                    let access = WindowAccess::new(&self.ctx.config.window, offset, size);
                    match self.launcher.try_load(below_launcher!(self), &access) {
                        Some(data) => self.ctx.read_done(token, data),
                        None => self.requester.load(&mut self.ctx, token, &access),
                    }
                }
            },
            Event::Write { bar, offset, size, data } => match bar {
                Bar::Control => self.write_register(offset, size, data),
                Bar::Contexts => self.context_write(offset, size, data),
                Bar::Window => {
                    self.count_intake();
                    let access = WindowAccess::new(&self.ctx.config.window, offset, size);
                    if !self.launcher.arguments.try_store(below_launcher!(self), &access, data) {
                        self.requester.store(&mut self.ctx, &access, data);
                    }
                }
            },
            Event::IntakeDry => {
                self.launcher.congestion.release(&mut self.ctx);
                self.requester.pressure.release(&mut self.ctx, &mut self.requester.imports);
            }
            Event::Packet(packet) => {
                let own = packet.src == self.ctx.config.node;
                self.packet(packet, None, if own { Charge::Nothing } else { Charge::Link });
            }
            Event::RingPacket { packet, loan } => self.ring_packet(Arrived { packet, loan, charge: Charge::Ring }),
            Event::Ring { peer, what } => self.ring_event(peer, what),
            Event::Credit { class, count } => {
                self.ctx.link.credit(class, count);
                match class {
                    Class::Enqueue | Class::Request => self.requester.pump_credit_waiters(&mut self.ctx),
                    Class::Reflected => self.replicas.multicasts.pump(below_replicas!(self)),
                    Class::Reply => {}
                }
            }
            Event::LinkUp { incarnation, nodes, credits } => self.link_up(incarnation, nodes, credits),
            Event::LinkDown => self.link_down(),
            Event::NodeUp { node, incarnation, block } => self.node_up(node, Life::new(incarnation, block)),
            Event::NodeDown { node } => self.node_down(node, Status::NodeDown),
            Event::StepDone { step, result } => self.step_done(step, result),
            Event::Reset => self.reset(),
            Event::BusMaster(on) => {
                self.ctx.bus_master = on;
                if !on {
                    self.ctx.recall(0, u64::MAX);
                }
                self.ctx.advance_writes();
            }
            Event::DirectChanged => {
                if !self.ctx.has(Bug::ForgetDirect) {
                    self.ctx.cause(Cause::Direct);
                }
            }
            Event::Tick { .. } => self.expire(),
            // Those who wait for it are follow-ups.
            Event::Continue => self.ctx.begin_turn(),
        }
    }

    /// Ends what has been waited for too long.
    fn expire(&mut self) {
        let ended = self.requester.expire(&mut self.ctx);
        self.dispatch_ended(ended);
        for node in self.requester.peers.overdue(&self.ctx) {
            self.node_silent(node);
        }
        self.launcher.expire(below_launcher!(self));
        self.replicas.expire(below_replicas!(self));
    }

    /// Kind, index and value of the event for a cause, from the current state of its part.
    fn event_of(&mut self, cause: Cause) -> (u16, u16, u64) {
        match cause {
            Cause::AdminDone(slot) => (event::ADMIN_DONE, slot as u16, 0),
            Cause::ImportState(import) => {
                (event::IMPORT_STATE, import, self.requester.imports.get(import).map_or(0, Import::state))
            }
            Cause::NodeState(node) => {
                (event::NODE_STATE, node, self.requester.peers.presence.incarnation(node).unwrap_or(0))
            }
            Cause::LinkState => (event::LINK_STATE, 0, u64::from(self.ctx.link.is_up())),
            Cause::Error => (event::ERROR, 0, self.ctx.registers.error),
            Cause::Context(context) => (event::CONTEXT, context, 0),
            Cause::ContextState(context) => {
                (event::CONTEXT_STATE, context, self.launcher.congestion.context_state(context))
            }
            Cause::Replica(page) => {
                // Wakes the waiters for its words: they read the new state of the page.
                self.watches.changed(&mut self.ctx, page);
                let (home, value) = self.replicas.event(&self.ctx, page);
                (event::REPLICA, home, value)
            }
            Cause::Direct => (event::DIRECT, 0, 0),
            Cause::Queue(page) => (event::QUEUE, 0, self.queues.event(page)),
            Cause::Counter(counter) => (event::COUNTER, counter, self.requester.page_counters.take_fired(counter)),
        }
    }

    /// Counts a posted store to the window or to a context page. Stops the storing contexts and imports if the board
    /// cannot keep up.
    fn count_intake(&mut self) {
        if self.requester.pressure.count_intake(&self.ctx) {
            self.launcher.congestion.throttle(&mut self.ctx);
            self.requester.pressure.throttle(&mut self.ctx, &mut self.requester.imports);
        }
    }

    /// Serves a store to a context page: an arm of a queue or of a word, or a register of the launcher.
    fn context_write(&mut self, offset: u64, size: u32, data: u64) {
        let number = (offset >> UNIT_SHIFT) as u16;
        let open = self.requester.contexts.table.contains(number);
        if open {
            self.launcher.congestion.count_store(number);
        }
        self.count_intake();
        if open && size == 8 && offset & (UNIT - 1) == context::QUEUE_ARM {
            return self.queues.arm(&mut self.ctx, &self.grants, number, offset, data);
        }
        if open && size == 8 {
            if let Some(arm) = WordArm::decode(offset & (UNIT - 1), data) {
                let current = self.replicas.shows_stores(arm.page);
                return self.watches.arm(&mut self.ctx, &self.grants, number, offset, arm, current);
            }
        }
        self.launcher.context_write(below_launcher!(self), offset, size, data);
    }

    // ---- looks ahead ----

    /// Reads what is used of the board for every event, before its turn.
    pub fn look_ahead(&self) {
        // Changes nothing: a simulation of thousands of boards calls it before events, so that the processor fetches
        // the memory of all of it at the same time.
        black_box((self.deadline(), self.ctx.steps.is_empty(), self.ctx.follow_ups.is_empty(), self.ctx.link.is_up()));
        black_box((self.requester.pressure.waiting, self.ctx.counters.events));
    }

    /// Reads what is used of the board for a packet of `source`.
    pub fn look_ahead_of(&self, source: NodeId) {
        black_box(self.requester.peers.table[usize::from(source)].requests_sent);
        self.responder.look_ahead(source);
        self.ctx.answers.look_ahead(source);
    }

    // ---- packets ----

    /// Dispatches a packet by its class, and the loan beside it. A packet of this node to itself comes here as a
    /// follow-up. `charge` is what it occupies, if it is a request or an element.
    fn packet(&mut self, packet: Packet, loan: Option<Loan>, charge: Charge) {
        self.requester.peers.note_packet_from(&self.ctx, packet.src);
        match packet.class() {
            Class::Reply => self.reply(packet, loan),
            Class::Enqueue => self.queues.element(&mut self.ctx, &self.grants, packet, charge),
            Class::Reflected => self.replicas.reflected(below_replicas!(self), packet),
            Class::Request => {
                let source = packet.src;
                if self.responder.accept(&mut self.ctx, packet, loan, charge) {
                    self.serve(source);
                }
            }
        }
    }

    /// Matches a reply to its requests in flight and completes them. A reply to an unknown tag is dropped.
    fn reply(&mut self, packet: Packet, loan: Option<Loan>) {
        let source = packet.src;
        if packet.incarnation != self.ctx.incarnation && source != self.ctx.config.node {
            return; // A reply to an earlier incarnation.
        }
        match packet.body {
            Body::CopyAck { status } => {
                return self.replicas.copy_acknowledged(below_replicas!(self), source, packet.tag, status);
            }
            Body::WriteAcks { tags } => {
                let mut any = false;
                for tag in tags.within(packet.tag) {
                    any |= self.answered(source, tag, Body::WriteAck { status: Status::Ok }, None);
                }
                if !any {
                    return;
                }
            }
            body => {
                if !self.answered(source, packet.tag, body, loan) {
                    return;
                }
            }
        }
        // A node to which something was in flight: others may not exist.
        self.requester.pump(&mut self.ctx, source);
    }

    /// Completes the request to a node with this tag. False if none is in flight.
    fn answered(&mut self, node: NodeId, tag: u32, body: Body, loan: Option<Loan>) -> bool {
        let Some(request) = self.requester.peers.take_in_flight(&self.ctx, node, tag) else { return false };
        let ended = self.requester.answered(&mut self.ctx, request, body, loan);
        self.dispatch_ended(ended);
        true
    }

    /// Passes the results of requests to the launcher and the replicas, which issued them.
    fn dispatch_ended(&mut self, ended: impl IntoIterator<Item = Ended>) {
        for ended in ended {
            match ended {
                Ended::Part { operation, offset, answer } => {
                    self.launcher.answered(below_launcher!(self), operation, offset, answer);
                }
                Ended::Forward { number, answer } => {
                    self.replicas.forward_answered(below_replicas!(self), number, answer);
                }
                Ended::Replica { request, status } => {
                    self.replicas.answered(below_replicas!(self), request, status);
                }
            }
        }
    }

    /// Performs the requests of a source in order, until one takes a step or must wait. Each is a lookup, a reservation
    /// of receive credits, an access to a replicated page, or an access to granted memory.
    fn serve(&mut self, source: NodeId) {
        while let Some(packet) = self.responder.first_of(&self.ctx, source) {
            let served = match &packet.body {
                Body::Reserve { .. } => Served::Answer(self.queues.reserve(&mut self.ctx, &self.grants, packet)),
                Body::Lookup { .. } => {
                    let width = |page| self.queues.width(page);
                    Served::Answer(self.grants.look_up(&self.ctx, source, &packet.body, width))
                }
                Body::WriteBurst { .. } => match self.start_burst(source) {
                    true => Served::Working,
                    false => {
                        self.responder.unfold(&mut self.ctx, source);
                        continue;
                    }
                },
                _ if self.ctx.is_stale(packet) => Served::Refused(Status::Reset),
                _ if self.ctx.answers.follows_refused_store(packet) => Served::Refused(Status::Cut),
                _ if is_block(packet) && !self.ctx.may_copy(Claim::Serve(source)) => Served::Stalled,
                body if self.replicas.concern(body) => {
                    let page = body.page();
                    self.serve_replicated(source, page)
                }
                _ => self.start(source),
            };
            match served {
                Served::Working => return,
                Served::Stalled => return self.responder.in_service(source, None),
                Served::Left => {}
                Served::Answer(body) => self.responder.answer(&mut self.ctx, source, body),
                Served::Refused(status) => self.responder.refuse(&mut self.ctx, source, status),
            }
        }
    }

    /// Starts the first request of a source, a burst, unless its stores must be performed one by one: some of them will
    /// be refused, or they concern a replicated page.
    fn start_burst(&mut self, source: NodeId) -> bool {
        let Some(packet) = self.responder.first_of(&self.ctx, source) else { return false };
        let apart = self.ctx.is_stale(packet)
            || self.ctx.answers.follows_refused_store(packet)
            || self.replicas.concern(&packet.body);
        !apart && self.responder.start(&mut self.ctx, &self.grants, source).is_ok()
    }

    /// Serves the first request of a source, which may concern a replicated page: this one.
    fn serve_replicated(&mut self, source: NodeId, page: u32) -> Served {
        self.responder.in_service(source, Some(page));
        self.replicas.serve(below_replicas!(self), source).unwrap_or_else(|| {
            self.responder.in_service(source, None);
            self.start(source)
        })
    }

    /// Starts the first request of a source, an access to granted memory.
    #[inline]
    fn start(&mut self, source: NodeId) -> Served {
        match self.responder.start(&mut self.ctx, &self.grants, source) {
            Ok(()) => Served::Working,
            Err(status) => Served::Refused(status),
        }
    }

    // ---- steps and table writes ----

    /// Passes the result of a step to its owner.
    fn step_done(&mut self, step: StepId, result: StepResult) {
        let owner = self.ctx.steps.remove(step);
        if !self.watches.pages.is_empty() {
            self.note_change(owner, &result);
        }
        match owner {
            Some(StepOwner::Serve(source)) => {
                if self.responder.stepped(&mut self.ctx, &self.grants, source, result) {
                    if self.grants.is_clearing() {
                        self.ctx.defer(FollowUp::StepEnded);
                    }
                    self.serve(source);
                }
            }
            Some(StepOwner::Command(slot)) => self.command_loaded(slot, result),
            Some(StepOwner::TableWrite(write)) => {
                if let Some(written) = self.ctx.table_stepped(write, result) {
                    self.finish_table_write(written);
                }
            }
            Some(StepOwner::Block { operation, offset, unpaid, .. }) => {
                self.launcher.block_stepped(below_launcher!(self), operation, offset, unpaid, result);
            }
            Some(StepOwner::Queue(page)) => self.queues.stepped(&mut self.ctx, &self.grants, page, result),
            Some(StepOwner::Replica(page)) => self.replicas.stepped(below_replicas!(self), page, result),
            Some(StepOwner::EventIndex) => self.ctx.event_index_read(result),
            Some(StepOwner::Runs(slot)) => self.runs_read(slot, &result),
            Some(StepOwner::Watch(page)) => {
                self.watches.looked(&mut self.ctx, page, result);
                if self.grants.is_clearing() {
                    self.ctx.defer(FollowUp::StepEnded);
                }
            }
            Some(StepOwner::Cancelled) | None => {}
        }
    }

    /// Notifies the context that has armed the page which a step has changed, if it has changed one.
    fn note_change(&mut self, owner: Option<StepOwner>, result: &StepResult) {
        let page = match (owner, result) {
            (_, StepResult::Failed(_)) => None,
            (Some(StepOwner::Serve(source)), _) => self.responder.changes(source),
            (Some(StepOwner::Replica(page)), StepResult::Stored | StepResult::Loaded(_)) => Some(page),
            (Some(StepOwner::Block { page, .. }), StepResult::Stored) => Some(page),
            _ => None,
        };
        if let Some(page) = page {
            self.watches.changed(&mut self.ctx, page);
        }
    }

    /// Completes a table write, successful or not: returns its charge, completes a pending close of its context, then
    /// performs the action that follows it.
    fn finish_table_write(&mut self, written: Written) {
        let Written { after, context, charged, stored, .. } = written;
        if let Some(context) = context {
            if charged {
                self.requester.contexts.return_status_word(context);
            }
            self.finish_context_close(context);
        }
        match after {
            AfterWrite::Nothing => {}
            AfterWrite::AdminDone(slot) => {
                self.ctx.admin.busy.remove(&slot);
                if stored {
                    self.ctx.cause(Cause::AdminDone(slot));
                }
            }
            AfterWrite::EventPosted if stored => self.ctx.event_stored(),
            AfterWrite::EventPosted => self.ctx.events.disable(),
            AfterWrite::ContextDone(context) if stored => self.ctx.cause(Cause::Context(context)),
            AfterWrite::Counted(..) if stored => self.requester.count_stored(&mut self.ctx),
            AfterWrite::ContextDone(_) | AfterWrite::Counted(..) => {}
        }
    }

    // ---- revocation ----

    /// Revokes pages at once, including queues and copies on them. Returns `Ok(false)` if a step on them is in flight;
    /// the slot completes after it.
    pub(crate) fn grant_clear(&mut self, slot: u32, command: &Command) -> Result<bool, Status> {
        let Command { index, count, .. } = *command;
        if range::number(index).is_some() {
            return self.range_clear(slot, index);
        }
        if count == 0 || u64::from(index) + u64::from(count) > u64::from(self.ctx.config.export_pages) {
            return Err(Status::Invalid);
        }
        for page in index..index + count {
            if let Some(grant) = self.grants.pages.get(page) {
                self.ctx.recall(grant.address, grant.valid);
            }
            self.grants.pages.remove(page);
            self.watches.changed(&mut self.ctx, page);
            self.queues.clear(&mut self.ctx, page);
            self.replicas.revoke(below_replicas!(self), page);
        }
        if self.in_flight(index, count) {
            self.grants.clearing.push(Clearing { slot, page: index, count });
            return Ok(false);
        }
        Ok(true)
    }

    /// Revokes a range; the rest is as for pages. Loans of other memory between its runs may be taken back with it.
    fn range_clear(&mut self, slot: u32, page: u32) -> Result<bool, Status> {
        if let Some(range) = self.grants.ranges.remove(page)? {
            let (address, length) = if self.ctx.has(Bug::RecallFirstRun) { range.first_run() } else { range.hull() };
            self.ctx.recall(address, length);
        }
        let count = range::UNITS as u32;
        let done = !self.in_flight(page, count) || self.ctx.has(Bug::ClearRangeAtOnce);
        if !done {
            self.grants.clearing.push(Clearing { slot, page, count });
        }
        Ok(done)
    }

    /// Returns whether a step is in flight on one of these export pages: of a request, a queue, a replica, or a copy
    /// operation of this node.
    fn in_flight(&self, page: u32, count: u32) -> bool {
        let queues = self.queues.step_on(page..page + count);
        let queues = queues || self.replicas.step_on(page..page + count);
        let page = u64::from(page);
        queues || self.responder.serves(page as u32, count) || self.ctx.own_step_on(page..page + u64::from(count))
    }

    /// Completes the delayed revocations whose pages have no step in flight any more, and the closing of gates that no
    /// access is in flight through.
    pub(crate) fn finish_clearing(&mut self) {
        for c in std::mem::take(&mut self.grants.clearing) {
            if self.in_flight(c.page, c.count) {
                self.grants.clearing.push(c);
            } else {
                self.ctx.complete_status(c.slot, Status::Ok);
            }
        }
        for c in std::mem::take(&mut self.grants.closing) {
            if self.responder.serves(c.page, range::UNITS as u32) {
                self.grants.closing.push(c);
            } else {
                self.launcher.part_done(below_launcher!(self), c.operation, (Status::Ok, c.import));
            }
        }
    }

    // ---- link and nodes ----

    /// The board has joined the fabric: takes the credits, and raises incarnation and generations above those of
    /// earlier joins.
    fn link_up(&mut self, incarnation: u64, nodes: u32, credits: [u32; 4]) {
        self.ctx.link.come_up(credits, nodes);
        self.requester.peers.divide_credits(&mut self.ctx);
        if self.ctx.incarnation > incarnation {
            // The fabric restarted and counted lower: announce the incarnation in use.
            self.ctx.out.push(Action::AnnounceReset { incarnation: self.ctx.incarnation });
        }
        self.ctx.incarnation = self.ctx.incarnation.max(incarnation);
        // Generations of this join exceed all of an earlier process with the same node id: each join has 2^24 of them
        // (`link::incarnation_at`).
        self.grants.raise_generation(incarnation.saturating_mul(1 << RESET_BITS).min(u64::MAX / 2));
        self.ctx.answers.forget_performed(self.ctx.config.node);
        self.ctx.cause(Cause::LinkState);
    }

    /// The link is lost: every other node counts as down.
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
        self.responder.forget_credits(|_, _| true);
        self.ctx.answers.forget_performed(self.ctx.config.node);
        self.replicas.link_lost(&self.ctx);
        self.ctx.cause(Cause::LinkState);
    }

    /// A node is present. A new incarnation fails the imports from the earlier one and drops its refusals and elements.
    fn node_up(&mut self, node: NodeId, life: Life) {
        if node == self.ctx.config.node {
            return;
        }
        if !self.requester.peers.presence.contains(node) {
            return;
        }
        let incarnation = life.incarnation;
        if self.ctx.rings.get(node).is_some_and(|ring| ring.incarnation != incarnation) {
            // The earlier incarnation answers nothing more of what it was sent by the ring.
            self.node_down(node, Status::Reset);
        }
        let before = self.requester.peers.presence.replace(node, Some(life)).map(|before| before.incarnation);
        if before != Some(incarnation) {
            if let Some(peer) = self.requester.peers.table.existing_mut(node) {
                peer.requests_sent = 0;
            }
            self.requester.peers.divide_credits(&mut self.ctx);
            self.ctx.answers.refusals.forget(node);
            self.queues.forget_elements_of(node, Some(incarnation));
            if before.is_some() {
                self.replicas.forget_member(below_replicas!(self), node, Status::Reset);
                self.requester.kill_imports(&mut self.ctx, node, Status::Reset);
            }
            self.ctx.cause(Cause::NodeState(node));
        }
    }

    /// A node is down: its requests and elements are dropped, and everything outstanding to it fails with `status`.
    pub(crate) fn node_down(&mut self, node: NodeId, status: Status) {
        if node == self.ctx.config.node {
            return;
        }
        self.close_ring(node, None);
        self.ctx.due.take(node);
        self.ctx.bursts.forget(node);
        if self.requester.peers.presence.replace(node, None).is_none() {
            return;
        }
        self.requester.peers.divide_credits(&mut self.ctx);
        // Fails the waiting copies first, so that none of them starts another block.
        self.launcher.fail_waiting_copies(below_launcher!(self), node, status);
        let ended = self.requester.fail_peer(&mut self.ctx, node, status);
        self.dispatch_ended(ended);
        self.responder.forget_requests_of(&mut self.ctx, node);
        self.ctx.answers.refusals.forget(node);
        self.queues.forget_elements_of(node, None);
        self.replicas.forget_member(below_replicas!(self), node, status);
        self.ctx.cause(Cause::NodeState(node));
        // The credit shares of the remaining nodes have grown.
        self.requester.pump_credit_waiters(&mut self.ctx);
    }

    /// A node that is up has not answered within the limit: everything outstanding to it ends with TIMEOUT, and its
    /// imports are dead. It remains a node like others: its own requests are served, and its segments can be imported
    /// anew.
    fn node_silent(&mut self, node: NodeId) {
        self.ctx.counters.silent_nodes += 1;
        self.ctx.notice(Notice::SilentNode { node });
        // Fails the waiting copies first, so that none of them starts another block.
        self.launcher.fail_waiting_copies(below_launcher!(self), node, Status::Timeout);
        let ended = self.requester.abandon_peer(&mut self.ctx, node);
        self.dispatch_ended(ended);
    }

    // ---- rings ----

    /// Returns whether a ring to this incarnation of a node, offered to incarnation `own` of this one, can be opened:
    /// both are those of now, and there is no such ring.
    pub fn accepts_ring(&self, node: NodeId, incarnation: u64, own: u64) -> bool {
        self.ctx.link.is_up()
            && own == self.ctx.incarnation
            && node != self.ctx.config.node
            && self.requester.peers.presence.incarnation(node) == Some(incarnation)
            && !self.ctx.rings.contains(node)
    }

    /// An event of the ring to a node.
    pub(crate) fn ring_event(&mut self, peer: NodeId, event: RingEvent) {
        match event {
            RingEvent::Up { incarnation, own, credits, lends } => {
                if self.accepts_ring(peer, incarnation, own) {
                    self.ctx.rings.open(peer, incarnation, credits, lends);
                    self.ctx.out.push(Action::Ring { peer, what: RingAction::Probe });
                }
            }
            RingEvent::Credit { class, count } => {
                let Some(ring) = self.ctx.rings.get(peer) else { return };
                match ring.credit(class, count) {
                    Ok(()) => self.requester.pump(&mut self.ctx, peer),
                    Err(why) => self.end_ring(peer, Some(why)),
                }
            }
            RingEvent::Alive => {
                if self.ctx.rings.get(peer).is_some_and(|ring| ring.answered_probe()) {
                    self.report_withdrawn(peer);
                    self.requester.pump(&mut self.ctx, peer);
                }
            }
            RingEvent::Use { incarnation, on } => {
                let drains = !self.ctx.has(Bug::LeaveRingAtOnce);
                match self.ctx.rings.get(peer).filter(|ring| ring.incarnation == incarnation) {
                    Some(ring) => {
                        if ring.want(on, drains) {
                            self.ctx.out.push(Action::Ring { peer, what: RingAction::Probe });
                        }
                        self.report_withdrawn(peer);
                    }
                    // This end could not be opened. A withdrawal waits for both.
                    None if !on => self.ctx.out.push(Action::Ring { peer, what: RingAction::Unused { incarnation } }),
                    None => {}
                }
            }
            RingEvent::Lost { incarnation } => {
                if self.ctx.rings.get(peer).is_some_and(|ring| ring.incarnation == incarnation) {
                    self.node_down(peer, Status::NodeDown);
                }
            }
            RingEvent::Broken => {
                if self.ctx.rings.contains(peer) {
                    self.end_ring(peer, Some(RingViolation::Bytes));
                }
            }
        }
    }

    /// A packet that came by the ring to its source.
    fn ring_packet(&mut self, arrived: Arrived) {
        let (peer, own) = (arrived.packet.src, self.ctx.config.node);
        let block = self.requester.peers.presence.block(peer);
        let unchecked = self.ctx.has(Bug::TrustRing);
        // A packet of a ring that is closed: its sender is, or will be, notified.
        let Some(ring) = self.ctx.rings.get(peer) else { return };
        match ring.admit(&arrived, own, block) {
            Ok(()) => self.packet(arrived.packet, arrived.loan, Charge::Ring),
            Err(_) if unchecked => self.packet(arrived.packet, arrived.loan, Charge::Link),
            Err(why) => self.end_ring(peer, Some(why)),
        }
    }

    /// Tells the fabric when requests to a node pass it again.
    fn report_withdrawn(&mut self, peer: NodeId) {
        if let Some(Ring { incarnation, .. }) = self.ctx.rings.get(peer).filter(|ring| ring.is_withdrawn()) {
            let what = RingAction::Unused { incarnation: *incarnation };
            self.ctx.out.push(Action::Ring { peer, what });
        }
    }

    /// Closes the ring to a node, which then counts as down: nothing that it was sent, or has sent, will be answered.
    fn end_ring(&mut self, peer: NodeId, why: Option<RingViolation>) {
        self.close_ring(peer, why);
        self.node_down(peer, Status::NodeDown);
    }

    /// Closes the ring to a node, if there is one. Its credits are gone with it.
    pub(crate) fn close_ring(&mut self, peer: NodeId, why: Option<RingViolation>) {
        if self.ctx.rings.close(peer) {
            self.responder.forget_credits(|source, charge| source == peer && charge == Charge::Ring);
            self.ctx.out.push(Action::Ring { peer, what: RingAction::Close(why) });
        }
    }

    // ---- reset ----

    /// Resets the board: fails everything in progress, clears all tables, and starts a new incarnation.
    pub(crate) fn reset(&mut self) {
        // Performed before the reset, and acknowledged before it is announced.
        self.ctx.send_all_due();
        self.requester.reset(&mut self.ctx);
        self.launcher.reset(&mut self.ctx);
        self.grants.reset(&self.ctx);
        self.ctx.answers.refusals.clear();
        self.responder.refuse_all(&mut self.ctx, Status::Reset);
        self.queues.refuse_all(&mut self.ctx, Status::Reset);
        self.replicas.reset(below_replicas!(self));
        self.watches.pages.clear();
        self.ctx.rings.close_all();
        self.responder.forget_credits(|_, charge| charge == Charge::Ring);
        self.ctx.reset();
        self.ctx.answers.forget_performed(self.ctx.config.node);
    }
}
