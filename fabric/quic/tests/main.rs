// SPDX-License-Identifier: MIT OR Apache-2.0
//! QUIC as a transport, over real sockets.
//!
//! | File | What it shows |
//! |---|---|
//! | `peers` | peers that are not welcome: wrong certificates, garbage, floods; wrong options |
//! | `quic` | QUIC as a pipe of bytes: order, back-pressure, many connections, faults |
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod peers;
mod quic;
mod support;
