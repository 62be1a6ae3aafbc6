// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cluster in virtual time: boards, switches and links, called one after the other as the agenda says.

use crate::agenda::{Agenda, Kind};
use crate::driver::Task;
use crate::layout::Segment;
use crate::node::Node;
use crate::output::Output;
use crate::pipe::Pipe;
use crate::plan::Plan;
use crate::statistics::Statistics;
use crate::trace::{Trace, Track};
use crate::units::{MICROSECOND, Time};
use crate::workload::{Fault, FaultKind, Workload, WorkloadError};
use crate::world::World;
use std::io::{self, Write};
use std::sync::Arc;
use telegraphos_device_core::Action;
use telegraphos_fabric_core::{Action as SwitchAction, Event as SwitchEvent, Part, Switch, SwitchConfig};
use telegraphos_topology::{SwitchId, Topology, TrunkId};
use telegraphos_wire::{Class, NodeId, STREAM_BLOCK};

/// Why a simulation cannot be run, or has no end.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// The workload is wrong.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A fault breaks a trunk that the topology does not have.
    #[error("trunk of fault {fault}: no trunk joins the switches {a} and {b} of {topology}")]
    NoTrunk {
        /// Which, from 1 on.
        fault: usize,
        /// The one switch.
        a: u16,
        /// The other.
        b: u16,
        /// What the topology is called.
        topology: String,
    },
    /// A switch refuses its configuration.
    #[error("the switch: {0}")]
    Switch(#[from] telegraphos_fabric_core::ConfigError),
    /// A node could not open everything it needs.
    #[error("node {node} could not be set up: not all of its imports are open. This is a bug")]
    SetUp {
        /// The node.
        node: NodeId,
    },
    /// Operations neither end nor fail.
    #[error(
        "{operations} operations neither end nor fail, {after} of virtual time after the start. This is a bug, or a fault that no timeout covers"
    )]
    Stuck {
        /// How many.
        operations: u64,
        /// When.
        after: String,
    },
}

/// A simulated cluster. [`Simulation::run`] does all of it.
#[derive(Debug)]
pub struct Simulation {
    pub(crate) plan: Plan,
    pub(crate) nodes: Vec<Node>,
    /// By node: from its board to its switch.
    pub(crate) ups: Vec<Pipe>,
    /// By switch.
    pub(crate) switches: Vec<Switch>,
    /// Of the switches: one for each node, then two for each trunk, from its lower end and from its upper end.
    pub(crate) outputs: Vec<Output>,
    pub(crate) topology: Arc<Topology>,
    pub(crate) label: String,
    /// By class: packets that had waited in the switches, and for credits, before the operations.
    waited: [(u64, u64); 4],
    pub(crate) statistics: Statistics,
    pub(crate) agenda: Agenda,
    now: Time,
    /// Events of the agenda so far.
    calls: u64,
    /// When operations began.
    pub(crate) started: Time,
    /// When the first node had issued all of its operations, and what each had completed then, by class.
    pub(crate) shares: Option<(Time, Vec<[u64; 4]>)>,
    pub(crate) faults_met: usize,
    trace: Option<Trace>,
    /// Buffer of [`Simulation::look_ahead`].
    pub(crate) ahead: Vec<(Kind, u32)>,
    actions: Vec<Action>,
    switch_actions: Vec<SwitchAction>,
}

impl Simulation {
    /// A cluster, switched off. `label` is what reports call its topology.
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
        let nodes = plan.nodes;
        let silence = plan.workload.switch.silence.map(|silence| silence / MICROSECOND);
        let config = SwitchConfig {
            window: Some(plan.window),
            credits: [plan.workload.switch.credits; 4],
            silence,
            stall: silence,
            #[cfg(feature = "bugs")]
            bug: plan.bugs.switch,
            ..SwitchConfig::new(nodes)
        };
        let alone = topology.switches() == 1;
        let part = |switch| (!alone).then(|| Part { topology: topology.clone(), switch });
        let switches =
            (0..topology.switches()).map(|id| Switch::new(SwitchConfig { part: part(id), ..config.clone() }));
        let simulation = Simulation {
            nodes: (0..nodes as NodeId).map(|id| Node::new(id, &plan)).collect(),
            ups: (0..nodes).map(|_| Pipe::default()).collect(),
            switches: switches.collect::<Result<_, _>>()?,
            outputs: (0..nodes as usize + 2 * topology.trunks().len()).map(|_| Output::default()).collect(),
            label: label.to_owned(),
            waited: [(0, 0); 4],
            statistics: Statistics::default(),
            agenda: Agenda::new(),
            now: 0,
            calls: 0,
            started: 0,
            shares: None,
            faults_met: 0,
            trace: None,
            ahead: Vec::new(),
            actions: Vec::new(),
            switch_actions: Vec::new(),
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
        Ok(simulation)
    }

    fn trunk_between(&self, a: SwitchId, b: SwitchId) -> Option<TrunkId> {
        let other = |trunk: &&TrunkId| a != b && self.topology.other_end(**trunk, a) == b;
        self.topology.trunks_of(a).iter().find(other).copied()
    }

    /// Switches everything on, and opens and joins what the workload needs.
    ///
    /// # Errors
    /// [`SimulationError::SetUp`] if a node lacks an import or a copy afterwards.
    pub fn set_up(&mut self) -> Result<(), SimulationError> {
        if let Some(interval) = self.tick_interval() {
            for switch in 0..self.switches.len() as u32 {
                self.agenda.add(self.now + interval, Kind::Switch, switch);
            }
        }
        for trunk in 0..self.topology.trunks().len() as TrunkId {
            self.join_trunk(trunk);
        }
        self.run_until_idle();
        // One after the other, so that the announcements of all nodes to all nodes are not in flight at once.
        for id in 0..self.nodes.len() {
            self.connect(id as NodeId);
            self.run_until_idle();
        }
        for id in 0..self.nodes.len() {
            self.export(id as NodeId);
        }
        self.run_until_idle();
        for id in 0..self.nodes.len() {
            self.import(id as NodeId);
        }
        self.run_until_idle();
        // First the homes, then the copies.
        for home in [true, false] {
            for id in 0..self.nodes.len() as NodeId {
                match self.plan.home(id) {
                    Some(to) if (to == id) == home => self.task(id, Task::Join { home: to }),
                    _ => {}
                }
            }
            self.run_until_idle();
        }
        match self.nodes.iter().find(|node| !node.guest.is_ready(node.id, &self.plan)) {
            Some(node) => Err(SimulationError::SetUp { node: node.id }),
            None => Ok(()),
        }
    }

    /// From now on, writes what happens to `out`, which should be buffered, as a JSON file for
    /// <https://ui.perfetto.dev> (`docs/simulator.md`). Call it after [`Simulation::set_up`], and
    /// [`Simulation::end_trace`] in the end. The report does not depend on it.
    pub fn trace(&mut self, out: Box<dyn Write + Send>) {
        let names = self.topology.trunks().iter().flat_map(|trunk| [(trunk.a, trunk.b), (trunk.b, trunk.a)]);
        let names = names.map(|(from, to)| format!("switch {from} to {to}"));
        self.trace = Some(Trace::new(out, self.now, self.plan.nodes, names));
    }

    /// Completes the trace, if there is one.
    ///
    /// # Errors
    /// The first of its writes that failed. The trace is not complete then.
    pub fn end_trace(&mut self) -> io::Result<()> {
        self.trace.take().map_or(Ok(()), Trace::end)
    }

    fn export(&mut self, id: NodeId) {
        let index = usize::from(id);
        if self.plan.needs(Segment::Data) && (self.plan.senders[index] > 0 || self.plan.needs_own_data()) {
            self.task(id, Task::Export(Segment::Data));
        }
        if self.plan.needs(Segment::Queue) && self.plan.senders[index] > 0 {
            self.task(id, Task::Export(Segment::Queue));
        }
        if self.plan.home(id).is_some() {
            self.task(id, Task::Export(Segment::Page));
        }
    }

    fn import(&mut self, id: NodeId) {
        let tasks = self.nodes[usize::from(id)].guest.imports(id, &self.plan);
        for task in tasks {
            self.task(id, task);
        }
    }

    fn task(&mut self, id: NodeId, task: Task) {
        self.with(id, |node, world| node.task(world, task));
    }

    /// Performs all operations, then runs until nothing is in progress.
    ///
    /// # Errors
    /// [`SimulationError::Stuck`] if operations neither end nor fail.
    pub fn operate(&mut self) -> Result<(), SimulationError> {
        self.start_counting();
        for id in 0..self.nodes.len() as NodeId {
            self.with(id, |node, world| node.guest.begin(world, id));
        }
        for (index, fault) in self.plan.workload.faults.iter().enumerate() {
            self.agenda.add(self.started.saturating_add(fault.at), Kind::Fault, index as u32);
        }
        let mut checked = 0;
        while let Some(call) = self.next_call() {
            self.call(call);
            if self.statistics.under_way == 0 || self.calls - checked > 100_000 {
                checked = self.calls;
                if self.statistics.under_way == 0 && self.all_have_ended() {
                    break;
                }
                if self.now - self.statistics.last_end.max(self.started) > self.patience() {
                    break;
                }
            }
        }
        if self.statistics.under_way > 0 || !self.all_have_ended() {
            let operations = self.statistics.under_way;
            let after = crate::units::show_time(self.now - self.started);
            return Err(SimulationError::Stuck { operations, after });
        }
        self.run_until_idle();
        Ok(())
    }

    /// How long no operation may end before the run counts as stuck: longer than every limit of a board and every
    /// pause.
    fn patience(&self) -> Time {
        let load = &self.plan.workload.load;
        let lasts = self.plan.workload.faults.iter().filter_map(|fault| Some(fault.at + fault.lasts?)).max();
        10 * crate::units::SECOND + 2 * load.think + 2 * self.plan.interval * u64::from(load.burst) + lasts.unwrap_or(0)
    }

    fn all_have_ended(&mut self) -> bool {
        (0..self.nodes.len()).all(|index| {
            let id = index as NodeId;
            !self.nodes[index].up || self.with(id, |node, world| node.guest.has_ended(world))
        })
    }

    fn start_counting(&mut self) {
        self.started = self.now;
        self.statistics = Statistics::default();
        self.calls = 0;
        let outputs = self.outputs.iter_mut().map(|output| &mut output.pipe);
        self.ups.iter_mut().chain(outputs).for_each(Pipe::start_counting);
        self.waited = Class::ALL.map(|class| self.waits(class)).map(|(all, credit, _)| (all, credit));
    }

    /// Calls of the agenda since the operations began, in proportion to which a run takes wall time.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Packets of a class that have waited in the switches, those of them for a credit, and the most for one output,
    /// since everything was switched on.
    fn waits(&self, class: Class) -> (u64, u64, u64) {
        let ports = self.switches.iter().flat_map(|switch| &switch.statistics().ports);
        let counted = ports.map(|port| &port.classes[class as usize]);
        counted.fold((0, 0, 0), |(all, credit, deepest), c| {
            (all + c.stalls, credit + c.credit_stalls, deepest.max(c.depth_max))
        })
    }

    /// The same, of the operations; the deepest queue is that of the set-up too.
    pub(crate) fn waits_of_operations(&self, class: Class) -> (u64, u64, u64) {
        let ((all, credit, deepest), before) = (self.waits(class), self.waited[class as usize]);
        (all - before.0, credit - before.1, deepest)
    }

    // ---- the loop ----

    fn next_call(&mut self) -> Option<(Kind, u32)> {
        let (at, kind, number) = self.agenda.next()?;
        self.now = at;
        self.calls += 1;
        self.look_ahead();
        Some((kind, number))
    }

    /// Runs until nothing is in progress: only deadlines that will not be exceeded and faults are left.
    fn run_until_idle(&mut self) {
        while self.agenda.is_busy() {
            let Some(call) = self.next_call() else { return };
            self.call(call);
        }
    }

    fn call(&mut self, (kind, number): (Kind, u32)) {
        let index = number as usize;
        // A node that hangs does nothing; its link stays open.
        if !matches!(kind, Kind::Fault | Kind::Up | Kind::Trunk | Kind::Room | Kind::Switch) {
            let until = self.nodes[index].hangs_until;
            if until > self.now {
                return self.agenda.add(until, kind, number);
            }
        }
        let id = number as NodeId;
        match kind {
            Kind::Fault => self.fault(index),
            Kind::Up | Kind::Down | Kind::Trunk => {
                let pipe = match kind {
                    Kind::Up => &mut self.ups[index],
                    Kind::Down => &mut self.outputs[index].pipe,
                    _ => &mut self.outputs[self.plan.nodes as usize + index].pipe,
                };
                let Some(frame) = pipe.receive(self.now) else { return };
                if let Some(at) = pipe.next() {
                    self.agenda.add(at.max(self.now), kind, number);
                }
                let (switch, port) = match kind {
                    Kind::Down => return self.with(id, |node, world| node.arrive(world, frame)),
                    Kind::Up => self.port_of(number),
                    // A direction ends where the opposite one starts.
                    _ => self.port_of(self.plan.nodes + (number ^ 1)),
                };
                self.switch_event(switch, SwitchEvent::Frame { port, frame });
            }
            Kind::Room => {
                let frames = self.outputs[index].room.free(self.plan.workload.switch.room);
                let (switch, port) = self.port_of(number);
                self.switch_event(switch, SwitchEvent::PortRoom { port, frames });
            }
            Kind::Step => self.with(id, |node, world| node.step(world)),
            Kind::Processor => {
                self.with(id, |node, world| node.issue(world));
                self.take_shares(index);
            }
            Kind::Driver => self.with(id, |node, world| node.interrupt(world)),
            Kind::Consumer => self.with(id, |node, world| node.consume(world)),
            Kind::Deadline => self.with(id, |node, world| node.deadline(world)),
            Kind::Link => self.reconnect(id),
            Kind::Switch => {
                let now = self.now / MICROSECOND;
                self.switch_event(number as SwitchId, SwitchEvent::Tick { now });
                if let Some(interval) = self.tick_interval() {
                    self.agenda.add(self.now + interval, kind, number);
                }
            }
        }
    }

    /// Records what each node has completed while all had more to issue.
    fn take_shares(&mut self, index: usize) {
        if self.shares.is_none() && self.nodes[index].guest.left == 0 {
            let shares = self.nodes.iter().map(|node| node.guest.completed).collect();
            self.shares = Some((self.now, shares));
        }
    }

    fn with<T>(&mut self, id: NodeId, what: impl FnOnce(&mut Node, &mut World<'_>) -> T) -> T {
        let index = usize::from(id);
        let mut world = World {
            now: self.now,
            plan: &self.plan,
            agenda: &mut self.agenda,
            statistics: &mut self.statistics,
            trace: self.trace.as_mut(),
            up: &mut self.ups[index],
            actions: std::mem::take(&mut self.actions),
        };
        let result = what(&mut self.nodes[index], &mut world);
        self.actions = world.actions;
        result
    }

    // ---- the switches ----

    fn switch_of(&self, node: NodeId) -> SwitchId {
        self.topology.switch_of(node).unwrap_or(0)
    }

    /// The switch and the port of an output. The ports of trunks are numbered behind those of nodes, alike at both
    /// ends.
    pub(crate) fn port_of(&self, output: u32) -> (SwitchId, u32) {
        let Some(direction) = output.checked_sub(self.plan.nodes) else {
            return (self.switch_of(output as NodeId), output);
        };
        let trunk = &self.topology.trunks()[direction as usize / 2];
        (if direction % 2 == 0 { trunk.a } else { trunk.b }, self.plan.nodes + direction / 2)
    }

    /// The two outputs of a trunk.
    fn outputs_of(&self, trunk: TrunkId) -> [u32; 2] {
        [0, 1].map(|end| self.plan.nodes + 2 * u32::from(trunk) + end)
    }

    fn tick_interval(&self) -> Option<Time> {
        self.plan.workload.switch.silence.map(|silence| silence / 4)
    }

    fn switch_event(&mut self, switch: SwitchId, event: SwitchEvent) {
        let mut actions = std::mem::take(&mut self.switch_actions);
        self.switches[usize::from(switch)].handle(event, &mut actions);
        let nodes = self.plan.nodes;
        let mut ended = Vec::new();
        for action in actions.drain(..) {
            match action {
                SwitchAction::Send(port, frame) => {
                    let costs = &self.plan.workload.costs;
                    let (output, wire, call) = match port.checked_sub(nodes) {
                        None => (port, (costs.link_bandwidth, costs.link_latency + costs.board), (Kind::Down, port)),
                        Some(trunk) => {
                            let from_upper = self.topology.trunks()[trunk as usize].a != switch;
                            let number = 2 * trunk + u32::from(from_upper);
                            let wire = (costs.trunk_bandwidth, costs.trunk_latency + costs.switch_crossing);
                            (nodes + number, wire, (Kind::Trunk, number))
                        }
                    };
                    let output_at = &mut self.outputs[output as usize];
                    if let Some(trace) = &mut self.trace {
                        let (kind, number) = call;
                        let track = if kind == Kind::Down { Track::Down(number) } else { Track::Trunk(number) };
                        trace.frame(track, &output_at.pipe, self.now, &frame, wire);
                    }
                    output_at.send(self.now, frame, wire, call, output, &mut self.agenda);
                }
                SwitchAction::Close(port) => ended.push(port),
                SwitchAction::Diagnostic(_) => {}
            }
        }
        self.switch_actions = actions;
        for port in ended {
            match port.checked_sub(nodes) {
                None => self.disconnect(port as NodeId),
                Some(trunk) => self.break_trunk(trunk as TrunkId),
            }
        }
    }

    /// The switch has closed a link. After the link's latency the board notices it and sends Hello again.
    fn disconnect(&mut self, id: NodeId) {
        self.statistics.disconnected += 1;
        self.cut_link(id);
        self.switch_event(self.switch_of(id), SwitchEvent::PortClosed { port: id.into() });
        self.agenda.add(self.now + self.plan.workload.costs.link_latency, Kind::Link, id.into());
    }

    fn reconnect(&mut self, id: NodeId) {
        if self.nodes[usize::from(id)].up {
            self.with(id, |node, world| node.link_down(world));
            // What the board sent before it noticed was sent over the closed link.
            self.cut_link(id);
            self.open_port(id);
            self.with(id, |node, world| node.say_hello(world));
        }
    }

    fn connect(&mut self, id: NodeId) {
        self.open_port(id);
        self.with(id, |node, world| node.start(world));
    }

    fn open_port(&mut self, id: NodeId) {
        let room = self.plan.workload.switch.room;
        self.outputs[usize::from(id)].room.open(room);
        self.switch_event(
            self.switch_of(id),
            SwitchEvent::PortOpened { port: id.into(), room, block: STREAM_BLOCK as u32 },
        );
    }

    /// Loses the packets in flight on a link.
    fn cut_link(&mut self, id: NodeId) {
        let index = usize::from(id);
        self.statistics.lost += self.ups[index].cut() + self.outputs[index].pipe.cut();
    }

    fn join_trunk(&mut self, trunk: TrunkId) {
        let room = self.plan.workload.switch.room;
        for output in self.outputs_of(trunk) {
            self.outputs[output as usize].room.open(room);
            let (switch, port) = self.port_of(output);
            self.switch_event(switch, SwitchEvent::TrunkOpened { port, room, trunk });
        }
    }

    /// Both ends are notified; packets in flight are lost.
    fn break_trunk(&mut self, trunk: TrunkId) {
        for output in self.outputs_of(trunk) {
            self.statistics.lost += self.outputs[output as usize].pipe.cut();
            let (switch, port) = self.port_of(output);
            self.switch_event(switch, SwitchEvent::PortClosed { port });
        }
    }

    // ---- faults ----

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
        let up = self.nodes[usize::from(id)].up;
        match kind {
            FaultKind::Crash if up => self.crash(id),
            FaultKind::Rejoin if !up => self.rejoin(id),
            FaultKind::Hang if up => {
                self.nodes[usize::from(id)].hangs_until = self.now.saturating_add(lasts.unwrap_or(0));
            }
            _ => {}
        }
    }

    fn crash(&mut self, id: NodeId) {
        self.cut_link(id);
        self.switch_event(self.switch_of(id), SwitchEvent::PortClosed { port: id.into() });
        self.with(id, |node, world| {
            node.guest.abort(world);
            node.up = false;
        });
        let mut next = Node::new(id, &self.plan);
        next.guest.succeed(&self.nodes[usize::from(id)].guest);
        self.nodes[usize::from(id)] = next;
    }

    fn rejoin(&mut self, id: NodeId) {
        self.connect(id);
        self.export(id);
        self.import(id);
        self.with(id, |node, world| node.guest.resume(world, id));
    }
}
