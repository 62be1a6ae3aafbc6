// SPDX-License-Identifier: MIT OR Apache-2.0
//! Boards and switches in one process.
//!
//! | File | What it shows |
//! |---|---|
//! | `direct` | memory devices of a trust group, with independent vfio-user clients |
//! | `host` | boards and a fabric in one process, with a client in the place of each QEMU |
//! | `units` | the units of systemd, and the command lines in them |
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod common;
mod direct;
mod host;
mod units;
