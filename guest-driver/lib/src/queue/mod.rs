// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notification queues (s0): one store instruction appends a word to a queue in another node's memory, and its consumer
//! is notified. No lock, no round trip, no test for full: the store returns at once, and never fails for lack of room.
//!
//! ```no_run
//! use telegraphos::{Node, Queue};
//!
//! # fn main() -> telegraphos::Result<()> {
//! # let node = Node::open()?;
//! // The receiver: any number of senders on any nodes append to it.
//! let queue = Queue::create(&node, "work").mode(0o602).create()?;
//! if let Some(value) = queue.pop_wait(None)? {
//!     println!("{value}");
//! }
//!
//! // A sender.
//! let work = Queue::import(&node, 3, "work").open()?;
//! work.enqueue(42)?; // one store instruction
//! let arena = node.import(3, "arena").open()?;
//! work.put_notify(&arena, 0x100, &[1u64, 2, 3], 0x100)?; // the message, then the word with its place
//! # Ok(()) }
//! ```
//!
//! The words arrive in the order of the program, each once. Behind the first buffer, which senders address, the driver
//! links others when it overflows, up to a quota; after that senders are held back, still without loss
//! (`docs/queues.md`).
//!
//! | Module | What is in it |
//! |---|---|
//! | [`dequeue`] | the algorithm, over a memory trait, so that models can run it |
//! | `arms` | for how many elements at a time a consumer asks to be woken |
//! | `passes` | which lets threads look at a queue from outside |
//! | `receiver` | [`Queue`]: one of this node, and its mapping |
//! | `sender` | [`RemoteQueue`]: one of another node |
//!
//! # Memory ordering
//!
//! The board stores an element's data before word 0 that commits it (release), and the consumer loads word 0 before the
//! data (acquire): it never sees a tail without its element. All that the sender stored before the enqueue, to the same
//! node, has been performed before the element, so a consumer that pops a pointer sees the whole message behind it. In
//! the other direction the consumer loads an element before it stores word 1 (release), so the board cannot overwrite
//! what is still being read. The accesses of successive consumers are ordered by the control page's state word:
//! acquired on entering, released on leaving.

mod arms;
pub mod dequeue;
#[cfg(test)]
mod order_tests;
mod passes;
mod receiver;
mod sender;

pub use receiver::{Queue, QueueBuilder, QueueState};
pub use sender::{QueueImportBuilder, RemoteQueue};
