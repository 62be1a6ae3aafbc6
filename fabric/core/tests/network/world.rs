// SPDX-License-Identifier: MIT OR Apache-2.0
//! Switches, nodes, and the connections between them: pipes of frames that are slow, that break at any moment, and
//! whose ends see it at different times.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use telegraphos_fabric_core::{Action, Attached, Bug, Diagnostic, Event, Part, PortId, Switch, SwitchConfig};
use telegraphos_topology::{SwitchId, Topology, TrunkId};
use telegraphos_wire::link::Frame;
use telegraphos_wire::packet::MULTICAST;
use telegraphos_wire::{Class, NodeId, PROTOCOL_VERSION, STREAM_BLOCK, WindowLayout};

use super::ledger::Ledger;
use super::node::{ConnectionId, Node};
use crate::common::{Failure, class_of, fail};

pub(crate) const WINDOW: WindowLayout = WindowLayout { node_bits: 8, offset_bits: 24 };

/// How many joins of a node or trunk a life of a switch may see here.
const LIFE_OF_A_SWITCH: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Node(NodeId),
    Switch(SwitchId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aware {
    /// It has not accepted the connection yet.
    NotYet,
    Open,
    Closed,
}

#[derive(Clone, Debug)]
struct End {
    owner: Owner,
    aware: Aware,
    /// Frames that it may hand out.
    room: u32,
}

/// Frames on their way to an end.
#[derive(Clone, Debug, Default)]
struct Pipe {
    frames: VecDeque<Frame>,
    /// Nothing follows: when it is empty, the end sees that the connection has ended.
    cut: bool,
}

/// Side 0 is a node, or the switch that called; `pipes[side]` leads to that side.
#[derive(Clone, Debug)]
struct Connection {
    trunk: Option<TrunkId>,
    ends: [End; 2],
    pipes: [Pipe; 2],
}

impl Connection {
    fn whole(&self) -> bool {
        self.pipes.iter().all(|pipe| !pipe.cut)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Credits of the switches, per class (and layer).
    pub(crate) given: u32,
    /// Credits of the nodes, per class.
    pub(crate) offered: u32,
    /// Frames that a new connection takes.
    pub(crate) room: u32,
    pub(crate) silence: Option<u64>,
    pub(crate) stall: Option<u64>,
    pub(crate) bug: Option<Bug>,
    /// A check that is left out, to see what comes behind it.
    pub(crate) without: Option<&'static str>,
}

impl Settings {
    pub(crate) fn new(given: u32, offered: u32, bug: Option<Bug>) -> Settings {
        Settings { given, offered, room: 1 << 20, silence: None, stall: None, bug, without: None }
    }
}

pub(crate) struct Network {
    pub(crate) topology: Arc<Topology>,
    pub(crate) settings: Settings,
    pub(crate) switches: Vec<Switch>,
    /// How often each was started.
    starts: Vec<u32>,
    pub(crate) nodes: Vec<Node>,
    connections: BTreeMap<ConnectionId, Connection>,
    next: ConnectionId,
    pub(crate) ledger: Ledger,
    /// Also run [`Switch::audit`] after each event.
    pub(crate) audit: bool,
    /// Multicasts that crossed a trunk: connection, side, layer, tag.
    crossed: BTreeSet<(ConnectionId, usize, u8, u32)>,
    /// What the switches had to say of neighbours that they threw out; see [`Network::honest`].
    pub(crate) violations: Vec<Diagnostic>,
    /// No node or switch breaks the protocol, so none may be disconnected.
    pub(crate) honest: bool,
    /// Nodes at least do not.
    pub(crate) honest_nodes: bool,
    /// Senders of what each node got, requests only, in order.
    pub(crate) order: Vec<Vec<NodeId>>,
    /// Switches that are stopped: nothing comes out of the pipes to them, and no time passes.
    pub(crate) stopped: BTreeSet<SwitchId>,
    /// Pipes that do not move in [`Network::round`].
    pub(crate) stuck: BTreeSet<(ConnectionId, usize)>,
    /// Nodes that read nothing.
    pub(crate) deaf: BTreeSet<NodeId>,
}

impl Network {
    /// The end is not there.
    pub(crate) fn new(topology: Topology, settings: Settings) -> Network {
        let topology = Arc::new(topology);
        let nodes = topology.nodes() as usize;
        let mut network = Network {
            settings,
            switches: Vec::new(),
            starts: vec![0; topology.switches().into()],
            nodes: (0..nodes as NodeId).map(Node::new).collect(),
            connections: BTreeMap::new(),
            next: 1,
            ledger: Ledger::default(),
            audit: settings.bug.is_none(),
            crossed: BTreeSet::new(),
            violations: Vec::new(),
            honest: true,
            honest_nodes: false,
            order: vec![Vec::new(); nodes],
            stopped: BTreeSet::new(),
            stuck: BTreeSet::new(),
            deaf: BTreeSet::new(),
            topology,
        };
        network.switches = (0..network.topology.switches()).map(|switch| network.switch(switch)).collect();
        network
    }

    /// Everybody is there, and everything at rest.
    pub(crate) fn whole(topology: Topology, settings: Settings) -> Result<Network, Failure> {
        let mut network = Network::new(topology, settings);
        network.raise()?;
        network.rest()?;
        Ok(network)
    }

    fn switch(&self, switch: SwitchId) -> Switch {
        let mut config = SwitchConfig::new(self.topology.nodes());
        config.part = Some(Part { topology: Arc::clone(&self.topology), switch });
        config.window = Some(WINDOW);
        config.credits = [self.settings.given; 4];
        config.silence = self.settings.silence;
        config.stall = self.settings.stall;
        config.base_incarnation = u64::from(self.starts[usize::from(switch)]) * LIFE_OF_A_SWITCH;
        config.class_of = class_of;
        config.bug = self.settings.bug;
        Switch::new(config).unwrap()
    }

    // ---- connections ----

    fn port(id: ConnectionId, side: usize) -> PortId {
        2 * id + side as PortId
    }

    fn connect(&mut self, trunk: Option<TrunkId>, caller: Owner, called: Owner) -> ConnectionId {
        let id = self.next;
        self.next += 1;
        let end = |owner, aware| End { owner, aware, room: self.settings.room };
        let ends = [end(caller, Aware::Open), end(called, Aware::NotYet)];
        self.connections.insert(id, Connection { trunk, ends, pipes: Default::default() });
        id
    }

    pub(crate) fn join(&mut self, node: NodeId) -> Result<(), Failure> {
        if self.nodes[usize::from(node)].connection.is_some() {
            return Ok(());
        }
        let switch = self.topology.switch_of(node).unwrap();
        let id = self.connect(None, Owner::Node(node), Owner::Switch(switch));
        self.nodes[usize::from(node)].connection = Some(id);
        let credits = [self.settings.offered; 4];
        self.node_sends(node, Frame::Hello { version: PROTOCOL_VERSION, node, window: WINDOW, credits });
        Ok(())
    }

    /// Calls by the trunk's first or second switch, if there is no connection that is whole (or `anyway`).
    pub(crate) fn dial(&mut self, trunk: TrunkId, by_second: bool, anyway: bool) -> Result<(), Failure> {
        let whole = self.connections.values().any(|c| c.trunk == Some(trunk) && c.whole());
        if whole && !anyway {
            return Ok(());
        }
        let ends = self.topology.trunks()[usize::from(trunk)];
        let (caller, called) = if by_second { (ends.b, ends.a) } else { (ends.a, ends.b) };
        let id = self.connect(Some(trunk), Owner::Switch(caller), Owner::Switch(called));
        let room = self.settings.room;
        self.event(caller, Event::TrunkOpened { port: Network::port(id, 0), room, trunk })
    }

    /// Of what is in the pipes so many frames still arrive; then both ends learn of the end.
    fn cut(&mut self, id: ConnectionId, keep: [usize; 2]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        for (pipe, keep) in connection.pipes.iter_mut().zip(keep) {
            pipe.frames.truncate(keep);
            pipe.cut = true;
        }
    }

    pub(crate) fn break_trunk(&mut self, trunk: TrunkId, keep: [usize; 2]) {
        let ids: Vec<ConnectionId> =
            self.connections.iter().filter(|(_, c)| c.trunk == Some(trunk)).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.cut(id, keep));
    }

    /// This side is gone; what it handed out and is kept still arrives.
    fn abandon(&mut self, id: ConnectionId, side: usize, keep: usize) {
        self.cut(id, if side == 0 { [0, keep] } else { [keep, 0] });
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.ends[side].aware = Aware::Closed;
            if connection.ends.iter().all(|end| end.aware == Aware::Closed) {
                self.connections.remove(&id);
            }
        }
    }

    pub(crate) fn leave(&mut self, node: NodeId, keep: usize) {
        if let Some(id) = self.nodes[usize::from(node)].connection {
            self.abandon(id, 0, keep);
            self.node_gone(node);
        }
    }

    /// The switch is started again, without state.
    pub(crate) fn restart(&mut self, switch: SwitchId, keep: usize) {
        let ends: Vec<(ConnectionId, usize)> = self
            .connections
            .iter()
            .flat_map(|(id, c)| (0..2).map(move |side| (*id, side, c.ends[side].owner)))
            .filter(|(_, _, owner)| *owner == Owner::Switch(switch))
            .map(|(id, side, _)| (id, side))
            .collect();
        ends.into_iter().for_each(|(id, side)| self.abandon(id, side, keep));
        self.starts[usize::from(switch)] += 1;
        self.switches[usize::from(switch)] = self.switch(switch);
    }

    /// All pipes with anything to be done.
    pub(crate) fn busy(&self) -> Vec<(ConnectionId, usize)> {
        let sides = self.connections.iter().flat_map(|(id, c)| [(*id, 0, c), (*id, 1, c)]);
        sides
            .filter(|(_, side, c)| {
                let (pipe, aware) = (&c.pipes[*side], c.ends[*side].aware);
                aware == Aware::NotYet || aware == Aware::Open && (pipe.cut || !pipe.frames.is_empty())
            })
            .filter(
                |(_, side, c)| !matches!(c.ends[*side].owner, Owner::Switch(switch) if self.stopped.contains(&switch)),
            )
            .map(|(id, side, _)| (id, side))
            .filter(|pipe| !self.stuck.contains(pipe))
            .collect()
    }

    /// All ends at switches.
    pub(crate) fn ends(&self) -> Vec<(ConnectionId, usize)> {
        let sides = self.connections.iter().flat_map(|(id, c)| [(*id, 0, c), (*id, 1, c)]);
        sides
            .filter(|(_, side, c)| matches!(c.ends[*side].owner, Owner::Switch(_)))
            .map(|(id, side, _)| (id, side))
            .collect()
    }

    /// The pipe from a node to its switch; it leads to the switch's end of the connection.
    pub(crate) fn pipe_of(&self, node: NodeId) -> (ConnectionId, usize) {
        (self.nodes[usize::from(node)].connection.unwrap(), 1)
    }

    /// The node reads nothing from now on.
    pub(crate) fn deafen(&mut self, node: NodeId) -> Result<(), Failure> {
        self.deaf.insert(node);
        self.room(self.pipe_of(node), 0)
    }

    /// The pipes of the newest connection of a trunk.
    pub(crate) fn pipes_of(&self, trunk: TrunkId) -> [(ConnectionId, usize); 2] {
        let (id, _) = self.connections.iter().rfind(|(_, c)| c.trunk == Some(trunk)).unwrap();
        [(*id, 0), (*id, 1)]
    }

    pub(crate) fn room(&mut self, (id, side): (ConnectionId, usize), frames: u32) -> Result<(), Failure> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let end = &mut connection.ends[side];
        end.room = frames;
        match (end.owner, end.aware) {
            (Owner::Switch(switch), Aware::Open) => {
                self.event(switch, Event::PortRoom { port: Network::port(id, side), frames })
            }
            _ => Ok(()),
        }
    }

    /// The next thing that comes out of a pipe.
    pub(crate) fn deliver(&mut self, (id, side): (ConnectionId, usize)) -> Result<(), Failure> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let (trunk, end, pipe) = (connection.trunk, &mut connection.ends[side], &mut connection.pipes[side]);
        let port = Network::port(id, side);
        match (end.aware, end.owner) {
            (Aware::Closed, _) => Ok(()),
            (Aware::NotYet, Owner::Switch(switch)) => {
                end.aware = Aware::Open;
                let room = end.room;
                self.event(
                    switch,
                    match trunk {
                        Some(trunk) => Event::TrunkOpened { port, room, trunk },
                        None => Event::PortOpened { port, room, block: STREAM_BLOCK as u32 },
                    },
                )
            }
            (_, owner) => match (pipe.frames.pop_front(), owner) {
                (Some(frame), Owner::Switch(switch)) => self.event(switch, Event::Frame { port, frame }),
                // Whatever a liar has made of it.
                (Some(_), Owner::Node(_)) if !self.honest && !self.honest_nodes => Ok(()),
                (Some(frame), Owner::Node(node)) => self.received(node, frame),
                (None, _) if !pipe.cut => Ok(()),
                (None, owner) => {
                    self.abandon(id, side, usize::MAX);
                    match owner {
                        Owner::Switch(switch) => self.event(switch, Event::PortClosed { port }),
                        Owner::Node(node) => {
                            self.node_gone(node);
                            Ok(())
                        }
                    }
                }
            },
        }
    }

    pub(crate) fn node_sends(&mut self, node: NodeId, frame: Frame) {
        let id = self.nodes[usize::from(node)].connection;
        if let Some(connection) = id.and_then(|id| self.connections.get_mut(&id)) {
            if !connection.pipes[1].cut {
                connection.pipes[1].frames.push_back(frame);
            }
        }
    }

    // ---- switches ----

    /// Time has come to `now` for all switches that are not stopped.
    pub(crate) fn tick(&mut self, now: u64) -> Result<(), Failure> {
        for switch in 0..self.switches.len() as SwitchId {
            if !self.stopped.contains(&switch) {
                self.event(switch, Event::Tick { now })?;
            }
        }
        Ok(())
    }

    /// A frame arrives at a switch that no end has sent.
    pub(crate) fn inject(&mut self, (id, side): (ConnectionId, usize), frame: Frame) -> Result<(), Failure> {
        let Some(connection) = self.connections.get(&id) else { return Ok(()) };
        match (connection.ends[side].owner, connection.ends[side].aware) {
            (Owner::Switch(switch), Aware::Open) => {
                self.event(switch, Event::Frame { port: Network::port(id, side), frame })
            }
            _ => Ok(()),
        }
    }

    fn event(&mut self, switch: SwitchId, event: Event) -> Result<(), Failure> {
        let mut actions = Vec::new();
        self.switches[usize::from(switch)].handle(event, &mut actions);
        let mut closed = Vec::new();
        for action in actions {
            match action {
                Action::Send(port, frame) => self.sent(switch, port, frame)?,
                Action::Close(port) => {
                    self.abandon(port / 2, (port % 2) as usize, usize::MAX);
                    closed.push(port);
                }
                Action::Diagnostic(notice @ Diagnostic::Violation { .. }) => {
                    if self.honest {
                        return fail("honest_stay", format!("switch {switch}: {notice}"));
                    }
                    self.violations.push(notice);
                }
                Action::Diagnostic(_) => {}
            }
        }
        if self.audit {
            if let Err(e) = self.switches[usize::from(switch)].audit() {
                return fail("audit", format!("switch {switch}: {e}"));
            }
        }
        for port in closed {
            self.event(switch, Event::PortClosed { port })?;
        }
        Ok(())
    }

    fn sent(&mut self, switch: SwitchId, port: PortId, frame: Frame) -> Result<(), Failure> {
        let (id, side) = (port / 2, (port % 2) as usize);
        let connection = self.connections.get_mut(&id);
        let Some(connection) = connection.filter(|c| c.ends[side].aware == Aware::Open) else {
            return fail("closed_ports_are_silent", format!("switch {switch} sent {frame:?} to port {port}"));
        };
        let end = &mut connection.ends[side];
        assert_eq!(end.owner, Owner::Switch(switch));
        if !matches!(frame, Frame::Welcome { .. } | Frame::Refuse { .. } | Frame::Trunk { .. })
            && end.room == 0
            && self.settings.without != Some("room_respected")
        {
            return fail("room_respected", format!("switch {switch} sent {frame:?} to port {port}, which has no room"));
        }
        end.room = end.room.saturating_sub(1);
        if let Frame::Forward { layer, packet, .. } = &frame {
            if packet.dst == MULTICAST && !self.crossed.insert((id, side, *layer, packet.tag)) {
                return fail("one_packet_per_trunk", format!("{} crossed a trunk twice on layer {layer}", packet.tag));
            }
        }
        if !connection.pipes[1 - side].cut {
            connection.pipes[1 - side].frames.push_back(frame);
        }
        Ok(())
    }

    // ---- all together ----

    /// All absent nodes join, and all absent trunks.
    pub(crate) fn raise(&mut self) -> Result<(), Failure> {
        for trunk in 0..self.topology.trunks().len() as TrunkId {
            self.dial(trunk, false, false)?;
        }
        (0..self.nodes.len() as NodeId).try_for_each(|node| self.join(node))
    }

    /// Every pipe and every node does what it can, once.
    pub(crate) fn round(&mut self) -> Result<(), Failure> {
        let deaf: Vec<_> = self.deaf.iter().map(|node| self.pipe_of(*node)).collect();
        for end in self.ends() {
            if !deaf.contains(&end) {
                self.room(end, self.settings.room)?;
            }
        }
        for pipe in self.busy() {
            let frames = self.connections.get(&pipe.0).map_or(0, |c| c.pipes[pipe.1].frames.len());
            for _ in 0..=frames {
                self.deliver(pipe)?;
            }
        }
        (0..self.nodes.len() as NodeId).try_for_each(|node| self.consume(node, self.nodes[usize::from(node)].pace))
    }

    /// Until nothing moves any more.
    pub(crate) fn settle(&mut self) -> Result<(), Failure> {
        for _ in 0..10_000 {
            self.round()?;
            if self.busy().is_empty() && self.nodes.iter().all(Node::rests) {
                return Ok(());
            }
        }
        fail("comes_to_rest", "it never does")
    }

    /// Runs until nothing is in flight; then no request may be missing, and each node must know all reachable nodes.
    pub(crate) fn rest(&mut self) -> Result<(), Failure> {
        self.settle()?;
        self.check_requests()?;
        self.check_credits()?;
        self.check_presence()
    }

    fn check_requests(&self) -> Result<(), Failure> {
        for (node, open) in self.nodes.iter().enumerate().map(|(n, node)| (n, &node.open)) {
            if let Some((tag, to)) = open.first() {
                let entry = self.ledger.entry(*tag, *to);
                return fail("no_request_hangs", format!("node {node} waits for {to} for ever: {entry:x?}"));
            }
        }
        Ok(())
    }

    fn check_credits(&self) -> Result<(), Failure> {
        for node in self.nodes.iter().filter(|node| node.joined) {
            for class in telegraphos_fabric_core::CREDITED {
                let held = node.held[class as usize];
                if held * 2 < self.settings.given || held > self.settings.given {
                    let given = self.settings.given;
                    return fail("credits_conserved", format!("at rest {} holds {held} of {given}", node.id));
                }
            }
        }
        Ok(())
    }

    /// The connection that both ends of a trunk have joined.
    fn joined(&self, trunk: TrunkId) -> Result<Option<ConnectionId>, Failure> {
        let ends = self.topology.trunks()[usize::from(trunk)];
        let [a, b] = [ends.a, ends.b].map(|switch| {
            let mut ports = self.switches[usize::from(switch)].open_ports();
            ports.find(|(owner, ..)| matches!(owner, Attached::Trunk(t, _) if *t == trunk))
        });
        match (a, b) {
            (None, None) => Ok(None),
            (Some((_, a, epoch)), Some((_, b, other))) if a / 2 == b / 2 && epoch == other => Ok(Some(a / 2)),
            _ => fail("trunk_ends_agree", format!("trunk {trunk}: {a:?} and {b:?}")),
        }
    }

    pub(crate) fn trunk_up(&self, trunk: TrunkId) -> bool {
        matches!(self.joined(trunk), Ok(Some(_)))
    }

    fn check_presence(&self) -> Result<(), Failure> {
        let mut up = BTreeSet::new();
        for trunk in 0..self.topology.trunks().len() as TrunkId {
            if self.joined(trunk)?.is_some() {
                up.insert(trunk);
            }
        }
        let there: Vec<&Node> = self.nodes.iter().filter(|node| node.joined).collect();
        for node in &there {
            let expected: BTreeSet<NodeId> =
                there.iter().map(|peer| peer.id).filter(|peer| self.route_is(&up, node.id, *peer)).collect();
            let notified: BTreeSet<NodeId> = node.notified.keys().copied().collect();
            if notified != expected {
                return fail("presence_told", format!("node {} has {notified:?}: expected {expected:?}", node.id));
            }
            for (peer, incarnation) in &node.notified {
                let life = self.nodes[usize::from(*peer)].life;
                // A node is not notified of its own resets; of others the count follows the session.
                if *peer != node.id && (incarnation ^ life) & 0xfff != 0 {
                    let what = format!("node {} has {incarnation:#x} of {peer}, which is {life:#x}", node.id);
                    return fail("presence_told", what);
                }
            }
        }
        Ok(())
    }

    /// Whether all trunks between two nodes are up.
    fn route_is(&self, up: &BTreeSet<TrunkId>, from: NodeId, to: NodeId) -> bool {
        let (source, destination) = (self.topology.switch_of(from).unwrap(), self.topology.switch_of(to).unwrap());
        let mut at = source;
        while let Some(hop) = self.topology.hop(at, source, destination) {
            if !up.contains(&hop.trunk) {
                return false;
            }
            at = self.topology.other_end(hop.trunk, at);
        }
        true
    }

    /// Whatever has happened: when everything is there again, everybody reaches everybody.
    pub(crate) fn heal(&mut self) -> Result<(), Failure> {
        self.raise()?;
        self.rest()?;
        // Nodes that were refused, because their switch had not detected their end; trunks whose ends called each other
        // at once.
        self.raise()?;
        self.rest()?;
        if let Some(trunk) = (0..self.topology.trunks().len() as TrunkId).find(|trunk| !self.trunk_up(*trunk)) {
            return fail("heals", format!("trunk {trunk} is not joined"));
        }
        if let Some(node) = self.nodes.iter().find(|node| !node.joined) {
            return fail("heals", format!("node {} has not joined", node.id));
        }
        for class in [Class::Enqueue, Class::Request, Class::Reflected] {
            for shift in 0..self.nodes.len() {
                let all: Vec<_> = (0..self.nodes.len())
                    .filter_map(|n| self.send(n as NodeId, ((n + shift) % self.nodes.len()) as NodeId, class))
                    .collect();
                if all.len() < self.nodes.len() {
                    return fail("heals", format!("only {} of {} may send", all.len(), self.nodes.len()));
                }
                self.rest()?;
                if let Some(entry) = all.into_iter().map(|(tag, to)| self.ledger.entry(tag, to)).find(|e| !e.done()) {
                    return fail("heals", format!("not performed: {entry:x?}"));
                }
            }
        }
        Ok(())
    }
}
