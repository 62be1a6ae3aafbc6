// SPDX-License-Identifier: MIT OR Apache-2.0
//! Boards without virtual machines: a fabric process and a HIB process for each node, driven by test clients of this process.

use crate::cluster::{hib_options, log_dir, option};
use crate::guest::wait_for_socket;
use crate::process::{Process, tail};
use crate::progress::{Mode, Progress};
use crate::rundir::{FABRIC, MachineLock, RunDir};
use crate::tap::{LinkCount, Tap};
use crate::{Error, Result, Settings, interrupt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use telegraphos_device::client::{Client, ClientError, Guest};

/// This program in one of its other roles (see [`crate::reexecuted`]).
fn role(role: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("telegraphos").arg(role);
    command
}

/// Starts a fabric that listens there, and waits until it does.
pub(crate) fn start_fabric(socket: &Path, options: &[(String, String)], log: &Path) -> Result<Process> {
    let mut command = role("__fabric");
    command.arg("--listen").arg(socket).args(options.iter().map(|(name, value)| option(name, value)));
    let mut process = Process::start("the fabric", command, log)?;
    wait_for_socket(socket, &mut process, || format!("\n--- end of the fabric's log\n{}", tail(log, 15)))?;
    Ok(process)
}

/// Starts the HIB of a node.
pub(crate) fn start_hib(node: usize, socket: &Path, fabric: &Path, options: &[String], log: &Path) -> Result<Process> {
    let mut command = role("__hib");
    command.arg("--socket").arg(socket).arg("--node").arg(node.to_string()).arg("--fabric").arg(fabric).args(options);
    Process::start(format!("the HIB of node {node}"), command, log)
}

/// How long a board may take to begin.
const PROMPT: Duration = Duration::from_secs(30);

/// Running boards. All processes end, and their directory goes, when it is dropped.
#[derive(Debug)]
pub struct Boards {
    // In this order they are dropped: clients, HIBs, the links between, fabric, directory, lock.
    guests: Vec<Guest>,
    hibs: Vec<Process>,
    taps: Vec<Tap>,
    _fabric: Process,
    log_dir: PathBuf,
    _run_dir: RunDir,
    _lock: Arc<MachineLock>,
}

impl Boards {
    /// Starts so many; each has joined and has memory, and context 0 is open. `options` are those of one node's HIB, name and value. Of
    /// `settings` those count that are not about guests. If links are counted, two threads of this process pass on every packet.
    pub fn start(
        settings: &Settings,
        progress: Mode,
        nodes: usize,
        count_links: bool,
        options: impl Fn(usize) -> Vec<(String, String)>,
    ) -> Result<Boards> {
        let run_dir = RunDir::create(settings.run_dir.as_deref())?;
        let lock = MachineLock::acquire(Progress(progress))?;
        let log_dir = log_dir(settings, &run_dir)?;
        let step = Progress(progress).step(format!("Starting {nodes} boards and the fabric"));
        let fabric_socket = run_dir.path().join(FABRIC);
        let fabric = start_fabric(&fabric_socket, &settings.fabric, &log_dir.join("fabric.log"))?;
        let directory = run_dir.path().to_path_buf();
        let at = |kind: &str, node: usize| directory.join(format!("{kind}{node}"));
        let mut boards = Boards {
            guests: Vec::new(),
            hibs: Vec::new(),
            taps: Vec::new(),
            _fabric: fabric,
            log_dir,
            _run_dir: run_dir,
            _lock: lock,
        };
        for node in 0..nodes {
            let mut link = fabric_socket.clone();
            if count_links {
                link = at("link", node);
                boards.taps.push(Tap::bind(&link)?);
            }
            let options = hib_options(&settings.hib, &options(node));
            boards.hibs.push(start_hib(node, &at("hib", node), &link, &options, &boards.log(node))?);
        }
        for node in 0..nodes {
            let (socket, log) = (at("hib", node), boards.log(node));
            wait_for_socket(&socket, &mut boards.hibs[node], || tails(node, &log))?;
            if let Some(tap) = boards.taps.get(node) {
                tap.join(&fabric_socket, PROMPT)?;
            }
            let guest = Client::new(&socket).and_then(Guest::boot).map_err(|e| boards.error(node, e))?;
            boards.guests.push(guest);
        }
        for node in 0..nodes {
            boards.ask(node, |guest| guest.join().and_then(|()| guest.open_context(0)))?;
        }
        step.done();
        Ok(boards)
    }

    fn log(&self, node: usize) -> PathBuf {
        self.log_dir.join(format!("hib.{node}.log"))
    }

    /// What went wrong, with the end of the board's log.
    pub(crate) fn error(&self, node: usize, source: ClientError) -> Error {
        Error::Board { node, source, tail: tails(node, &self.log(node)) }
    }

    /// Has a node's client do something, unless the user has interrupted.
    pub fn ask<T>(&mut self, node: usize, f: impl FnOnce(&mut Guest) -> Result<T, ClientError>) -> Result<T> {
        interrupt::check()?;
        f(&mut self.guests[node]).map_err(|e| self.error(node, e))
    }

    /// The clients, by node.
    pub fn guests(&self) -> &[Guest] {
        &self.guests
    }

    /// The clients, by node, to be used at the same time.
    pub fn guests_mut(&mut self) -> &mut [Guest] {
        &mut self.guests
    }

    /// What has crossed each node's link, if that is counted.
    pub fn links(&self) -> Vec<LinkCount> {
        self.taps.iter().map(Tap::count).collect()
    }
}

fn tails(node: usize, log: &Path) -> String {
    format!("\n--- end of the log of node {node}'s HIB\n{}", tail(log, 15))
}
