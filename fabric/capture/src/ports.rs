// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which link a connection is.

use std::collections::HashMap;
use std::sync::Arc;

use telegraphos_fabric_core::{Attached, Event, PortId, SwitchConfig};
use telegraphos_topology::Topology;
use telegraphos_wire::link::Frame;

use crate::{Link, SwitchId};

/// The links of one switch's open connections.
#[derive(Clone, Debug)]
pub(crate) struct Ports {
    switch: SwitchId,
    nodes: u32,
    topology: Option<Arc<Topology>>,
    links: HashMap<PortId, Link>,
}

impl Ports {
    /// No open port yet.
    pub(crate) fn new(switch: SwitchId, config: &SwitchConfig) -> Ports {
        let topology = config.part.as_ref().map(|part| Arc::clone(&part.topology));
        Ports { switch, nodes: config.nodes, topology, links: HashMap::new() }
    }

    /// The link of a connection: that of the node it says it is, or else that of the switch itself.
    pub(crate) fn link(&self, port: PortId) -> Link {
        self.links.get(&port).copied().unwrap_or(Link::Switch(self.switch))
    }

    /// A connection that was opened before.
    pub(crate) fn attached(&mut self, port: PortId, attached: Attached) {
        let link = match attached {
            Attached::Node(node) => Link::Node(node),
            Attached::Trunk(_, to) => Link::Trunk(self.switch, to),
        };
        self.links.insert(port, link);
    }

    /// The link that an event belongs to.
    pub(crate) fn before(&mut self, event: &Event) -> Link {
        match event {
            Event::PortOpened { port, .. } => {
                self.links.remove(port);
                Link::Switch(self.switch)
            }
            Event::TrunkOpened { port, trunk, .. } => {
                self.links.remove(port);
                if let Some(topology) = &self.topology {
                    self.links.insert(*port, Link::Trunk(self.switch, topology.other_end(*trunk, self.switch)));
                }
                self.link(*port)
            }
            Event::Tick { .. } => Link::Switch(self.switch),
            Event::Frame { port, frame: Frame::Hello { node, .. } } if u32::from(*node) < self.nodes => {
                // The first word counts: a second Hello is a mistake of the same node.
                *self.links.entry(*port).or_insert(Link::Node(*node))
            }
            Event::PortRoom { port, .. } | Event::Frame { port, .. } | Event::Malformed { port } => self.link(*port),
            Event::PortClosed { port } => {
                let link = self.link(*port);
                self.links.remove(port);
                link
            }
        }
    }
}
