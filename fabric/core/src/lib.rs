// SPDX-License-Identifier: MIT OR Apache-2.0
//! The switch between host interface boards, as a pure state machine: events in, actions out. No socket, clock, thread
//! or `unsafe` (contract 2); the same code runs in the fabric process, in models and in simulations.
//!
//! ```text
//!                    input of node i                          output of node x
//!   Frame ──► src, dst, credit checked ──► lane (i, x) ──┐
//!                                            per class   ├─► Reply > Reflected > Request > Enqueue ──► Send
//!   Credit ◄── owed: room that was freed   lane (j, x) ──┘      round-robin over lanes
//! ```
//!
//! What holds, and which code makes it so:
//!
//! - **Order** (SPEC I8): a pair of nodes has one queue per class and one route, a lane (`lane.rs`).
//! - **No loss, no unbounded queue** (contract 3): a packet of the classes enqueue, request and reflected is
//!   accepted only against a credit of its sender, and sent only against a credit of its receiver. The switch never
//!   holds more of them per input than it gave credits. Credits come back when packets leave ([`Switch`], "Credits").
//! - **One packet on each link for a multicast** (SPEC item 23): a home sends one packet for all copies of a page, and
//!   the switch puts one copy into the lane of each ([`Switch`], "Multicasts").
//! - **Replies always sink** (SPEC I13): they need no credit and go before everything else. They are bounded because
//!   requests are bounded: see [`SwitchConfig::reply_limit`].
//! - **Back-pressure of the transport**: [`Event::PortRoom`] says how many frames a port can take; never more are
//!   handed out.
//! - **Life cycle**: what a node sent before a [`Frame::Reset`] leaves before the [`Frame::NodeUp`] for it; after a
//!   [`Frame::NodeDown`] nothing of that incarnation follows.
//!
//! [`Frame::Reset`]: telegraphos_wire::link::Frame::Reset
//! [`Frame::NodeUp`]: telegraphos_wire::link::Frame::NodeUp
//! [`Frame::NodeDown`]: telegraphos_wire::link::Frame::NodeDown
#![forbid(unsafe_code)]

#[macro_use]
mod hook;
#[cfg(feature = "bugs")]
mod bugs;
mod channel;
mod config;
mod groups;
mod interface;
mod lane;
mod neighbour;
mod nodes;
pub mod pairs;
mod ports;
mod presences;
pub mod rings;
mod snapshot;
mod statistics;
mod switch;

#[cfg(feature = "bugs")]
pub use bugs::Bug;
pub use config::{ConfigError, MAX_ACCEPTED_CREDITS, MAX_NODES, Part, SwitchConfig};
pub use interface::{Action, Attached, Diagnostic, Event, PortId, UNLIMITED, Violation};
pub use statistics::{ClassStatistics, PortStatistics, Statistics};
pub use switch::restore::Snapshot;
pub use switch::{State, Switch};

use telegraphos_wire::Class;

/// The classes that travel against credits, highest priority first; [`Class::Reply`] needs none and goes before them.
pub const CREDITED: [Class; 3] = [Class::Reflected, Class::Request, Class::Enqueue];
