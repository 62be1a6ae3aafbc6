// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client: a connection with its own socket.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use telegraphos_rdp_core::Connection;

use super::address::DatagramAddress;
use super::parameters::{BATCH, RETRY, buffer, config, fresh, longest, with_faults};
use super::socket::Socket;
use super::user::{User, end_reason};
use crate::faults::LinkFaults;
use crate::{Datagrams, OpenError, Options, Received, Transport, TransportStatistics, Waker};

/// An RDP connection that this side opened.
#[derive(Debug)]
pub struct DatagramTransport {
    socket: Box<dyn Datagrams>,
    connection: Connection,
    /// A call has set the time.
    begun: bool,
    user: User,
    /// A datagram that waits for room in the socket; empty: none.
    pending: Vec<u8>,
    retry: Option<u64>,
    buffer: Box<[u8]>,
    now: u64,
}

impl DatagramTransport {
    /// Opens a connection to `address`. The Open is sent by the first [`flush`](Transport::flush); without an answer,
    /// `receive` fails after [`Options::silence`].
    ///
    /// # Errors
    /// The name cannot be resolved, the socket cannot be connected, or the process is out of descriptors.
    pub fn connect(address: &DatagramAddress, options: &Options) -> Result<DatagramTransport, OpenError> {
        let config = config(address, options);
        let longest = longest(&config);
        let failed = |e: io::Error| OpenError::connect(address, e, "is the name right?");
        let socket = match address {
            DatagramAddress::Udp(at) => Socket::udp(address, &at.resolve().map_err(failed)?, longest)?,
            DatagramAddress::Unix(path) => Socket::unix(path, longest)?,
        };
        DatagramTransport::over(with_faults(socket, options.faults.as_ref()), config, address, options)
    }

    /// Opens a connection over any datagrams.
    pub(super) fn over(
        socket: Box<dyn Datagrams>,
        config: telegraphos_rdp_core::Config,
        address: &DatagramAddress,
        options: &Options,
    ) -> Result<DatagramTransport, OpenError> {
        let failed = |e: io::Error| OpenError::connect(address, e, "raise the limit of open files (ulimit -n)");
        let buffer = buffer(&config);
        let connection = Connection::open(config, fresh().map_err(failed)?, options.name, 0)
            .map_err(|e| failed(io::Error::new(io::ErrorKind::InvalidInput, e)))?;
        Ok(DatagramTransport {
            user: User::new(Arc::new(Waker::new(socket.fd()).map_err(|e| failed(e.into()))?), address.clone()),
            socket,
            connection,
            begun: false,
            pending: Vec::new(),
            retry: None,
            buffer,
            now: 0,
        })
    }

    fn at(&mut self, now: u64) {
        self.now = now;
        if !self.begun {
            self.begun = true;
            self.connection.begin(now);
        }
    }

    /// Processes datagrams that have arrived.
    fn pump(&mut self, now: u64) -> io::Result<()> {
        for _ in 0..BATCH {
            let Some(len) = self.socket.receive(now, &mut self.buffer)? else { break };
            self.connection.datagram(now, &self.buffer[..len]);
        }
        Ok(())
    }

    /// Sends what the connection has to send.
    fn transmit(&mut self, now: u64) -> io::Result<()> {
        self.socket.flush(now)?;
        self.retry = None;
        loop {
            if self.pending.is_empty() && !self.connection.poll_transmit(now, &mut self.pending) {
                break;
            }
            if !self.socket.send(now, &self.pending)? {
                break;
            }
            self.pending.clear();
        }
        if self.socket.wants_write() || !self.pending.is_empty() {
            self.retry = Some(now.saturating_add(RETRY));
        }
        Ok(())
    }
}

impl Transport for DatagramTransport {
    fn fd(&self) -> BorrowedFd<'_> {
        self.user.waker.fd()
    }

    fn deadline(&self) -> Option<u64> {
        if !self.begun {
            return Some(0);
        }
        [self.connection.deadline(), self.socket.deadline(), self.retry].into_iter().flatten().min()
    }

    fn receive(&mut self, now: u64, buffer: &mut [u8]) -> io::Result<Received> {
        self.at(now);
        if self.connection.available() == 0 {
            self.pump(now)?;
        }
        self.user.receive(&mut self.connection, buffer)
    }

    fn send(&mut self, now: u64, bytes: &[u8]) -> io::Result<usize> {
        self.at(now);
        Ok(self.user.send(&mut self.connection, bytes))
    }

    /// True when the other side has acknowledged everything.
    fn flush(&mut self, now: u64) -> io::Result<bool> {
        self.at(now);
        if self.user.must_pump() {
            self.pump(now)?;
        }
        self.connection.timer(now);
        self.user.notify(&self.connection);
        self.transmit(now)?;
        Ok(self.connection.outstanding() == 0 && self.pending.is_empty())
    }

    fn end_reason(&self) -> Option<&'static str> {
        end_reason(&self.connection)
    }

    fn set_faults(&mut self, link: &LinkFaults) -> bool {
        self.socket.set_faults(link)
    }

    fn statistics(&self) -> TransportStatistics {
        self.user.statistics(&self.connection, self.socket.faults())
    }
}

impl Drop for DatagramTransport {
    /// Sends what was not sent yet, once, and then a Reset. Nothing can be sent again after that.
    fn drop(&mut self) {
        let now = self.now;
        self.connection.close();
        let _ = self.transmit(now);
        self.connection.abandon();
        let _ = self.transmit(now);
    }
}
