// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of the protocol.

use serde::{Deserialize, Serialize};
use telegraphos_wire::WindowLayout;

use super::routes::PortIndex;
use crate::neighbour::{Kind, Neighbour};
use crate::ports::PortMap;
use crate::presences::Presences;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum Port {
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
    pub(super) ports: PortMap<Port>,
    pub(super) neighbours: Neighbours,
    /// By node id, of the whole fabric.
    pub(super) presence: Presences,
    /// By trunk of this switch: its number, which grows whenever it is joined.
    pub(super) epochs: Vec<u64>,
    /// The layout adopted from the first joiner, where none is configured.
    #[serde(with = "crate::snapshot::window")]
    pub(super) adopted: Option<WindowLayout>,
}

/// The neighbours that are there, by the index of their port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Neighbours(Vec<Option<Neighbour>>);

impl Neighbours {
    /// So many ports, none of which has its neighbour.
    pub(super) fn new(ports: usize) -> Neighbours {
        Neighbours(vec![None; ports])
    }

    /// Number of ports.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, index: PortIndex) -> Option<&Neighbour> {
        self.0.get(index)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, index: PortIndex) -> Option<&mut Neighbour> {
        self.0.get_mut(index)?.as_mut()
    }

    /// A neighbour takes its port.
    pub(super) fn insert(&mut self, index: PortIndex, neighbour: Neighbour) {
        if let Some(entry) = self.0.get_mut(index) {
            *entry = Some(neighbour);
        }
    }

    /// A neighbour has left its port.
    pub(super) fn remove(&mut self, index: PortIndex) -> Option<Neighbour> {
        self.0.get_mut(index)?.take()
    }

    /// Those that are there.
    pub(super) fn present(&self) -> impl Iterator<Item = (PortIndex, &Neighbour)> {
        self.0.iter().enumerate().filter_map(|(index, n)| Some((index, n.as_ref()?)))
    }

    /// A neighbour's name, for messages.
    pub(super) fn name(&self, index: PortIndex) -> String {
        match self.get(index).map(|neighbour| neighbour.kind) {
            Some(Kind::Node(node)) => format!("node {node}"),
            Some(Kind::Trunk { trunk, .. }) => format!("trunk {trunk}"),
            None => format!("absent index {index}"),
        }
    }
}
