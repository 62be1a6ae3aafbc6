// SPDX-License-Identifier: MIT OR Apache-2.0
//! The side that calls: a connection with a socket of its own.

use std::io;
use std::os::fd::BorrowedFd;

use rdp_core::Connection;

use super::socket::Socket;
use super::wake::Wake;
use super::{BATCH, RETRY, config, end_reason, fresh, give, has_news, longest, outcome, statistics, with_faults};
use crate::faults::LinkFaults;
use crate::{DatagramAddress, Datagrams, OpenError, Options, Received, Transport, TransportStatistics};

/// An RDP connection that this side opened.
#[derive(Debug)]
pub struct DatagramTransport {
    socket: Box<dyn Datagrams>,
    connection: Connection,
    /// The first call has told the time.
    begun: bool,
    wake: Wake,
    address: DatagramAddress,
    /// A datagram that the socket did not take yet; empty: none.
    pending: Vec<u8>,
    retry: Option<u64>,
    /// The socket was found empty, and nothing else happened since.
    dry: bool,
    /// That the connection is over.
    told: bool,
    buffer: Box<[u8]>,
    now: u64,
    counted: TransportStatistics,
}

impl DatagramTransport {
    /// Opens a connection to `address`. The other side is asked with the first
    /// [`flush`](Transport::flush); that nobody answers shows as an error after [`Options::silence`].
    pub fn connect(address: &DatagramAddress, options: &Options) -> Result<DatagramTransport, OpenError> {
        let config = config(address, options);
        let longest = longest(&config);
        let failed = |e: io::Error| OpenError::connect(address, e, "is the name right?");
        let socket = match address {
            DatagramAddress::Udp(at) => Socket::udp(address, &at.resolve().map_err(failed)?, longest)?,
            DatagramAddress::Unix(path) => Socket::unix(address, path, longest)?,
        };
        DatagramTransport::over(with_faults(socket, options.faults.as_ref()), config, address, options)
    }

    /// Opens a connection over any datagrams.
    pub(super) fn over(
        socket: Box<dyn Datagrams>,
        config: rdp_core::Config,
        address: &DatagramAddress,
        options: &Options,
    ) -> Result<DatagramTransport, OpenError> {
        let failed = |e: io::Error| OpenError::connect(address, e, "raise the limit of open files (ulimit -n)");
        // One byte more, so that what is longer is not taken for one of ours.
        let buffer = vec![0; longest(&config) + 1].into_boxed_slice();
        let connection = Connection::open(config, fresh().map_err(failed)?, options.name, 0)
            .map_err(|e| failed(io::Error::new(io::ErrorKind::InvalidInput, e)))?;
        Ok(DatagramTransport {
            wake: Wake::new(socket.fd()).map_err(failed)?,
            socket,
            connection,
            begun: false,
            address: address.clone(),
            pending: Vec::new(),
            retry: None,
            dry: false,
            told: false,
            buffer,
            now: 0,
            counted: TransportStatistics::default(),
        })
    }

    fn at(&mut self, now: u64) {
        self.now = now;
        if !self.begun {
            self.begun = true;
            self.connection.begin(now);
        }
    }

    /// Takes what has come.
    fn pump(&mut self, now: u64) -> io::Result<()> {
        for _ in 0..BATCH {
            let Some(len) = self.socket.receive(now, &mut self.buffer)? else { break };
            self.connection.datagram(now, &self.buffer[..len]);
        }
        Ok(())
    }

    /// Sends what is to be sent.
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
        self.wake.fd()
    }

    /// Never: a full socket is tried again in a moment ([`Transport::deadline`]).
    fn wants_write(&self) -> bool {
        false
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
        let received = outcome(&mut self.connection, buffer, &self.address);
        match received {
            Ok(Received::Bytes(count)) => {
                self.counted.received_bytes += count as u64;
                if has_news(&self.connection) {
                    self.wake.bell().ring();
                }
            }
            _ => {
                self.wake.bell().clear();
                self.dry = true;
                self.told = !matches!(received, Ok(Received::Nothing));
            }
        }
        received
    }

    fn send(&mut self, now: u64, bytes: &[u8]) -> io::Result<usize> {
        self.at(now);
        let taken = give(&mut self.connection, bytes);
        self.counted.sent_bytes += taken as u64;
        Ok(taken)
    }

    /// True when the other side has acknowledged everything.
    fn flush(&mut self, now: u64) -> io::Result<bool> {
        self.at(now);
        // Also for one who does not read: acknowledgements come in, too.
        if !std::mem::take(&mut self.dry) {
            self.pump(now)?;
        }
        self.connection.timer(now);
        if has_news(&self.connection) && !self.told {
            self.wake.bell().ring();
        }
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
        statistics(&self.connection, self.counted, self.socket.statistics())
    }
}

impl Drop for DatagramTransport {
    /// What was not sent yet goes out once, and then the word that this was all. Nobody can send it again.
    fn drop(&mut self) {
        let now = self.now;
        self.connection.close();
        let _ = self.transmit(now);
        self.connection.abandon();
        let _ = self.transmit(now);
    }
}
