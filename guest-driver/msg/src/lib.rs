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
//! Each process has one queue, and an inbox for each process that it talks to. A *progress thread* takes elements; a
//! *connecting thread* makes inboxes and imports, and waits for other boards, so that nobody else does. Transfers run
//! in the threads whose messages they are. All imports are [soft](telegraphos::ImportBuilder::soft): when a process
//! dies, its messages end with [`Failure::Gone`] within a second, and nobody gets
//! a signal.
//!
//! A message of several slots, and one that is shorter than a slot, is stored under the lock of the engine: a process
//! whose board holds back stores delays the others of this one for as long, 5 seconds at most, and is then given up.
//! Memory of long messages is registered for each anew.

mod error;
mod layout;
mod link;
mod messages;
mod request;
mod state;

pub use error::{Error, Result};
pub use messages::{Messages, Name, Thread};
pub use telegraphos_msg_core::{Config, ConfigError, Endpoint, Failure, Pattern, Process, Received, Way};
