// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ordered byte pipes between processes, behind one trait.
//!
//! ```text
//!   UnixAcceptor, ... ── accept ──► Transport ◄── UnixTransport::connect, ...
//!                                       │
//!                 unix, in_process, ring: reliable by themselves
//!                 datagram: RDP over UDP and Unix datagrams
//! ```
//!
//! [`Transport`] has the contract; `docs/transports.md` compares the transports. QUIC is a separate crate,
//! `telegraphos-quic`, so that nothing here links TLS; the fabric puts the set of all together, with addresses as they
//! are written, and its `tests/conformance.rs` holds every transport to the contract.
//! Nothing here blocks, starts a thread or reads a clock: time comes with each call.
#![forbid(unsafe_code)]

mod branch;
mod datagram;
mod error;
pub mod faults;
mod host;
mod identity;
mod in_process;
mod memory;
mod options;
mod ring;
pub mod scheme;
mod traits;
mod unix;
mod waker;

pub use branch::{Branch, Inbox, SharedSocket};
pub use datagram::{AcceptedTransport, BoundSocket, DatagramAcceptor, DatagramAddress, DatagramTransport};
pub use error::OpenError;
pub use host::HostPort;
pub use identity::{PIN, Peer, QuicOptions};
pub use in_process::InProcess;
pub use memory::MemoryTransport;
pub use options::Options;
pub use ring::{RingAcceptor, RingTransport};
pub use traits::{Acceptor, AcceptorStatistics, Datagrams, Received, Transport, TransportStatistics};
pub use unix::{UnixAcceptor, UnixTransport};
pub use waker::Waker;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a mutex protects, even if a holder of the lock panicked: nothing here or in `telegraphos-quic` panics between
/// two steps of one change.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
