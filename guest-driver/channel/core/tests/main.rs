// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two ends of a channel, in all orders, under all orders of memory, and against ends that lie.
//!
//! | File | What it shows |
//! |---|---|
//! | `bugs` | of each deliberate bug: the check that must find it |
//! | `lies` | words that change at any load: the channel ends with an error and nothing else |
//! | `model` | all interleavings of two ends, with stores that are under way; which carriers need what |
//! | `orders` | all outcomes of weakly ordered memory (loom) |
//! | `rules` | sizes, credits, the end, what a record cannot be |
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod bugs;
mod lies;
mod memory;
mod model;
mod orders;
mod rules;
