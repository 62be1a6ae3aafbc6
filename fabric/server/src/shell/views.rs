// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the fabric reports of itself over its control socket: state, counters, topology, faults.

use std::collections::BTreeMap;

use telegraphos_capture::Link;
use telegraphos_fabric_core::pairs::PairStatistics;
use telegraphos_fabric_core::{Attached, ClassStatistics};
use telegraphos_transport::AcceptorStatistics;
use telegraphos_wire::NodeId;

use super::capturing::Capturing;
use super::config::Config;
use super::connection::{Connection, Role};
use super::control::Commands;
use super::faults::Faults;
use super::names::{link_name, trunk_name};
use super::ports::Ports;
use super::sessions::Sessions;
use super::switches::Switches;
use super::trunks::Trunks;
use crate::control::snapshot::{
    Callers, Capture, FaultView, FaultsView, Flow, Flows, Pair, PerClass, Port, PortState, SwitchView, TopologyView,
    Totals, Traffic, TrunkEnd, TrunkView,
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
pub(super) fn pairs(switches: &Switches) -> (Vec<Pair>, PerClass<Traffic>) {
    let mut all = BTreeMap::new();
    let mut total = PairStatistics::default();
    for hosted in &switches.0 {
        total = total.plus(&hosted.switch.pairs().total());
        for pair in hosted.switch.pairs().hottest(HOTTEST) {
            all.insert((std::cmp::Reverse(pair.counted.total().bytes), pair.source, pair.destination), pair);
        }
    }
    let hottest: Vec<_> = all.into_values().take(HOTTEST).collect();
    let rest = hottest.iter().fold(total, |rest, pair| rest.minus(&pair.counted));
    let listed = hottest.iter().map(|pair| Pair {
        source: pair.source,
        destination: pair.destination,
        classes: PerClass::of(&pair.counted),
    });
    (listed.collect(), PerClass::of(&rest))
}

/// A capture that is being written.
pub(super) fn capture(capturing: &Capturing) -> Capture {
    let counted = capturing.recorder.statistics();
    Capture {
        file: capturing.file.display().to_string(),
        links: capturing.links.iter().map(Link::to_string).collect(),
        records: counted.records,
        lost: counted.missing + counted.after_stop,
    }
}

/// The nodes of the switches here that have ever joined, by number; what the switches count of all is added to
/// `totals`.
pub(super) fn nodes(
    switches: &Switches,
    sessions: &Sessions,
    commands: &Commands,
    faults: &Faults,
    totals: &mut Totals,
) -> Vec<Port> {
    let mut ports = Vec::new();
    for hosted in &switches.0 {
        let counted = hosted.switch.statistics();
        totals.joined += counted.joined;
        totals.refused += counted.refused;
        totals.violations += counted.violations;
        totals.answered += counted.answered;
        for port in &counted.ports {
            let Attached::Node(node) = port.attached else { continue };
            let Some(session) = sessions.nodes.get(&node) else { continue };
            ports.push(Port {
                node,
                switch: hosted.id,
                state: match session.up {
                    true => PortState::Up,
                    false if commands.crashed.contains(&node) => PortState::Crashed,
                    false => PortState::Down,
                },
                incarnation: hosted.switch.incarnation(node).unwrap_or(session.incarnation),
                since_us: session.since,
                joins: session.joins,
                faults: faults.of(&link_name(node)),
                classes: classes(&port.classes),
            });
        }
    }
    ports.sort_by_key(|port| port.node);
    ports
}

/// What became of the callers at all acceptors.
pub(super) fn callers(trunks: &Trunks) -> Callers {
    let counted = trunks.acceptors.iter().map(|acceptor| {
        let AcceptorStatistics { accepted, refused, broken, crowded, displaced, validated, .. } = acceptor.statistics();
        Callers { accepted, refused, broken, crowded, displaced, validated }
    });
    counted.fold(Callers::default(), Callers::plus)
}

/// One end of a trunk, by its index.
pub(super) fn trunk_end(
    trunks: &Trunks,
    index: usize,
    switches: &Switches,
    sessions: &Sessions,
    ports: &Ports,
    faults: &Faults,
) -> TrunkEnd {
    let end = &trunks.ends[index];
    let session = sessions.trunk(end.switch, end.trunk);
    let open = end.ports.iter().filter_map(|port| ports.get(*port));
    let open = open.filter(|connection| connection.role == Role::Trunk(index));
    // The newest connection that has measured one.
    let round_trip = open.clone().rev().find_map(Connection::round_trip).filter(|_| session.up);
    let transports = open.fold(sessions.ended(index), |sum, connection| sum.plus(connection.transport.statistics()));
    let counted = switches.0.get(end.switch).and_then(|hosted| {
        hosted.switch.statistics().of(Attached::Trunk(end.trunk, end.ids.1)).map(|port| port.classes)
    });
    let name = trunk_name(&end.name);
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
        faulted: faults.links.find(&name).map_or(0, |link| link.counts().total()),
        faults: faults.of(&name),
        classes: counted.as_ref().map(classes).unwrap_or_default(),
    }
}

/// All switches and trunks of the fabric.
pub(super) fn topology(config: &Config, switches: &Switches) -> TopologyView {
    let Some(plan) = &config.plan else {
        let nodes = (0..config.nodes as NodeId).collect();
        let switch = SwitchView { here: true, nodes, ..SwitchView::default() };
        return TopologyView { switches: vec![switch], ..TopologyView::default() };
    };
    let topology = &plan.topology;
    let switch = |switch| SwitchView {
        switch,
        name: topology.name(switch),
        here: switches.index_of(switch).is_some(),
        nodes: topology.nodes_of(switch).collect(),
    };
    let trunk = |t: &telegraphos_topology::Trunk| TrunkView { name: config.trunk_between(t.a, t.b), a: t.a, b: t.b };
    TopologyView {
        digest: format!("{:016x}", topology.digest()),
        switches: (0..topology.switches()).map(switch).collect(),
        trunks: topology.trunks().iter().map(trunk).collect(),
    }
}

/// Everything that is made to go wrong, by name.
pub(super) fn faults(faults: &Faults, trunks: &Trunks, commands: &Commands) -> FaultsView {
    let mut all: BTreeMap<Target, (FaultSpec, bool)> = BTreeMap::new();
    for link in faults.links.all() {
        let faults = FaultSpec(link.plan());
        // The names of links there are those of targets here.
        if let (false, Ok(on)) = (faults.is_none(), link.name().parse()) {
            all.entry(on).or_default().0 = faults;
        }
    }
    for node in &commands.down {
        all.entry(Target::Node(*node)).or_default().1 = true;
    }
    for end in trunks.ends.iter().filter(|end| end.down) {
        all.entry(Target::Trunk(end.name.clone())).or_default().1 = true;
    }
    FaultsView {
        faults: all.into_iter().map(|(on, (faults, down))| FaultView { on, faults, down }).collect(),
        partition: commands.partition.clone(),
        crashed: commands.crashed.iter().copied().collect(),
    }
}
