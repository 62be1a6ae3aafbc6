// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a call is refused, and why a message did not arrive.

use crate::address::Process;

/// Why a send, a receive or else is refused at once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Error {
    /// No such process is connected.
    #[error("{0} is not connected, or has gone")]
    NoProcess(Process),
    #[error("{0} is connected already")]
    Connected(Process),
    /// No such thread of this process.
    #[error("no thread {0} of this process is open")]
    NoThread(u32),
    /// There is such a thread already.
    #[error("thread {0} is open already; choose another number")]
    ThreadOpen(u32),
    /// A message that is longer than any may be.
    #[error("a message of {length} bytes: expected at most {most}")]
    TooLong {
        /// Its bytes.
        length: u64,
        /// The most that there may be.
        most: u64,
    },
    /// A message whose bytes a board must reach, and no place of theirs.
    #[error("a message of {length} bytes without a place: only those up to {most} need none; register its memory")]
    NoPlace {
        /// Its bytes.
        length: u64,
        /// Bytes of those that need none.
        most: u64,
    },
    /// The limit of processes.
    #[error("{0} processes are connected, which is the limit")]
    Peers(u32),
    /// The limit of threads.
    #[error("{0} threads are open, which is the limit")]
    Threads(u32),
    /// The limit of sends.
    #[error("{0} sends have not ended, which is the limit")]
    Sends(u32),
    /// The limit of receives.
    #[error("{0} receives have not ended, which is the limit")]
    Receives(u32),
}

/// Why a send or a receive ended without a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// The other process has gone, or has broken the rules.
    #[error("the other process has gone")]
    Gone,
    /// There is no such thread, or it ended before it received the message.
    #[error("the thread that it is for is not there")]
    NoThread,
    #[error("it was withdrawn")]
    Withdrawn,
    /// The receiving thread was closed.
    #[error("the receiving thread was closed")]
    Closed,
    /// A board could not move the bytes.
    #[error("the bytes could not be moved")]
    Failed,
}
