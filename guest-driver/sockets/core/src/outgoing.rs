// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end that writes.

use crate::Violation;
#[cfg(feature = "bugs")]
use crate::bugs::Bug;
use crate::frame::Frame;
use crate::ring::{self, HEAD};
use smallvec::SmallVec;

/// Pieces that are given to the kernel at once, at most: every length up to 1 MiB takes fewer.
const PIECES: usize = 16;

/// Bytes that are given to the kernel together: perhaps the code of a frame, and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The code, if a frame begins.
    pub code: Option<u8>,
    /// Bytes of data behind it.
    pub length: u64,
}

/// What is given to the kernel at once.
pub type Pieces = SmallVec<[Piece; PIECES]>;

/// Room for a record in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Where it begins, from the ring's start.
    pub offset: u64,
    /// Most bytes of data.
    pub length: u64,
    position: u64,
}

/// The writing end of a framed direction.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Outgoing {
    /// Bytes that belong to the last frame and have not been written.
    owed: u64,
    /// Up to where the ring has been written.
    tail: u64,
    /// Bytes of the ring; 0 if there is none.
    size: u64,
    #[cfg(feature = "bugs")]
    bug: Option<Bug>,
}

impl Outgoing {
    /// One that writes to a ring of `size` bytes. `None` if none has so many: at least
    /// [`SMALLEST`](crate::SMALLEST), at most 4 GiB, a multiple of [`ALIGN`](crate::ALIGN).
    pub fn new(size: u64) -> Option<Outgoing> {
        ring::is_size(size).then(|| Outgoing { size, ..Outgoing::default() })
    }

    /// Its state, for memory that processes share.
    pub fn words(&self) -> [u64; 3] {
        [self.owed, self.tail, self.size]
    }

    /// The end with a state from such memory, where anything may have been written. `None` if no end has this state:
    /// with any other, nothing outside of the ring is written.
    pub fn of([owed, tail, size]: [u64; 3]) -> Option<Outgoing> {
        let valid = (size == 0 || ring::is_size(size)) && tail <= ring::FARTHEST && owed <= Frame::MOST.into();
        valid.then(|| Outgoing { owed, tail, size, ..Outgoing::default() })
    }

    /// Bytes of its ring; 0 if there is none.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// With a deliberate bug.
    #[cfg(feature = "bugs")]
    pub fn with(self, bug: Option<Bug>) -> Outgoing {
        Outgoing { bug, ..self }
    }

    /// How `length` bytes are given to the kernel: as these pieces, which have at least one of them and may have fewer.
    pub fn pieces(&self, length: u64) -> Pieces {
        let mut pieces = Pieces::new();
        let mut left = length;
        if self.owed > 0 {
            let length = self.owed.min(left);
            pieces.push(Piece { code: None, length });
            left -= length;
        }
        while left > 0 && pieces.len() < PIECES {
            let frame = Frame::within(left);
            let Frame::Bytes(length) = frame else { break };
            pieces.push(Piece { code: Some(frame.code()), length: length.into() });
            left -= u64::from(length);
        }
        pieces
    }

    /// The kernel has taken the first `bytes` bytes of these pieces, codes included. Returns how many of them are data.
    pub fn accepted(&mut self, pieces: &[Piece], mut bytes: u64) -> u64 {
        let mut data = 0;
        for piece in pieces {
            if bytes == 0 {
                break;
            }
            if piece.code.is_some() {
                bytes -= 1;
                self.owed = piece.length;
            }
            let taken = piece.length.min(bytes);
            (data, bytes) = (data + taken, bytes - taken);
            self.owed = self.owed.saturating_sub(taken);
        }
        #[cfg(feature = "bugs")]
        if self.bug == Some(Bug::ForgetOwed) {
            self.owed = 0;
        }
        data
    }

    /// Whether a frame may begin: nothing is owed of the one before.
    pub fn may_begin(&self) -> bool {
        self.owed == 0
    }

    /// Room for a record in the ring, of which the receiver has read up to `head`; `None` if there is less than `least`
    /// bytes, or a frame is unfinished.
    pub fn room(&self, head: u64, least: u64) -> Result<Option<Room>, Violation> {
        if self.size == 0 {
            return Ok(None);
        }
        let (tail, size) = (self.tail, self.size);
        if head > tail || tail - head > size {
            return Err(Violation::Head { head, tail, size });
        }
        #[cfg(feature = "bugs")]
        let head = if self.bug == Some(Bug::IgnoreHead) { tail } else { head };
        let position = ring::begin(tail, size);
        let free = size.saturating_sub(position - head).saturating_sub(HEAD);
        let length = ring::most(position, size).min(free);
        let fits = self.owed == 0 && length >= least.max(1);
        Ok(fits.then_some(Room { offset: position % size, length, position }))
    }

    /// A record of `length` bytes has been written there, and its code given to the kernel.
    pub fn recorded(&mut self, room: Room, length: u64) {
        self.tail = room.position + HEAD + length;
    }

    /// Whether there is a ring.
    pub fn has_ring(&self) -> bool {
        self.size > 0
    }

    /// The ring is not written any more: it is gone.
    pub fn forget_ring(&mut self) {
        self.size = 0;
    }
}
