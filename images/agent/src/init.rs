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

use rustix::mount::{MountFlags, mount};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use telegraphos_agent::devices::Devices;

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
    name: Option<String>,
    agent: Option<String>,
    shell: bool,
    noload: bool,
    lab: bool,
}

impl Words {
    fn of(line: &str) -> Words {
        let mut words = Words::default();
        let ours = line.split_whitespace().filter_map(|word| word.strip_prefix("telegraphos."));
        for word in ours {
            match word.split_once('=') {
                Some(("node", node)) => words.name = Some(format!("node{node}")),
                Some(("agent", tty)) => words.agent = Some(tty.to_owned()),
                None if word == "shell" => words.shell = true,
                None if word == "noload" => words.noload = true,
                None if word == "lab" => words.lab = true,
                // Those of the driver are parameters of its module.
                _ => {}
            }
        }
        words
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

/// The loopback device up: RTM_NEWLINK for interface 1 with IFF_UP.
fn loopback_up() -> io::Result<()> {
    use rustix::net::{sendto, socket_with};
    const LENGTH: u32 = 32;
    let header = [LENGTH, 16 | 1 << 16, 0, 0]; // type 16, flags NLM_F_REQUEST, sequence, port
    let link = [0, 1, 1, 1]; // family and type, interface, flags IFF_UP, which of them change
    let message: Vec<u8> = header.iter().chain(&link).flat_map(|word: &u32| word.to_ne_bytes()).collect();
    let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
    // Without a protocol: NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, kind, flags, None)?;
    sendto(&socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    Ok(())
}

fn load(module: &str) -> io::Result<()> {
    let file = File::open(format!("{MODULES}/{module}"))?;
    Ok(rustix::system::finit_module(&file, c"", 0)?)
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
    let name = words.name.as_deref().unwrap_or("guest");
    attempt("the host name", rustix::system::sethostname(name.as_bytes()).map_err(Into::into));
    attempt("the loopback device", loopback_up());
    if !words.noload {
        attempt("the driver does not load", load("telegraphos.ko"));
    }
    if !words.noload && words.lab {
        attempt("the module for comparisons does not load", load("telegraphos_lab.ko"));
    }
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
        let line = "console=ttyS0 quiet telegraphos.node=7 telegraphos.agent=ttyS1 telegraphos.lab telegraphos.event_entries=4\n";
        let words = Words::of(line);
        let expected = Words { name: Some("node7".into()), agent: Some("ttyS1".into()), lab: true, ..Words::default() };
        assert_eq!(words, expected);
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
