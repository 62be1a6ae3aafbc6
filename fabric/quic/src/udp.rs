// SPDX-License-Identifier: MIT OR Apache-2.0
//! The UDP socket of an endpoint, which talks to many peers.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Bytes that the kernel is asked to hold in each direction; it may grant fewer.
const KERNEL_BUFFER: usize = 1 << 20;
/// Errors of the network that wait in a socket to be taken, passed over in one call.
const PENDING_ERRORS: usize = 64;

/// A UDP socket, not connected, that never blocks. What it sends is never cut into fragments.
#[derive(Debug)]
pub(crate) struct Udp {
    fd: OwnedFd,
    local: SocketAddr,
}

impl Udp {
    pub(crate) fn bind(at: SocketAddr) -> Result<Udp, Errno> {
        let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = net::socket_with(family, SocketType::DGRAM, flags, None)?;
        net::bind(&fd, &at)?;
        // The engine looks for the longest datagram that passes, for which fragments must not be made; a kernel that
        // cannot say so still carries what is sent.
        let _ = if at.is_ipv4() {
            sockopt::set_ip_mtu_discover(&fd, Ipv4PathMtuDiscovery::PROBE)
        } else {
            sockopt::set_ipv6_mtu_discover(&fd, Ipv6PathMtuDiscovery::PROBE)
        };
        let _ = sockopt::set_socket_recv_buffer_size(&fd, KERNEL_BUFFER);
        let _ = sockopt::set_socket_send_buffer_size(&fd, KERNEL_BUFFER);
        let local = SocketAddr::try_from(net::getsockname(&fd)?)?;
        Ok(Udp { fd, local })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Where it is bound.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// False: no room now. Whatever else keeps a datagram from leaving is a loss as in any network: no route, a host
    /// that is down, a datagram too long for the path.
    pub(crate) fn send(&self, to: SocketAddr, bytes: &[u8]) -> bool {
        loop {
            match net::sendto(&self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &to) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return false,
                Ok(_) | Err(_) => return true,
            }
        }
    }

    /// The next datagram and where it came from.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
        for _ in 0..PENDING_ERRORS {
            match net::recvfrom(&self.fd, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((_, len, Some(from))) => match SocketAddr::try_from(from) {
                    Ok(from) => return Ok(Some((len.min(buffer.len()), from))),
                    Err(_) => continue,
                },
                Ok((_, _, None)) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(
                    Errno::INTR
                    | Errno::CONNREFUSED
                    | Errno::HOSTUNREACH
                    | Errno::NETUNREACH
                    | Errno::NETDOWN
                    | Errno::MSGSIZE
                    | Errno::PROTO
                    | Errno::NOPROTOOPT
                    | Errno::HOSTDOWN
                    | Errno::OPNOTSUPP,
                ) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(None)
    }
}
