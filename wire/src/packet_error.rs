// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why bytes are not a packet.

use crate::{MAX_BLOCK, MAX_BURST, PROTOCOL_VERSION, STORE_LEN};

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// The length is not that of the packet's kind.
    #[error("packet of {found} bytes: its kind takes {expected}")]
    Length {
        /// Bytes found.
        found: usize,
        /// Bytes expected.
        expected: usize,
    },
    /// Another protocol version.
    #[error("packet version {0}: expected {PROTOCOL_VERSION}")]
    Version(u8),
    /// Unknown kind.
    #[error("packet kind {0} is unknown")]
    Kind(u8),
    /// Access size that is not 1, 2, 4 or 8.
    #[error("access size {0}: expected 1, 2, 4 or 8")]
    Size(u8),
    /// The access does not lie, aligned, within one export unit.
    #[error("offset {0:#x}: expected an aligned access within one unit")]
    Offset(u32),
    /// Unknown atomic operation.
    #[error("atomic operation {0} is unknown")]
    Atomic(u8),
    /// A block of no bytes, of more than [`MAX_BLOCK`], or beyond its export unit.
    #[error("block of {length} bytes at {offset:#x}: expected 1 to {MAX_BLOCK} within one unit")]
    Block {
        /// Bytes from the start of the unit.
        offset: u32,
        /// Its length.
        length: u32,
    },
    /// A burst of no stores, of more than [`MAX_BURST`], or with a part of one.
    #[error("burst of {bytes} bytes: expected 1 to {MAX_BURST} stores of {STORE_LEN}")]
    Burst {
        /// Bytes of all stores.
        bytes: usize,
    },
    /// An acknowledgement of no request.
    #[error("acknowledgement of no request: expected at least one tag")]
    Tags,
}
