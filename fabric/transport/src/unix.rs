// SPDX-License-Identifier: MIT OR Apache-2.0
//! Unix stream sockets: the default between processes of one host.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{self, AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use telegraphos_link::listener::Listener;
use telegraphos_link::send_queue::SendQueue;

use crate::{Acceptor, OpenError, Options, Received, Transport, TransportStatistics, scheme};

/// The socket that `make` makes, connected to that of the file at `path`; not waited for. `scheme` is for the error.
pub(crate) fn connect_unix(
    path: &Path,
    scheme: &str,
    make: impl FnOnce() -> Result<OwnedFd, Errno>,
) -> Result<OwnedFd, OpenError> {
    let connected = SocketAddrUnix::new(path).and_then(|at| {
        let socket = make()?;
        retry_on_intr(|| net::connect(&socket, &at))?;
        Ok(socket)
    });
    connected.map_err(|e| {
        let hint = match e {
            Errno::CONNREFUSED => "the process that listened there has ended: start it again",
            Errno::ACCESS | Errno::PERM => "run as the user of the other process: its socket has mode 0600",
            Errno::AGAIN => "the other process is busy: try again",
            Errno::NAMETOOLONG => "a Unix socket path has at most 107 bytes: choose a shorter one",
            Errno::NOTDIR => "part of the path is not a directory: name another",
            Errno::PROTOTYPE => "the socket there is of another kind: name the transport that it was made for",
            Errno::MFILE | Errno::NFILE => "raise the limit of open files (ulimit -n)",
            _ => "is the process that listens there running?",
        };
        OpenError::connect(&format_args!("{scheme}:{}", path.display()), e, hint)
    })
}

/// A connected Unix stream socket of the file at `path`.
pub(crate) fn connect_stream(path: &Path, scheme: &str) -> Result<OwnedFd, OpenError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    connect_unix(path, scheme, || net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None))
}

/// A Unix stream as a transport.
#[derive(Debug)]
pub struct UnixTransport {
    stream: OwnedFd,
    output: SendQueue,
    /// Bytes that `output` may hold.
    limit: usize,
    blocked: bool,
    ended: bool,
    counted: TransportStatistics,
}

impl UnixTransport {
    /// Connects to the socket at `path`.
    pub fn connect(path: &Path, options: &Options) -> Result<UnixTransport, OpenError> {
        let stream = connect_stream(path, scheme::UNIX)?;
        Ok(UnixTransport::from_stream(stream, options))
    }

    /// Over a stream that is connected already.
    pub fn from_stream(stream: impl Into<OwnedFd>, options: &Options) -> UnixTransport {
        UnixTransport {
            stream: stream.into(),
            output: SendQueue::default(),
            limit: options.buffer.max(1),
            blocked: false,
            ended: false,
            counted: TransportStatistics::default(),
        }
    }
}

impl Transport for UnixTransport {
    fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn wants_write(&self) -> bool {
        self.blocked
    }

    fn receive(&mut self, _now: u64, buffer: &mut [u8]) -> io::Result<Received> {
        if self.ended {
            return Ok(Received::End);
        }
        loop {
            match net::recv(&self.stream, &mut *buffer, RecvFlags::DONTWAIT) {
                // The kernel says that the peer closed without reading everything only when all it sent has been read.
                Ok((_, 0)) | Err(Errno::CONNRESET) => {
                    self.ended = true;
                    return Ok(Received::End);
                }
                Ok((_, n)) => {
                    self.counted.received_bytes += n as u64;
                    return Ok(Received::Bytes(n));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn send(&mut self, _now: u64, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.limit.saturating_sub(self.output.len()));
        self.output.bytes().extend_from_slice(&bytes[..taken]);
        self.counted.sent_bytes += taken as u64;
        Ok(taken)
    }

    fn attach(&mut self, fds: [OwnedFd; 2]) -> bool {
        self.output.attach(fds);
        true
    }

    fn carries_descriptors(&self) -> bool {
        true
    }

    fn flush(&mut self, _now: u64) -> io::Result<bool> {
        match self.output.flush(self.stream.as_fd()) {
            Ok(done) => {
                self.blocked = !done;
                Ok(done)
            }
            // The peer has gone: `receive` reports it behind the last bytes; these are dropped.
            Err(Errno::PIPE | Errno::CONNRESET) => {
                self.output = SendQueue::default();
                self.blocked = false;
                Ok(true)
            }
            Err(e) => Err(e.into()),
        }
    }

    fn statistics(&self) -> TransportStatistics {
        self.counted
    }
}

/// A listening Unix stream socket.
#[derive(Debug)]
pub struct UnixAcceptor {
    listener: Listener,
    options: Options,
}

impl UnixAcceptor {
    /// Listens at `path`.
    pub fn bind(path: &Path, options: &Options) -> Result<UnixAcceptor, OpenError> {
        Ok(UnixAcceptor { listener: Listener::bind(path, options.named)?, options: options.clone() })
    }
}

impl Acceptor for UnixAcceptor {
    fn fd(&self) -> BorrowedFd<'_> {
        self.listener.fd()
    }

    fn accept(&mut self, _now: u64) -> io::Result<Option<Box<dyn Transport>>> {
        let stream = self.listener.accept()?;
        Ok(stream.map(|stream| Box::new(UnixTransport::from_stream(stream, &self.options)) as Box<dyn Transport>))
    }
}
