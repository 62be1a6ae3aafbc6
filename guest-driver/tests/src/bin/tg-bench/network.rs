// SPDX-License-Identifier: MIT OR Apache-2.0
//! UDP and TCP over virtio-net, with a cable to the other guest. Both ends sleep until something comes.

use std::fs::read_dir;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use telegraphos_agent::bench::slot;
use telegraphos_guest_tests::cli::{Failure, Outcome};
use telegraphos_guest_tests::pci::Device;

const MODULES: &str = "/lib/telegraphos/peers";
const PORT: u16 = 7777;
const PATIENCE: Duration = Duration::from_secs(5);

fn failed(what: &str, e: impl std::fmt::Display) -> Failure {
    Failure::Refused(format!("{what}: {e}"))
}

/// Runs a program of the guest.
fn run(program: &str, arguments: &[&str]) -> Outcome<()> {
    let output = Command::new(program).args(arguments).output().map_err(|e| failed(program, e))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(&format!("{program} {}", arguments.join(" ")), said.trim()))
}

/// Loads the kernel's modules of these names, in order, unless they are loaded.
pub(crate) fn load_modules(names: &[&str]) -> Outcome<()> {
    for name in names {
        if Path::new(&format!("/sys/module/{name}")).exists() {
            continue;
        }
        let packed = format!("{MODULES}/{name}.ko.xz");
        let plain = format!("{MODULES}/{name}.ko");
        let module = if Path::new(&packed).exists() { packed } else { plain };
        if !Path::new(&module).exists() {
            return Err(failed("the guest's kernel", format!("its module {name} is not in the image")));
        }
        run(
            "sh",
            &["-c", "case $1 in *.xz) xzcat $1 >/tmp/module.ko; set - /tmp/module.ko; esac; insmod $1", "sh", &module],
        )?;
    }
    Ok(())
}

/// Both ways over one network device.
pub(crate) struct Network {
    pub(crate) udp: Udp,
    pub(crate) tcp: Listening,
}

fn address(place: usize) -> SocketAddr {
    SocketAddr::from(([10, 99, 0, 1 + place as u8], PORT))
}

impl Network {
    pub(crate) fn open(place: usize) -> Outcome<Network> {
        let absent = || Failure::Refused(format!("there is no virtio-net in slot {:#x}", slot::NETWORK));
        let device = Device::at(slot::NETWORK).ok_or_else(absent)?;
        load_modules(&["failover", "net_failover", "virtio_net"])?;
        let name = interface(&device)?;
        run("ip", &["addr", "replace", &format!("{}/24", address(place).ip()), "dev", &name])?;
        run("ip", &["link", "set", &name, "up"])?;
        let udp = UdpSocket::bind(address(place)).map_err(|e| failed("UDP", e))?;
        udp.connect(address(1 - place)).map_err(|e| failed("UDP", e))?;
        udp.set_read_timeout(Some(PATIENCE)).map_err(|e| failed("UDP", e))?;
        let tcp = match place {
            0 => Listening::Other,
            _ => Listening::Here(TcpListener::bind(address(place)).map_err(|e| failed("TCP", e))?),
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
        self.0.send(&value.to_le_bytes()).map(drop).map_err(|e| failed("UDP", e))
    }

    pub(crate) fn wait(&self, value: u64) -> Outcome<()> {
        let mut bytes = [0; 8];
        loop {
            match self.0.recv(&mut bytes) {
                Ok(8) if u64::from_le_bytes(bytes) == value => return Ok(()),
                // Of an order that was given up.
                Ok(_) => {}
                Err(e) => return Err(failed("UDP", e)),
            }
        }
    }
}

/// A connection to be.
pub(crate) enum Listening {
    /// The other node listens.
    Other,
    /// This one does.
    Here(TcpListener),
}

impl Listening {
    /// The connection: the other end is up, since both nodes have met.
    pub(crate) fn connected(self) -> Outcome<Tcp> {
        let stream = match self {
            Listening::Other => {
                let begun = Instant::now();
                loop {
                    match TcpStream::connect_timeout(&address(1), PATIENCE) {
                        Ok(stream) => break stream,
                        Err(e) if begun.elapsed() > PATIENCE => return Err(failed("TCP", e)),
                        Err(_) => std::thread::sleep(Duration::from_millis(50)),
                    }
                }
            }
            Listening::Here(listener) => {
                listener.set_nonblocking(true).map_err(|e| failed("TCP", e))?;
                let begun = Instant::now();
                loop {
                    match listener.accept() {
                        Ok((stream, _)) => break stream,
                        Err(e) if begun.elapsed() > 2 * PATIENCE => return Err(failed("TCP", e)),
                        Err(_) => std::thread::sleep(Duration::from_millis(10)),
                    }
                }
            }
        };
        stream.set_nonblocking(false).map_err(|e| failed("TCP", e))?;
        stream.set_nodelay(true).map_err(|e| failed("TCP", e))?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(|e| failed("TCP", e))?;
        Ok(Tcp(stream))
    }
}

pub(crate) struct Tcp(TcpStream);

impl Tcp {
    pub(crate) fn send(&self, value: u64) -> Outcome<()> {
        (&self.0).write_all(&value.to_le_bytes()).map_err(|e| failed("TCP", e))
    }

    pub(crate) fn wait(&self, value: u64) -> Outcome<()> {
        let mut bytes = [0; 8];
        (&self.0).read_exact(&mut bytes).map_err(|e| failed("TCP", e))?;
        if u64::from_le_bytes(bytes) == value { Ok(()) } else { Err(failed("TCP", "another value has come")) }
    }
}
