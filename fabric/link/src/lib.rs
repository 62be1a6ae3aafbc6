// SPDX-License-Identifier: MIT OR Apache-2.0
//! What HIB and fabric share at their border: a Unix stream of frames, and what a socket of any server needs.
//!
//! ```text
//!   HIB ── LinkClient ══ Unix stream of frames ══ Input ── port of the fabric
//!            └ SendQueue                            └ Listener
//! ```
//!
//! Two boards of one host may have a ring between them, which the fabric hands out: each has a
//! [`RingEnd`](ring_end::RingEnd), of memory that two processes share ([`ring`]) or within one. `unsafe` exists in the
//! former (`ring/memory.rs`) only.
//!
//! [`LinkClient`] is the HIB's end of a link; [`Input`] decodes frames at both ends. Where HIB and fabric are in one
//! process a [`MemoryLink`] takes the place of the stream. [`listener`] and [`send_queue`]
//! serve every Unix socket of Telegraphos, vfio-user and control sockets included; [`limit`] every log line that a
//! guest or a peer can trigger; [`bell`] is what a loop waits for, and [`descriptors`] go over sockets by one
//! call. The frames themselves are `telegraphos_wire::link`.
//!
//! Used by the HIB (`telegraphos-device`), the fabric, its transports, and clients that join a fabric as a node.
//!
//! Not for this crate: what only one of the two needs, threads, clocks (time comes with each call), settings and
//! command lines (`telegraphos-service`), transports between fabric processes (`telegraphos-transport`), and any
//! dependency on TLS, HTTP or metrics: the HIB links all that is here.
#![deny(unsafe_code)]

pub mod bell;
mod client;
pub mod descriptors;
mod input;
pub mod limit;
pub mod listener;
mod memory;
mod queue;
pub mod ring;
pub mod ring_end;
pub mod send_queue;

pub use client::{LinkClient, OUT_LIMIT, OutputFull, Received, hello};
pub use input::{BATCH, Input};
pub use memory::{Door, MemoryLink};
