// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that wait for a reply until their deadline, before and after they are sent.

use super::Source;
use super::deadlines::{Deadlines, Limit};
use crate::Token;
use crate::ctx::Ctx;
use crate::keyed::{Key, Keyed};
use telegraphos_wire::{NodeId, Packet, RemoteAddr};

/// The kind of a pending request.
#[derive(Clone, Debug, Hash)]
pub(crate) enum RequestKind {
    Load {
        token: Token,
        import: u16,
        size: u8,
    },
    Lookup {
        slot: u32,
    },
    /// Request of receive credits for an import that this admin slot is opening: slot, import.
    Reserve {
        opens: (u32, u16),
    },
    /// Return of receive credits of the queue there.
    Return {
        node: NodeId,
        at: RemoteAddr,
    },
    Replica(ReplicaRequest),
}

/// A request about a replicated export page of this node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ReplicaRequest {
    /// Become a copy.
    Join { page: u32, source: Source },
    /// Stop being a copy.
    Leave { page: u32 },
    /// Become the home.
    Move { page: u32 },
    /// Stay a copy when the home moves. `packet` is the old home's announcement; `None` if this node is the old home.
    Keep { page: u32, source: Source, packet: Option<Packet> },
}

/// A request that waits for a reply until its deadline, before and after it is sent.
#[derive(Clone, Debug, Hash)]
pub(super) struct PendingRequest {
    pub(super) node: NodeId,
    limit: Limit,
    deadline: u64,
    pub(super) kind: RequestKind,
}

/// Time limit for the reply to a request: which one, and microseconds. Replica requests have a longer limit: no
/// processor stalls for them, and a node that is not scheduled for longer than a load may take is not silent. A home
/// that moves first waits for its copies, then for the new home.
fn time_limit(ctx: &Ctx, kind: &RequestKind) -> (Limit, u64) {
    match kind {
        RequestKind::Replica(ReplicaRequest::Move { .. }) => (Limit::Move, ctx.config.replica_limit.saturating_mul(3)),
        RequestKind::Replica(_) => (Limit::Replica, ctx.config.replica_limit),
        _ => (Limit::Load, ctx.config.load_limit),
    }
}

/// The pending requests of the board.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct PendingRequests {
    pub(super) table: Keyed<PendingRequest>,
    pub(super) deadlines: Deadlines,
}

impl PendingRequests {
    /// Adds a request, whose time begins.
    pub(super) fn insert(&mut self, ctx: &Ctx, node: NodeId, kind: RequestKind) -> Key {
        let (limit, time) = time_limit(ctx, &kind);
        let deadline = ctx.now.saturating_add(time);
        let number = self.table.insert(PendingRequest { node, limit, deadline, kind });
        self.deadlines.insert(limit, deadline, number);
        number
    }

    /// Removes a request and its deadline.
    pub(super) fn take(&mut self, number: Key) -> Option<PendingRequest> {
        let request = self.table.remove(number)?;
        self.deadlines.remove(request.limit, request.deadline, number);
        Some(request)
    }
}
