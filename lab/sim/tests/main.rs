// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs of the simulator, and the files that it reads and writes.
//!
//! | File | What it shows |
//! |---|---|
//! | `simulation` | whole runs: the same each time, known answers, fairness, faults |
//! | `threads` | the report depends neither on the number of threads nor on the order of calls |
//! | `trace` | traces are what the format says, and say what the report says |
//! | `workload` | workload files: what they may say, and what is said about wrong ones |
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod simulation;
mod threads;
mod trace;
mod workload;
