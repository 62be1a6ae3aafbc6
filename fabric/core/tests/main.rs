// SPDX-License-Identifier: MIT OR Apache-2.0
//! The switch as a state machine, alone and in networks.
//!
//! | File | What it shows |
//! |---|---|
//! | `accounts` | what one hostile node makes the switch hold or do is on its account |
//! | `bugs` | of each deliberate bug: the check that must find it |
//! | `invariants` | the switch's promises on random schedules and in chosen situations |
//! | `network` | networks of switches: what holds whatever breaks between nodes |
//! | `pairs` | the counters of pairs: exact while there is room, complete always |
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod accounts;
mod bugs;
mod common;
mod invariants;
mod network;
mod pairs;
mod world;
