// SPDX-License-Identifier: MIT OR Apache-2.0
//! The network of a guest: addresses by the number of the node, names in /etc/hosts, and QEMU's network to the outside.
//!
//! A program for each of it costs an emulated processor 10 to 20 ms; a message to the kernel costs nothing.

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use telegraphos_wire::net;

pub use telegraphos_wire::net::ethernet;

const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const CREATE: u16 = 0x400;
/// The type of a message that says how a request ended.
const ERROR: u16 = 2;
const INET: u8 = 2;
/// The group of messages about network devices that come, go or change, as a bit.
const LINKS: u32 = 1;
/// Where the kernel lists network devices.
const DEVICES: &str = "/sys/class/net";

/// Bits of the network part of nodes' addresses.
pub const PREFIX: u8 = 16;
/// Bits of the network part of QEMU's.
const OUTSIDE_PREFIX: u8 = 24;
/// What QEMU's network gives a guest.
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
/// Its way to the outside.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// /etc/resolv.conf with its name server.
pub const RESOLVER: &str = "nameserver 10.0.2.3\n";

/// The address of a node: the numbers of nodes begin at 0, those of hosts at 1.
pub fn address(node: u16) -> Ipv4Addr {
    let [high, low] = (node + 1).to_be_bytes();
    Ipv4Addr::new(10, 84, high, low)
}

/// /etc/hosts in a cluster of so many nodes, of which some have names of their own.
pub fn hosts(nodes: u16, names: &[(u16, String)]) -> String {
    let mut text = String::from("127.0.0.1 localhost\n::1 localhost\n");
    for node in 0..nodes {
        let own = names.iter().filter(|(of, _)| *of == node).fold(String::new(), |all, (_, name)| all + name + " ");
        let _ = writeln!(text, "{} {own}node{node}", address(node));
    }
    text
}

/// Where a node has the keys that let it in at others, while it runs.
pub const SSH_KEYS: &str = "/run/telegraphos-ssh";

/// What ssh reads to find these keys, in a cluster of so many nodes, of which some have names of their own.
pub fn ssh_config(nodes: u16, names: &[(u16, String)]) -> String {
    let name = |node: u16| {
        let own = names.iter().find(|(of, _)| *of == node);
        own.map_or_else(|| format!("node{node}"), |(_, name)| name.clone())
    };
    let all: Vec<String> = (0..nodes).map(name).collect();
    format!(
        "Host {} 10.84.*\n    IdentityFile {SSH_KEYS}/id/%i\n    GlobalKnownHostsFile {SSH_KEYS}/known_hosts\n    \
         LogLevel ERROR\n",
        all.join(" ")
    )
}

/// A message to the kernel's routing: header, fixed part, attributes.
fn message(kind: u16, flags: u16, fixed: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut body = fixed.to_vec();
    for (attribute, value) in attributes {
        body.extend((4 + value.len() as u16).to_ne_bytes());
        body.extend(attribute.to_ne_bytes());
        body.extend(*value);
        body.resize(body.len().next_multiple_of(4), 0);
    }
    let mut message = (16 + body.len() as u32).to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend((flags | REQUEST | ACKNOWLEDGE).to_ne_bytes());
    message.extend([0; 8]); // sequence, port
    message.extend(body);
    message
}

fn link_up(interface: u32) -> Vec<u8> {
    let mut fixed = vec![0; 4]; // family, type
    for word in [interface, 1, 1] {
        fixed.extend(word.to_ne_bytes()); // flags: IFF_UP; which of them change
    }
    message(NEW_LINK, 0, &fixed, &[])
}

fn add_address(interface: u32, address: Ipv4Addr, prefix: u8) -> Vec<u8> {
    let mut fixed = vec![INET, prefix, 0, 0]; // flags, scope
    fixed.extend(interface.to_ne_bytes());
    let broadcast = u32::from(address) | u32::MAX >> prefix;
    // IFA_ADDRESS, IFA_LOCAL, IFA_BROADCAST
    message(
        NEW_ADDRESS,
        CREATE,
        &fixed,
        &[(1, &address.octets()), (2, &address.octets()), (4, &broadcast.to_be_bytes())],
    )
}

fn add_default_route(interface: u32, gateway: Ipv4Addr) -> Vec<u8> {
    // Lengths of destination and source; main table, by boot, everywhere, unicast.
    let mut fixed = vec![INET, 0, 0, 0, 254, 3, 0, 1];
    fixed.extend([0; 4]);
    // RTA_GATEWAY, RTA_OIF
    message(NEW_ROUTE, CREATE, &fixed, &[(5, &gateway.octets()), (4, &interface.to_ne_bytes())])
}

/// How the kernel says a request ended.
fn outcome(reply: &[u8]) -> io::Result<()> {
    let word = |at: usize| reply.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    let kind = reply.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    match (kind, word(16)) {
        (Some(ERROR), Some(0)) => Ok(()),
        (Some(ERROR), Some(error)) => Err(io::Error::from_raw_os_error(-error)),
        _ => Err(io::Error::other("the kernel's answer is no acknowledgement")),
    }
}

/// A connection to the kernel's routing.
struct Routing(OwnedFd);

impl Routing {
    fn open() -> io::Result<Routing> {
        // Without a protocol: NETLINK_ROUTE.
        Ok(Routing(socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?))
    }

    fn request(&self, message: &[u8]) -> io::Result<()> {
        sendto(&self.0, message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut reply = [0; 4096];
        let (length, _) = recv(&self.0, &mut reply, RecvFlags::empty())?;
        outcome(&reply[..length])
    }
}

/// The number of a network interface.
fn interface(name: &str) -> io::Result<u32> {
    let number = std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex"))?;
    number.trim().parse().map_err(io::Error::other)
}

pub fn loopback_up() -> io::Result<()> {
    Routing::open()?.request(&link_up(1))
}

/// Numbers of the boards' network devices and their nodes. Their names are no sign: another device may have `tg0`.
fn devices_of_boards(at: &Path) -> io::Result<Vec<(u32, u16)>> {
    let of = |path: &Path| {
        let read = |name: &str| std::fs::read_to_string(path.join(name)).ok();
        Some((read("ifindex")?.trim().parse().ok()?, net::node_of(read("address")?.trim())?))
    };
    Ok(std::fs::read_dir(at)?.flatten().filter_map(|entry| of(&entry.path())).collect())
}

/// A board's network device up, with the address of its node.
fn board_up(device: u32, node: u16) -> io::Result<()> {
    let routing = Routing::open()?;
    match routing.request(&add_address(device, address(node), PREFIX)) {
        // It has it already.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        result => result?,
    }
    routing.request(&link_up(device))
}

/// The network device of this node's board up, with the address of the node.
pub fn cluster_up(node: u16) -> io::Result<()> {
    let devices = devices_of_boards(DEVICES.as_ref())?;
    let device = devices.into_iter().find(|(_, of)| *of == node);
    let absent =
        || io::Error::new(io::ErrorKind::NotFound, format!("no network device is of the board of node {node}"));
    let (device, node) = device.ok_or_else(absent)?;
    board_up(device, node)
}

/// The boards' network devices, which get the address of their node and come up when they appear: when a board is
/// plugged in, or the driver is loaded.
#[derive(Debug)]
pub struct BoardDevices {
    changes: OwnedFd,
    known: BTreeSet<u32>,
}

impl BoardDevices {
    /// Watches them. Those that are there stay as they are.
    pub fn watch() -> io::Result<BoardDevices> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let changes = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&changes, &SocketAddrNetlink::new(0, LINKS))?;
        let known = devices_of_boards(DEVICES.as_ref())?.into_iter().map(|(device, _)| device).collect();
        Ok(BoardDevices { changes, known })
    }

    /// Looks at what has changed since the last call. Never blocks.
    pub fn look(&mut self) -> io::Result<()> {
        let (mut buffer, mut changed) = ([0; 8192], false);
        loop {
            match recv(&self.changes, &mut buffer, RecvFlags::DONTWAIT) {
                // More have changed than the socket holds.
                Ok(_) | Err(Errno::NOBUFS) => changed = true,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        if !changed {
            return Ok(());
        }
        let devices = devices_of_boards(DEVICES.as_ref())?;
        self.known.retain(|known| devices.iter().any(|(device, _)| device == known));
        for (device, node) in devices {
            if self.known.insert(device) {
                match board_up(device, node) {
                    Ok(()) => {}
                    // Unplugged meanwhile.
                    Err(e) if e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(19) => {}
                    Err(e) => eprintln!("telegraphos: the network device of the board of node {node}: {e}"),
                }
            }
        }
        Ok(())
    }
}

impl AsFd for BoardDevices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}

/// The device in QEMU's network up, with the address and the way out that that network gives.
pub fn outside_up(name: &str) -> io::Result<()> {
    let (routing, interface) = (Routing::open()?, interface(name)?);
    routing.request(&add_address(interface, OUTSIDE, OUTSIDE_PREFIX))?;
    routing.request(&link_up(interface))?;
    routing.request(&add_default_route(interface, GATEWAY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_addresses_by_their_numbers() {
        assert_eq!(address(0), Ipv4Addr::new(10, 84, 0, 1));
        assert_eq!(address(255), Ipv4Addr::new(10, 84, 1, 0));
        let config = ssh_config(2, &[(1, "right".into())]);
        assert!(
            config.starts_with("Host node0 right 10.84.*\n    IdentityFile /run/telegraphos-ssh/id/%i\n"),
            "{config}"
        );
        let hosts = hosts(2, &[(1, "right".into())]);
        assert!(hosts.ends_with("10.84.0.1 node0\n10.84.0.2 right node1\n"), "{hosts}");
    }

    #[test]
    fn devices_of_boards_are_known_by_their_address() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, index: &str, address: &str| {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join("ifindex"), index).unwrap();
            std::fs::write(dir.path().join(name).join("address"), address).unwrap();
        };
        put("lo", "1\n", "00:00:00:00:00:00\n");
        // The name is another's.
        put("tg0", "2\n", "52:54:00:12:34:56\n");
        put("tg1", "3\n", "02:54:47:00:01:0a\n");
        put("other", "4\n", "02:54:47:01:01:0a\n");
        assert_eq!(devices_of_boards(dir.path()).unwrap(), [(3, 266)]);
    }

    #[test]
    fn nothing_that_has_changed_is_nothing_to_do() {
        let mut devices = BoardDevices::watch().unwrap();
        devices.look().unwrap();
        assert_eq!(devices.known.len(), devices_of_boards(DEVICES.as_ref()).unwrap().len());
    }

    #[test]
    fn messages_say_their_length_and_attributes_are_aligned() {
        for message in [link_up(3), add_address(3, address(4), 16), add_default_route(3, GATEWAY)] {
            assert_eq!(u32::from_ne_bytes(message[..4].try_into().unwrap()) as usize, message.len());
            assert_eq!(message.len() % 4, 0);
        }
        let message = add_address(7, Ipv4Addr::new(10, 84, 0, 5), 16);
        assert_eq!(message[16..24], [2, 16, 0, 0, 7, 0, 0, 0]);
        assert_eq!(message[24..32], [8, 0, 1, 0, 10, 84, 0, 5]);
        assert_eq!(message[40..48], [8, 0, 4, 0, 10, 84, 255, 255]);
    }

    #[test]
    fn an_answer_that_is_no_acknowledgement_is_an_error() {
        let answer = |kind: u16, error: i32| {
            let mut answer = vec![0; 16];
            answer[4..6].copy_from_slice(&kind.to_ne_bytes());
            answer.extend(error.to_ne_bytes());
            outcome(&answer).map_err(|e| e.raw_os_error())
        };
        assert_eq!(answer(ERROR, 0), Ok(()));
        assert_eq!(answer(ERROR, -17), Err(Some(17)));
        assert_eq!(answer(3, 0), Err(None));
        assert!(outcome(&[]).is_err());
    }

    #[test]
    fn the_kernel_takes_and_refuses_requests() {
        // Up already, or not allowed to this user: acknowledged or refused, but answered.
        let answer = loopback_up();
        assert!(answer.as_ref().map_or_else(|e| e.raw_os_error() == Some(1), |()| true), "{answer:?}");
        let missing = interface("tg-none").map_err(|e| e.kind());
        assert_eq!(missing, Err(io::ErrorKind::NotFound));
    }
}
