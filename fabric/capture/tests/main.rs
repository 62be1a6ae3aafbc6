// SPDX-License-Identifier: MIT OR Apache-2.0
//! Captures: their files, their dissector, their replay.
//!
//! | File | What it shows |
//! |---|---|
//! | `dissector` | the dissector, its tables and the code of `wire` agree |
//! | `files` | what is in the file is what was given; files that cannot take it |
//! | `replay` | a switch like the captured one does the same again, another does not |
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod common;
mod dissector;
mod files;
mod replay;
