// SPDX-License-Identifier: MIT OR Apache-2.0
//! What engines say to each other, and what is wrong with it.

use crate::error::Failure;
use serde::{Deserialize, Serialize};

/// Where a buffer is, in terms of those who move its bytes; the engine only passes it on, but for [`Place::PIECES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place(pub u64);

impl Place {
    /// Of a request: its bytes cannot be fetched, since not all of them can be registered at once. The sender stores
    /// them, piece by piece, wherever the receiver offers room.
    pub const PIECES: u64 = 1 << 62;

    /// Whether the bytes of a request are stored piece by piece.
    pub fn is_in_pieces(self) -> bool {
        self.0 & Place::PIECES != 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Header {
    /// Number of the thread that it is from.
    pub from: u32,
    /// Number of the thread that it is for.
    pub to: u32,
    pub tag: u32,
    /// Its bytes.
    pub length: u64,
}

/// How a message in a slot ended at the receiver. With it the slot is the sender's again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Answer {
    /// The receiving thread has it.
    Taken,
    /// There is no such thread, or it ended first.
    NoThread,
    /// It was withdrawn first.
    Withdrawn,
    /// Its bytes could not be moved.
    Failed,
}

impl Answer {
    /// The answer to how a message has ended at the receiver.
    pub(crate) fn to(outcome: Result<(), Failure>) -> Answer {
        match outcome {
            Ok(()) => Answer::Taken,
            Err(Failure::NoThread) => Answer::NoThread,
            Err(Failure::Withdrawn) => Answer::Withdrawn,
            Err(_) => Answer::Failed,
        }
    }

    /// Why the send ends without the message being taken.
    pub(crate) fn failure(self) -> Option<Failure> {
        match self {
            Answer::Taken => None,
            Answer::NoThread => Some(Failure::NoThread),
            Answer::Withdrawn => Some(Failure::Withdrawn),
            Answer::Failed => Some(Failure::Failed),
        }
    }
}

/// What an engine says to another. Packets of one process to another arrive once, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Packet {
    /// A message, or fragment of one, whose bytes are in the slot already.
    Eager {
        slot: u16,
        header: Header,
        /// Which of its fragments, from 0. Fragments of a message follow each other.
        fragment: u16,
    },
    /// A message whose bytes are still at the sender.
    Request {
        slot: u16,
        header: Header,
        /// Where its bytes are.
        at: Place,
    },
    /// The receiver has a place for the bytes of the request in a slot of the sender's; for the next ones, if they are
    /// stored piece by piece.
    Clear {
        slot: u16,
        /// Where they are stored to.
        at: Place,
        length: u64,
    },
    /// They are there, or could not be stored. The slot is the sender's again, unless that was a piece: then
    /// [`Packet::Clear`] follows for the next one, or [`Packet::Done`].
    Stored { slot: u16, whole: bool },
    /// The sender withdraws the request in a slot, unless it is matched already.
    Withdraw { slot: u16 },
    /// The message in a slot of the sender's has ended.
    Done { slot: u16, answer: Answer },
}

/// What another process has said against the rules. It is treated as gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Violation {
    /// A slot that there is not.
    #[error("slot {slot}: expected less than {slots}")]
    NoSlot {
        slot: u16,
        /// Slots that there are.
        slots: u16,
    },
    /// A slot that has a message already.
    #[error("slot {0} has a message that has not ended")]
    SlotInUse(u16),
    /// A slot that has none, or one that this cannot be said of.
    #[error("slot {0} has no message of which that can be said")]
    SlotWithoutMessage(u16),
    /// Lengths that no message has.
    #[error("a message of {length} bytes: expected at most {most} here")]
    Length {
        /// Its bytes.
        length: u64,
        /// The most that there may be.
        most: u64,
    },
    /// A fragment that does not follow the one before.
    #[error("fragment {fragment}: expected {expected} of the message before, or 0 of another")]
    Fragment { fragment: u16, expected: u16 },
}
