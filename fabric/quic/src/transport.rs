// SPDX-License-Identifier: MIT OR Apache-2.0
//! One end of a QUIC connection as a [`Transport`].

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use telegraphos_transport::faults::LinkFaults;
use telegraphos_transport::{
    HostPort, OpenError, Received, SharedSocket, Transport, TransportStatistics, Waker, lock, scheme,
};

use crate::config::Engine;
use crate::driver::{Driver, Shared};
use crate::entry::Key;
use crate::udp::Udp;
use crate::{Options, resolve};

/// One end of a QUIC connection. It exists before its handshake is complete when connecting (until then it takes no
/// bytes), and only after it when accepted.
#[derive(Debug)]
pub struct QuicTransport {
    shared: Arc<Shared>,
    key: Key,
    waker: Arc<Waker>,
}

impl QuicTransport {
    /// Begins to connect to `at`. Whether the peer answers shows in later calls.
    ///
    /// # Errors
    /// The name cannot be resolved, a certificate cannot be used, or the process is out of descriptors or ports.
    pub fn connect(at: &HostPort, options: &Options) -> Result<QuicTransport, OpenError> {
        let address = format!("{}:{at}", scheme::QUIC);
        let refused = |why: io::Error, hint: &str| OpenError::connect(&address, why, hint);
        let to = resolve(at).map_err(|e| refused(e, "name a host in the hosts file or at the name server"))?;
        let engine = Engine::new(options, to).and_then(|engine| engine.connecting().map(|c| (engine, c)));
        let (engine, client) = engine
            .map_err(|e| refused(io::Error::new(io::ErrorKind::InvalidInput, e), "correct it and start again"))?;
        let any = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let udp = Udp::bind(SocketAddr::new(any, 0))
            .map_err(|e| refused(e.into(), "raise the limit of open files (ulimit -n), or free ports"))?;
        let waker = Waker::new(udp.fd()).map_err(|e| refused(e.into(), "raise the limit of open files (ulimit -n)"))?;
        let waker = Arc::new(waker);
        let udp = Arc::new(udp);
        let (driver, key) = Driver::connecting(&engine, client, udp, options, to, waker.clone());
        Ok(QuicTransport { shared: Arc::new(Mutex::new(driver)), key, waker })
    }

    /// The transport of the driver's connection `key`, which `waker` wakes.
    pub(crate) fn accepted(shared: Arc<Shared>, key: Key, waker: Arc<Waker>) -> QuicTransport {
        QuicTransport { shared, key, waker }
    }
}

impl Transport for QuicTransport {
    fn fd(&self) -> BorrowedFd<'_> {
        self.waker.fd()
    }

    fn deadline(&self) -> Option<u64> {
        lock(&self.shared).deadline()
    }

    fn receive(&mut self, now: u64, buffer: &mut [u8]) -> io::Result<Received> {
        lock(&self.shared).receive(self.key, now, buffer)
    }

    fn send(&mut self, now: u64, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.shared).send(self.key, now, bytes)
    }

    fn flush(&mut self, now: u64) -> io::Result<bool> {
        lock(&self.shared).flush(self.key, now)
    }

    fn end_reason(&self) -> Option<&'static str> {
        lock(&self.shared).end_reason(self.key)
    }

    fn peer(&self) -> Option<String> {
        lock(&self.shared).peer(self.key)
    }

    fn set_faults(&mut self, link: &LinkFaults) -> bool {
        lock(&self.shared).set_faults(self.key, link)
    }

    fn statistics(&self) -> TransportStatistics {
        lock(&self.shared).statistics(self.key)
    }
}

impl Drop for QuicTransport {
    fn drop(&mut self) {
        lock(&self.shared).release(self.key);
    }
}
