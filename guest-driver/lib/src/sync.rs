// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks and barriers for processes on any nodes, in memory of segments (SPEC item 27: quiet is part of every lock,
//! unlock and barrier).
//!
//! The quiet of an unlock completes the stores made under the lock. That of a lock completes the stores made before it,
//! to other nodes: without it, a store under the lock could be seen before those.
//!
//! All participants use the same words, through imports: also the processes of the node that owns them (through
//! [`Segment::remote`](crate::Segment::remote)), because the processor's locked instructions are not atomic with those
//! of the HIB.
//!
//! ```no_run
//! # fn main() -> telegraphos::Result<()> {
//! use telegraphos::{Node, sync::TicketLock};
//! let node = Node::open()?;
//! let shared = node.import(0, "shared").open()?; // 16 bytes at 0 are the lock, a counter is at 64
//! let lock = TicketLock::new(&shared, 0)?;
//! let guard = lock.lock()?;
//! shared.put64(64, shared.get64(64)? + 1)?;
//! guard.unlock()?; // everything stored under the lock has arrived, on any node
//! # Ok(()) }
//! ```
//!
//! A lock may also lie in a [`Replicated`](crate::Replicated) segment: tickets are drawn at its home (SPEC E20), and
//! waiting threads poll the copy in their own node's memory, which the unlock updates. The data may be in the same
//! segment: when the unlock is seen, every copy has the data (E19).

mod barrier;
mod lock;
mod memory;
#[cfg(test)]
mod tests;

pub use barrier::Barrier;
pub use lock::{TicketGuard, TicketLock};
pub use memory::LockMemory;
