// SPDX-License-Identifier: MIT OR Apache-2.0
//! What all connections over datagram sockets have in common: sizes, times, random numbers, faults.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};
use telegraphos_rdp_core::{Config, HEADER_LEN, Identity};

use super::address::DatagramAddress;
use crate::faults::{FaultyDatagrams, LinkFaults};
use crate::{Datagrams, Options};

/// Payload of a segment over UDP: with its header and those of UDP and IPv6, it fits an Ethernet frame.
const UDP_MTU: u16 = 1400;
/// Over Unix sockets there is no frame; a socket queues few datagrams (`net.unix.max_dgram_qlen`, often 10), so they
/// are larger.
const UNIX_MTU: u16 = 8192;
/// Microseconds after which a datagram that a socket did not take is sent again.
pub(super) const RETRY: u64 = 200;
/// Datagrams read from a socket in one call, at most, so that other work is not delayed by a flood.
pub(super) const BATCH: usize = 256;

/// The protocol's parameters for connections at an address.
pub(super) fn config(address: &DatagramAddress, options: &Options) -> Config {
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

/// Bytes of the longest datagram.
pub(super) fn longest(config: &Config) -> usize {
    usize::from(config.mtu) + HEADER_LEN
}

/// A buffer for received datagrams: one byte longer than the longest, so that a longer one is not taken for valid.
pub(super) fn buffer(config: &Config) -> Box<[u8]> {
    vec![0; longest(config) + 1].into_boxed_slice()
}

/// Datagrams with a place for faults, if one is wanted.
pub(super) fn with_faults(datagrams: impl Datagrams + 'static, faults: Option<&LinkFaults>) -> Box<dyn Datagrams> {
    match faults {
        Some(link) => Box::new(FaultyDatagrams::new(datagrams, link.clone())),
        None => Box::new(datagrams),
    }
}

/// Random numbers for a new connection.
pub(super) fn fresh() -> io::Result<Identity> {
    let (mut id, mut sequence) = ([0; 8], [0; 4]);
    getrandom(&mut id, GetRandomFlags::empty())?;
    getrandom(&mut sequence, GetRandomFlags::empty())?;
    Ok(Identity { id: u64::from_ne_bytes(id).max(1), sequence: u32::from_ne_bytes(sequence) })
}
