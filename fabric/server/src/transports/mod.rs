// SPDX-License-Identifier: MIT OR Apache-2.0
//! The set of transports: which there are, how their addresses are written, and from an address to a connection.
//!
//! ```text
//!   Address ── listen ──► Acceptor ── accept ──► Transport ◄── connect ── Address
//! ```
//!
//! `telegraphos_transport` and `telegraphos_quic` have the transports, which do not depend on each other; a new one is
//! added here, and to `tests/conformance.rs`, which holds each to the contract of
//! [`Transport`](telegraphos_transport::Transport).

mod address;
mod open;
mod options;
mod quic;

pub use address::{Address, AddressError};
pub use open::{connect, listen};
pub use options::Options;
