// SPDX-License-Identifier: MIT OR Apache-2.0
//! A transport for trunks between hosts: QUIC (RFC 9000) by `quinn-proto`, a pure state machine that fits a
//! polling loop. `docs/engines.md` says why this one.
//!
//! ```text
//!   QuicTransport ─┐ lock ┌─ Entry: Connection ─┐
//!   QuicTransport ─┼──────┤  Entry: Connection ─┼─ Endpoint ── Network ── faults per peer ── Udp
//!   QuicAcceptor  ─┘      └─ ...   one Driver   ┘
//! ```
//!
//! Both ends authenticate each other by certificate ([`QuicOptions`]) before a byte is carried; everything is
//! encrypted. Each end opens one unidirectional stream for what it sends. The engine's flow control is the
//! back-pressure, its idle timeout the silence after which a peer is declared down.
//!
//! `flush` says that nothing is left when the peer has acknowledged everything; what is dropped before that may be
//! lost.
//!
//! Whichever user of a driver is called reads the socket and serves the timers for all
//! ([`Waker`](telegraphos_transport::Waker)).
//!
//! A separate crate, since it is the only transport that links TLS: `telegraphos_transport` has the contract and the
//! others.
#![forbid(unsafe_code)]

mod acceptor;
mod admission;
#[cfg(test)]
mod anonymous;
mod bugs;
mod clock;
mod config;
mod credentials;
mod driver;
mod ending;
mod entry;
mod network;
mod options;
mod reception;
mod transport;
mod udp;
mod verify;

pub use acceptor::QuicAcceptor;
#[cfg(feature = "bugs")]
pub use bugs::Bug;
pub use credentials::{CredentialsError, peer};
pub use options::Options;
pub use transport::QuicTransport;

use std::io;
use std::net::SocketAddr;

use telegraphos_transport::HostPort;
pub use telegraphos_transport::{Peer, QuicOptions};

/// What tests of the whole crate have in common is used by those inside, too.
#[cfg(test)]
extern crate self as telegraphos_quic;

/// The first socket address of a host.
fn resolve(at: &HostPort) -> io::Result<SocketAddr> {
    let found = at.resolve()?;
    found.first().copied().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{} has no address", at.host)))
}
