// SPDX-License-Identifier: MIT OR Apache-2.0
//! A channel between two processes of a cluster: records of bytes in both directions, each once, whole and in order.
//!
//! ```no_run
//! use telegraphos::Node;
//! use telegraphos_channel::{Channel, Options};
//!
//! # fn main() -> telegraphos_channel::Result<()> {
//! let node = Node::open()?;
//! let listener = Channel::listen(&node, "worker", Options::default())?; // others: Channel::connect
//! while let Some(mut channel) = listener.accept(None)? {
//!     let mut question = [0; 100];
//!     while let Some(length) = channel.recv(&mut question)? {
//!         channel.send(&question[..length])?;
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! The rules are those of `telegraphos-channel-core`, which decides; this crate has the memory, the clock and the
//! boards:
//!
//! | Module | What is in it |
//! |---|---|
//! | `channel` | [`Channel`]: one end; looks, sleeps, and looks after the other end |
//! | `rendezvous` | [`Listener`], connecting |
//! | `memory` | this end's segment and the import of the other's, for the core |
//! | `options`, `error` | [`Options`], [`Error`] |
//!
//! Between nodes of one trust group records are ordinary stores into memory in common, and a wake-up goes through the
//! boards only if the receiver has said that it sleeps. Between others the boards perform the stores, and a receiver
//! that sleeps has armed its own. `docs/channel.md` says why each is right.
//!
//! All imports are [soft](telegraphos::ImportBuilder::soft): no peer that dies raises a signal.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod channel;
mod error;
mod memory;
mod options;
mod rendezvous;

pub use channel::{Carrier, Channel, Received};
pub use error::{Error, Result};
pub use options::Options;
pub use rendezvous::{Listener, NAME_MAX};
