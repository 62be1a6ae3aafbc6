// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies: starts their blocks in round-robin order, and moves the data between guest memory and packets.

use super::{Below, Kind, Launcher, Location, Operation};
use crate::config::{BLOCK_BYTES, BLOCKS};
use crate::ctx::{Claim, Ctx, FollowUp, StepOwner};
use crate::interface::Place;
use crate::keyed::Key;
use crate::{Bug, Step, StepResult};
use telegraphos_wire::{Body, Loan, MAX_BLOCK, NodeId, Rights, STREAM_BLOCK, Status, UNIT};

/// Length of the block at `offset` of a copy, at most `limit`. A block crosses no export page at either end.
pub(super) fn block_length(far: &Location, near: &Location, length: u64, offset: u64, limit: u64) -> u64 {
    let room = |location: &Location| UNIT - ((location.offset + offset) & (UNIT - 1));
    (length - offset).min(limit).min(room(far)).min(room(near))
}

impl Launcher {
    /// Bytes of the longest block in a packet to or from a node, this one included.
    pub(super) fn longest_block(below: &Below<'_>, node: NodeId) -> u64 {
        if node == below.ctx.config.node { MAX_BLOCK as u64 } else { below.requester.presence.block(node) }
    }

    /// Starts blocks of the copies to or from a node, in round-robin order, while the limits [`BLOCKS`],
    /// [`BLOCK_BYTES`] and [`TURN_BYTES`](crate::TURN_BYTES) allow.
    pub(crate) fn pump_copies(&mut self, below: &mut Below<'_>, node: NodeId) {
        let at_once = (BLOCK_BYTES / Launcher::longest_block(below, node)).min(BLOCKS.into()) as u32;
        loop {
            let destination = &self.destinations[usize::from(node)];
            if destination.blocks >= at_once || destination.copies.is_empty() {
                return;
            }
            if !below.ctx.may_copy(Claim::Copies(node)) {
                return;
            }
            let Some(number) = self.destinations[usize::from(node)].copies.pop() else { return };
            let Some(operation) = self.operations.get_mut(number) else { continue };
            if operation.status != Status::Ok {
                continue; // It ends with its last block in flight.
            }
            let Kind::Copy { far, near, get, length, started, limit } = &mut operation.kind else { continue };
            let offset = *started;
            let limit = *limit;
            let count = block_length(far, near, *length, offset, limit);
            // What can be lent is paid for where it is copied.
            let lendable = limit > STREAM_BLOCK as u64;
            below.ctx.copied(if lendable { 0 } else { count });
            *started += count;
            let more = *started < *length;
            let (near, get) = (*near, *get);
            let own_context = operation.origin.context();
            operation.parts += 1;
            self.destinations[usize::from(node)].blocks += 1;
            if more {
                self.queue_copy(below.ctx, node, own_context, number);
            }
            if get && !lendable {
                self.request_block(below, number, offset, count, None);
                continue;
            }
            let right = if get { Rights::WRITE } else { Rights::READ };
            match self.near_address(below, &near, offset, count, right) {
                Ok((page, place)) => {
                    let owner = StepOwner::Block { operation: number, offset, page };
                    let length = count as u32;
                    // A copy of a replicated page may change when it is no longer valid.
                    let lend = lendable && !below.replicas.has(page);
                    let step = place.step(|address| match get {
                        true => Step::Lend { address, length },
                        false => Step::LoadBlock { address, length, lend, into: None },
                    });
                    below.ctx.step(step, owner);
                }
                Err(status) => self.part_done(below, number, status, near.import),
            }
        }
    }

    /// The export page and the place in guest memory of a block at the near end, after the same checks as for a request
    /// of another node.
    pub(super) fn near_address(
        &self,
        below: &Below<'_>,
        near: &Location,
        offset: u64,
        count: u64,
        right: Rights,
    ) -> Result<(u32, Place), Status> {
        let import = below.requester.open_import(near.import).ok_or(Status::Argument)?;
        let at = import.address(near.offset + offset);
        let (node, rights) = (below.ctx.config.node, Rights(Rights::DMA.0 | right.0));
        let place = below.grants.translate_block(below.ctx, node, &at, count, rights)?;
        below.replicas.block_of_replica(at.page, right)?;
        Ok((at.page, place))
    }

    /// Sends the request for a block of a get, whose bytes the owner may copy to `into`.
    fn request_block(&mut self, below: &mut Below<'_>, number: Key, offset: u64, count: u64, into: Option<Loan>) {
        let Some(Operation { node, kind: Kind::Copy { far, .. }, .. }) = self.operations.get(number) else { return };
        let (node, far) = (*node, *far);
        let import = match below.requester.open_import(far.import) {
            Some(import) if !import.dead => import,
            // The node went down while the target was lent.
            import => {
                let status = import.and_then(|i| i.error).unwrap_or(Status::NodeDown);
                return self.part_done(below, number, status, far.import);
            }
        };
        let (at, context) = (import.address(far.offset + offset), import.context);
        below.requester.page_counters.count(below.ctx, node, at.page, false);
        self.send_part(below, node, number, offset, Body::ReadBlock { at, context, length: count as u32, into });
    }

    /// A block ends without an answer: the node that still has the request must copy nothing more to this node's memory
    /// (of a get), nor from it (of a put), since its process uses it for something else from now on.
    pub(super) fn take_back(&self, below: &mut Below<'_>, near: &Location, get: bool, offset: u64, count: u64) {
        if !get && below.ctx.has(Bug::KeepLoansOfPuts) {
            return;
        }
        let right = if get { Rights::WRITE } else { Rights::READ };
        // Where the grant is gone, the loan went with it.
        let Ok((_, place)) = self.near_address(below, near, offset, count, right) else { return };
        match place.pieces {
            None => below.ctx.recall(place.address, count),
            Some(pieces) => pieces.iter().for_each(|piece| below.ctx.recall(piece.address, piece.length.into())),
        }
    }

    /// Handles the result of a block's step: sends the loaded block or the request for one, or ends the stored one.
    pub(crate) fn block_stepped(&mut self, below: &mut Below<'_>, number: Key, offset: u64, result: StepResult) {
        let Some(operation) = self.operations.get(number) else { return };
        let (node, kind, failed) = (operation.node, operation.kind, operation.status != Status::Ok);
        let epoch = operation.epoch;
        let Kind::Copy { far, near, get, length, limit, .. } = kind else { return };
        match result {
            StepResult::Lent(into) if get && !failed => {
                let count = block_length(&far, &near, length, offset, limit);
                match into {
                    // Its bytes come in the answer.
                    None => below.ctx.copied(count),
                    // Revoked while the step was in flight: it was lent behind the recall.
                    Some(_) => {
                        if let Err(status) = self.near_address(below, &near, offset, count, Rights::WRITE) {
                            self.part_done(below, number, status, near.import);
                            return below.ctx.defer(FollowUp::StepEnded);
                        }
                    }
                }
                self.request_block(below, number, offset, count, into);
            }
            StepResult::Block(data) if !get && !failed => {
                if limit > STREAM_BLOCK as u64 && !data.is_lent() {
                    // It could have been lent, and was not.
                    below.ctx.copied(data.len() as u64);
                }
                if data.is_lent() {
                    // Revoked while the step was in flight: it was lent behind the recall.
                    if let Err(status) = self.near_address(below, &near, offset, data.len() as u64, Rights::READ) {
                        self.part_done(below, number, status, near.import);
                        return below.ctx.defer(FollowUp::StepEnded);
                    }
                }
                let import = match below.requester.open_import(far.import) {
                    Some(import) if !import.dead => import,
                    // The node went down while the block was loaded.
                    import => {
                        let status = import.and_then(|i| i.error).unwrap_or(Status::NodeDown);
                        return self.part_done(below, number, status, far.import);
                    }
                };
                let (at, context) = (import.address(far.offset + offset), import.context);
                below.requester.page_counters.count(below.ctx, node, at.page, true);
                self.send_part(below, node, number, offset, Body::WriteBlock { at, context, epoch, data });
            }
            StepResult::Failed(status) => self.part_done(below, number, status, near.import),
            _ => self.part_done(below, number, Status::Ok, far.import),
        }
        below.ctx.defer(FollowUp::StepEnded);
    }

    /// Appends a copy to the round-robin order of its node.
    pub(super) fn queue_copy(&mut self, ctx: &mut Ctx, node: NodeId, context: u16, number: Key) {
        let context = if ctx.has(Bug::TurnsByOperation) { 0 } else { context };
        self.destinations[usize::from(node)].copies.push(context, number);
    }

    /// Uncounts a block in flight.
    pub(super) fn end_block(&mut self, node: NodeId) {
        let blocks = &mut self.destinations[usize::from(node)].blocks;
        *blocks = blocks.saturating_sub(1);
    }

    /// Fails the waiting copies to or from a node that is down. Those without a block in flight end now.
    pub(crate) fn fail_waiting_copies(&mut self, below: &mut Below<'_>, node: NodeId, status: Status) {
        let Some(destination) = self.destinations.existing_mut(node) else { return };
        let mut copies = std::mem::take(&mut destination.copies);
        while let Some(number) = copies.pop() {
            let Some(operation) = self.operations.get_mut(number) else { continue };
            if operation.status == Status::Ok {
                operation.status = status;
                operation.failed_import = operation.imports[0];
            }
            if operation.parts == 0 {
                self.end(below, number);
            }
        }
    }
}
