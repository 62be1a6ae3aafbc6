// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host interface board (HIB) as a pure state machine: [`Event`]s in, [`Action`]s out (DESIGN contract 2).
//!
//! | Part | What it owns | Takes | May use |
//! |---|---|---|---|
//! | `hib` | the parts; hands each event and each follow-up to its part | every [`Event`] | all |
//! | `control` | registers; hands each admin command to its part | accesses of BAR0, `LoadCommand` steps | all |
//! | `requester`, `enqueue` | imports, contexts, what is sent and not answered, `quiet` | accesses of BAR4, replies, credits | `launch`, `replica`, below |
//! | `launch` | atomics and copies | accesses of BAR2, block steps | `requester`, below |
//! | `replica` | copies of replicated pages, and their homes | requests for such pages, class `Reflected`, steps | `requester`, below |
//! | `serve` | nothing: it hands each request to its part | class `Request`, steps | `replica`, below |
//! | `responder` | requests of each source, one at a time in service | | `ctx` |
//! | `queue` | notification queues | class `Enqueue`, steps, ARM | `grants`, `ctx` |
//! | `grants` | granted pages, published names | admin commands | `ctx` |
//! | `page_counters` | page access counters | accesses that have been accepted | `ctx` |
//! | `ctx` | what every part is given: configuration, time, [`Action`]s, steps, and the five below | | itself |
//! | `answers` | refused epochs, requests performed | replies that leave | `ctx` |
//! | `admin` | admin slots and their completions | | `ctx` |
//! | `tables` | stores into the board's own tables | their steps | `ctx` |
//! | `events` | the event queue | causes | `ctx` |
//! | `link` | credits of all classes | credits | |
//!
//! Nobody calls up from `responder` on down: what one of these needs of a part above it (its source is to be served
//! again, a packet of this node is for itself) it leaves as a `ctx::FollowUp`, which `hib` hands on when the part has
//! returned, in order.
//!
//! No sockets, clocks, threads or `unsafe` inside. A shell owns those: it feeds events, performs actions, and returns
//! the result of each [`Step`] as [`Event::StepDone`], at once (the server) or later, interleaved with others (model
//! and simulator). Time is what [`Event::Tick`] says; [`Hib::deadline`] names the next moment at which a tick is
//! needed.
#![forbid(unsafe_code)]

mod admin;
mod answers;
mod config;
mod control;
mod ctx;
mod enqueue;
mod events;
mod grants;
mod hib;
mod interface;
mod launch;
mod link;
mod page_counters;
mod queue;
mod replica;
mod requester;
mod responder;
mod serve;
mod tables;

pub use config::{Bug, HibConfig, MAX_CONTEXTS};
pub use hib::{Counters, Hib};
pub use interface::{Action, Bar, Event, LostStore, Notice, Step, StepId, StepResult, Token};
#[cfg(feature = "bugs")]
pub use launch::Launching;
pub use launch::{BLOCKS, KEY_ATTEMPTS, MAX_COPY, STATUS_WORDS, TURN_BLOCKS};
