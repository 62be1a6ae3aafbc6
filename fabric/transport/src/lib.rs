// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ordered byte pipes between processes, behind one trait, so that what speaks over them does not know which it has.
//!
//! ```text
//!   Address ── listen ──► Acceptor ── accept ──► Transport ◄── connect ── Address
//!                                                    │
//!                 unix, in_process, ring: reliable by themselves
//!                 datagram: RDP over UDP and Unix datagrams
//! ```
//!
//! [`Transport`] has the contract, which `tests/conformance.rs` holds every transport to; `docs/transports.md` compares them.
//! Nothing here blocks, starts a thread or reads a clock: time comes with each call.
//!
//! `unsafe` exists in `ring/memory.rs` only.
#![deny(unsafe_code)]

mod address;
mod datagram;
mod error;
pub mod faults;
mod in_process;
mod open;
pub mod quic;
mod ring;
mod traits;
mod unix;

pub use address::{Address, AddressError, HostPort};
pub use datagram::{AcceptedTransport, DatagramAcceptor, DatagramTransport};
pub use error::OpenError;
pub use in_process::InProcess;
pub use open::{Options, connect, listen};
pub use ring::{RingAcceptor, RingTransport};
pub use traits::{Acceptor, AcceptorStatistics, Datagrams, Received, Transport, TransportStatistics};
pub use unix::{UnixAcceptor, UnixTransport};
