// SPDX-License-Identifier: MIT OR Apache-2.0
//! State of replicated pages: a page, its work items, and what is in flight for it.

use crate::requester::Source;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use telegraphos_wire::{Body, NodeId, Packet, Status, admin};

/// How stores reach the copies (the mode of REPLICA_SET).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub(super) enum Mode {
    Naive = admin::NAIVE as u16,
    Owner = admin::OWNER as u16,
    Counters = admin::COUNTERS as u16,
    Invalidate = admin::INVALIDATE as u16,
}

/// A work item of a page.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Work {
    /// The request in service of this source: a store, update or atomic.
    Request(NodeId, Packet),
    /// A reflected store, and its parts that are still to be stored: (offset, bytes, value).
    Apply(Packet, Vec<(u32, u8, u64)>),
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReplicaPage {
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
    /// Leave requests in flight. While there are any, no store to the page is accepted.
    pub(super) leaving: u32,
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
    /// Whether this node multicasts the stores of its own processors.
    pub(super) fn orders_stores(&self) -> bool {
        self.home || self.mode == Mode::Naive
    }

    /// Whether the home performs all accesses of this node's processors: a copy that can be invalid.
    pub(super) fn is_served_by_home(&self) -> bool {
        self.mode == Mode::Invalidate && !self.home
    }

    /// The home of the page at this node, `node`; `None` for a page without one.
    pub(super) fn home_at(&self, node: NodeId) -> Option<NodeId> {
        if self.home { Some(node) } else { self.sources.first().map(|source| source.0) }
    }

    /// Whether a guest-memory step of this page is in flight.
    pub(crate) fn has_step_in_flight(&self) -> bool {
        self.busy
    }

    /// Whether stores of this node's processors stall: for the new home, or behind returned ones that it must get
    /// first.
    pub(super) fn stalls_own_stores(&self) -> bool {
        self.moving.is_some() || !self.returned.is_empty()
    }

    /// Whether stores that this node's copy already contains are kept for the new home instead of sent.
    pub(super) fn keeps_stores(&self) -> bool {
        matches!(self.moving, Some(Moving::Following { .. })) || !self.returned.is_empty()
    }

    /// Whether the home of this page can move now.
    pub(super) fn can_move(&self) -> bool {
        matches!(self.mode, Mode::Owner | Mode::Counters) && self.orphaned.is_none() && self.filled && !self.revoked
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

/// The outcome of a packet of class `Reflected` at a copy.
pub(super) enum Arrival {
    /// Acknowledge it with this status.
    Done(Status),
    /// It is a work item now, acknowledged at the item's end.
    Working,
    /// It is acknowledged later; packets that follow it do not wait.
    Deferred,
}

/// A multicast that not all copies have acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Multicast {
    /// The page at this node.
    pub(super) page: u32,
    /// Copies that have not acknowledged it.
    pub(super) waits: BTreeSet<NodeId>,
    /// Those of them that have joined again since: a refusal is of their earlier copy, which had left.
    pub(super) rejoined: BTreeSet<NodeId>,
    /// The request to answer when all copies have acknowledged, and the answer.
    pub(super) answer: Option<(Packet, Body)>,
    /// A copy that may outlive this home has not applied it.
    pub(super) missed: bool,
    /// The multicast is a block for the new copy at this node.
    pub(super) fill: Option<NodeId>,
    /// When copies that have not acknowledged are dropped; `None` until the multicast has been sent to all of them.
    pub(super) deadline: Option<u64>,
}

/// A multicast that waits for link credits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Outgoing {
    pub(super) tag: u32,
    pub(super) body: Body,
    /// Destinations that it has not been sent to, ascending.
    pub(super) to: Vec<NodeId>,
}

/// A request of this node's processors that has been forwarded to the home.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Forward {
    pub(super) packet: Packet,
    /// The home that it was sent to.
    pub(super) home: NodeId,
    pub(super) page: u32,
    /// [`ReplicaPage::moves`] when it was sent.
    pub(super) moves: u32,
    /// Its ordinal among the page's requests that are in flight or returned.
    pub(super) ordinal: u64,
    /// The processor has been answered with a refusal because the page lost its home; the home's answer is discarded.
    pub(super) refused: bool,
}

/// Packets of class `Reflected` that have arrived from one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Arrivals {
    pub(super) packets: VecDeque<Packet>,
    /// The first packet is a work item of its page.
    pub(super) working: bool,
    /// `take_arrivals` is running; this prevents recursion.
    pub(super) taking: bool,
}

/// A request of this node's processors that the home performs. Such requests are answered in issue order, so that the
/// count of stores taken (SPEC E22b) identifies them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct InOrder {
    pub(super) number: u64,
    pub(super) page: u32,
    /// The request and its answer, once it has arrived.
    pub(super) done: Option<(Packet, Body)>,
}
