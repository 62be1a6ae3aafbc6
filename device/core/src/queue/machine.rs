// SPDX-License-Identifier: MIT OR Apache-2.0
//! One queue and its state machine (`docs/queues.md`). [`NotificationQueues`](super::NotificationQueues) finds the
//! queue and calls it.

use crate::config::Bug;
use crate::ctx::{Ctx, StepOwner};
use crate::events::Cause;
use crate::grants::Grants;
use crate::{Notice, Step, StepResult};
use std::collections::{BTreeMap, VecDeque};
use telegraphos_wire::admin::Completion;
use telegraphos_wire::queue::{FIRST, HEAD_WORD, HeaderWord, Shape, TAIL_WORD};
use telegraphos_wire::{Body, NodeId, Packet, Rights, Status};

/// A received element that is not in guest memory yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Element {
    pub(super) packet: Packet,
    pub(super) data: u64,
}

/// What a consumer that is about to sleep has asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Arm {
    /// Word 0 as it saw it.
    pub(super) seen: u32,
    /// Elements that post an event each.
    pub(super) count: u16,
}

/// State of a queue's state machine. The element that it processes is [`Queue::active`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum QueueState {
    #[default]
    Idle,
    /// Word 0 is being loaded.
    Tail,
    /// The data is being stored at the index of this tail.
    Data(HeaderWord),
    /// Word 1 is being loaded.
    Head(HeaderWord),
    /// Word 0 is being stored.
    Commit(HeaderWord),
    /// The ring is full. The element waits for QUEUE_RESUME.
    Stopped,
    /// The pending element is being stored at index 3; this admin slot completes after it.
    RestartData(u32),
    /// Word 0 is being stored with tail 4; this admin slot completes after it.
    RestartTail(u32),
    /// Word 0 is being loaded for an arm.
    ArmTail(Arm),
    /// Word 1 is being loaded for an arm of so many elements; the tail was this.
    ArmHead(HeaderWord, u16),
}

/// One queue of this node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Queue {
    /// Its export page.
    pub(super) page: u32,
    pub(super) shape: Shape,
    /// The context that may arm the queue and is notified.
    pub(super) context: u16,
    pub(super) state: QueueState,
    /// The element that the state machine is processing; `None` in the states `Idle`, `ArmTail` and `ArmHead`.
    pub(super) active: Option<Element>,
    /// The receive buffer: elements that wait, in the order of arrival.
    pub(super) pending: VecDeque<Element>,
    /// By node: its session, and the number of its imports that hold receive credits. A new incarnation of this node,
    /// which comes with each link, is no new session for its own imports ([`Ctx::requester_session`]).
    pub(super) reserved: BTreeMap<NodeId, (u64, u32)>,
    /// The number of elements, from the next one on, that post an event each.
    ///
    /// A consumer whose last arm was for n elements relies on it that this is at least n, less the elements that were
    /// taken since: then it sleeps without another arm. So an arm never lowers it, and apart from elements only a check
    /// that has found one uses up an event.
    pub(super) armed: u16,
    /// An arm that is not checked yet.
    pub(super) arming: Option<Arm>,
    /// A header word was invalid: the queue accepts no more elements.
    pub(super) broken: bool,
    /// The queue is revoked, and is removed when its step in flight ends.
    pub(super) revoked: bool,
}

/// Refuses an element; counts and reports the refusal.
pub(super) fn refuse_element(ctx: &mut Ctx, packet: &Packet, status: Status) {
    ctx.note_refusal(packet.src, packet.body.page(), status);
    acknowledge_element(ctx, packet, status);
}

/// Sends the acknowledgement of an element, with its status.
pub(super) fn acknowledge_element(ctx: &mut Ctx, packet: &Packet, status: Status) {
    match status {
        Status::Ok => ctx.acknowledge(packet),
        status => ctx.reply_to(packet, Body::WriteAck { status }),
    }
}

/// Returns whether the requests that an element follows have been performed (SPEC I8).
fn is_eligible(ctx: &Ctx, element: &Element) -> bool {
    let Body::Enqueue { after, .. } = element.packet.body else { return true };
    ctx.performed(&element.packet).wrapping_sub(after) as i32 >= 0 || ctx.has(Bug::EnqueuePassesRequests)
}

impl Queue {
    /// An idle queue at an export page, without elements and credits.
    pub(super) fn new(page: u32, shape: Shape, context: u16) -> Queue {
        Queue {
            page,
            shape,
            context,
            state: QueueState::Idle,
            active: None,
            pending: VecDeque::new(),
            reserved: BTreeMap::new(),
            armed: 0,
            arming: None,
            broken: false,
            revoked: false,
        }
    }

    /// Returns whether a guest-memory step is in flight.
    pub(super) fn step_in_flight(&self) -> bool {
        !matches!(self.state, QueueState::Idle | QueueState::Stopped)
    }

    /// Returns whether the queue waits for requests that its elements follow.
    pub(super) fn waits_for_requests(&self) -> bool {
        self.state == QueueState::Idle && !self.pending.is_empty()
    }

    /// Number of elements of a node that are not acknowledged.
    pub(super) fn elements_of(&self, node: NodeId) -> u32 {
        self.pending.iter().chain(&self.active).filter(|e| e.packet.src == node).count() as u32
    }

    /// Refuses all elements in the receive buffer.
    pub(super) fn refuse_pending(&mut self, ctx: &mut Ctx, status: Status) {
        for element in std::mem::take(&mut self.pending) {
            refuse_element(ctx, &element.packet, status);
        }
    }

    /// Refuses the element in progress.
    fn refuse_active(&mut self, ctx: &mut Ctx, status: Status) {
        if let Some(element) = self.active.take() {
            refuse_element(ctx, &element.packet, status);
        }
    }

    /// QUEUE_RESUME of a stopped queue, whose ring starts at `address`. The slot completes when the pending element is
    /// committed.
    pub(super) fn resume(&mut self, ctx: &mut Ctx, slot: u32, address: u64) -> Result<(), Status> {
        let (QueueState::Stopped, Some(element)) = (self.state, &self.active) else { return Err(Status::Invalid) };
        let (data, size) = (element.data, self.shape.width());
        let op = if ctx.has(Bug::ForgetPending) {
            self.state = QueueState::RestartTail(slot);
            let word = HeaderWord { size: self.shape.words(), index: FIRST }.encode();
            Step::Store { address, size, data: word.into() }
        } else {
            self.state = QueueState::RestartData(slot);
            Step::Store { address: address + u64::from(FIRST) * u64::from(size), size, data }
        };
        ctx.step(op, StepOwner::Queue(self.page));
        Ok(())
    }

    /// Starts the next work of an idle queue: a pending arm, or the first eligible element.
    pub(super) fn serve(&mut self, ctx: &mut Ctx, grants: &Grants) {
        while self.state == QueueState::Idle {
            let element = if self.arming.is_some() {
                None
            } else {
                let next = self.pending.iter().position(|e| is_eligible(ctx, e));
                let Some(element) = next.and_then(|at| self.pending.remove(at)) else { return };
                Some(element)
            };
            let size = self.shape.width();
            // The grant is checked at each use: the guest may have switched bus mastering off.
            let address = match &element {
                Some(Element { packet, .. }) if ctx.answers.follows_refused_store(packet) => Err(Status::Cut),
                Some(Element { packet: Packet { src, body: Body::Enqueue { at, .. }, .. }, .. }) => {
                    grants.translate(ctx, *src, at, u64::from(size), Rights::ENQUEUE)
                }
                _ => match grants.pages.get(self.page) {
                    Some(grant) if ctx.bus_master => Ok(grant.address),
                    _ => Err(Status::MemoryFault),
                },
            };
            match (address, element) {
                (Ok(address), element) => {
                    self.state = match element {
                        Some(_) => QueueState::Tail,
                        None => QueueState::ArmTail(self.arming.take().unwrap_or_default()),
                    };
                    self.active = element;
                    return ctx.step(Step::Load { address, size }, StepOwner::Queue(self.page));
                }
                (Err(status), Some(element)) => refuse_element(ctx, &element.packet, status),
                (Err(_), None) => {
                    // No element can be stored now: wake the consumer instead of letting it sleep.
                    let count = self.arming.take().map_or(0, |arm| arm.count);
                    self.armed = self.armed.max(count);
                    self.wake_consumer(ctx);
                }
            }
        }
    }

    /// Handles the result of a step and starts the next one.
    pub(super) fn stepped(&mut self, ctx: &mut Ctx, grants: &Grants, result: StepResult) {
        let state = std::mem::take(&mut self.state);
        match result {
            StepResult::Failed(status) => self.step_failed(ctx, state, status),
            StepResult::Loaded(value) => self.advance(ctx, grants, state, value),
            _ => self.advance(ctx, grants, state, 0),
        }
        self.serve(ctx, grants);
    }

    /// Ends the work in progress after a failed step: refuses the element, or wakes the consumer of an arm.
    fn step_failed(&mut self, ctx: &mut Ctx, state: QueueState, status: Status) {
        match state {
            QueueState::Tail | QueueState::Data(_) | QueueState::Head(_) | QueueState::Commit(_) => {
                self.refuse_active(ctx, status);
            }
            QueueState::RestartData(slot) | QueueState::RestartTail(slot) => {
                // The queue stays stopped, so that the driver can try again.
                self.state = QueueState::Stopped;
                ctx.complete_status(slot, status);
            }
            QueueState::ArmTail(Arm { count, .. }) | QueueState::ArmHead(_, count) => {
                self.armed = self.armed.max(count);
                self.wake_consumer(ctx);
            }
            QueueState::Idle | QueueState::Stopped => {}
        }
    }

    /// Ends the work in progress of a revoked queue after its last step.
    pub(super) fn finish_step_of_revoked(&mut self, ctx: &mut Ctx) {
        match std::mem::take(&mut self.state) {
            // The tail is stored: the consumer may have read the element.
            QueueState::Commit(_) => {
                if let Some(element) = self.active.take() {
                    acknowledge_element(ctx, &element.packet, Status::Ok);
                }
            }
            QueueState::Tail | QueueState::Data(_) | QueueState::Head(_) => self.refuse_active(ctx, Status::Stale),
            QueueState::RestartData(slot) | QueueState::RestartTail(slot) => {
                self.refuse_active(ctx, Status::Stale);
                ctx.complete_status(slot, Status::Stale);
            }
            QueueState::ArmTail(_) | QueueState::ArmHead(..) | QueueState::Idle | QueueState::Stopped => {}
        }
    }

    /// Continues after a successful step of `state`. `loaded` is its result if it was a load.
    fn advance(&mut self, ctx: &mut Ctx, grants: &Grants, state: QueueState, loaded: u64) {
        let Some(base) = grants.pages.get(self.page).map(|grant| grant.address) else { return };
        let (shape, data) = (self.shape, self.active.as_ref().map_or(0, |element| element.data));
        let size = shape.width();
        let word = |index: u64| base + index * u64::from(size);
        let load = |index: u64| Step::Load { address: word(index), size };
        let store = |index: u64, data: u64| Step::Store { address: word(index), size, data };
        let tail_first = ctx.has(Bug::TailBeforeData);
        let (state, op) = match state {
            QueueState::Tail => match shape.header(loaded) {
                Some(tail) if tail_first => (QueueState::Head(tail), load(HEAD_WORD)),
                Some(tail) => (QueueState::Data(tail), store(tail.index.into(), data)),
                None => return self.mark_broken(ctx, TAIL_WORD, loaded),
            },
            QueueState::Data(_) if tail_first => return self.committed(ctx),
            QueueState::Data(tail) => (QueueState::Head(tail), load(HEAD_WORD)),
            QueueState::Head(tail) => match shape.header(loaded) {
                // E1: the advanced tail is compared, so that in memory head == tail always means empty.
                Some(head) if tail.advanced() == head && !ctx.has(Bug::NeverStop) => return self.stop(ctx),
                Some(_) => (QueueState::Commit(tail), store(TAIL_WORD, tail.advanced().encode().into())),
                None => return self.mark_broken(ctx, HEAD_WORD, loaded),
            },
            QueueState::Commit(tail) if tail_first => (QueueState::Data(tail), store(tail.index.into(), data)),
            QueueState::Commit(_) => return self.committed(ctx),
            QueueState::RestartData(slot) => {
                (QueueState::RestartTail(slot), store(TAIL_WORD, shape.empty().advanced().encode().into()))
            }
            QueueState::RestartTail(slot) => {
                ctx.complete(slot, Completion::of(0, Status::Ok));
                return self.committed(ctx);
            }
            QueueState::ArmTail(Arm { seen, count }) => match shape.header(loaded) {
                Some(tail) if tail.encode() != seen && !ctx.has(Bug::ArmBlindly) => {
                    self.armed = self.armed.max(count - 1);
                    return self.wake_consumer(ctx);
                }
                Some(tail) => (QueueState::ArmHead(tail, count), load(HEAD_WORD)),
                None => return self.mark_broken(ctx, TAIL_WORD, loaded),
            },
            QueueState::ArmHead(tail, count) => match shape.header(loaded) {
                Some(head) if head != tail && !ctx.has(Bug::ArmBlindly) && !ctx.has(Bug::ArmByTail) => {
                    self.armed = self.armed.max(count - 1);
                    return self.wake_consumer(ctx);
                }
                Some(_) => {
                    self.armed = self.armed.max(count);
                    return;
                }
                None => return self.mark_broken(ctx, HEAD_WORD, loaded),
            },
            QueueState::Idle | QueueState::Stopped => return,
        };
        self.state = state;
        ctx.step(op, StepOwner::Queue(self.page));
    }

    /// Acknowledges the element in progress, which is in the queue, and wakes the consumer if the queue is armed.
    fn committed(&mut self, ctx: &mut Ctx) {
        ctx.counters.elements += 1;
        if let Some(element) = self.active.take() {
            acknowledge_element(ctx, &element.packet, Status::Ok);
        }
        if let Some(left) = self.armed.checked_sub(1) {
            self.armed = if ctx.has(Bug::WakeOnce) { 0 } else { left };
            self.wake_consumer(ctx);
        }
    }

    /// Stops the full queue with the element in progress and posts an overflow event.
    fn stop(&mut self, ctx: &mut Ctx) {
        ctx.counters.overflows += 1;
        self.state = QueueState::Stopped;
        ctx.cause(Cause::Queue(self.page));
        let count = self.arming.take().map_or(0, |arm| arm.count);
        self.armed = self.armed.max(count);
        if self.armed > 0 {
            self.wake_consumer(ctx);
        }
    }

    /// Marks the queue, which has an invalid header, as broken: it refuses all elements. Only the owner of the queue
    /// can have written the header.
    fn mark_broken(&mut self, ctx: &mut Ctx, word: u64, value: u64) {
        ctx.notice(Notice::BrokenQueue { page: self.page, word, value });
        self.refuse_active(ctx, Status::QueueHeader);
        self.broken = true;
        self.refuse_pending(ctx, Status::QueueHeader);
        ctx.cause(Cause::Queue(self.page));
        self.wake_consumer(ctx);
    }

    /// The consumer saw this word 0 and is about to sleep. If an element has arrived since, it is woken at once.
    pub(super) fn arm(&mut self, ctx: &mut Ctx, grants: &Grants, arm: Arm) {
        let differs = self.arming.is_some_and(|other| other.seen != arm.seen);
        let count = self.arming.map_or(arm.count, |other| arm.count.max(other.count));
        if self.broken || differs || self.state == QueueState::Stopped {
            (self.arming, self.armed) = (None, self.armed.max(count));
            return self.wake_consumer(ctx);
        }
        self.arming = Some(Arm { count, ..arm });
        self.serve(ctx, grants);
    }

    /// Posts an event for the context that the queue notifies.
    fn wake_consumer(&mut self, ctx: &mut Ctx) {
        ctx.cause(Cause::Context(self.context));
    }
}
