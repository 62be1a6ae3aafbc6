// SPDX-License-Identifier: MIT OR Apache-2.0
//! The node at the other end of a connection: that of the neighbour's Ethernet address, which a board's network device
//! (`tg0`) makes of it.

use std::ffi::c_int;
use std::net::Ipv4Addr;
use telegraphos::NodeId;
use telegraphos_wire::net;

/// The system's table of neighbours.
pub(crate) struct Neighbours(String);

impl Neighbours {
    pub(crate) fn read() -> Option<Neighbours> {
        std::fs::read_to_string("/proc/net/arp").ok().map(Neighbours)
    }

    /// The node at the other end of a connection over a board, if it is one.
    pub(crate) fn node_of(&self, fd: c_int) -> Option<NodeId> {
        if crate::kernel::option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) != Ok(libc::IPPROTO_TCP) {
            return None;
        }
        find(&self.0, crate::kernel::address(fd, true)?)
    }
}

/// The node at the other end of a connection over a board, if it is one.
pub(crate) fn node_of(fd: c_int) -> Option<NodeId> {
    Neighbours::read()?.node_of(fd)
}

/// The node that has an address, by the system's table of neighbours.
fn find(table: &str, address: Ipv4Addr) -> Option<NodeId> {
    let lines = table.lines().skip(1).map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    // IP address, HW type, flags, HW address, mask, device
    let mut ours = lines.filter(|fields| fields.first().and_then(|ip| ip.parse().ok()) == Some(address));
    ours.find_map(|fields| net::node_of(fields.get(3)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_found_among_neighbours() {
        let table = "IP address       HW type     Flags       HW address            Mask     Device\n\
                     10.0.2.2         0x1         0x2         52:55:0a:00:02:02     *        eth0\n\
                     10.84.0.2        0x1         0x2         02:54:47:00:00:01     *        tg0\n\
                     10.84.1.3        0x1         0x2         02:54:47:00:01:02     *        tg0\n\
                     10.84.0.9        0x1         0x0         00:00:00:00:00:00     *        tg0\n";
        assert_eq!(find(table, Ipv4Addr::new(10, 84, 0, 2)), Some(1));
        assert_eq!(find(table, Ipv4Addr::new(10, 84, 1, 3)), Some(0x102));
        assert_eq!(find(table, Ipv4Addr::new(10, 84, 0, 9)), None);
        assert_eq!(find(table, Ipv4Addr::new(10, 0, 2, 2)), None);
        assert_eq!(find("", Ipv4Addr::new(10, 0, 2, 2)), None);
    }
}
