// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fabric's commands: what clients of its control socket can change.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use log::info;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use telegraphos_capture::{CaptureOptions, Link};
use telegraphos_fabric_core::PortId;
use telegraphos_service::logging;
use telegraphos_topology::SwitchId;
use telegraphos_transport::faults::{Direction, FaultPlan};
use telegraphos_wire::NodeId;
use telegraphos_wire::link::Frame;

use super::config::{Config, FabricError, system};
use super::faults::{link_name, trunk_name};
use super::trunks::TrunkEnd;
use super::{ControlServer, Fabric, Limits, MetricsServer};
use crate::control::{Done, FaultSpec, Request, Response, Target};

/// Names in a message.
const FEW: usize = 12;

/// The lasting effects of commands.
#[derive(Debug, Default)]
pub(super) struct Commands {
    /// Nodes whose link is down.
    pub(super) down: BTreeSet<NodeId>,
    /// Nodes that are kept out.
    pub(super) crashed: BTreeSet<NodeId>,
    /// Groups of switches without trunks between them; none if there is no partition.
    pub(super) partition: Vec<Vec<SwitchId>>,
}

impl Commands {
    fn keeps_out(&self, node: NodeId) -> bool {
        self.down.contains(&node) || self.crashed.contains(&node)
    }
}

/// The control socket, and the endpoint for Prometheus, a client of it.
pub(super) fn serve(config: &Config) -> Result<(Option<ControlServer>, Option<MetricsServer>), FabricError> {
    let mut control = match &config.control {
        Some(path) => Some(ControlServer::bind(path, "--control", Limits::default())?),
        None => None,
    };
    let Some(address) = config.metrics else { return Ok((control, None)) };
    let server = match &mut control {
        Some(server) => server,
        None => control.insert(ControlServer::new(Limits::default()).map_err(system("create an epoll set"))?),
    };
    let pair = net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let (near, far) = pair.map_err(system("create a pair of sockets"))?;
    server.adopt(far, 0).map_err(system("watch a socket"))?;
    let metrics = MetricsServer::start(address, near.into())?;
    Ok((control, Some(metrics)))
}

impl Fabric {
    /// Serves the control socket, if it is ready or its deadline has passed.
    pub(super) fn control(&mut self, ready: bool) {
        let due = self.control.as_ref().and_then(ControlServer::deadline).is_some_and(|at| at <= self.now);
        if !ready && !due {
            return;
        }
        if let Some(mut control) = self.control.take() {
            control.ready(self.now, &mut |request| self.perform(request));
            self.control = Some(control);
        }
    }

    /// Ends the connection if its hello is of a node that a command keeps out; true if it did.
    pub(super) fn kept_out(&mut self, port: PortId, frame: &Frame) -> bool {
        let Frame::Hello { node, .. } = frame else { return false };
        if !self.commands.keeps_out(*node) {
            return false;
        }
        self.close(port);
        true
    }

    /// The name of the trunk between two switches.
    pub(super) fn trunk_between(&self, a: SwitchId, b: SwitchId) -> String {
        match &self.config.plan {
            Some(plan) => format!("{}-{}", plan.topology.name(a), plan.topology.name(b)),
            None => format!("{a}-{b}"),
        }
    }

    fn is_here(&self, node: NodeId) -> bool {
        match &self.config.plan {
            None => u32::from(node) < self.config.nodes,
            Some(plan) => {
                let home = plan.topology.switch_of(node);
                self.switches.iter().any(|hosted| Some(hosted.id) == home)
            }
        }
    }

    fn node(&self, node: NodeId) -> Result<NodeId, String> {
        if self.is_here(node) {
            return Ok(node);
        }
        let home = self.config.plan.as_ref().and_then(|plan| {
            let switch = plan.topology.switch_of(node)?;
            Some(format!("{} of process {}", plan.topology.name(switch), plan.process_of(switch)?))
        });
        Err(match home {
            Some(home) => format!("node {node} is attached to {home}: use the control socket of that process"),
            None => format!("node is {node}: expected 0 to {}", self.config.nodes.saturating_sub(1)),
        })
    }

    /// The nodes and ends of trunks, by their index, that a command is about.
    fn meant(&self, on: &Target) -> Result<(Vec<NodeId>, Vec<usize>), String> {
        let nodes = || (0..self.config.nodes as NodeId).filter(|node| self.is_here(*node)).collect();
        let trunks = || (0..self.trunks.len()).collect();
        Ok(match on {
            Target::All => (nodes(), trunks()),
            Target::Links => (nodes(), Vec::new()),
            Target::Trunks => (Vec::new(), trunks()),
            Target::Node(node) => (vec![self.node(*node)?], Vec::new()),
            Target::Trunk(name) => {
                let known = |index: &usize| {
                    let (a, b) = self.trunks[*index].ids;
                    let numbers = [format!("{a}-{b}"), format!("{b}-{a}")];
                    *name == self.trunk_between(a, b) || *name == self.trunk_between(b, a) || numbers.contains(name)
                };
                let ends: Vec<usize> = (0..self.trunks.len()).filter(known).collect();
                if ends.is_empty() {
                    let mut names: Vec<String> = self.trunks.iter().map(|end| end.name.clone()).collect();
                    names.dedup();
                    let more = if names.len() > FEW { ", ..." } else { "" };
                    names.truncate(FEW);
                    return Err(match names.as_slice() {
                        [] => format!("there is no trunk {name:?}: this process has none"),
                        names => format!("there is no trunk {name:?} here: expected one of {}{more}", names.join(", ")),
                    });
                }
                (Vec::new(), ends)
            }
        })
    }

    /// Names of their faults, each once.
    fn names_of(&self, on: &Target) -> Result<BTreeSet<String>, String> {
        let (nodes, ends) = self.meant(on)?;
        let links = nodes.into_iter().map(link_name);
        Ok(links.chain(ends.into_iter().map(|index| trunk_name(&self.trunks[index].name))).collect())
    }

    /// The faults of a link or trunk, by its name.
    pub(super) fn faults_of(&self, name: &str) -> FaultSpec {
        FaultSpec(self.faults.find(name).map(|link| link.plan()).unwrap_or_default())
    }

    /// Ends the connection of a node, if it has one; the caller keeps it out.
    fn end_node(&mut self, node: NodeId) {
        if let Some(port) = self.port_of(node) {
            self.close(port);
        }
    }

    /// Changes whether an end of a trunk is kept down.
    fn change_trunk(&mut self, index: usize, change: impl FnOnce(&mut TrunkEnd)) {
        let was = self.trunks[index].kept_down();
        change(&mut self.trunks[index]);
        let is = self.trunks[index].kept_down();
        if is && !was {
            for port in self.trunks[index].ports.clone() {
                self.close(port);
            }
        } else if was && !is {
            let now = self.now;
            self.trunks[index].let_up(now);
        }
    }

    fn switch_named(&self, name: &str) -> Result<SwitchId, String> {
        let switches = self.config.plan.as_ref().map_or(1, |plan| plan.topology.switches());
        let number = name.parse().ok().filter(|number| *number < switches);
        let named = || {
            let plan = self.config.plan.as_ref()?;
            (0..switches).find(|switch| plan.topology.name(*switch) == name)
        };
        // A switch may have a number for its name.
        named().or(number).ok_or_else(|| {
            format!(
                "there is no switch {name:?}: expected a number from 0 to {}, or a name of the topology",
                switches - 1
            )
        })
    }
}

// ---- commands ----

impl Fabric {
    /// Answers a query, or performs a command. Errors name the value and what was expected.
    fn perform(&mut self, request: &Request) -> Result<Response, String> {
        Ok(Response::Done(match request {
            Request::Status {} => return Ok(Response::Status(self.status_now())),
            Request::Statistics {} | Request::Watch { .. } => return Ok(Response::Statistics(self.snapshot_now())),
            Request::Topology {} => return Ok(Response::Topology(self.topology_now())),
            Request::Faults {} => return Ok(Response::Faults(self.faults_now())),
            Request::SetFaults { on, faults } => self.change_faults(on, faults)?,
            Request::ClearFaults { on } => self.change_faults(on, &FaultSpec::default())?,
            Request::Link { on, up } => self.set_link(on, *up)?,
            Request::Partition { groups } => self.partition(groups)?,
            Request::Heal {} => self.partition(&[])?,
            Request::Slow { node, bytes_per_second } => self.slow(*node, *bytes_per_second)?,
            Request::Crash { node } => self.crash(*node, true)?,
            Request::Restore { node } => self.crash(*node, false)?,
            Request::CaptureStart { file, on } => self.capture_to(Path::new(file), on)?,
            Request::CaptureStop {} => self.end_capture()?,
            Request::Log { level } => {
                logging::set_filter(level)?;
                info!("control: the log's filter is {level} by command");
                Done::changed(1)
            }
        }))
    }

    /// Sets faults in place of those before; [`FaultSpec::default`] ends them.
    fn change_faults(&mut self, on: &Target, faults: &FaultSpec) -> Result<Done, String> {
        let names = self.names_of(on)?;
        info!(
            "control: {on}: {} by command",
            if faults.is_none() { "no faults".to_owned() } else { faults.to_string() }
        );
        for name in &names {
            self.faults.link(name).set(faults.0);
        }
        self.place_faults();
        Ok(Done::changed(names.len()))
    }

    /// Takes links or trunks down, or lets them up.
    fn set_link(&mut self, on: &Target, up: bool) -> Result<Done, String> {
        let (nodes, ends) = self.meant(on)?;
        info!("control: {on} is {} by command", if up { "up" } else { "down" });
        let mut changed = 0;
        for node in nodes {
            let new = if up { self.commands.down.remove(&node) } else { self.commands.down.insert(node) };
            changed += usize::from(new);
            if !up && new {
                self.end_node(node);
            }
        }
        let mut trunks = BTreeSet::new();
        for index in ends {
            if self.trunks[index].down == up {
                trunks.insert(self.trunks[index].trunk);
            }
            self.change_trunk(index, |end| end.down = !up);
        }
        Ok(Done::changed(changed + trunks.len()))
    }

    /// Cuts groups of switches off from each other; no group ends it.
    fn partition(&mut self, groups: &[Vec<String>]) -> Result<Done, String> {
        let mut members: BTreeMap<SwitchId, usize> = BTreeMap::new();
        let mut partition = Vec::new();
        for (number, group) in groups.iter().enumerate() {
            let mut ids = Vec::new();
            for name in group {
                let switch = self.switch_named(name)?;
                if members.insert(switch, number).is_some() {
                    return Err(format!("switch {name} is in two places: expected each in one group"));
                }
                ids.push(switch);
            }
            ids.sort_unstable();
            partition.push(ids);
        }
        info!("control: {}", if groups.is_empty() { "no partition any more" } else { "partition by command" });
        let mut cut = BTreeSet::new();
        for index in 0..self.trunks.len() {
            let (a, b) = self.trunks[index].ids;
            let apart = matches!((members.get(&a), members.get(&b)), (Some(x), Some(y)) if x != y);
            if self.trunks[index].cut != apart {
                cut.insert(self.trunks[index].trunk);
            }
            self.change_trunk(index, |end| end.cut = apart);
        }
        self.commands.partition = partition;
        let mut done = Done::changed(cut.len());
        if !groups.is_empty() && self.trunks.iter().all(|end| !end.cut) {
            done.note = "no trunk of this process joins two of the groups".into();
        }
        Ok(done)
    }

    /// Makes a node slow.
    fn slow(&mut self, node: NodeId, bytes_per_second: Option<u64>) -> Result<Done, String> {
        let node = self.node(node)?;
        let link = self.faults.link(&link_name(node));
        let before = link.plan();
        let mut plan = FaultPlan { rate: bytes_per_second, ..before };
        if before == FaultPlan::default() {
            plan.only = Some(Direction::Send);
        }
        if plan == (FaultPlan { only: plan.only, ..FaultPlan::default() }) {
            plan = FaultPlan::default();
        }
        info!(node = node; "control: node {node} is {} by command", if bytes_per_second.is_some() { "slow" } else { "as fast as ever" });
        link.set(plan);
        self.place_faults();
        Ok(Done::changed(usize::from(plan != before)))
    }

    /// Cuts a node off and keeps it out (`out`), or lets it in again.
    fn crash(&mut self, node: NodeId, out: bool) -> Result<Done, String> {
        let node = self.node(node)?;
        let new = if out { self.commands.crashed.insert(node) } else { self.commands.crashed.remove(&node) };
        if new {
            info!(node = node; "control: node {node} is {} by command", if out { "cut off" } else { "let in" });
        }
        if out && new {
            self.end_node(node);
        }
        Ok(Done::changed(usize::from(new)))
    }

    fn capture_to(&mut self, file: &Path, on: &Target) -> Result<Done, String> {
        let (nodes, ends) = self.meant(on)?;
        let mut links: Vec<Link> = nodes.into_iter().map(Link::Node).collect();
        links.extend(ends.into_iter().map(|index| Link::Trunk(self.trunks[index].ids.0, self.trunks[index].ids.1)));
        // A pipe is to be written to as it is.
        if std::fs::metadata(file).is_ok_and(|found| found.is_file() && found.len() > 0) {
            return Err(format!("{} exists already: expected a new file, or a named pipe", file.display()));
        }
        let count = links.len();
        let links = if *on == Target::All { Vec::new() } else { links };
        let options = CaptureOptions { file: file.to_owned(), links, ..CaptureOptions::default() };
        self.start_capture(options).map_err(|e| e.to_string())?;
        Ok(Done::changed(count))
    }

    fn end_capture(&mut self) -> Result<Done, String> {
        let Some(capturing) = &self.capturing else { return Err("nothing is being captured".into()) };
        let file = capturing.file.display().to_string();
        self.stop_capture();
        Ok(Done { changed: 1, note: file })
    }
}
