// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server of a board with real sockets.
//!
//! | File | What it shows |
//! |---|---|
//! | `malformed` | the server survives malformed streams and serves the next client |
//! | `process` | the command `telegraphos-hib`: messages, exit codes, signals, memory, processor time |
//! | `protocol` | the server against an independent client, and one that misbehaves |
//! | `rings` | rings between boards of one host, over a real fabric |
//! | `two_nodes` | boards joined by a real fabric, and parts that fail |
//!
//! `allocations` is a program of its own: it replaces the allocator of its process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod malformed;
mod process;
mod protocol;
mod rings;
mod support;
mod two_nodes;
