// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loops of servers in threads of a test.

use std::fmt::Debug;
use std::thread::JoinHandle;

/// A server's loop in a thread of its own, which ends when this is dropped. A test in which the server fails or panics
/// fails.
pub struct Served<E: Debug> {
    stop: Box<dyn Fn() + Send + Sync>,
    thread: Option<JoinHandle<Result<(), E>>>,
}

impl<E: Debug + Send + 'static> Served<E> {
    /// Runs a loop that `stop` ends, from any thread.
    pub fn start(
        stop: impl Fn() + Send + Sync + 'static,
        run: impl FnOnce() -> Result<(), E> + Send + 'static,
    ) -> Served<E> {
        Served { stop: Box::new(stop), thread: Some(std::thread::spawn(run)) }
    }

    /// Stops it and returns its result.
    pub fn stop(self) -> Result<(), E> {
        (self.stop)();
        self.ended()
    }

    /// Waits until it ends by itself.
    pub fn ended(mut self) -> Result<(), E> {
        self.thread.take().map_or(Ok(()), |thread| thread.join().expect("the server panicked"))
    }
}

impl<E: Debug> Drop for Served<E> {
    fn drop(&mut self) {
        (self.stop)();
        let Some(thread) = self.thread.take() else { return };
        let ended = thread.join();
        if !std::thread::panicking() {
            ended.expect("the server panicked").expect("the server failed");
        }
    }
}
