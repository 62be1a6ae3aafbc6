// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notification queues at the receiver: receive buffers, state machine, overflow, arm (SPEC item 8, E1, E5-E8, E12;
//! `docs/queues.md`). `hib` passes in elements, reservations, results of steps, and arms; `control` the admin commands.
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
//! in the receive buffer of the queue, for which their imports hold *receive credits* (`hold` and `holds` in
//! [`HibConfig`] and on the command line). They never occupy the link's buffers, so that a stopped queue blocks no
//! other traffic.

use crate::HibConfig;
use crate::config::Bug;
use crate::ctx::{Ctx, FollowUp, StepOwner};
use crate::events::Cause;
use crate::grants::{Grant, Grants};
use crate::{Bar, Notice, Step, StepResult};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use telegraphos_accounts::{Account, Shares};
use telegraphos_wire::admin::{Command, Completion};
use telegraphos_wire::queue::{FIRST, HEAD_WORD, HeaderWord, Shape, TAIL_WORD};
use telegraphos_wire::{Body, Class, NodeId, Packet, Rights, Status, UNIT, event};

/// A received element that is not in guest memory yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Element {
    packet: Packet,
    data: u64,
}

/// State of a queue's state machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum QueueState {
    #[default]
    Idle,
    /// Word 0 is being loaded.
    Tail(Element),
    /// The data is being stored at the index of this tail.
    Data(Element, HeaderWord),
    /// Word 1 is being loaded.
    Head(Element, HeaderWord),
    /// Word 0 is being stored.
    Commit(Element, HeaderWord),
    /// The ring is full. The element waits for QUEUE_RESUME.
    Stopped(Element),
    /// The pending element is being stored at index 3; this admin slot completes after it.
    RestartData(Element, u32),
    /// Word 0 is being stored with tail 4; this admin slot completes after it.
    RestartTail(Element, u32),
    /// Word 0 is being loaded for an arm; the consumer saw this value.
    ArmTail(u32),
    /// Word 1 is being loaded for an arm; the tail was this.
    ArmHead(HeaderWord),
}

/// One queue of this node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Queue {
    shape: Shape,
    /// The context that may arm the queue and is notified.
    context: u16,
    state: QueueState,
    /// The receive buffer: elements that wait, in the order of arrival.
    pending: VecDeque<Element>,
    /// By node: its incarnation, and the number of its imports that hold receive credits.
    reserved: BTreeMap<NodeId, (u64, u32)>,
    /// The queue is armed: the next element posts an event.
    armed: bool,
    /// An arm that is not checked yet: word 0 as the consumer saw it.
    arming: Option<u32>,
    /// A header word was invalid: the queue accepts no more elements.
    broken: bool,
    /// The queue is revoked, and is removed when its step in flight ends.
    revoked: bool,
}

impl Queue {
    /// Returns whether a guest-memory step is in flight.
    pub(crate) fn step_in_flight(&self) -> bool {
        !matches!(self.state, QueueState::Idle | QueueState::Stopped(_))
    }

    /// The element that the state machine is processing.
    fn active(&self) -> Option<&Element> {
        match &self.state {
            QueueState::Idle | QueueState::ArmTail(_) | QueueState::ArmHead(_) => None,
            QueueState::Tail(e)
            | QueueState::Data(e, _)
            | QueueState::Head(e, _)
            | QueueState::Commit(e, _)
            | QueueState::Stopped(e)
            | QueueState::RestartData(e, _)
            | QueueState::RestartTail(e, _) => Some(e),
        }
    }

    /// Number of elements of a node that are not acknowledged.
    fn elements_of(&self, node: NodeId) -> u32 {
        self.pending.iter().chain(self.active()).filter(|e| e.packet.src == node).count() as u32
    }
}

/// The queues of the board.
#[derive(Clone, Debug)]
pub(crate) struct NotificationQueues {
    /// By export page. Each queue also has a grant.
    queues: BTreeMap<u32, Queue>,
    /// The queues that may have pending elements: all that have, and some that had. Not part of the hashed state.
    waiting: BTreeSet<u32>,
    /// Receive credits by importing node, counted in imports ([`HibConfig::hold`] credits each).
    receive_credits: Account<NodeId>,
}

impl Hash for NotificationQueues {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let NotificationQueues { queues, waiting: _, receive_credits } = self;
        (queues, receive_credits).hash(state);
    }
}

/// How the receive credits are divided: half of them in guaranteed parts for all nodes, the rest first come, first
/// served, at most a quarter of the total for one node.
fn credit_shares(config: &HibConfig) -> Shares {
    let imports = u64::from(config.holds / config.hold.max(1));
    if config.has(Bug::UnsharedHolds) {
        return Shares { capacity: imports, spenders: 1, guaranteed: 0, limit: imports };
    }
    Shares::half_guaranteed(imports, config.window.nodes().into(), (imports / 4).max(1))
}

/// Refuses an element; counts and reports the refusal.
fn refuse_element(ctx: &mut Ctx, packet: Packet, status: Status) {
    ctx.counters.refused += 1;
    if let Body::Enqueue { at, .. } = packet.body {
        ctx.notice(Notice::Refused { from: packet.src, page: at.page, status });
    }
    acknowledge_element(ctx, &packet, status);
}

/// Sends the acknowledgement of an element, with its status.
fn acknowledge_element(ctx: &mut Ctx, packet: &Packet, status: Status) {
    ctx.reply_to(packet, Body::WriteAck { status });
}

/// Returns whether the requests that an element follows have been performed (SPEC I8).
fn is_eligible(ctx: &Ctx, element: &Element) -> bool {
    let Body::Enqueue { after, .. } = element.packet.body else { return true };
    ctx.performed(&element.packet).wrapping_sub(after) as i32 >= 0 || ctx.has(Bug::EnqueuePassesRequests)
}

impl NotificationQueues {
    /// No queues; all receive credits are free.
    pub(crate) fn new(config: &HibConfig) -> NotificationQueues {
        NotificationQueues {
            queues: BTreeMap::new(),
            waiting: BTreeSet::new(),
            receive_credits: Account::new(credit_shares(config)),
        }
    }

    /// Returns whether the export page has a queue.
    pub(crate) fn contains(&self, page: u32) -> bool {
        self.queues.contains_key(&page)
    }

    /// Size in bytes of a word of the queue at an export page; 0 if there is no queue.
    pub(crate) fn width(&self, page: u32) -> u8 {
        self.queues.get(&page).map_or(0, |queue| queue.shape.width())
    }

    /// Returns whether a guest-memory step of a queue is in flight on one of these export pages.
    pub(crate) fn step_on(&self, pages: std::ops::Range<u32>) -> bool {
        self.queues.range(pages).any(|(_, queue)| queue.step_in_flight())
    }

    // ---- admin ----

    /// QUEUE_SET. Creates a queue and the grant of its page, and returns the generation.
    pub(crate) fn set(&mut self, ctx: &Ctx, grants: &mut Grants, command: &Command) -> Result<u64, Status> {
        let command = command.queue();
        let shape = Shape::new(command.words, command.width).ok_or(Status::Invalid)?;
        let valid = command.page < ctx.config.export_pages
            && command.address % shape.bytes() == 0
            && command.address % 4096 == 0
            && command.address.checked_add(shape.bytes()).is_some();
        let context = u16::try_from(command.context).map_err(|_| Status::Invalid)?;
        if !valid {
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
            state: QueueState::Idle,
            pending: VecDeque::new(),
            reserved: BTreeMap::new(),
            armed: false,
            arming: None,
            broken: false,
            revoked: false,
        };
        self.queues.insert(command.page, queue);
        Ok(generation)
    }

    /// QUEUE_RESUME. The driver has copied the elements of the stopped queue to a linked buffer. The slot completes
    /// when the pending element is committed.
    pub(crate) fn resume(&mut self, ctx: &mut Ctx, grants: &Grants, slot: u32, page: u32) -> Result<(), Status> {
        let address = grants.get(page).map(|grant| grant.address).ok_or(Status::Invalid)?;
        let forget = ctx.has(Bug::ForgetPending);
        let Some(queue) = self.queues.get_mut(&page) else { return Err(Status::Invalid) };
        let (QueueState::Stopped(element), width) = (&queue.state, queue.shape.width()) else {
            return Err(Status::Invalid);
        };
        let element = element.clone();
        let data = element.data;
        if forget {
            let word = HeaderWord { size: queue.shape.words(), index: FIRST }.encode();
            queue.state = QueueState::RestartTail(element, slot);
            let op = Step::Store { address, size: width, data: word.into() };
            ctx.step(op, StepOwner::Queue(page));
            return Ok(());
        }
        queue.state = QueueState::RestartData(element, slot);
        let at = address + u64::from(FIRST) * u64::from(width);
        ctx.step(Step::Store { address: at, size: width, data }, StepOwner::Queue(page));
        Ok(())
    }

    /// Revokes a queue and refuses its elements; an element with a step in flight is refused or acknowledged when the
    /// step ends.
    pub(crate) fn clear(&mut self, ctx: &mut Ctx, page: u32) {
        if let Some(queue) = self.queues.get_mut(&page) {
            queue.revoked = true;
            self.remove_if_revoked(ctx, page);
        }
    }

    /// Removes a revoked queue unless a step of it is in flight. Returns whether the queue is revoked.
    fn remove_if_revoked(&mut self, ctx: &mut Ctx, page: u32) -> bool {
        if !self.queues.get(&page).is_some_and(|queue| queue.revoked) {
            return false;
        }
        self.refuse_pending(ctx, page, Status::Stale);
        if self.queues.get(&page).is_some_and(|queue| queue.step_in_flight()) {
            return true;
        }
        if let Some(mut queue) = self.queues.remove(&page) {
            for (node, (_, imports)) in &queue.reserved {
                self.receive_credits.give(node, (*imports).into());
            }
            if let QueueState::Stopped(element) = std::mem::take(&mut queue.state) {
                refuse_element(ctx, element.packet, Status::Stale);
            }
            if queue.armed || queue.arming.is_some() {
                ctx.cause(Cause::Context(queue.context));
            }
        }
        true
    }

    /// Refuses all elements in the receive buffer of a queue.
    fn refuse_pending(&mut self, ctx: &mut Ctx, page: u32, status: Status) {
        let pending = self.queues.get_mut(&page).map(|queue| std::mem::take(&mut queue.pending));
        for element in pending.into_iter().flatten() {
            refuse_element(ctx, element.packet, status);
        }
    }

    /// The value of a queue's event: its page in bits 63:32, its status in bits 31:16, TG_QUEUE_EVENT_* bits.
    pub(crate) fn event(&self, page: u32) -> u64 {
        let mut value = u64::from(page) << 32;
        let Some(queue) = self.queues.get(&page) else { return value };
        if matches!(queue.state, QueueState::Stopped(_)) {
            value |= event::QUEUE_OVERFLOW;
        }
        if queue.broken {
            value |= event::QUEUE_BROKEN | (Status::QueueHeader as u64) << 16;
        }
        value
    }

    // ---- reservations ----

    /// Handles a RESERVE request: a node announces how many imports of the queue it has, and receives credits for each.
    /// Fewer imports than before return credits.
    pub(crate) fn reserve(&mut self, ctx: &mut Ctx, grants: &Grants, packet: &Packet) -> Body {
        let refused = |status| Body::ReserveReply { status, holds: 0 };
        let Body::Reserve { at, imports } = packet.body else { return refused(Status::Invalid) };
        let stale = packet.src != ctx.config.node && packet.target != ctx.incarnation;
        if stale {
            return refused(Status::Reset);
        }
        if let Err(status) = self.find_queue(ctx, grants, packet.src, &at) {
            return refused(status);
        }
        let reserved = self.queues.get(&at.page).and_then(|queue| queue.reserved.get(&packet.src));
        let (before, after) = (reserved.map_or(0, |reserved| u64::from(reserved.1)), u64::from(imports));
        // A single queue may use half of a node's limit, so that a node cannot lock itself out of its other queues.
        let shares = self.receive_credits.shares();
        let of_queue = shares.guaranteed.max(shares.limit.div_ceil(2));
        let too_many = after > before && after > of_queue && !ctx.has(Bug::UnsharedHolds);
        if too_many || self.receive_credits.take(packet.src, after.saturating_sub(before)).is_err() {
            ctx.counters.refused += 1;
            ctx.notice(Notice::NoHold { from: packet.src, page: at.page, imports });
            return refused(Status::NoHold);
        }
        self.receive_credits.give(&packet.src, before.saturating_sub(after));
        if let Some(queue) = self.queues.get_mut(&at.page) {
            if imports == 0 {
                queue.reserved.remove(&packet.src);
            } else {
                queue.reserved.insert(packet.src, (packet.incarnation, imports));
            }
        }
        Body::ReserveReply { status: Status::Ok, holds: ctx.config.hold }
    }

    /// Finds the queue at `at` and checks that `source` may enqueue there.
    fn find_queue(
        &self,
        ctx: &Ctx,
        grants: &Grants,
        source: NodeId,
        at: &telegraphos_wire::RemoteAddr,
    ) -> Result<&Queue, Status> {
        let queue = match self.queues.get(&at.page) {
            Some(queue) if !queue.revoked => queue,
            _ if grants.get(at.page).is_some() => return Err(Status::NotQueue),
            _ => return Err(Status::NotGranted),
        };
        grants.translate(ctx, source, at, 0, Rights::ENQUEUE)?;
        if queue.broken { Err(Status::QueueHeader) } else { Ok(queue) }
    }

    /// Removes the elements and reservations of a node that is down (`None`) or has a new incarnation.
    pub(crate) fn forget_elements_of(&mut self, node: NodeId, incarnation: Option<u64>) {
        for queue in self.queues.values_mut() {
            if let Some((_, imports)) = queue.reserved.get(&node).filter(|(session, _)| Some(*session) != incarnation) {
                self.receive_credits.give(&node, (*imports).into());
                queue.reserved.remove(&node);
            }
            queue.pending.retain(|e| e.packet.src != node || Some(e.packet.incarnation) == incarnation);
        }
    }

    // ---- elements ----

    /// Handles a received element. It leaves the link's buffer at once, since its import holds a receive credit for it.
    pub(crate) fn element(&mut self, ctx: &mut Ctx, grants: &Grants, packet: Packet) {
        if packet.src != ctx.config.node {
            ctx.link.consumed(Class::Enqueue);
        }
        let Body::Enqueue { at, data, .. } = packet.body else { return };
        let admitted = if ctx.answers.follows_refused_store(&packet) {
            Err(Status::Cut)
        } else {
            self.admit(ctx, grants, &packet)
        };
        match admitted {
            Ok(()) => {
                if let Some(queue) = self.queues.get_mut(&at.page) {
                    queue.pending.push_back(Element { packet, data });
                }
                self.serve(ctx, grants, at.page);
                if self.queues.get(&at.page).is_some_and(|queue| !queue.pending.is_empty()) {
                    self.waiting.insert(at.page);
                }
            }
            Err(status) => refuse_element(ctx, packet, status),
        }
    }

    /// Checks that an element fits its queue and that its import holds a receive credit for it.
    fn admit(&self, ctx: &Ctx, grants: &Grants, packet: &Packet) -> Result<(), Status> {
        let Body::Enqueue { at, size, .. } = packet.body else { return Err(Status::Invalid) };
        if packet.src != ctx.config.node && packet.target != ctx.incarnation {
            return Err(Status::Reset);
        }
        let queue = self.find_queue(ctx, grants, packet.src, &at)?;
        if at.offset != 0 || size != queue.shape.width() {
            return Err(Status::NotQueue);
        }
        let imports = match queue.reserved.get(&packet.src) {
            Some((session, imports)) if *session == packet.incarnation => *imports,
            _ => 0,
        };
        if queue.elements_of(packet.src) >= imports.saturating_mul(ctx.config.hold) {
            return Err(Status::NoHold);
        }
        Ok(())
    }

    /// Serves the idle queues that have elements of this source. Called when requests of the source have been
    /// performed, since elements may follow those.
    pub(crate) fn serve_source(&mut self, ctx: &mut Ctx, grants: &Grants, source: NodeId) {
        let waits =
            |queue: &Queue| queue.state == QueueState::Idle && queue.pending.iter().any(|e| e.packet.src == source);
        if self.waiting.is_empty() {
            return;
        }
        let queues = &self.queues;
        self.waiting.retain(|page| queues.get(page).is_some_and(|queue| !queue.pending.is_empty()));
        let pages: Vec<u32> = self.waiting.iter().filter(|page| queues.get(page).is_some_and(waits)).copied().collect();
        for page in pages {
            self.serve(ctx, grants, page);
        }
    }

    /// Starts the next work of an idle queue: a pending arm, or the first eligible element.
    fn serve(&mut self, ctx: &mut Ctx, grants: &Grants, page: u32) {
        loop {
            let Some(queue) = self.queues.get(&page) else { return };
            if queue.state != QueueState::Idle {
                return;
            }
            let size = queue.shape.width();
            let next = queue.pending.iter().position(|e| is_eligible(ctx, e));
            let Some(queue) = self.queues.get_mut(&page) else { return };
            let element = if queue.arming.is_some() { None } else { next.and_then(|at| queue.pending.remove(at)) };
            if queue.arming.is_none() && element.is_none() {
                return;
            }
            let source = element.as_ref().map_or(ctx.config.node, |e| e.packet.src);
            let follows_refused =
                element.as_ref().is_some_and(|element| ctx.answers.follows_refused_store(&element.packet));
            // The grant is checked at each use: the guest may have switched bus mastering off.
            let address = match (&element, grants.get(page)) {
                _ if follows_refused => Err(Status::Cut),
                (Some(Element { packet: Packet { body: Body::Enqueue { at, .. }, .. }, .. }), _) => {
                    grants.translate(ctx, source, at, u64::from(size), Rights::ENQUEUE)
                }
                (_, Some(grant)) if ctx.bus_master => Ok(grant.address),
                _ => Err(Status::MemoryFault),
            };
            let Some(queue) = self.queues.get_mut(&page) else { return };
            match (address, element) {
                (Ok(address), element) => {
                    queue.state = match element {
                        Some(element) => QueueState::Tail(element),
                        None => QueueState::ArmTail(queue.arming.take().unwrap_or_default()),
                    };
                    ctx.step(Step::Load { address, size }, StepOwner::Queue(page));
                    return;
                }
                (Err(status), Some(element)) => refuse_element(ctx, element.packet, status),
                (Err(_), None) => {
                    // No element can be stored now: wake the consumer instead of letting it sleep.
                    queue.arming = None;
                    self.wake_consumer(ctx, page);
                }
            }
        }
    }

    /// Handles the result of a queue's step and starts the next one.
    pub(crate) fn stepped(&mut self, ctx: &mut Ctx, grants: &Grants, page: u32, result: StepResult) {
        let Some(queue) = self.queues.get_mut(&page) else { return };
        let state = std::mem::take(&mut queue.state);
        if queue.revoked {
            self.finish_step_of_revoked(ctx, state);
            self.remove_if_revoked(ctx, page);
            ctx.defer(FollowUp::StepEnded);
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

    /// Ends the work in progress after a failed step: refuses the element, or wakes the consumer of an arm.
    fn step_failed(&mut self, ctx: &mut Ctx, page: u32, state: QueueState, status: Status) {
        match state {
            QueueState::Tail(e) | QueueState::Data(e, _) | QueueState::Head(e, _) | QueueState::Commit(e, _) => {
                refuse_element(ctx, e.packet, status);
            }
            QueueState::RestartData(e, slot) | QueueState::RestartTail(e, slot) => {
                // The queue stays stopped, so that the driver can try again.
                if let Some(queue) = self.queues.get_mut(&page) {
                    queue.state = QueueState::Stopped(e);
                }
                ctx.complete_status(slot, status);
            }
            QueueState::ArmTail(_) | QueueState::ArmHead(_) => self.wake_consumer(ctx, page),
            QueueState::Idle | QueueState::Stopped(_) => {}
        }
    }

    /// Ends the work in progress of a revoked queue after its last step.
    fn finish_step_of_revoked(&mut self, ctx: &mut Ctx, state: QueueState) {
        match state {
            // The tail is stored: the consumer may have read the element.
            QueueState::Commit(e, _) => acknowledge_element(ctx, &e.packet, Status::Ok),
            QueueState::Tail(e) | QueueState::Data(e, _) | QueueState::Head(e, _) => {
                refuse_element(ctx, e.packet, Status::Stale);
            }
            QueueState::RestartData(e, slot) | QueueState::RestartTail(e, slot) => {
                refuse_element(ctx, e.packet, Status::Stale);
                ctx.complete_status(slot, Status::Stale);
            }
            QueueState::ArmTail(_) | QueueState::ArmHead(_) | QueueState::Idle | QueueState::Stopped(_) => {}
        }
    }

    /// Continues after a successful step of `state`. `loaded` is its result if it was a load.
    fn advance(&mut self, ctx: &mut Ctx, grants: &Grants, page: u32, state: QueueState, loaded: u64) {
        let Some(base) = grants.get(page).map(|grant| grant.address) else { return };
        let Some(shape) = self.queues.get(&page).map(|queue| queue.shape) else { return };
        let width = u64::from(shape.width());
        let word = |index: u64| base + index * width;
        let load = |index: u64| Step::Load { address: word(index), size: shape.width() };
        let store = |index: u64, data: u64| Step::Store { address: word(index), size: shape.width(), data };
        let tail_first = ctx.has(Bug::TailBeforeData);
        let (state, op) = match state {
            QueueState::Tail(element) => match shape.header(loaded) {
                Some(tail) if tail_first => (QueueState::Head(element, tail), load(HEAD_WORD)),
                Some(tail) => {
                    let op = store(tail.index.into(), element.data);
                    (QueueState::Data(element, tail), op)
                }
                None => return self.mark_broken(ctx, page, Some(element), TAIL_WORD, loaded),
            },
            QueueState::Data(element, _) if tail_first => return self.committed(ctx, page, element),
            QueueState::Data(element, tail) => (QueueState::Head(element, tail), load(HEAD_WORD)),
            QueueState::Head(element, tail) => match shape.header(loaded) {
                // E1: the advanced tail is compared, so that in memory head == tail always means empty.
                Some(head) if tail.advanced() == head && !ctx.has(Bug::NeverStop) => {
                    return self.stop(ctx, page, element);
                }
                Some(_) => (QueueState::Commit(element, tail), store(TAIL_WORD, tail.advanced().encode().into())),
                None => return self.mark_broken(ctx, page, Some(element), HEAD_WORD, loaded),
            },
            QueueState::Commit(element, tail) if tail_first => {
                let op = store(tail.index.into(), element.data);
                (QueueState::Data(element, tail), op)
            }
            QueueState::Commit(element, _) => return self.committed(ctx, page, element),
            QueueState::RestartData(element, slot) => {
                (QueueState::RestartTail(element, slot), store(TAIL_WORD, shape.empty().advanced().encode().into()))
            }
            QueueState::RestartTail(element, slot) => {
                ctx.complete(slot, Completion::of(0, Status::Ok));
                return self.committed(ctx, page, element);
            }
            QueueState::ArmTail(seen) => match shape.header(loaded) {
                Some(tail) if tail.encode() != seen && !ctx.has(Bug::ArmBlindly) => {
                    return self.wake_consumer(ctx, page);
                }
                Some(tail) => (QueueState::ArmHead(tail), load(HEAD_WORD)),
                None => return self.mark_broken(ctx, page, None, TAIL_WORD, loaded),
            },
            QueueState::ArmHead(tail) => match shape.header(loaded) {
                Some(head) if head != tail && !ctx.has(Bug::ArmBlindly) && !ctx.has(Bug::ArmByTail) => {
                    return self.wake_consumer(ctx, page);
                }
                Some(_) => {
                    if let Some(queue) = self.queues.get_mut(&page) {
                        queue.armed = true;
                    }
                    return;
                }
                None => return self.mark_broken(ctx, page, None, HEAD_WORD, loaded),
            },
            QueueState::Idle | QueueState::Stopped(_) => return,
        };
        if let Some(queue) = self.queues.get_mut(&page) {
            queue.state = state;
        }
        ctx.step(op, StepOwner::Queue(page));
    }

    /// Acknowledges an element that is in the queue, and wakes the consumer if the queue is armed.
    fn committed(&mut self, ctx: &mut Ctx, page: u32, element: Element) {
        ctx.counters.elements += 1;
        acknowledge_element(ctx, &element.packet, Status::Ok);
        if self.queues.get(&page).is_some_and(|queue| queue.armed) {
            self.wake_consumer(ctx, page);
        }
    }

    /// Stops a full queue with this pending element and posts an overflow event.
    fn stop(&mut self, ctx: &mut Ctx, page: u32, element: Element) {
        ctx.counters.overflows += 1;
        if let Some(queue) = self.queues.get_mut(&page) {
            queue.state = QueueState::Stopped(element);
        }
        ctx.cause(Cause::Queue(page));
        self.wake_armed(ctx, page);
    }

    /// Wakes the consumer if the queue is armed or has a pending arm.
    fn wake_armed(&mut self, ctx: &mut Ctx, page: u32) {
        let Some(queue) = self.queues.get_mut(&page) else { return };
        let arming = queue.arming.take().is_some();
        if queue.armed || arming {
            self.wake_consumer(ctx, page);
        }
    }

    /// Marks a queue with an invalid header as broken: it refuses all elements. Only the owner of the queue can have
    /// written the header.
    fn mark_broken(&mut self, ctx: &mut Ctx, page: u32, element: Option<Element>, word: u64, value: u64) {
        ctx.notice(Notice::BrokenQueue { page, word, value });
        if let Some(element) = element {
            refuse_element(ctx, element.packet, Status::QueueHeader);
        }
        if let Some(queue) = self.queues.get_mut(&page) {
            queue.broken = true;
        }
        self.refuse_pending(ctx, page, Status::QueueHeader);
        ctx.cause(Cause::Queue(page));
        self.wake_consumer(ctx, page);
    }

    // ---- arm ----

    /// A store to `QUEUE_ARM` of a context: the page in bits 63:32, word 0 as the consumer saw it in bits 31:0. If an
    /// element has arrived since, the consumer is woken at once.
    pub(crate) fn arm(&mut self, ctx: &mut Ctx, grants: &Grants, number: u16, offset: u64, data: u64) {
        let (page, seen) = ((data >> 32) as u32, data as u32);
        let queue = self.queues.get_mut(&page).filter(|queue| queue.context == number && !queue.revoked);
        let Some(queue) = queue else {
            return ctx.bad_access(Bar::Contexts, offset, 8, Status::NotQueue);
        };
        let differs = queue.arming.is_some_and(|other| other != seen);
        queue.arming = Some(seen);
        if queue.broken || differs || matches!(queue.state, QueueState::Stopped(_)) {
            queue.arming = None;
            return self.wake_consumer(ctx, page);
        }
        self.serve(ctx, grants, page);
    }

    /// Disarms a queue and posts an event for the context that it notifies.
    fn wake_consumer(&mut self, ctx: &mut Ctx, page: u32) {
        let Some(queue) = self.queues.get_mut(&page) else { return };
        queue.armed = false;
        let context = queue.context;
        ctx.cause(Cause::Context(context));
    }

    // ---- reset ----

    /// Removes all queues and refuses the elements of other nodes; the requester drops those of this node. Called on
    /// reset.
    pub(crate) fn refuse_all(&mut self, ctx: &mut Ctx, status: Status) {
        let queues = std::mem::take(&mut self.queues);
        self.receive_credits.clear();
        for (_, queue) in queues {
            let active = queue.active().cloned();
            for element in active.into_iter().chain(queue.pending) {
                if element.packet.src != ctx.config.node {
                    acknowledge_element(ctx, &element.packet, status);
                }
            }
        }
    }
}

// The words of a queue fit in one export page.
const _: () = assert!(telegraphos_wire::queue::MAX_BYTES <= UNIT);
