// SPDX-License-Identifier: MIT OR Apache-2.0
#![forbid(unsafe_code)]
//! A TCP connection whose long writes go through a ring in the receiver's memory, as pure state machines, one for each
//! end of each direction (SPEC item 36).
//!
//! ```text
//!   Frame      a byte of the connection that says what follows      frame.rs
//!   Outgoing   what is written: framed, or as a record of the ring  outgoing.rs
//!   Incoming   what is read, from both                              incoming.rs
//!   read, peek, write   by any holder of the connection and ring    read.rs, write.rs
//! ```
//!
//! The connection of the kernel stays, and stays in command: a direction of it begins *raw*, as without us. From
//! some byte on, on which both ends have agreed elsewhere, it is *framed*. Each frame begins with one byte, a
//! [`Frame`]: bytes that follow it, or a record that lies in the ring already when the byte is written. So the
//! connection is readable exactly if there is something to read, and has the order of everything, its end and its
//! failures; and when the ring is full, bytes follow in the connection, and the kernel delays the writer. `select`,
//! `poll` and `epoll` need not know about us.
//!
//! A frame's head is a single byte, since the kernel takes any part of what it is given: a head of several bytes could
//! be sent in part, for data that the program then does not write. Of a frame whose data has been taken in part only,
//! the rest is *owed*: what is written next belongs to it.
//!
//! # The ring
//!
//! A position counts bytes since the beginning, modulo the ring's size for the place. A record is a word with the
//! number of bytes, and these; it begins at a multiple of [`ALIGN`] and does not wrap: where less than an eighth of the
//! ring is left before its end, it begins at the start. The receiver says up to which position it has read.
//!
//! All state is plain data, which processes can share in memory. A violation of the rules by the other end ends the
//! connection; nothing it does can make an end read outside the ring.

#[cfg(feature = "bugs")]
mod bugs;
mod frame;
mod incoming;
mod outgoing;
mod read;
mod ring;
mod write;

#[cfg(feature = "bugs")]
pub use bugs::Bug;
pub use frame::Frame;
pub use incoming::{Incoming, Next, Unframed};
pub use outgoing::{Outgoing, Piece, Pieces, Room};
pub use read::{Read, Reading, peek, read};
pub use ring::{ALIGN, HEAD, SMALLEST, longest};
pub use write::{Record, Writing, write};

/// What the other end has done against the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A frame that does not exist.
    #[error("frame {0}: expected 0 to {last}", last = Frame::LAST)]
    Frame(u8),
    /// A record whose length is none.
    #[error("a record of {length} bytes: expected 1 to {most}")]
    Record {
        length: u64,
        /// That of the longest that fits there.
        most: u64,
    },
    /// A record where this end has no ring.
    #[error("a record without a ring")]
    NoRing,
    /// The receiver claims to have read what has not been written, or to have unread what it has read.
    #[error("read up to {head}, of what was written from {tail} less {size} to {tail}")]
    Head {
        head: u64,
        tail: u64,
        /// The size of the ring.
        size: u64,
    },
}

/// Why a direction could not be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure<E> {
    Connection(E),
    /// The other end has broken the rules.
    Violation(Violation),
}

impl<E> From<E> for Failure<E> {
    fn from(error: E) -> Failure<E> {
        Failure::Connection(error)
    }
}
