// SPDX-License-Identifier: MIT OR Apache-2.0
#![forbid(unsafe_code)]
//! A channel of two processes, as a pure state machine over words of memory: records in both directions, credits, sleep
//! and wake-ups, and the end.
//!
//! ```text
//!   End          one end: dispatches                                       end.rs
//!     Sender     puts records into the other end's memory                  sender.rs
//!     Receiver   takes records out of its own                              receiver.rs
//!     Sleeper    says that this end sleeps, and for what                   sleep.rs
//!     Waker      whether the other end must be woken                       sleep.rs
//!   Near, Far    this end's memory, and the other's                        memory.rs
//!   Layout       where things lie in the memory of an end                  layout.rs
//!   Offer        how two processes come to a channel                       handshake.rs
//! ```
//!
//! Each end has memory of its own. It loads from that and from nothing else, and stores into the other end's and into
//! nothing else. So each word has one writer, no load leaves the node, and the same code runs over memory in common,
//! boards, and memory of one node. Nothing here has memory, a clock or a thread: the caller brings [`Near`] and
//! [`Far`], waits, and does what [`Progress`] says.
//!
//! # Records
//!
//! A record is a head word and its bytes. Its head is stored last and with release order: a receiver that has loaded
//! it with acquire order sees all of the record. The word behind a record is 0 before the record's head is stored: so
//! what the receiver finds where it expects the next head is 0 or that head, and never the bytes of an older record,
//! which the program behind the other end may have chosen to look like one.
//!
//! # Credits
//!
//! The receiver stores how much it has taken into the sender's memory, once a quarter of the ring is taken. A record
//! takes at most half of a ring. So a sender that waits for room always gets it when all has been taken.
//!
//! # Sleep
//!
//! See [`Announce`]: how an end learns that the other one sleeps is the only difference between the carriers.
//!
//! # A peer that lies
//!
//! The other end can store anything anywhere into this end's memory at any time. Each word is loaded once for each use,
//! and checked there: the outcome is a record of at most [`Layout::max_record`] bytes, or a [`Violation`], which ends
//! the channel. The work of a call does not depend on what the words are, beyond the bytes of one record.

mod bugs;
mod end;
mod error;
pub mod handshake;
mod layout;
mod memory;
mod receiver;
mod sender;
mod sleep;

#[cfg(feature = "bugs")]
pub use bugs::Bug;
pub use end::{End, Progress};
pub use error::{PutError, Violation};
pub use layout::{ASLEEP, CONSUMED, END, Head, Layout, LayoutError, RING, WORD};
pub use memory::{Far, Near};
pub use receiver::{Look, Record};
pub use sleep::{Announce, RECORDS, ROOM};
