// SPDX-License-Identifier: MIT OR Apache-2.0
//! From an address to a transport.

use std::io;

use crate::datagram::{DatagramAcceptor, DatagramTransport};
use crate::faults::{FaultyAcceptor, FaultyTransport, LinkFaults};
use crate::ring::{RingAcceptor, RingTransport};
use crate::unix::{UnixAcceptor, UnixTransport};
use crate::{Acceptor, Address, OpenError, Transport};

/// How connections are made. Start from the default and change fields.
#[derive(Clone, Debug)]
pub struct Options {
    /// The command line's option that gave the address, for error messages.
    pub named: &'static str,
    /// Bytes that may wait at one end of a connection for a peer that does not read.
    pub buffer: usize,
    /// Microseconds for which a ring that was in use is looked at again and again before its owner sleeps. Saves wake-ups of 10 to 20
    /// µs each and costs a processor.
    pub spin: u64,
    /// A place for faults on the connection, with those of this link to begin with; a listener's connections have the same until
    /// [`Transport::set_faults`].
    pub faults: Option<LinkFaults>,
    /// Microseconds without a word from the other end after which transports over datagrams give a connection up.
    pub silence: u64,
    /// Who calls, for transports over datagrams: at the other end, a new connection ends the old one of the same name, so that a
    /// restart is noticed at once whatever the address. 0: nobody in particular; then the address is the name.
    pub name: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { named: "address", buffer: 256 << 10, spin: 0, faults: None, silence: 10_000_000, name: 0 }
    }
}

fn missing(address: &Address) -> (io::Error, String) {
    let why = format!("this program has no transport {}", address.scheme());
    (io::Error::new(io::ErrorKind::Unsupported, why), "choose unix:PATH or ring:PATH".to_owned())
}

/// What is reliable by itself has its faults above it.
fn accepting(acceptor: impl Acceptor + 'static, options: &Options) -> Box<dyn Acceptor> {
    match &options.faults {
        Some(link) => Box::new(FaultyAcceptor::new(acceptor, link.clone())),
        None => Box::new(acceptor),
    }
}

fn connected(
    transport: impl Transport + 'static,
    address: &Address,
    options: &Options,
) -> Result<Box<dyn Transport>, OpenError> {
    Ok(match &options.faults {
        Some(link) => Box::new(
            FaultyTransport::new(transport, link.clone())
                .map_err(|e| OpenError::connect(address, e, "raise the limit of open files (ulimit -n)"))?,
        ),
        None => Box::new(transport),
    })
}

/// Listens at `address`.
pub fn listen(address: &Address, options: &Options) -> Result<Box<dyn Acceptor>, OpenError> {
    match address {
        Address::Unix(path) => Ok(accepting(UnixAcceptor::bind(path, options)?, options)),
        Address::Ring(path) => Ok(accepting(RingAcceptor::bind(path, options)?, options)),
        Address::Udp(_) | Address::UnixDatagram(_) => Ok(Box::new(DatagramAcceptor::bind(address, options)?)),
        other => {
            let (why, hint) = missing(other);
            Err(OpenError::listen(other, why, hint))
        }
    }
}

/// Connects to `address`. Never blocks; whether somebody answers may show only later, as [`Received::End`](crate::Received::End) or
/// an error of the transport.
pub fn connect(address: &Address, options: &Options) -> Result<Box<dyn Transport>, OpenError> {
    match address {
        Address::Unix(path) => connected(UnixTransport::connect(path, options)?, address, options),
        Address::Ring(path) => connected(RingTransport::connect(path, options)?, address, options),
        Address::Udp(_) | Address::UnixDatagram(_) => Ok(Box::new(DatagramTransport::connect(address, options)?)),
        other => {
            let (why, hint) = missing(other);
            Err(OpenError::connect(other, why, hint))
        }
    }
}
