// SPDX-License-Identifier: MIT OR Apache-2.0
#![forbid(unsafe_code)]
//! Messages between threads of a cluster's processes, as a pure state machine: matching by sender and tag, slots at the
//! receiver, fragments, and rendezvous for what is long (SPEC items 32 to 34 and 39 to 41, I17, I18).
//!
//! ```text
//!   Engine       one process: dispatches                                   engine.rs
//!     Sender     sends, in order, as slots allow                           sender.rs
//!       Threshold  which of them go to slots, as has been faster           threshold.rs
//!     Receiver   what has arrived and what waits for it; fragments         receiver.rs
//!       Store    control blocks, by a hash and in order                    store.rs
//!     Slots      what each has in the slots between two processes          slots.rs
//!   Packet       what engines say to each other                            packet.rs
//!   Action       what an engine wants done                                 action.rs
//!   Layout       a packet as words in memory and an element of a queue     layout.rs
//!   Far          sessions with processes that no board reaches             far.rs
//!     Routes     by which paths they are reached, and their names          routes.rs
//! ```
//!
//! Everything here is pure. Its owner calls [`Engine::send`] and [`Engine::receive`] for its threads, brings packets of
//! other processes ([`Engine::packet`]) and the ends of transfers ([`Engine::transferred`]), and does what
//! [`Engine::action`] says, in that order. Bytes never pass through the engine. What passes between two processes comes
//! once and in its order, as stores of one board to another do; the first violation of that ends their connection.
//!
//! # Slots
//!
//! Each process has [`Config::slots`] slots at each other one: a control block, and [`Config::block`] bytes. A short
//! message is put into a slot, and goes from there to the buffer of the receive that it matches; one of several
//! fragments takes a slot for each. A long message takes a slot for its request only: when a receive matches it, a
//! board moves its bytes from buffer to buffer, once (I17). A slot is the sender's again when the receiving thread has
//! what was in it. That is when the send ends, too, so the end of a send says that the *thread* has the message. What
//! has no slot waits at the sender: a receiver without room delays, and loses nothing. Slots are the account of one
//! process at another: no other process's messages wait because of its own.
//!
//! Which messages are short is decided for each when it is sent ([`Engine::choose`]): between two bounds, those whose
//! way to a slot has been faster than that of a request to the same process has been.
//!
//! # Far processes
//!
//! Those that no board reaches are reached over streams, perhaps through gateways: [`far`] says how.
//!
//! # Order
//!
//! Messages of one thread to another are matched in the order of their sends. A receive gets the message that arrived
//! first of those that it accepts, and a message goes to the receive that began first of those that accept it, whether
//! they name a sender or not. Requests end in any order.
//!
//! ```
//! use telegraphos_msg_core::{Action, Config, Endpoint, Engine, Pattern, Process};
//!
//! let (a, b) = (Process { node: 0, number: 1 }, Process { node: 1, number: 1 });
//! let mut engines = [Engine::new(Config::default())?, Engine::new(Config::default())?];
//! engines[0].connect(b)?;
//! engines[1].connect(a)?;
//! engines[1].open(7)?;
//! let receive = engines[1].receive(7, Pattern::default(), 100, None)?;
//! let send = engines[0].send(3, Endpoint { process: b, thread: 7 }, 42, 5, None)?;
//! // The bytes go to a slot of b's, and the packet follows them.
//! let Some(Action::Post { packet, bytes: Some(_), .. }) = engines[0].action() else { unreachable!() };
//! engines[1].packet(a, packet)?;
//! assert!(matches!(engines[1].action(), Some(Action::Take { length: 5, .. })));
//! let Some(Action::Post { packet, .. }) = engines[1].action() else { unreachable!() };
//! let Some(Action::Received { receive: ended, outcome: Ok(message) }) = engines[1].action() else { unreachable!() };
//! assert_eq!((ended, message.tag, message.from.thread), (receive, 42, 3));
//! engines[0].packet(b, packet)?;
//! assert_eq!(engines[0].action(), Some(Action::Sent { send, outcome: Ok(()) }));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod action;
mod address;
mod bugs;
mod config;
mod engine;
mod error;
pub mod far;
pub mod layout;
mod packet;
mod receiver;
pub mod routes;
mod sender;
mod slots;
mod store;
mod threshold;

pub use action::{Action, Piece, ReceiveId, Received, SendId, TransferId};
pub use address::{Endpoint, Pattern, Process};
#[cfg(feature = "bugs")]
pub use bugs::Bug;
pub use config::{Config, ConfigError, HEADER, Way};
pub use engine::Engine;
pub use error::{Error, Failure};
pub use packet::{Answer, Header, Packet, Place, Violation};
pub use threshold::{Choice, Eager};
