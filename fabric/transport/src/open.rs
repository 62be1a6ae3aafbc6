// SPDX-License-Identifier: MIT OR Apache-2.0
//! From an address to a transport.

use std::io;

use crate::datagram::{DatagramAcceptor, DatagramTransport};
use crate::faults::{FaultyAcceptor, FaultyTransport, LinkFaults};
use crate::quic::{QuicAcceptor, QuicOptions, QuicTransport};
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
    /// Certificate, key and peers, for `quic:`.
    pub quic: Option<QuicOptions>,
    /// Whether `udp:` may leave this host, where everybody on the way can read, forge and inject what it carries.
    pub allow_insecure: bool,
    /// A deliberate bug of `quic:` that the conformance suite must find.
    #[cfg(feature = "bugs")]
    pub quic_bug: Option<crate::quic::Bug>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            named: "address",
            buffer: 256 << 10,
            spin: 0,
            faults: None,
            silence: 10_000_000,
            name: 0,
            quic: None,
            allow_insecure: false,
            #[cfg(feature = "bugs")]
            quic_bug: None,
        }
    }
}

impl Options {
    pub(crate) fn has(&self, bug: crate::quic::Bug) -> bool {
        #[cfg(feature = "bugs")]
        return self.quic_bug == Some(bug);
        #[cfg(not(feature = "bugs"))]
        {
            let _ = bug;
            false
        }
    }
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

const INSECURE: &str = "use quic:HOST:PORT, or pass --insecure-trunks if nobody else can reach this network";

/// What is neither encrypted nor authenticated does not leave this host unless told to.
fn secure_enough(address: &Address, options: &Options) -> io::Result<()> {
    match address {
        Address::Udp(at) if !options.allow_insecure && !at.is_loopback()? => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "plain UDP between hosts can be read and forged by everybody on the way",
        )),
        _ => Ok(()),
    }
}

/// Listens at `address`.
pub fn listen(address: &Address, options: &Options) -> Result<Box<dyn Acceptor>, OpenError> {
    secure_enough(address, options).map_err(|e| OpenError::listen(address, e, INSECURE))?;
    match address {
        Address::Unix(path) => Ok(accepting(UnixAcceptor::bind(path, options)?, options)),
        Address::Ring(path) => Ok(accepting(RingAcceptor::bind(path, options)?, options)),
        Address::Udp(_) | Address::UnixDatagram(_) => Ok(Box::new(DatagramAcceptor::bind(address, options)?)),
        Address::Quic(at) => Ok(Box::new(QuicAcceptor::bind(at, options)?)),
    }
}

/// Connects to `address`. Never blocks; whether somebody answers may show only later, as [`Received::End`](crate::Received::End) or
/// an error of the transport.
pub fn connect(address: &Address, options: &Options) -> Result<Box<dyn Transport>, OpenError> {
    secure_enough(address, options).map_err(|e| OpenError::connect(address, e, INSECURE))?;
    match address {
        Address::Unix(path) => connected(UnixTransport::connect(path, options)?, address, options),
        Address::Ring(path) => connected(RingTransport::connect(path, options)?, address, options),
        Address::Udp(_) | Address::UnixDatagram(_) => Ok(Box::new(DatagramTransport::connect(address, options)?)),
        Address::Quic(at) => Ok(Box::new(QuicTransport::connect(at, options)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_udp_leaves_this_host_only_when_told_to() {
        for outside in ["udp:10.1.2.3:7", "udp:0.0.0.0:0", "udp:[::]:0", "udp:[fe80::1]:7"] {
            let address: Address = outside.parse().unwrap();
            for error in [
                connect(&address, &Options::default()).err().unwrap(),
                listen(&address, &Options::default()).err().unwrap(),
            ] {
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
                let text = error.to_string();
                assert!(
                    text.contains(outside) && text.contains("use quic:") && text.contains("--insecure-trunks"),
                    "{text}"
                );
            }
            let told = Options { allow_insecure: true, ..Options::default() };
            assert!(secure_enough(&address, &told).is_ok());
        }
        for inside in
            ["udp:127.0.0.1:7", "udp:127.1.2.3:7", "udp:[::1]:7", "udp:localhost:7", "unix:/x", "quic:10.1.2.3:7"]
        {
            assert!(secure_enough(&inside.parse().unwrap(), &Options::default()).is_ok(), "{inside}");
        }
    }
}
