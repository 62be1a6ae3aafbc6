// SPDX-License-Identifier: MIT OR Apache-2.0
//! A replicated page, and its work items.

use crate::ctx::Ctx;
use crate::requester::Source;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use telegraphos_wire::{NodeId, Packet, RemoteAddr, STREAM_BLOCK, Status, admin};

/// How stores reach the copies (the mode of REPLICA_SET).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u16)]
pub(super) enum Mode {
    #[default]
    Naive = admin::NAIVE as u16,
    Owner = admin::OWNER as u16,
    Counters = admin::COUNTERS as u16,
    Invalidate = admin::INVALIDATE as u16,
}

/// A work item of a page.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Work {
    /// The request in service of this source, which the responder has: a store, update or atomic.
    Request(NodeId),
    /// A reflected store, and those of its bytes that are still to be stored behind the step in flight, one bit for
    /// each.
    Apply(Packet, u8),
    /// A block of this copy's initial content.
    Fill(Packet),
    /// Read a block for the new copy at this node, from this offset.
    Read(NodeId, u32),
    /// A copy requests to become the home.
    Move(Packet),
    /// This copy is to become the home. All earlier stores have been sent to the present home when this item runs.
    Take,
    /// An item that was cancelled while its step was in flight; the step's result is ignored.
    Cancelled,
}

/// One replicated page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ReplicaPage {
    /// Export page of this node.
    pub(super) page: u32,
    pub(super) mode: Mode,
    /// Generation of the page's grant on this node.
    pub(super) generation: u64,
    /// The home's page. In mode naive, the pages of all other nodes. Empty if this node is the home.
    pub(super) sources: BTreeSet<Source>,
    /// This node is the home; in mode naive there is none.
    pub(super) home: bool,
    /// The whole page has valid content.
    pub(super) filled: bool,
    /// The page has lost its home, for this reason.
    pub(super) orphaned: Option<Status>,
    pub(super) moving: Option<Moving>,
    /// How many times this node has seen the home move.
    pub(super) moves: u32,
    /// Stores of this node's processors that a moving home refused, by ordinal; the new home gets them.
    pub(super) returned: BTreeMap<u64, Packet>,
    /// In mode invalidate, at a valid copy: the driver must unmap the page; then the deferred acknowledgements are
    /// sent.
    pub(super) invalid: bool,
    pub(super) deferred: Vec<Packet>,
    /// The home that this copy is joining.
    pub(super) joining: Option<Source>,
    /// Leave requests in flight.
    pub(super) leaving: u32,
    /// The homes have answered them all.
    pub(super) left: bool,
    /// Admin slots of the REPLICA_SET or REPLICA_MOVE and of the REPLICA_CLEAR in progress.
    pub(super) setting: Option<u32>,
    pub(super) clearing: Option<u32>,
    /// Nodes with copies of this page, and their incarnations.
    pub(super) copies: BTreeMap<NodeId, u64>,
    /// Copies that wait to be sent a block, and the block's offset.
    pub(super) filling: BTreeMap<NodeId, u32>,
    /// When this copy declares its home silent, in microseconds of the board's clock.
    pub(super) home_deadline: Option<u64>,
    /// Work items in order; a step for the first is in flight if `busy`.
    pub(super) work: VecDeque<Work>,
    pub(super) busy: bool,
    /// The work item in flight belongs to a home that has been lost; its result is discarded.
    pub(super) stale: bool,
    /// Revoked; the page is removed when its step in flight is done.
    pub(super) revoked: bool,
}

impl ReplicaPage {
    /// Whether it is about to be an ordinary page: no store to it is accepted.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving > 0 || self.left
    }

    /// The address of a byte of this node's page.
    pub(super) fn address(&self, offset: u32) -> RemoteAddr {
        RemoteAddr { page: self.page, offset, generation: self.generation }
    }

    /// The nodes with copies of this page, ascending.
    pub(super) fn members(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.copies.keys().copied()
    }

    /// The home that this page copies; `None` at the home.
    pub(super) fn source(&self) -> Option<Source> {
        self.sources.first().copied()
    }

    /// Whether this node multicasts the stores of its own processors.
    pub(super) fn orders_stores(&self) -> bool {
        self.home || self.mode == Mode::Naive
    }

    /// Whether the home performs all accesses of this node's processors: a copy that can be invalid.
    pub(super) fn is_served_by_home(&self) -> bool {
        self.mode == Mode::Invalidate && !self.home
    }

    /// Whether this is a copy in mode invalidate that processors may have mapped.
    pub(super) fn is_valid_copy(&self) -> bool {
        self.mode == Mode::Invalidate && self.filled
    }

    /// The home of the page at this node, `node`; `None` for a page without one.
    pub(super) fn home_at(&self, node: NodeId) -> Option<NodeId> {
        if self.home { Some(node) } else { self.source().map(|source| source.node) }
    }

    /// Completes the REPLICA_SET or REPLICA_MOVE in progress, if there is one.
    pub(super) fn complete_setting(&mut self, ctx: &mut Ctx, status: Status) {
        if let Some(slot) = self.setting.take() {
            ctx.complete_status(slot, status);
        }
    }

    /// Takes the work items that `ends` selects, in order, but for that with a step in flight.
    pub(super) fn take_work(&mut self, ends: impl Fn(&Work) -> bool) -> Vec<Work> {
        let in_flight = usize::from(self.busy).min(self.work.len());
        let (ended, left): (Vec<Work>, Vec<Work>) = self.work.drain(in_flight..).partition(ends);
        self.work.extend(left);
        ended
    }

    /// Drops the reads of blocks for a copy, and returns their number. The result of a step in flight always removes
    /// the first item, so that stays.
    pub(super) fn drop_reads(&mut self, node: NodeId) -> usize {
        let reads_for_copy = |work: &Work| matches!(work, Work::Read(to, _) if *to == node);
        let mut dropped = 0;
        if let Some(first) = self.work.front_mut().filter(|first| self.busy && reads_for_copy(first)) {
            *first = Work::Cancelled;
            dropped += 1;
        }
        let before = self.work.len();
        self.work.retain(|work| !reads_for_copy(work));
        dropped + before - self.work.len()
    }

    /// The link is lost: drops the packets of the home, which no acknowledgement can reach.
    pub(super) fn drop_arrived(&mut self) {
        if let Some(first @ (Work::Apply(..) | Work::Fill(_))) = self.work.front_mut().filter(|_| self.busy) {
            *first = Work::Cancelled;
        }
        self.work.retain(|work| !matches!(work, Work::Apply(..) | Work::Fill(_)));
        self.deferred.clear();
    }

    /// Removes the copies that a store has been sent to, since it invalidates them. A copy that is still being filled
    /// stays: it applies the store like an update, before the last block of its content. Returns whether any was
    /// removed.
    pub(super) fn remove_invalidated(&mut self) -> bool {
        if self.mode != Mode::Invalidate {
            return false;
        }
        let (work, waiting) = (&self.work, &self.filling);
        let filling = |node: NodeId| {
            waiting.contains_key(&node) || work.iter().any(|work| matches!(work, Work::Read(to, _) if *to == node))
        };
        let before = self.copies.len();
        self.copies.retain(|node, _| filling(*node));
        self.copies.len() != before
    }

    /// The offset of the block behind that at `offset`, if it is not the last.
    pub(super) fn next_block(offset: u32) -> Option<u32> {
        let next = offset + STREAM_BLOCK as u32;
        (u64::from(next) < telegraphos_wire::UNIT).then_some(next)
    }
}

/// The state of a page while its home moves. Stores of this node's processors wait meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Moving {
    /// At the copy that becomes the home. `released`: the old home has sent everything.
    Taking { released: bool },
    /// At the old home. `packet` is the Move request, to be answered once the new home has taken over.
    Giving { to: Source, packet: Option<Packet> },
    /// At another copy, or at the old home when it has handed over. `announced`: the new home has confirmed that it is
    /// the home.
    Following { announced: bool },
}

/// The outcome of a packet of class `Reflected` at a copy that is no work item.
pub(super) enum Arrival {
    /// Acknowledge it with this status.
    Done(Status),
    /// It is acknowledged later; packets that follow it do not wait.
    Deferred,
}
