// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of the protocol.

use serde::{Deserialize, Serialize};
use telegraphos_wire::WindowLayout;

use super::neighbours::Neighbours;
use super::routes::PortIndex;
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
