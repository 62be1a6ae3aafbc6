// SPDX-License-Identifier: MIT OR Apache-2.0
//! How connections are made, whatever carries them.

use crate::faults::LinkFaults;

/// How connections are made. Start from the default and change fields.
#[derive(Clone, Debug)]
pub struct Options {
    /// The command line's option that gave the address, for error messages.
    pub named: &'static str,
    /// Bytes that may wait at one end of a connection for a peer that does not read.
    pub buffer: usize,
    /// Microseconds for which a ring in use is polled before its user sleeps. Saves wake-ups of 10 to 20 µs each and
    /// costs a processor.
    pub spin: u64,
    /// A place for faults on the connection, with those of this link to begin with; a listener's connections have the
    /// same until [`Transport::set_faults`](crate::Transport::set_faults). What is reliable by itself has its faults
    /// above it ([`FaultyTransport`](crate::faults::FaultyTransport)), put there by the caller.
    pub faults: Option<LinkFaults>,
    /// Microseconds without a datagram from the other end after which a transport over datagrams ends.
    pub silence: u64,
    /// The name of this end, for transports over datagrams: at the other end a new connection ends the old one of the
    /// same name, so that a restart is noticed at once whatever the address. 0: none; then the address is the name.
    pub name: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { named: "address", buffer: 256 << 10, spin: 0, faults: None, silence: 10_000_000, name: 0 }
    }
}
