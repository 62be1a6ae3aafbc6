// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host interface board (HIB) as a pure state machine: [`Event`]s in, [`Action`]s out (contract 2).
//!
//! | Part | Owns | Input | May use |
//! |---|---|---|---|
//! | `hib` | the parts; dispatches each event and each follow-up | every [`Event`] | all |
//! | `control` | the register map; dispatches admin commands | accesses to BAR0, `LoadCommand` steps | all |
//! | `requester` | imports, contexts, send queues (a store waits there for a credit), requests in flight, `quiet` | accesses to BAR4, replies, credits | `page_counters`, `ctx` |
//! | `launch` | atomics and copies | accesses to BAR2, block steps | `replica`, `requester`, `grants`, `ctx` |
//! | `replica` | copies of replicated pages, and their homes | requests for such pages, class `Reflected`, steps | `requester`, `responder`, `grants`, `ctx` |
//! | `responder` | inbound requests by source, one of each in service | class `Request`, steps | `grants`, `ctx` |
//! | `queue` | notification queues; a full one stops until the driver has linked a buffer (`docs/queues.md`) | class `Enqueue`, steps, ARM | `grants`, `ctx` |
//! | `watch` | armed words of granted pages | ARM, steps that change such pages | `grants`, `ctx` |
//! | `grants` | granted pages, published names | admin commands | `ranges`, `ctx` |
//! | `ranges` | granted ranges and their runs | lists of runs, steps | `ctx` |
//! | `page_counters` | page access counters | accepted accesses | `ctx` |
//! | `ctx` | the context that every part receives: configuration, time, [`Action`]s, steps, and the seven below | | itself |
//! | `answers` | refused epochs, counts of performed requests | outgoing replies | `ctx` |
//! | `due` | acknowledgements of this turn | performed requests | |
//! | `admin` | admin slots and their completions | | `ctx` |
//! | `tables` | writes to the board's own tables in guest memory | their steps | `ctx` |
//! | `events` | the event queue | causes | `ctx` |
//! | `link` | credits of all classes | credits | |
//! | `rings` | rings to boards of the same host: paths, credits, checks | packets and credits of rings | |
//! | `arrived`, `loan` | no state: a packet that has arrived, memory that shells lend | | |
//!
//! No part calls a part above it. When a part needs one (the requests of a source can be served again, or this node
//! sent a packet to itself), it leaves a `ctx::FollowUp`. `hib` dispatches the follow-ups in order after the part
//! returns.
//!
//! The core has no sockets, clocks, threads or `unsafe`. The shell owns those: it feeds events, performs actions, and
//! returns the result of each [`Step`] as [`Event::StepDone`], either at once (the server) or later and interleaved
//! with others (model and simulator). Time advances only by [`Event::Tick`]; [`Hib::deadline`] returns the next time at
//! which the core needs a tick. Events come in *turns* of any length; the shell ends each by [`Hib::end_turn`], which
//! acknowledges what was performed in it.
#![forbid(unsafe_code)]

mod access;
mod admin;
mod answers;
mod arrived;
mod bursts;
mod by_node;
mod config;
mod control;
mod counters;
mod ctx;
mod due;
mod events;
mod grants;
mod hib;
mod interface;
mod kept;
mod keyed;
mod launch;
mod link;
mod loan;
mod numbered;
mod page_counters;
mod queue;
mod ranges;
mod registers;
mod replica;
mod requester;
mod responder;
mod rings;
mod table;
mod tables;
mod watch;

#[cfg(feature = "bugs")]
pub use config::Launching;
pub use config::{
    BLOCK_BYTES, BLOCKS, Bug, HibConfig, KEY_ATTEMPTS, MAX_CONTEXTS, MAX_COPY, SHORT_BLOCK, STATUS_WORDS, TURN_BYTES,
};
pub use counters::Counters;
pub use hib::Hib;
pub use interface::{
    Action, Bar, Event, LostStore, Notice, Piece, RingAction, RingEvent, RingViolation, Step, StepId, StepResult,
    Token, WindowStore,
};
pub use loan::{Data, LentPacket, Loan};
