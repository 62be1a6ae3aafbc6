// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames out of a stream of bytes.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use telegraphos_wire::link::{Frame, FrameError, MAX_LEN};

use crate::descriptors;

/// Most bytes of one receive.
pub const BATCH: usize = 128 << 10;
const _: () = assert!(MAX_LEN <= BATCH);
/// The same before the stream is identified.
const HELLO_BATCH: usize = 512;

/// Frames decoded from the bytes of a stream, which arrive in any pieces. Holds at most [`BATCH`] bytes.
#[derive(Debug)]
pub struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Default for Input {
    fn default() -> Self {
        Input::new()
    }
}

impl Input {
    /// Empty, with room for [`BATCH`] bytes.
    pub fn new() -> Self {
        Input { bytes: vec![0; BATCH].into_boxed_slice(), start: 0, end: 0 }
    }

    /// Empty, with room for 512 bytes: a hello, and what may follow it at once.
    pub fn small() -> Self {
        Input { bytes: vec![0; HELLO_BATCH].into_boxed_slice(), start: 0, end: 0 }
    }

    /// Makes room for [`BATCH`] bytes; what is there stays.
    pub fn grow(&mut self) {
        if self.bytes.len() < BATCH {
            let mut bytes = vec![0; BATCH];
            bytes[..self.end].copy_from_slice(&self.bytes[..self.end]);
            self.bytes = bytes.into_boxed_slice();
        }
    }

    /// Where the next bytes belong; empty only if there is room for no more than a hello ([`Input::small`]). After
    /// writing there, call [`Input::filled`].
    pub fn space(&mut self) -> &mut [u8] {
        // What is left of an incomplete frame is shorter than a frame, so there is always room for the rest in `BATCH`
        // bytes.
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        &mut self.bytes[self.end..]
    }

    /// Bytes that are there and were not taken as frames.
    pub fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// So many `bytes` were written to the front of [`Input::space`].
    pub fn filled(&mut self, bytes: usize) {
        self.end = (self.end + bytes).min(self.bytes.len());
    }

    /// One receive into the free space. `Ok(None)` if nothing is there, `Ok(Some(0))` at the end of the stream. The
    /// descriptors of a message are appended to `fds`; `None` if some were lost, or they are not two.
    pub(crate) fn fill(
        &mut self,
        fd: BorrowedFd<'_>,
        fds: &mut VecDeque<Option<[OwnedFd; 2]>>,
    ) -> io::Result<Option<usize>> {
        match descriptors::receive(fd, self.space(), RecvFlags::DONTWAIT) {
            Ok((bytes, got)) => {
                if got.as_ref().is_none_or(|got| !got.is_empty()) {
                    fds.push_back(got.and_then(|got| got.try_into().ok()));
                }
                self.filled(bytes);
                Ok(Some(bytes))
            }
            Err(Errno::AGAIN) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// The next whole frame, if there is one. Bytes that are no frame are an error, after which the stream must be
    /// dropped.
    pub fn frame(&mut self) -> Result<Option<Frame>, FrameError> {
        match Frame::decode(&self.bytes[self.start..self.end])? {
            Some((frame, used)) => {
                self.start += used;
                Ok(Some(frame))
            }
            None => Ok(None),
        }
    }
}
