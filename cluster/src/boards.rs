// SPDX-License-Identifier: MIT OR Apache-2.0
//! Boards without virtual machines: one fabric process or several, and a HIB process for each node, driven by test
//! clients of this process.

use crate::launch::{Hib, Logs, Options, PROMPT, fabric, start_fabric, start_fabric_as, start_hib, wait_for_socket};
use crate::namespaces::Namespaces;
use crate::process::Process;
use crate::rundir::{FABRIC, MachineLock, RunDir};
use crate::tap::{LinkCount, Tap};
use crate::{Error, ProgressMode, Result, Settings, interrupt};
use std::fs;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use telegraphos_device_client::{Client, ClientError, Guest};
use telegraphos_fabric::control::{ControlClient, default_path};
use telegraphos_images::{Program, Store};

/// Several fabric processes of one fabric, each with one switch and in a separate network namespace, joined in a row
/// by trunks.
#[derive(Clone, Debug)]
pub struct Row {
    /// From the left to the right: the name of process and switch, and the switch's nodes. The nodes are those from 0
    /// on, in this order.
    pub switches: Vec<(&'static str, Range<usize>)>,
    /// What carries the trunks: `udp` or `quic`.
    pub transport: &'static str,
    /// What each end of each trunk does to what it sends, such as `loss=5% corrupt=1%`; may be empty.
    pub faults: &'static str,
}

impl Row {
    /// The address of the left or right end of the trunk on the right of a switch.
    fn address(left: usize, right_end: bool) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, left as u8, 1 + u8::from(right_end))
    }

    /// The name of the trunk on the right of a switch.
    pub fn trunk(&self, left: usize) -> String {
        format!("{}-{}", self.switches[left].0, self.switches[left + 1].0)
    }

    fn topology(&self) -> String {
        let mut text = String::new();
        for (name, nodes) in &self.switches {
            let (first, last) = (nodes.start, nodes.end.saturating_sub(1));
            text += &format!("[[switch]]\nname = '{name}'\nnodes = '{first}-{last}'\nprocess = '{name}'\n");
        }
        for (left, pair) in self.switches.windows(2).enumerate() {
            let (from, to, at) = (pair[0].0, pair[1].0, Row::address(left, true));
            text += &format!("[[trunk]]\nbetween = ['{to}', '{from}']\nat = '{}:{at}:{PORT}'\n", self.transport);
        }
        text
    }

    /// Makes the network and starts the processes; their sockets.
    fn start(&self, common: &Options, ip: Program, run_dir: &Path, logs: &Logs) -> Result<Vec<(Process, PathBuf)>> {
        let file = run_dir.join("topology.toml");
        fs::write(&file, self.topology()).map_err(Error::io("cannot write", &file))?;
        let mut network = Namespaces::new(self.switches.len(), ip, &logs.path("fabric.network"))?;
        for left in 0..self.switches.len() - 1 {
            let ends = [(left, Row::address(left, false)), (left + 1, Row::address(left, true))];
            network.cable(ends)?;
        }
        let mut started = Vec::new();
        for (place, (name, _)) in self.switches.iter().enumerate() {
            let socket = run_dir.join(format!("{FABRIC}.{name}"));
            let mut command = fabric(&socket, common);
            command.arg("--topology").arg(&file).args(["--process", name]);
            let trunks = [place.checked_sub(1), Some(place).filter(|place| place + 1 < self.switches.len())];
            for trunk in trunks.into_iter().flatten().filter(|_| !self.faults.is_empty()) {
                // Each end what it sends: so each direction once.
                command.arg("--fault").arg(format!("trunk:{}={} only=send", self.trunk(trunk), self.faults));
            }
            network.inside(place, &mut command)?;
            let log = logs.path(&format!("fabric.{name}"));
            started.push((start_fabric_as(format!("the fabric process {name}"), command, &socket, &log)?, socket));
        }
        Ok(started)
    }
}

/// Where fabric processes listen for trunks.
const PORT: u16 = 7001;

/// Running boards. All processes end, and their directory goes, when it is dropped.
#[derive(Debug)]
pub struct Boards {
    // In this order they are dropped: clients, HIBs, the links between, fabric, directory, lock.
    guests: Vec<Guest>,
    hibs: Vec<Process>,
    taps: Vec<Tap>,
    /// With their sockets.
    fabrics: Vec<(Process, PathBuf)>,
    logs: Logs,
    run_dir: RunDir,
    _lock: Arc<MachineLock>,
}

impl Boards {
    /// Starts `nodes` boards; each has joined and has memory, and context 0 is open. `options` are those of one node's
    /// HIB, name and value. Settings of guests are ignored. If links are counted, two threads of this process pass on
    /// every packet.
    pub fn start(
        settings: &Settings,
        progress: ProgressMode,
        nodes: usize,
        count_links: bool,
        options: impl Fn(usize) -> Vec<(String, String)>,
    ) -> Result<Boards> {
        let mut boards = Boards::empty(settings, progress)?;
        let step = progress.step(format!("Starting {nodes} boards and the fabric"), None);
        let socket = boards.run_dir.path().join(FABRIC);
        let mut of_fabric = settings.fabric.clone();
        if count_links {
            // What passes by a ring passes no link; and no ring's end passes a tap.
            of_fabric.push(("rings".to_owned(), "0".to_owned()));
        }
        let fabric = start_fabric(&socket, &of_fabric, &boards.logs.path("fabric"))?;
        boards.fabrics.push((fabric, socket));
        boards.start_boards(settings, count_links, &vec![0; nodes], options)?;
        step.done();
        Ok(boards)
    }

    /// The same, with several fabric processes, joined by trunks.
    pub fn start_in_a_row(
        settings: &Settings,
        progress: ProgressMode,
        row: &Row,
        options: impl Fn(usize) -> Vec<(String, String)>,
    ) -> Result<Boards> {
        let mut boards = Boards::empty(settings, progress)?;
        let fabric_of: Vec<usize> =
            row.switches.iter().enumerate().flat_map(|(place, (_, nodes))| nodes.clone().map(move |_| place)).collect();
        let text = format!("Starting {} boards and {} fabric processes", fabric_of.len(), row.switches.len());
        let step = progress.step(text, None);
        let ip = Store::open(settings.cache.clone(), progress)?.ip()?;
        boards.fabrics = row.start(&settings.fabric, ip, boards.run_dir.path(), &boards.logs)?;
        boards.start_boards(settings, false, &fabric_of, options)?;
        step.done();
        Ok(boards)
    }

    fn empty(settings: &Settings, progress: ProgressMode) -> Result<Boards> {
        let run_dir = RunDir::create(settings.run_dir.as_deref())?;
        let lock = MachineLock::acquire(progress)?;
        let logs = Logs::open(settings, &run_dir)?;
        Ok(Boards {
            guests: Vec::new(),
            hibs: Vec::new(),
            taps: Vec::new(),
            fabrics: Vec::new(),
            logs,
            run_dir,
            _lock: lock,
        })
    }

    /// Starts a board for each node, at that fabric.
    fn start_boards(
        &mut self,
        settings: &Settings,
        count_links: bool,
        fabric_of: &[usize],
        options: impl Fn(usize) -> Vec<(String, String)>,
    ) -> Result<()> {
        let directory = self.run_dir.path().to_path_buf();
        let at = |kind: &str, node: usize| directory.join(format!("{kind}{node}"));
        let fabrics: Vec<PathBuf> = fabric_of.iter().map(|fabric| self.fabrics[*fabric].1.clone()).collect();
        for (node, fabric) in fabrics.iter().enumerate() {
            let mut link = fabric.clone();
            if count_links {
                link = at("link", node);
                self.taps.push(Tap::bind(&link)?);
            }
            let log = self.logs.of_node("hib", node);
            let hib = Hib { node, socket: &at("hib", node), common: &settings.hib, own: &options(node) };
            self.hibs.push(start_hib(hib, &link, &log)?);
        }
        for (node, fabric) in fabrics.iter().enumerate() {
            let socket = at("hib", node);
            wait_for_socket(&socket, &mut self.hibs[node], || self.logs.tails(node))?;
            if let Some(tap) = self.taps.get(node) {
                tap.join(fabric, PROMPT)?;
            }
            let guest = Client::new(&socket).and_then(Guest::boot).map_err(|e| self.error(node, e))?;
            self.guests.push(guest);
        }
        for node in 0..fabrics.len() {
            self.ask(node, |guest| guest.join().and_then(|()| guest.open_context(0)))?;
        }
        Ok(())
    }

    /// A connection to the control socket of a fabric process, by its place in the row.
    pub fn control(&self, fabric: usize) -> Result<ControlClient> {
        Ok(ControlClient::connect(&default_path(&self.fabrics[fabric].1))?)
    }

    /// The error of a board's client, with the end of the board's log.
    pub fn error(&self, node: usize, source: ClientError) -> Error {
        Error::Board { node: node.into(), source, tail: self.logs.tails(node) }
    }

    /// Calls `f` with a node's client. Fails if the user has interrupted.
    pub fn ask<T>(&mut self, node: usize, f: impl FnOnce(&mut Guest) -> Result<T, ClientError>) -> Result<T> {
        interrupt::check()?;
        f(&mut self.guests[node]).map_err(|e| self.error(node, e))
    }

    /// Stops the HIB of a node (SIGSTOP), or continues it.
    pub fn hang(&self, node: usize, hangs: bool) {
        self.hibs[node].hang(hangs);
    }

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
