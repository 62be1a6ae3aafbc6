// SPDX-License-Identifier: MIT OR Apache-2.0
//! A port: a queue of this process, and the thread that takes what comes by it (s4 §4).

use crate::error::Result;
use crate::link::queue_name;
use crate::options::Progress;
use crate::shared::Shared;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use telegraphos::{Node, Queue};
use telegraphos_msg_core::Process;

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
        let queue = Queue::create(node, &queue_name(me, number)).wide().words(WORDS).quota(QUOTA).create()?;
        Ok(Port { queue, turn: Mutex::new(()) })
    }

    /// Handles what has come, unless another thread does so.
    pub(crate) fn poll(&self, shared: &Shared) -> Result<()> {
        let _turn = match self.turn.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Ok(turn) => turn,
        };
        let mut words = [0; BATCH];
        let count = self.queue.pop_batch(&mut words)?;
        self.handle(shared, &words[..count]);
        Ok(())
    }

    fn handle(&self, shared: &Shared, words: &[u64]) {
        if !words.is_empty() {
            shared.with(|state| words.iter().for_each(|word| state.element(*word)));
        }
    }

    /// Sleeps until something comes, and handles it.
    fn sleep(&self, shared: &Shared) -> Result<()> {
        let _turn: MutexGuard<'_, ()> = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut words = [0; BATCH];
        let count = match self.queue.pop_wait(Some(TICK))? {
            None => 0,
            Some(word) => {
                words[0] = word;
                // What else there is.
                1 + self.queue.pop_batch(&mut words[1..]).unwrap_or(0)
            }
        };
        self.handle(shared, &words[..count]);
        Ok(())
    }

    /// Takes elements until the messages are closed. One port looks after all links.
    pub(crate) fn run(&self, shared: &Shared, looks: bool) {
        let mut looked = Instant::now();
        while !shared.signals.is_closed() {
            let taken = match shared.options.progress {
                Progress::Blocking => self.sleep(shared),
                // One thread for all of them.
                Progress::Polling => shared.poll().map(|()| shared.pollers.rest()),
                Progress::Adaptive if shared.pollers.stand_aside() => Ok(()),
                Progress::Adaptive => self.sleep(shared),
            };
            if let Err(error) = taken {
                log::error!("no more messages are received: {error}");
                shared.close();
                return;
            }
            if looks && looked.elapsed() >= TICK {
                looked = Instant::now();
                shared.look();
            }
        }
    }
}
