// SPDX-License-Identifier: MIT OR Apache-2.0
//! RDP over datagram sockets: `udp:` and `unix-datagram:`. The protocol is `telegraphos-rdp-core`; here are sockets,
//! descriptors and random numbers.
//!
//! ```text
//!   client.rs   DatagramTransport ── Connection ── Datagrams (connected socket, faults)
//!
//!   server.rs   DatagramAcceptor ─┐
//!               AcceptedTransport ┼─ Hub (hub.rs) ── Listener ── Datagrams of each peer (faults) ── one socket
//!               AcceptedTransport ┘
//! ```
//!
//! The server has one socket for all its connections. Whichever of them (or the acceptor) is called reads all that has
//! arrived from the socket, passes it to the connections it is for, and wakes their users (`waker.rs`).

mod address;
mod client;
mod hub;
mod parameters;
mod server;
mod socket;
#[cfg(test)]
mod tests;
mod user;

pub use address::DatagramAddress;
pub use client::DatagramTransport;
pub use server::{AcceptedTransport, DatagramAcceptor};
pub use socket::BoundSocket;
