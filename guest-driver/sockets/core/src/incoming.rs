// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end that reads.

use crate::Violation;
#[cfg(feature = "bugs")]
use crate::bugs::Bug;
use crate::frame::Frame;
use crate::ring::{self, HEAD};

/// What comes next in the connection, behind what was unframed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// What the kernel has next, if anything.
    Connection,
    /// The code of a record, which stays in the connection until the record has been read.
    Record,
    /// The code after which the connection is raw, which is to be consumed, too.
    Raw,
}

/// What has been found in bytes that were peeked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unframed {
    /// Bytes of data, which are now the first.
    pub data: usize,
    /// Bytes that are to be consumed, codes included.
    pub consumed: usize,
    pub next: Next,
    /// Bytes of the last frame that are still to come.
    within: u64,
}

/// The reading end of a framed direction.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Incoming {
    /// Bytes of the current frame that are still to come in the connection.
    within: u64,
    /// Up to where the ring has been read.
    head: u64,
    /// Where the data of the current record continues.
    position: u64,
    /// What is left of the current record; 0 if there is none.
    left: u64,
    /// Bytes of the ring; 0 if there is none.
    size: u64,
    #[cfg(feature = "bugs")]
    bug: Option<Bug>,
}

impl Incoming {
    /// One that reads a ring of `size` bytes; sizes as for [`Outgoing::new`](crate::Outgoing::new).
    pub fn new(size: u64) -> Option<Incoming> {
        ring::is_size(size).then(|| Incoming { size, ..Incoming::default() })
    }

    /// Its state, for memory that processes share.
    pub fn words(&self) -> [u64; 5] {
        [self.within, self.head, self.position, self.left, self.size]
    }

    /// The end with a state from such memory, where anything may have been written. `None` if no end has this state:
    /// with any other, nothing outside of the ring is read.
    pub fn of([within, head, position, left, size]: [u64; 5]) -> Option<Incoming> {
        let has_ring = size == 0 || ring::is_size(size);
        let inside = left == 0 || size > 0 && left <= size - position % size;
        let near = head <= ring::FARTHEST && position <= ring::FARTHEST;
        let valid = has_ring && inside && near && within <= Frame::MOST.into();
        valid.then(|| Incoming { within, head, position, left, size, ..Incoming::default() })
    }

    /// Bytes of its ring; 0 if there is none.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// With a deliberate bug.
    #[cfg(feature = "bugs")]
    pub fn with(self, bug: Option<Bug>) -> Incoming {
        Incoming { bug, ..self }
    }

    /// Whether the next byte of the connection is the code of a frame.
    pub fn wants_code(&self) -> bool {
        self.within == 0
    }

    /// Bytes of data that the connection has next, before another code.
    pub fn within(&self) -> u64 {
        self.within
    }

    /// What is left of the current record; 0 if there is none.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Finds the data in `bytes`, which have been peeked at, and moves it to the front. `code` is the byte before them,
    /// if a code was [wanted](Incoming::wants_code), and counts as consumed. No record is current.
    pub fn unframe(&self, code: Option<u8>, bytes: &mut [u8]) -> Result<Unframed, Violation> {
        let (mut within, mut code, mut data, mut at) = (self.within, code, 0, 0);
        let mut consumed = 0;
        loop {
            if within == 0 {
                let found = match code.take() {
                    Some(code) => code,
                    None if at < bytes.len() => {
                        at += 1;
                        bytes[at - 1]
                    }
                    None => break,
                };
                match Frame::decode(found)? {
                    Frame::Bytes(length) => within = length.into(),
                    Frame::Record => return Ok(Unframed { data, consumed, next: Next::Record, within }),
                    Frame::Raw => return Ok(Unframed { data, consumed, next: Next::Raw, within }),
                }
                consumed += 1;
            }
            #[cfg(feature = "bugs")]
            if self.bug == Some(Bug::MissFrame) {
                within = within.max((bytes.len() - at) as u64);
            }
            // At most `bytes.len()`.
            let here = within.min((bytes.len() - at) as u64) as usize;
            if here == 0 {
                break;
            }
            bytes.copy_within(at..at + here, data);
            (data, at, consumed) = (data + here, at + here, consumed + here);
            within -= here as u64;
        }
        Ok(Unframed { data, consumed, next: Next::Connection, within })
    }

    /// What was unframed has been consumed.
    pub fn consumed(&mut self, unframed: &Unframed) {
        self.within = unframed.within;
    }

    /// So many bytes of data [within](Incoming::within) a frame have been consumed.
    pub fn took_within(&mut self, bytes: u64) {
        self.within = self.within.saturating_sub(bytes);
    }

    /// A frame of so many bytes follows, whose code has been consumed.
    pub(crate) fn begin_frame(&mut self, length: u32) {
        self.within = length.into();
    }

    /// Where the word of the next record is, from the ring's start.
    pub fn record_offset(&self) -> Result<u64, Violation> {
        if self.size == 0 { Err(Violation::NoRing) } else { Ok(self.begin() % self.size) }
    }

    fn begin(&self) -> u64 {
        #[cfg(feature = "bugs")]
        if self.bug == Some(Bug::ReadOn) {
            // As if records could wrap.
            let position = self.head.next_multiple_of(ring::ALIGN);
            return if self.size - position % self.size <= HEAD { ring::begin(position, self.size) } else { position };
        }
        ring::begin(self.head, self.size)
    }

    /// The next record is current; `word` is its first word.
    pub fn begin_record(&mut self, word: u64) -> Result<(), Violation> {
        self.record_offset()?;
        let begin = self.begin();
        let most = ring::most(begin, self.size);
        if word == 0 || word > most {
            return Err(Violation::Record { length: word, most });
        }
        (self.position, self.left) = (begin + HEAD, word);
        Ok(())
    }

    /// Where the rest of the current record is: its offset from the ring's start, and its length.
    pub fn record(&self) -> (u64, u64) {
        (self.position % self.size.max(1), self.left)
    }

    /// The first `bytes` bytes of the current record have been read. Returns whether that was all, so that its code is
    /// to be consumed.
    pub fn took(&mut self, bytes: u64) -> bool {
        let bytes = bytes.min(self.left);
        (self.position, self.left) = (self.position + bytes, self.left - bytes);
        if self.left == 0 {
            self.head = self.position;
        }
        #[cfg(feature = "bugs")]
        if self.bug == Some(Bug::ReturnEarly) {
            self.head = self.position + self.left;
        }
        #[cfg(feature = "bugs")]
        if self.bug == Some(Bug::ConsumeEarly) {
            return true;
        }
        self.left == 0
    }

    /// Up to where the ring has been read: the position to report to the sender.
    pub fn head(&self) -> u64 {
        self.head
    }
}
