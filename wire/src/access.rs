// SPDX-License-Identifier: MIT OR Apache-2.0
//! What holds of every store and load of a word.

use crate::packet_error::PacketError;

/// Checks that an access has 1, 2, 4 or 8 bytes and lies, aligned, within one unit.
#[inline]
pub(crate) fn check_access(offset: u32, size: u8) -> Result<(), PacketError> {
    if !matches!(size, 1 | 2 | 4 | 8) {
        return Err(PacketError::Size(size));
    }
    if offset % u32::from(size) != 0 || u64::from(offset) + u64::from(size) > crate::UNIT {
        return Err(PacketError::Offset(offset));
    }
    Ok(())
}
