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

mod machine;

use self::machine::{Arm, Element, Queue, QueueState, acknowledge_element, refuse_element};
use crate::HibConfig;
use crate::arrived::Charge;
use crate::config::Bug;
use crate::ctx::{Ctx, FollowUp};
use crate::events::Cause;
use crate::grants::{Grant, Grants};
use crate::table::Table;
use crate::{Bar, Notice, StepResult};
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use telegraphos_accounts::{Account, Shares};
use telegraphos_wire::admin::Command;
use telegraphos_wire::context::QueueArm;
use telegraphos_wire::queue::Shape;
use telegraphos_wire::{Body, Class, NodeId, Packet, Rights, Status, UNIT, event};

/// The queues of the board.
#[derive(Clone, Debug)]
pub(crate) struct NotificationQueues {
    /// By export page. Each queue also has a grant.
    queues: Table<Queue>,
    /// The queues that wait for requests that their elements follow: all that do, and some that did. Not part of the
    /// hashed state.
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

impl NotificationQueues {
    /// No queues; all receive credits are free.
    pub(crate) fn new(config: &HibConfig) -> NotificationQueues {
        NotificationQueues {
            queues: Table::default(),
            waiting: BTreeSet::new(),
            receive_credits: Account::new(credit_shares(config)),
        }
    }

    /// Returns whether the export page has a queue.
    pub(crate) fn contains(&self, page: u32) -> bool {
        self.queues.contains(page)
    }

    /// Size in bytes of a word of the queue at an export page; 0 if there is no queue.
    pub(crate) fn width(&self, page: u32) -> u8 {
        self.queues.get(page).map_or(0, |queue| queue.shape.width())
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
            context: None,
            resigned: false,
        };
        grants.pages.insert(command.page, grant);
        self.queues.insert(command.page, Queue::new(command.page, shape, context));
        Ok(generation)
    }

    /// QUEUE_RESUME. The driver has copied the elements of the stopped queue to a linked buffer. The slot completes
    /// when the pending element is committed.
    pub(crate) fn resume(&mut self, ctx: &mut Ctx, grants: &Grants, slot: u32, page: u32) -> Result<(), Status> {
        let address = grants.pages.get(page).map(|grant| grant.address).ok_or(Status::Invalid)?;
        self.queues.get_mut(page).ok_or(Status::Invalid)?.resume(ctx, slot, address)
    }

    /// Revokes a queue and refuses its elements; an element with a step in flight is refused or acknowledged when the
    /// step ends.
    pub(crate) fn clear(&mut self, ctx: &mut Ctx, page: u32) {
        if let Some(queue) = self.queues.get_mut(page) {
            queue.revoked = true;
            self.remove_if_revoked(ctx, page);
        }
    }

    /// Removes a revoked queue unless a step of it is in flight.
    fn remove_if_revoked(&mut self, ctx: &mut Ctx, page: u32) {
        let Some(queue) = self.queues.get_mut(page).filter(|queue| queue.revoked) else { return };
        queue.refuse_pending(ctx, Status::Stale);
        if queue.step_in_flight() {
            return;
        }
        let Some(queue) = self.queues.remove(page) else { return };
        for (node, (_, imports)) in &queue.reserved {
            self.receive_credits.give(node, (*imports).into());
        }
        if let Some(element) = queue.active {
            refuse_element(ctx, &element.packet, Status::Stale);
        }
        if queue.armed > 0 || queue.arming.is_some() {
            ctx.cause(Cause::Context(queue.context));
        }
    }

    /// The value of a queue's event: its page in bits 63:32, its status in bits 31:16, TG_QUEUE_EVENT_* bits.
    pub(crate) fn event(&self, page: u32) -> u64 {
        let mut value = u64::from(page) << 32;
        let Some(queue) = self.queues.get(page) else { return value };
        if queue.state == QueueState::Stopped {
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
        if ctx.is_stale(packet) {
            return refused(Status::Reset);
        }
        if let Err(status) = self.find_queue(ctx, grants, packet.src, &at) {
            return refused(status);
        }
        let reserved = self.queues.get(at.page).and_then(|queue| queue.reserved.get(&packet.src));
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
        if let Some(queue) = self.queues.get_mut(at.page) {
            if imports == 0 {
                queue.reserved.remove(&packet.src);
            } else {
                queue.reserved.insert(packet.src, (ctx.requester_session(packet), imports));
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
        let queue = match self.queues.get(at.page) {
            Some(queue) if !queue.revoked => queue,
            _ if grants.pages.get(at.page).is_some() => return Err(Status::NotQueue),
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

    /// Handles a received element. It leaves the buffer that it occupies at once, since its import holds a receive
    /// credit for it.
    pub(crate) fn element(&mut self, ctx: &mut Ctx, grants: &Grants, packet: Packet, charge: Charge) {
        ctx.consumed(charge, packet.src, Class::Enqueue);
        let Body::Enqueue { at, data, .. } = packet.body else { return };
        let admitted = if ctx.answers.follows_refused_store(&packet) {
            Err(Status::Cut)
        } else {
            self.admit(ctx, grants, &packet)
        };
        match admitted {
            Ok(()) => {
                self.with(ctx, at.page, |ctx, queue| {
                    queue.pending.push_back(Element { packet, data });
                    queue.serve(ctx, grants);
                });
            }
            Err(status) => refuse_element(ctx, &packet, status),
        }
    }

    /// Checks that an element fits its queue and that its import holds a receive credit for it.
    fn admit(&self, ctx: &Ctx, grants: &Grants, packet: &Packet) -> Result<(), Status> {
        let Body::Enqueue { at, size, .. } = packet.body else { return Err(Status::Invalid) };
        if ctx.is_stale(packet) {
            return Err(Status::Reset);
        }
        let queue = self.find_queue(ctx, grants, packet.src, &at)?;
        if at.offset != 0 || size != queue.shape.width() {
            return Err(Status::NotQueue);
        }
        let imports = match queue.reserved.get(&packet.src) {
            Some((session, imports)) if *session == ctx.requester_session(packet) => *imports,
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
        if self.waiting.is_empty() {
            return;
        }
        let queues = &self.queues;
        self.waiting.retain(|page| queues.get(*page).is_some_and(Queue::waits_for_requests));
        ctx.elements_wait = !self.waiting.is_empty();
        let waits = |queue: &Queue| queue.pending.iter().any(|e| e.packet.src == source);
        let pages: Vec<u32> =
            self.waiting.iter().copied().filter(|page| queues.get(*page).is_some_and(waits)).collect();
        for page in pages {
            self.with(ctx, page, |ctx, queue| queue.serve(ctx, grants));
        }
    }

    /// Lets a queue do some work, and remembers it if it waits for requests then.
    fn with(&mut self, ctx: &mut Ctx, page: u32, work: impl FnOnce(&mut Ctx, &mut Queue)) {
        let Some(queue) = self.queues.get_mut(page) else { return };
        work(ctx, queue);
        if queue.waits_for_requests() {
            self.waiting.insert(page);
            ctx.elements_wait = true;
        }
    }

    /// Handles the result of a queue's step and starts the next one.
    pub(crate) fn stepped(&mut self, ctx: &mut Ctx, grants: &Grants, page: u32, result: StepResult) {
        let Some(queue) = self.queues.get_mut(page) else { return };
        if queue.revoked {
            queue.finish_step_of_revoked(ctx);
            self.remove_if_revoked(ctx, page);
            ctx.defer(FollowUp::StepEnded);
            return;
        }
        self.with(ctx, page, |ctx, queue| queue.stepped(ctx, grants, result));
    }

    // ---- arm ----

    /// A store to `QUEUE_ARM` of a context. If an element has arrived since the consumer looked, it is woken at once.
    pub(crate) fn arm(&mut self, ctx: &mut Ctx, grants: &Grants, number: u16, offset: u64, data: u64) {
        let QueueArm { count, page, seen } = QueueArm::decode(data);
        if self.queues.get(page).is_none_or(|queue| queue.context != number || queue.revoked) {
            return ctx.bad_access(Bar::Contexts, offset, 8, Status::NotQueue);
        }
        self.with(ctx, page, |ctx, queue| queue.arm(ctx, grants, Arm { seen, count }));
    }

    // ---- reset ----

    /// Removes all queues and refuses the elements of other nodes; the requester drops those of this node. Called on
    /// reset.
    pub(crate) fn refuse_all(&mut self, ctx: &mut Ctx, status: Status) {
        let queues = std::mem::take(&mut self.queues);
        self.receive_credits.clear();
        for queue in queues.into_values() {
            for element in queue.active.into_iter().chain(queue.pending) {
                if element.packet.src != ctx.config.node {
                    acknowledge_element(ctx, &element.packet, status);
                }
            }
        }
    }
}

// The words of a queue fit in one export page.
const _: () = assert!(telegraphos_wire::queue::MAX_BYTES <= UNIT);
