// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control socket without a fabric: what is said, and what clients that misbehave cost.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod clients;
mod fake;
mod metrics;
mod protocol;
