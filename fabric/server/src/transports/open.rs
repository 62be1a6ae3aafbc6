// SPDX-License-Identifier: MIT OR Apache-2.0
//! From an address to a transport.

use std::io;

use telegraphos_transport::faults::{FaultyAcceptor, FaultyTransport};
use telegraphos_transport::{
    Acceptor, DatagramAcceptor, DatagramAddress, DatagramTransport, OpenError, RingAcceptor, RingTransport, Transport,
    UnixAcceptor, UnixTransport,
};

use super::options::Options;
use super::{Address, quic};

/// What is reliable by itself has its faults above it.
fn accepting(acceptor: impl Acceptor + 'static, options: &Options) -> Box<dyn Acceptor> {
    match &options.common.faults {
        Some(link) => Box::new(FaultyAcceptor::new(acceptor, link.clone())),
        None => Box::new(acceptor),
    }
}

fn connected(
    transport: impl Transport + 'static,
    address: &Address,
    options: &Options,
) -> Result<Box<dyn Transport>, OpenError> {
    Ok(match &options.common.faults {
        Some(link) => Box::new(
            FaultyTransport::new(Box::new(transport), link.clone())
                .map_err(|e| OpenError::connect(address, e, "raise the limit of open files (ulimit -n)"))?,
        ),
        None => Box::new(transport),
    })
}

const INSECURE: &str = "use quic:HOST:PORT, or pass --insecure-trunks if no other party can reach this network";

/// Without encryption and authentication nothing leaves this host, unless the configuration allows it.
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
    let common = &options.common;
    let datagrams = |at: DatagramAddress| DatagramAcceptor::bind(&at, common);
    match address {
        Address::Unix(path) => Ok(accepting(UnixAcceptor::bind(path, common)?, options)),
        Address::Ring(path) => Ok(accepting(RingAcceptor::bind(path, common)?, options)),
        Address::Udp(at) => Ok(Box::new(datagrams(DatagramAddress::Udp(at.clone()))?)),
        Address::UnixDatagram(path) => Ok(Box::new(datagrams(DatagramAddress::Unix(path.clone()))?)),
        Address::Quic(at) => quic::listen(at, options),
    }
}

/// Connects to `address`. Never blocks; that nothing answers may show only later, as
/// [`Received::End`](telegraphos_transport::Received::End) or an error of the transport.
pub fn connect(address: &Address, options: &Options) -> Result<Box<dyn Transport>, OpenError> {
    secure_enough(address, options).map_err(|e| OpenError::connect(address, e, INSECURE))?;
    let common = &options.common;
    let datagrams = |at: DatagramAddress| DatagramTransport::connect(&at, common);
    match address {
        Address::Unix(path) => connected(UnixTransport::connect(path, common)?, address, options),
        Address::Ring(path) => connected(RingTransport::connect(path, common)?, address, options),
        Address::Udp(at) => Ok(Box::new(datagrams(DatagramAddress::Udp(at.clone()))?)),
        Address::UnixDatagram(path) => Ok(Box::new(datagrams(DatagramAddress::Unix(path.clone()))?)),
        Address::Quic(at) => quic::connect(at, options),
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
            let allowed = Options { allow_insecure: true, ..Options::default() };
            assert!(secure_enough(&address, &allowed).is_ok());
        }
        for inside in
            ["udp:127.0.0.1:7", "udp:127.1.2.3:7", "udp:[::1]:7", "udp:localhost:7", "unix:/x", "quic:10.1.2.3:7"]
        {
            assert!(secure_enough(&inside.parse().unwrap(), &Options::default()).is_ok(), "{inside}");
        }
    }
}
