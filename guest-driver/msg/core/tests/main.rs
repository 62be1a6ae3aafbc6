// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine of messages, rule by rule, in random order, and in all orders.
//!
//! | File | What it shows |
//! |---|---|
//! | `bugs` | of each deliberate bug: the check that must find it |
//! | `far` | processes, gateways and streams that come and go, against the graph that they make |
//! | `model` | all interleavings of a few operations |
//! | `random` | processes in random order, against a plain list of messages and receives |
//! | `rules` | single rules: the rendezvous, the paper's sizes, limits, violations |
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod bugs;
mod common;
mod far;
mod model;
mod random;
mod rules;
