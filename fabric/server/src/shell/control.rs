// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fabric's commands: what clients of its control socket can change.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use log::info;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use telegraphos_capture::{CaptureOptions, Link};
use telegraphos_service::logging;
use telegraphos_topology::SwitchId;
use telegraphos_transport::faults::{Direction, FaultPlan};
use telegraphos_wire::NodeId;

use super::config::{Config, FabricError, system};
use super::faults::Faults;
use super::names::{link_name, trunk_name};
use super::ports::Ports;
use super::switches::Switches;
use super::trunks::Trunks;
use crate::control::{ControlServer, Done, FaultSpec, Limits, Request, Target};
use crate::metrics::MetricsServer;

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

/// What commands are about.
pub(super) struct Reach<'a> {
    pub(super) config: &'a Config,
    pub(super) switches: &'a Switches,
    pub(super) ports: &'a mut Ports,
    pub(super) trunks: &'a mut Trunks,
    pub(super) faults: &'a mut Faults,
    /// The switches have done something.
    pub(super) late: bool,
}

impl Reach<'_> {
    fn is_here(&self, node: NodeId) -> bool {
        match &self.config.plan {
            None => u32::from(node) < self.config.nodes,
            Some(plan) => plan.topology.switch_of(node).is_some_and(|home| self.switches.index_of(home).is_some()),
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
        let ends = &self.trunks.ends;
        let nodes = || (0..self.config.nodes as NodeId).filter(|node| self.is_here(*node)).collect();
        let trunks = || (0..ends.len()).collect();
        Ok(match on {
            Target::All => (nodes(), trunks()),
            Target::Links => (nodes(), Vec::new()),
            Target::Trunks => (Vec::new(), trunks()),
            Target::Node(node) => (vec![self.node(*node)?], Vec::new()),
            Target::Trunk(name) => {
                let known = |index: &usize| {
                    let (a, b) = ends[*index].ids;
                    let numbers = [format!("{a}-{b}"), format!("{b}-{a}")];
                    let trunk = |a, b| self.config.trunk_between(a, b);
                    *name == trunk(a, b) || *name == trunk(b, a) || numbers.contains(name)
                };
                let meant: Vec<usize> = (0..ends.len()).filter(known).collect();
                if meant.is_empty() {
                    let mut names: Vec<String> = ends.iter().map(|end| end.name.clone()).collect();
                    names.dedup();
                    let more = if names.len() > FEW { ", ..." } else { "" };
                    names.truncate(FEW);
                    return Err(match names.as_slice() {
                        [] => format!("there is no trunk {name:?}: this process has none"),
                        names => format!("there is no trunk {name:?} here: expected one of {}{more}", names.join(", ")),
                    });
                }
                (Vec::new(), meant)
            }
        })
    }

    /// Names of their faults, each once.
    fn names_of(&self, on: &Target) -> Result<BTreeSet<String>, String> {
        let (nodes, ends) = self.meant(on)?;
        let links = nodes.into_iter().map(link_name);
        Ok(links.chain(ends.into_iter().map(|index| trunk_name(&self.trunks.ends[index].name))).collect())
    }

    /// Ends the connection of a node, if it has one; the caller keeps it out.
    fn end_node(&mut self, node: NodeId) {
        if let Some(port) = self.switches.port_of(node) {
            self.ports.close(port);
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

impl Commands {
    /// Whether the hello of this node is not answered.
    pub(super) fn keeps_out(&self, node: NodeId) -> bool {
        self.down.contains(&node) || self.crashed.contains(&node)
    }

    /// Performs a command. None if it is a query. Errors name the value and what was expected.
    pub(super) fn perform(&mut self, request: &Request, mut reach: Reach<'_>) -> Result<Option<Done>, String> {
        let reach = &mut reach;
        Ok(Some(match request {
            Request::Status {}
            | Request::Statistics {}
            | Request::Watch { .. }
            | Request::Topology {}
            | Request::Faults {} => return Ok(None),
            Request::SetFaults { on, faults } => change_faults(reach, on, faults)?,
            Request::ClearFaults { on } => change_faults(reach, on, &FaultSpec::default())?,
            Request::Link { on, up } => self.set_link(reach, on, *up)?,
            Request::Partition { groups } => self.partition(reach, groups)?,
            Request::Heal {} => self.partition(reach, &[])?,
            Request::Slow { node, bytes_per_second } => slow(reach, *node, *bytes_per_second)?,
            Request::Crash { node } => self.crash(reach, *node, true)?,
            Request::Restore { node } => self.crash(reach, *node, false)?,
            Request::CaptureStart { file, on } => capture_to(reach, Path::new(file), on)?,
            Request::CaptureStop {} => end_capture(reach)?,
            Request::Log { level } => {
                logging::set_filter(level)?;
                info!("control: the log's filter is {level} by command");
                Done::changed(1)
            }
        }))
    }

    /// Takes links or trunks down, or lets them up.
    fn set_link(&mut self, reach: &mut Reach<'_>, on: &Target, up: bool) -> Result<Done, String> {
        let (nodes, ends) = reach.meant(on)?;
        info!("control: {on} is {} by command", if up { "up" } else { "down" });
        let mut changed = 0;
        for node in nodes {
            let new = if up { self.down.remove(&node) } else { self.down.insert(node) };
            changed += usize::from(new);
            if !up && new {
                reach.end_node(node);
            }
        }
        let mut trunks = BTreeSet::new();
        for index in ends {
            let end = &reach.trunks.ends[index];
            if end.down == up {
                trunks.insert(end.trunk);
            }
            reach.trunks.change(reach.ports, index, |end| end.down = !up);
        }
        Ok(Done::changed(changed + trunks.len()))
    }

    /// Cuts groups of switches off from each other; no group ends it.
    fn partition(&mut self, reach: &mut Reach<'_>, groups: &[Vec<String>]) -> Result<Done, String> {
        let mut members: BTreeMap<SwitchId, usize> = BTreeMap::new();
        let mut partition = Vec::new();
        for (number, group) in groups.iter().enumerate() {
            let mut ids = Vec::new();
            for name in group {
                let switch = reach.switch_named(name)?;
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
        for index in 0..reach.trunks.ends.len() {
            let end = &reach.trunks.ends[index];
            let (a, b) = end.ids;
            let apart = matches!((members.get(&a), members.get(&b)), (Some(x), Some(y)) if x != y);
            if end.cut != apart {
                cut.insert(end.trunk);
            }
            reach.trunks.change(reach.ports, index, |end| end.cut = apart);
        }
        self.partition = partition;
        let mut done = Done::changed(cut.len());
        if !groups.is_empty() && reach.trunks.ends.iter().all(|end| !end.cut) {
            done.note = "no trunk of this process joins two of the groups".into();
        }
        Ok(done)
    }

    /// Cuts a node off and keeps it out (`out`), or lets it in again.
    fn crash(&mut self, reach: &mut Reach<'_>, node: NodeId, out: bool) -> Result<Done, String> {
        let node = reach.node(node)?;
        let new = if out { self.crashed.insert(node) } else { self.crashed.remove(&node) };
        if new {
            info!(node = node; "control: node {node} is {} by command", if out { "cut off" } else { "let in" });
        }
        if out && new {
            reach.end_node(node);
        }
        Ok(Done::changed(usize::from(new)))
    }
}

/// Sets faults in place of those before; [`FaultSpec::default`] ends them.
fn change_faults(reach: &mut Reach<'_>, on: &Target, faults: &FaultSpec) -> Result<Done, String> {
    let names = reach.names_of(on)?;
    info!("control: {on}: {} by command", if faults.is_none() { "no faults".to_owned() } else { faults.to_string() });
    names.iter().for_each(|name| reach.faults.change(name, faults.0));
    Ok(Done::changed(names.len()))
}

/// Makes a node slow.
fn slow(reach: &mut Reach<'_>, node: NodeId, bytes_per_second: Option<u64>) -> Result<Done, String> {
    let node = reach.node(node)?;
    let before = reach.faults.links.link(&link_name(node)).plan();
    let mut plan = FaultPlan { rate: bytes_per_second, ..before };
    if before == FaultPlan::default() {
        plan.only = Some(Direction::Send);
    }
    if plan == (FaultPlan { only: plan.only, ..FaultPlan::default() }) {
        plan = FaultPlan::default();
    }
    info!(node = node; "control: node {node} is {} by command", if bytes_per_second.is_some() { "slow" } else { "as fast as ever" });
    reach.faults.change(&link_name(node), plan);
    Ok(Done::changed(usize::from(plan != before)))
}

fn capture_to(reach: &mut Reach<'_>, file: &Path, on: &Target) -> Result<Done, String> {
    let (nodes, ends) = reach.meant(on)?;
    let trunk = |index: usize| {
        let (a, b) = reach.trunks.ends[index].ids;
        Link::Trunk(a, b)
    };
    let links: Vec<Link> = nodes.into_iter().map(Link::Node).chain(ends.into_iter().map(trunk)).collect();
    // A pipe is to be written to as it is.
    if std::fs::metadata(file).is_ok_and(|found| found.is_file() && found.len() > 0) {
        return Err(format!("{} exists already: expected a new file, or a named pipe", file.display()));
    }
    let count = links.len();
    let links = if *on == Target::All { Vec::new() } else { links };
    let options = CaptureOptions { file: file.to_owned(), links, ..CaptureOptions::default() };
    let Reach { switches, ports, trunks, faults, late, .. } = reach;
    faults.start_capture(options, ports, switches, trunks, *late).map_err(|e| e.to_string())?;
    Ok(Done::changed(count))
}

fn end_capture(reach: &mut Reach<'_>) -> Result<Done, String> {
    let Some(capturing) = &reach.faults.capturing else { return Err("nothing is being captured".into()) };
    let file = capturing.file.display().to_string();
    reach.faults.stop_capture(reach.ports.now);
    Ok(Done { changed: 1, note: file })
}
