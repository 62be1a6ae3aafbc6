// SPDX-License-Identifier: MIT OR Apache-2.0
#![forbid(unsafe_code)]
//! The reliable datagram protocol (SPEC item 35, s3 section 4): bytes in order, each once, over a medium that loses,
//! doubles, reorders and damages datagrams.
//!
//! ```text
//!   Connection   one end: handshake, keep-alive, end           connection.rs
//!     Sender     window, go-back-N, pause, timer               sender.rs, rtt.rs
//!     Receiver   order, room, when to answer                   receiver.rs
//!   Listener     many connections on one socket; restarts      listener.rs
//!   Datagram     44 bytes of header, CRC-32C                   datagram.rs
//! ```
//!
//! Everything here is pure: datagrams and the time (microseconds of any monotonic clock) are parameters, datagrams to
//! send are returned by [`Connection::poll_transmit`], and [`Connection::deadline`] is when [`Connection::timer`] must
//! be called next. Connection ids and first sequence numbers are random numbers that the caller passes in.
//! `docs/rdp.md` describes the protocol, why it is as it is, and what was measured.
//!
//! One byte pipe:
//!
//! ```
//! use telegraphos_rdp_core::{Config, Connection, Identity, Listener};
//!
//! let mut listener = Listener::new(Config::default())?;
//! let mut client = Connection::open(Config::default(), Identity { id: 7, sequence: 1000 }, 99, 0)?;
//! client.send(b"hello");
//! let mut datagram = Vec::new();
//! let server = loop {
//!     while client.poll_transmit(0, &mut datagram) {
//!         listener.datagram(0, &"client's address", &datagram, Identity { id: 8, sequence: 2000 });
//!     }
//!     while let Some((_address, _key)) = listener.poll_transmit(0, &mut datagram) {
//!         client.datagram(0, &datagram);
//!     }
//!     if let Some(server) = listener.accepted().next() {
//!         break server;
//!     }
//! };
//! while client.poll_transmit(0, &mut datagram) {
//!     listener.datagram(0, &"client's address", &datagram, Identity { id: 9, sequence: 3000 });
//! }
//! let mut received = [0; 16];
//! let count = listener.connection_mut(server).map_or(0, |c| c.receive(&mut received));
//! assert_eq!(&received[..count], b"hello");
//! # Ok::<(), telegraphos_rdp_core::ConfigError>(())
//! ```

mod bugs;
mod config;
mod connection;
mod datagram;
mod listener;
mod receiver;
mod rtt;
mod sender;
mod sequence;
mod statistics;

#[cfg(feature = "bugs")]
pub use bugs::Bug;
pub use config::{Config, ConfigError, Identity};
pub use connection::{Connection, End, State};
pub use datagram::{Datagram, Discard, HEADER_LEN, Kind, MAX_PAYLOAD, VERSION};
pub use listener::{Key, Listener};
pub use sequence::Sequence;
pub use statistics::Statistics;
