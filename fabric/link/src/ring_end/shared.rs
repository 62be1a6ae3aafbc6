// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a ring to a board of another process: frames as bytes in a [`Ring`]. The peer may be hostile: what is no
//! index, or no frame, is an error.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use telegraphos_wire::link::{Frame, MAX_LEN};

use super::{Beside, Passing, RingEnd};
use crate::client::OUT_LIMIT;
use crate::input::{BATCH, Input};
use crate::ring::{Ring, Taken};

/// See the module.
#[derive(Debug)]
pub struct Shared {
    ring: Ring,
    input: Input,
    output: Vec<u8>,
    /// Bytes of `output` that the ring has taken.
    taken: usize,
    /// The last receive has ended with its limit.
    unfinished: bool,
    ended: bool,
}

impl Shared {
    /// Opens an end: the socket for wake-ups, the memory, the bytes of each direction, and the one in which this end
    /// writes. Fails if the memory is not that of such a ring.
    pub fn open(socket: OwnedFd, memory: BorrowedFd<'_>, bytes: u32, side: u8) -> io::Result<Shared> {
        let ring = Ring::open(socket, memory, bytes, side, 0)?;
        Ok(Shared { ring, input: Input::new(), output: Vec::new(), taken: 0, unfinished: false, ended: false })
    }

    /// The two ends for boards of other processes: their sockets, and the memory.
    pub fn for_others(bytes: u32) -> io::Result<([OwnedFd; 2], OwnedFd)> {
        Ring::for_others(bytes)
    }
}

impl RingEnd for Shared {
    fn send(&mut self, frame: Frame, beside: Option<Beside>) {
        debug_assert!(beside.is_none(), "{beside:?} does not leave this process");
        if !self.ended {
            frame.encode(&mut self.output);
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.taken += self.ring.send(&self.output[self.taken..])?;
        if self.taken == self.output.len() {
            self.output.clear();
            self.taken = 0;
        } else if self.taken >= self.output.len() / 2 {
            self.output.drain(..self.taken);
            self.taken = 0;
        }
        self.ring.flush()?;
        if self.output.len() + MAX_LEN > OUT_LIMIT {
            return Err(io::Error::other("it does not read"));
        }
        Ok(())
    }

    fn is_short_of_room(&self) -> bool {
        !self.output.is_empty()
    }

    /// Takes out at most [`BATCH`] bytes.
    fn receive(&mut self, now: u64, frames: &mut VecDeque<Passing>) -> io::Result<()> {
        let mut taken = 0;
        self.unfinished = false;
        while !self.ended {
            if taken >= BATCH {
                self.unfinished = true;
                break;
            }
            match self.ring.receive(now, self.input.space())? {
                Taken::Bytes(n) => {
                    self.input.filled(n);
                    taken += n;
                }
                Taken::Nothing => break,
                Taken::End => {
                    self.ended = true;
                    self.output = Vec::new();
                    self.taken = 0;
                }
            }
            while let Some(frame) = self.input.frame().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))? {
                frames.push_back(Passing { frame, beside: None });
            }
        }
        Ok(())
    }

    fn needs_attention(&self) -> bool {
        self.unfinished
    }

    fn has_ended(&self) -> bool {
        self.ended
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ring.fd())
    }
}
