// SPDX-License-Identifier: MIT OR Apache-2.0
//! The side that is called: one socket, connections by address and connection id.

use std::io;
use std::os::fd::BorrowedFd;

use rdp_core::Key;
use telegraphos_link::listener::Listener;

use super::hub::{Hub, SharedHub};
use super::socket::bind_udp;
use super::wake::Wake;
use super::{config, end_reason, give, has_news, outcome, statistics};
use crate::faults::LinkFaults;
use crate::{
    Acceptor, AcceptorStatistics, DatagramAddress, OpenError, Options, Received, Transport, TransportStatistics,
};

/// Where RDP connections of others come in. As long as it lives it must be served, for its connections' sake too: peers
/// that are setting up a connection, and what connections whose transport was dropped have not delivered.
#[derive(Debug)]
pub struct DatagramAcceptor {
    hub: SharedHub,
    wake: Wake,
    address: DatagramAddress,
    /// The file of a Unix socket.
    _file: Option<Listener>,
}

impl DatagramAcceptor {
    /// Listens at `address`.
    pub fn bind(address: &DatagramAddress, options: &Options) -> Result<DatagramAcceptor, OpenError> {
        let failed = |e: io::Error| OpenError::listen(address, e, "raise the limit of open files (ulimit -n)");
        let mut address = address.clone();
        let (socket, file) = match &mut address {
            DatagramAddress::Udp(at) => {
                let resolved = at.resolve();
                let resolved = resolved
                    .map_err(|e| OpenError::listen(&DatagramAddress::Udp(at.clone()), e, "is the name right?"))?;
                let socket = bind_udp(&DatagramAddress::Udp(at.clone()), &resolved)?;
                if let Ok(bound) = rustix::net::getsockname(&socket).and_then(std::net::SocketAddr::try_from) {
                    at.port = bound.port();
                }
                (socket, None)
            }
            DatagramAddress::Unix(path) => {
                let file = Listener::bind_datagram(path, options.named)?;
                (file.fd().try_clone_to_owned().map_err(failed)?, Some(file))
            }
        };
        let config = config(&address, options);
        let wake = Wake::new(std::os::fd::AsFd::as_fd(&socket)).map_err(failed)?;
        let hub = Hub::shared(socket, config, options.faults.clone(), wake.bell().clone()).map_err(failed)?;
        Ok(DatagramAcceptor { hub, wake, address, _file: file })
    }

    /// Where it listens: if any free port was asked for, the one that it has got.
    pub fn address(&self) -> &DatagramAddress {
        &self.address
    }
}

impl Acceptor for DatagramAcceptor {
    fn fd(&self) -> BorrowedFd<'_> {
        self.wake.fd()
    }

    fn deadline(&self) -> Option<u64> {
        self.hub.lock().deadline()
    }

    fn accept(&mut self, now: u64) -> io::Result<Option<Box<dyn Transport>>> {
        let mut hub = self.hub.lock();
        hub.pump(now, None)?;
        hub.transmit(now)?;
        let Some(key) = hub.accept() else { return Ok(None) };
        let wake = match Wake::new(std::os::fd::AsFd::as_fd(&*hub.socket())) {
            Ok(wake) => wake,
            Err(e) => {
                hub.release(key);
                return Err(e);
            }
        };
        hub.attach(key, wake.bell());
        drop(hub);
        Ok(Some(Box::new(AcceptedTransport {
            hub: self.hub.clone(),
            key,
            wake,
            address: self.address.clone(),
            dry: false,
            told: false,
            counted: TransportStatistics::default(),
        })))
    }

    fn statistics(&self) -> AcceptorStatistics {
        let hub = self.hub.lock();
        let counted = hub.core.statistics();
        AcceptorStatistics {
            accepted: counted.established,
            crowded: counted.crowded,
            displaced: counted.displaced,
            rejected: counted.foreign
                + counted.checksum_errors
                + counted.length_errors
                + counted.version_errors
                + counted.malformed,
            ..AcceptorStatistics::default()
        }
    }
}

impl Drop for DatagramAcceptor {
    fn drop(&mut self) {
        self.hub.lock().stop();
    }
}

/// An RDP connection that the other side opened.
#[derive(Debug)]
pub struct AcceptedTransport {
    hub: SharedHub,
    key: Key,
    wake: Wake,
    address: DatagramAddress,
    /// The socket was found empty, and nothing else happened since.
    dry: bool,
    /// That the connection is over.
    told: bool,
    counted: TransportStatistics,
}

fn lost() -> io::Error {
    // Nobody but we removes it.
    io::Error::new(io::ErrorKind::NotConnected, "the connection was removed from its socket")
}

impl Transport for AcceptedTransport {
    fn fd(&self) -> BorrowedFd<'_> {
        self.wake.fd()
    }

    /// Never: a full socket is tried again in a moment ([`Transport::deadline`]).
    fn wants_write(&self) -> bool {
        false
    }

    fn deadline(&self) -> Option<u64> {
        self.hub.lock().deadline_of(self.key)
    }

    fn receive(&mut self, now: u64, buffer: &mut [u8]) -> io::Result<Received> {
        let mut hub = self.hub.lock();
        if hub.core.connection(self.key).is_none_or(|c| c.available() == 0) {
            hub.pump(now, Some(self.key))?;
        }
        let connection = hub.core.connection_mut(self.key).ok_or_else(lost)?;
        let received = outcome(connection, buffer, &self.address);
        match received {
            Ok(Received::Bytes(count)) => {
                self.counted.received_bytes += count as u64;
                if has_news(connection) {
                    self.wake.bell().ring();
                }
            }
            _ => {
                self.wake.bell().clear();
                self.dry = true;
                self.told = !matches!(received, Ok(Received::Nothing));
                if self.told {
                    hub.detach(self.key);
                }
            }
        }
        received
    }

    fn send(&mut self, _now: u64, bytes: &[u8]) -> io::Result<usize> {
        let mut hub = self.hub.lock();
        let taken = give(hub.core.connection_mut(self.key).ok_or_else(lost)?, bytes);
        self.counted.sent_bytes += taken as u64;
        Ok(taken)
    }

    /// True when the other side has acknowledged everything.
    fn flush(&mut self, now: u64) -> io::Result<bool> {
        let mut hub = self.hub.lock();
        hub.now = now;
        // Also for one who does not read: acknowledgements come in, too.
        if !std::mem::take(&mut self.dry) {
            hub.pump(now, Some(self.key))?;
        }
        let connection = hub.core.connection_mut(self.key).ok_or_else(lost)?;
        connection.timer(now);
        if has_news(connection) && !self.told {
            self.wake.bell().ring();
        }
        hub.transmit(now)?;
        let acknowledged = hub.core.connection(self.key).is_none_or(|c| c.outstanding() == 0);
        Ok(acknowledged && hub.datagrams_of(self.key).is_none_or(|(_, idle)| idle))
    }

    fn end_reason(&self) -> Option<&'static str> {
        self.hub.lock().core.connection(self.key).and_then(end_reason)
    }

    fn set_faults(&mut self, link: &LinkFaults) -> bool {
        self.hub.lock().datagrams_of(self.key).is_some_and(|(datagrams, _)| datagrams.set_faults(link))
    }

    fn statistics(&self) -> TransportStatistics {
        let mut hub = self.hub.lock();
        let below = hub.datagrams_of(self.key).map(|(datagrams, _)| datagrams.statistics()).unwrap_or_default();
        match hub.core.connection(self.key) {
            Some(connection) => statistics(connection, self.counted, below),
            None => self.counted,
        }
    }
}

impl Drop for AcceptedTransport {
    fn drop(&mut self) {
        self.hub.lock().release(self.key);
    }
}
