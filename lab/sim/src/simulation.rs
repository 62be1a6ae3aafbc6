// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cluster in virtual time: boards, switches and links, called as the agendas of the partitions say.

use crate::agenda::{Kind, Moment};
use crate::driver::Task;
use crate::node::Node;
use crate::output::Output;
use crate::partition::{Partition, has_cells_of_nodes};
use crate::plan::Plan;
use crate::statistics::Statistics;
use crate::trace::Trace;
use crate::units::{MICROSECOND, Time};
use crate::workers::Workers;
use crate::workload::{Fault, FaultKind, Workload, WorkloadError};
use std::io::{self, Write};
use std::sync::Arc;
use telegraphos_fabric_core::{Event as SwitchEvent, Part, Switch, SwitchConfig};
use telegraphos_topology::{SwitchId, Topology, TrunkId};
use telegraphos_wire::{Class, NodeId};

/// Why a simulation cannot be run, or has no end.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A fault breaks a trunk that the topology does not have.
    #[error("trunk of fault {fault}: no trunk joins the switches {a} and {b} of {topology}")]
    NoTrunk {
        /// Which, from 1 on.
        fault: usize,
        a: u16,
        b: u16,
        /// What the topology is called.
        topology: String,
    },
    /// A switch refuses its configuration.
    #[error("the switch: {0}")]
    Switch(#[from] telegraphos_fabric_core::ConfigError),
    /// The threads cannot be created.
    #[error("cannot create the threads: {0}. Ask for fewer")]
    Threads(#[source] io::Error),
    /// A node could not open everything it needs.
    #[error("node {node} could not be set up: not all of its imports are open. This is a bug")]
    SetUp { node: NodeId },
    /// Operations neither end nor fail.
    #[error(
        "{operations} operations neither end nor fail, {after} of virtual time after the start. This is a bug, or a fault that no timeout covers"
    )]
    Stuck { operations: u64, after: String },
}

/// Parts of a cluster that are switched on one after the other.
const PARTS: u32 = 64;

/// A simulated cluster. [`Simulation::run`] does all of it.
#[derive(Debug)]
pub struct Simulation {
    pub(crate) plan: Arc<Plan>,
    pub(crate) topology: Arc<Topology>,
    pub(crate) label: String,
    /// In the order of their switches; one at least.
    pub(crate) partitions: Vec<Partition>,
    workers: Workers,
    /// No cell concerns another sooner.
    look_ahead: Time,
    /// By class: packets that had waited in the switches, and for credits, before the operations.
    waited: [(u64, u64); 4],
    /// When operations began.
    pub(crate) started: Time,
    /// By node: what it had completed, by class, when the first node had issued all of its operations.
    pub(crate) shares: Option<Vec<[u64; 4]>>,
    pub(crate) faults_met: usize,
    /// The partition that has the trace, if there is one.
    traced: Option<usize>,
}

impl Simulation {
    /// A cluster, switched off, for one thread. `label` is what reports call its topology.
    pub fn new(
        workload: Workload,
        topology: Arc<Topology>,
        label: &str,
        seed: u64,
    ) -> Result<Simulation, SimulationError> {
        let plan = Plan::new(workload, topology.nodes(), seed)?;
        Simulation::of(plan, topology, label)
    }

    /// The same, with deliberate bugs that checks must find.
    #[cfg(feature = "bugs")]
    pub fn with_bugs(
        workload: Workload,
        topology: Arc<Topology>,
        label: &str,
        seed: u64,
        bugs: crate::Bugs,
    ) -> Result<Simulation, SimulationError> {
        let mut plan = Plan::new(workload, topology.nodes(), seed)?;
        plan.bugs = bugs;
        Simulation::of(plan, topology, label)
    }

    fn of(plan: Plan, topology: Arc<Topology>, label: &str) -> Result<Simulation, SimulationError> {
        let plan = Arc::new(plan);
        let mut simulation = Simulation {
            partitions: Vec::new(),
            workers: Workers::default(),
            label: label.to_owned(),
            look_ahead: 0,
            waited: [(0, 0); 4],
            started: 0,
            shares: None,
            faults_met: 0,
            traced: None,
            topology,
            plan,
        };
        for (index, fault) in simulation.plan.workload.faults.iter().enumerate() {
            match fault.trunk {
                Some([a, b]) if simulation.trunk_between(a, b).is_none() => {
                    return Err(SimulationError::NoTrunk { fault: index + 1, a, b, topology: label.to_owned() });
                }
                _ => {}
            }
        }
        simulation.divide(1)?;
        Ok(simulation)
    }

    /// Runs in up to so many threads, at least one, and gives the same report. It is for a cluster that was not set up:
    /// another is begun anew. A partition has switches with consecutive numbers, so a fabric of one switch has one
    /// thread, and so has one whose nodes are not in the order of its switches.
    ///
    /// # Errors
    /// As [`Simulation::new`], or the threads cannot be created.
    pub fn threads(mut self, threads: usize) -> Result<Simulation, SimulationError> {
        self.divide(threads)?;
        Ok(self)
    }

    /// Threads run at the same time whenever they can, also where it takes longer.
    #[cfg(feature = "bugs")]
    pub fn eagerly(mut self) -> Simulation {
        self.workers.be_eager();
        self
    }

    /// Divides the cluster into partitions of about equally many nodes and switches.
    fn divide(&mut self, threads: usize) -> Result<(), SimulationError> {
        let topology = &self.topology;
        let count = usize::from(topology.switches());
        let nodes_of: Vec<u32> =
            (0..topology.switches()).map(|switch| topology.nodes_of(switch).count() as u32).collect();
        let ids = || (0..self.plan.nodes as NodeId).map(|node| topology.switch_of(node));
        let in_order = ids().zip(ids().skip(1)).all(|(switch, next)| switch <= next);
        let parts = if in_order { threads.clamp(1, count) as u64 } else { 1 };
        let total = u64::from(self.plan.nodes) + count as u64;
        self.look_ahead =
            self.plan.look_ahead((0..topology.switches()).any(|switch| has_cells_of_nodes(topology, switch)));
        let mut partitions = Vec::new();
        let (mut first, mut first_node, mut node, mut weight) = (0, 0, 0, 0);
        for (switch, nodes) in (0..topology.switches()).zip(&nodes_of) {
            node += nodes;
            weight += u64::from(*nodes) + 1;
            let next = switch + 1;
            if next < topology.switches() && weight * parts < total * (partitions.len() as u64 + 1) {
                continue;
            }
            let switches = (first..next).map(|id| self.new_switch(id)).collect::<Result<_, _>>()?;
            let (own, nodes) = (first..next, first_node..node);
            let partition = Partition::new(&self.plan, topology, own, nodes, switches, self.look_ahead);
            partitions.push(partition);
            (first, first_node) = (next, node);
        }
        self.workers = Workers::new(partitions.len() - 1).map_err(SimulationError::Threads)?;
        self.partitions = partitions;
        Ok(())
    }

    fn new_switch(&self, switch: SwitchId) -> Result<Switch, telegraphos_fabric_core::ConfigError> {
        let plan = &self.plan;
        let silence = plan.workload.switch.silence.map(|silence| silence / MICROSECOND);
        let alone = self.topology.switches() == 1;
        Switch::new(SwitchConfig {
            window: Some(plan.window),
            credits: [plan.workload.switch.credits; 4],
            silence,
            stall: silence,
            part: (!alone).then(|| Part { topology: self.topology.clone(), switch }),
            #[cfg(feature = "bugs")]
            bug: plan.bugs.switch,
            ..SwitchConfig::new(plan.nodes)
        })
    }

    fn trunk_between(&self, a: SwitchId, b: SwitchId) -> Option<TrunkId> {
        let other = |trunk: &&TrunkId| a != b && self.topology.other_end(**trunk, a) == b;
        self.topology.trunks_of(a).iter().find(other).copied()
    }

    // ---- partitions ----

    /// The index of a switch's partition.
    fn partition_of(&self, switch: SwitchId) -> usize {
        self.partitions.iter().position(|partition| partition.own.contains(&switch)).unwrap_or(0)
    }

    /// Something happens to a node, after everything that has happened so far.
    fn at_node<T>(&mut self, id: NodeId, what: impl FnOnce(&mut Partition) -> T) -> T {
        let index = self.partition_of(self.topology.switch_of(id).unwrap_or(0));
        self.at(index, what)
    }

    /// The same in a partition.
    fn at<T>(&mut self, index: usize, what: impl FnOnce(&mut Partition) -> T) -> T {
        let now = self.now();
        let partition = &mut self.partitions[index];
        partition.now = now;
        let result = what(partition);
        self.settle(index);
        result
    }

    /// The moment of the last call.
    fn now(&self) -> Time {
        self.partitions.iter().map(|partition| partition.now).max().unwrap_or(0)
    }

    /// Passes on what a partition has for others.
    fn settle(&mut self, index: usize) {
        if !self.partitions[index].crossings.is_empty() {
            for crossing in std::mem::take(&mut self.partitions[index].crossings) {
                // A direction ends where the opposite one starts.
                let (switch, _) = self.partitions[index].port_of(self.plan.nodes + (crossing.direction ^ 1));
                let to = self.partition_of(switch);
                self.partitions[to].cross(crossing);
            }
        }
        while let Some(trunk) = self.partitions[index].closed.pop() {
            self.break_trunk(trunk);
        }
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.partitions.iter().flat_map(|partition| &partition.nodes)
    }

    pub(crate) fn switches(&self) -> impl Iterator<Item = &Switch> {
        self.partitions.iter().flat_map(|partition| &partition.switches)
    }

    /// Packets that have crossed links and trunks: each as often as it made a hop.
    pub(crate) fn hops(&self) -> u64 {
        let of = |partition: &Partition| -> u64 {
            let ups = partition.ups.iter().map(|pipe| pipe.sender.packets);
            ups.chain(partition.outputs.iter().map(|output| output.sender.packets)).sum()
        };
        self.partitions.iter().map(of).sum()
    }

    /// The output of a direction of a trunk, which begins at this switch.
    pub(crate) fn output(&self, from: SwitchId, direction: u32) -> &Output {
        let partition = &self.partitions[self.partition_of(from)];
        &partition.outputs[partition.place(self.plan.nodes + direction)]
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        let partition = &self.partitions[self.partition_of(self.topology.switch_of(id).unwrap_or(0))];
        &partition.nodes[partition.index(id)]
    }

    /// What all partitions have counted.
    pub(crate) fn statistics(&self) -> Statistics {
        let mut all = Statistics::default();
        self.partitions.iter().for_each(|partition| all.add(&partition.statistics));
        all
    }

    // ---- what is done ----

    /// Switches everything on, and opens and joins what the workload needs.
    ///
    /// # Errors
    /// [`SimulationError::SetUp`] if a node lacks an import or a copy afterwards.
    pub fn set_up(&mut self) -> Result<(), SimulationError> {
        let nodes = self.plan.nodes as NodeId;
        if let Some(interval) = self.plan.tick_interval() {
            for partition in &mut self.partitions {
                for (cell, switch) in (0..).zip(partition.own.clone()) {
                    partition.agenda.add(interval, cell, Kind::Switch, switch.into());
                }
            }
        }
        for trunk in 0..self.topology.trunks().len() as TrunkId {
            self.join_trunk(trunk);
        }
        self.run_until_idle();
        // A part of them after the other, so that the announcements of all nodes to all nodes are not in flight at
        // once; those of a part one shortly after the other, so that a switch has those of many at hand together.
        let part = self.plan.nodes.div_ceil(PARTS);
        let pause = self.look_ahead / Time::from(PARTS);
        for first in (0..self.plan.nodes).step_by(part as usize) {
            let now = self.now();
            for (place, id) in (0..).zip(first..self.plan.nodes.min(first + part)) {
                self.at_node(id as NodeId, |partition| partition.switch_on(id as NodeId, now + place * pause));
            }
            self.run_until_idle();
        }
        (0..nodes).for_each(|id| self.at_node(id, |partition| partition.export(id)));
        self.run_until_idle();
        (0..nodes).for_each(|id| self.at_node(id, |partition| partition.import(id)));
        self.run_until_idle();
        // First the homes, then the copies.
        for home in [true, false] {
            for id in 0..nodes {
                match self.plan.home(id) {
                    Some(to) if (to == id) == home => {
                        self.at_node(id, |partition| partition.task(id, Task::Join { home: to }));
                    }
                    _ => {}
                }
            }
            self.run_until_idle();
        }
        match self.nodes().find(|node| !node.guest.is_ready(node.id, &self.plan)) {
            Some(node) => Err(SimulationError::SetUp { node: node.id }),
            None => Ok(()),
        }
    }

    /// From now on, writes what happens to `out`, which should be buffered, as a JSON file for
    /// <https://ui.perfetto.dev> (`docs/simulator.md`), in one thread. Call it after [`Simulation::set_up`], and
    /// [`Simulation::end_trace`] in the end. The report does not depend on it.
    pub fn trace(&mut self, out: Box<dyn Write + Send>) {
        let names = self.topology.trunks().iter().flat_map(|trunk| [(trunk.a, trunk.b), (trunk.b, trunk.a)]);
        let names = names.map(|(from, to)| format!("switch {from} to {to}"));
        self.partitions[0].trace = Some(Trace::new(out, self.now(), self.plan.nodes, names));
        self.traced = Some(0);
    }

    /// Completes the trace, if there is one.
    ///
    /// # Errors
    /// The first of its writes that failed. The trace is not complete then.
    pub fn end_trace(&mut self) -> io::Result<()> {
        let trace = self.traced.take().and_then(|index| self.partitions[index].trace.take());
        trace.map_or(Ok(()), Trace::end)
    }

    /// Performs all operations, then runs until nothing is in progress.
    ///
    /// # Errors
    /// [`SimulationError::Stuck`] if operations neither end nor fail.
    pub fn operate(&mut self) -> Result<(), SimulationError> {
        self.start_counting();
        for id in 0..self.plan.nodes as NodeId {
            self.at_node(id, |partition| partition.with(id, |node, world| node.guest.begin(world, id)));
        }
        for (index, fault) in self.plan.workload.faults.iter().enumerate() {
            let at = self.started.saturating_add(fault.at);
            self.partitions[0].agenda.add(at, 0, Kind::Fault, index as u32);
        }
        let mut checked = 0;
        let mut under_way = self.under_way();
        while self.advance() {
            under_way = self.under_way();
            let calls = self.calls();
            if under_way == 0 || calls - checked > 100_000 {
                checked = calls;
                if under_way == 0 && self.all_have_ended() {
                    break;
                }
                let ended = self.partitions.iter().map(|partition| partition.statistics.last_end).max();
                if self.now() - ended.unwrap_or(0).max(self.started) > self.patience() {
                    break;
                }
            }
        }
        if under_way > 0 || !self.all_have_ended() {
            let after = crate::units::show_time(self.now() - self.started);
            return Err(SimulationError::Stuck { operations: under_way, after });
        }
        self.run_until_idle();
        Ok(())
    }

    /// Operations under way.
    fn under_way(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.statistics.under_way).sum()
    }

    /// How long no operation may end before the run counts as stuck: longer than every limit of a board and every
    /// pause.
    fn patience(&self) -> Time {
        let load = &self.plan.workload.load;
        let lasts = self.plan.workload.faults.iter().filter_map(|fault| Some(fault.at + fault.lasts?)).max();
        10 * crate::units::SECOND + 2 * load.think + 2 * self.plan.interval * u64::from(load.burst) + lasts.unwrap_or(0)
    }

    fn all_have_ended(&mut self) -> bool {
        let now = self.now();
        self.partitions.iter_mut().all(|partition| {
            partition.now = now;
            partition.all_have_ended()
        })
    }

    fn start_counting(&mut self) {
        self.started = self.now();
        for partition in &mut self.partitions {
            partition.now = self.started;
            partition.start_counting();
            partition.watch.turn(true);
        }
        self.waited = Class::ALL.map(|class| self.waits(class)).map(|(all, credit, _)| (all, credit));
    }

    /// Calls of the agenda since the operations began, in proportion to which a run takes wall time.
    pub fn calls(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.calls).sum()
    }

    /// Packets of a class that have waited in the switches, those of them for a credit, and the most for one output,
    /// since everything was switched on.
    fn waits(&self, class: Class) -> (u64, u64, u64) {
        let ports = self.switches().flat_map(|switch| &switch.statistics().ports);
        let counted = ports.map(|port| &port.classes[class as usize]);
        counted.fold((0, 0, 0), |(all, credit, deepest), c| {
            (all + c.stalls, credit + c.credit_stalls, deepest.max(c.depth_max.into()))
        })
    }

    /// The same, of the operations; the deepest queue is that of the set-up too.
    pub(crate) fn waits_of_operations(&self, class: Class) -> (u64, u64, u64) {
        let ((all, credit, deepest), before) = (self.waits(class), self.waited[class as usize]);
        (all - before.0, credit - before.1, deepest)
    }

    // ---- the loop ----

    /// Runs until nothing is in progress: only deadlines that will not be exceeded and faults are left.
    fn run_until_idle(&mut self) {
        while self.partitions.iter().any(|partition| partition.agenda.is_busy()) && self.advance() {}
    }

    /// Makes the calls of a window, or the next call; false if there is none.
    fn advance(&mut self) -> bool {
        if let Some(end) = self.window() {
            self.run_all_until(end);
            return true;
        }
        let next = self.partitions.iter_mut().enumerate();
        let Some((_, index)) = next.filter_map(|(index, p)| Some((p.next_moment()?, index))).min() else {
            return false;
        };
        self.call_next(index)
    }

    fn call_next(&mut self, index: usize) -> bool {
        if let Some(traced) = self.traced.filter(|traced| *traced != index) {
            self.partitions[index].trace = self.partitions[traced].trace.take();
            self.traced = Some(index);
        }
        let partition = &mut self.partitions[index];
        let Some((kind, number)) = partition.call_next() else { return false };
        let found = partition.watch.has_found();
        if kind == Kind::Fault {
            self.fault(number as usize);
        }
        self.settle(index);
        if found {
            self.take_shares();
        }
        true
    }

    /// Up to which moment, exclusively, cells do not concern each other: nothing that one sends to another arrives
    /// earlier, and all is done by then that does not concern one cell only.
    fn window(&self) -> Option<Time> {
        let greetings: i64 = self.partitions.iter().map(|partition| partition.greetings).sum();
        // A trunk's handshake may close the trunk, at both ends at once. A trace is in the order of moments.
        if greetings != 0 || self.traced.is_some() {
            return None;
        }
        let first = self.partitions.iter().filter_map(|partition| partition.agenda.earliest()).min()?;
        let idle = self.partitions.iter().filter_map(|partition| partition.agenda.next_idle()).min();
        let end = first.saturating_add(self.look_ahead).min(idle.unwrap_or(Time::MAX));
        (end > first).then_some(end)
    }

    fn run_all_until(&mut self, end: Time) {
        let watched = self.partitions[0].watch.is_on();
        self.partitions.iter_mut().for_each(|partition| partition.watch.keep(true));
        let work: usize = self.partitions.iter().map(|partition| partition.agenda.work()).sum();
        if self.partitions.len() > 1 && work >= self.workers.worth() {
            self.workers.run_until(&mut self.partitions, end);
        } else {
            self.partitions.iter_mut().for_each(|partition| partition.run_until(end));
        }
        (0..self.partitions.len()).for_each(|index| self.settle(index));
        if watched {
            self.take_shares();
        }
        self.partitions.iter_mut().for_each(|partition| partition.watch.keep(false));
    }

    /// Records what each node has completed while all had more to issue, if that moment has come.
    fn take_shares(&mut self) {
        let found: Vec<_> = self.partitions.iter_mut().map(|partition| partition.watch.take()).collect();
        let Some(moment) = found.iter().filter_map(|(moment, _)| *moment).min() else { return };
        let mut shares: Vec<[u64; 4]> = self.nodes().map(|node| node.guest.completed).collect();
        let later = |(at, ..): &&(Moment, NodeId, u8)| *at > moment;
        for (_, node, class) in found.iter().flat_map(|(_, completions)| completions).filter(later) {
            shares[usize::from(*node)][usize::from(*class)] -= 1;
        }
        self.shares = Some(shares);
        self.partitions.iter_mut().for_each(|partition| partition.watch.turn(false));
    }

    // ---- trunks and faults ----

    /// The two outputs of a trunk, and the partitions that they are in.
    fn ends_of(&self, trunk: TrunkId) -> [(u32, usize); 2] {
        let ends = self.topology.trunks()[usize::from(trunk)];
        let output = self.plan.nodes + 2 * u32::from(trunk);
        [(output, self.partition_of(ends.a)), (output + 1, self.partition_of(ends.b))]
    }

    fn join_trunk(&mut self, trunk: TrunkId) {
        for (output, index) in self.ends_of(trunk) {
            self.at(index, |partition| partition.open_trunk(output, trunk));
        }
    }

    /// Both ends are notified; packets in flight are lost.
    fn break_trunk(&mut self, trunk: TrunkId) {
        let ends = self.ends_of(trunk);
        for (place, (output, index)) in ends.into_iter().enumerate() {
            // What this end has sent arrives at the other.
            self.partitions[ends[1 - place].1].cut_trunk(output - self.plan.nodes);
            self.at(index, |partition| {
                let (switch, port) = partition.port_of(output);
                partition.switch_event(switch, SwitchEvent::PortClosed { port });
            });
        }
    }

    fn fault(&mut self, index: usize) {
        self.faults_met += 1;
        let Fault { kind, node, trunk, lasts, .. } = self.plan.workload.faults[index];
        if let Some(trunk) = trunk.and_then(|[a, b]| self.trunk_between(a, b)) {
            return match kind {
                FaultKind::TrunkDown => self.break_trunk(trunk),
                _ => self.join_trunk(trunk),
            };
        }
        let Some(id) = node else { return };
        let up = self.node(id).up;
        self.at_node(id, |partition| match kind {
            FaultKind::Crash if up => partition.crash(id),
            FaultKind::Rejoin if !up => partition.rejoin(id),
            FaultKind::Hang if up => {
                let index = partition.index(id);
                partition.nodes[index].hangs_until = partition.now.saturating_add(lasts.unwrap_or(0));
            }
            _ => {}
        });
    }
}
