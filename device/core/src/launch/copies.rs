// SPDX-License-Identifier: MIT OR Apache-2.0
//! A copy: its two ends, its blocks, and the data that moves between guest memory and packets.

use super::Below;
use super::registers::Location;
use crate::ctx::StepOwner;
use crate::interface::Place;
use crate::keyed::Key;
use crate::loan::{Content, Data, Loan};
use crate::{Bug, Step};
use telegraphos_wire::{Body, ImportEpoch, NodeId, RemoteAddr, Rights, Status, UNIT};

/// The end of a part of an operation: its status, and the import that an error concerns.
pub(super) type PartEnd = (Status, u16);

/// A block of a copy that is in progress.
pub(super) struct BlockAt {
    pub(super) operation: Key,
    pub(super) node: NodeId,
    /// Its first byte in the copy.
    pub(super) offset: u64,
}

#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct BlockCopy {
    /// The location that requests go to: the source of a get, the destination otherwise.
    pub(super) far: Location,
    /// The location in this node's memory.
    pub(super) near: Location,
    pub(super) get: bool,
    pub(super) length: u64,
    /// Bytes of the blocks that have been started.
    pub(super) started: u64,
    /// Bytes of its longest block.
    pub(super) limit: u64,
}

impl BlockCopy {
    /// Length of the block at `offset`. A block crosses no export page at either end.
    pub(super) fn block_length(&self, offset: u64) -> u64 {
        let room = |location: &Location| UNIT - ((location.offset + offset) & (UNIT - 1));
        (self.length - offset).min(self.limit).min(room(&self.far)).min(room(&self.near))
    }

    /// The export page and the place in guest memory of a block at the near end, after the same checks as for a request
    /// of another node.
    fn near_place(&self, below: &Below<'_>, offset: u64, count: u64) -> Result<(u32, Place), PartEnd> {
        let failed = |status| (status, self.near.import);
        let import = below.requester.imports.get(self.near.import).ok_or(failed(Status::Argument))?;
        let at = import.address(self.near.offset + offset);
        let right = if self.get { Rights::WRITE } else { Rights::READ };
        let (node, rights) = (below.ctx.config.node, Rights(Rights::DMA.0 | right.0));
        let place = below.grants.translate_block(below.ctx, node, &at, count, rights).map_err(failed)?;
        below.replicas.block_of_replica(at.page, right).map_err(failed)?;
        Ok((at.page, place))
    }

    /// Starts the step of a block at the near end. `lends`: it may be lent, and is not paid for.
    fn step(
        &self,
        below: &mut Below<'_>,
        at: &BlockAt,
        count: u64,
        lends: bool,
        step: impl FnOnce(u64, bool) -> Step,
    ) -> Result<(), PartEnd> {
        let (page, place) = self.near_place(below, at.offset, count)?;
        // A copy of a replicated page may change when it is no longer valid.
        let lend = lends && !below.replicas.has(page);
        let owner = StepOwner::Block { operation: at.operation, offset: at.offset, page, unpaid: lends };
        below.ctx.step(place.step(|address| step(address, lend)), owner);
        Ok(())
    }

    /// Starts a block: requests it, or loads or lends its near end first. `lends`: its request, as things are, takes a
    /// way that carries loans. Should it take another one, the loan becomes bytes where it is sent.
    pub(super) fn start(&self, below: &mut Below<'_>, at: &BlockAt, count: u64, lends: bool) -> Result<(), PartEnd> {
        if self.get && !lends {
            return self.request(below, at, count, None);
        }
        let length = count as u32;
        self.step(below, at, count, lends, |address, lend| match self.get {
            true => Step::Lend { address, length },
            false => Step::LoadBlock { address, length, lend, into: None },
        })
    }

    /// Sends the request of a block to the far end, unless its node went down while the near end was loaded or lent.
    fn send(
        &self,
        below: &mut Below<'_>,
        at: &BlockAt,
        content: impl FnOnce(RemoteAddr, u16) -> Content,
    ) -> Result<(), PartEnd> {
        let import = match below.requester.imports.get(self.far.import) {
            Some(import) if !import.dead => import,
            import => return Err((import.and_then(|i| i.error).unwrap_or(Status::NodeDown), self.far.import)),
        };
        let (far, context) = (import.address(self.far.offset + at.offset), import.context);
        below.requester.page_counters.count(below.ctx, at.node, far.page, !self.get, 1);
        below.requester.submit_part(below.ctx, at.node, at.operation, at.offset, content(far, context));
        Ok(())
    }

    /// Sends the request for a block of a get, whose bytes the owner may copy to `into`.
    fn request(&self, below: &mut Below<'_>, at: &BlockAt, count: u64, into: Option<Loan>) -> Result<(), PartEnd> {
        let length = count as u32;
        self.send(below, at, |at, context| Content { body: Body::ReadBlock { at, context, length }, loan: into })
    }

    /// The near end of a get is lent, or cannot be: then the bytes come in the answer.
    pub(super) fn lent(&self, below: &mut Below<'_>, at: &BlockAt, into: Option<Loan>) -> Result<(), PartEnd> {
        let count = self.block_length(at.offset);
        if into.is_some() {
            // Revoked while the step was in flight: it was lent behind the recall.
            self.near_place(below, at.offset, count)?;
        } else {
            below.ctx.copied(count);
        }
        self.request(below, at, count, into)
    }

    /// The near end of a put is loaded or lent: sends it.
    pub(super) fn loaded(
        &self,
        below: &mut Below<'_>,
        at: &BlockAt,
        epoch: ImportEpoch,
        data: Data,
        unpaid: bool,
    ) -> Result<(), PartEnd> {
        if data.is_lent() {
            // Revoked while the step was in flight: it was lent behind the recall.
            self.near_place(below, at.offset, data.length())?;
        } else if unpaid {
            // It could have been lent, and was not.
            below.ctx.copied(data.length());
        }
        self.send(below, at, |at, context| Content::with(data, |data| Body::WriteBlock { at, context, epoch, data }))
    }

    /// The answer to a get: stores the bytes. A longer block would overwrite other memory, a shorter one would leave a
    /// gap.
    pub(super) fn store(&self, below: &mut Below<'_>, at: &BlockAt, data: Data) -> Result<(), PartEnd> {
        let count = data.length();
        if count != self.block_length(at.offset) {
            return Err((Status::Invalid, self.far.import));
        }
        self.step(below, at, count, false, |address, _| Step::StoreBlock { address, data })
    }

    /// A block ends without an answer: the node that still has the request must copy nothing more to this node's memory
    /// (of a get), nor from it (of a put), since its process uses it for something else from now on.
    pub(super) fn take_back(&self, below: &mut Below<'_>, offset: u64) {
        if !self.get && below.ctx.has(Bug::KeepLoansOfPuts) {
            return;
        }
        let count = self.block_length(offset);
        // Where the grant is gone, the loan went with it.
        let Ok((_, place)) = self.near_place(below, offset, count) else { return };
        match place.pieces {
            None => below.ctx.recall(place.address, count),
            Some(pieces) => pieces.iter().for_each(|piece| below.ctx.recall(piece.address, piece.length.into())),
        }
    }
}
