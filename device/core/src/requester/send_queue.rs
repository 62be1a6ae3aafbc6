// SPDX-License-Identifier: MIT OR Apache-2.0
//! The send queue of an import of a notification queue: state only, see `enqueue`.

use std::collections::VecDeque;
use telegraphos_wire::{ImportEpoch, NodeId, RemoteAddr};

/// An accepted element that is not sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WaitingElement {
    /// Number of requests that were accepted for its node before it.
    pub(super) behind: u64,
    pub(super) at: RemoteAddr,
    pub(super) size: u8,
    pub(super) data: u64,
}

/// The elements of one import of a queue. A send queue outlives its import: closing an import does not wait for the
/// receiver, and accepted elements are still sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SendQueue {
    pub(super) node: NodeId,
    pub(super) context: u16,
    pub(super) queue: RemoteAddr,
    /// The import; `None` when it is closed.
    pub(super) import: Option<u16>,
    /// The epoch of its elements.
    pub(super) epoch: ImportEpoch,
    /// Receive credits of the import; `None` while the import is being opened.
    pub(super) receive_credits: Option<u32>,
    /// Elements in flight.
    pub(super) unacknowledged: u32,
    pub(super) waiting: VecDeque<WaitingElement>,
    /// It is among the send queues that get turns ([`Peer::enqueuers`](super::Peer::enqueuers)).
    pub(super) has_turn: bool,
}
