// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages between threads of a cluster's processes (s2, s4; SPEC items 32 to 34 and 39 to 41).
//!
//! ```no_run
//! use telegraphos::Node;
//! use telegraphos_msg::{Config, Endpoint, Messages, Pattern};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let messages = Messages::open(Node::open()?, Config::default())?;
//! let _name = messages.publish("worker")?; // others find it by its node and this name
//! let thread = messages.thread(7)?;
//! let mut buffer = [0; 100];
//! let question = thread.receive(Pattern::default(), &mut buffer)?;
//! thread.send(question.from, question.tag, b"42")?; // when it returns, the other thread has it
//! # Ok(()) }
//! ```
//!
//! The rules are those of `telegraphos-msg-core`, which decides; this crate moves the bytes:
//!
//! ```text
//!   thread that sends ──► engine (locked) ──► inbox of the other process: a slot, by stores
//!                                        └──► its queue: an element ──► progress thread ──► its engine ──► the
//!                                                                                           thread that receives
//!   what is long: the receiving thread has its board fetch the bytes from buffer to buffer (Way::Get), or the sending
//!   thread has its own store them (Way::Put)
//! ```
//!
//! Each process has an inbox for each process that it talks to, and a few queues, its *ports*, with a thread each that
//! takes elements ([`Options`]). A *connecting thread* makes inboxes and imports, and waits for other boards, so that
//! no other thread does. Transfers run in the threads whose messages they are, those of [handles](Handle) in a *moving
//! thread*. All imports are [soft](telegraphos::ImportBuilder::soft): when a process dies, its messages end with
//! [`Failure::Gone`] in about a second, and no thread gets a signal.
//!
//! What is said to a process, and what it has said, is done in order by one thread at a time, but without the lock of
//! the engine: when its board holds back stores, only threads that exchange messages with it wait, 5 seconds at most.
//! Then it is declared gone.
//!
//! Processes that no board reaches, as those of another cluster, are reached over streams to neighbours and by
//! gateways, if these messages take part in [`Routing`]. `telegraphos_msg_core::far` says how.
//!
//! [`ffi`] is the C interface, see `include/telegraphos_msg.h`.
#![warn(missing_docs)]

mod beyond;
mod cache;
mod error;
mod far;
pub mod ffi;
mod grant;
mod handle;
mod link;
mod memory;
mod messages;
mod neighbours;
mod nodes;
mod options;
mod pollers;
mod port;
mod posting;
mod request;
mod session;
mod shared;
mod single;
mod state;
mod streams;
mod thread;

pub use error::{Error, Result};
pub use handle::{Ended, Handle};
pub use memory::Memory;
pub use messages::{Messages, Name};
pub use options::{Options, Progress, Routing};
pub use single::SingleBuffer;
pub use telegraphos_msg_core::routes::Route;
pub use telegraphos_msg_core::{Config, ConfigError, Eager, Endpoint, Failure, Pattern, Process, Received, Way};
pub use thread::Thread;
