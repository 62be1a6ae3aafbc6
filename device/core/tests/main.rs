// SPDX-License-Identifier: MIT OR Apache-2.0
//! The board as a state machine, event by event, and simulations of clusters of boards.
//!
//! | File | What it shows |
//! |---|---|
//! | `acknowledgements` | one packet per turn acknowledges what the board performed in it (I7, E19) |
//! | `board` | the board's guarantees on seeded schedules |
//! | `bugs` | for each deliberate bug, the check that must find it |
//! | `events` | the event queue with EVENT_INDEX: no event waits while the driver sleeps |
//! | `gates` | gates of ranges: one node reaches memory that stays granted |
//! | `holds_and_names` | receive credits and names: limits per node, and lookups that are refused |
//! | `launches` | limits of launches: turns, accounts and congestion of contexts |
//! | `loans` | copies between boards of one process, of memory that is lent |
//! | `losses` | no store behind a lost one is performed (I8) |
//! | `messages_simulation` | simulation of messages: engines, boards, the switch, faults |
//! | `operations` | atomics, copies, how they are launched, page access counters |
//! | `operations_simulation` | simulation of every operation, with faults |
//! | `queues` | notification queues: layout, overflow, order, receive credits, refusals, arm |
//! | `queues_simulation` | simulation of notification queues, with faults |
//! | `ranges` | memory in scattered runs: granted, copied, revoked, accounted for |
//! | `replica_invalidation` | copies that become invalid instead of being updated |
//! | `replica_moves` | the home of a page moves while every node stores |
//! | `replica_variants` | the designs that s1 considers before its counters, and their cost |
//! | `replicas` | replicated pages: the home's order, counters, joins and leaves |
//! | `replicas_simulation` | simulation of 200 replicated pages at 64 nodes, with faults |
//! | `ring` | the sharing ring of Galactica Net, which Telegraphos does not use |
//! | `rings` | rings between boards of one host |
//! | `shares` | what one destination or import can use up at the requester |
//! | `silent_members` | copies and homes that do not answer |
//! | `silent_nodes` | a node that is up and leaves requests unanswered |
//! | `simulation` | simulation of stores in whole clusters, with faults |
//! | `turns` | how boards share a loop when some of them copy, in exact numbers |
//! | `watches` | words that processes wait for asleep (`WORD_ARM`) |
#![allow(clippy::unwrap_used, clippy::panic, reason = "checks and harness are functions called by tests")]

mod acknowledgements;
mod board;
mod bugs;
mod bursts;
mod common;
mod events;
mod gates;
mod holds_and_names;
mod launches;
mod loans;
mod losses;
mod messages_simulation;
mod operations;
mod operations_simulation;
mod queues;
mod queues_simulation;
mod ranges;
mod replica_invalidation;
mod replica_moves;
mod replica_variants;
mod replicas;
mod replicas_simulation;
mod ring;
mod rings;
mod shares;
mod silent_members;
mod silent_nodes;
mod simulation;
mod turns;
mod watches;
