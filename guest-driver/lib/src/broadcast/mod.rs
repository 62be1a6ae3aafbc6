// SPDX-License-Identifier: MIT OR Apache-2.0
//! Broadcast: messages from one producer to consumers on any number of nodes, through a ring in a
//! [replicated segment](crate::replicated). A message is stored once, and is in the memory of every consumer.
//!
//! ```no_run
//! use telegraphos::{Broadcast, Node};
//!
//! # fn main() -> telegraphos::Result<()> {
//! # let node = Node::open()?;
//! // The producer.
//! let mut news = Broadcast::create(&node, "news").mode(0o606).create()?;
//! news.wait_consumers(2, None)?;
//! news.push(b"ready", None)?;
//! news.finish(None)?;
//!
//! // Each consumer.
//! let mut news = Broadcast::join(&node, 0, "news").open()?;
//! while let Some(message) = news.pop(None)? {
//!     println!("{} bytes", message.len());
//! }
//! # Ok(()) }
//! ```
//!
//! Every consumer gets every message after it has joined, in order, once, and whole. The ring is bounded: the producer
//! waits for the slowest, or [evicts it](Broadcast::evict). Both sides poll memory, without system calls or
//! interrupts; one that has waited for 20 ms sleeps until its board's interrupt.
//!
//! | Module | What is in it |
//! |---|---|
//! | [`ring`] | the protocol, over a memory trait, so that models can run it |
//! | `producer`, `consumer` | [`Broadcast`], [`BroadcastConsumer`]: the same with waiting |

mod consumer;
mod producer;
pub mod ring;

pub use consumer::{BroadcastConsumer, BroadcastJoinBuilder};
pub use producer::{Broadcast, BroadcastBuilder};
