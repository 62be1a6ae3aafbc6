// SPDX-License-Identifier: MIT OR Apache-2.0
//! Datagram sockets, and what their errors mean.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType};

use crate::branch::SharedSocket;
use crate::{DatagramAddress, Datagrams, OpenError, TransportStatistics};

/// Bytes of the kernel's buffers; it grants at most `net.core.rmem_max`.
const KERNEL_BUFFER: usize = 4 << 20;

/// The outcome of sending a datagram.
enum Sent {
    Yes,
    /// The socket is full.
    Later,
    /// The peer is unreachable: lost, as in any network.
    Lost,
}

/// Sends, again after an interruption. Other errors than those of the network are returned.
fn sent(send: impl FnMut() -> Result<usize, Errno>) -> io::Result<Sent> {
    match retry_on_intr(send) {
        Ok(_) => Ok(Sent::Yes),
        Err(Errno::AGAIN | Errno::NOBUFS) => Ok(Sent::Later),
        Err(
            Errno::CONNREFUSED
            | Errno::CONNRESET
            | Errno::NOTCONN
            | Errno::NOENT
            | Errno::HOSTUNREACH
            | Errno::HOSTDOWN
            | Errno::NETUNREACH
            | Errno::NETDOWN
            | Errno::NONET
            | Errno::ACCESS
            | Errno::PERM,
        ) => Ok(Sent::Lost),
        Err(e) => Err(e.into()),
    }
}

fn datagram_socket(family: AddressFamily) -> Result<OwnedFd, Errno> {
    let fd = net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    // As much as the kernel grants; less costs speed only.
    let _ = set_socket_recv_buffer_size(&fd, KERNEL_BUFFER);
    let _ = set_socket_send_buffer_size(&fd, KERNEL_BUFFER);
    Ok(fd)
}

fn family(of: &SocketAddr) -> AddressFamily {
    if of.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// A server's socket, bound to the first of these addresses that can be.
pub(super) fn bind_udp(address: &DatagramAddress, at: &[SocketAddr]) -> Result<OwnedFd, OpenError> {
    let mut failed = Errno::ADDRNOTAVAIL;
    for at in at {
        let bound = datagram_socket(family(at)).and_then(|fd| net::bind(&fd, at).map(|()| fd));
        match bound {
            Ok(fd) => return Ok(fd),
            Err(e) => failed = e,
        }
    }
    let hint = match failed {
        Errno::ADDRINUSE => "another process has this port: stop it, or choose another port",
        Errno::ADDRNOTAVAIL => "this host does not have this address: choose one that it has",
        Errno::ACCESS => "ports below 1024 are for the administrator: choose another",
        _ => "choose another address",
    };
    Err(OpenError::listen(address, failed, hint))
}

/// A connected datagram socket.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    /// Of a Unix socket, the peer's: after a restart there is a new socket, which must be connected to again.
    path: Option<PathBuf>,
    longest: usize,
    full: bool,
    counted: TransportStatistics,
}

impl Socket {
    /// Connected to the first of these addresses that can be. `longest` is in bytes.
    pub(super) fn udp(address: &DatagramAddress, to: &[SocketAddr], longest: usize) -> Result<Socket, OpenError> {
        let mut failed = Errno::ADDRNOTAVAIL;
        for to in to {
            let connected = datagram_socket(family(to)).and_then(|fd| net::connect(&fd, to).map(|()| fd));
            match connected {
                Ok(fd) => return Ok(Socket::new(fd, None, longest)),
                Err(e) => failed = e,
            }
        }
        Err(OpenError::connect(address, failed, "is there a route to this host?"))
    }

    /// Connected to the socket at `path`, from which alone it receives. The kernel gives it an abstract name, to which
    /// answers are sent.
    pub(super) fn unix(address: &DatagramAddress, path: &std::path::Path, longest: usize) -> Result<Socket, OpenError> {
        let failed = |e: Errno| {
            let hint = match e {
                Errno::CONNREFUSED => "the process that listened there has ended: start it again",
                Errno::ACCESS | Errno::PERM => "run as the user of the other process: its socket has mode 0600",
                Errno::NAMETOOLONG => "a Unix socket path has at most 107 bytes: choose a shorter one",
                Errno::PROTOTYPE => "the socket there is of another kind: name the transport that it was made for",
                Errno::MFILE | Errno::NFILE => "raise the limit of open files (ulimit -n)",
                _ => "is the process that listens there running?",
            };
            OpenError::connect(address, e, hint)
        };
        let to = SocketAddrUnix::new(path).map_err(failed)?;
        let fd = datagram_socket(AddressFamily::UNIX).map_err(failed)?;
        net::bind(&fd, &SocketAddrUnix::new_unnamed()).map_err(failed)?;
        net::connect(&fd, &to).map_err(failed)?;
        Ok(Socket::new(fd, Some(path.to_owned()), longest))
    }

    fn new(fd: OwnedFd, path: Option<PathBuf>, longest: usize) -> Socket {
        Socket { fd, path, longest, full: false, counted: TransportStatistics::default() }
    }

    fn reconnect(&self) {
        if let Some(to) = self.path.as_ref().and_then(|path| SocketAddrUnix::new(path).ok()) {
            // Fails until the peer listens again: the next datagram retries.
            let _ = net::connect(&self.fd, &to);
        }
    }
}

impl Datagrams for Socket {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn wants_write(&self) -> bool {
        self.full
    }

    fn max_len(&self) -> usize {
        self.longest
    }

    fn send(&mut self, _now: u64, bytes: &[u8]) -> io::Result<bool> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let outcome = sent(|| net::send(&self.fd, bytes, flags))?;
        self.full = matches!(outcome, Sent::Later);
        match outcome {
            Sent::Yes => self.counted.sent_datagrams += 1,
            Sent::Later => {}
            Sent::Lost => self.reconnect(),
        }
        Ok(!self.full)
    }

    fn receive(&mut self, _now: u64, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match net::recv(&self.fd, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((_, len)) => {
                    self.counted.received_datagrams += 1;
                    return Ok(Some(len.min(buffer.len())));
                }
                // The error of an earlier datagram; its loss will be noticed.
                Err(Errno::INTR | Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::NETUNREACH) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::CONNRESET) => self.reconnect(),
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn flush(&mut self, _now: u64) -> io::Result<()> {
        self.full = false;
        Ok(())
    }

    fn statistics(&self) -> TransportStatistics {
        self.counted
    }
}

/// The socket of a server, shared by its peers.
#[derive(Debug)]
pub(super) struct Shared(pub(super) OwnedFd);

impl SharedSocket for Shared {
    type Address = SocketAddrAny;

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn send_to(&self, to: &SocketAddrAny, bytes: &[u8]) -> io::Result<bool> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(!matches!(sent(|| net::sendto(&self.0, bytes, flags, to))?, Sent::Later))
    }
}

/// Receives a datagram, cut to `buffer`: its length and source; `None` if none is there.
pub(super) fn receive_from(socket: &Shared, buffer: &mut [u8]) -> io::Result<Option<(usize, SocketAddrAny)>> {
    loop {
        match net::recvfrom(&socket.0, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((_, len, Some(peer))) => return Ok(Some((len.min(buffer.len()), peer))),
            // Without a source it cannot be answered.
            Ok((_, _, None)) => {}
            Err(Errno::INTR | Errno::CONNREFUSED | Errno::CONNRESET | Errno::HOSTUNREACH | Errno::NETUNREACH) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
    }
}
