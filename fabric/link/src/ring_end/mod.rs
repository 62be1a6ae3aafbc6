// SPDX-License-Identifier: MIT OR Apache-2.0
//! A ring between two boards of one host, beside the fabric: frames in order, each once. Both kinds are the same to a
//! board, and differ by the memory that carries the frames:
//!
//! | | [`Shared`] | [`Within`] |
//! |---|---|---|
//! | The boards are | in two processes | in one process |
//! | Frames pass | as bytes, through memory that both can write | whole, each with what is [`Beside`] it |
//! | The peer may be | hostile | only what this process is |
//! | Its end is called by | a socket | a [`Calls`], and that by a bell if another thread serves the peer |
//!
//! The fabric makes rings and hands out their ends ([`Frame::Ring`]).

mod shared;
mod within;

use std::any::Any;
use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use telegraphos_wire::link::Frame;

pub use shared::Shared;
pub use within::{Calls, Passed, Within};

/// What a board passes to the other one beside a frame, and what is meaningless to this crate.
pub struct Beside {
    pub what: Arc<dyn Any + Send + Sync>,
    /// Bytes that the frame does not carry because of it. They count as passed.
    pub length: u32,
}

impl Debug for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Beside").field("length", &self.length).finish_non_exhaustive()
    }
}

/// A frame as it arrives.
#[derive(Debug)]
pub struct Passing {
    pub frame: Frame,
    /// Only within a process.
    pub beside: Option<Beside>,
}

/// One end of a ring. No call blocks. An error means that the ring is unusable, and says why.
pub trait RingEnd: Send + Debug {
    /// Queues a frame; [`RingEnd::flush`] hands it on. Dropped if the peer has closed its end. Between processes
    /// nothing may be beside it.
    fn send(&mut self, frame: Frame, beside: Option<Beside>);

    /// Hands on what is queued, as far as there is room, and wakes the peer. Fails if the peer does not read.
    fn flush(&mut self) -> io::Result<()>;

    /// Whether something is queued that found no room. There may be some after each [`RingEnd::receive`].
    fn is_short_of_room(&self) -> bool;

    /// Takes out what has arrived, a bounded number of bytes: appends its frames, the last ones even if it has failed
    /// behind them. `now` is microseconds of any monotonic clock.
    fn receive(&mut self, now: u64, frames: &mut VecDeque<Passing>) -> io::Result<()>;

    /// Whether there may be more than the last receive took, of which nothing tells.
    fn needs_attention(&self) -> bool;

    /// Whether the peer has closed its end, and all that it sent was received. Whether it is down the fabric tells.
    fn has_ended(&self) -> bool;

    /// Readable while something has arrived, there is room for what is queued, or the peer has closed its end, which
    /// stays. `None` if [`Calls`] tell.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}

#[cfg(test)]
mod tests;
