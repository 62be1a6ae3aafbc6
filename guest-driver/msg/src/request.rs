// SPDX-License-Identifier: MIT OR Apache-2.0
//! A send or a receive that has not ended: what its thread waits for.

use std::sync::{Arc, Condvar};
use telegraphos_msg_core::{Failure, Place, Process, Received, TransferId};

/// Memory of a thread, which waits until its request has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    at: *mut u8,
    length: u64,
}

// SAFETY: it is accessed under the lock of the state, or by its own thread.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Memory that is read only.
    pub(crate) fn of(bytes: &[u8]) -> Buffer {
        Buffer { at: bytes.as_ptr().cast_mut(), length: bytes.len() as u64 }
    }

    pub(crate) fn of_mut(bytes: &mut [u8]) -> Buffer {
        Buffer { at: bytes.as_mut_ptr(), length: bytes.len() as u64 }
    }

    /// Its first bytes as a slice, to be registered.
    pub(crate) fn first(self, length: u64) -> *mut [u8] {
        std::ptr::slice_from_raw_parts_mut(self.at, self.length.min(length) as usize)
    }

    /// Appends bytes of it to `words`, with zeros behind them.
    ///
    /// # Safety
    /// Its thread still waits.
    pub(crate) unsafe fn read(self, offset: u64, length: u32, words: &mut Vec<u64>) {
        // The engine names no bytes beyond it.
        assert!(offset.checked_add(length.into()).is_some_and(|end| end <= self.length));
        // SAFETY: within the memory, as was just checked, which the thread has lent.
        let bytes = unsafe { std::slice::from_raw_parts(self.at.add(offset as usize), length as usize) };
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            words.push(u64::from_le_bytes(word));
        }
    }

    /// Writes `length` bytes, of the words that `word` returns one by one.
    ///
    /// # Safety
    /// Its thread still waits.
    pub(crate) unsafe fn write(self, offset: u64, length: u32, mut word: impl FnMut() -> u64) {
        // The engine names no bytes beyond it.
        assert!(offset.checked_add(length.into()).is_some_and(|end| end <= self.length));
        // SAFETY: within the memory, as was just checked, which the thread has lent and does not access meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.at.add(offset as usize), length as usize) };
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&word().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// While it exists, memory of this thread may be accessed by others, so nothing may unwind through it.
pub(crate) struct Lent;

impl Drop for Lent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// A transfer that the thread is to run: its board's, between its buffer and that of another process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) id: TransferId,
    /// Into the thread's buffer.
    pub(crate) fetch: bool,
    pub(crate) other: Process,
    pub(crate) at: Place,
    pub(crate) length: u64,
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) buffer: Buffer,
    pub(crate) transfer: Option<Transfer>,
    /// Of a send without what is received.
    pub(crate) outcome: Option<Result<Option<Received>, Failure>>,
    /// Signalled when one of these has come.
    pub(crate) wake: Arc<Condvar>,
}

impl Request {
    pub(crate) fn new(buffer: Buffer) -> Request {
        Request { buffer, transfer: None, outcome: None, wake: Arc::new(Condvar::new()) }
    }

    pub(crate) fn run(&mut self, transfer: Transfer) {
        self.transfer = Some(transfer);
        self.wake.notify_all();
    }

    pub(crate) fn end(&mut self, outcome: Result<Option<Received>, Failure>) {
        self.outcome = Some(outcome);
        self.wake.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_through_words_unchanged() {
        let from: Vec<u8> = (0..100).collect();
        for (offset, length) in [(0, 0), (0, 1), (3, 8), (5, 95), (99, 1), (0, 100)] {
            let (mut words, mut to) = (Vec::new(), [0u8; 100]);
            // SAFETY: both are here.
            unsafe {
                Buffer::of(&from).read(offset, length, &mut words);
                let mut words = words.into_iter();
                Buffer::of_mut(&mut to).write(offset, length, || words.next().unwrap_or(0));
            }
            let range = offset as usize..offset as usize + length as usize;
            assert_eq!(to[range.clone()], from[range]);
            assert_eq!(to.iter().filter(|byte| **byte != 0).count(), {
                let part = &from[offset as usize..offset as usize + length as usize];
                part.iter().filter(|byte| **byte != 0).count()
            });
        }
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn bytes_beyond_it_are_not_read() {
        // SAFETY: it panics before.
        unsafe { Buffer::of(&[1, 2, 3]).read(1, 3, &mut Vec::new()) };
    }
}
