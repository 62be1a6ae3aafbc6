// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is under way, and what was asked of the engines.

use crate::common::LaunchStep;
use telegraphos_msg_core::{Endpoint, Failure, Packet, Pattern, Place, ReceiveId, Received, SendId, TransferId};

/// What a process does with another one, a step at a time.
pub(crate) enum Item {
    /// Stores a word into the other's inbox.
    Store { at: u64, word: u64 },
    /// Appends to the other's queue.
    Enqueue(u64),
    /// Copies bytes from a place of the inbox into the buffer of a receive.
    Take { slot: u16, receive: usize, offset: u64, length: u32 },
}

/// A copy by a board, for an engine.
pub(crate) struct Transfer {
    pub(crate) who: usize,
    pub(crate) id: TransferId,
    pub(crate) length: u64,
    /// Launch steps not yet made, last first.
    pub(crate) steps: Vec<LaunchStep>,
    pub(crate) slot: u8,
    pub(crate) cookie: u64,
}

/// A packet on its way, and the send that it is of.
#[derive(Debug)]
pub(crate) struct Flying {
    pub(crate) packet: Packet,
    pub(crate) send: Option<usize>,
}

#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) from: Endpoint,
    pub(crate) to: Endpoint,
    pub(crate) tag: u32,
    pub(crate) length: u64,
    pub(crate) id: SendId,
    pub(crate) place: Option<Place>,
    /// A withdrawal has been tried.
    pub(crate) withdrawn: bool,
    pub(crate) outcome: Option<Result<(), Failure>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) at: Endpoint,
    pub(crate) pattern: Pattern,
    pub(crate) capacity: u64,
    pub(crate) place: Place,
    pub(crate) id: ReceiveId,
    /// Blocks that its board had stored when it began.
    pub(crate) blocks: usize,
    /// Bytes that are still to be taken from slots.
    pub(crate) takes: usize,
    pub(crate) outcome: Option<Result<Received, Failure>>,
    /// The send that a plain list would have matched it with.
    pub(crate) expected: Option<usize>,
    /// It has ended, its bytes were as they must be, and its memory is free.
    pub(crate) checked: bool,
}
