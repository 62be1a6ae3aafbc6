// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notification queues at their receiver: hold, state machine, overflow, arm (SPEC item 8, E1, E5-E8, E12;
//! `docs/queues.md`).
//!
//! ```text
//!            +-> Idle --eligible element--> Tail --> Data --> Head --+--> Commit --ack--> Idle
//!            |     |                        load w0  store   load w1 |    store w0
//!            |     +--arm--> ArmTail --> ArmHead --> Idle            +--next tail = head--> Stopped
//!            |               load w0     load w1                                              | QUEUE_RESUME
//!            +--ack-- RestartTail <-- RestartData <-------------------------------------------+
//!                     store w0 = 4    store at 3
//! ```
//!
//! Each arrow with a load or store is one guest-memory step; a queue has at most one in flight. Elements that wait are
//! in the queue's *hold*, which their imports have reserved, never in the link's buffers: a stopped queue holds up
//! nothing else.

use crate::HibConfig;
use crate::config::Bug;
use crate::ctx::{Ctx, FollowUp, StepOwner};
use crate::events::Cause;
use crate::grants::{Grant, Grants};
use crate::{Bar, Notice, Step, StepResult};
use std::collections::{BTreeMap, VecDeque};
use telegraphos_accounts::{Account, Shares};
use telegraphos_wire::admin::{Command, Completion};
use telegraphos_wire::queue::{FIRST, HEAD_WORD, HeaderWord, Shape, TAIL_WORD};
use telegraphos_wire::{Body, Class, NodeId, Packet, Rights, Status, UNIT, event};

/// An element on its way into the buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Element {
    packet: Packet,
    data: u64,
}

/// Where the state machine is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum State {
    #[default]
    Idle,
    /// Word 0 is being loaded.
    Tail(Element),
    /// The data is being stored at this tail.
    Data(Element, HeaderWord),
    /// Word 1 is being loaded.
    Head(Element, HeaderWord),
    /// Word 0 is being stored.
    Commit(Element, HeaderWord),
    /// The buffer is full. The element is pending.
    Stopped(Element),
    /// The pending element is being stored at index 3; an admin slot waits.
    RestartData(Element, u32),
    /// Word 0 is being stored with tail 4.
    RestartTail(Element, u32),
    /// Word 0 is being loaded for an arm, which saw this.
    ArmTail(u32),
    /// Word 1 is being loaded for it.
    ArmHead(HeaderWord),
}

/// One queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Queue {
    shape: Shape,
    /// Who may arm it.
    context: u16,
    state: State,
    /// Elements in the order of their arrival.
    held: VecDeque<Element>,
    /// Per node: its incarnation, and imports for which hold slots are reserved.
    reserved: BTreeMap<NodeId, (u64, u32)>,
    /// The next element is an event.
    armed: bool,
    /// An arm that is still to be checked: word 0 as the consumer saw it.
    arming: Option<u32>,
    broken: bool,
    /// Revoked; goes when its step in flight is done.
    gone: bool,
}

impl Queue {
    /// Whether a guest-memory step is in flight.
    pub(crate) fn steps(&self) -> bool {
        !matches!(self.state, State::Idle | State::Stopped(_))
    }

    /// The element in the machine.
    fn active(&self) -> Option<&Element> {
        match &self.state {
            State::Idle | State::ArmTail(_) | State::ArmHead(_) => None,
            State::Tail(e)
            | State::Data(e, _)
            | State::Head(e, _)
            | State::Commit(e, _)
            | State::Stopped(e)
            | State::RestartData(e, _)
            | State::RestartTail(e, _) => Some(e),
        }
    }

    /// Elements of a node that have not been acknowledged.
    fn elements_of(&self, node: NodeId) -> u32 {
        self.held.iter().chain(self.active()).filter(|e| e.packet.src == node).count() as u32
    }
}

/// The queues of this node, by export page.
#[derive(Clone, Debug, Hash)]
pub(crate) struct NotificationQueues {
    /// Each has a grant, too.
    queues: BTreeMap<u32, Queue>,
    /// Hold slots, in imports of queues (`hold` slots each), by the importing node.
    holds: Account<NodeId>,
}

/// How the hold slots are divided: half of them in guaranteed parts for all nodes, the rest for those who ask first, a
/// quarter of all at most.
fn hold_shares(config: &HibConfig) -> Shares {
    let imports = u64::from(config.holds / config.hold.max(1));
    if config.has(Bug::UnsharedHolds) {
        return Shares { capacity: imports, spenders: 1, guaranteed: 0, limit: imports };
    }
    Shares::half_guaranteed(imports, config.window.nodes().into(), (imports / 4).max(1))
}

fn refuse_element(ctx: &mut Ctx, packet: Packet, status: Status) {
    ctx.counters.refused += 1;
    if let Body::Enqueue { at, .. } = packet.body {
        ctx.notice(Notice::Refused { from: packet.src, page: at.page, status });
    }
    acknowledge_element(ctx, &packet, status);
}

fn acknowledge_element(ctx: &mut Ctx, packet: &Packet, status: Status) {
    ctx.reply_to(packet, Body::WriteAck { status });
}

/// Whether the requests an element comes after have been performed (SPEC I8).
fn is_eligible(ctx: &Ctx, element: &Element) -> bool {
    let Body::Enqueue { after, .. } = element.packet.body else { return true };
    ctx.performed(&element.packet).wrapping_sub(after) as i32 >= 0 || ctx.has(Bug::EnqueuePassesRequests)
}

impl NotificationQueues {
    pub(crate) fn new(config: &HibConfig) -> NotificationQueues {
        NotificationQueues { queues: BTreeMap::new(), holds: Account::new(hold_shares(config)) }
    }

    pub(crate) fn contains(&self, page: u32) -> bool {
        self.queues.contains_key(&page)
    }

    /// Bytes of a word of the queue at an export page; 0 if there is none.
    pub(crate) fn width(&self, page: u32) -> u8 {
        self.queues.get(&page).map_or(0, |queue| queue.shape.width())
    }

    /// Whether a guest-memory step is in flight on one of these export pages.
    pub(crate) fn step_on(&self, pages: std::ops::Range<u32>) -> bool {
        self.queues.range(pages).any(|(_, queue)| queue.steps())
    }

    // ---- admin ----

    /// QUEUE_SET: a queue of these words, granted to these nodes; its generation.
    pub(crate) fn set(&mut self, ctx: &Ctx, grants: &mut Grants, command: &Command) -> Result<u64, Status> {
        let command = command.queue();
        let shape = Shape::new(command.words, command.width).ok_or(Status::Invalid)?;
        let sane = command.page < ctx.config.export_pages
            && command.address % shape.bytes() == 0
            && command.address % 4096 == 0
            && command.address.checked_add(shape.bytes()).is_some();
        let context = u16::try_from(command.context).map_err(|_| Status::Invalid)?;
        if !sane {
            return Err(Status::Invalid);
        }
        grants.are_free(command.page, 1)?;
        let generation = grants.new_generation();
        let grant = Grant {
            address: command.address,
            valid: shape.bytes(),
            rights: Rights::ENQUEUE,
            nodes: command.nodes,
            generation,
            resigned: false,
        };
        grants.insert(command.page, grant);
        let queue = Queue {
            shape,
            context,
            state: State::Idle,
            held: VecDeque::new(),
            reserved: BTreeMap::new(),
            armed: false,
            arming: None,
            broken: false,
            gone: false,
        };
        self.queues.insert(command.page, queue);
        Ok(generation)
    }

    /// The driver has copied and linked; completes when the pending element is committed.
    pub(crate) fn resume(&mut self, ctx: &mut Ctx, grants: &Grants, slot: u32, page: u32) -> Result<(), Status> {
        let address = grants.get(page).map(|grant| grant.address).ok_or(Status::Invalid)?;
        let forget = ctx.has(Bug::ForgetPending);
        let Some(queue) = self.queues.get_mut(&page) else { return Err(Status::Invalid) };
        let (State::Stopped(element), width) = (&queue.state, queue.shape.width()) else { return Err(Status::Invalid) };
        let element = element.clone();
        let data = element.data;
        if forget {
            let word = HeaderWord { size: queue.shape.words(), index: FIRST }.encode();
            queue.state = State::RestartTail(element, slot);
            let op = Step::Store { address, size: width, data: word.into() };
            ctx.step(op, StepOwner::Queue(page));
            return Ok(());
        }
        queue.state = State::RestartData(element, slot);
        let at = address + u64::from(FIRST) * u64::from(width);
        ctx.step(Step::Store { address: at, size: width, data }, StepOwner::Queue(page));
        Ok(())
    }

    /// Revokes a queue: what it holds is refused, now or when its step is done.
    pub(crate) fn clear(&mut self, ctx: &mut Ctx, page: u32) {
        if let Some(queue) = self.queues.get_mut(&page) {
            queue.gone = true;
            self.end_if_gone(ctx, page);
        }
    }

    fn end_if_gone(&mut self, ctx: &mut Ctx, page: u32) -> bool {
        if !self.queues.get(&page).is_some_and(|queue| queue.gone) {
            return false;
        }
        self.refuse_held(ctx, page, Status::Stale);
        if self.queues.get(&page).is_some_and(|queue| queue.steps()) {
            return true;
        }
        if let Some(mut queue) = self.queues.remove(&page) {
            for (node, (_, imports)) in &queue.reserved {
                self.holds.give(node, (*imports).into());
            }
            if let State::Stopped(element) = std::mem::take(&mut queue.state) {
                refuse_element(ctx, element.packet, Status::Stale);
            }
            if queue.armed || queue.arming.is_some() {
                ctx.cause(Cause::Context(queue.context));
            }
        }
        true
    }

    fn refuse_held(&mut self, ctx: &mut Ctx, page: u32, status: Status) {
        let held = self.queues.get_mut(&page).map(|queue| std::mem::take(&mut queue.held));
        for element in held.into_iter().flatten() {
            refuse_element(ctx, element.packet, status);
        }
    }

    /// Bits and status of a queue's event.
    pub(crate) fn event(&self, page: u32) -> u64 {
        let mut value = u64::from(page) << 32;
        let Some(queue) = self.queues.get(&page) else { return value };
        if matches!(queue.state, State::Stopped(_)) {
            value |= event::QUEUE_OVERFLOW;
        }
        if queue.broken {
            value |= event::QUEUE_BROKEN | (Status::QueueHeader as u64) << 16;
        }
        value
    }

    // ---- reservations ----

    /// A node says how many imports of a queue it has.
    pub(crate) fn reserve(&mut self, ctx: &mut Ctx, grants: &Grants, packet: &Packet) -> Body {
        let refused = |status| Body::ReserveReply { status, holds: 0 };
        let Body::Reserve { at, imports } = packet.body else { return refused(Status::Invalid) };
        let late = packet.src != ctx.config.node && packet.target != ctx.incarnation;
        if late {
            return refused(Status::Reset);
        }
        if let Err(status) = self.find(ctx, grants, packet.src, &at) {
            return refused(status);
        }
        let reserved = self.queues.get(&at.page).and_then(|queue| queue.reserved.get(&packet.src));
        let (before, after) = (reserved.map_or(0, |reserved| u64::from(reserved.1)), u64::from(imports));
        // Of what a node may have, half is for one queue, so that it is not locked out of the others by its own.
        let shares = self.holds.shares();
        let of_queue = shares.guaranteed.max(shares.limit.div_ceil(2));
        let too_many = after > before && after > of_queue && !ctx.has(Bug::UnsharedHolds);
        if too_many || self.holds.take(packet.src, after.saturating_sub(before)).is_err() {
            ctx.counters.refused += 1;
            ctx.notice(Notice::NoHold { from: packet.src, page: at.page, imports });
            return refused(Status::NoHold);
        }
        self.holds.give(&packet.src, before.saturating_sub(after));
        if let Some(queue) = self.queues.get_mut(&at.page) {
            if imports == 0 {
                queue.reserved.remove(&packet.src);
            } else {
                queue.reserved.insert(packet.src, (packet.incarnation, imports));
            }
        }
        Body::ReserveReply { status: Status::Ok, holds: ctx.config.hold }
    }

    /// Whether `source` may enqueue there at all.
    fn find(
        &self,
        ctx: &Ctx,
        grants: &Grants,
        source: NodeId,
        at: &telegraphos_wire::RemoteAddr,
    ) -> Result<&Queue, Status> {
        let queue = match self.queues.get(&at.page) {
            Some(queue) if !queue.gone => queue,
            _ if grants.get(at.page).is_some() => return Err(Status::NotQueue),
            _ => return Err(Status::NotGranted),
        };
        grants.translate(ctx, source, at, 0, Rights::ENQUEUE)?;
        if queue.broken { Err(Status::QueueHeader) } else { Ok(queue) }
    }

    /// The node has gone, or lives a new life: `incarnation`, if any. What it had waiting here goes.
    pub(crate) fn forget_elements_of(&mut self, node: NodeId, incarnation: Option<u64>) {
        for queue in self.queues.values_mut() {
            if let Some((_, imports)) = queue.reserved.get(&node).filter(|(life, _)| Some(*life) != incarnation) {
                self.holds.give(&node, (*imports).into());
                queue.reserved.remove(&node);
            }
            queue.held.retain(|e| e.packet.src != node || Some(e.packet.incarnation) == incarnation);
        }
    }

    // ---- elements ----

    /// An element has arrived. It leaves the link's buffer at once: its import has reserved a place for it.
    pub(crate) fn element(&mut self, ctx: &mut Ctx, grants: &Grants, packet: Packet) {
        if packet.src != ctx.config.node {
            ctx.link.consumed(Class::Enqueue);
        }
        let Body::Enqueue { at, data, .. } = packet.body else { return };
        let admitted = if ctx.is_behind_refused(&packet) { Err(Status::Cut) } else { self.admit(ctx, grants, &packet) };
        match admitted {
            Ok(()) => {
                if let Some(queue) = self.queues.get_mut(&at.page) {
                    queue.held.push_back(Element { packet, data });
                }
                self.serve(ctx, grants, at.page);
            }
            Err(status) => refuse_element(ctx, packet, status),
        }
    }

    fn admit(&self, ctx: &Ctx, grants: &Grants, packet: &Packet) -> Result<(), Status> {
        let Body::Enqueue { at, size, .. } = packet.body else { return Err(Status::Invalid) };
        if packet.src != ctx.config.node && packet.target != ctx.incarnation {
            return Err(Status::Reset);
        }
        let queue = self.find(ctx, grants, packet.src, &at)?;
        if at.offset != 0 || size != queue.shape.width() {
            return Err(Status::NotQueue);
        }
        let imports = match queue.reserved.get(&packet.src) {
            Some((life, imports)) if *life == packet.incarnation => *imports,
            _ => 0,
        };
        if queue.elements_of(packet.src) >= imports.saturating_mul(ctx.config.hold) {
            return Err(Status::NoHold);
        }
        Ok(())
    }

    /// Requests of a node have been performed: elements that came after them may go on.
    pub(crate) fn follow(&mut self, ctx: &mut Ctx, grants: &Grants, source: NodeId) {
        let waits = |queue: &Queue| queue.state == State::Idle && queue.held.iter().any(|e| e.packet.src == source);
        if self.queues.is_empty() {
            return;
        }
        let pages: Vec<u32> = self.queues.iter().filter(|(_, q)| waits(q)).map(|(page, _)| *page).collect();
        for page in pages {
            self.serve(ctx, grants, page);
        }
    }

    /// Starts what an idle queue has to do: an arm, or the next element.
    fn serve(&mut self, ctx: &mut Ctx, grants: &Grants, page: u32) {
        loop {
            let Some(queue) = self.queues.get(&page) else { return };
            if queue.state != State::Idle {
                return;
            }
            let size = queue.shape.width();
            let next = queue.held.iter().position(|e| is_eligible(ctx, e));
            let Some(queue) = self.queues.get_mut(&page) else { return };
            let element = if queue.arming.is_some() { None } else { next.and_then(|at| queue.held.remove(at)) };
            if queue.arming.is_none() && element.is_none() {
                return;
            }
            let source = element.as_ref().map_or(ctx.config.node, |e| e.packet.src);
            let behind_refused = element.as_ref().is_some_and(|element| ctx.is_behind_refused(&element.packet));
            // Checked where it is used: bus mastering may be off now.
            let place = match (&element, grants.get(page)) {
                _ if behind_refused => Err(Status::Cut),
                (Some(Element { packet: Packet { body: Body::Enqueue { at, .. }, .. }, .. }), _) => {
                    grants.translate(ctx, source, at, u64::from(size), Rights::ENQUEUE)
                }
                (_, Some(grant)) if ctx.bus_master => Ok(grant.address),
                _ => Err(Status::MemoryFault),
            };
            let Some(queue) = self.queues.get_mut(&page) else { return };
            match (place, element) {
                (Ok(address), element) => {
                    queue.state = match element {
                        Some(element) => State::Tail(element),
                        None => State::ArmTail(queue.arming.take().unwrap_or_default()),
                    };
                    ctx.step(Step::Load { address, size }, StepOwner::Queue(page));
                    return;
                }
                (Err(status), Some(element)) => refuse_element(ctx, element.packet, status),
                (Err(_), None) => {
                    // Nothing can arrive now, and nobody shall sleep on it.
                    queue.arming = None;
                    self.wake_consumer(ctx, page);
                }
            }
        }
    }

    /// A step of a queue is done.
    pub(crate) fn stepped(&mut self, ctx: &mut Ctx, grants: &Grants, page: u32, result: StepResult) {
        let Some(queue) = self.queues.get_mut(&page) else { return };
        let state = std::mem::take(&mut queue.state);
        if queue.gone {
            self.end_of_step_of_gone(ctx, state);
            self.end_if_gone(ctx, page);
            ctx.then(FollowUp::StepEnded);
            return;
        }
        if let StepResult::Failed(status) = result {
            self.step_failed(ctx, page, state, status);
        } else {
            let loaded = if let StepResult::Loaded(value) = result { value } else { 0 };
            self.advance(ctx, grants, page, state, loaded);
        }
        self.serve(ctx, grants, page);
    }

    fn step_failed(&mut self, ctx: &mut Ctx, page: u32, state: State, status: Status) {
        match state {
            State::Tail(e) | State::Data(e, _) | State::Head(e, _) | State::Commit(e, _) => {
                refuse_element(ctx, e.packet, status);
            }
            State::RestartData(e, slot) | State::RestartTail(e, slot) => {
                // It stays stopped; the driver may try again.
                if let Some(queue) = self.queues.get_mut(&page) {
                    queue.state = State::Stopped(e);
                }
                ctx.complete_status(slot, status);
            }
            State::ArmTail(_) | State::ArmHead(_) => self.wake_consumer(ctx, page),
            State::Idle | State::Stopped(_) => {}
        }
    }

    /// The machine of a revoked queue takes no further step.
    fn end_of_step_of_gone(&mut self, ctx: &mut Ctx, state: State) {
        match state {
            // Its tail has been stored: it is in the queue, whoever reads it.
            State::Commit(e, _) => acknowledge_element(ctx, &e.packet, Status::Ok),
            State::Tail(e) | State::Data(e, _) | State::Head(e, _) => {
                refuse_element(ctx, e.packet, Status::Stale);
            }
            State::RestartData(e, slot) | State::RestartTail(e, slot) => {
                refuse_element(ctx, e.packet, Status::Stale);
                ctx.complete_status(slot, Status::Stale);
            }
            State::ArmTail(_) | State::ArmHead(_) | State::Idle | State::Stopped(_) => {}
        }
    }

    /// The step of `state` gave `loaded`, if it was a load: the next one.
    fn advance(&mut self, ctx: &mut Ctx, grants: &Grants, page: u32, state: State, loaded: u64) {
        let Some(base) = grants.get(page).map(|grant| grant.address) else { return };
        let Some(shape) = self.queues.get(&page).map(|queue| queue.shape) else { return };
        let width = u64::from(shape.width());
        let word = |index: u64| base + index * width;
        let load = |index: u64| Step::Load { address: word(index), size: shape.width() };
        let store = |index: u64, data: u64| Step::Store { address: word(index), size: shape.width(), data };
        let tail_first = ctx.has(Bug::TailBeforeData);
        let (state, op) = match state {
            State::Tail(element) => match shape.header(loaded) {
                Some(tail) if tail_first => (State::Head(element, tail), load(HEAD_WORD)),
                Some(tail) => {
                    let op = store(tail.index.into(), element.data);
                    (State::Data(element, tail), op)
                }
                None => return self.break_off(ctx, page, Some(element), TAIL_WORD, loaded),
            },
            State::Data(element, _) if tail_first => return self.committed(ctx, page, element),
            State::Data(element, tail) => (State::Head(element, tail), load(HEAD_WORD)),
            State::Head(element, tail) => match shape.header(loaded) {
                // E1: the new tail is compared, and in memory head == tail always means empty.
                Some(head) if tail.advanced() == head && !ctx.has(Bug::NeverStop) => {
                    return self.stop(ctx, page, element);
                }
                Some(_) => (State::Commit(element, tail), store(TAIL_WORD, tail.advanced().encode().into())),
                None => return self.break_off(ctx, page, Some(element), HEAD_WORD, loaded),
            },
            State::Commit(element, tail) if tail_first => {
                let op = store(tail.index.into(), element.data);
                (State::Data(element, tail), op)
            }
            State::Commit(element, _) => return self.committed(ctx, page, element),
            State::RestartData(element, slot) => {
                (State::RestartTail(element, slot), store(TAIL_WORD, shape.empty().advanced().encode().into()))
            }
            State::RestartTail(element, slot) => {
                ctx.complete(slot, Completion::of(0, Status::Ok));
                return self.committed(ctx, page, element);
            }
            State::ArmTail(seen) => match shape.header(loaded) {
                Some(tail) if tail.encode() != seen && !ctx.has(Bug::ArmBlindly) => {
                    return self.wake_consumer(ctx, page);
                }
                Some(tail) => (State::ArmHead(tail), load(HEAD_WORD)),
                None => return self.break_off(ctx, page, None, TAIL_WORD, loaded),
            },
            State::ArmHead(tail) => match shape.header(loaded) {
                Some(head) if head != tail && !ctx.has(Bug::ArmBlindly) && !ctx.has(Bug::ArmByTail) => {
                    return self.wake_consumer(ctx, page);
                }
                Some(_) => {
                    if let Some(queue) = self.queues.get_mut(&page) {
                        queue.armed = true;
                    }
                    return;
                }
                None => return self.break_off(ctx, page, None, HEAD_WORD, loaded),
            },
            State::Idle | State::Stopped(_) => return,
        };
        if let Some(queue) = self.queues.get_mut(&page) {
            queue.state = state;
        }
        ctx.step(op, StepOwner::Queue(page));
    }

    fn committed(&mut self, ctx: &mut Ctx, page: u32, element: Element) {
        ctx.counters.elements += 1;
        acknowledge_element(ctx, &element.packet, Status::Ok);
        if self.queues.get(&page).is_some_and(|queue| queue.armed) {
            self.wake_consumer(ctx, page);
        }
    }

    fn stop(&mut self, ctx: &mut Ctx, page: u32, element: Element) {
        ctx.counters.overflows += 1;
        if let Some(queue) = self.queues.get_mut(&page) {
            queue.state = State::Stopped(element);
        }
        ctx.cause(Cause::Queue(page));
        self.settle_arms(ctx, page);
    }

    /// Tells whoever armed the queue, or tried to.
    fn settle_arms(&mut self, ctx: &mut Ctx, page: u32) {
        let Some(queue) = self.queues.get_mut(&page) else { return };
        let arming = queue.arming.take().is_some();
        if queue.armed || arming {
            self.wake_consumer(ctx, page);
        }
    }

    /// The header was not sound: the queue takes nothing any more. Its owner alone can write there.
    fn break_off(&mut self, ctx: &mut Ctx, page: u32, element: Option<Element>, word: u64, value: u64) {
        ctx.notice(Notice::BrokenQueue { page, word, value });
        if let Some(element) = element {
            refuse_element(ctx, element.packet, Status::QueueHeader);
        }
        if let Some(queue) = self.queues.get_mut(&page) {
            queue.broken = true;
        }
        self.refuse_held(ctx, page, Status::QueueHeader);
        ctx.cause(Cause::Queue(page));
        self.wake_consumer(ctx, page);
    }

    // ---- arm ----

    /// `QUEUE_ARM` of a context <- page << 32 | word 0 as seen.
    pub(crate) fn arm(&mut self, ctx: &mut Ctx, grants: &Grants, number: u16, offset: u64, data: u64) {
        let (page, seen) = ((data >> 32) as u32, data as u32);
        let queue = self.queues.get_mut(&page).filter(|queue| queue.context == number && !queue.gone);
        let Some(queue) = queue else {
            return ctx.bad_access(Bar::Contexts, offset, 8, Status::NotQueue);
        };
        let differs = queue.arming.is_some_and(|other| other != seen);
        queue.arming = Some(seen);
        if queue.broken || differs || matches!(queue.state, State::Stopped(_)) {
            queue.arming = None;
            return self.wake_consumer(ctx, page);
        }
        self.serve(ctx, grants, page);
    }

    fn wake_consumer(&mut self, ctx: &mut Ctx, page: u32) {
        let Some(queue) = self.queues.get_mut(&page) else { return };
        queue.armed = false;
        let context = queue.context;
        ctx.cause(Cause::Context(context));
    }

    // ---- reset ----

    /// Every queue ends; what it holds is refused.
    pub(crate) fn refuse_all(&mut self, ctx: &mut Ctx, status: Status) {
        let queues = std::mem::take(&mut self.queues);
        self.holds.clear();
        for (_, queue) in queues {
            let active = queue.active().cloned();
            for element in active.into_iter().chain(queue.held) {
                if element.packet.src != ctx.config.node {
                    acknowledge_element(ctx, &element.packet, status);
                }
            }
        }
    }
}

// A buffer never leaves its export page.
const _: () = assert!(telegraphos_wire::queue::MAX_BYTES <= UNIT);
