// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tg-init`: the first program of a guest. It mounts, loads the driver, writes busybox's inittab, and becomes
//! busybox's init. A shell script took four times as long: each program that is started costs an emulated processor 10
//! to 20 ms.
//!
//! Words of the kernel's command line that it accepts:
//!
//! | Word | Meaning |
//! |---|---|
//! | `telegraphos.node=N` | host name nodeN |
//! | `telegraphos.agent=TTY` | serve the harness on that line |
//! | `telegraphos.shell` | a root shell on the console |
//! | `telegraphos.noload` | do not load the driver |
//! | `telegraphos.lab` | load the module for comparisons, too |
//! | `telegraphos.net=N` | load the network device, too, and know the names of N nodes |
//! | `telegraphos.outside` | use QEMU's network to the outside |

use rustix::mount::{MountFlags, mount};
use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use telegraphos_agent::devices::Devices;
use telegraphos_agent::network;

const QUIET: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
const NO_PROGRAMS: MountFlags = QUIET.union(MountFlags::NOEXEC);

/// What is mounted, in this order: where, type, flags, options.
const MOUNTS: [(&str, &str, MountFlags, &CStr); 9] = [
    ("/proc", "proc", NO_PROGRAMS, c""),
    ("/dev", "devtmpfs", MountFlags::NOSUID, c""),
    ("/sys", "sysfs", NO_PROGRAMS, c""),
    ("/dev/pts", "devpts", MountFlags::NOSUID.union(MountFlags::NOEXEC), c"mode=620,ptmxmode=666"),
    ("/dev/shm", "tmpfs", QUIET, c"mode=1777"),
    ("/tmp", "tmpfs", QUIET, c"mode=1777"),
    ("/run", "tmpfs", QUIET, c"mode=755"),
    ("/root", "tmpfs", QUIET, c"mode=700"),
    ("/home/tg", "tmpfs", QUIET, c"mode=755,uid=1000,gid=1000"),
];

const MODULES: &str = "/lib/telegraphos";

/// What the kernel's command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Words {
    node: Option<String>,
    agent: Option<String>,
    shell: bool,
    noload: bool,
    lab: bool,
    net: Option<u16>,
    outside: bool,
}

impl Words {
    fn of(line: &str) -> Words {
        let mut words = Words::default();
        let ours = line.split_whitespace().filter_map(|word| word.strip_prefix("telegraphos."));
        for word in ours {
            match word.split_once('=') {
                Some(("node", node)) => words.node = Some(node.to_owned()),
                Some(("net", nodes)) => words.net = nodes.parse().ok(),
                Some(("agent", tty)) => words.agent = Some(tty.to_owned()),
                None if word == "shell" => words.shell = true,
                None if word == "noload" => words.noload = true,
                None if word == "lab" => words.lab = true,
                None if word == "outside" => words.outside = true,
                // Those of the driver are parameters of its module.
                _ => {}
            }
        }
        words
    }

    /// The host name.
    fn name(&self) -> String {
        self.node.as_ref().map_or("guest".into(), |node| format!("node{node}"))
    }

    /// What busybox's init is to run; `console` is the name of the console's terminal.
    fn inittab(&self, console: &str) -> String {
        let mut table = String::new();
        if let Some(tty) = &self.agent {
            table += &format!("::respawn:/bin/tg-agent --devices /dev/{tty}\n");
        }
        if self.shell {
            table += &format!("{console}::respawn:-/bin/sh\n");
        }
        table + "::ctrlaltdel:/bin/reboot -f\n"
    }
}

/// Goes on after an error, which the console shows: a guest that is half up can be asked for more.
fn attempt<T>(what: &str, result: io::Result<T>) -> Option<T> {
    result.inspect_err(|error| eprintln!("telegraphos: {what}: {error}")).ok()
}

fn read(path: &str) -> String {
    attempt(path, fs::read_to_string(path)).unwrap_or_default()
}

fn load(module: &str) -> io::Result<()> {
    let file = File::open(format!("{MODULES}/{module}"))?;
    Ok(rustix::system::finit_module(&file, c"", 0)?)
}

/// The modules of the network card, in this order; a kernel that has one built in has no file of it.
const CARD: [&str; 3] = ["failover", "net_failover", "virtio_net"];

/// Loads a module that Debian has packed, or not.
fn load_packed(name: &str) -> io::Result<()> {
    /// MODULE_INIT_COMPRESSED_FILE
    const PACKED: i32 = 4;
    let path = |end: &str| format!("{MODULES}/peers/{name}.ko{end}");
    let (file, flags) = match File::open(path("")) {
        Ok(file) => (file, 0),
        Err(e) if e.kind() == io::ErrorKind::NotFound => (File::open(path(".xz"))?, PACKED),
        Err(e) => return Err(e),
    };
    Ok(rustix::system::finit_module(&file, c"", flags)?)
}

/// The addresses of the network devices that are wanted, and the names of nodes.
fn network(words: &Words) {
    attempt("the loopback device", network::loopback_up());
    let mut hosts = network::hosts(0);
    if let Some(nodes) = words.net {
        attempt("the network device does not load", load("telegraphos_net.ko"));
        if let Some(node) = words.node.as_ref().and_then(|node| node.parse().ok()) {
            attempt("the network device tg0", network::cluster_up("tg0", node));
        }
        hosts = network::hosts(nodes);
    }
    attempt("/run/hosts", fs::write("/run/hosts", hosts));
    if words.outside {
        for name in CARD {
            match load_packed(name) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                result => drop(attempt(name, result)),
            }
        }
        attempt("the network to the outside, eth0", network::outside_up("eth0"));
        attempt("/run/resolv.conf", fs::write("/run/resolv.conf", network::RESOLVER));
    }
}

fn main() -> ExitCode {
    if std::process::id() != 1 {
        eprintln!("tg-init is the first program of a guest, and this is not the first: use `init=/bin/tg-init`");
        return ExitCode::from(2);
    }
    for (at, kind, flags, options) in MOUNTS {
        if at.starts_with("/dev/") {
            attempt(at, fs::create_dir(at));
        }
        attempt(at, mount(kind, at, kind, flags, options).map_err(Into::into));
    }
    let words = Words::of(&read("/proc/cmdline"));
    let name = words.name();
    attempt("the host name", rustix::system::sethostname(name.as_bytes()).map_err(Into::into));
    if !words.noload {
        attempt("the driver does not load", load("telegraphos.ko"));
    }
    if !words.noload && words.lab {
        attempt("the module for comparisons does not load", load("telegraphos_lab.ko"));
    }
    network(&words);
    // The agent gives those that come later their owner.
    attempt("the owners of devices", Devices::watch("/dev".as_ref()));
    let consoles = read("/sys/class/tty/console/active");
    let console = consoles.split_whitespace().last().unwrap_or("console");
    attempt("/run/inittab", fs::write("/run/inittab", words.inittab(console)));

    let (up, release) = (read("/proc/uptime"), read("/proc/sys/kernel/osrelease"));
    let up = up.split(' ').next().unwrap_or("?");
    println!("telegraphos: {name} with Linux {} is up after {up} s", release.trim());
    let error = Command::new("/bin/init")
        .env_clear()
        .envs([("PATH", "/bin"), ("HOME", "/root"), ("TERM", "linux")])
        .arg0("init")
        .exec();
    eprintln!("telegraphos: /bin/init: {error}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_others_are_left_alone() {
        let line = "console=ttyS0 quiet telegraphos.node=7 telegraphos.agent=ttyS1 telegraphos.lab telegraphos.net=4 telegraphos.event_entries=4\n";
        let words = Words::of(line);
        let expected =
            Words { node: Some("7".into()), agent: Some("ttyS1".into()), lab: true, net: Some(4), ..Words::default() };
        assert_eq!(words, expected);
        assert_eq!(words.name(), "node7");
        assert_eq!(Words::of(""), Words::default());
        assert_eq!(Words::of("xtelegraphos.shell shell telegraphos.shells"), Words::default());
    }

    #[test]
    fn init_runs_the_agent_and_where_it_is_wanted_a_shell() {
        let words = Words { agent: Some("ttyS1".into()), shell: true, ..Words::default() };
        let table = words.inittab("ttyS0");
        assert!(
            table.starts_with("::respawn:/bin/tg-agent --devices /dev/ttyS1\nttyS0::respawn:-/bin/sh\n"),
            "{table}"
        );
        assert_eq!(Words::default().inittab("ttyS0"), "::ctrlaltdel:/bin/reboot -f\n");
    }
}
