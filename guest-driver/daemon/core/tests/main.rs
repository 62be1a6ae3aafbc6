// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine of the daemon, event by event and in random order.
//!
//! | File | What it shows |
//! |---|---|
//! | `bugs` | of each deliberate bug: the check that must find it |
//! | `hostile` | what other parties send late, never, twice or with a lie in it |
//! | `limits` | one user does not use up what the daemon has for all |
//! | `random` | a cluster of daemons in random order |
#![allow(clippy::unwrap_used, reason = "a test may")]

mod bugs;
mod common;
mod hostile;
mod limits;
mod random;
