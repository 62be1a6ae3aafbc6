// SPDX-License-Identifier: MIT OR Apache-2.0
//! RDP over datagram sockets: `udp:` and `unix-datagram:`. The protocol is `rdp-core`; here are sockets, descriptors
//! and random numbers.
//!
//! ```text
//!   client.rs   DatagramTransport ── Connection ── Datagrams (connected socket, faults)
//!
//!   server.rs   DatagramAcceptor ─┐
//!               AcceptedTransport ┼─ Hub (hub.rs) ── Listener ── Datagrams of each peer (faults) ── one socket
//!               AcceptedTransport ┘
//! ```
//!
//! The side that is called has one socket for all its connections. Whichever of them (or the acceptor) is asked for
//! bytes takes all that came out of the socket, hands it to the connections it is for, and wakes those (`wake.rs`).

mod address;
mod client;
mod hub;
mod server;
mod socket;
#[cfg(test)]
mod tests;
mod wake;

use std::io;

use rdp_core::{Config, Connection, End, HEADER_LEN, Identity, State};
use rustix::rand::{GetRandomFlags, getrandom};

pub use address::DatagramAddress;
pub use client::DatagramTransport;
pub use server::{AcceptedTransport, DatagramAcceptor};

use crate::faults::{FaultyDatagrams, LinkFaults};
use crate::{Datagrams, Options, Received, TransportStatistics};

/// Payload of a segment over UDP: with its header and those of UDP and IPv6, it fits a frame of Ethernet.
const UDP_MTU: u16 = 1400;
/// Over Unix sockets there is no frame; a socket takes few datagrams (`net.unix.max_dgram_qlen`, often 10), so that
/// they are larger.
const UNIX_MTU: u16 = 8192;
/// When to try again what a socket did not take, microseconds.
const RETRY: u64 = 200;
/// Datagrams taken out of a socket in one go, at most: others want to be served too.
const BATCH: usize = 256;

/// The protocol's parameters for connections at an address.
fn config(address: &DatagramAddress, options: &Options) -> Config {
    let mtu = if matches!(address, DatagramAddress::Udp(_)) { UDP_MTU } else { UNIX_MTU };
    let buffer = options.buffer.max(usize::from(mtu));
    let default = Config::default();
    Config {
        mtu,
        send_buffer: buffer,
        receive_buffer: buffer,
        silence: options.silence.max(4 * default.timeout_max),
        ..default
    }
}

/// The longest datagram.
fn longest(config: &Config) -> usize {
    usize::from(config.mtu) + HEADER_LEN
}

/// Datagrams with a place for faults, if one is wanted.
fn with_faults(datagrams: impl Datagrams + 'static, faults: Option<&LinkFaults>) -> Box<dyn Datagrams> {
    match faults {
        Some(link) => Box::new(FaultyDatagrams::new(datagrams, link.clone())),
        None => Box::new(datagrams),
    }
}

/// Random numbers for a new connection.
fn fresh() -> io::Result<Identity> {
    let (mut id, mut sequence) = ([0; 8], [0; 4]);
    getrandom(&mut id, GetRandomFlags::empty())?;
    getrandom(&mut sequence, GetRandomFlags::empty())?;
    Ok(Identity { id: u64::from_ne_bytes(id).max(1), sequence: u32::from_ne_bytes(sequence) })
}

/// What a connection has for its user: bytes, nothing, the end. That there never was anybody is an error.
fn outcome(connection: &mut Connection, buffer: &mut [u8], address: &DatagramAddress) -> io::Result<Received> {
    match connection.receive(buffer) {
        0 => {}
        count => return Ok(Received::Bytes(count)),
    }
    match connection.state() {
        State::Ended(End::Silent) if connection.statistics().established == 0 => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("nobody answers at {address}: is the process that listens there running, and nothing in between?"),
        )),
        State::Ended(_) => Ok(Received::End),
        _ if connection.at_end() => Ok(Received::End),
        State::Opening | State::Answering | State::Established => Ok(Received::Nothing),
    }
}

/// Gives bytes to a connection: how many were taken. If it is over, which [`outcome`] tells, all of them, for nobody:
/// nobody should wait for room.
fn give(connection: &mut Connection, bytes: &[u8]) -> usize {
    match connection.state() {
        State::Ended(_) => bytes.len(),
        _ => connection.send(bytes),
    }
}

/// Why a connection is over, if it is.
fn end_reason(connection: &Connection) -> Option<&'static str> {
    match connection.state() {
        State::Ended(End::Restarted) => Some("the other end was restarted: what was on the way is lost"),
        State::Ended(End::Silent) => Some("nothing came from the other end for too long: it has gone, or is cut off"),
        State::Ended(End::Abandoned) if !connection.at_end() => Some("the other end gave the connection up"),
        _ => None,
    }
}

/// Whether [`outcome`] is more than nothing.
fn has_news(connection: &Connection) -> bool {
    connection.available() > 0 || connection.at_end() || matches!(connection.state(), State::Ended(_))
}

/// The counters of a connection, and those of what is below it.
fn statistics(connection: &Connection, taken: TransportStatistics, below: TransportStatistics) -> TransportStatistics {
    let s = connection.statistics();
    let damaged = s.checksum_errors + s.length_errors + s.version_errors + s.malformed;
    TransportStatistics {
        received_bytes: taken.received_bytes,
        sent_bytes: taken.sent_bytes,
        received_datagrams: s.datagrams_received,
        sent_datagrams: s.datagrams_sent,
        retransmitted: s.retransmissions,
        rejected: damaged + s.foreign + s.duplicates + s.out_of_order,
        wakes: taken.wakes,
        faults: below.faults,
        round_trip: connection.round_trip(),
    }
}
