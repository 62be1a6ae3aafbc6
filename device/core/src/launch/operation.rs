// SPDX-License-Identifier: MIT OR Apache-2.0
//! The life cycle of an operation: checks, start, replies, end. Called by the other files of the launcher.

use super::copies::block_length;
use super::{Below, Kind, Launcher, Location, Operation, Origin, slot_number};
use crate::config::MAX_COPY;
use crate::ctx::{FollowUp, StepOwner};
use crate::grants::Closing;
use crate::keyed::Key;
use crate::{Bug, Notice, Step};
use telegraphos_wire::Body;
use telegraphos_wire::admin::Completion;
use telegraphos_wire::context::Operation as Opcode;
use telegraphos_wire::{NodeId, RemoteAddr, Rights, Status, UNIT_SHIFT};

impl Launcher {
    /// Checks and starts an operation. On an error nothing has been started, and the caller reports it.
    #[expect(clippy::too_many_arguments, reason = "these are what an operation consists of")]
    pub(super) fn start(
        &mut self,
        below: &mut Below<'_>,
        origin: Origin,
        notify: bool,
        operation: Opcode,
        locations: [Option<Location>; 2],
        length: u64,
        operand: u64,
        compare: u64,
    ) -> Result<(), Status> {
        match operation {
            Opcode::Atomic { op, size } => {
                let location = locations[0].ok_or(Status::Argument)?;
                let (node, at) = self.check_location(below, &location, u64::from(size), Rights::ATOMIC)?;
                if location.offset % u64::from(size) != 0 {
                    return Err(Status::BadSize);
                }
                let mask = if size == 8 { u64::MAX } else { u64::from(u32::MAX) };
                below.ctx.counters.atomics += 1;
                let epoch = below.requester.epoch_of(location.import);
                let imports = [Some(location.import), None];
                let number = self.begin(
                    below,
                    Operation {
                        parts: 1,
                        ..Operation::new(origin, notify, node, imports, epoch, Kind::Atomic { value: 0 })
                    },
                );
                let context = below.requester.open_import(location.import).map_or(0, |i| i.context);
                let (operand, compare) = (operand & mask, compare & mask);
                let body = Body::Atomic { at, context, epoch, size, op, operand, compare };
                below.requester.page_counters.count(below.ctx, node, at.page, true);
                self.send_part(below, node, number, 0, body);
            }
            Opcode::Copy => {
                let (to, from) = (locations[0].ok_or(Status::Argument)?, locations[1].ok_or(Status::Argument)?);
                if length == 0 || length > MAX_COPY {
                    return Err(Status::Length);
                }
                let dma = Rights::DMA.0;
                let (to_node, _) = self.check_location(below, &to, length, Rights(dma | Rights::WRITE.0))?;
                let (from_node, _) = self.check_location(below, &from, length, Rights(dma | Rights::READ.0))?;
                let own = below.ctx.config.node;
                let get = from_node != own;
                if get && to_node != own {
                    return Err(Status::NotLocal);
                }
                if !get && to_node == own && self.overlap(below, &to, &from, length) {
                    return Err(Status::Overlap);
                }
                let (far, near) = if get { (from, to) } else { (to, from) };
                let node = if get { from_node } else { to_node };
                let second = (to.import != from.import).then_some(near.import);
                let context = origin.context();
                self.charge_copy(below.ctx, context, length)?;
                below.ctx.counters.copies += 1;
                let epoch = below.requester.epoch_of(far.import);
                let limit = Launcher::longest_block(below, node);
                let kind = Kind::Copy { far, near, get, length, started: 0, limit };
                let operation = Operation::new(origin, notify, node, [Some(far.import), second], epoch, kind);
                let number = self.begin(below, operation);
                self.queue_copy(below.ctx, node, context, number);
                self.pump_copies(below, node);
            }
            Opcode::Gate => {
                let location = locations[0].ok_or(Status::Argument)?;
                let import = below.requester.open_import(location.import).filter(|i| i.opening == location.opening);
                let import = import.ok_or(Status::Argument)?;
                let own = below.ctx.config.node;
                if import.node != own {
                    return Err(Status::NotLocal);
                }
                let page = import.page;
                let waits =
                    below.grants.gate(import.context, (page, import.address(0).generation), (operand, length))?;
                let epoch = below.requester.epoch_of(location.import);
                let operation = Operation::new(origin, notify, own, [Some(location.import), None], epoch, Kind::Gate);
                let operation = self.begin(below, Operation { parts: 1, ..operation });
                if waits && !below.ctx.has(Bug::CloseGateAtOnce) {
                    below.grants.close_later(Closing { operation, import: location.import, page });
                    below.ctx.defer(FollowUp::StepEnded);
                } else {
                    self.part_done(below, operation, Status::Ok, location.import);
                }
            }
        }
        Ok(())
    }

    /// Returns whether the import of a location has not been closed since it was named.
    pub(super) fn is_open(&self, below: &Below<'_>, location: &Location) -> bool {
        below.requester.open_import(location.import).is_some_and(|import| import.opening == location.opening)
    }

    /// Checks `length` bytes at a location for `right`, and returns the node and remote address of the first byte.
    fn check_location(
        &self,
        below: &Below<'_>,
        location: &Location,
        length: u64,
        right: Rights,
    ) -> Result<(NodeId, RemoteAddr), Status> {
        let import = below.requester.open_import(location.import).filter(|i| i.opening == location.opening);
        let import = import.ok_or(Status::Argument)?;
        if import.in_error {
            return Err(import.error.unwrap_or(Status::Cut));
        }
        if !import.rights.contains(right) {
            return Err(Status::Rights);
        }
        if location.offset.checked_add(length).is_none_or(|end| end > import.length) {
            return Err(Status::Bounds);
        }
        below.requester.reachable(below.ctx, import.node)?;
        Ok((import.node, import.address(location.offset)))
    }

    /// Returns whether two ranges of this node's exported memory overlap.
    fn overlap(&self, below: &Below<'_>, a: &Location, b: &Location, length: u64) -> bool {
        let start = |location: &Location| {
            let import = below.requester.open_import(location.import)?;
            Some((u64::from(import.page) << UNIT_SHIFT) + location.offset)
        };
        match (start(a), start(b)) {
            (Some(a), Some(b)) => a < b + length && b < a + length,
            _ => false,
        }
    }

    /// Adds an operation to the tables and returns its number.
    fn begin(&mut self, below: &mut Below<'_>, operation: Operation) -> Key {
        let (origin, imports) = (operation.origin, operation.imports);
        let number = self.operations.insert(operation);
        if let Origin::Slot { context, slot, .. } | Origin::Load { context, slot, .. } = origin {
            self.slots.insert(slot_number(context, slot), number);
        }
        if let Origin::Load { deadline, .. } = origin {
            self.fetches.push_back((deadline, number));
        }
        for import in imports.into_iter().flatten() {
            if let Some(import) = below.requester.import(import) {
                import.operations += 1;
                let operations = self.by_context.0.get_or_insert_with(import.context, Vec::new);
                // Both imports may belong to the same context.
                if operations.last() != Some(&number) {
                    operations.push(number);
                }
            }
        }
        number
    }

    /// Sends one request of an operation.
    pub(super) fn send_part(&mut self, below: &mut Below<'_>, node: NodeId, operation: Key, offset: u64, body: Body) {
        below.requester.submit_part(below.ctx, node, operation, offset, body);
    }

    /// Handles the result of a request of an operation: its reply, or the reason why it has none.
    pub(crate) fn answered(&mut self, below: &mut Below<'_>, number: Key, offset: u64, answer: Result<Body, Status>) {
        let Some(operation) = self.operations.get_mut(number) else { return };
        let far = operation.imports[0].unwrap_or_default();
        let body = match answer {
            Ok(body) => body,
            Err(status) => {
                if let Kind::Copy { far: location, near, get, length, limit, .. } = operation.kind {
                    let count = block_length(&location, &near, length, offset, limit);
                    self.take_back(below, &near, get, offset, count);
                }
                return self.part_done(below, number, status, far);
            }
        };
        match (body, &mut operation.kind) {
            (Body::AtomicReply { status, data }, Kind::Atomic { value }) => {
                *value = data;
                self.part_done(below, number, status, far);
            }
            (Body::WriteAck { status }, Kind::Copy { get: false, .. }) => self.part_done(below, number, status, far),
            (
                Body::BlockReply { status: Status::Ok, data },
                Kind::Copy { far: location, near, get: true, length, limit, .. },
            ) => {
                let near = *near;
                let expected = block_length(location, &near, *length, offset, *limit);
                if operation.status != Status::Ok || data.len() as u64 != expected {
                    // A longer block would overwrite other memory, a shorter one would leave a gap.
                    return self.part_done(below, number, Status::Invalid, far);
                }
                match self.near_address(below, &near, offset, data.len() as u64, Rights::WRITE) {
                    Ok((page, place)) => {
                        let owner = StepOwner::Block { operation: number, offset, page };
                        below.ctx.step(place.step(|address| Step::StoreBlock { address, data }), owner);
                    }
                    Err(status) => self.part_done(below, number, status, near.import),
                }
            }
            (Body::BlockReply { status, .. }, Kind::Copy { get: true, .. }) => {
                self.part_done(below, number, status, far)
            }
            // A reply of the wrong kind.
            _ => self.part_done(below, number, Status::Invalid, far),
        }
    }

    /// Ends one part of an operation, and the operation with its last part. An error concerns `import`.
    pub(crate) fn part_done(&mut self, below: &mut Below<'_>, number: Key, status: Status, import: u16) {
        let Some(operation) = self.operations.get_mut(number) else { return };
        operation.parts = operation.parts.saturating_sub(1);
        if operation.status == Status::Ok && status != Status::Ok {
            operation.status = status;
            operation.failed_import = Some(import);
        }
        let failed = operation.status != Status::Ok;
        let (node, parts) = (operation.node, operation.parts);
        let complete = match operation.kind {
            Kind::Atomic { .. } | Kind::Gate => true,
            Kind::Copy { length, started, .. } => failed || started == length,
        };
        let copy = matches!(operation.kind, Kind::Copy { .. });
        if copy {
            self.end_block(node);
        }
        if parts == 0 && complete {
            self.end(below, number);
        }
        if copy {
            self.pump_copies(below, node);
        }
    }

    /// Completes an operation: reports its status to its origin, to quiets and to its import, and returns its charges.
    pub(super) fn end(&mut self, below: &mut Below<'_>, number: Key) {
        if let Some(status) = self.operations.get(number).map(|operation| operation.status) {
            self.answer_fetch(below, number, status);
        }
        let Some(operation) = self.operations.remove(number) else { return };
        let Operation { origin, notify, node, imports, epoch, kind, status, failed_import, .. } = operation;
        let value = match kind {
            Kind::Atomic { value } if status == Status::Ok => Some(value),
            Kind::Atomic { .. } => Some(u64::MAX),
            Kind::Copy { .. } | Kind::Gate => None,
        };
        if status != Status::Ok {
            below.ctx.notice(Notice::FailedOperation { node, status });
            // Both imports belong to the same context.
            let context = imports.into_iter().flatten().find_map(|n| below.requester.open_import(n)).map(|i| i.context);
            if let Some(context) = context {
                below.requester.fail_quiets_of(context, number, status);
            }
            // Refused because of an earlier lost store whose error has since been acknowledged: no error of the current
            // epoch.
            let acknowledged =
                |import: &u16| status == Status::Cut && below.requester.epoch_of(*import).epoch != epoch.epoch;
            if let Some(import) = failed_import.filter(|import| *import != epoch.import || !acknowledged(import)) {
                below.requester.latch(below.ctx, import, status);
            }
        }
        if let Kind::Copy { length, .. } = kind {
            self.credit_copy(below.ctx, origin.context(), length);
        }
        match origin {
            Origin::Slot { context, slot, cookie } => {
                self.slots.remove(slot_number(context, slot));
                below.requester.slot_done(below.ctx, (context, slot), cookie, status, value, notify);
            }
            Origin::Load { context, .. } => below.requester.return_status_word(context),
            Origin::Admin { slot, .. } => {
                let length = value.unwrap_or(0);
                below.ctx.complete(slot, Completion { length, ..Completion::of(0, status) });
            }
        }
        for import in imports.into_iter().flatten() {
            // The import is open as long as an operation uses it.
            if let Some(import) = below.requester.import(import) {
                import.operations -= 1;
                let context = import.context;
                self.forget_operation(context, number);
                below.requester.operation_ended(below.ctx, context, number);
            }
            below.requester.progressed(below.ctx, import);
        }
    }
}
