// SPDX-License-Identifier: MIT OR Apache-2.0
//! A port: a queue of this process (s4 §4).

use crate::error::Result;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use telegraphos::{Node, Queue};
use telegraphos_msg_core::Process;
use telegraphos_wire::names;

/// How often processes are looked after that may have died, and how long a thread sleeps at most.
pub(crate) const TICK: Duration = Duration::from_millis(250);
/// Elements that are taken at a time, under one lock.
const BATCH: usize = 32;
/// Words of a queue's buffer, and buffers that may be linked behind it: 128 KiB. A process has no more elements in
/// another's queue than some for each of its slots there.
const WORDS: u32 = 1024;
const QUOTA: u32 = 15;

#[derive(Debug)]
pub(crate) struct Port {
    queue: Queue,
    /// What comes is handled in its order: by one thread at a time.
    turn: Mutex<()>,
}

impl Port {
    pub(crate) fn open(node: &Node, me: Process, number: u16) -> Result<Port> {
        let queue =
            Queue::create(node, &names::queue(me.number.into(), number)).wide().words(WORDS).quota(QUOTA).create()?;
        Ok(Port { queue, turn: Mutex::new(()) })
    }

    /// Handles what has come, unless another thread does so.
    pub(crate) fn poll(&self, handle: impl FnOnce(&[u64])) -> Result<()> {
        let _turn = match self.turn.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Ok(turn) => turn,
        };
        let mut words = [0; BATCH];
        let count = self.queue.pop_batch(&mut words)?;
        if count > 0 {
            handle(&words[..count]);
        }
        Ok(())
    }

    /// Sleeps until something comes, for [`TICK`] at most, and handles it.
    pub(crate) fn sleep(&self, handle: impl FnOnce(&[u64])) -> Result<()> {
        let _turn: MutexGuard<'_, ()> = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut words = [0; BATCH];
        let Some(word) = self.queue.pop_wait(Some(TICK))? else { return Ok(()) };
        words[0] = word;
        // What else there is.
        let count = 1 + self.queue.pop_batch(&mut words[1..]).unwrap_or(0);
        handle(&words[..count]);
        Ok(())
    }
}
