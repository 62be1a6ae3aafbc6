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
//! | `telegraphos.name=N:NAME` | node N has this name, too, and as its host name; as often as wanted |
//! | `telegraphos.agent=TTY` | serve the harness on that line |
//! | `telegraphos.shell` | a root shell on the console |
//! | `telegraphos.noload` | do not load the driver |
//! | `telegraphos.lab` | load the module for comparisons, too |
//! | `telegraphos.net=N` | load the network device, too, and know the names of N nodes |
//! | `telegraphos.tgd` | keep the daemon of one system image running, with its log in `/run/telegraphos/tgd.log` |
//! | `telegraphos.outside` | use QEMU's network to the outside |
//! | `telegraphos.root=boot` | a writable layer above the boot root |
//! | `telegraphos.root=KIND:TAG` | the root is a directory of the host (KIND is `virtiofs` or `9p`), below such a layer |
//! | `telegraphos.root=disk` | the root is on the disk `vda` |
//! | `telegraphos.share=KIND:TAG:MODE:PATH` | a directory of the host at PATH, MODE is `ro` or `rw`; as often as wanted |
//! | `telegraphos.init=PATH` | the root's own init becomes the first program, with the agent beside it |
//!
//! It is also the first program of the initramfs that some kernels need: see `early.rs`.
//!
//! With another root than the boot root, which then is at `/run/telegraphos-image`, this program stays the first one,
//! and sees to it that the agent runs.

mod early;
mod switch;

use rustix::mount::{MountFlags, mount};
use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use switch::{Root, Share, switch};
use telegraphos_agent::devices::Devices;
use telegraphos_agent::modules::{VIRTIO, load_all};
use telegraphos_agent::{BOOT_ROOT, network};

const QUIET: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
const NO_PROGRAMS: MountFlags = QUIET.union(MountFlags::NOEXEC);

/// What is mounted, in this order: where, type, flags, options. What processes may fill is at most half of the memory
/// together.
const MOUNTS: [(&str, &str, MountFlags, &CStr); 9] = [
    ("/proc", "proc", NO_PROGRAMS, c""),
    ("/dev", "devtmpfs", MountFlags::NOSUID, c""),
    ("/sys", "sysfs", NO_PROGRAMS, c""),
    ("/dev/pts", "devpts", MountFlags::NOSUID.union(MountFlags::NOEXEC), c"mode=620,ptmxmode=666"),
    ("/dev/shm", "tmpfs", QUIET, c"mode=1777,size=10%"),
    ("/tmp", "tmpfs", QUIET, c"mode=1777,size=25%"),
    ("/run", "tmpfs", QUIET, c"mode=755,size=5%"),
    ("/root", "tmpfs", QUIET, c"mode=700,size=5%"),
    ("/home/tg", "tmpfs", QUIET, c"mode=755,uid=1000,gid=1000,size=5%"),
];

/// File systems of the kernel that programs look for, where the kernel has them: where, and type. Those in `/sys` are
/// there if the kernel has made the directory; those in `/dev` get one.
const OF_THE_KERNEL: [(&str, &str); 9] = [
    ("/sys/kernel/debug", "debugfs"),
    ("/sys/kernel/tracing", "tracefs"),
    ("/sys/kernel/security", "securityfs"),
    ("/sys/kernel/config", "configfs"),
    ("/sys/fs/cgroup", "cgroup2"),
    ("/sys/fs/bpf", "bpf"),
    ("/sys/fs/pstore", "pstore"),
    ("/dev/mqueue", "mqueue"),
    ("/dev/hugepages", "hugetlbfs"),
];

/// Names that shells and programs take for granted.
const LINKS: [(&str, &str); 4] = [
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
];

/// The program that loads a module for the kernel.
const MODPROBE: &str = "/proc/sys/kernel/modprobe";

/// Mounts what there is. A mount of `bpf` has the kernel ask for the module `bpf_preload`, which no boot root has:
/// starting a program to find that would be most of this function's time.
fn mount_of_the_kernel() {
    // Not there in a kernel without modules.
    let modprobe = fs::read_to_string(MODPROBE).ok();
    if modprobe.is_some() {
        attempt(MODPROBE, fs::write(MODPROBE, "\n"));
    }

    for (to, at) in LINKS {
        attempt(at, std::os::unix::fs::symlink(to, at));
    }
    let known = read("/proc/filesystems");
    for (at, kind) in OF_THE_KERNEL {
        if !known.lines().any(|line| line.split_whitespace().last() == Some(kind)) {
            continue;
        }
        if at.starts_with("/dev/") {
            attempt(at, fs::create_dir(at));
        }
        if std::path::Path::new(at).is_dir() {
            attempt(at, mount(kind, at, kind, NO_PROGRAMS, c"").map_err(Into::into));
        }
    }
    if let Some(modprobe) = modprobe {
        attempt(MODPROBE, fs::write(MODPROBE, modprobe));
    }
}

const MODULES: &str = "/lib/telegraphos";

/// What the kernel's command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Words {
    node: Option<String>,
    agent: Option<String>,
    shell: bool,
    noload: bool,
    lab: bool,
    root: Option<Root>,
    shares: Vec<Share>,
    init: Option<String>,
    net: Option<u16>,
    /// Names of nodes that have one of their own.
    names: Vec<(u16, String)>,
    outside: bool,
    tgd: bool,
}

impl Words {
    fn of(line: &str) -> Words {
        let mut words = Words::default();
        let ours = line.split_whitespace().filter_map(|word| word.strip_prefix("telegraphos."));
        for word in ours {
            match word.split_once('=') {
                Some(("node", node)) => words.node = Some(node.to_owned()),
                Some(("name", name)) => words
                    .names
                    .extend(name.split_once(':').and_then(|(node, name)| Some((node.parse().ok()?, name.to_owned())))),
                Some(("net", nodes)) => words.net = nodes.parse().ok(),
                Some(("agent", tty)) => words.agent = Some(tty.to_owned()),
                Some(("root", value)) => words.root = Root::of(value),
                Some(("share", value)) => words.shares.extend(Share::of(value)),
                Some(("init", path)) => words.init = Some(path.to_owned()),
                None if word == "shell" => words.shell = true,
                None if word == "noload" => words.noload = true,
                None if word == "lab" => words.lab = true,
                None if word == "outside" => words.outside = true,
                None if word == "tgd" => words.tgd = true,
                // Those of the driver are parameters of its module.
                _ => {}
            }
        }
        words
    }

    fn name(&self) -> String {
        let own =
            |node: &String| self.names.iter().find(|(of, _)| of.to_string() == *node).map(|(_, name)| name.clone());
        self.node.as_ref().map_or("guest".into(), |node| own(node).unwrap_or_else(|| format!("node{node}")))
    }

    /// The arguments of the agent, if there is to be one.
    fn agent(&self) -> Option<Vec<String>> {
        let tty = format!("/dev/{}", self.agent.as_ref()?);
        // Network devices of boards that come later get addresses.
        let network = (self.net.is_some() && !self.noload).then(|| "--network".into());
        Some(["--devices".into()].into_iter().chain(network).chain(["--kernel".into(), tty]).collect())
    }

    /// What busybox's init is to run; `console` is the name of the console's terminal.
    fn inittab(&self, console: &str) -> String {
        let mut table = String::new();
        if let Some(arguments) = self.agent() {
            table += &format!("::respawn:/bin/tg-agent {}\n", arguments.join(" "));
        }
        if self.shell {
            table += &format!("{console}::respawn:-/bin/sh\n");
        }
        if self.tgd {
            table += &format!("::respawn:/bin/sh -c '{DAEMON}'\n");
        }
        table + "::ctrlaltdel:/bin/reboot -f\n"
    }
}

/// Continues after an error, which the console shows: a guest that is half up can be asked for more.
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

/// The programs of a root, and then those of the boot root.
fn programs() -> String {
    format!("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{BOOT_ROOT}/bin")
}

/// Keeps the daemon running: it ends with the board, and on a node without a board it ends at once.
const DAEMON: &str = "mkdir -p /run/telegraphos; while :; do tgd >/run/telegraphos/tgd.log 2>&1; sleep 1; done";

/// A program that is started again whenever it ends.
struct Kept {
    command: Command,
    pid: Option<u32>,
}

/// Keeps the agent running, and on the console a shell where it is wanted; takes in every child that ends.
fn supervise(words: &Words, console: &str) -> ! {
    let mut kept = Vec::new();
    if let Some(arguments) = words.agent() {
        let mut command = Command::new(format!("{BOOT_ROOT}/bin/tg-agent"));
        command.args(arguments);
        kept.push(Kept { command, pid: None });
    }
    if words.shell {
        let mut command = Command::new(format!("{BOOT_ROOT}/bin/busybox"));
        // With a terminal of its own.
        command.args(["setsid", "-c", "sh", "-c"]);
        command.arg(format!("exec sh -l <>/dev/{console} >&0 2>&1"));
        kept.push(Kept { command, pid: None });
    }
    if words.tgd {
        let mut command = Command::new(format!("{BOOT_ROOT}/bin/busybox"));
        command.args(["sh", "-c", DAEMON]);
        kept.push(Kept { command, pid: None });
    }
    for kept in &mut kept {
        let environment = [("PATH", programs()), ("TELEGRAPHOS_PATH", programs())];
        kept.command.env_clear().envs(environment).envs([("HOME", "/root"), ("TERM", "linux")]);
    }
    loop {
        for kept in kept.iter_mut().filter(|kept| kept.pid.is_none()) {
            kept.pid = attempt("a program of the boot root", kept.command.spawn()).map(|child| child.id());
        }
        match rustix::process::wait(rustix::process::WaitOptions::empty()) {
            Ok(Some((pid, _))) => {
                let ended = kept
                    .iter_mut()
                    .filter(|kept| kept.pid.is_some_and(|kept| kept as i32 == pid.as_raw_nonzero().get()));
                ended.for_each(|kept| kept.pid = None);
            }
            _ => std::thread::sleep(std::time::Duration::from_secs(1)),
        }
    }
}

/// Ends a guest without a root: the harness shows the console's last lines.
fn end_without_root(error: &io::Error) -> ExitCode {
    eprintln!("telegraphos: there is no root: {error}");
    let _ = rustix::system::reboot(rustix::system::RebootCommand::PowerOff);
    ExitCode::FAILURE
}

/// Becomes the init of the root, with another of this program beside it that keeps the agent running.
fn become_init(path: &str, console: &str) -> io::Error {
    if !std::path::Path::new(path).exists() {
        return io::Error::other(format!("{path} is not in it; give another telegraphos.init="));
    }
    let beside = Command::new(format!("{BOOT_ROOT}/bin/tg-init")).args([SUPERVISE, console]).spawn();
    attempt("the supervisor of the agent", beside);
    Command::new(path).env_clear().envs([("PATH", programs()), ("TERM", "linux".into())]).exec()
}

/// The first argument of the one that runs beside a root's own init.
const SUPERVISE: &str = "supervise";

/// The modules of the network card, in this order; a kernel that has one built in has no file of it.
const CARD: [&str; 3] = ["failover", "net_failover", "virtio_net"];

/// The addresses of the network devices that are wanted, and the names of nodes.
fn network(words: &Words) {
    attempt("the loopback device", network::loopback_up());
    if words.net.is_some() && !words.noload {
        attempt("the network device does not load", load("telegraphos_net.ko"));
        if let Some(node) = words.node.as_ref().and_then(|node| node.parse().ok()) {
            attempt("the network device of the board", network::cluster_up(node));
        }
    }
    if words.outside {
        attempt("the modules of the network card", load_card());
        attempt("the network to the outside, eth0", network::outside_up("eth0"));
    }
}

fn load_card() -> io::Result<()> {
    load_all(&VIRTIO)?;
    load_all(&CARD)
}

/// The names of nodes and the name server, in the files of the root: links to /run in the boot root, files in others.
fn names(words: &Words) {
    let put = |name: &str, text: &str| {
        let place = format!("/etc/{name}");
        let linked = fs::read_link(&place).is_ok_and(|to| to.ends_with(format!("run/{name}")));
        let place = if linked { format!("/run/{name}") } else { place };
        let mut before = if linked { String::new() } else { fs::read_to_string(&place).unwrap_or_default() };
        if !(before.is_empty() || before.ends_with('\n')) {
            before.push('\n');
        }
        attempt(&place, fs::write(&place, before + text));
    };
    put("hosts", &network::hosts(words.net.unwrap_or(0), &words.names));
    if words.net.is_some() && std::path::Path::new("/etc/ssh").is_dir() {
        attempt("/etc/ssh/ssh_config.d", fs::create_dir_all("/etc/ssh/ssh_config.d"));
        put("ssh/ssh_config.d/telegraphos.conf", &network::ssh_config(words.net.unwrap_or(0), &words.names));
    }
    if words.outside {
        put("resolv.conf", network::RESOLVER);
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if let (Some(SUPERVISE), Some(console)) = (arguments.next().as_deref(), arguments.next()) {
        supervise(&Words { shell: false, ..Words::of(&read("/proc/cmdline")) }, &console);
    }
    if std::process::id() != 1 {
        eprintln!("tg-init is the first program of a guest, and this is not the first: use `init=/bin/tg-init`");
        return ExitCode::from(2);
    }
    if early::is_early() {
        return end_without_root(&early::become_init());
    }
    for (at, kind, flags, options) in MOUNTS {
        if at.starts_with("/dev/") {
            attempt(at, fs::create_dir(at));
        }
        attempt(at, mount(kind, at, kind, flags, options).map_err(Into::into));
    }
    mount_of_the_kernel();
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

    if let Some(root) = &words.root {
        if let Err(e) = switch(root, &words.shares, || names(&words)) {
            return end_without_root(&e);
        }
    } else {
        names(&words);
    }
    let (up, release) = (read("/proc/uptime"), read("/proc/sys/kernel/osrelease"));
    let up = up.split(' ').next().unwrap_or("?");
    println!("telegraphos: {name} with Linux {} is up after {up} s", release.trim());
    if words.root.is_some() {
        match &words.init {
            Some(path) => return end_without_root(&become_init(path, console)),
            None => supervise(&words, console),
        }
    }
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
        let words = Words::of("telegraphos.node=7 telegraphos.name=1:left telegraphos.name=7:right telegraphos.name=x");
        assert_eq!((words.name(), words.names.len()), ("right".into(), 2));
        assert_eq!(Words::of(""), Words::default());
        assert_eq!(Words::of("xtelegraphos.shell shell telegraphos.shells"), Words::default());
    }

    #[test]
    fn words_say_what_is_mounted() {
        let line = "telegraphos.root=9p:root telegraphos.share=9p:share0:ro:/a telegraphos.share=9p:share1:rw:/b \
                    telegraphos.init=/sbin/init";
        let words = Words::of(line);
        assert_eq!(words.root, Root::of("9p:root"));
        assert_eq!(words.shares.iter().map(|share| share.at.as_str()).collect::<Vec<_>>(), ["/a", "/b"]);
        assert_eq!(words.init.as_deref(), Some("/sbin/init"));
    }

    #[test]
    fn init_runs_the_agent_and_where_it_is_wanted_a_shell() {
        let words = Words { agent: Some("ttyS1".into()), shell: true, ..Words::default() };
        let table = words.inittab("ttyS0");
        assert!(
            table.starts_with("::respawn:/bin/tg-agent --devices --kernel /dev/ttyS1\nttyS0::respawn:-/bin/sh\n"),
            "{table}"
        );
        let table = Words { agent: Some("ttyS1".into()), net: Some(2), ..Words::default() }.inittab("ttyS0");
        assert!(table.starts_with("::respawn:/bin/tg-agent --devices --network --kernel /dev/ttyS1\n"), "{table}");
        assert_eq!(Words::default().inittab("ttyS0"), "::ctrlaltdel:/bin/reboot -f\n");
        let table = Words::of("telegraphos.tgd").inittab("ttyS0");
        assert!(table.contains("::respawn:/bin/sh -c 'mkdir -p /run/telegraphos; while :; do tgd >"), "{table}");
    }
}
