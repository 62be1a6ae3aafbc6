// SPDX-License-Identifier: MIT OR Apache-2.0
//! Framed directions of a connection, as state machines.
//!
//! | File | What it shows |
//! |---|---|
//! | `bugs` | of each deliberate bug: the check that must find it |
//! | `random` | both ends of a direction in random order, against the bytes that were written |
#![allow(clippy::unwrap_used, reason = "a test may")]

mod bugs;
mod random;
