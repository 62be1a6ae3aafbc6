// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the fabric reports of itself over its control socket: state, counters, topology, faults.

use std::collections::BTreeMap;

use telegraphos_capture::Link;
use telegraphos_fabric_core::pairs::PairStatistics;
use telegraphos_fabric_core::{Attached, ClassStatistics};
use telegraphos_service::logging;
use telegraphos_topology::SwitchId;
use telegraphos_transport::AcceptorStatistics;
use telegraphos_wire::NodeId;

use super::connection::{Connection, Role};
use super::faults::{link_name, trunk_name};
use super::{Fabric, Hosted};
use crate::control::protocol::VERSION;
use crate::control::snapshot::{
    Callers, Capture, FaultView, FaultsView, Flow, Flows, Pair, PerClass, Port, PortState, Process, Snapshot, Status,
    SwitchView, TopologyView, Totals, Traffic, TrunkEnd, TrunkView,
};
use crate::control::{FaultSpec, Target};

/// Pairs in an answer.
const HOTTEST: usize = 64;

fn classes(counted: &[ClassStatistics; 4]) -> PerClass<Flows> {
    PerClass::from_fn(|class| {
        let c = &counted[class as usize];
        let received = Flow { packets: c.received_packets, bytes: c.received_bytes, ..Flow::default() };
        let sent = Flow {
            packets: c.sent_packets,
            bytes: c.sent_bytes,
            depth: c.depth.into(),
            depth_max: c.depth_max.into(),
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
    let mut add = |sign: bool, counted: &PairStatistics| {
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
    let listed = hottest.iter().map(|pair| Pair {
        source: pair.source,
        destination: pair.destination,
        classes: PerClass::of(&pair.counted),
    });
    (listed.collect(), PerClass::from_fn(|class| rest[class as usize]))
}

impl Fabric {
    pub(super) fn status_now(&self) -> Status {
        let trunks_up = self.trunks.iter().filter(|end| self.sessions.trunk(end.switch, end.trunk).up).count();
        Status {
            protocol: VERSION,
            process: self.process(),
            nodes: self.config.nodes,
            present: self.sessions.nodes.iter().filter(|(_, session)| session.up).map(|(node, _)| *node).collect(),
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

    /// Every counter of this process.
    pub(super) fn snapshot_now(&self) -> Snapshot {
        let mut totals = Totals {
            unidentified: self.doorway.ended,
            rests: self.unpaid.rests,
            rings: self.rings.pairs.in_use() as u64,
            rings_lost: self.rings.lost,
            ..Totals::default()
        };
        let mut ports = Vec::new();
        for hosted in &self.switches {
            let counted = hosted.switch.statistics();
            totals.joined += counted.joined;
            totals.refused += counted.refused;
            totals.violations += counted.violations;
            totals.answered += counted.answered;
            for port in &counted.ports {
                let Attached::Node(node) = port.attached else { continue };
                let Some(session) = self.sessions.nodes.get(&node) else { continue };
                ports.push(Port {
                    node,
                    switch: hosted.id,
                    state: match session.up {
                        true => PortState::Up,
                        false if self.commands.crashed.contains(&node) => PortState::Crashed,
                        false => PortState::Down,
                    },
                    incarnation: hosted.switch.incarnation(node).unwrap_or(session.incarnation),
                    since_us: session.since,
                    joins: session.joins,
                    faults: self.faults_of(&link_name(node)),
                    classes: classes(&port.classes),
                });
            }
        }
        for counted in self.acceptors.iter().map(|acceptor| acceptor.statistics()) {
            let AcceptorStatistics { accepted, refused, broken, crowded, displaced, validated, .. } = counted;
            let callers = Callers { accepted, refused, broken, crowded, displaced, validated };
            totals.callers = totals.callers.plus(callers);
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

    /// All switches and trunks of the fabric.
    pub(super) fn topology_now(&self) -> TopologyView {
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
        let trunk = |t: &telegraphos_topology::Trunk| TrunkView { name: self.trunk_between(t.a, t.b), a: t.a, b: t.b };
        TopologyView {
            digest: format!("{:016x}", topology.digest()),
            switches: (0..topology.switches()).map(switch).collect(),
            trunks: topology.trunks().iter().map(trunk).collect(),
        }
    }

    /// Everything that is made to go wrong, by name.
    pub(super) fn faults_now(&self) -> FaultsView {
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

    fn process(&self) -> Process {
        Process::measure(self.started, self.listener.path().display().to_string(), self.wakeups)
    }

    fn trunk_end(&self, index: usize) -> TrunkEnd {
        let end = &self.trunks[index];
        let session = self.sessions.trunk(end.switch, end.trunk);
        let open = end.ports.iter().filter_map(|port| self.connections.get(*port as usize)?.as_ref());
        let open = open.filter(|connection| connection.role == Role::Trunk(index));
        // The newest connection that has measured one.
        let round_trip = open.clone().rev().find_map(Connection::round_trip).filter(|_| session.up);
        let transports =
            open.fold(self.sessions.ended(index), |sum, connection| sum.plus(connection.transport.statistics()));
        let counted = self.switches.get(end.switch).and_then(|hosted| {
            hosted.switch.statistics().of(Attached::Trunk(end.trunk, end.ids.1)).map(|port| port.classes)
        });
        TrunkEnd {
            name: end.name.clone(),
            switch: end.ids.0,
            peer: end.ids.1,
            transport: end.via.clone(),
            up: session.up,
            session: session.epoch,
            since_us: session.since,
            resets: session.resets,
            rtt_us: round_trip,
            retransmissions: transports.retransmitted,
            faulted: self.faults.find(&trunk_name(&end.name)).map_or(0, |link| link.counts().total()),
            faults: self.faults_of(&trunk_name(&end.name)),
            classes: counted.as_ref().map(classes).unwrap_or_default(),
        }
    }
}
