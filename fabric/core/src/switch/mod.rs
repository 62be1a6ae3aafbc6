// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state machine.

mod ahead;
mod audit;
mod clock;
mod joining;
mod packets;
mod presence;
pub(crate) mod restore;
mod time;
mod trunks;

use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use telegraphos_topology::{Hop, SwitchId, TrunkId};
use telegraphos_wire::link::{Frame, RESET_BITS, Refusal};
use telegraphos_wire::{Class, NodeId, WindowLayout};

use crate::config::{ConfigError, Part};
use crate::neighbour::{Kind, Neighbour};
use crate::pairs::Pairs;
use crate::ports::PortMap;
use crate::presences::{Presence, Presences};
use crate::statistics::ClassStatistics;
use crate::{Action, Attached, Diagnostic, Event, PortId, PortStatistics, Statistics, SwitchConfig, Violation};
use clock::Clock;

/// Index of a neighbour: first the nodes of this switch, then its trunks.
type PortIndex = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Port {
    /// No Hello yet.
    Waiting { room: u32, block: u32 },
    /// A trunk in its handshake: the opening frame, with this epoch, is sent; that of the other end is pending.
    Greeting {
        room: u32,
        #[serde(rename = "place")]
        index: PortIndex,
        epoch: u64,
    },
    /// A node's, or a trunk's.
    Open {
        #[serde(rename = "place")]
        index: PortIndex,
    },
}

/// The protocol state: what models hash and compare. Statistics, limits and time are not in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct State {
    ports: PortMap<Port>,
    neighbours: Vec<Option<Neighbour>>,
    /// By node id, of the whole fabric.
    presence: Presences,
    /// By trunk of this switch: its number, which grows whenever it is joined.
    epochs: Vec<u64>,
    /// The layout adopted from the first joiner, where none is configured.
    #[serde(with = "crate::snapshot::window")]
    adopted: Option<WindowLayout>,
}

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
/// A switch that is [part of a topology](Part) has trunks to others ([`Event::TrunkOpened`]). Packets of a node follow
/// its route; its presence (Reach, NodeDown) follows all its routes, which form a tree, behind what the node sent
/// before. When a trunk breaks, the nodes beyond it are down for everyone on this side, and the other way round; since
/// a route back is the same trunks, both ends of every pair that the trunk joined are notified. When it is joined
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
    config: SwitchConfig,
    /// The nodes of this switch in ascending order, by index.
    here: SmallVec<[NodeId; 4]>,
    /// This switch's trunks, in the order of their indices, and the switches that they lead to.
    trunks: SmallVec<[(TrunkId, SwitchId); 4]>,
    /// Nodes of this switch: the first trunk's index.
    nodes_here: usize,
    state: State,
    statistics: Statistics,
    pairs: Pairs,
    clock: Clock,
    /// Outputs that may have something to send; empty between events.
    touched: Vec<PortIndex>,
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
        let (here, trunks): (SmallVec<_>, SmallVec<[_; 4]>) = match &config.part {
            None => ((0..config.nodes as NodeId).collect(), SmallVec::new()),
            Some(Part { topology, switch }) => {
                let trunks = topology.trunks_of(*switch).iter();
                let trunks = trunks.map(|trunk| (*trunk, topology.other_end(*trunk, *switch)));
                (topology.nodes_of(*switch).collect(), trunks.collect())
            }
        };
        let mut ports = Vec::with_capacity(here.len() + trunks.len());
        ports.extend(here.iter().copied().map(Attached::Node));
        ports.extend(trunks.iter().map(|(trunk, to)| Attached::Trunk(*trunk, *to)));
        let base = config.base_incarnation & !((1 << RESET_BITS) - 1);
        #[cfg(feature = "bugs")]
        let base = crate::bugs::base(base);
        Ok(Switch {
            state: State {
                ports: PortMap::default(),
                neighbours: vec![None; ports.len()],
                presence: Presences::new(nodes, Presence { up: false, incarnation: base, session: 0, block: 0 }),
                epochs: vec![if bug!(ForgetEpochs) { 0 } else { base >> RESET_BITS }; trunks.len()],
                adopted: None,
            },
            clock: Clock::new(ports.len(), nodes, config.presence_rate),
            pairs: Pairs::new(config.pairs),
            statistics: Statistics {
                ports: ports
                    .into_iter()
                    .map(|attached| PortStatistics { attached, classes: [ClassStatistics::default(); 4] })
                    .collect(),
                ..Statistics::default()
            },
            nodes_here: here.len(),
            here,
            trunks,
            config,
            touched: Vec::new(),
        })
    }

    pub fn config(&self) -> &SwitchConfig {
        &self.config
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// The counters of pairs, at most [`SwitchConfig::pairs`] of them.
    pub fn pairs(&self) -> &Pairs {
        &self.pairs
    }

    /// The incarnation of a reachable node, without sessions; `None` for others.
    pub fn incarnation(&self, node: NodeId) -> Option<u64> {
        self.state.presence.get(node).filter(|presence| presence.up).map(|presence| presence.incarnation)
    }

    /// The window layout in force: the configured one, or that of the present nodes.
    pub fn window(&self) -> Option<WindowLayout> {
        self.config.window.or(self.state.adopted)
    }

    /// The open ports: the node or trunk, the connection, and the epoch of a trunk (0 of a node).
    pub fn open_ports(&self) -> impl Iterator<Item = (Attached, PortId, u64)> + '_ {
        self.state.neighbours.iter().enumerate().filter_map(|(index, neighbour)| {
            let epoch = index.checked_sub(self.nodes_here).and_then(|trunk| self.state.epochs.get(trunk));
            Some((self.attached(index)?, neighbour.as_ref()?.port, epoch.copied().unwrap_or(0)))
        })
    }

    /// Takes one event and appends the resulting actions in the order in which to perform them. Never panics.
    pub fn handle(&mut self, event: Event, out: &mut Vec<Action>) {
        #[cfg(feature = "bugs")]
        let _on = crate::bugs::turn_on(self.config.bug, self.config.credits);
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
                    if let Some(neighbour) = self.neighbour_mut(index) {
                        neighbour.room = frames;
                        self.touched.push(index);
                    }
                }
                None => {}
            },
            Event::Frame { port, frame } => match self.state.ports.get(port).copied() {
                Some(Port::Open { index }) => {
                    self.clock.frame_received(index);
                    let done = match self.neighbour(index).map(|neighbour| neighbour.kind) {
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
        while let Some(index) = self.touched.pop() {
            self.serve(index, out);
        }
    }

    // ---- frames of a joined node ----

    fn node_frame(
        &mut self,
        index: PortIndex,
        node: NodeId,
        frame: Frame,
        out: &mut Vec<Action>,
    ) -> Result<(), Violation> {
        match frame {
            Frame::Packet(packet) => self.packet(index, node, packet, out),
            Frame::Credit { class: Class::Reply, .. } => Ok(()),
            Frame::Credit { class, count } => self.credited(index, class, 0, count),
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

    fn probed(&mut self, index: PortIndex) -> Result<(), Violation> {
        if let Some(neighbour) = self.neighbour_mut(index) {
            neighbour.answer_probe();
            self.touched.push(index);
        }
        Ok(())
    }

    // ---- look-ups ----

    fn neighbour(&self, index: PortIndex) -> Option<&Neighbour> {
        self.state.neighbours.get(index)?.as_ref()
    }

    fn neighbour_mut(&mut self, index: PortIndex) -> Option<&mut Neighbour> {
        self.state.neighbours.get_mut(index)?.as_mut()
    }

    /// The neighbours that are there.
    fn present(&self) -> impl Iterator<Item = (PortIndex, &Neighbour)> {
        self.state.neighbours.iter().enumerate().filter_map(|(index, n)| Some((index, n.as_ref()?)))
    }

    fn attached(&self, index: PortIndex) -> Option<Attached> {
        self.statistics.ports.get(index).map(|port| port.attached)
    }

    /// The index of a node of this switch.
    fn index_of(&self, node: NodeId) -> Option<PortIndex> {
        match &self.config.part {
            None => Some(usize::from(node)).filter(|index| *index < self.nodes_here),
            // The topology is shared: a table for each switch would grow with nodes times switches.
            Some(part) if part.topology.switch_of(node) == Some(part.switch) => self.here.binary_search(&node).ok(),
            Some(_) => None,
        }
    }

    fn index_of_trunk(&self, trunk: TrunkId) -> Option<PortIndex> {
        Some(self.nodes_here + self.trunks.iter().position(|(t, _)| *t == trunk)?)
    }

    /// The switch of a node.
    fn switch_of(&self, node: NodeId) -> Option<SwitchId> {
        self.config.part.as_ref()?.topology.switch_of(node)
    }

    /// The trunk and layer by which packets of a node for another switch's node leave.
    fn hop(&self, source: NodeId, destination: NodeId) -> Option<(PortIndex, u8)> {
        self.hop_of(self.next_hop(source, destination)?)
    }

    /// The next step of the route between two nodes; `None` at the destination.
    fn next_hop(&self, source: NodeId, destination: NodeId) -> Option<Hop> {
        let Part { topology, switch } = self.config.part.as_ref()?;
        topology.hop(*switch, topology.switch_of(source)?, topology.switch_of(destination)?)
    }

    fn hop_of(&self, Hop { trunk, layer }: Hop) -> Option<(PortIndex, u8)> {
        Some((self.index_of_trunk(trunk)?, layer))
    }

    /// The trunk by which everything of a switch's nodes arrives.
    fn arrival(&self, source: SwitchId) -> Option<TrunkId> {
        let Part { topology, switch } = self.config.part.as_ref()?;
        topology.arrival(*switch, source)
    }

    fn class_statistics(&mut self, index: PortIndex, class: Class) -> Option<&mut ClassStatistics> {
        Some(&mut self.statistics.ports.get_mut(index)?.classes[class as usize])
    }

    fn report(out: &mut Vec<Action>, diagnostic: Diagnostic) {
        out.push(Action::Diagnostic(diagnostic));
    }
}
