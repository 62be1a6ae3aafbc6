// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where nodes and trunks are, and which way packets go: what follows from the configuration and never changes.

use smallvec::SmallVec;
use telegraphos_topology::{Hop, SwitchId, Transit, TrunkId};
use telegraphos_wire::{Class, NodeId, Packet, WindowLayout};

use crate::channel::Channel;
use crate::config::Part;
use crate::neighbour::Kind;
use crate::{Attached, SwitchConfig, Violation};

/// Index of a neighbour: first the nodes of this switch, then its trunks.
pub(super) type PortIndex = usize;

#[derive(Clone, Debug)]
pub(super) struct Routes {
    pub(super) config: SwitchConfig,
    /// The nodes of this switch in ascending order, by index.
    here: SmallVec<[NodeId; 4]>,
    /// This switch's trunks, in the order of their indices, and the switches that they lead to.
    trunks: SmallVec<[(TrunkId, SwitchId); 4]>,
    /// Nodes of this switch: the first trunk's index.
    pub(super) nodes_here: usize,
}

impl Routes {
    /// Of a switch with this configuration.
    pub(super) fn new(config: SwitchConfig) -> Routes {
        let (here, trunks): (SmallVec<_>, SmallVec<[_; 4]>) = match &config.part {
            None => ((0..config.nodes as NodeId).collect(), SmallVec::new()),
            Some(Part { topology, switch }) => {
                let trunks = topology.trunks_of(*switch).iter();
                let trunks = trunks.map(|trunk| (*trunk, topology.other_end(*trunk, *switch)));
                (topology.nodes_of(*switch).collect(), trunks.collect())
            }
        };
        Routes { nodes_here: here.len(), config, here, trunks }
    }

    /// What the ports are for, by index.
    pub(super) fn attached(&self) -> impl ExactSizeIterator<Item = Attached> + '_ {
        let nodes = self.nodes_here;
        (0..nodes + self.trunks.len()).map(move |index| match index.checked_sub(nodes) {
            None => Attached::Node(self.here[index]),
            Some(trunk) => Attached::Trunk(self.trunks[trunk].0, self.trunks[trunk].1),
        })
    }

    /// The kind of neighbour that a port is for.
    pub(super) fn kind_of(&self, attached: Attached) -> Kind {
        match attached {
            Attached::Node(node) => Kind::Node(node),
            Attached::Trunk(trunk, _) => Kind::Trunk { trunk, layers: self.layers() },
        }
    }

    /// Whether the port is a trunk's.
    pub(super) fn is_trunk(&self, index: PortIndex) -> bool {
        index >= self.nodes_here
    }

    /// The index of a node of this switch.
    pub(super) fn index_of(&self, node: NodeId) -> Option<PortIndex> {
        match &self.config.part {
            None => Some(usize::from(node)).filter(|index| *index < self.nodes_here),
            // The topology is shared: a table for each switch would grow with nodes times switches.
            Some(part) if part.topology.switch_of(node) == Some(part.switch) => self.here.binary_search(&node).ok(),
            Some(_) => None,
        }
    }

    pub(super) fn index_of_trunk(&self, trunk: TrunkId) -> Option<PortIndex> {
        Some(self.nodes_here + self.trunks.iter().position(|(t, _)| *t == trunk)?)
    }

    /// The switch of a node.
    pub(super) fn switch_of(&self, node: NodeId) -> Option<SwitchId> {
        self.config.part.as_ref()?.topology.switch_of(node)
    }

    /// The layout in force: the configured one, or the adopted one.
    pub(super) fn window(&self, adopted: Option<WindowLayout>) -> Option<WindowLayout> {
        self.config.window.or(adopted)
    }

    /// # Errors
    /// The node is not below the number of nodes in force with this window.
    pub(super) fn valid_destination(&self, window: Option<WindowLayout>, node: NodeId) -> Result<(), Violation> {
        let nodes = window.map_or(self.config.nodes, |w| w.nodes().min(self.config.nodes));
        if u32::from(node) >= nodes || !self.config.valid_node(node) {
            return Err(Violation::Destination { node, nodes });
        }
        Ok(())
    }

    // ---- ways ----

    /// The trunk and layer by which packets of a node for another switch's node leave.
    pub(super) fn hop(&self, source: NodeId, destination: NodeId) -> Option<(PortIndex, u8)> {
        self.hop_of(self.next_hop(source, destination)?)
    }

    /// The next step of the route between two nodes; `None` at the destination.
    pub(super) fn next_hop(&self, source: NodeId, destination: NodeId) -> Option<Hop> {
        let Part { topology, switch } = self.config.part.as_ref()?;
        topology.hop(*switch, topology.switch_of(source)?, topology.switch_of(destination)?)
    }

    pub(super) fn hop_of(&self, Hop { trunk, layer }: Hop) -> Option<(PortIndex, u8)> {
        Some((self.index_of_trunk(trunk)?, layer))
    }

    /// Whether what a node sends arrives by a trunk of this switch.
    pub(super) fn arrives_by(&self, node: NodeId, trunk: TrunkId) -> bool {
        let Some(Part { topology, switch }) = &self.config.part else { return false };
        topology.switch_of(node).and_then(|source| topology.arrival(*switch, source)) == Some(trunk)
    }

    /// Whether the tree of the routes of a switch's nodes continues by a trunk of this switch.
    pub(super) fn tree_continues_by(&self, source: SwitchId, trunk: TrunkId) -> bool {
        let Some(Part { topology, switch }) = &self.config.part else { return false };
        topology.continues(*switch, source, trunk)
    }

    /// What the routes say of a packet that arrives by this trunk; nothing if one of the nodes does not exist.
    pub(super) fn transit(&self, trunk: TrunkId, source: NodeId, destination: NodeId) -> Transit {
        let part = self.config.part.as_ref();
        let transit = part.and_then(|Part { topology, switch }| {
            Some(topology.transit(*switch, trunk, topology.switch_of(source)?, topology.switch_of(destination)?))
        });
        transit.unwrap_or(Transit { came: None, arrives: false, next: None })
    }

    /// Checks that the route of a packet uses this trunk, and this layer of it.
    pub(super) fn check_route(
        &self,
        came: Option<Hop>,
        trunk: TrunkId,
        layer: u8,
        destination: NodeId,
    ) -> Result<(), Violation> {
        match came.filter(|hop| hop.trunk == trunk) {
            Some(hop) if hop.layer == layer || bug!(OneLayer) => Ok(()),
            Some(_) => Err(Violation::Layer { layer, layers: self.layers() }),
            None => Err(Violation::Astray(destination)),
        }
    }

    // ---- channels ----

    pub(super) fn layers(&self) -> u8 {
        self.config.part.as_ref().map_or(1, |part| part.topology.layers())
    }

    /// The class of a packet.
    pub(super) fn class_of(&self, packet: &Packet) -> Class {
        self.config.class_of(packet)
    }

    /// The channel of a class and layer at a port.
    pub(super) fn channel(&self, index: PortIndex, class: Class, layer: u8) -> Channel {
        if self.is_trunk(index) { self.channel_beyond(class, layer) } else { Channel::new(class, 0) }
    }

    /// The channel of a trunk.
    pub(super) fn channel_beyond(&self, class: Class, layer: u8) -> Channel {
        let class = if class == Class::Enqueue && bug!(MixClasses) { Class::Request } else { class };
        Channel::new(class, if bug!(OneLayer) { 0 } else { layer })
    }
}
