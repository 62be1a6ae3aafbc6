// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why bytes are not a packet.

use crate::{MAX_BLOCK, PROTOCOL_VERSION};

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketError {
    /// The length is not that of the packet's kind.
    Length {
        /// Bytes found.
        found: usize,
        /// Bytes expected.
        expected: usize,
    },
    /// Another protocol version.
    Version(u8),
    /// Unknown kind.
    Kind(u8),
    /// Access size that is not 1, 2, 4 or 8.
    Size(u8),
    /// The access does not lie, aligned, within one export unit.
    Offset(u32),
    /// Unknown atomic operation.
    Atomic(u8),
    /// A block of no bytes, of more than [`MAX_BLOCK`], or beyond its export unit.
    Block {
        /// Bytes from the start of the unit.
        offset: u32,
        /// Its length.
        length: u32,
    },
    /// An acknowledgement of no request.
    Tags,
}

impl core::fmt::Display for PacketError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            PacketError::Length { found, expected } => {
                write!(f, "packet of {found} bytes: its kind takes {expected}")
            }
            PacketError::Version(v) => {
                write!(f, "packet version {v}: expected {PROTOCOL_VERSION}")
            }
            PacketError::Kind(k) => write!(f, "packet kind {k} is unknown"),
            PacketError::Size(s) => write!(f, "access size {s}: expected 1, 2, 4 or 8"),
            PacketError::Offset(o) => {
                write!(f, "offset {o:#x}: expected an aligned access within one unit")
            }
            PacketError::Atomic(op) => write!(f, "atomic operation {op} is unknown"),
            PacketError::Block { offset, length } => {
                write!(f, "block of {length} bytes at {offset:#x}: expected 1 to {MAX_BLOCK} within one unit")
            }
            PacketError::Tags => f.write_str("acknowledgement of no request: expected at least one tag"),
        }
    }
}

impl core::error::Error for PacketError {}
