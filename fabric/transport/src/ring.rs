// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared-memory rings ([`telegraphos_link::ring`]) as a transport between processes of one host.
//!
//! The connection is set up over a Unix stream socket. The acceptor creates the ring and sends the descriptor of its
//! memory with the greeting; after that the socket is the ring's.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use telegraphos_link::descriptors;
use telegraphos_link::listener::Listener;
use telegraphos_link::ring::{CAPACITIES, Ring, Taken, violation};

use crate::unix::connect_stream;
use crate::{Acceptor, OpenError, Options, Received, Transport, TransportStatistics, scheme};

/// First bytes of the greeting; the digit is the version of the greeting and of the ring.
const MAGIC: [u8; 8] = *b"tg-ring1";
/// Bytes of the greeting: [`MAGIC`] and the `u32` capacity of each direction.
const GREETING: usize = 12;
/// Connections skipped in one call because their peers have gone before the greeting.
const GONE: usize = 16;

/// One end of a pair of rings.
#[derive(Debug)]
pub struct RingTransport {
    socket: Arc<OwnedFd>,
    /// None before the greeting.
    ring: Option<Ring>,
    /// The peer went away before the greeting.
    gone: bool,
    /// Sent before the greeting, or not yet moved to the ring.
    staged: Vec<u8>,
    /// Bytes that may be staged.
    limit: usize,
    spin: u64,
    counted: TransportStatistics,
}

impl RingTransport {
    /// Connects to the acceptor at `path`, without waiting for its greeting.
    pub fn connect(path: &Path, options: &Options) -> Result<RingTransport, OpenError> {
        let socket = connect_stream(path, scheme::RING)?;
        Ok(RingTransport::new(socket.into(), None, options))
    }

    fn new(socket: Arc<OwnedFd>, ring: Option<Ring>, options: &Options) -> RingTransport {
        let (staged, limit, spin) = (Vec::new(), capacity(options) as usize, options.spin);
        RingTransport { socket, ring, gone: false, staged, limit, spin, counted: TransportStatistics::default() }
    }

    /// Creates the ring and sends the greeting.
    fn greet(socket: OwnedFd, options: &Options) -> io::Result<RingTransport> {
        let (capacity, socket) = (capacity(options), Arc::new(socket));
        let (ring, fd) = Ring::create(Arc::clone(&socket), capacity, options.spin)?;
        let mut greeting = [0; GREETING];
        greeting[..8].copy_from_slice(&MAGIC);
        greeting[8..].copy_from_slice(&capacity.to_le_bytes());
        // A new socket takes it whole.
        descriptors::send(socket.as_fd(), &greeting, &[fd.as_fd()], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        Ok(RingTransport::new(socket, Some(ring), options))
    }

    /// Reads the greeting, if it has arrived.
    fn greeted(&mut self) -> io::Result<()> {
        let mut greeting = [0; GREETING];
        let (got, fds) = match descriptors::receive(self.socket.as_fd(), &mut greeting, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN) => return Ok(()),
            Ok((0, _)) | Err(Errno::CONNRESET) => {
                self.gone = true;
                return Ok(());
            }
            received => received?,
        };
        let fd = fds.into_iter().flatten().next();
        let capacity = u32::from_le_bytes([greeting[8], greeting[9], greeting[10], greeting[11]]);
        let no_rings = || violation("does not speak of rings (is it another transport, or another version?)");
        let fd = fd.filter(|_| got == GREETING && greeting[..8] == MAGIC).ok_or_else(no_rings)?;
        self.ring = Some(Ring::open(Arc::clone(&self.socket), fd.as_fd(), capacity, 1, self.spin)?);
        Ok(())
    }

    /// Moves staged bytes into the ring, as far as they fit.
    fn unstage(&mut self) -> io::Result<()> {
        if let (Some(ring), false) = (&mut self.ring, self.staged.is_empty()) {
            let n = ring.send(&self.staged)?;
            self.staged.drain(..n);
        }
        Ok(())
    }
}

/// The capacity that `options` ask for.
fn capacity(options: &Options) -> u32 {
    let bytes = options.buffer.clamp(*CAPACITIES.start() as usize, *CAPACITIES.end() as usize);
    // At most the upper end, which is a power of two itself.
    bytes.next_power_of_two() as u32
}

impl Transport for RingTransport {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn receive(&mut self, now: u64, buffer: &mut [u8]) -> io::Result<Received> {
        if self.ring.is_none() && !self.gone {
            self.greeted()?;
            self.unstage()?;
        }
        let Some(ring) = &mut self.ring else {
            return Ok(if self.gone { Received::End } else { Received::Nothing });
        };
        Ok(match ring.receive(now, buffer)? {
            Taken::Bytes(n) => {
                self.counted.received_bytes += n as u64;
                Received::Bytes(n)
            }
            Taken::Nothing => Received::Nothing,
            Taken::End => Received::End,
        })
    }

    fn send(&mut self, _now: u64, bytes: &[u8]) -> io::Result<usize> {
        if self.gone {
            // Dropped: `receive` reports the end.
            return Ok(bytes.len());
        }
        self.unstage()?;
        let taken = match &mut self.ring {
            Some(ring) if self.staged.is_empty() => ring.send(bytes)?,
            _ => {
                let taken = bytes.len().min(self.limit.saturating_sub(self.staged.len()));
                self.staged.extend_from_slice(&bytes[..taken]);
                taken
            }
        };
        self.counted.sent_bytes += taken as u64;
        Ok(taken)
    }

    fn flush(&mut self, _now: u64) -> io::Result<bool> {
        if self.gone {
            self.staged = Vec::new();
            return Ok(true);
        }
        self.unstage()?;
        let room = match &mut self.ring {
            Some(ring) => ring.flush()?,
            None => true,
        };
        Ok(room && self.staged.is_empty())
    }

    fn statistics(&self) -> TransportStatistics {
        TransportStatistics { wakes: self.ring.as_ref().map_or(0, Ring::wakes), ..self.counted }
    }
}

/// Accepts connections, each with a pair of rings.
#[derive(Debug)]
pub struct RingAcceptor {
    listener: Listener,
    options: Options,
}

impl RingAcceptor {
    /// Listens at `path`.
    pub fn bind(path: &Path, options: &Options) -> Result<RingAcceptor, OpenError> {
        Ok(RingAcceptor { listener: Listener::bind(path, options.named)?, options: options.clone() })
    }
}

impl Acceptor for RingAcceptor {
    fn fd(&self) -> BorrowedFd<'_> {
        self.listener.fd()
    }

    fn accept(&mut self, _now: u64) -> io::Result<Option<Box<dyn Transport>>> {
        for _ in 0..GONE {
            let Some(socket) = self.listener.accept()? else { return Ok(None) };
            match RingTransport::greet(socket, &self.options) {
                Ok(made) => return Ok(Some(Box::new(made))),
                // The peer has gone before the greeting.
                Err(e) if matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn options() -> Options {
        Options { buffer: 4096, ..Options::default() }
    }

    #[test]
    fn a_greeting_that_is_none_is_refused() {
        use std::io::Write;
        let other = [0; GREETING];
        let mut huge = other;
        huge[..8].copy_from_slice(&MAGIC);
        huge[8..].fill(0xff);
        for greeting in [&b"x"[..], &other, &huge, &MAGIC] {
            let (near, mut far) = UnixStream::pair().unwrap();
            far.write_all(greeting).unwrap();
            let mut end = RingTransport::new(Arc::new(near.into()), None, &options());
            let error = end.receive(0, &mut [0; 8]).unwrap_err().to_string();
            assert!(error.contains("does not speak of rings"), "{error}");
        }
    }

    #[test]
    fn what_is_sent_before_the_greeting_arrives() {
        let (near, far) = UnixStream::pair().unwrap();
        let mut client = RingTransport::new(Arc::new(far.into()), None, &options());
        assert_eq!(client.send(0, b"early").unwrap(), 5);
        assert!(!client.flush(0).unwrap());
        let mut server = RingTransport::greet(near.into(), &options()).unwrap();
        let mut buffer = [0; 8];
        assert_eq!(client.receive(0, &mut buffer).unwrap(), Received::Nothing);
        assert!(client.flush(0).unwrap());
        assert_eq!(server.receive(0, &mut buffer).unwrap(), Received::Bytes(5));
    }

    #[test]
    fn a_peer_that_goes_before_the_greeting_has_ended() {
        let (near, far) = UnixStream::pair().unwrap();
        let mut client = RingTransport::new(Arc::new(far.into()), None, &options());
        drop(near);
        assert_eq!(client.receive(0, &mut [0; 8]).unwrap(), Received::End);
        assert_eq!(client.receive(0, &mut [0; 8]).unwrap(), Received::End);
        assert_eq!((client.send(0, b"x").unwrap(), client.flush(0).unwrap()), (1, true));
    }
}
