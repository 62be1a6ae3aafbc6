// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server: one socket, connections by address and connection id.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use telegraphos_link::listener::Listener;
use telegraphos_rdp_core::Key;

use super::address::DatagramAddress;
use super::hub::Hub;
use super::parameters::config;
use super::socket::{BoundSocket, bind_udp};
use super::user::{User, end_reason};
use crate::branch::SharedSocket;
use crate::faults::LinkFaults;
use crate::{Acceptor, AcceptorStatistics, OpenError, Options, Received, Transport, TransportStatistics, Waker, lock};

/// Accepts RDP connections. It must be served as long as it exists, also for its connections: handshakes are answered
/// and connections whose transport was dropped deliver the rest by its calls.
#[derive(Debug)]
pub struct DatagramAcceptor {
    hub: Arc<Mutex<Hub>>,
    waker: Arc<Waker>,
    address: DatagramAddress,
    /// The file of a Unix socket.
    _file: Option<Listener>,
}

impl DatagramAcceptor {
    /// Listens at `address`.
    ///
    /// # Errors
    /// The name cannot be resolved, the address cannot be listened at, or the process is out of descriptors.
    pub fn bind(address: &DatagramAddress, options: &Options) -> Result<DatagramAcceptor, OpenError> {
        let failed = |e: io::Error| OpenError::listen(address, e, "raise the limit of open files (ulimit -n)");
        let mut address = address.clone();
        let (socket, file) = match &mut address {
            DatagramAddress::Udp(at) => {
                let named = DatagramAddress::Udp(at.clone());
                let resolved = at.resolve().map_err(|e| OpenError::listen(&named, e, "is the name right?"))?;
                let socket = bind_udp(&named, &resolved)?;
                if let Ok(bound) = rustix::net::getsockname(socket.fd()).and_then(std::net::SocketAddr::try_from) {
                    at.port = bound.port();
                }
                (socket, None)
            }
            DatagramAddress::Unix(path) => {
                let file = Listener::bind_datagram(path, options.named)?;
                (BoundSocket(file.fd().try_clone_to_owned().map_err(failed)?), Some(file))
            }
        };
        let config = config(&address, options);
        let waker = Arc::new(Waker::new(socket.fd()).map_err(|e| failed(e.into()))?);
        let hub = Hub::shared(socket, config, options.faults.clone(), waker.clone()).map_err(failed)?;
        Ok(DatagramAcceptor { hub, waker, address, _file: file })
    }

    /// The address it listens at; if any free port was requested, with that port.
    pub fn address(&self) -> &DatagramAddress {
        &self.address
    }
}

impl Acceptor for DatagramAcceptor {
    fn fd(&self) -> BorrowedFd<'_> {
        self.waker.fd()
    }

    fn deadline(&self) -> Option<u64> {
        lock(&self.hub).deadline()
    }

    fn accept(&mut self, now: u64) -> io::Result<Option<Box<dyn Transport>>> {
        let mut hub = lock(&self.hub);
        hub.pump(now, None)?;
        hub.transmit(now)?;
        let Some((key, waker)) = hub.accept()? else { return Ok(None) };
        drop(hub);
        Ok(Some(Box::new(AcceptedTransport {
            hub: self.hub.clone(),
            key,
            user: User::new(waker, self.address.clone()),
        })))
    }

    fn statistics(&self) -> AcceptorStatistics {
        let hub = lock(&self.hub);
        let counted = hub.core.statistics();
        AcceptorStatistics {
            accepted: counted.established,
            crowded: counted.crowded,
            displaced: counted.displaced,
            rejected: counted.foreign + counted.damaged(),
            ..AcceptorStatistics::default()
        }
    }
}

impl Drop for DatagramAcceptor {
    fn drop(&mut self) {
        lock(&self.hub).stop();
    }
}

/// An RDP connection that the other side opened.
#[derive(Debug)]
pub struct AcceptedTransport {
    hub: Arc<Mutex<Hub>>,
    key: Key,
    user: User,
}

fn lost() -> io::Error {
    // Not reached: only this side removes it.
    io::Error::new(io::ErrorKind::NotConnected, "the connection was removed from its socket")
}

impl Transport for AcceptedTransport {
    fn fd(&self) -> BorrowedFd<'_> {
        self.user.waker.fd()
    }

    fn deadline(&self) -> Option<u64> {
        lock(&self.hub).deadline_of(self.key)
    }

    fn receive(&mut self, now: u64, buffer: &mut [u8]) -> io::Result<Received> {
        let mut hub = lock(&self.hub);
        if hub.core.connection(self.key).is_none_or(|c| c.available() == 0) {
            hub.pump(now, Some(self.key))?;
        }
        let connection = hub.core.connection_mut(self.key).ok_or_else(lost)?;
        let received = self.user.receive(connection, buffer);
        if self.user.ended {
            hub.detach(self.key);
        }
        received
    }

    fn send(&mut self, _now: u64, bytes: &[u8]) -> io::Result<usize> {
        let mut hub = lock(&self.hub);
        Ok(self.user.send(hub.core.connection_mut(self.key).ok_or_else(lost)?, bytes))
    }

    /// True when the other side has acknowledged everything.
    fn flush(&mut self, now: u64) -> io::Result<bool> {
        let mut hub = lock(&self.hub);
        hub.now = now;
        if self.user.must_pump() {
            hub.pump(now, Some(self.key))?;
        }
        let connection = hub.core.connection_mut(self.key).ok_or_else(lost)?;
        connection.timer(now);
        self.user.notify(connection);
        hub.transmit(now)?;
        let acknowledged = hub.core.connection(self.key).is_none_or(|c| c.outstanding() == 0);
        Ok(acknowledged && hub.datagrams_of(self.key).is_none_or(|(_, idle)| idle))
    }

    fn end_reason(&self) -> Option<&'static str> {
        lock(&self.hub).core.connection(self.key).and_then(end_reason)
    }

    fn set_faults(&mut self, link: &LinkFaults) -> bool {
        lock(&self.hub).datagrams_of(self.key).is_some_and(|(datagrams, _)| datagrams.set_faults(link))
    }

    fn statistics(&self) -> TransportStatistics {
        let mut hub = lock(&self.hub);
        let faults = hub.datagrams_of(self.key).map_or(0, |(datagrams, _)| datagrams.faults());
        match hub.core.connection(self.key) {
            Some(connection) => self.user.statistics(connection, faults),
            None => self.user.counted,
        }
    }
}

impl Drop for AcceptedTransport {
    fn drop(&mut self) {
        lock(&self.hub).release(self.key);
    }
}
