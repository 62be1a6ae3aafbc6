// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an engine wants done, and what it reports.

use crate::address::{Endpoint, Process};
use crate::error::Failure;
use crate::packet::{Packet, Place};
use crate::store::Id;

/// A send, until it is [`Action::Sent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SendId(pub(crate) Id);

impl SendId {
    /// Its place among all sends that have not ended, below [`Config::sends`](crate::Config::sends): another one has it
    /// when this has ended.
    pub fn place(self) -> usize {
        self.0.index as usize
    }
}

/// A receive, until it is [`Action::Received`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReceiveId(pub(crate) Id);

impl ReceiveId {
    /// Its place among all receives, as [`SendId::place`].
    pub fn place(self) -> usize {
        self.0.index as usize
    }
}

/// A transfer by a board, until [`Engine::transferred`](crate::Engine::transferred), or what prepares one, until
/// [`Engine::offered`](crate::Engine::offered).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(pub(crate) Direction);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Direction {
    /// Of a message that is received.
    Fetch(Id),
    /// The same, of which a piece is stored.
    Offer(Id),
    Store(Id),
}

/// Bytes of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    pub send: SendId,
    /// Where they begin in it.
    pub offset: u64,
    pub length: u32,
}

/// A message that has been received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Received {
    /// The thread that sent it.
    pub from: Endpoint,
    pub tag: u32,
    /// Its bytes. Only as many as the receive has room for are in its buffer.
    pub length: u64,
}

/// What an engine wants done, in this order as far as one other process is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Puts the bytes of a [`Packet::Eager`] into its slot at another process, and then sends it the packet.
    Post {
        to: Process,
        packet: Packet,
        /// What is to be in the slot; perhaps no byte. None with every other packet.
        bytes: Option<Piece>,
    },
    /// Copies bytes from another's slot into a receive's buffer. They are there until the next action.
    Take {
        receive: ReceiveId,
        from: Process,
        slot: u16,
        /// Where they go in the buffer.
        offset: u64,
        length: u32,
    },
    /// The board fetches the bytes of a message into a receive's buffer.
    Fetch {
        /// To be said at its end.
        transfer: TransferId,
        receive: ReceiveId,
        /// The process that has them.
        from: Process,
        at: Place,
        length: u64,
    },
    /// The board stores the bytes of a send into another's buffer.
    Store {
        /// To be said at its end.
        transfer: TransferId,
        send: SendId,
        to: Process,
        at: Place,
        /// Where they begin in the send.
        offset: u64,
        length: u64,
    },
    /// A piece of a message is to be stored into a receive's buffer: as much of it as can be is made accessible to the
    /// sender.
    Offer {
        /// To be said with where that is.
        transfer: TransferId,
        receive: ReceiveId,
        /// The process that stores it.
        to: Process,
        /// Where it begins in the buffer.
        offset: u64,
        /// The most that there is to be stored.
        length: u64,
    },
    /// A receive has ended. After [`Failure::Gone`] the other's board may still store to its place, if it had a
    /// request to do so: the place is to be withdrawn before the buffer is used.
    Received { receive: ReceiveId, outcome: Result<Received, Failure> },
    /// A send has ended: without a failure, the receiving thread has the message (s2's end-to-end significance). After
    /// [`Action::Store`] the bytes are in the receive's buffer, and [`Packet::Stored`] is on its way: if the connection
    /// ends before it has arrived, the receive ends with [`Failure::Gone`] regardless.
    Sent {
        send: SendId,
        /// Why not.
        outcome: Result<(), Failure>,
    },
}
