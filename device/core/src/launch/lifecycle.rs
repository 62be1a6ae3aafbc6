// SPDX-License-Identifier: MIT OR Apache-2.0
//! The life cycle of an operation: checks, start, blocks, replies, end.

use super::copies::{BlockAt, BlockCopy, PartEnd};
use super::operations::{Kind, Operation, Origin};
use super::registers::{LaunchRegisters, Location};
use super::{Below, Launcher, fetch_failed};
use crate::config::{BLOCK_BYTES, BLOCKS, MAX_COPY};
use crate::ctx::{Claim, Ctx, FollowUp};
use crate::grants::Closing;
use crate::keyed::Key;
use crate::loan::{Content, Data};
use crate::numbered::ones;
use crate::requester::Requester;
use crate::{Bug, Notice, StepResult};
use telegraphos_wire::admin::Completion;
use telegraphos_wire::context::{self, Operation as Opcode};
use telegraphos_wire::{Body, MAX_BLOCK, NodeId, Rights, Status, UNIT, UNIT_SHIFT};

/// Bytes of the longest block in a packet to or from a node, this one included.
fn longest_block(below: &Below<'_>, node: NodeId) -> u64 {
    if node == below.ctx.config.node { MAX_BLOCK as u64 } else { below.requester.peers.presence.block(node) }
}

/// Returns whether two ranges of this node's exported memory overlap.
fn overlap(below: &Below<'_>, a: &Location, b: &Location, length: u64) -> bool {
    let start = |location: &Location| {
        let import = below.requester.imports.get(location.import)?;
        Some((u64::from(import.page) << UNIT_SHIFT) + location.offset)
    };
    match (start(a), start(b)) {
        (Some(a), Some(b)) => a < b + length && b < a + length,
        _ => false,
    }
}

impl Launcher {
    /// Checks and starts an operation on the arguments and operands of `registers`. On an error nothing has been
    /// started, and the caller reports it.
    pub(super) fn start(
        &mut self,
        below: &mut Below<'_>,
        origin: Origin,
        notify: bool,
        operation: Opcode,
        registers: LaunchRegisters,
    ) -> Result<(), Status> {
        let LaunchRegisters { arguments: [first, second], operand, compare, length } = registers;
        let first = first.ok_or(Status::Argument)?;
        let own = below.ctx.config.node;
        match operation {
            Opcode::Atomic { op, size } => {
                let (node, at) = first.check(below, u64::from(size), Rights::ATOMIC)?;
                if first.offset % u64::from(size) != 0 {
                    return Err(Status::BadSize);
                }
                below.ctx.counters.atomics += 1;
                let kind = Kind::Atomic { value: 0 };
                let operation = Operation::new(below.requester, origin, notify, node, &first, kind);
                let epoch = operation.epoch;
                let number = self.operations.begin(below.requester, Operation { parts: 1, ..operation });
                let context = below.requester.imports.get(first.import).map_or(0, |i| i.context);
                let (operand, compare) = (operand & ones(size.into()), compare & ones(size.into()));
                let body = Body::Atomic { at, context, epoch, size, op, operand, compare };
                below.requester.page_counters.count(below.ctx, node, at.page, true, 1);
                below.requester.submit_part(below.ctx, node, number, 0, body.into());
            }
            Opcode::Copy => {
                let (to, from) = (first, second.ok_or(Status::Argument)?);
                if length == 0 || length > MAX_COPY {
                    return Err(Status::Length);
                }
                let dma = Rights::DMA.0;
                let (to_node, _) = to.check(below, length, Rights(dma | Rights::WRITE.0))?;
                let (from_node, _) = from.check(below, length, Rights(dma | Rights::READ.0))?;
                let get = from_node != own;
                if get && to_node != own {
                    return Err(Status::NotLocal);
                }
                if !get && to_node == own && overlap(below, &to, &from, length) {
                    return Err(Status::Overlap);
                }
                let (far, near, node) = if get { (from, to, from_node) } else { (to, from, to_node) };
                let context = origin.context();
                self.congestion.charge_copy(below.ctx, context, length)?;
                below.ctx.counters.copies += 1;
                let limit = longest_block(below, node);
                let copy = BlockCopy { far, near, get, length, started: 0, limit };
                let mut operation = Operation::new(below.requester, origin, notify, node, &far, Kind::Copy(copy));
                operation.imports[1] = (to.import != from.import).then_some(near.import);
                let number = self.operations.begin(below.requester, operation);
                self.queue_copy(below.ctx, node, context, number);
                self.pump_copies(below, node);
            }
            Opcode::Gate => {
                let import = first.open(below.requester)?;
                if import.node != own {
                    return Err(Status::NotLocal);
                }
                let at = (import.page, import.address(0).generation);
                let waits = below.grants.ranges.gate(import.context, at, (operand, length))?;
                let operation = Operation::new(below.requester, origin, notify, own, &first, Kind::Gate);
                let operation = self.operations.begin(below.requester, Operation { parts: 1, ..operation });
                if waits && !below.ctx.has(Bug::CloseGateAtOnce) {
                    below.grants.closing.push(Closing { operation, import: first.import, page: at.0 });
                    below.ctx.defer(FollowUp::StepEnded);
                } else {
                    self.part_done(below, operation, (Status::Ok, first.import));
                }
            }
        }
        Ok(())
    }

    // ---- parts ----

    /// Starts blocks of the copies to or from a node, in round-robin order, while the limits [`BLOCKS`],
    /// [`BLOCK_BYTES`] and [`TURN_BYTES`](crate::TURN_BYTES) allow.
    pub(crate) fn pump_copies(&mut self, below: &mut Below<'_>, node: NodeId) {
        let at_once = (BLOCK_BYTES / longest_block(below, node)).min(BLOCKS.into()) as u32;
        loop {
            let destination = &self.destinations[usize::from(node)];
            if destination.blocks >= at_once || destination.copies.is_empty() {
                return;
            }
            if !below.ctx.may_copy(Claim::Copies(node)) {
                return;
            }
            let destination = &mut self.destinations[usize::from(node)];
            let Some(number) = destination.copies.pop() else { return };
            let Some(operation) = self.operations.table.get_mut(number) else { continue };
            if operation.status != Status::Ok {
                continue; // It ends with its last block in flight.
            }
            let Kind::Copy(copy) = &mut operation.kind else { continue };
            let offset = copy.started;
            let count = copy.block_length(offset);
            copy.started += count;
            let copy = *copy;
            let lends = below.requester.peers.can_lend(below.ctx, node);
            // What can be lent is paid for where it is copied.
            below.ctx.copied(if lends { 0 } else { count });
            let context = operation.origin.context();
            operation.parts += 1;
            destination.blocks += 1;
            if copy.started < copy.length {
                self.queue_copy(below.ctx, node, context, number);
            }
            if let Err(end) = copy.start(below, &BlockAt { operation: number, node, offset }, count, lends) {
                self.part_done(below, number, end);
            }
        }
    }

    /// Appends a copy to the round-robin order of its node.
    fn queue_copy(&mut self, ctx: &Ctx, node: NodeId, context: u16, number: Key) {
        let context = if ctx.has(Bug::TurnsByOperation) { 0 } else { context };
        self.destinations[usize::from(node)].copies.push(context, number);
    }

    /// Handles the result of a block's step: sends the loaded block or the request for one, or ends the stored one. It
    /// may be `unpaid`.
    pub(crate) fn block_stepped(
        &mut self,
        below: &mut Below<'_>,
        number: Key,
        offset: u64,
        unpaid: bool,
        result: StepResult,
    ) {
        let Some(operation) = self.operations.table.get(number) else { return };
        let Kind::Copy(copy) = operation.kind else { return };
        let (failed, epoch) = (operation.status != Status::Ok, operation.epoch);
        let at = BlockAt { operation: number, node: operation.node, offset };
        let sent = match result {
            StepResult::Lent(into) if copy.get && !failed => copy.lent(below, &at, into),
            StepResult::Block(data) if !copy.get && !failed => copy.loaded(below, &at, epoch, data, unpaid),
            StepResult::Failed(status) => Err((status, copy.near.import)),
            _ => Err((Status::Ok, copy.far.import)),
        };
        if let Err(end) = sent {
            self.part_done(below, number, end);
        }
        below.ctx.defer(FollowUp::StepEnded);
    }

    /// Handles the result of a request of an operation: its reply, or the reason why it has none.
    pub(crate) fn answered(
        &mut self,
        below: &mut Below<'_>,
        number: Key,
        offset: u64,
        answer: Result<Content, Status>,
    ) {
        let Some(operation) = self.operations.table.get_mut(number) else { return };
        let far = operation.imports[0].unwrap_or_default();
        let at = BlockAt { operation: number, node: operation.node, offset };
        let failed = operation.status != Status::Ok;
        let (answer, loan) = match answer {
            Ok(Content { body, loan }) => (Ok(body), loan),
            Err(status) => (Err(status), None),
        };
        let ended = match (answer, &mut operation.kind) {
            (Err(status), Kind::Copy(copy)) => {
                copy.take_back(below, offset);
                Err((status, far))
            }
            (Ok(Body::AtomicReply { status, data }), Kind::Atomic { value }) => {
                *value = data;
                Err((status, far))
            }
            (Ok(Body::BlockReply { status: Status::Ok, data }), Kind::Copy(copy)) if copy.get && !failed => {
                copy.store(below, &at, Data::of(data, loan))
            }
            (Ok(Body::WriteAck { status }), Kind::Copy(copy)) if !copy.get => Err((status, far)),
            (Ok(Body::BlockReply { status, .. }), Kind::Copy(copy)) if copy.get && !status.is_ok() => {
                Err((status, far))
            }
            (Err(status), _) => Err((status, far)),
            // A reply of the wrong kind.
            (Ok(_), _) => Err((Status::Invalid, far)),
        };
        if let Err(end) = ended {
            self.part_done(below, number, end);
        }
    }

    /// Ends one part of an operation, and the operation with its last part.
    pub(crate) fn part_done(&mut self, below: &mut Below<'_>, number: Key, (status, import): PartEnd) {
        let Some(operation) = self.operations.table.get_mut(number) else { return };
        operation.parts = operation.parts.saturating_sub(1);
        operation.fail(status, Some(import));
        let (node, parts, kind) = (operation.node, operation.parts, operation.kind);
        let complete = match kind {
            Kind::Atomic { .. } | Kind::Gate => true,
            Kind::Copy(copy) => operation.status != Status::Ok || copy.started == copy.length,
        };
        let copy = matches!(kind, Kind::Copy(_));
        if copy {
            let blocks = &mut self.destinations[usize::from(node)].blocks;
            *blocks = blocks.saturating_sub(1);
        }
        if parts == 0 && complete {
            self.end(below, number);
        }
        if copy {
            self.pump_copies(below, node);
        }
    }

    /// Fails the waiting copies to or from a node that is down. Those without a block in flight end now.
    pub(crate) fn fail_waiting_copies(&mut self, below: &mut Below<'_>, node: NodeId, status: Status) {
        let Some(destination) = self.destinations.existing_mut(node) else { return };
        let mut copies = std::mem::take(&mut destination.copies);
        while let Some(number) = copies.pop() {
            let Some(operation) = self.operations.table.get_mut(number) else { continue };
            operation.fail(status, operation.imports[0]);
            if operation.parts == 0 {
                self.end(below, number);
            }
        }
    }

    // ---- the end ----

    /// Completes an operation: reports its status to its origin, to quiets and to its import, and returns its charges.
    fn end(&mut self, below: &mut Below<'_>, number: Key) {
        if let Some(status) = self.operations.table.get(number).map(|operation| operation.status) {
            self.answer_fetch(below, number, status);
        }
        let Some(operation) = self.operations.table.remove(number) else { return };
        let Operation { origin, notify, node, imports, epoch, kind, status, failed_import, .. } = operation;
        let value = match kind {
            Kind::Atomic { value } if status == Status::Ok => Some(value),
            Kind::Atomic { .. } => Some(u64::MAX),
            Kind::Copy(_) | Kind::Gate => None,
        };
        if status != Status::Ok {
            below.ctx.notice(Notice::FailedOperation { node, status });
            // Both imports belong to the same context.
            let context = imports.into_iter().flatten().find_map(|n| below.requester.imports.get(n)).map(|i| i.context);
            if let Some(context) = context {
                below.requester.contexts.fail_quiets_of(context, number, status);
            }
            // Refused because of an earlier lost store whose error has since been acknowledged: no error of the current
            // epoch.
            let acknowledged =
                |import: &u16| status == Status::Cut && below.requester.imports.epoch_of(*import).epoch != epoch.epoch;
            if let Some(import) = failed_import.filter(|import| *import != epoch.import || !acknowledged(import)) {
                below.requester.latch(below.ctx, import, status);
            }
        }
        if let Kind::Copy(copy) = kind {
            self.congestion.credit_copy(below.ctx, origin.context(), copy.length);
        }
        match origin {
            Origin::Slot { context, slot, cookie } => {
                self.operations.leave_slot(context, slot);
                below.requester.contexts.slot_done(below.ctx, (context, slot), cookie, status, value, notify);
            }
            Origin::Load { context, .. } => below.requester.contexts.return_status_word(context),
            Origin::Admin { slot, .. } => {
                let length = value.unwrap_or(0);
                below.ctx.complete(slot, Completion { length, ..Completion::of(0, status) });
            }
        }
        for import in imports.into_iter().flatten() {
            // The import is open as long as an operation uses it.
            if let Some(import) = below.requester.imports.get_mut(import) {
                import.operations -= 1;
                let context = import.context;
                self.operations.leave_context(context, number);
                let Requester { contexts, imports, .. } = &mut *below.requester;
                contexts.operation_ended(below.ctx, imports, context, number);
            }
            below.requester.progressed(below.ctx, import);
        }
    }

    /// Completes the loads of FETCH whose deadline has passed. Their operations continue, and quiet waits for them.
    pub(crate) fn expire(&mut self, below: &mut Below<'_>) {
        if below.ctx.has(Bug::FetchWithoutLimit) {
            return;
        }
        while let Some(&(deadline, number)) = self.operations.fetches.front() {
            if deadline > below.ctx.now {
                return;
            }
            self.operations.fetches.pop_front();
            self.answer_fetch(below, number, Status::Timeout);
        }
    }

    /// Completes the load that launched an operation, unless it is complete.
    fn answer_fetch(&mut self, below: &mut Below<'_>, number: Key, status: Status) {
        let Some(operation) = self.operations.table.get_mut(number) else { return };
        let Origin::Load { context, slot, size, ref mut token, deadline } = operation.origin else { return };
        let Some(token) = token.take() else { return };
        let (argument, kind) = (operation.imports[0], operation.kind);
        // No status word is written for it: the process can use the slot again.
        self.operations.end_fetch(number, deadline, context, slot);
        let size = u32::from(size);
        let data = match kind {
            Kind::Atomic { value } if status == Status::Ok => value & ones(size),
            _ => {
                let offset = u64::from(context) * UNIT + context::FETCH + 8 * u64::from(slot);
                fetch_failed(below, context, argument, offset, size, status);
                ones(size)
            }
        };
        below.ctx.read_done(token, data);
    }
}
