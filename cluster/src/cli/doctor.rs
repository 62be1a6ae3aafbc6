// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos doctor`: what a report of a fault needs to say about a machine, and what is missing there. Nothing is
//! fetched, built or booted, and nothing private is in it: no name of a user or of the machine, and of paths only those
//! that every machine has.

use super::print;
use crate::{Result, rundir};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use telegraphos_images::{KvmState, MIN_VERSION, Store, in_path, kvm_usable};

/// Bytes that the cache of one kernel takes, with what it is made with.
const CACHE: u64 = 3 << 30;
/// Bytes of memory of a cluster of two small guests.
const MEMORY: u64 = 1 << 30;

/// One line of the report.
#[derive(Debug, PartialEq, Eq)]
struct Fact {
    name: &'static str,
    is: String,
    /// Why clusters do not boot, and what to do.
    fault: Option<String>,
}

fn fact(name: &'static str, is: impl Into<String>) -> Fact {
    Fact { name, is: is.into(), fault: None }
}

impl Fact {
    fn or_fault(mut self, good: bool, fault: &str) -> Fact {
        self.fault = (!good).then(|| fault.to_owned());
        self
    }
}

/// The report; 1 if something is missing without which no cluster boots.
pub(super) fn doctor(cache: Option<PathBuf>) -> Result<u8> {
    let facts = facts(cache);
    print(&report(&facts))?;
    Ok(u8::from(facts.iter().any(|fact| fact.fault.is_some())))
}

fn report(facts: &[Fact]) -> String {
    let mut text = String::new();
    for Fact { name, is, .. } in facts {
        // A string takes all that is written.
        _ = writeln!(text, "{name:<16}{is}");
    }
    let faults: Vec<_> = facts.iter().filter_map(|fact| Some((fact.name, fact.fault.as_ref()?))).collect();
    if faults.is_empty() {
        text += "\nNothing is missing.\n";
        return text;
    }
    text += "\nMissing:\n";
    faults.iter().for_each(|(name, fault)| text += &format!("- {name}: {fault}\n"));
    text
}

fn facts(cache: Option<PathBuf>) -> Vec<Fact> {
    let store = Store::open(cache, telegraphos_images::Progress::Silent);
    let mut facts = vec![
        fact("telegraphos", env!("CARGO_PKG_VERSION")),
        system(),
        processors(),
        memory(),
        kvm(),
        namespaces(),
        cgroup(),
        limits(),
        sockets(),
    ];
    match store {
        Ok(store) => facts.extend([qemu(&store), cache_of(&store)]),
        Err(_) => facts.push(fact("cache", "cannot be opened").or_fault(
            false,
            "its directory cannot be made or written; name another with --cache or TELEGRAPHOS_CACHE",
        )),
    }
    facts.extend([programs(), variables()]);
    facts
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The first line that a program prints, if it can be run.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    let output = command.args(arguments).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then(|| text.lines().next().unwrap_or_default().to_owned())
}

fn system() -> Fact {
    let release = read("/etc/os-release");
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let uname = rustix::system::uname();
    let (kernel, machine) = (uname.release().to_string_lossy(), uname.machine().to_string_lossy());
    let container = ["/.dockerenv", "/run/.containerenv"].iter().any(|mark| Path::new(mark).exists());
    let container = if container { ", in a container" } else { "" };
    let system = name.map_or("an unknown system", |name| name.trim_matches('"'));
    let is = format!("{system}, Linux {kernel}, {machine}{container}");
    fact("system", is).or_fault(machine == "x86_64", "expected x86_64: boards and guests are of that machine alone")
}

fn processors() -> Fact {
    let text = read("/proc/cpuinfo");
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map(|(_, model)| model);
    let count = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    fact("processors", format!("{count} of {}", model.unwrap_or("an unknown model")))
}

/// Bytes of a line of `/proc/meminfo`.
fn of_meminfo(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

fn memory() -> Fact {
    let text = read("/proc/meminfo");
    let (all, free) = (of_meminfo(&text, "MemTotal"), of_meminfo(&text, "MemAvailable"));
    let overcommit = read("/proc/sys/vm/overcommit_memory");
    let is = format!("{}, {} available, overcommit_memory {}", mib(all), mib(free), overcommit.trim());
    fact("memory", is).or_fault(free >= MEMORY, "two guests of 256 MiB with their processes take some 1 GiB")
}

fn kvm() -> Fact {
    let is = match kvm_usable() {
        KvmState::Usable => "usable".into(),
        KvmState::PresentButUnusable { reason } => format!("not usable: {reason}"),
        KvmState::Absent => "absent".into(),
    };
    // Guests are emulated without it.
    fact("KVM", is)
}

fn namespaces() -> Fact {
    let unshare = |options: &[&str]| said("unshare", &[options, &["true"]].concat()).is_some();
    let root = rustix::process::geteuid().is_root();
    let user = unshare(&["--user", "--map-root-user"]);
    let several = unshare(&["--user", "--map-root-user", "--map-auto"]);
    let yes = |is| if is { "yes" } else { "no" };
    let is = format!("root {}, user namespaces {}, subordinate ids {}", yes(root), yes(user), yes(several));
    let fault = "the driver is built in a root of its own, for which one must be root or have user namespaces (sysctl \
                 user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)";
    fact("privileges", is).or_fault(root || user, fault)
}

/// The lowest of a limit of this process's group and of those above it.
fn lowest(group: &Path, file: &str) -> Option<u64> {
    let root = Path::new("/sys/fs/cgroup");
    let of = |group: &Path| read(root.join(group).join(file)).split_whitespace().next()?.parse::<u64>().ok();
    group.ancestors().filter_map(of).min()
}

fn cgroup() -> Fact {
    let text = read("/proc/self/cgroup");
    let Some(group) = text.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return fact("cgroups", "version 1, or none");
    };
    let group = Path::new(group);
    let memory = lowest(group, "memory.max").map_or("none".into(), mib);
    let show = |limit: Option<u64>| limit.map_or("none".into(), |limit| limit.to_string());
    let (pids, cpu) = (show(lowest(group, "pids.max")), show(lowest(group, "cpu.max")));
    let is = format!("version 2; limits: memory {memory}, processes {pids}, microseconds of processors {cpu}");
    let enough = lowest(group, "memory.max").is_none_or(|limit| limit >= MEMORY);
    fact("cgroups", is).or_fault(enough, "the limit of memory is below the 1 GiB of two guests and their processes")
}

fn limits() -> Fact {
    let text = read("/proc/self/limits");
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()).unwrap_or("unknown").to_owned()
    };
    let (files, processes) = (of("Max open files"), of("Max processes"));
    let is = format!("open files {files}, processes {processes}, locked memory {}", of("Max locked memory"));
    let enough = files.parse::<u64>().map_or(true, |files| files >= 1024);
    fact("limits", is).or_fault(enough, "a cluster has several hundred files open: expected at least 1024 (ulimit -n)")
}

fn sockets() -> Fact {
    let parents = rundir::usual_parents();
    let fit = |parent: &&PathBuf| tempfile::tempdir_in(parent).is_ok();
    let of_user = std::env::var_os("XDG_RUNTIME_DIR").is_some();
    let is = match parents.iter().find(fit) {
        Some(_) if of_user => "in $XDG_RUNTIME_DIR, or /tmp",
        Some(_) => "in /tmp",
        None => "no directory can be written",
    };
    let fault = "neither $XDG_RUNTIME_DIR nor /tmp can be written; name another directory with --run-dir";
    fact("sockets", is).or_fault(parents.iter().any(|parent| fit(&parent)), fault)
}

fn qemu(store: &Store) -> Fact {
    let named = std::env::var_os("TELEGRAPHOS_QEMU").map(PathBuf::from);
    let Some(program) = named.clone().or_else(|| in_path("qemu-system-x86_64")) else {
        let there = store.path().join("qemu/debian").is_dir();
        let debians =
            if there { "Debian's, which is in the cache" } else { "Debian's, which is fetched when it is needed" };
        return fact("QEMU", debians);
    };
    let version = said(&program.display().to_string(), &["--version"]).unwrap_or_else(|| "does not run".into());
    let fits = store.qemu_at(program).is_ok();
    let fate = match (fits, &named) {
        (true, _) => "used",
        (false, None) => "left alone, for Debian's",
        (false, Some(_)) => "named by TELEGRAPHOS_QEMU",
    };
    let fault = format!(
        "expected QEMU {MIN_VERSION} or newer with the device vfio-user-pci; unset TELEGRAPHOS_QEMU for Debian's"
    );
    fact("QEMU", format!("{version} ({fate})")).or_fault(fits || named.is_none(), &fault)
}

fn cache_of(store: &Store) -> Fact {
    let Ok(about) = rustix::fs::statvfs(store.path()) else {
        return fact("cache", "cannot be examined");
    };
    let free = about.f_bavail * about.f_frsize;
    let mut names: Vec<_> = fs::read_dir(store.path()).into_iter().flatten().flatten().collect::<Vec<_>>();
    names.retain(|entry| entry.path().is_dir());
    let mut names: Vec<_> = names.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let filled = names.iter().any(|name| name == "guest");
    let has = if names.is_empty() { "nothing".into() } else { names.join(", ") };
    let fault =
        "a first boot fetches and makes up to 3 GiB there; name another directory with --cache or TELEGRAPHOS_CACHE";
    fact("cache", format!("{} free; has {has}", mib(free))).or_fault(filled || free >= CACHE, fault)
}

fn programs() -> Fact {
    let version = |program: &str, option: &str| said(program, &[option]).unwrap_or_else(|| format!("no {program}"));
    let needed = ["apt-get", "dpkg-deb", "tar", "unshare"];
    let missing: Vec<_> = needed.into_iter().filter(|program| said(program, &["--version"]).is_none()).collect();
    let is = format!(
        "{}; {}; {}",
        version("cargo", "--version"),
        version("cc", "--version"),
        version("apt-get", "--version")
    );
    let fault = format!("there is no {} (packages apt, dpkg, tar, util-linux)", missing.join(", "));
    fact("programs", is).or_fault(missing.is_empty(), &fault)
}

/// Their names alone.
fn variables() -> Fact {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut names: Vec<_> = names.filter(|name| name.starts_with("TELEGRAPHOS_")).collect();
    names.sort();
    fact("variables", if names.is_empty() { "none of TELEGRAPHOS_*".into() } else { names.join(", ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_at_the_end_with_what_to_do() {
        let good = fact("KVM", "absent");
        let text = report(&[good, fact("limits", "open files 256").or_fault(false, "expected 1024")]);
        assert!(text.starts_with("KVM             absent\nlimits          open files 256\n\nMissing:\n"), "{text}");
        assert!(text.ends_with("- limits: expected 1024\n"), "{text}");
        assert!(report(&[fact("a", "b").or_fault(true, "c")]).ends_with("\nNothing is missing.\n"));
    }

    #[test]
    fn files_of_the_kernel_are_read() {
        let text = "MemTotal:       24576 kB\nMemAvailable:    1024 kB\n";
        assert_eq!((of_meminfo(text, "MemTotal"), of_meminfo(text, "MemAvailable")), (24 << 20, 1 << 20));
        assert_eq!(of_meminfo(text, "Mem"), 0);
    }
}
