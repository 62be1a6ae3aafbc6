// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state machine.

mod audit;
mod joining;
mod packets;
mod presence;
mod restore;
mod time;
mod trunks;

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use fabric_topology::{SwitchId, TrunkId};
use serde::{Deserialize, Serialize};
use telegraphos_wire::link::{Frame, RESET_BITS, Refusal};
use telegraphos_wire::{Class, NodeId, WindowLayout};

use crate::config::{ConfigError, Part};
use crate::lane::Life;
use crate::neighbour::{Kind, Neighbour};
use crate::pairs::Pairs;
use crate::statistics::ClassStatistics;
use crate::{Action, Attached, Bug, Event, Notice, PortId, PortStatistics, Statistics, SwitchConfig, Violation};
pub use restore::Snapshot;
use time::Clock;

/// Index of a neighbour: first the nodes of this switch, then its trunks.
type Place = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Port {
    /// No Hello yet.
    Waiting { room: u32 },
    /// To be a trunk: our opening frame, with this epoch, is sent, that of the other end is awaited.
    Greeting { room: u32, place: Place, epoch: u64 },
    /// A node's, or a trunk's.
    Open { place: Place },
}

/// What is known of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Presence {
    up: bool,
    /// Of a node that is not up: its last one.
    incarnation: u64,
    /// 0 of a node of this switch.
    session: u64,
}

impl Presence {
    fn life(&self) -> Life {
        Life { incarnation: self.incarnation, session: self.session }
    }
}

/// The protocol state: what models hash and compare. Statistics, limits and time are not in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct State {
    ports: BTreeMap<PortId, Port>,
    /// By place.
    neighbours: Vec<Option<Neighbour>>,
    /// By node id, of the whole fabric.
    presence: Vec<Presence>,
    /// By trunk of this switch: its number, which grows whenever it is joined.
    epochs: Vec<u64>,
    /// The layout adopted from the first joiner, where none is configured.
    #[serde(with = "crate::snapshot::window")]
    adopted: Option<WindowLayout>,
}

/// The switch: [`Switch::handle`] takes events and says what to do.
///
/// # Life cycle
///
/// A connection is nobody until its Hello is accepted ([`Frame::Welcome`]); then it is its node's port until it ends.
/// The joiner is told of every present node, itself included, and every other node is told of the joiner.
///
/// When a port ends, what its node sent and the switch still holds is dropped (it was never acknowledged), and so is
/// what others sent to it; their credits come back. Everyone who was told of the node is told of its end, before
/// anything else: requests on the way to it or dropped get no other answer than this [`Frame::NodeDown`]. A request to
/// a node that is absent when it reaches its sender's switch is answered with
/// [`Status::NodeDown`](telegraphos_wire::Status::NodeDown) in that node's name; a reply to an absent node is dropped,
/// for nobody waits for it, and so is what another switch has sent on: its sender is being told.
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
/// waits in the switch while the receiver is reset is refused by its new life like any other packet that was meant for
/// the old one. The switch does not know of which life of a member its sender thinks: see `docs/replication.md`.
///
/// What one node can make the switch hold is bounded: [`MAX_GROUPS`](telegraphos_wire::link::MAX_GROUPS) groups with
/// [`MAX_MEMBERSHIPS`](telegraphos_wire::link::MAX_MEMBERSHIPS) members together; for each of its credits of the class
/// one copy, or one answer, per node.
///
/// # Trunks
///
/// A switch that is [part of a topology](Part) has trunks to others ([`Event::TrunkOpened`]). What a node sends follows
/// its route; what is known of a node follows all its routes, which form a tree, behind what the node sent before. When
/// a trunk breaks, the nodes beyond it are down for everyone on this side, and the other way round; since a route back
/// is the same trunks, both ends of every pair that the trunk joined are told. When it is joined again, its *epoch* has
/// grown, and with it the *session*, the sum of the epochs on the way, of everything beyond. Like incarnations, epochs
/// begin above those of an earlier life of the switch ([`SwitchConfig::base_incarnation`]), since both ends may have
/// forgotten the trunk. The last switch adds the session to the incarnations that it tells its nodes, in the bits above
/// the count of resets, and to those in packets: to a node, a peer that was cut off comes back like one that was
/// restarted, and what was sent before the cut is refused like what was meant for an earlier life.
///
/// Replies leave the credits of the trunk when they reach their node's switch, for the node takes them in any case
/// (SPEC I13).
#[derive(Clone, Debug)]
pub struct Switch {
    config: SwitchConfig,
    /// Places of this switch's nodes, by node id; [`NOWHERE`] for others.
    places: Vec<u16>,
    /// This switch's trunks, in the order of their places.
    trunks: Vec<TrunkId>,
    /// Nodes of this switch: the first trunk's place.
    nodes_here: usize,
    state: State,
    statistics: Statistics,
    pairs: Pairs,
    clock: Clock,
    /// Outputs that may have something to send; empty between events.
    touched: Vec<Place>,
}

/// No place.
const NOWHERE: u16 = u16::MAX;

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
        config.check()?;
        let nodes = config.nodes as usize;
        let mut places = vec![NOWHERE; nodes];
        let (here, trunks): (Vec<NodeId>, Vec<TrunkId>) = match &config.part {
            None => ((0..config.nodes as NodeId).collect(), Vec::new()),
            Some(Part { topology, switch }) => {
                (topology.nodes_of(*switch).collect(), topology.trunks_of(*switch).to_vec())
            }
        };
        let mut ports = Vec::with_capacity(here.len() + trunks.len());
        for (place, node) in here.iter().enumerate() {
            if let Some(entry) = places.get_mut(usize::from(*node)) {
                *entry = place as u16;
            }
            ports.push(Attached::Node(*node));
        }
        if let Some(Part { topology, switch }) = &config.part {
            ports.extend(trunks.iter().map(|trunk| Attached::Trunk(*trunk, topology.other_end(*trunk, *switch))));
        }
        let mut base = config.base_incarnation & !((1 << RESET_BITS) - 1);
        if config.has(Bug::ShortIncarnation) {
            base &= u64::from(u32::MAX);
        }
        Ok(Switch {
            state: State {
                ports: BTreeMap::new(),
                neighbours: vec![None; ports.len()],
                presence: vec![Presence { up: false, incarnation: base, session: 0 }; nodes],
                epochs: vec![if config.has(Bug::ForgetEpochs) { 0 } else { base >> RESET_BITS }; trunks.len()],
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
            places,
            nodes_here: here.len(),
            trunks,
            config,
            touched: Vec::new(),
        })
    }

    /// The configuration.
    pub fn config(&self) -> &SwitchConfig {
        &self.config
    }

    /// The protocol state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The counters.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// The counters of pairs, as far as [`SwitchConfig::pairs`] asks for them.
    pub fn pairs(&self) -> &Pairs {
        &self.pairs
    }

    /// The incarnation of a node that can be reached, as it knows it.
    pub fn incarnation(&self, node: NodeId) -> Option<u64> {
        self.state.presence.get(usize::from(node)).filter(|presence| presence.up).map(|presence| presence.incarnation)
    }

    /// The window layout in force: the configured one, or that of the present nodes.
    pub fn window(&self) -> Option<WindowLayout> {
        self.config.window.or(self.state.adopted)
    }

    /// Whether a port of this switch is open, and to whom; for a trunk also its epoch.
    pub fn open_ports(&self) -> impl Iterator<Item = (Attached, PortId, u64)> + '_ {
        self.state.neighbours.iter().enumerate().filter_map(|(place, neighbour)| {
            let epoch = place.checked_sub(self.nodes_here).and_then(|trunk| self.state.epochs.get(trunk));
            Some((self.attached(place)?, neighbour.as_ref()?.port, epoch.copied().unwrap_or(0)))
        })
    }

    /// Takes one event and appends what is to be done. Never panics.
    pub fn handle(&mut self, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::PortOpened { port, room } => {
                self.close(port, out);
                self.clock.opened(port);
                self.state.ports.insert(port, Port::Waiting { room });
            }
            Event::TrunkOpened { port, room, trunk } => self.greet(port, room, trunk, out),
            Event::PortRoom { port, frames } => match self.state.ports.get_mut(&port) {
                Some(Port::Waiting { room } | Port::Greeting { room, .. }) => *room = frames,
                Some(Port::Open { place }) => {
                    let place = *place;
                    if let Some(neighbour) = self.neighbour_mut(place) {
                        neighbour.room = frames;
                        self.touched.push(place);
                    }
                }
                None => {}
            },
            Event::Frame { port, frame } => match self.state.ports.get(&port).copied() {
                Some(Port::Open { place }) => {
                    self.clock.heard(place);
                    let done = match self.neighbour(place).map(|neighbour| neighbour.kind) {
                        Some(Kind::Node(node)) => self.node_frame(place, node, frame, out),
                        Some(Kind::Trunk { trunk, .. }) => self.trunk_frame(place, trunk, port, frame, out),
                        None => Ok(()),
                    };
                    if let Err(what) = done {
                        self.throw_out(port, what, out);
                    }
                }
                Some(Port::Waiting { room }) => self.hello(port, room, frame, out),
                Some(Port::Greeting { room, place, epoch }) => self.greeted(port, room, place, epoch, frame, out),
                // Thrown out: what was still on the way means nothing.
                None => {}
            },
            Event::Malformed { port } => match self.state.ports.get(&port).copied() {
                Some(Port::Waiting { .. } | Port::Greeting { .. }) => {
                    self.refuse(port, None, Refusal::Handshake, 0, 0, out);
                }
                Some(Port::Open { .. }) => self.throw_out(port, Violation::Malformed, out),
                None => {}
            },
            Event::PortClosed { port } => self.close(port, out),
            Event::Tick { now } => self.tick(now, out),
        }
        while let Some(place) = self.touched.pop() {
            self.serve(place, out);
        }
    }

    // ---- frames of a joined node ----

    fn node_frame(&mut self, place: Place, node: NodeId, frame: Frame, out: &mut Vec<Action>) -> Result<(), Violation> {
        match frame {
            Frame::Packet(packet) => self.packet(place, node, packet, out),
            Frame::Credit { class: Class::Reply, .. } => Ok(()),
            Frame::Credit { class, count } => self.credited(place, class, 0, count),
            Frame::Reset { incarnation } => self.reset(place, node, incarnation, out),
            Frame::Group { page, members } => self.group(place, node, page, members),
            Frame::Probe => self.asked(place),
            Frame::Alive => Ok(()),
            Frame::Hello { .. }
            | Frame::Welcome { .. }
            | Frame::Refuse { .. }
            | Frame::NodeUp { .. }
            | Frame::NodeDown { .. }
            | Frame::Trunk { .. }
            | Frame::Reach { .. }
            | Frame::Forward { .. }
            | Frame::TrunkCredit { .. } => Err(Violation::Unexpected),
        }
    }

    fn asked(&mut self, place: Place) -> Result<(), Violation> {
        if let Some(neighbour) = self.neighbour_mut(place) {
            neighbour.alive = true;
            self.touched.push(place);
        }
        Ok(())
    }

    // ---- who is where ----

    fn neighbour(&self, place: Place) -> Option<&Neighbour> {
        self.state.neighbours.get(place)?.as_ref()
    }

    fn neighbour_mut(&mut self, place: Place) -> Option<&mut Neighbour> {
        self.state.neighbours.get_mut(place)?.as_mut()
    }

    /// The neighbours that are there.
    fn present(&self) -> impl Iterator<Item = (Place, &Neighbour)> {
        self.state.neighbours.iter().enumerate().filter_map(|(place, n)| Some((place, n.as_ref()?)))
    }

    fn attached(&self, place: Place) -> Option<Attached> {
        self.statistics.ports.get(place).map(|port| port.attached)
    }

    /// The place of a node of this switch.
    fn place_of(&self, node: NodeId) -> Option<Place> {
        self.places.get(usize::from(node)).filter(|place| **place != NOWHERE).map(|place| usize::from(*place))
    }

    fn place_of_trunk(&self, trunk: TrunkId) -> Option<Place> {
        Some(self.nodes_here + self.trunks.iter().position(|t| *t == trunk)?)
    }

    /// The switch of a node.
    fn switch_of(&self, node: NodeId) -> Option<SwitchId> {
        self.config.part.as_ref()?.topology.switch_of(node)
    }

    /// The trunk and layer by which packets of a node for another switch's node leave.
    fn hop(&self, source: NodeId, destination: NodeId) -> Option<(Place, u8)> {
        let Part { topology, switch } = self.config.part.as_ref()?;
        let hop = topology.hop(*switch, topology.switch_of(source)?, topology.switch_of(destination)?)?;
        Some((self.place_of_trunk(hop.trunk)?, hop.layer))
    }

    /// The trunk by which everything of a switch's nodes arrives.
    fn arrival(&self, source: SwitchId) -> Option<TrunkId> {
        let Part { topology, switch } = self.config.part.as_ref()?;
        topology.arrival(*switch, source)
    }

    fn class_statistics(&mut self, place: Place, class: Class) -> Option<&mut ClassStatistics> {
        Some(&mut self.statistics.ports.get_mut(place)?.classes[class as usize])
    }

    fn notice(out: &mut Vec<Action>, notice: Notice) {
        out.push(Action::Notice(notice));
    }
}
