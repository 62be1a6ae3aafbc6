// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fabric with real sockets and as a process.
//!
//! | File | What it shows |
//! |---|---|
//! | `check` | `telegraphos-fabric --check` and `--draw`: reports, drawings, exit codes |
//! | `command` | the command `telegraphos-fabric`: exit codes, messages, signals |
//! | `conformance` | one suite for every transport |
//! | `control` | the control socket and the metrics without a fabric |
//! | `controlled` | a running fabric with a client at its control socket, and a scraper |
//! | `doorway` | the process with few descriptors: unidentified connections leave room for nodes |
//! | `links` | order and completeness under load, refused joiners, ends of all kinds |
//! | `round_trips` | the round trip of a trunk between two processes, whatever carries it |
//! | `trunks` | several switches in one process and in several |
//!
//! `slow_reader` is a program of its own: it measures the memory of its process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod check;
mod command;
mod common;
mod conformance;
mod control;
mod controlled;
mod doorway;
mod links;
mod round_trips;
mod trunks;
