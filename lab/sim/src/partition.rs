// SPDX-License-Identifier: MIT OR Apache-2.0
//! A part of the cluster: some switches with their nodes, and everything that is called for them. All but trunks from
//! other partitions, faults, and ticks concerns one partition only.

use crate::agenda::{Agenda, CellId, Kind, Moment, code};
use crate::driver::Task;
use crate::layout::Segment;
use crate::node::Node;
use crate::output::Output;
use crate::pipe::{Arrivals, Frames, Pipe, packets};
use crate::plan::Plan;
use crate::shares::Watch;
use crate::statistics::Statistics;
use crate::trace::{Trace, Track};
use crate::units::{MICROSECOND, Time};
use crate::world::World;
use std::ops::Range;
use std::sync::Arc;
use telegraphos_device_core::Action;
use telegraphos_fabric_core::{Action as SwitchAction, Event as SwitchEvent, Switch};
use telegraphos_topology::{SwitchId, Topology, TrunkId};
use telegraphos_wire::link::Frame;
use telegraphos_wire::{NodeId, STREAM_BLOCK};

/// A frame on its way to another partition.
#[derive(Debug)]
pub(crate) struct Crossing {
    /// By that direction of a trunk.
    pub(crate) direction: u32,
    pub(crate) at: Time,
    pub(crate) frame: Frame,
}

/// See the module. Nodes, switches, outputs and directions of trunks have the same numbers as in the whole cluster.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) plan: Arc<Plan>,
    pub(crate) topology: Arc<Topology>,
    pub(crate) own: Range<SwitchId>,
    first_node: u32,
    pub(crate) nodes: Vec<Node>,
    /// By node: from its board to its switch.
    pub(crate) ups: Vec<Pipe>,
    pub(crate) switches: Vec<Switch>,
    /// By node: its cell.
    cell_of: Vec<CellId>,
    /// Of the switches: one for each node, then two for each trunk of the cluster, from its lower end and from its
    /// upper end, of which the partition uses its own.
    pub(crate) outputs: Vec<Output>,
    /// What arrives by them, at the node or at a switch of this partition.
    pub(crate) arrivals: Vec<Arrivals>,
    /// What is in flight to nodes and switches of this partition.
    pub(crate) frames: Frames,
    /// What goes to other partitions.
    pub(crate) crossings: Vec<Crossing>,
    /// Trunks that a switch has closed.
    pub(crate) closed: Vec<TrunkId>,
    /// Handshakes and refusals sent by trunks less those that have arrived here.
    pub(crate) greetings: i64,
    pub(crate) statistics: Statistics,
    pub(crate) watch: Watch,
    pub(crate) agenda: Agenda,
    pub(crate) now: Time,
    /// Calls of the agenda so far.
    pub(crate) calls: u64,
    pub(crate) trace: Option<Trace>,
    /// Buffer of [`Partition::look_ahead`].
    pub(crate) ahead: Vec<(Kind, u32)>,
    actions: Vec<Action>,
    switch_actions: Vec<SwitchAction>,
}

/// Nodes of a switch that share its cell: with more, there would be one cell around a star.
const FEW: usize = 8;

/// Whether each node of a switch is a cell of its own.
pub(crate) fn has_cells_of_nodes(topology: &Topology, switch: SwitchId) -> bool {
    topology.nodes_of(switch).nth(FEW).is_some()
}

/// Frames that open a trunk, or refuse it.
fn is_greeting(frame: &Frame) -> bool {
    matches!(frame, Frame::Trunk { .. } | Frame::Refuse { .. })
}

impl Partition {
    /// These switches, and their nodes, which follow each other. No cell concerns another before `look_ahead`.
    pub(crate) fn new(
        plan: &Arc<Plan>,
        topology: &Arc<Topology>,
        own: Range<SwitchId>,
        nodes: Range<u32>,
        switches: Vec<Switch>,
        look_ahead: Time,
    ) -> Partition {
        let count = nodes.len();
        let ends = count + 2 * topology.trunks().len();
        let mut cells = own.len();
        let mut cell_of = vec![0; count];
        for (cell, switch) in (0..).zip(own.clone()) {
            let apart = has_cells_of_nodes(topology, switch);
            for node in topology.nodes_of(switch) {
                cell_of[usize::from(node) - nodes.start as usize] = if apart { cells as CellId } else { cell };
                cells += usize::from(apart);
            }
        }
        let agenda = Agenda::new(cells, own.len(), look_ahead);
        Partition {
            plan: plan.clone(),
            topology: topology.clone(),
            own,
            first_node: nodes.start,
            nodes: nodes.map(|id| Node::new(id as NodeId, plan)).collect(),
            ups: (0..count).map(|_| Pipe::default()).collect(),
            switches,
            cell_of,
            outputs: (0..ends).map(|_| Output::default()).collect(),
            arrivals: (0..ends).map(|_| Arrivals::default()).collect(),
            frames: Frames::default(),
            crossings: Vec::new(),
            closed: Vec::new(),
            greetings: 0,
            statistics: Statistics::default(),
            watch: Watch::default(),
            agenda,
            now: 0,
            calls: 0,
            trace: None,
            ahead: Vec::new(),
            actions: Vec::new(),
            switch_actions: Vec::new(),
        }
    }

    /// The index of a node of this partition.
    pub(crate) fn index(&self, id: NodeId) -> usize {
        usize::from(id) - self.first_node as usize
    }

    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[self.index(id)]
    }

    /// Where the output with this number is, and what arrives by it.
    pub(crate) fn place(&self, output: u32) -> usize {
        match output.checked_sub(self.plan.nodes) {
            None => (output - self.first_node) as usize,
            Some(direction) => self.nodes.len() + direction as usize,
        }
    }

    pub(crate) fn has(&self, switch: SwitchId) -> bool {
        self.own.contains(&switch)
    }

    pub(crate) fn switch(&self, switch: SwitchId) -> &Switch {
        &self.switches[usize::from(switch - self.own.start)]
    }

    // ---- the loop ----

    /// Makes the next call.
    pub(crate) fn call_next(&mut self) -> Option<(Kind, u32)> {
        let (at, kind, number) = self.agenda.next()?;
        self.call_at(at, kind, number);
        Some((kind, number))
    }

    /// Makes all calls before a moment, of one cell after the other. None of a cell concerns another before then.
    pub(crate) fn run_until(&mut self, end: Time) {
        let mut last = self.now;
        self.agenda.begin(end);
        while self.agenda.next_cell() {
            while let Some((at, kind, number)) = self.agenda.next_of_cell() {
                self.look_ahead();
                self.call_at(at, kind, number);
            }
            last = last.max(self.now);
        }
        self.now = last;
    }

    fn call_at(&mut self, at: Time, kind: Kind, number: u32) {
        self.now = at;
        self.calls += 1;
        self.watch.call = (at, code(kind, number));
        self.call(kind, number);
    }

    fn call(&mut self, kind: Kind, number: u32) {
        // A node that hangs does nothing; its link stays open.
        if !matches!(kind, Kind::Fault | Kind::Up | Kind::Trunk | Kind::Room | Kind::Switch | Kind::Start) {
            let until = self.node(number as NodeId).hangs_until;
            if until > self.now {
                return match kind {
                    Kind::Link => self.call_link(number as NodeId, until),
                    _ => self.agenda.add(until, self.cell_of(number as NodeId), kind, number),
                };
            }
        }
        let id = number as NodeId;
        match kind {
            // The simulation's.
            Kind::Fault => {}
            Kind::Up | Kind::Down | Kind::Trunk => {
                let now = self.now;
                let Some((arrivals, frames)) = self.arrivals_mut(kind, number) else { return };
                let Some(frame) = arrivals.receive(now, frames) else { return };
                let next = arrivals.next();
                if kind == Kind::Down {
                    if let Some(at) = next {
                        self.agenda.add(at.max(now), self.cell_of(id), kind, number);
                    }
                    return self.with(id, |node, world| node.arrive(world, frame));
                }
                // A direction ends where the opposite one starts.
                let output = if kind == Kind::Up { number } else { self.plan.nodes + (number ^ 1) };
                let (switch, port) = self.port_of(output);
                if let Some(at) = next {
                    self.agenda.add(at.max(now), self.cell(switch), kind, number);
                }
                if kind == Kind::Up && self.ups[self.index(id)].closed {
                    self.statistics.lost += packets(&[frame]);
                    return;
                }
                if kind == Kind::Trunk && is_greeting(&frame) {
                    self.greetings -= 1;
                }
                self.switch_event(switch, SwitchEvent::Frame { port, frame });
            }
            Kind::Room => {
                let place = self.place(number);
                let frames = self.outputs[place].room.free(self.plan.workload.switch.room);
                let (switch, port) = self.port_of(number);
                self.switch_event(switch, SwitchEvent::PortRoom { port, frames });
            }
            Kind::Step => self.with(id, |node, world| node.step(world)),
            Kind::Processor => {
                self.with(id, |node, world| node.issue(world));
                if self.watch.is_on() && self.node(id).guest.left == 0 {
                    self.watch.first();
                }
            }
            Kind::Driver => self.with(id, |node, world| node.interrupt(world)),
            Kind::Consumer => self.with(id, |node, world| node.consume(world)),
            Kind::Deadline => self.with(id, |node, world| node.deadline(world)),
            Kind::Link => self.reconnect(id),
            Kind::Start => self.with(id, |node, world| node.start(world)),
            Kind::Switch => {
                let now = self.now / MICROSECOND;
                self.switch_event(number as SwitchId, SwitchEvent::Tick { now });
                if let Some(interval) = self.plan.tick_interval() {
                    self.agenda.add(self.now + interval, self.cell(number as SwitchId), kind, number);
                }
            }
        }
    }

    /// What arrives by the pipe of a call.
    fn arrivals_mut(&mut self, kind: Kind, number: u32) -> Option<(&mut Arrivals, &mut Frames)> {
        let arrivals = match kind {
            Kind::Up => {
                let index = self.index(number as NodeId);
                self.ups.get_mut(index).map(|pipe| &mut pipe.arrivals)
            }
            _ => {
                let place = self.place(if kind == Kind::Down { number } else { self.plan.nodes + number });
                self.arrivals.get_mut(place)
            }
        };
        Some((arrivals?, &mut self.frames))
    }

    pub(crate) fn with<T>(&mut self, id: NodeId, what: impl FnOnce(&mut Node, &mut World<'_>) -> T) -> T {
        let index = self.index(id);
        let mut world = World {
            now: self.now,
            cell: self.cell_of(id),
            switch: self.cell(self.switch_of(id)),
            plan: &self.plan,
            agenda: &mut self.agenda,
            statistics: &mut self.statistics,
            watch: &mut self.watch,
            trace: self.trace.as_mut(),
            up: &mut self.ups[index],
            frames: &mut self.frames,
            actions: std::mem::take(&mut self.actions),
        };
        let result = what(&mut self.nodes[index], &mut world);
        self.actions = world.actions;
        result
    }

    // ---- the switches ----

    pub(crate) fn switch_of(&self, node: NodeId) -> SwitchId {
        self.topology.switch_of(node).unwrap_or(0)
    }

    /// The cell of a switch of this partition.
    fn cell(&self, switch: SwitchId) -> CellId {
        u32::from(switch - self.own.start)
    }

    /// The cell of a node.
    fn cell_of(&self, node: NodeId) -> CellId {
        self.cell_of[self.index(node)]
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

    pub(crate) fn switch_event(&mut self, switch: SwitchId, event: SwitchEvent) {
        let mut actions = std::mem::take(&mut self.switch_actions);
        self.switches[usize::from(switch - self.own.start)].handle(event, &mut actions);
        let mut ended = Vec::new();
        for action in actions.drain(..) {
            match action {
                SwitchAction::Send(port, frame) => self.send(switch, port, frame),
                SwitchAction::Close(port) => ended.push(port),
                SwitchAction::Diagnostic(_) => {}
            }
        }
        self.switch_actions = actions;
        for port in ended {
            match port.checked_sub(self.plan.nodes) {
                None => self.disconnect(port as NodeId),
                Some(trunk) => self.closed.push(trunk as TrunkId),
            }
        }
    }

    /// A switch sends a frame by a port.
    fn send(&mut self, switch: SwitchId, port: u32, frame: Frame) {
        let costs = &self.plan.workload.costs;
        let nodes = self.plan.nodes;
        let (output, wire, to, (kind, number)) = match port.checked_sub(nodes) {
            None => (port, (costs.link_bandwidth, costs.link_latency + costs.board), switch, (Kind::Down, port)),
            Some(trunk) => {
                let ends = &self.topology.trunks()[trunk as usize];
                let from_upper = ends.a != switch;
                let number = 2 * trunk + u32::from(from_upper);
                let to = if from_upper { ends.a } else { ends.b };
                self.greetings += i64::from(is_greeting(&frame));
                (nodes + number, self.plan.trunk_wire(), to, (Kind::Trunk, number))
            }
        };
        let place = self.place(output);
        let cell = self.cell(switch);
        let output_at = &mut self.outputs[place];
        if let Some(trace) = &mut self.trace {
            let track = if kind == Kind::Down { Track::Down(number) } else { Track::Trunk(number) };
            trace.frame(track, &output_at.sender, self.now, &frame, wire);
        }
        let at = output_at.sender.send(self.now, &frame, wire);
        if let Some(at) = output_at.room.used(self.now, &output_at.sender) {
            self.agenda.add(at, cell, Kind::Room, output);
        }
        if !self.has(to) {
            self.crossings.push(Crossing { direction: number, at, frame });
        } else if self.arrivals[place].add(at, frame, &mut self.frames) {
            let cell = if kind == Kind::Down { self.cell_of(number as NodeId) } else { self.cell(to) };
            self.agenda.add(at, cell, kind, number);
        }
    }

    /// A frame from another partition.
    pub(crate) fn cross(&mut self, Crossing { direction, at, frame }: Crossing) {
        let place = self.place(self.plan.nodes + direction);
        if self.arrivals[place].add(at, frame, &mut self.frames) {
            let (switch, _) = self.port_of(self.plan.nodes + (direction ^ 1));
            self.agenda.add(at, self.cell(switch), Kind::Trunk, direction);
        }
    }

    /// Loses what is on its way to this partition by a direction of a trunk.
    pub(crate) fn cut_trunk(&mut self, direction: u32) {
        let place = self.place(self.plan.nodes + direction);
        let lost = self.arrivals[place].cut(&mut self.frames);
        self.statistics.lost += packets(&lost);
        self.greetings -= lost.iter().filter(|frame| is_greeting(frame)).count() as i64;
    }

    /// The switch has closed a link. After the link's latency the board notices it and sends Hello again.
    fn disconnect(&mut self, id: NodeId) {
        self.statistics.disconnected += 1;
        let index = self.index(id);
        // The board may be behind the switch: what was there before it will take.
        let call = code(Kind::Down, id.into());
        let down = self.arrivals[index].cut_behind(self.watch.call, call, &mut self.frames);
        self.statistics.lost += packets(&down);
        self.statistics.lost += packets(&self.ups[index].arrivals.cut(&mut self.frames));
        self.ups[index].closed = true;
        self.switch_event(self.switch_of(id), SwitchEvent::PortClosed { port: id.into() });
        self.call_link(id, self.now + self.plan.workload.costs.link_latency);
    }

    /// Calls both ends of a link that was closed.
    fn call_link(&mut self, id: NodeId, at: Time) {
        let (node, switch) = (self.cell_of(id), self.cell(self.switch_of(id)));
        if node == switch {
            self.agenda.add(at, node, Kind::Link, id.into());
        } else {
            self.agenda.add_common(at, Kind::Link, id.into());
        }
    }

    fn reconnect(&mut self, id: NodeId) {
        if self.node(id).up {
            self.with(id, |node, world| node.link_down(world));
            // What the board sent before it noticed was sent over the closed link.
            self.cut_link(id);
            self.open_port(id);
            self.with(id, |node, world| node.say_hello(world));
        }
    }

    /// A node is switched on at this moment, and its link is there.
    pub(crate) fn switch_on(&mut self, id: NodeId, at: Time) {
        self.open_port(id);
        self.agenda.add(at, self.cell_of(id), Kind::Start, id.into());
    }

    fn open_port(&mut self, id: NodeId) {
        let room = self.plan.workload.switch.room;
        let index = self.index(id);
        self.outputs[index].room.open(room);
        self.ups[index].closed = false;
        self.switch_event(
            self.switch_of(id),
            SwitchEvent::PortOpened { port: id.into(), room, block: STREAM_BLOCK as u32 },
        );
    }

    /// Loses the packets in flight on a link.
    fn cut_link(&mut self, id: NodeId) {
        let index = self.index(id);
        self.statistics.lost += packets(&self.ups[index].arrivals.cut(&mut self.frames));
        self.statistics.lost += packets(&self.arrivals[index].cut(&mut self.frames));
    }

    /// One end of a trunk is opened, from which an output sends.
    pub(crate) fn open_trunk(&mut self, output: u32, trunk: TrunkId) {
        let room = self.plan.workload.switch.room;
        let place = self.place(output);
        self.outputs[place].room.open(room);
        let (switch, port) = self.port_of(output);
        self.switch_event(switch, SwitchEvent::TrunkOpened { port, room, trunk });
    }

    // ---- tasks and faults ----

    pub(crate) fn task(&mut self, id: NodeId, task: Task) {
        self.with(id, |node, world| node.task(world, task));
    }

    pub(crate) fn export(&mut self, id: NodeId) {
        let plan = self.plan.clone();
        let senders = plan.senders[usize::from(id)] > 0;
        if plan.needs(Segment::Data) && (senders || plan.needs_own_data()) {
            self.task(id, Task::Export(Segment::Data));
        }
        if plan.needs(Segment::Queue) && senders {
            self.task(id, Task::Export(Segment::Queue));
        }
        if plan.home(id).is_some() {
            self.task(id, Task::Export(Segment::Page));
        }
    }

    pub(crate) fn import(&mut self, id: NodeId) {
        let index = self.index(id);
        let tasks = self.nodes[index].guest.imports(id, &self.plan);
        for task in tasks {
            self.task(id, task);
        }
    }

    pub(crate) fn crash(&mut self, id: NodeId) {
        self.cut_link(id);
        self.switch_event(self.switch_of(id), SwitchEvent::PortClosed { port: id.into() });
        self.with(id, |node, world| {
            node.guest.abort(world);
            node.up = false;
        });
        let mut next = Node::new(id, &self.plan);
        let index = self.index(id);
        next.guest.succeed(&self.nodes[index].guest);
        self.nodes[index] = next;
    }

    pub(crate) fn rejoin(&mut self, id: NodeId) {
        self.open_port(id);
        self.with(id, |node, world| node.start(world));
        self.export(id);
        self.import(id);
        self.with(id, |node, world| node.guest.resume(world, id));
    }

    // ---- counting ----

    pub(crate) fn start_counting(&mut self) {
        self.statistics = Statistics::default();
        self.calls = 0;
        let outputs = self.outputs.iter_mut().map(|output| &mut output.sender);
        self.ups.iter_mut().map(|pipe| &mut pipe.sender).chain(outputs).for_each(|sender| sender.start_counting());
    }

    pub(crate) fn all_have_ended(&mut self) -> bool {
        (0..self.nodes.len()).all(|index| {
            let id = self.nodes[index].id;
            !self.nodes[index].up || self.with(id, |node, world| node.guest.has_ended(world))
        })
    }

    pub(crate) fn next_moment(&mut self) -> Option<Moment> {
        self.agenda.next_moment()
    }
}
