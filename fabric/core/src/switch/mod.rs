// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state machine.
//!
//! [`Switch`] takes the events and knows the connections; what a packet or the news of a node meet inside is a
//! [`Crossing`], which has the parts that these need: [`Routes`], the neighbours, the presence of nodes, and what is
//! counted.

mod audit;
mod clock;
mod joining;
mod packets;
mod presence;
pub(crate) mod restore;
mod routes;
mod state;
mod traffic;
mod trunks;

use std::hash::{Hash, Hasher};
use std::hint::black_box;

use telegraphos_topology::TrunkId;
use telegraphos_wire::link::{Frame, RESET_BITS, Refusal};
use telegraphos_wire::{Class, NodeId, Packet, WindowLayout};

use crate::config::ConfigError;
use crate::neighbour::Kind;
use crate::pairs::{Count, Pairs};
use crate::ports::PortMap;
use crate::presences::{Presence, Presences};
use crate::{Action, Attached, Diagnostic, Event, PortId, Statistics, SwitchConfig, Violation};
use clock::Clock;
use packets::Crossing;
use restore::Snapshot;
use routes::{PortIndex, Routes};
use state::{Neighbours, Port};
use traffic::Traffic;

pub use state::State;

/// The switch: [`Switch::handle`] takes events and says what to do.
///
/// # Mark cycle
///
/// A connection is unidentified until its Hello is accepted ([`Frame::Welcome`]); then it is its node's port until it
/// ends. The joiner is notified of every present node, itself included, and every other node of the joiner.
///
/// When a port ends, the packets from and to its node that are in the switch are dropped (they were never
/// acknowledged); their credits are returned. A [`Frame::NodeDown`] goes before everything else to each neighbour that
/// was notified of the node: requests that were dropped get no other answer. A request to a node that is absent when it
/// reaches its sender's switch is answered with [`Status::NodeDown`](telegraphos_wire::Status::NodeDown) in that node's
/// name; a reply to an absent node is dropped, since its request is gone with the node, and so is what another switch
/// forwarded: a NodeDown is on its way to its sender.
///
/// # Credits
///
/// Of each class but replies, `credits` = those the node holds + its packets in the switch + those owed to it. They are
/// returned as soon as the node holds no more than is owed to it. So a node without credits really has all of them in
/// packets that wait: no credit is ever stranded. Of a trunk this holds for each class, replies included, and layer.
///
/// Credits that a node returns for [`Class::Reply`] are ignored, since replies use none.
///
/// # Multicasts
///
/// A packet of [`Class::Reflected`] to [`MULTICAST`](telegraphos_wire::packet::MULTICAST) takes one credit of its
/// sender and becomes one copy for each member of the group that its sender last named for its page ([`Frame::Group`]);
/// for all members that are reached by the same trunk on the same layer together one packet, which names them. The
/// copies join the lanes of their receivers at once, so each is in order with everything else from that sender to that
/// receiver. The credit comes back when the last copy has left, or was dropped because its receiver left. An absent
/// member is answered for as above. A copy carries the incarnation of its receiver at that moment as `target`: what
/// waits in the switch while the receiver is reset is refused by the new incarnation like any packet to the old one.
/// The switch cannot compare the sender's incarnation of a member: see `docs/replication.md`.
///
/// What one node can make the switch hold is bounded: [`MAX_GROUPS`](telegraphos_wire::link::MAX_GROUPS) groups with
/// [`MAX_MEMBERSHIPS`](telegraphos_wire::link::MAX_MEMBERSHIPS) members together; for each of its credits of the class
/// one copy, or one answer, per node.
///
/// # Trunks
///
/// A switch that is [part of a topology](crate::Part) has trunks to others ([`Event::TrunkOpened`]). Packets of a node
/// follow its route; its presence (Reach, NodeDown) follows all its routes, which form a tree, behind what the node
/// sent before. When a trunk breaks, the nodes beyond it are down for everyone on this side, and the other way round;
/// since a route back is the same trunks, both ends of every pair that the trunk joined are notified. When it is joined
/// again, its *epoch* has grown, and with it the *session*, the sum of the epochs on the way, of everything beyond.
/// Like incarnations, epochs begin above those of an earlier life of the switch ([`SwitchConfig::base_incarnation`]),
/// since both ends may have forgotten the trunk. The last switch adds the session to the incarnations that it announces
/// to its nodes, in the bits above the count of resets, and to those in packets: to a node, a peer that was cut off
/// comes back like one that was restarted, and what was sent before the cut is refused like what was meant for an
/// earlier life.
///
/// Replies leave the credits of the trunk when they reach their node's switch, for the node takes them in any case
/// (SPEC I13).
#[derive(Clone, Debug)]
pub struct Switch {
    routes: Routes,
    state: State,
    traffic: Traffic,
    clock: Clock,
}

impl PartialEq for Switch {
    fn eq(&self, other: &Self) -> bool {
        self.state == other.state
    }
}

impl Eq for Switch {}

impl Hash for Switch {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.state.hash(state);
    }
}

impl Switch {
    /// A switch without any open port.
    pub fn new(config: SwitchConfig) -> Result<Switch, ConfigError> {
        #[cfg(feature = "bugs")]
        let _on = crate::bugs::turn_on(config.bug, config.credits);
        config.check()?;
        let nodes = config.nodes as usize;
        let base = config.base_incarnation & !((1 << RESET_BITS) - 1);
        #[cfg(feature = "bugs")]
        let base = crate::bugs::base(base);
        let routes = Routes::new(config);
        let ports = routes.attached().len();
        Ok(Switch {
            state: State {
                ports: PortMap::default(),
                neighbours: Neighbours::new(ports),
                presence: Presences::new(nodes, Presence { up: false, incarnation: base, session: 0, block: 0 }),
                epochs: vec![if bug!(ForgetEpochs) { 0 } else { base >> RESET_BITS }; ports - routes.nodes_here],
                adopted: None,
            },
            clock: Clock::new(ports, nodes, routes.config.presence_rate),
            traffic: Traffic::new(&routes),
            routes,
        })
    }

    pub fn config(&self) -> &SwitchConfig {
        &self.routes.config
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn statistics(&self) -> &Statistics {
        &self.traffic.statistics
    }

    /// The counters of pairs, at most [`SwitchConfig::pairs`] of them.
    pub fn pairs(&self) -> &Pairs {
        &self.traffic.pairs
    }

    /// Packets of a class have passed between two nodes of this switch by a ring, and are to be counted as if they had
    /// passed the switch.
    pub fn beside(&mut self, nodes: (NodeId, NodeId), class: Class, count: Count) {
        self.traffic.beside(&self.routes, nodes, class, count);
    }

    /// The incarnation of a reachable node, without sessions; `None` for others.
    pub fn incarnation(&self, node: NodeId) -> Option<u64> {
        self.state.presence.get(node).filter(|presence| presence.up).map(|presence| presence.incarnation)
    }

    /// The window layout in force: the configured one, or that of the present nodes.
    pub fn window(&self) -> Option<WindowLayout> {
        self.routes.window(self.state.adopted)
    }

    /// The open ports: the node or trunk, the connection, and the epoch of a trunk (0 of a node).
    pub fn open_ports(&self) -> impl Iterator<Item = (Attached, PortId, u64)> + '_ {
        let present = self.state.neighbours.present();
        present.filter_map(|(index, neighbour)| {
            let epoch = if self.routes.is_trunk(index) { self.epoch(index) } else { 0 };
            Some((self.traffic.attached(index)?, neighbour.port, epoch))
        })
    }

    /// Whether the state agrees with itself: credits are conserved, turns and lanes match, queues are within their
    /// bounds, nothing is kept that could be sent. For checks; it takes time.
    pub fn audit(&self) -> Result<(), String> {
        #[cfg(feature = "bugs")]
        let _on = crate::bugs::turn_on(self.routes.config.bug, self.routes.config.credits);
        audit::audit(&self.routes, &self.state.neighbours, &self.state.presence)
    }

    /// The switch as it is now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { state: self.state.clone(), clock: self.clock.clone() }
    }

    /// A switch that continues where another of this configuration was. Its counters begin with 0.
    ///
    /// # Errors
    /// What is wrong: the configuration, or a snapshot that no switch of it can have had.
    pub fn restore(config: SwitchConfig, snapshot: Snapshot) -> Result<Switch, String> {
        // With a deliberate bug it would contradict itself at once; here another one is to be found.
        let sound = SwitchConfig {
            #[cfg(feature = "bugs")]
            bug: None,
            ..config.clone()
        };
        let mut switch = Switch::new(sound).map_err(|e| e.to_string())?;
        snapshot.check(&switch.state, &switch.clock, &switch.routes)?;
        (switch.state, switch.clock) = (snapshot.state, snapshot.clock);
        switch.audit().map_err(|e| format!("the state contradicts itself: {e}"))?;
        switch.routes.config = config;
        Ok(switch)
    }

    // ---- a look at what packets will need, before their turn ----

    /// Reads what packets will read first, of all ports. Nothing else: a simulation of thousands of switches calls this
    /// before the events of each, so that the processor fetches the memory of all of it at the same time.
    pub fn look_ahead(&self) {
        self.state.neighbours.present().for_each(|(_, neighbour)| neighbour.look_ahead());
        for port in &self.traffic.statistics.ports {
            // Requests and replies are most packets.
            black_box((
                port.classes[Class::Request as usize].sent_packets,
                port.classes[Class::Reply as usize].sent_packets,
            ));
        }
    }

    /// The same for one packet that arrives by `port`, of a switch with so many that most have none.
    pub fn look_ahead_of(&self, port: PortId, packet: &Packet) {
        let Some(Port::Open { index }) = self.state.ports.get(port) else { return };
        let class = self.routes.class_of(packet);
        for index in [Some(*index), self.routes.index_of(packet.dst)].into_iter().flatten() {
            if let Some(neighbour) = self.state.neighbours.get(index) {
                neighbour.look_ahead();
            }
            if let Some(port) = self.traffic.statistics.ports.get(index) {
                black_box(port.classes[class as usize].sent_packets);
            }
        }
    }

    // ---- events ----

    /// Takes one event and appends the resulting actions in the order in which to perform them. Never panics.
    pub fn handle(&mut self, event: Event, out: &mut Vec<Action>) {
        #[cfg(feature = "bugs")]
        let _on = crate::bugs::turn_on(self.routes.config.bug, self.routes.config.credits);
        match event {
            Event::PortOpened { port, room, block } => {
                self.close(port, out);
                self.clock.opened(port);
                self.state.ports.insert(port, Port::Waiting { room, block });
            }
            Event::TrunkOpened { port, room, trunk } => self.greet(port, room, trunk, out),
            Event::PortRoom { port, frames } => match self.state.ports.get_mut(port) {
                Some(Port::Waiting { room, .. } | Port::Greeting { room, .. }) => *room = frames,
                Some(Port::Open { index }) => {
                    let index = *index;
                    if let Some(neighbour) = self.state.neighbours.get_mut(index) {
                        neighbour.room = frames;
                        self.traffic.touched.push(index);
                    }
                }
                None => {}
            },
            Event::Frame { port, frame } => match self.state.ports.get(port).copied() {
                Some(Port::Open { index }) => {
                    self.clock.frame_received(index);
                    let done = match self.state.neighbours.get(index).map(|neighbour| neighbour.kind) {
                        Some(Kind::Node(node)) => self.node_frame(index, node, frame, out),
                        Some(Kind::Trunk { trunk, .. }) => self.trunk_frame(index, trunk, port, frame, out),
                        None => Ok(()),
                    };
                    if let Err(what) = done {
                        self.disconnect(port, what, out);
                    }
                }
                Some(Port::Waiting { room, block }) => self.hello(port, room, block, frame, out),
                Some(Port::Greeting { room, index, epoch }) => self.greeted(port, room, index, epoch, frame, out),
                // Disconnected: frames that were still in flight are ignored.
                None => {}
            },
            Event::Malformed { port } => match self.state.ports.get(port).copied() {
                Some(Port::Waiting { .. } | Port::Greeting { .. }) => {
                    self.refuse(port, None, Refusal::Handshake, 0, 0, out);
                }
                Some(Port::Open { .. }) => self.disconnect(port, Violation::Malformed, out),
                None => {}
            },
            Event::PortClosed { port } => self.close(port, out),
            Event::Tick { now } => self.tick(now, out),
        }
        while let Some(index) = self.traffic.touched.pop() {
            self.crossing(out).serve(index);
        }
    }

    /// What packets meet inside.
    fn crossing<'a>(&'a mut self, out: &'a mut Vec<Action>) -> Crossing<'a> {
        let State { neighbours, presence, adopted, .. } = &mut self.state;
        Crossing { routes: &self.routes, neighbours, presence, traffic: &mut self.traffic, adopted, out }
    }

    /// A frame of a joined node.
    ///
    /// # Errors
    /// What it violates; the node is to be disconnected.
    fn node_frame(
        &mut self,
        index: PortIndex,
        node: NodeId,
        frame: Frame,
        out: &mut Vec<Action>,
    ) -> Result<(), Violation> {
        match frame {
            Frame::Packet(packet) => self.crossing(out).packet(index, node, packet),
            Frame::Credit { class: Class::Reply, .. } => Ok(()),
            Frame::Credit { class, count } => self.credited(index, class, 0, count, out),
            Frame::Reset { incarnation } => self.reset(index, node, incarnation, out),
            Frame::Group { page, members } => self.group(index, node, page, members),
            Frame::Probe => self.probed(index),
            Frame::Alive => Ok(()),
            Frame::Hello { .. }
            | Frame::Welcome { .. }
            | Frame::Refuse { .. }
            | Frame::NodeUp { .. }
            | Frame::NodeDown { .. }
            | Frame::Trunk { .. }
            | Frame::Reach { .. }
            | Frame::Forward { .. }
            | Frame::TrunkCredit { .. }
            // Those of rings are for the shell.
            | Frame::Ring { .. }
            | Frame::RingUse { .. }
            | Frame::RingLost { .. } => Err(Violation::Unexpected),
        }
    }

    /// A frame of a joined trunk.
    ///
    /// # Errors
    /// What it violates; the trunk is to be disconnected.
    fn trunk_frame(
        &mut self,
        index: PortIndex,
        trunk: TrunkId,
        port: PortId,
        frame: Frame,
        out: &mut Vec<Action>,
    ) -> Result<(), Violation> {
        match frame {
            Frame::Forward { layer, members, packet } => {
                self.crossing(out).forwarded(index, trunk, layer, members, packet)
            }
            Frame::TrunkCredit { class, layer, count } => self.credited(index, class, layer, count, out),
            Frame::Reach { node, incarnation, session } => {
                let session = if bug!(ForgetSession) { 0 } else { session.wrapping_add(self.epoch(index)) };
                self.crossing(out).reached(trunk, node, incarnation, session)
            }
            Frame::NodeDown { node } => self.crossing(out).lost(trunk, node),
            Frame::Probe => self.probed(index),
            Frame::Alive => Ok(()),
            Frame::Refuse { reason, offered, expected } => {
                let refused = Diagnostic::TrunkRefused { trunk, reason, offered, expected, by_peer: true };
                out.extend([Action::Diagnostic(refused), Action::Close(port)]);
                self.close(port, out);
                Ok(())
            }
            Frame::Hello { .. }
            | Frame::Welcome { .. }
            | Frame::Packet(_)
            | Frame::Credit { .. }
            | Frame::NodeUp { .. }
            | Frame::Reset { .. }
            | Frame::Group { .. }
            | Frame::Trunk { .. }
            | Frame::Ring { .. }
            | Frame::RingUse { .. }
            | Frame::RingLost { .. } => Err(Violation::Unexpected),
        }
    }

    fn credited(
        &mut self,
        index: PortIndex,
        class: Class,
        layer: u8,
        count: u32,
        out: &mut Vec<Action>,
    ) -> Result<(), Violation> {
        self.clock.served(index, class);
        self.crossing(out).credited(index, class, layer, count)
    }

    fn probed(&mut self, index: PortIndex) -> Result<(), Violation> {
        if let Some(neighbour) = self.state.neighbours.get_mut(index) {
            neighbour.answer_probe();
            self.traffic.touched.push(index);
        }
        Ok(())
    }

    // ---- time limits: neighbours that have stopped without ending their connection, credits that do not return ----

    /// Time has passed, in microseconds: applies the limits on silence and on kept credits.
    fn tick(&mut self, now: u64, out: &mut Vec<Action>) {
        let SwitchConfig { silence, stall, .. } = self.routes.config;
        self.clock.advance(now, silence, stall);
        if bug!(Patient) {
            return;
        }
        if let Some(limit) = silence {
            for (port, age) in self.clock.overdue(limit) {
                self.never_joined(port, age, limit, out);
            }
            for index in 0..self.state.neighbours.len() {
                let Some(neighbour) = self.state.neighbours.get_mut(index) else { continue };
                let silence = self.clock.silence(index);
                if silence >= limit {
                    let port = neighbour.port;
                    self.disconnect(port, Violation::Silent { silence, limit }, out);
                } else if self.clock.asks(index, limit) {
                    neighbour.ask();
                    self.traffic.touched.push(index);
                }
            }
        }
        if let Some(limit) = stall {
            for index in 0..self.state.neighbours.len() {
                let Some(neighbour) = self.state.neighbours.get(index) else { continue };
                if let Some((class, limit)) = self.clock.stalled(index, neighbour, limit) {
                    let port = neighbour.port;
                    self.disconnect(port, Violation::Stalled { class, limit }, out);
                }
            }
        }
    }

    /// A connection that has not joined is as old as it may become.
    fn never_joined(&mut self, port: PortId, age: u64, limit: u64, out: &mut Vec<Action>) {
        let Some(Port::Greeting { index, .. }) = self.state.ports.get(port).copied() else {
            return self.refuse(port, None, Refusal::Silent, age, limit, out);
        };
        self.close(port, out);
        out.push(Action::Close(port));
        if let Some(Attached::Trunk(trunk, _)) = self.traffic.attached(index) {
            let (reason, offered, expected) = (Refusal::Silent, age, limit);
            let refused = Diagnostic::TrunkRefused { trunk, reason, offered, expected, by_peer: false };
            out.push(Action::Diagnostic(refused));
        }
    }

    /// The number of a trunk, by its port index.
    fn epoch(&self, index: PortIndex) -> u64 {
        self.state.epochs.get(index - self.routes.nodes_here).copied().unwrap_or(0)
    }
}
