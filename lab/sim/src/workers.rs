// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads for partitions: each takes one, runs it up to a moment, and gives it back.

use crate::partition::Partition;
use crate::units::Time;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

type Job = (Partition, Time);

#[derive(Debug)]
struct Worker {
    jobs: Option<Sender<Job>>,
    done: Receiver<Partition>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn new() -> io::Result<Worker> {
        let (jobs, to_do) = channel::<Job>();
        let (give, done) = channel();
        let thread = std::thread::Builder::new().name("partition".into()).spawn(move || {
            while let Ok((mut partition, end)) = to_do.recv() {
                partition.run_until(end);
                if give.send(partition).is_err() {
                    return;
                }
            }
        })?;
        Ok(Worker { jobs: Some(jobs), done, thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Without a sender its loop ends.
        self.jobs = None;
        let panicked = self.thread.take().and_then(|thread| thread.join().err());
        if let Some(panic) = panicked.filter(|_| !std::thread::panicking()) {
            std::panic::resume_unwind(panic);
        }
    }
}

/// A thread for each partition but the first, which is that of the caller.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    workers: Vec<Worker>,
    /// See [`Workers::worth`].
    worth: usize,
}

/// With fewer calls in progress, a hand-over to other threads takes longer than the calls.
const WORTH: usize = 512;

impl Workers {
    /// So many threads.
    ///
    /// # Errors
    /// One cannot be created.
    pub(crate) fn new(count: usize) -> io::Result<Workers> {
        Ok(Workers { workers: (0..count).map(|_| Worker::new()).collect::<Result<_, _>>()?, worth: WORTH })
    }

    /// It is always worth it: for checks.
    #[cfg(feature = "bugs")]
    pub(crate) fn be_eager(&mut self) {
        self.worth = 0;
    }

    /// The calls in progress from which on it is worth to run partitions at the same time.
    pub(crate) fn worth(&self) -> usize {
        self.worth
    }

    /// Runs all partitions up to a moment, exclusively; each takes its place again.
    pub(crate) fn run_until(&mut self, partitions: &mut Vec<Partition>, end: Time) {
        let others = partitions.split_off(1);
        for (worker, partition) in self.workers.iter().zip(others) {
            if let Some(jobs) = &worker.jobs {
                // Received in any case, unless the thread has panicked.
                let _ = jobs.send((partition, end));
            }
        }
        partitions[0].run_until(end);
        partitions.extend(self.workers.iter().map_while(|worker| worker.done.recv().ok()));
        if partitions.len() <= self.workers.len() {
            // A thread has panicked: so does this one when it joins it.
            self.workers.clear();
        }
    }
}
