// SPDX-License-Identifier: MIT OR Apache-2.0
//! A transport for trunks between hosts: QUIC (RFC 9000) by `quinn-proto`, whose pure state machine fits a loop that
//! polls. `docs/engines.md` says why this one.
//!
//! ```text
//!   QuicTransport ─┐ lock ┌─ Entry: Connection ─┐
//!   QuicTransport ─┼──────┤  Entry: Connection ─┼─ Endpoint ── Network ── faults per peer ── Udp
//!   QuicAcceptor  ─┘      └─ ...   one Driver   ┘
//! ```
//!
//! Both ends authenticate each other by certificate ([`QuicOptions`]) before a byte is carried; everything is
//! encrypted. Each end opens one unidirectional stream for what it sends. The engine's flow control is the
//! back-pressure, its idle timeout the silence after which a peer is gone.
//!
//! `flush` says that nothing is left when the peer has acknowledged everything; what is dropped before that may be
//! lost.
//!
//! Whoever of a driver's users is called reads the socket and serves the timers for all (`waker.rs`).

//!
//! A crate of its own, since it is the only transport that links TLS: `telegraphos_transport` has the contract and the
//! others.
#![forbid(unsafe_code)]

mod acceptor;
mod admission;
#[cfg(test)]
mod anonymous;
mod clock;
mod config;
mod credentials;
mod driver;
mod ending;
mod entry;
mod network;
mod options;
mod transport;
mod udp;
mod verify;
mod waker;

pub use acceptor::QuicAcceptor;
pub use credentials::{CredentialsError, Peer, QuicOptions};
pub use options::Options;
pub use transport::QuicTransport;

use std::io;
use std::net::SocketAddr;

use telegraphos_transport::HostPort;

/// The word before the first colon of an address: `quic:HOST:PORT`.
pub const SCHEME: &str = "quic";

/// Deliberate bugs behind the `bugs` feature, each of which a check of the conformance suite must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A transport that has been dropped keeps its descriptors.
    KeepDescriptors,
    /// The end overtakes bytes that have arrived.
    EndOvertakes,
}

fn resolve(at: &HostPort) -> io::Result<SocketAddr> {
    let found = at.resolve()?;
    found.first().copied().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{} has no address", at.host)))
}
