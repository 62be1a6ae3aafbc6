// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fabric process: the pure switch of `switch-core` behind a Unix socket, and the HIB's end of that socket.
//!
//! ```text
//!   HIB process ── link::LinkClient ══ Unix stream ══ port ── switch_core::Switch ── port ══ ... ── HIB process
//! ```
//!
//! What travels on the stream is `telegraphos_wire::link`.
#![forbid(unsafe_code)]

pub mod link;
