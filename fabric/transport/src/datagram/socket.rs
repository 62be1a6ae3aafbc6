// SPDX-License-Identifier: MIT OR Apache-2.0
//! Datagram sockets, and what their errors mean.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType};

use crate::branch::SharedSocket;
use crate::unix::connect_unix;
use crate::{DatagramAddress, Datagrams, OpenError, scheme};

/// Bytes of the kernel's buffers; it grants at most `net.core.rmem_max`.
const KERNEL_BUFFER: usize = 4 << 20;
/// Datagrams without a source, and errors of earlier ones, that one call skips.
const PENDING_ERRORS: usize = 64;

/// The outcome of sending a datagram.
enum Sent {
    Yes,
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

fn datagram_socket(family: AddressFamily, buffer: usize) -> Result<OwnedFd, Errno> {
    let fd = net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    // As much as the kernel grants; less costs speed only.
    let _ = set_socket_recv_buffer_size(&fd, buffer);
    let _ = set_socket_send_buffer_size(&fd, buffer);
    Ok(fd)
}

fn udp_socket(of: &SocketAddr, buffer: usize) -> Result<OwnedFd, Errno> {
    datagram_socket(if of.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }, buffer)
}

/// What `open` makes of the first of these addresses that it can be made of.
fn first<T>(at: &[SocketAddr], open: impl Fn(&SocketAddr) -> Result<T, Errno>) -> Result<T, Errno> {
    let mut failed = Errno::ADDRNOTAVAIL;
    for at in at {
        match open(at) {
            Ok(opened) => return Ok(opened),
            Err(e) => failed = e,
        }
    }
    Err(failed)
}

/// A server's socket, bound to the first of these addresses that can be.
pub(super) fn bind_udp(address: &DatagramAddress, at: &[SocketAddr]) -> Result<BoundSocket, OpenError> {
    first(at, |at| BoundSocket::udp(at, KERNEL_BUFFER)).map_err(|failed| {
        let hint = match failed {
            Errno::ADDRINUSE => "another process has this port: stop it, or choose another port",
            Errno::ADDRNOTAVAIL => "this host does not have this address: choose one that it has",
            Errno::ACCESS => "ports below 1024 are for the administrator: choose another",
            _ => "choose another address",
        };
        OpenError::listen(address, failed, hint)
    })
}

#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    /// Of a Unix socket, the peer's: after a restart there is a new socket, which must be connected to again.
    path: Option<PathBuf>,
    longest: usize,
    full: bool,
}

impl Socket {
    /// Connected to the first of these addresses that can be. `longest` is in bytes.
    pub(super) fn udp(address: &DatagramAddress, to: &[SocketAddr], longest: usize) -> Result<Socket, OpenError> {
        let connected = first(to, |to| {
            let fd = udp_socket(to, KERNEL_BUFFER)?;
            net::connect(&fd, to)?;
            Ok(Socket::new(fd, None, longest))
        });
        connected.map_err(|failed| OpenError::connect(address, failed, "is there a route to this host?"))
    }

    /// Connected to the socket at `path`, from which alone it receives. The kernel gives it an abstract name, to which
    /// answers are sent.
    pub(super) fn unix(path: &Path, longest: usize) -> Result<Socket, OpenError> {
        let fd = connect_unix(path, scheme::UNIX_DATAGRAM, || {
            let fd = datagram_socket(AddressFamily::UNIX, KERNEL_BUFFER)?;
            net::bind(&fd, &SocketAddrUnix::new_unnamed())?;
            Ok(fd)
        })?;
        Ok(Socket::new(fd, Some(path.to_owned()), longest))
    }

    fn new(fd: OwnedFd, path: Option<PathBuf>, longest: usize) -> Socket {
        Socket { fd, path, longest, full: false }
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
        if matches!(outcome, Sent::Lost) {
            self.reconnect();
        }
        Ok(!self.full)
    }

    fn receive(&mut self, _now: u64, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match net::recv(&self.fd, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((_, len)) => return Ok(Some(len.min(buffer.len()))),
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
}

/// A datagram socket that is not connected: its peers share it. No call blocks.
#[derive(Debug)]
pub struct BoundSocket(pub(super) OwnedFd);

impl BoundSocket {
    /// A UDP socket that is bound to `at`; `buffer` is in bytes, for each direction, and the kernel may grant fewer.
    pub fn udp(at: &SocketAddr, buffer: usize) -> Result<BoundSocket, Errno> {
        let fd = udp_socket(at, buffer)?;
        net::bind(&fd, at)?;
        Ok(BoundSocket(fd))
    }

    /// Receives a datagram, cut to `buffer`: its length and source; `None` if none is there.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, SocketAddrAny)>> {
        for _ in 0..PENDING_ERRORS {
            match net::recvfrom(&self.0, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((_, len, Some(peer))) => return Ok(Some((len.min(buffer.len()), peer))),
                // Without a source it cannot be answered.
                Ok((_, _, None)) => {}
                Err(Errno::AGAIN) => return Ok(None),
                // The error of an earlier datagram.
                Err(
                    Errno::INTR
                    | Errno::CONNREFUSED
                    | Errno::CONNRESET
                    | Errno::HOSTUNREACH
                    | Errno::HOSTDOWN
                    | Errno::NETUNREACH
                    | Errno::NETDOWN
                    | Errno::MSGSIZE
                    | Errno::PROTO
                    | Errno::NOPROTOOPT
                    | Errno::OPNOTSUPP,
                ) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(None)
    }
}

impl SharedSocket for BoundSocket {
    type Address = SocketAddrAny;

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn send_to(&self, to: &SocketAddrAny, bytes: &[u8]) -> io::Result<bool> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(!matches!(sent(|| net::sendto(&self.0, bytes, flags, to))?, Sent::Later))
    }
}
