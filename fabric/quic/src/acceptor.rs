// SPDX-License-Identifier: MIT OR Apache-2.0
//! The acceptor of QUIC connections.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use telegraphos_transport::{
    Acceptor, AcceptorStatistics, HostPort, OpenError, SharedSocket, Transport, Waker, lock, scheme,
};

use crate::config::Engine;
use crate::driver::{Driver, Shared};
use crate::transport::QuicTransport;
use crate::udp::Udp;
use crate::{Options, resolve};

/// A listening UDP socket. Accepted transports keep the socket and continue after the acceptor was dropped.
#[derive(Debug)]
pub struct QuicAcceptor {
    shared: Arc<Shared>,
    waker: Arc<Waker>,
    local: SocketAddr,
}

impl QuicAcceptor {
    /// Listens at `at`.
    ///
    /// # Errors
    /// The address cannot be listened at, a certificate cannot be used, or the process is out of descriptors.
    pub fn bind(at: &HostPort, options: &Options) -> Result<QuicAcceptor, OpenError> {
        let address = format!("{}:{at}", scheme::QUIC);
        let refused = |why: io::Error, hint: &str| OpenError::listen(&address, why, hint);
        let to = resolve(at).map_err(|e| refused(e, "name an address of this host"))?;
        let engine = Engine::new(options, to).and_then(|engine| engine.listening().map(|c| (engine, c)));
        let (engine, server) = engine
            .map_err(|e| refused(io::Error::new(io::ErrorKind::InvalidInput, e), "correct it and start again"))?;
        let udp = Udp::bind(to).map_err(|e| {
            let hint = match e {
                Errno::ADDRINUSE => "another process uses this port: stop it, or choose another port",
                Errno::ADDRNOTAVAIL => "this host does not have that address: name one that it has, or 0.0.0.0",
                Errno::ACCESS => "ports below 1024 are for root: choose a higher one",
                _ => "choose another address",
            };
            refused(e.into(), hint)
        })?;
        let waker = Waker::new(udp.fd()).map_err(|e| refused(e.into(), "raise the limit of open files (ulimit -n)"))?;
        let (waker, udp) = (Arc::new(waker), Arc::new(udp));
        let local = udp.local();
        let driver = Driver::new(&engine, udp, options, Some((server, waker.clone())));
        Ok(QuicAcceptor { shared: Arc::new(Mutex::new(driver)), waker, local })
    }

    /// The address it listens at; if any free port was requested, with that port.
    pub fn local(&self) -> SocketAddr {
        self.local
    }
}

impl Acceptor for QuicAcceptor {
    fn fd(&self) -> BorrowedFd<'_> {
        self.waker.fd()
    }

    fn deadline(&self) -> Option<u64> {
        lock(&self.shared).deadline()
    }

    fn accept(&mut self, now: u64) -> io::Result<Option<Box<dyn Transport>>> {
        let mut driver = lock(&self.shared);
        driver.pump(now, None)?;
        let accepted = driver.accept()?;
        drop(driver);
        Ok(accepted.map(|(key, waker)| {
            Box::new(QuicTransport::accepted(self.shared.clone(), key, waker)) as Box<dyn Transport>
        }))
    }

    fn statistics(&self) -> AcceptorStatistics {
        lock(&self.shared).accepted()
    }
}

impl Drop for QuicAcceptor {
    fn drop(&mut self) {
        lock(&self.shared).stop_accepting();
    }
}
