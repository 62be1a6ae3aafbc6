// SPDX-License-Identifier: MIT OR Apache-2.0
//! The UDP socket of an endpoint, shared by all its peers.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{self, SendFlags};
use telegraphos_transport::{BoundSocket, SharedSocket};

/// Bytes of the kernel's buffer in each direction; it may grant fewer.
const KERNEL_BUFFER: usize = 1 << 20;

/// A UDP socket, not connected, that never blocks. What it sends is never cut into fragments.
#[derive(Debug)]
pub(crate) struct Udp {
    socket: BoundSocket,
    local: SocketAddr,
}

impl Udp {
    /// A socket bound to `at`.
    pub(crate) fn bind(at: SocketAddr) -> Result<Udp, Errno> {
        let socket = BoundSocket::udp(&at, KERNEL_BUFFER)?;
        // The engine searches for the longest datagram that passes unfragmented; a kernel without this option still
        // sends.
        let _ = if at.is_ipv4() {
            sockopt::set_ip_mtu_discover(socket.fd(), Ipv4PathMtuDiscovery::PROBE)
        } else {
            sockopt::set_ipv6_mtu_discover(socket.fd(), Ipv6PathMtuDiscovery::PROBE)
        };
        let local = SocketAddr::try_from(net::getsockname(socket.fd())?)?;
        Ok(Udp { socket, local })
    }

    /// The address that it is bound to.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Receives the next datagram into `buffer`: its length and its source.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
        let received = self.socket.receive(buffer)?;
        // Peers of a UDP socket have no other addresses.
        Ok(received.and_then(|(len, from)| Some((len, SocketAddr::try_from(from).ok()?))))
    }
}

impl SharedSocket for Udp {
    type Address = SocketAddr;

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }

    fn send_to(&self, to: &SocketAddr, bytes: &[u8]) -> io::Result<bool> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // Any other error is a loss, as in any network: no route, a host that is down, a datagram too long for the
        // path.
        Ok(retry_on_intr(|| net::sendto(self.fd(), bytes, flags, to)) != Err(Errno::AGAIN))
    }
}
