// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames that wait for another part of this process, bounded by the bytes that they hold.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use telegraphos_wire::link::Frame;

use crate::client::{OUT_LIMIT, OutputFull};

/// What a frame counts for besides its block, in bytes.
pub(crate) const FRAME: usize = size_of::<Frame>();

/// What waits in a [`Queue`].
pub(crate) trait Waits {
    /// Bytes that it holds meanwhile.
    fn held(&self) -> usize;
}

impl Waits for Frame {
    fn held(&self) -> usize {
        FRAME
            + match self {
                Frame::Packet(packet) | Frame::Forward { packet, .. } => packet.body.payload_len(),
                Frame::Group { members, .. } => size_of_val(members.as_slice()),
                _ => 0,
            }
    }
}

/// Nothing panics between two steps of one change, so a poisoned lock protects what is whole.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A deque that has the memory that waits in it.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    frames: VecDeque<T>,
    /// Bytes that they hold.
    held: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue { frames: VecDeque::new(), held: 0 }
    }
}

impl<T: Waits> Queue<T> {
    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Appends a frame, unless more than [`OUT_LIMIT`] bytes would wait.
    pub(crate) fn push(&mut self, frame: T) -> Result<(), OutputFull> {
        if self.held + frame.held() > OUT_LIMIT {
            return Err(OutputFull);
        }
        self.put(frame);
        Ok(())
    }

    /// Appends a frame, however many bytes wait.
    pub(crate) fn put(&mut self, frame: T) {
        self.held += frame.held();
        self.frames.push_back(frame);
    }

    /// Appends all that waits in another one, unless more than [`OUT_LIMIT`] bytes would wait.
    pub(crate) fn append(&mut self, other: &mut Queue<T>) -> Result<(), OutputFull> {
        if self.held + other.held > OUT_LIMIT {
            return Err(OutputFull);
        }
        self.held += std::mem::take(&mut other.held);
        if self.frames.is_empty() {
            std::mem::swap(&mut self.frames, &mut other.frames);
        } else {
            self.frames.append(&mut other.frames);
        }
        Ok(())
    }

    /// Takes all that waits, behind what `frames` holds. Returns how many.
    pub(crate) fn take(&mut self, frames: &mut VecDeque<T>) -> usize {
        let taken = self.frames.len();
        if frames.is_empty() {
            std::mem::swap(&mut self.frames, frames);
        } else {
            frames.append(&mut self.frames);
        }
        self.held = 0;
        taken
    }
}
