// SPDX-License-Identifier: MIT OR Apache-2.0
//! UDP and TCP between the guests, over virtio-net with a cable and over the boards' tg0. Both ends sleep until
//! something comes.

use super::modules::{load_modules, run};
use super::pair::Lead;
use super::{Round, nanoseconds};
use std::fs::read_dir;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};
use telegraphos::NodeId;
use telegraphos_agent::bench::slot;
use telegraphos_agent::network;
use telegraphos_guest_tests::cli::{self, Failure, Outcome, failed};
use telegraphos_guest_tests::patience::{MILLISECOND, patiently};
use telegraphos_guest_tests::pci::Device;

const PORT: u16 = 7777;
const PATIENCE: Duration = Duration::from_secs(5);

/// Sockets of one network device to the other node.
pub(crate) struct Network {
    pub(crate) udp: Udp,
    pub(crate) tcp: Listening,
}

impl Network {
    /// Over virtio-net, which gets its address here.
    pub(crate) fn of_virtio(place: usize) -> Outcome<Network> {
        let absent = || Failure::Refused(format!("there is no virtio-net in slot {:#x}", slot::NETWORK));
        let device = Device::at(slot::NETWORK).ok_or_else(absent)?;
        load_modules(&["failover", "net_failover", "virtio_net"])?;
        let name = interface(&device)?;
        let address = |place: usize| SocketAddr::from(([10, 99, 0, 1 + place as u8], PORT));
        run("ip", &["addr", "replace", &format!("{}/24", address(place).ip()), "dev", &name])?;
        run("ip", &["link", "set", &name, "up"])?;
        Network::between(address(place), address(1 - place), place)
    }

    /// Over the board, which has an address since the guest has booted.
    pub(crate) fn of_board(own: NodeId, other: NodeId, place: usize) -> Outcome<Network> {
        cli::must(Path::new("/sys/class/net/tg0").exists(), Failure::Refused, || {
            "there is no tg0: expected a cluster without --net none".into()
        })?;
        let address = |node| SocketAddr::from((network::address(node), PORT));
        Network::between(address(own), address(other), place)
    }

    fn between(own: SocketAddr, other: SocketAddr, place: usize) -> Outcome<Network> {
        let udp = UdpSocket::bind(own).map_err(failed("UDP"))?;
        udp.connect(other).map_err(failed("UDP"))?;
        udp.set_read_timeout(Some(PATIENCE)).map_err(failed("UDP"))?;
        let tcp = match place {
            0 => Listening::Other(other),
            _ => Listening::Here(TcpListener::bind(own).map_err(failed("TCP"))?),
        };
        Ok(Network { udp: Udp(udp), tcp })
    }
}

fn interface(device: &Device) -> Outcome<String> {
    // The directories of virtio devices are those of the PCI device, or one below.
    let inside = |path: &Path| Some(read_dir(path.join("net")).ok()?.flatten().next()?.file_name());
    let below = read_dir(device.path("")).ok().into_iter().flatten().flatten().find_map(|e| inside(&e.path()));
    let name = below.or_else(|| inside(&device.path("")));
    name.map(|name| name.to_string_lossy().into_owned())
        .ok_or_else(|| Failure::Refused("virtio-net has no network interface".into()))
}

pub(crate) struct Udp(UdpSocket);

impl Udp {
    pub(crate) fn send(&self, value: u64) -> Outcome<()> {
        self.0.send(&value.to_le_bytes()).map(drop).map_err(failed("UDP"))
    }

    pub(crate) fn wait(&self, value: u64) -> Outcome<()> {
        let mut bytes = [0; 8];
        loop {
            match self.0.recv(&mut bytes) {
                Ok(8) if u64::from_le_bytes(bytes) == value => return Ok(()),
                // Of an order that was abandoned.
                Ok(_) => {}
                Err(e) => return Err(failed("UDP")(e)),
            }
        }
    }
}

pub(crate) enum Listening {
    /// The other node listens, there.
    Other(SocketAddr),
    Here(TcpListener),
}

impl Listening {
    /// The connection: the other end is up, since both nodes have met.
    pub(crate) fn connected(self) -> Outcome<Tcp> {
        self.stream().map(Tcp).map_err(failed("TCP"))
    }

    fn stream(self) -> std::io::Result<TcpStream> {
        let pause = 10 * MILLISECOND;
        let stream = match self {
            Listening::Other(other) => {
                patiently(PATIENCE, pause, |_| true, || TcpStream::connect_timeout(&other, PATIENCE))?
            }
            Listening::Here(listener) => {
                listener.set_nonblocking(true)?;
                patiently(2 * PATIENCE, pause, |_| true, || listener.accept())?.0
            }
        };
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }
}

pub(crate) struct Tcp(TcpStream);

impl Tcp {
    pub(crate) fn send(&self, value: u64) -> Outcome<()> {
        (&self.0).write_all(&value.to_le_bytes()).map_err(failed("TCP"))
    }

    pub(crate) fn wait(&self, value: u64) -> Outcome<()> {
        let mut bytes = [0; 8];
        (&self.0).read_exact(&mut bytes).map_err(failed("TCP"))?;
        if u64::from_le_bytes(bytes) == value { Ok(()) } else { Err(failed("TCP")("another value has come")) }
    }

    fn send_bytes(&self, count: u64) -> Outcome<()> {
        let part = vec![0x5a; PART];
        parts(count).try_for_each(|bytes| (&self.0).write_all(&part[..bytes])).map_err(failed("TCP"))
    }

    fn take_bytes(&self, count: u64) -> Outcome<()> {
        let mut part = vec![0; PART];
        parts(count).try_for_each(|bytes| (&self.0).read_exact(&mut part[..bytes])).map_err(failed("TCP"))
    }

    /// Sends and takes so much at once.
    fn exchange(&self, count: u64) -> Outcome<()> {
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| self.send_bytes(count));
            self.take_bytes(count)?;
            sender.join().unwrap_or_else(|_| Err(Failure::Refused("TCP: the sender panicked".into())))
        })
    }
}

/// Bytes of a call of `send` and `recv`.
const PART: usize = 1 << 16;

/// The lengths of the calls for so many bytes.
fn parts(count: u64) -> impl Iterator<Item = usize> {
    (0..count).step_by(PART).map(move |at| (count - at).min(PART as u64) as usize)
}

/// Bytes that are measured, each way, and before that: the connection was idle.
pub(crate) const BULK: u64 = 8 << 20;
const WARMING: u64 = BULK / 4;

/// Much data over one connection.
pub(crate) struct Bulk {
    /// One way, and both at once.
    pub(crate) names: [&'static str; 2],
    pub(crate) tcp: Outcome<Rc<Tcp>>,
}

impl Bulk {
    /// The end of the partner: `both` ways, or from the lead.
    pub(crate) fn answer(&self, both: bool, first: u64) -> Outcome<()> {
        let tcp = self.tcp.clone()?;
        for count in [WARMING, BULK] {
            match both {
                true => tcp.exchange(count)?,
                false => tcp.take_bytes(count)?,
            }
            tcp.send(first)?;
        }
        Ok(())
    }

    /// `order` and the next number are those of its two measurements.
    pub(crate) fn round(&self, lead: &mut Lead<'_>, order: u64, values: &mut Round<'_>) -> Outcome<()> {
        for (name, both) in self.names.into_iter().zip([false, true]) {
            let Some(tcp) = values.usable(name, self.tcp.clone()) else { continue };
            let first = lead.order(order + u64::from(both), 1)?;
            values.part(name, |ns| {
                let mut begun = Instant::now();
                for count in [WARMING, BULK] {
                    begun = Instant::now();
                    match both {
                        true => tcp.exchange(count)?,
                        false => tcp.send_bytes(count)?,
                    }
                    tcp.wait(first)?;
                }
                Ok(_ = ns.insert(name.into(), nanoseconds(begun, 1)))
            });
            lead.wait()?;
        }
        Ok(())
    }
}
