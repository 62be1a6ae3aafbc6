// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one byte of a framed connection says.

use crate::Violation;

/// Bytes up to which each length has a code of its own.
const SHORT: u32 = 128;
/// The code of one byte.
const FIRST_SHORT: u8 = 2;
/// The code of the first length above `SHORT`, which is twice that; each code above it doubles.
const FIRST_LONG: u8 = 130;

/// What follows a byte of a framed connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// From here on the connection is raw.
    Raw,
    /// The next record of the ring.
    Record,
    /// So many bytes: 1 to 128, or a power of two up to 4 MiB.
    Bytes(u32),
}

impl Frame {
    /// The largest code.
    pub const LAST: u8 = 144;
    /// The most bytes of a frame.
    pub const MOST: u32 = SHORT << (Frame::LAST - FIRST_LONG + 1);

    /// The frame of a code.
    pub fn decode(code: u8) -> Result<Frame, Violation> {
        match code {
            0 => Ok(Frame::Raw),
            1 => Ok(Frame::Record),
            FIRST_SHORT..FIRST_LONG => Ok(Frame::Bytes(u32::from(code - FIRST_SHORT) + 1)),
            FIRST_LONG..=Frame::LAST => Ok(Frame::Bytes(SHORT << (code - FIRST_LONG + 1))),
            _ => Err(Violation::Frame(code)),
        }
    }

    pub fn code(self) -> u8 {
        match self {
            Frame::Raw => 0,
            Frame::Record => 1,
            // At most 127, and at most 15.
            Frame::Bytes(length) if length <= SHORT => FIRST_SHORT + (length.max(1) - 1) as u8,
            Frame::Bytes(length) => FIRST_LONG - 1 + (length / SHORT).ilog2() as u8,
        }
    }

    /// The longest frame of at most so many bytes, which are at least one.
    pub fn within(length: u64) -> Frame {
        match u32::try_from(length).unwrap_or(Frame::MOST).clamp(1, Frame::MOST) {
            short if short <= SHORT => Frame::Bytes(short),
            // The next power of two above `SHORT` is twice that.
            long => Frame::Bytes(1 << long.ilog2()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_is_one_frame() {
        for code in 0..=u8::MAX {
            match Frame::decode(code) {
                Ok(frame) => assert_eq!((frame.code(), code <= Frame::LAST), (code, true)),
                Err(violation) => assert_eq!((violation, code > Frame::LAST), (Violation::Frame(code), true)),
            }
        }
        assert_eq!(Frame::decode(Frame::LAST), Ok(Frame::Bytes(Frame::MOST)));
        assert_eq!(Frame::MOST, 4 << 20);
    }

    #[test]
    fn within_is_the_longest() {
        for length in (1..1000).chain([4095, 4096, 4097, 1 << 22, (1 << 22) + 1, u64::MAX]) {
            let lengths = (0..=Frame::LAST).filter_map(|code| match Frame::decode(code) {
                Ok(Frame::Bytes(bytes)) if u64::from(bytes) <= length => Some(bytes),
                _ => None,
            });
            assert_eq!(Frame::within(length), Frame::Bytes(lengths.max().unwrap()), "{length}");
        }
    }
}
