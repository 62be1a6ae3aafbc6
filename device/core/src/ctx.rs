// SPDX-License-Identifier: MIT OR Apache-2.0
//! The context of the board: configuration, time, counters, and every output of the core.
//!
//! Each part receives `&mut Ctx` and produces its effects (packets, guest-memory steps, table writes, events) through
//! it. This module depends on no part above it.

use crate::admin::Admin;
use crate::answers::{Answers, refusal};
use crate::arrived::Charge;
use crate::bursts::Bursts;
use crate::config::{Bug, SHORT_BLOCK, TURN_BYTES};
use crate::due::{Due, DueAcknowledgements};
use crate::events::{Cause, Events, Stored};
use crate::keyed::Key;
use crate::link::Link;
use crate::loan::{LentPacket, Loan};
use crate::numbered::Numbered;
use crate::registers::Registers;
use crate::rings::{Rings, Way};
use crate::tables::{AfterWrite, Tables, Written};
use crate::{Action, Bar, Counters, HibConfig, Notice, RingAction, Step, StepResult, Token};
use std::collections::VecDeque;
use telegraphos_wire::admin::{COMPLETION_OFFSET, Completion};
use telegraphos_wire::regs::{CONTROL_IRQ_ENABLE, Register};
use telegraphos_wire::{AtomicOp, Body, Class, NodeId, Packet, Status};

/// The owner of a guest-memory step: the part that receives its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StepOwner {
    /// The request at the head of a source's queue.
    Serve(NodeId),
    /// The command of an admin slot.
    Command(u32),
    /// The next store of the table write with this number.
    TableWrite(u64),
    /// A block of a copy at this node's end, and the export page it touches. `unpaid`: the shell may lend it, and then
    /// the board that copies it pays for it ([`Ctx::copied`]).
    Block { operation: Key, offset: u64, page: u32, unpaid: bool },
    /// The state machine of the queue at this export page.
    Queue(u32),
    /// The work in progress on the replicated page at this export page.
    Replica(u32),
    /// The word that a process has armed on this export page.
    Watch(u32),
    /// The list of runs of the GRANT_RANGE in this admin slot.
    Runs(u32),
    /// The event that was stored last: the driver's count of events.
    EventIndex,
    /// A reset removed the owner; the result is ignored.
    Cancelled,
}

/// A call that one part defers to a part above it, which it must not call directly. [`Hib`](crate::Hib) dispatches
/// follow-ups in order after the part returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FollowUp {
    /// The next packet of this node to itself: handled like a received packet, without the fabric.
    OwnPacket,
    /// The same with a loan beside it.
    OwnLentPacket,
    /// Requests of this source may continue: the one in service has ended, or the condition it waits for may hold now.
    Serve(NodeId),
    /// A request of this source was performed or refused: elements ordered behind it may now be eligible.
    Performed(NodeId),
    /// A request of this node to itself for this export page was performed or refused.
    OwnEnded(u32),
    /// The forward with this number was dropped before it was sent, because an earlier store of its import was lost.
    ForwardDropped(u64),
    /// A step on export pages has ended: a revocation that waits for it may complete.
    StepEnded,
}

/// A waiter for the next turn of the shell's loop, in which it moves more blocks of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Claim {
    /// The copies to or from a node.
    Copies(NodeId),
    /// The requests of a source, the first of which is about a block.
    Serve(NodeId),
}

/// The budget of work that may start before the shell's loop must serve other events.
#[derive(Clone, Debug, Hash)]
struct Turn {
    /// Bytes of blocks that may still be moved. Negative if the last block was longer: the next turn is shorter.
    bytes: i64,
    /// [`Action::Continue`] was emitted in this turn.
    continue_pushed: bool,
    /// In the order in which they came, each once: one that has used up a turn comes behind those that had none of it.
    claims: VecDeque<Claim>,
}

impl Default for Turn {
    fn default() -> Turn {
        Turn { bytes: TURN_BYTES as i64, continue_pushed: false, claims: VecDeque::new() }
    }
}

/// The earlier of two moments, if there is any. Deadlines are asked for several times for each message: an iterator
/// over them takes twice as long.
#[inline]
pub(crate) fn earlier(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// The context of one board; see the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Ctx {
    pub(crate) config: HibConfig,
    /// Time of the last [`Event::Tick`](crate::Event::Tick), in microseconds.
    pub(crate) now: u64,
    pub(crate) bus_master: bool,
    /// The board's current incarnation, as announced to the other nodes.
    pub(crate) incarnation: u64,
    /// Number of resets so far: the incarnation that requests of this node to itself carry.
    pub(crate) resets: u64,
    /// A reset is in progress and waits for steps in flight.
    pub(crate) resetting: bool,
    pub(crate) link: Link,
    pub(crate) rings: Rings,
    pub(crate) registers: Registers,
    pub(crate) admin: Admin,
    pub(crate) events: Events,
    pub(crate) tables: Tables,
    pub(crate) answers: Answers,
    pub(crate) due: DueAcknowledgements,
    pub(crate) bursts: Bursts,
    /// Statistics since the last reset; no decision depends on them.
    pub(crate) counters: Counters,
    /// Actions collected for the shell while an event is handled.
    pub(crate) out: Vec<Action>,
    /// Calls that are deferred to parts above, in order.
    pub(crate) follow_ups: VecDeque<FollowUp>,
    /// Packets of this node to itself, one for each [`FollowUp::OwnPacket`] and [`FollowUp::OwnLentPacket`]. Kept
    /// apart, since they are much larger than the other follow-ups.
    pub(crate) own_packets: VecDeque<Packet>,
    /// Loans beside those, one for each [`FollowUp::OwnLentPacket`].
    pub(crate) own_loans: VecDeque<Loan>,
    /// Guest-memory steps in flight.
    pub(crate) steps: Numbered<StepOwner>,
    turn: Turn,
    /// Something is left for the end of the event: a follow-up, a claim, a cause, credits, the end of a reset. Most
    /// events leave nothing of it.
    pub(crate) unsettled: bool,
    /// A queue may have elements that wait for requests of their source to be performed.
    pub(crate) elements_wait: bool,
}

impl std::hash::Hash for Ctx {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        let Ctx {
            config: _,
            now: _,
            counters: _,
            out: _,
            follow_ups: _,
            own_packets: _,
            own_loans: _,
            unsettled: _,
            elements_wait: _,
            bus_master,
            incarnation,
            resets,
            resetting,
            link,
            rings,
            ..
        } = self;
        (bus_master, incarnation, resets, resetting, link, rings).hash(state);
        let Ctx { registers, admin, events, tables, answers, due, bursts, steps, turn, .. } = self;
        (registers, admin, events, tables, answers, due, bursts, steps, turn).hash(state);
    }
}

impl Ctx {
    /// The state at power-on: no link, no table writes, no steps.
    pub(crate) fn new(config: HibConfig) -> Ctx {
        Ctx {
            now: 0,
            bus_master: false,
            incarnation: 1,
            resets: 0,
            resetting: false,
            link: Link::default(),
            rings: Rings::new(config.window.nodes()),
            registers: Registers::default(),
            admin: Admin::default(),
            events: Events::default(),
            tables: Tables::default(),
            answers: Answers::new(&config),
            due: DueAcknowledgements::default(),
            bursts: Bursts::default(),
            counters: Counters::default(),
            out: Vec::new(),
            follow_ups: VecDeque::new(),
            own_packets: VecDeque::new(),
            own_loans: VecDeque::new(),
            steps: Numbered::default(),
            turn: Turn::default(),
            unsettled: false,
            elements_wait: false,
            config,
        }
    }

    /// Returns whether this deliberate bug is enabled. Always false without the feature `bugs`.
    pub(crate) fn has(&self, bug: Bug) -> bool {
        self.config.has(bug)
    }

    /// Emits a diagnostic.
    pub(crate) fn notice(&mut self, notice: Notice) {
        self.out.push(Action::Notice(notice));
    }

    // ---- outputs and follow-ups ----

    /// Sends a packet; one for this node itself becomes a follow-up. Without a link the packet is dropped: its
    /// destination already sees this node as down.
    pub(crate) fn transmit(&mut self, packet: Packet) {
        if packet.dst == self.config.node {
            self.own_packets.push_back(packet);
            self.defer(FollowUp::OwnPacket);
        } else if self.link.is_up() {
            self.out.push(Action::Send(packet));
        }
    }

    /// The same with a loan beside it, which the switch does not carry: the bytes move in packets then, of a get in the
    /// reply, and this board pays for that.
    #[cold]
    fn transmit_lent(&mut self, packet: Packet, loan: Loan) {
        if packet.dst == self.config.node {
            self.own_loans.push_back(loan);
            self.own_packets.push_back(packet);
            self.defer(FollowUp::OwnLentPacket);
        } else if self.link.is_up() {
            self.copied(loan.length().into());
            self.out.push(match packet.body {
                Body::ReadBlock { .. } => Action::Send(packet),
                _ => Action::SendLent(Box::new(LentPacket { packet, loan })),
            });
        }
    }

    /// Sends a request or an element by the way for which the caller has seen a credit.
    pub(crate) fn transmit_request(&mut self, packet: Packet, loan: Option<Loan>, way: Way) {
        match way {
            Way::Own => {}
            Way::Switch => {
                let spent = self.link.spend(packet.class());
                debug_assert!(spent, "the caller has seen a credit");
            }
            Way::Ring => {
                // A ring is closed with what waits for it.
                debug_assert!(loan.is_none() || self.rings.lends(packet.dst, false), "it was lent for this ring");
                self.rings.spend(packet.dst, packet.class());
                self.out.push(match loan {
                    None => Action::RingSend(packet),
                    Some(loan) => Action::RingSendLent(Box::new(LentPacket { packet, loan })),
                });
                return;
            }
        }
        match loan {
            None => self.transmit(packet),
            Some(loan) => self.transmit_lent(packet, loan),
        }
    }

    /// A packet of a node has left the input buffers.
    pub(crate) fn consumed(&mut self, charge: Charge, node: NodeId, class: Class) {
        self.unsettled |= match charge {
            Charge::Nothing => false,
            Charge::Link => self.link.consumed(&self.config, class),
            Charge::Ring => self.rings.consumed(node, class),
        };
    }

    /// Returns credits that are due.
    pub(crate) fn return_credits(&mut self) {
        self.link.return_credits(&self.config, &mut self.out);
        let out = &mut self.out;
        self.rings.return_credits(|peer, class, count| {
            out.push(Action::Ring { peer, what: RingAction::Credit { class, count } });
        });
    }

    /// Completes a guest load.
    pub(crate) fn read_done(&mut self, token: Token, data: u64) {
        self.out.push(Action::ReadDone { token, data });
    }

    /// Defers a follow-up to a part above.
    pub(crate) fn defer(&mut self, follow_up: FollowUp) {
        self.unsettled = true;
        self.follow_ups.push_back(follow_up);
    }

    /// Ends the settling of an event: what is left waits for another one.
    pub(crate) fn settled(&mut self) {
        self.unsettled = self.resetting || !self.turn.claims.is_empty() || self.events.is_pending();
    }

    /// Requests of this node to itself may continue.
    pub(crate) fn serve_own(&mut self) {
        self.defer(FollowUp::Serve(self.config.node));
    }

    // ---- steps ----

    /// Starts a guest-memory step; `owner` receives the result.
    pub(crate) fn step(&mut self, op: Step, owner: StepOwner) {
        let step = self.steps.insert(owner);
        self.out.push(Action::Step { step, op });
    }

    /// Takes back what is lent of a range of guest memory.
    pub(crate) fn recall(&mut self, address: u64, length: u64) {
        if !self.has(Bug::KeepLoans) {
            self.out.push(Action::Recall { address, length });
        }
    }

    /// Returns whether a block of a copy, or a look at an armed word, has a step in flight on one of these export
    /// pages.
    pub(crate) fn own_step_on(&self, pages: std::ops::Range<u64>) -> bool {
        let touches = |p: &StepOwner| match p {
            StepOwner::Block { page, .. } | StepOwner::Watch(page) => pages.contains(&u64::from(*page)),
            _ => false,
        };
        self.steps.iter().any(|(_, owner)| touches(owner))
    }

    // ---- answers ----

    /// Sends the reply to a request that the responder or a queue has finished with, and records a refusal of a store.
    pub(crate) fn reply_to(&mut self, packet: &Packet, body: Body) {
        self.note_reply(packet, &body);
        if let Some(body) = self.answer_of_all(packet, body) {
            self.reply(packet, body);
        }
    }

    /// The answer to send for `body`: to a store of a burst that is performed store by store only the last one has an
    /// answer, which is that of the burst.
    #[inline]
    fn answer_of_all(&mut self, packet: &Packet, body: Body) -> Option<Body> {
        if self.bursts.is_empty() {
            return Some(body);
        }
        let early = self.has(Bug::AnswerBurstEarly);
        self.bursts.answer(packet, body, early)
    }

    /// Sends a reply, behind the acknowledgements that come before it.
    #[inline]
    fn reply(&mut self, packet: &Packet, body: Body) {
        self.send_due_to(packet.src);
        let Packet { src, tag, incarnation, .. } = *packet;
        let reply = Packet { src: self.config.node, dst: src, tag, incarnation, target: 0, body };
        if self.rings.answer(packet) && !self.has(Bug::AnswerBesideRing) {
            self.out.push(Action::RingSend(reply));
        } else {
            self.transmit(reply);
        }
    }

    /// The same for a get whose target was filled: its loan is beside the reply.
    #[cold]
    pub(crate) fn reply_lent(&mut self, packet: &Packet, body: Body, loan: Loan) {
        self.send_due_to(packet.src);
        let Packet { src, tag, incarnation, .. } = *packet;
        let reply = Packet { src: self.config.node, dst: src, tag, incarnation, target: 0, body };
        if self.rings.answer(packet) && !self.has(Bug::AnswerBesideRing) {
            self.out.push(Action::RingSendLent(Box::new(LentPacket { packet: reply, loan })));
        } else {
            self.transmit_lent(reply, loan);
        }
    }

    /// Records a refusal of a store.
    #[inline(always)]
    fn note_reply(&mut self, packet: &Packet, body: &Body) {
        if !self.has(Bug::ForgetRefusal) {
            self.answers.note_reply(packet, body);
        }
    }

    /// Sends the acknowledgements that come before a reply to a node.
    #[inline(always)]
    fn send_due_to(&mut self, node: NodeId) {
        if !self.due.is_empty() && !self.has(Bug::PassAcknowledgement) {
            if let Some(due) = self.due.take(node) {
                self.send_due(due);
            }
        }
    }

    /// Answers a request with a refusal.
    pub(crate) fn refuse(&mut self, packet: &Packet, status: Status) {
        self.reply_to(packet, refusal(&packet.body, status));
    }

    /// Counts and reports that a request for an export page is refused.
    pub(crate) fn note_refusal(&mut self, from: NodeId, page: u32, status: Status) {
        self.counters.refused += 1;
        self.notice(Notice::Refused { from, page, status });
    }

    /// Returns whether a request was sent to an earlier incarnation of this node: one before it may have been lost.
    pub(crate) fn is_stale(&self, packet: &Packet) -> bool {
        packet.src != self.config.node && packet.target != self.incarnation
    }

    /// Acknowledges a store or block that was performed, or an element that was appended: at the end of the turn,
    /// together with others of the same node. By a ring, and within this node, at once: no packet is saved there.
    pub(crate) fn acknowledge(&mut self, packet: &Packet) {
        if packet.src == self.config.node || self.rings.brought(packet) {
            return self.reply_to(packet, Body::WriteAck { status: Status::Ok });
        }
        match self.answer_of_all(packet, Body::WriteAck { status: Status::Ok }) {
            Some(Body::WriteAck { .. }) => {}
            Some(refused) => return self.reply(packet, refused),
            None => return,
        }
        // Without a link it would be sent by the next one.
        if self.link.is_up() {
            if let Some(due) = self.due.add(packet) {
                self.send_due(due);
            }
        }
    }

    fn send_due(&mut self, due: Due) {
        #[cfg(feature = "bugs")]
        let due = if self.has(Bug::AckTwice) { due.add_next() } else { due };
        self.transmit(due.packet(self.config.node));
    }

    /// Sends all acknowledgements that are due.
    pub(crate) fn send_all_due(&mut self) {
        let mut all = std::mem::take(&mut self.due.due);
        for due in all.drain(..) {
            self.send_due(due);
        }
        // Its memory is used again.
        self.due.due = all;
    }

    /// The session of the requester that a packet belongs to: its incarnation, or for this node itself the number of
    /// resets.
    pub(crate) fn requester_session(&self, packet: &Packet) -> u64 {
        if packet.src == self.config.node { packet.target } else { packet.incarnation }
    }

    /// How many requests of the packet's sender have been performed in its session, modulo 2^32. An element's `after`
    /// counts in the same series.
    pub(crate) fn performed(&self, packet: &Packet) -> u32 {
        self.answers.performed(packet, self.requester_session(packet))
    }

    /// Counts a request as performed or refused. Requests for an earlier incarnation of this node do not count.
    pub(crate) fn count_performed(&mut self, packet: &Packet) {
        let own = packet.src == self.config.node;
        if packet.target == if own { self.resets } else { self.incarnation } {
            self.answers.count_performed(packet, self.requester_session(packet));
        }
    }

    // ---- admin commands ----

    /// Completes the command of a slot with a bare status.
    pub(crate) fn complete_status(&mut self, slot: u32, status: Status) {
        self.complete(slot, Completion::of(0, status));
    }

    /// Writes the completion of a slot: result words first, `{seq, status}` last.
    pub(crate) fn complete(&mut self, slot: u32, completion: Completion) {
        let Some(seq) = self.admin.busy.get(&slot).copied() else { return };
        let at = self.registers.slot_address(slot) + COMPLETION_OFFSET as u64;
        let stores = [
            (at + 8, u64::from(completion.index) | u64::from(completion.count) << 32),
            (at + 16, completion.generation),
            (at + 24, completion.length),
            (at + 32, u64::from(completion.rights) | u64::from(completion.width) << 32),
            (at, u64::from(seq) | u64::from(completion.status) << 32),
        ];
        self.write_table(stores, AfterWrite::AdminDone(slot));
    }

    // ---- table writes ----

    /// Starts a table write: a series of 8-byte stores. It waits while bus mastering is off.
    fn write_table(&mut self, stores: impl IntoIterator<Item = (u64, u64)>, after: AfterWrite) {
        let number = self.tables.insert(stores, after, None, false);
        self.advance_write(number);
    }

    /// Starts a table write to the status page of a context. A `charged` write returns one unit of the context's
    /// status-word account when it ends.
    pub(crate) fn write_status(
        &mut self,
        context: u16,
        stores: impl IntoIterator<Item = (u64, u64)>,
        after: AfterWrite,
        charged: bool,
    ) {
        let number = self.tables.insert(stores, after, Some(context), charged);
        self.advance_write(number);
    }

    /// Writes a counter word of a status page. At most one store per word is in flight, so that the value in memory
    /// never decreases.
    pub(crate) fn count_in_status(&mut self, context: u16, address: u64, value: u64) {
        if self.tables.counting.insert(address, value).is_none() {
            self.write_status(context, [(address, value)], AfterWrite::Counted(context, address, value), false);
        }
    }

    /// Starts the next store of a write, if bus mastering is on and no store of it is in flight.
    fn advance_write(&mut self, number: u64) {
        if !self.bus_master {
            return;
        }
        if let Some((address, data)) = self.tables.next_store(number) {
            self.step(Step::Store { address, size: 8, data }, StepOwner::TableWrite(number));
        }
    }

    /// Starts the table writes that waited for bus mastering.
    pub(crate) fn advance_writes(&mut self) {
        for number in self.tables.writes.numbers() {
            self.advance_write(number);
        }
    }

    /// Handles the result of one store of a table write. Returns the write if that was its last store or the store
    /// failed.
    pub(crate) fn table_stepped(&mut self, number: u64, result: StepResult) -> Option<Written> {
        let (address, written) = self.tables.stepped(number, !matches!(result, StepResult::Failed(_)))?;
        if let StepResult::Failed(status) = result {
            self.own_memory_failed(address, status);
        }
        let Some(written) = written else {
            self.advance_write(number);
            return None;
        };
        if let (AfterWrite::Counted(context, address, _), Some(latest)) = (written.after, written.latest) {
            self.count_in_status(context, address, latest);
        }
        Some(written)
    }

    // ---- events ----

    /// Marks a cause as pending; the event is posted later.
    pub(crate) fn cause(&mut self, cause: Cause) {
        if !(self.has(Bug::ForgetCause) && self.events.is_full()) {
            self.unsettled = true;
            self.events.note(cause);
        }
    }

    /// Takes the next cause to post; `None` if there is none, no room in the ring, or no bus mastering.
    pub(crate) fn next_cause(&mut self) -> Option<Cause> {
        if self.bus_master { self.events.next() } else { None }
    }

    /// Stores an event into the ring.
    pub(crate) fn post_event(&mut self, kind: u16, index: u16, value: u64) {
        let stores = self.events.post(kind, index, value);
        self.write_table(stores, AfterWrite::EventPosted);
    }

    /// Handles the completed store of an event: reads how far the driver is, if it says so in memory.
    pub(crate) fn event_stored(&mut self) {
        match self.events.stored() {
            // Not a load, which a processor may perform before the store of the event is visible to the driver.
            Stored::Compare { address } if self.bus_master && !self.has(Bug::ForgetIndex) => self.step(
                Step::Atomic { address, size: 4, op: AtomicOp::Add, operand: 0, compare: 0 },
                StepOwner::EventIndex,
            ),
            Stored::Compare { .. } => self.event_counted(self.bus_master.then_some(self.events.consumer)),
            stored => self.event_posted(stored),
        }
    }

    /// Handles the driver's count of events, which was read after the event was stored.
    pub(crate) fn event_index_read(&mut self, result: StepResult) {
        let count = match result {
            StepResult::Loaded(count) => Some(count as u32),
            StepResult::Failed(status) => {
                self.own_memory_failed(self.events.index, status);
                None
            }
            _ => None,
        };
        self.event_counted(count);
    }

    fn event_counted(&mut self, count: Option<u32>) {
        let (stored, counted) = self.events.counted(count);
        if let Err(status) = counted {
            self.latch_error(Bar::Control, Register::EventIndex.offset(), 4, status);
        }
        self.event_posted(stored);
    }

    /// Counts a posted event, and raises the interrupt if the ring was empty.
    fn event_posted(&mut self, stored: Stored) {
        if let Stored::Posted { was_empty } = stored {
            self.counters.events += 1;
            self.interrupt_if(was_empty);
        }
    }

    /// Raises the interrupt for unconsumed events, if it is enabled.
    pub(crate) fn interrupt_if(&mut self, unconsumed: bool) {
        if unconsumed && u64::from(self.registers.control) & CONTROL_IRQ_ENABLE != 0 {
            self.out.push(Action::Interrupt);
        }
    }

    /// EVENT_SIZE was written.
    pub(crate) fn set_event_size(&mut self, size: u32) {
        if let Err(status) = self.events.set_size(size) {
            self.bad_access(Bar::Control, Register::EventSize.offset(), 4, status);
        }
    }

    /// EVENT_CONSUMER was written. Raises the interrupt again if events remain, unless the driver counts in memory:
    /// then it looks for them itself.
    pub(crate) fn consume_events(&mut self, consumer: u32) {
        match self.events.consume(consumer) {
            // It announces room. A count that is older than what has been read in memory is ignored.
            _ if self.events.index != 0 => {}
            Ok(()) => self.interrupt_if(self.events.unconsumed()),
            Err(status) => self.latch_error(Bar::Control, Register::EventConsumer.offset(), 4, status),
        }
    }

    // ---- the turn of the shell's loop ----

    /// Whether the claimant may move another block in this turn. If not, [`Ctx::next_claim`] returns it when it may.
    pub(crate) fn may_copy(&mut self, claim: Claim) -> bool {
        if self.has(Bug::CopyAtOnce) || self.turn.bytes > 0 {
            return true;
        }
        let forgotten = self.has(Bug::ForgetClaims) && !self.turn.claims.is_empty();
        if !self.turn.claims.contains(&claim) && !forgotten {
            self.unsettled = true;
            self.turn.claims.push_back(claim);
        }
        false
    }

    /// Takes a block of so many bytes from the budget of this turn. One that is only lent has none: the board that
    /// copies it pays for it.
    pub(crate) fn copied(&mut self, bytes: u64) {
        self.turn.bytes -= bytes.max(SHORT_BLOCK) as i64;
    }

    /// Starts a new turn with a full budget, less what the last one exceeded its own by. Called on
    /// [`Event::Continue`](crate::Event::Continue).
    pub(crate) fn begin_turn(&mut self) {
        self.turn.bytes = self.turn.bytes.min(0) + TURN_BYTES as i64;
        self.turn.continue_pushed = false;
    }

    /// The next claimant, which may move blocks now. If the budget is used up and a claimant waits, requests the next
    /// turn once ([`Action::Continue`]).
    pub(crate) fn next_claim(&mut self) -> Option<Claim> {
        if self.turn.claims.is_empty() {
            return None;
        }
        if self.turn.bytes > 0 {
            return self.turn.claims.pop_front();
        }
        if !self.turn.continue_pushed {
            self.turn.continue_pushed = true;
            self.out.push(Action::Continue);
        }
        None
    }

    // ---- errors that belong to no import ----

    /// Latches an error that belongs to no import. Only the first is latched; all are counted.
    pub(crate) fn latch_error(&mut self, bar: Bar, offset: u64, size: u32, status: Status) {
        self.counters.errors += 1;
        if self.registers.latch(bar, offset, size, status) {
            self.cause(Cause::Error);
        }
    }

    /// Reports a guest access that cannot be served, and latches its error.
    pub(crate) fn bad_access(&mut self, bar: Bar, offset: u64, size: u32, status: Status) {
        self.notice(Notice::BadAccess { bar, offset, size, status });
        self.latch_error(bar, offset, size, status);
    }

    /// Reports that the board could not access one of its own tables, and latches the error.
    pub(crate) fn own_memory_failed(&mut self, address: u64, status: Status) {
        self.notice(Notice::Memory { address, status });
        self.latch_error(Bar::Control, address, 8, status);
    }

    // ---- reset ----

    /// Starts a new incarnation. The link, the time and the steps of other nodes' requests survive; all other steps are
    /// cancelled.
    pub(crate) fn reset(&mut self) {
        for (_, owner) in self.steps.iter_mut() {
            if !matches!(owner, StepOwner::Serve(_)) {
                *owner = StepOwner::Cancelled;
            }
        }
        self.recall(0, u64::MAX);
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
        self.unsettled = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use telegraphos_wire::{Block, ImportEpoch, RemoteAddr};

    const LENGTH: u32 = 1 << 16;

    /// What is done about a request to node 1, or to this node, with a loan beside it, and the bytes paid for that.
    fn sent(body: Body, dst: NodeId, way: Way) -> (Vec<Action>, i64) {
        let mut ctx = Ctx::new(HibConfig::new(0));
        ctx.link.come_up([8; 4], 2);
        ctx.rings.open(1, 7, 4, true);
        ctx.rings.get(1).expect("it is open").answered_probe();
        assert_eq!(ctx.rings.way(1, Class::Request, true), Some(Way::Ring));
        let packet = Packet { src: 0, dst, tag: 1, incarnation: 1, target: 7, body };
        ctx.transmit_request(packet, Some(Loan::new(LENGTH, Arc::new(()))), way);
        let own: &[_] = if way == Way::Own { &[FollowUp::OwnLentPacket] } else { &[] };
        assert_eq!((&*ctx.follow_ups.make_contiguous(), ctx.own_loans.len()), (own, own.len()));
        (ctx.out, TURN_BYTES as i64 - ctx.turn.bytes)
    }

    #[test]
    fn a_loan_that_meets_the_switch_becomes_bytes_which_the_sender_pays_for() {
        let at = RemoteAddr { page: 0, offset: 0, generation: 1 };
        let put = Body::WriteBlock { at, context: 0, epoch: ImportEpoch::default(), data: Block::default() };
        let get = Body::ReadBlock { at, context: 0, length: LENGTH };
        for body in [put.clone(), get.clone()] {
            assert_eq!(sent(body.clone(), 0, Way::Own), (vec![], 0));
            let (actions, paid) = sent(body, 1, Way::Ring);
            assert!(matches!(actions[..], [Action::RingSendLent(_)]) && paid == 0, "{actions:?}");
        }
        let (actions, paid) = sent(put, 1, Way::Switch);
        assert!(matches!(actions[..], [Action::SendLent(_)]) && paid == LENGTH.into(), "{actions:?}");
        let (actions, paid) = sent(get, 1, Way::Switch);
        assert!(matches!(actions[..], [Action::Send(_)]) && paid == LENGTH.into(), "{actions:?}");
    }
}
