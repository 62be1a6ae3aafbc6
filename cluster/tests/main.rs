// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `telegraphos` as a process.
//!
//! | File | What it shows |
//! |---|---|
//! | `ctl` | `telegraphos ctl` and `telegraphos top`, against a fabric process |
//! | `detached` | the commands for detached clusters where there is none to use |
//! | `replay` | `telegraphos replay` as a user runs it |
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod ctl;
mod detached;
mod replay;
