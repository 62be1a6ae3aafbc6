// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host interface board (HIB) as a pure state machine: [`Event`]s in, [`Action`]s out (DESIGN contract 2).
//!
//! ```text
//!  guest MMIO --Write/Read--> requester/access   slot -> import -> send queue of the destination
//!                             requester/send     window of outstanding requests, credits of link --Send--> switch
//!                             enqueue            elements for queues, each import in its own send queue
//!                             launch             arguments, slots -> atomics, copies -> requests behind the stores
//!                             page_counters      accesses of armed pages
//!                             control            registers, admin commands -> grants, imports, segments, contexts
//!  switch ----Packet--------> responder          grant check -> one guest-memory Step at a time per source -> reply
//!                             queue              receive credits -> queue machine -> buffer; overflow -> driver
//!                             replica            copies of replicated pages, and their homes
//!         ----Credit--------> link               credits of all classes
//!                             events             causes -> event queue in guest memory -> Interrupt
//! ```
//!
//! No sockets, clocks, threads or `unsafe` inside. A shell owns those: it feeds events, performs actions, and returns the
//! result of each [`Step`] as [`Event::StepDone`], at once (the server) or later, interleaved with others (model and
//! simulator). Time is what [`Event::Tick`] says; [`Hib::deadline`] names the next moment at which a tick is needed.
#![forbid(unsafe_code)]

mod admin;
mod config;
mod control;
mod ctx;
mod enqueue;
mod events;
mod hib;
mod interface;
mod launch;
mod link;
mod page_counters;
mod queue;
mod refusals;
mod replica;
mod requester;
mod responder;
mod tables;

pub use config::{Bug, HibConfig, Launching, MAX_CONTEXTS};
pub use hib::{Counters, Hib};
pub use interface::{Action, Bar, Event, LostStore, Notice, Step, StepId, StepResult, Token};
pub use launch::{BLOCKS, KEY_ATTEMPTS, MAX_COPY, STATUS_WORDS, TURN_BLOCKS};
