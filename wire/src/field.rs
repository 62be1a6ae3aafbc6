// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a field of a packet or frame is described: for the dissector and docs/packets.md.

use crate::Class;

/// How a field is read and shown. All integers are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// A decimal number.
    Dec,
    /// A hexadecimal number.
    Hex,
    /// 0 or not.
    Flag,
    /// A node id, [`MULTICAST`](crate::packet::MULTICAST) or [`NO_NODE`](crate::packet::NO_NODE).
    Node,
    /// A [`Class`].
    Class,
    /// A [`Status`](crate::Status).
    Status,
    /// A [`Refusal`](crate::link::Refusal).
    Refusal,
    /// [`Rights`](crate::Rights).
    Rights,
    /// An [`AtomicOp`](crate::AtomicOp).
    Atomic,
    /// Text, padded with NUL.
    Text,
    /// Bytes.
    Bytes,
}

/// One field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name, a word that a display filter can have: `telegraphos.page`. Fields of one name have one meaning and one
    /// way of showing.
    pub name: &'static str,
    /// Bytes from the start of the frame's body or of the packet.
    pub at: usize,
    /// Bytes.
    pub len: usize,
    /// How to read it.
    pub show: Show,
}

/// What follows the fixed part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Nothing.
    None,
    /// A packet.
    Packet,
    /// Node ids of 2 bytes to the end, ascending, at most [`MAX_MEMBERS`](crate::link::MAX_MEMBERS).
    Members,
    /// As many node ids as the field `count` says, ascending, then a packet.
    MembersAndPacket,
    /// As many bytes as the field `length` says, at most [`MAX_BLOCK`](crate::MAX_BLOCK).
    Block,
    /// Text to the end.
    Text,
    /// Bytes to the end.
    Bytes,
}

/// The conditions on an access besides its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Nothing.
    None,
    /// `size` is 1, 2, 4 or 8; `offset` is a multiple of it and the access within one unit.
    Access,
    /// The same, and `size` is 4 or 8.
    Word,
    /// `length` is 1 to [`MAX_BLOCK`](crate::MAX_BLOCK), and the block within one unit from `offset`.
    Block,
    /// The block is 1 to [`MAX_BURST`](crate::MAX_BURST) stores of [`STORE_LEN`](crate::STORE_LEN) bytes: data (8),
    /// offset (2), size (1), and a byte that is ignored; each is as in an [`Check::Access`].
    Burst,
}

/// One kind of frame or packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Its number.
    pub number: u8,
    /// Its name, as in logs.
    pub name: &'static str,
    /// The class of a packet.
    pub class: Option<Class>,
    /// Bytes of the fixed part: a frame's behind the head, a packet's with the header.
    pub len: usize,
    /// The fields in the fixed part that the kind has besides the head or header.
    pub fields: &'static [Field],
    /// The conditions on them.
    pub check: Check,
    /// What follows.
    pub tail: Tail,
}

/// A field.
pub(crate) const fn field(name: &'static str, at: usize, len: usize, show: Show) -> Field {
    Field { name, at, len, show }
}
