// SPDX-License-Identifier: MIT OR Apache-2.0
//! Datagram sockets, and what their errors mean.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType};

use crate::{DatagramAddress, Datagrams, OpenError, TransportStatistics};

/// Bytes that the kernel is asked to keep; it gives what it is allowed to (`net.core.rmem_max`).
const KERNEL_BUFFER: usize = 4 << 20;
/// Datagrams of one peer that wait to be processed; they are processed at once, so this is never reached.
const INBOX: usize = 1024;

/// What became of a datagram given to a socket.
enum Sent {
    Yes,
    /// The socket is full.
    Later,
    /// Nobody is there, or no way leads there: lost, as in any network.
    Lost,
}

fn sent(result: Result<usize, Errno>) -> io::Result<Sent> {
    match result {
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
    // As much as we may have; less costs speed only.
    let _ = set_socket_recv_buffer_size(&fd, KERNEL_BUFFER);
    let _ = set_socket_send_buffer_size(&fd, KERNEL_BUFFER);
    Ok(fd)
}

fn family(of: &SocketAddr) -> AddressFamily {
    if of.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// A socket that is called: bound to the first of these addresses that can be.
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
    /// Of a Unix socket, that of the peer: who starts again there has a new socket, which must be connected to anew.
    path: Option<PathBuf>,
    longest: usize,
    full: bool,
    counted: TransportStatistics,
}

impl Socket {
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

    /// The kernel gives it a name without a file, by which it is answered; being connected, it takes datagrams of the
    /// socket at `path` only.
    pub(super) fn unix(address: &DatagramAddress, path: &std::path::Path, longest: usize) -> Result<Socket, OpenError> {
        let failed = |e: Errno| {
            let hint = match e {
                Errno::CONNREFUSED => "the process that listened there has ended: start it again",
                Errno::ACCESS | Errno::PERM => "run as the user who runs the other process: its socket has mode 0600",
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
            // If nobody is there yet: the next datagram tries again.
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

    fn deadline(&self) -> Option<u64> {
        None
    }

    fn max_len(&self) -> usize {
        self.longest
    }

    fn send(&mut self, _now: u64, bytes: &[u8]) -> io::Result<bool> {
        loop {
            match net::send(&self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                result => {
                    let what = sent(result)?;
                    self.full = matches!(what, Sent::Later);
                    self.counted.sent_datagrams += u64::from(matches!(what, Sent::Yes));
                    if matches!(what, Sent::Lost) {
                        self.reconnect();
                    }
                    return Ok(!self.full);
                }
            }
        }
    }

    fn receive(&mut self, _now: u64, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match net::recv(&self.fd, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((_, len)) => {
                    self.counted.received_datagrams += 1;
                    return Ok(Some(len.min(buffer.len())));
                }
                // What an earlier datagram met; that it is lost will be noticed.
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

/// The socket of a side that is called, shared by its peers.
pub(super) type Shared = Arc<OwnedFd>;
/// What came from one peer and was not processed.
pub(super) type Inbox = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// The next datagram, cut to `buffer`, and from whom; `None`: nothing is there now.
pub(super) fn receive_from(socket: &Shared, buffer: &mut [u8]) -> io::Result<Option<(usize, SocketAddrAny)>> {
    loop {
        match net::recvfrom(socket, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((_, len, Some(peer))) => return Ok(Some((len.min(buffer.len()), peer))),
            // Nobody who could be answered.
            Ok((_, _, None)) => {}
            Err(Errno::INTR | Errno::CONNREFUSED | Errno::CONNRESET | Errno::HOSTUNREACH | Errno::NETUNREACH) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
    }
}

pub(super) fn put(inbox: &Inbox, bytes: &[u8]) {
    let mut inbox = inbox.lock().unwrap_or_else(PoisonError::into_inner);
    if inbox.len() < INBOX {
        inbox.push_back(bytes.to_vec());
    }
}

/// What one peer of a shared socket sends and is sent, as if the socket were connected to it.
#[derive(Debug)]
pub(super) struct Branch {
    pub(super) socket: Shared,
    pub(super) peer: SocketAddrAny,
    pub(super) inbox: Inbox,
    pub(super) longest: usize,
    pub(super) full: bool,
}

impl Datagrams for Branch {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn wants_write(&self) -> bool {
        self.full
    }

    fn deadline(&self) -> Option<u64> {
        None
    }

    fn max_len(&self) -> usize {
        self.longest
    }

    fn send(&mut self, _now: u64, bytes: &[u8]) -> io::Result<bool> {
        loop {
            match net::sendto(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &self.peer) {
                Err(Errno::INTR) => {}
                result => {
                    self.full = matches!(sent(result)?, Sent::Later);
                    return Ok(!self.full);
                }
            }
        }
    }

    fn receive(&mut self, _now: u64, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let next = self.inbox.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        Ok(next.map(|bytes| {
            let len = bytes.len().min(buffer.len());
            buffer[..len].copy_from_slice(&bytes[..len]);
            len
        }))
    }

    fn flush(&mut self, _now: u64) -> io::Result<()> {
        self.full = false;
        Ok(())
    }

    fn statistics(&self) -> TransportStatistics {
        TransportStatistics::default()
    }
}
