// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the fabric does when it is asked and told over its control socket.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixStream;
use std::path::Path;

use fabric_topology::SwitchId;
use log::info;
use switch_core::{Attached, ClassStatistics, PortId};
use telegraphos_capture::{CaptureOptions, Link};
use telegraphos_service::logging;
use telegraphos_transport::faults::{Direction, FaultPlan};
use telegraphos_wire::NodeId;
use telegraphos_wire::link::Frame;

use super::config::{Config, FabricError, system};
use super::connection::{Connection, Role};
use super::faults::{link_name, trunk_name};
use super::{ControlServer, Fabric, Hosted, Limits, MetricsServer};
use crate::control::protocol::VERSION;
use crate::control::snapshot::{
    Capture, FaultView, FaultsView, Flow, Flows, Pair, PerClass, Port, PortState, Process, Snapshot, Status,
    SwitchView, TopologyView, Totals, Traffic, TrunkEnd, TrunkView,
};
use crate::control::{Controlled, Done, FaultSpec, Target};

/// Pairs in an answer.
const HOTTEST: usize = 64;
/// Names in a message.
const FEW: usize = 12;

/// What commands have done that lasts.
#[derive(Debug, Default)]
pub(super) struct Commands {
    /// Nodes whose link is down.
    down: BTreeSet<NodeId>,
    crashed: BTreeSet<NodeId>,
    partition: Vec<Vec<SwitchId>>,
}

impl Commands {
    fn keeps_out(&self, node: NodeId) -> bool {
        self.down.contains(&node) || self.crashed.contains(&node)
    }
}

/// The control socket, and the endpoint that asks it.
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
    let pair = || -> Result<(UnixStream, UnixStream), rustix::io::Errno> {
        UnixStream::pair().map_err(|e| rustix::io::Errno::from_io_error(&e).unwrap_or(rustix::io::Errno::IO))
    };
    let (ours, theirs) = pair().map_err(system("create a pair of sockets"))?;
    server.adopt(theirs.into(), 0).map_err(system("watch a socket"))?;
    let metrics = MetricsServer::start(address, ours)?;
    Ok((control, Some(metrics)))
}

/// From the switch's counters.
fn classes(counted: &[ClassStatistics; 4]) -> PerClass<Flows> {
    PerClass::from_fn(|class| {
        let c = &counted[class as usize];
        let received = Flow { packets: c.received_packets, bytes: c.received_bytes, ..Flow::default() };
        let sent = Flow {
            packets: c.sent_packets,
            bytes: c.sent_bytes,
            depth: c.depth,
            depth_max: c.depth_max,
            stalls: c.stalls,
            credit_stalls: c.credit_stalls,
            dropped: c.dropped,
        };
        Flows { received, sent }
    })
}

/// The hottest pairs of all switches here, and all others together. Each switch counts what its own nodes send, so none
/// is in two.
fn pairs(switches: &[Hosted]) -> (Vec<Pair>, PerClass<Traffic>) {
    let mut all = BTreeMap::new();
    let mut rest = [Traffic::default(); 4];
    let mut add = |sign: bool, counted: &switch_core::pairs::PairStatistics| {
        for (rest, c) in rest.iter_mut().zip(&counted.classes) {
            let change = |a: u64, b: u64| if sign { a.wrapping_add(b) } else { a.wrapping_sub(b) };
            *rest = Traffic { packets: change(rest.packets, c.packets), bytes: change(rest.bytes, c.bytes) };
        }
    };
    for hosted in switches {
        add(true, &hosted.switch.pairs().total());
        for pair in hosted.switch.pairs().hottest(HOTTEST) {
            all.insert((std::cmp::Reverse(pair.counted.total().bytes), pair.source, pair.destination), pair);
        }
    }
    let hottest: Vec<_> = all.into_values().take(HOTTEST).collect();
    hottest.iter().for_each(|pair| add(false, &pair.counted));
    let told = hottest.iter().map(|pair| Pair {
        source: pair.source,
        destination: pair.destination,
        classes: PerClass::of(&pair.counted),
    });
    (told.collect(), PerClass::from_fn(|class| rest[class as usize]))
}

impl Fabric {
    /// Serves the control socket, if it is ready or something is due there.
    pub(super) fn control(&mut self, ready: bool) {
        let due = self.control.as_ref().and_then(ControlServer::deadline).is_some_and(|at| at <= self.now);
        if !ready && !due {
            return;
        }
        if let Some(mut control) = self.control.take() {
            control.ready(self.now, self);
            self.control = Some(control);
        }
    }

    /// Whether what says hello is a node that a command keeps out: then it is ended.
    pub(super) fn kept_out(&mut self, port: PortId, frame: &Frame) -> bool {
        let Frame::Hello { node, .. } = frame else { return false };
        if !self.commands.keeps_out(*node) {
            return false;
        }
        self.close(port);
        true
    }

    /// Ends a connection once its output was offered to it.
    fn close(&mut self, port: PortId) {
        if let Some(connection) = self.connection(port) {
            connection.closing = true;
        }
        self.touch(port);
    }

    fn names(&self, a: SwitchId, b: SwitchId) -> String {
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
            Some(home) => format!("node {node} is attached to {home}: tell that process"),
            None => format!("node is {node}: expected 0 to {}", self.config.nodes.saturating_sub(1)),
        })
    }

    /// Nodes and ends of trunks, by their index, that a command is about.
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
                    *name == self.names(a, b) || *name == self.names(b, a) || numbers.contains(name)
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

    fn faults_of(&self, name: &str) -> FaultSpec {
        FaultSpec(self.faults.find(name).map(|link| link.plan()).unwrap_or_default())
    }

    /// Ends the connection of a node, if it has one; it is for the caller to keep it out.
    fn end_node(&mut self, node: NodeId) {
        let ports = self.switches.iter().flat_map(|hosted| hosted.switch.open_ports());
        let port = ports.filter(|(attached, ..)| *attached == Attached::Node(node)).map(|(_, port, _)| port).next();
        if let Some(port) = port {
            self.close(port);
        }
    }

    /// What a command has changed about an end of a trunk.
    fn trunk_changed(&mut self, index: usize, was: bool) {
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

impl Controlled for Fabric {
    fn status(&mut self) -> Status {
        let trunks_up = self.trunks.iter().filter(|end| self.lives.trunk(end.switch, end.trunk).up).count();
        Status {
            protocol: VERSION,
            process: self.process(),
            nodes: self.config.nodes,
            present: self.lives.nodes.iter().filter(|(_, life)| life.up).map(|(node, _)| *node).collect(),
            switches: self.switches.iter().map(|hosted| hosted.id).collect(),
            trunks: self.trunks.len() as u32,
            trunks_up: trunks_up as u32,
            capture: self.capturing.as_ref().map(|capturing| {
                let counted = capturing.recorder.statistics();
                Capture {
                    file: capturing.file.display().to_string(),
                    links: capturing.links.iter().map(Link::to_string).collect(),
                    records: counted.records,
                    lost: counted.missing + counted.after_stop,
                }
            }),
            log: logging::filter(),
        }
    }

    fn snapshot(&mut self) -> Snapshot {
        let mut totals = Totals { unidentified: self.doorway.ended, rests: self.unpaid.rests, ..Totals::default() };
        let mut ports = Vec::new();
        for hosted in &self.switches {
            let counted = hosted.switch.statistics();
            totals.joined += counted.joined;
            totals.refused += counted.refused;
            totals.violations += counted.violations;
            totals.answered += counted.answered;
            for port in &counted.ports {
                let Attached::Node(node) = port.attached else { continue };
                let Some(life) = self.lives.nodes.get(&node) else { continue };
                ports.push(Port {
                    node,
                    switch: hosted.id,
                    state: match life.up {
                        true => PortState::Up,
                        false if self.commands.crashed.contains(&node) => PortState::Crashed,
                        false => PortState::Down,
                    },
                    incarnation: hosted.switch.incarnation(node).unwrap_or(life.incarnation),
                    since_us: life.since,
                    joins: life.joins,
                    faults: self.faults_of(&link_name(node)),
                    classes: classes(&port.classes),
                });
            }
        }
        for counted in self.acceptors.iter().map(|acceptor| acceptor.statistics()) {
            let callers = &mut totals.callers;
            callers.accepted += counted.accepted;
            callers.refused += counted.refused;
            callers.broken += counted.broken;
            callers.crowded += counted.crowded;
            callers.displaced += counted.displaced;
            callers.validated += counted.validated;
        }
        ports.sort_by_key(|port| port.node);
        let (pairs, other_pairs) = pairs(&self.switches);
        Snapshot {
            process: self.process(),
            nodes: self.config.nodes,
            totals,
            ports,
            trunks: (0..self.trunks.len()).map(|index| self.trunk_end(index)).collect(),
            pairs,
            other_pairs,
        }
    }

    fn topology(&mut self) -> TopologyView {
        let here = |switch: SwitchId| self.switches.iter().any(|hosted| hosted.id == switch);
        let Some(plan) = &self.config.plan else {
            let nodes = (0..self.config.nodes as NodeId).collect();
            let switch = SwitchView { here: true, nodes, ..SwitchView::default() };
            return TopologyView { switches: vec![switch], ..TopologyView::default() };
        };
        let topology = &plan.topology;
        let switch = |switch: SwitchId| SwitchView {
            switch,
            name: topology.name(switch),
            here: here(switch),
            nodes: topology.nodes_of(switch).collect(),
        };
        let trunk = |t: &fabric_topology::Trunk| TrunkView { name: self.names(t.a, t.b), a: t.a, b: t.b };
        TopologyView {
            digest: format!("{:016x}", topology.digest()),
            switches: (0..topology.switches()).map(switch).collect(),
            trunks: topology.trunks().iter().map(trunk).collect(),
        }
    }

    fn faults(&mut self) -> FaultsView {
        let mut all: BTreeMap<Target, (FaultSpec, bool)> = BTreeMap::new();
        for link in self.faults.all() {
            let faults = FaultSpec(link.plan());
            // The names of links there are those of targets here.
            if let (false, Ok(on)) = (faults.is_none(), link.name().parse()) {
                all.entry(on).or_default().0 = faults;
            }
        }
        for node in &self.commands.down {
            all.entry(Target::Node(*node)).or_default().1 = true;
        }
        for end in self.trunks.iter().filter(|end| end.down) {
            all.entry(Target::Trunk(end.name.clone())).or_default().1 = true;
        }
        FaultsView {
            faults: all.into_iter().map(|(on, (faults, down))| FaultView { on, faults, down }).collect(),
            partition: self.commands.partition.clone(),
            crashed: self.commands.crashed.iter().copied().collect(),
        }
    }

    fn set_faults(&mut self, on: &Target, faults: &FaultSpec) -> Result<Done, String> {
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
            let was = self.trunks[index].kept_down();
            if self.trunks[index].down == up {
                trunks.insert(self.trunks[index].trunk);
            }
            self.trunks[index].down = !up;
            self.trunk_changed(index, was);
        }
        Ok(Done::changed(changed + trunks.len()))
    }

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
            let was = self.trunks[index].kept_down();
            if self.trunks[index].cut != apart {
                cut.insert(self.trunks[index].trunk);
            }
            self.trunks[index].cut = apart;
            self.trunk_changed(index, was);
        }
        self.commands.partition = partition;
        let mut done = Done::changed(cut.len());
        if !groups.is_empty() && self.trunks.iter().all(|end| !end.cut) {
            done.note = "no trunk of this process joins two of the groups".into();
        }
        Ok(done)
    }

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

    fn capture_start(&mut self, file: &Path, on: &Target) -> Result<Done, String> {
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

    fn capture_stop(&mut self) -> Result<Done, String> {
        let Some(capturing) = &self.capturing else { return Err("nothing is being captured".into()) };
        let file = capturing.file.display().to_string();
        self.stop_capture();
        Ok(Done { changed: 1, note: file })
    }

    fn log(&mut self, filter: &str) -> Result<Done, String> {
        logging::set_filter(filter)?;
        info!("control: the log's filter is {filter} by command");
        Ok(Done::changed(1))
    }
}

impl Fabric {
    fn process(&self) -> Process {
        Process::measure(self.started, self.listener.path().display().to_string(), self.wakeups)
    }

    fn trunk_end(&self, index: usize) -> TrunkEnd {
        let end = &self.trunks[index];
        let life = self.lives.trunk(end.switch, end.trunk);
        let open = end.ports.iter().filter_map(|port| self.connections.get(*port as usize)?.as_ref());
        let open = open.filter(|connection| connection.role == Role::Trunk(index));
        // The newest that knows it is the trunk, or will be.
        let round_trip = open.clone().rev().find_map(Connection::round_trip).filter(|_| life.up);
        let transports =
            open.fold(self.lives.ended(index), |sum, connection| sum.plus(connection.transport.statistics()));
        let counted = self.switches.get(end.switch).and_then(|hosted| {
            hosted.switch.statistics().of(Attached::Trunk(end.trunk, end.ids.1)).map(|port| port.classes)
        });
        TrunkEnd {
            name: end.name.clone(),
            switch: end.ids.0,
            peer: end.ids.1,
            transport: end.via.clone(),
            up: life.up,
            session: life.epoch,
            since_us: life.since,
            resets: life.resets,
            rtt_us: round_trip,
            retransmissions: transports.retransmitted,
            faulted: self.faults.find(&trunk_name(&end.name)).map_or(0, |link| link.counts().total()),
            faults: self.faults_of(&trunk_name(&end.name)),
            classes: counted.as_ref().map(classes).unwrap_or_default(),
        }
    }
}
