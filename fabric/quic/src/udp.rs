// SPDX-License-Identifier: MIT OR Apache-2.0
//! The UDP socket of an endpoint, shared by all its peers.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use telegraphos_transport::SharedSocket;

/// Bytes of the kernel's buffer in each direction; it may grant fewer.
const KERNEL_BUFFER: usize = 1 << 20;
/// Pending network errors of the socket that one call skips.
const PENDING_ERRORS: usize = 64;

/// A UDP socket, not connected, that never blocks. What it sends is never cut into fragments.
#[derive(Debug)]
pub(crate) struct Udp {
    fd: OwnedFd,
    local: SocketAddr,
}

impl Udp {
    /// A socket bound to `at`.
    pub(crate) fn bind(at: SocketAddr) -> Result<Udp, Errno> {
        let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = net::socket_with(family, SocketType::DGRAM, flags, None)?;
        net::bind(&fd, &at)?;
        // The engine searches for the longest datagram that passes unfragmented; a kernel without this option still
        // sends.
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

    /// The address that it is bound to.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Receives the next datagram into `buffer`: its length and its source.
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

impl SharedSocket for Udp {
    type Address = SocketAddr;

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn send_to(&self, to: &SocketAddr, bytes: &[u8]) -> io::Result<bool> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // Any other error is a loss, as in any network: no route, a host that is down, a datagram too long for the
        // path.
        Ok(retry_on_intr(|| net::sendto(&self.fd, bytes, flags, to)) != Err(Errno::AGAIN))
    }
}
