// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a cluster starts HIBs and fabrics: their command lines, logs, and the sockets that they listen on.

use crate::process::{Process, listens_seen_by, tail};
use crate::rundir::RunDir;
use crate::{Error, Result, Settings, interrupt};
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use telegraphos_device::direct::TrustGroup;
use telegraphos_host::Threads;

/// How long a process may take until it listens, and QEMU for what it does at once.
pub const PROMPT: Duration = Duration::from_secs(30);
/// Lines of a log that an error shows.
const TAIL: usize = 15;

/// Names and values of options of `telegraphos-hib` or `telegraphos-fabric`.
pub(crate) type Options = [(String, String)];

/// An option as the command line has it; a flag has the value `true`.
fn option((name, value): &(String, String)) -> String {
    if value == "true" { format!("--{name}") } else { format!("--{name}={value}") }
}

/// This program in one of its other roles (see [`crate::reexecuted`]).
pub fn role(role: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("telegraphos").arg(role);
    command
}

/// These options of a fabric, with a file in `directory` for each whose value is the text of one.
pub(crate) fn with_files(options: &Options, directory: &Path) -> Result<Vec<(String, String)>> {
    let one = |(name, value): &(String, String)| {
        if !value.contains('\n') {
            return Ok((name.clone(), value.clone()));
        }
        let path = directory.join(format!("{name}.toml"));
        fs::write(&path, value).map_err(Error::io("cannot write", &path))?;
        Ok((name.clone(), path.display().to_string()))
    };
    options.iter().map(one).collect()
}

/// The command of a fabric that listens on `socket`.
pub(crate) fn fabric(socket: &Path, options: &Options) -> Command {
    let mut command = role("__fabric");
    command.arg("--listen").arg(socket).args(options.iter().map(option));
    command
}

/// Starts the one fabric of a cluster, and waits until it listens on `socket`.
pub fn start_fabric(socket: &Path, options: &Options, log: &Path) -> Result<Process> {
    start_fabric_as("the fabric".into(), fabric(socket, options), socket, log)
}

/// Starts a fabric by its command, and waits until it listens on `socket`. `what` names it in errors.
pub(crate) fn start_fabric_as(what: String, command: Command, socket: &Path, log: &Path) -> Result<Process> {
    let mut process = Process::start(what, command, log)?;
    wait_for_socket(socket, &mut process, || log_end("the fabric", log))?;
    Ok(process)
}

/// What tells HIBs apart: node, socket, and options. An option in `own` replaces that of the same name in `common`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hib<'a> {
    pub(crate) node: usize,
    pub(crate) socket: &'a Path,
    pub(crate) common: &'a Options,
    pub(crate) own: &'a Options,
}

impl Hib<'_> {
    /// Its options on the command line, but for the fabric.
    fn arguments(self) -> impl Iterator<Item = OsString> {
        let Hib { node, socket, common, own } = self;
        let inherited = common.iter().filter(|(name, _)| own.iter().all(|(o, _)| o != name));
        let options: Vec<_> = inherited.chain(own).map(|named| OsString::from(option(named))).collect();
        ["--socket".into(), socket.into(), "--node".into(), node.to_string().into()].into_iter().chain(options)
    }
}

/// Starts the HIB of a node; does not wait until it listens.
pub(crate) fn start_hib(hib: Hib<'_>, fabric: &Path, log: &Path) -> Result<Process> {
    let mut command = role("__hib");
    command.args(hib.arguments()).arg("--fabric").arg(fabric);
    Process::start(format!("the HIB of node {}", hib.node), command, log)
}

/// Starts one process with the fabric and these HIBs, and memory devices for trust groups; does not wait until it
/// listens.
pub(crate) fn start_host<'a>(
    socket: &Path,
    options: &Options,
    threads: Threads,
    trust: &[TrustGroup],
    hibs: impl Iterator<Item = Hib<'a>>,
    log: &Path,
) -> Result<Process> {
    let mut command = role("__host");
    command.arg("--listen").arg(socket).args(options.iter().map(option));
    command.arg(format!("--threads={threads}"));
    command.args(trust.iter().map(|group| format!("--trust={group}")));
    for hib in hibs {
        command.arg("--").args(hib.arguments());
    }
    Process::start("the host process", command, log)
}

/// The end of the log of a process, under a heading, for an error.
pub(crate) fn log_end(what: &str, log: &Path) -> String {
    format!("\n--- end of the log of {what}\n{}", tail(log, TAIL))
}

/// Waits until `process` listens on its socket at `path`. Fails if it ends first, if it takes longer than [`PROMPT`],
/// or if the user interrupts; `tails` are the ends of its logs, for the error.
pub(crate) fn wait_for_socket(path: &Path, process: &mut Process, tails: impl Fn() -> String) -> Result<()> {
    let begun = Instant::now();
    let pid = process.pid().to_string();
    // Seen from here, too: a process may listen and then enter a network namespace of its own.
    while !listens_seen_by(path, &pid) && !listens_seen_by(path, "self") {
        interrupt::check()?;
        if let Some(status) = process.ended() {
            return Err(Error::ended(process.what(), status, "at its start", tails()));
        }
        if begun.elapsed() > PROMPT {
            return Err(Error::TimedOut {
                what: format!("{} listening on {}", process.what(), path.display()),
                node: None,
                limit: PROMPT,
                remedy: "see its log",
                tail: tails(),
            });
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// The directory of a cluster's logs.
#[derive(Debug)]
pub(crate) struct Logs(PathBuf);

impl Logs {
    /// Uses the directory that `settings` names, from which the logs of an earlier cluster are removed, or else the run
    /// directory.
    pub(crate) fn open(settings: &Settings, run_dir: &RunDir) -> Result<Logs> {
        let Some(dir) = &settings.log_dir else { return Ok(Logs(run_dir.path().to_path_buf())) };
        fs::create_dir_all(dir).map_err(Error::io("cannot make the directory for logs", dir))?;
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(is_log) {
                // What stays is appended to.
                let _ = fs::remove_file(entry.path());
            }
        }
        dir.canonicalize().map(Logs).map_err(Error::io("cannot use the directory for logs", dir))
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.0
    }

    /// The path of `NAME.log`.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.log"))
    }

    /// The path of a log of one node: `console`, `qemu` or `hib`.
    pub(crate) fn of_node(&self, kind: &str, node: usize) -> PathBuf {
        self.path(&format!("{kind}.{node}"))
    }

    /// The ends of those logs of one node that are not empty, each under a heading, for an error.
    pub(crate) fn tails(&self, node: usize) -> String {
        let mut text = String::new();
        for (kind, name) in [("console", "console"), ("qemu", "QEMU"), ("virtiofsd", "virtiofsd"), ("hib", "HIB")] {
            let end = tail(&self.of_node(kind, node), TAIL);
            if !end.is_empty() {
                text += &format!("\n--- end of node {node}'s {name} log\n{end}");
            }
        }
        text
    }
}

/// Whether a cluster writes a log of this name.
fn is_log(name: &str) -> bool {
    let Some(name) = name.strip_suffix(".log") else { return false };
    matches!(name, "fabric" | "host")
        || name.split_once('.').is_some_and(|(kind, rest)| match kind {
            "fabric" => true,
            "console" | "qemu" | "virtiofsd" | "hib" => rest.parse::<usize>().is_ok(),
            _ => false,
        })
}

/// The whole of a log; empty if the file does not exist.
pub(crate) fn read_log(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topology_and_faults_are_in_the_same_file() {
        let text = "nodes = 4\n[[node]]\nname = \"left\"\n[fabric]\nfault = [\"node:1=loss=5%\", \"*=latency=2ms\"]\nseed = 7\n\
                    [[fabric.faults]]\nat = \"5s\"\nlink = \"node:2\"\nset = \"down\"\n[fabric.topology]\nnodes = 4\n\
                    [[fabric.topology.switch]]\nname = \"a\"\nnodes = \"0-3\"\n";
        let settings = toml::from_str::<Settings>(text).unwrap();
        settings.check().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let options = with_files(&settings.fabric, dir.path()).unwrap();
        let of = |wanted: &str| -> Vec<String> {
            options.iter().filter(|(name, _)| name == wanted).map(|(_, value)| value.clone()).collect()
        };
        assert_eq!(
            (of("fault"), of("seed")),
            (vec!["node:1=loss=5%".into(), "*=latency=2ms".into()], vec!["7".into()])
        );
        // The fabric reads what it is given.
        let fabric = telegraphos_fabric::Settings {
            listen: Some(dir.path().join("fabric")),
            topology: of("topology").pop(),
            faults: of("faults").pop().map(std::path::PathBuf::from),
            fault: of("fault"),
            ..telegraphos_fabric::Settings::default()
        };
        let config = fabric.config().unwrap();
        assert_eq!((config.nodes, config.faults.len(), config.schedule.deadline().is_some()), (4, 2, true));
    }

    #[test]
    fn only_logs_of_clusters_are_removed() {
        for name in [
            "fabric.log",
            "fabric.left.log",
            "fabric.network.log",
            "host.log",
            "console.0.log",
            "qemu.12.log",
            "hib.3.log",
        ] {
            assert!(is_log(name), "{name}");
        }
        for name in ["fabric", "fabrics.log", "hib.x.log", "hib.log", "notes.0.log", "qemu.1.txt", "log"] {
            assert!(!is_log(name), "{name}");
        }
    }
}
