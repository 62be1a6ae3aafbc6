// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of an honest HIB.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use telegraphos_wire::{NodeId, Packet};

use crate::common::class_of;

/// A connection of the network.
pub(crate) type ConnectionId = u32;

/// A request that waits to be performed.
#[derive(Clone, Debug)]
pub(crate) struct Inbound {
    pub(crate) packet: Packet,
    /// How often this node had been notified of the sender.
    pub(crate) notified: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) connection: Option<ConnectionId>,
    pub(crate) joined: bool,
    pub(crate) life: u64,
    /// The greatest incarnation it ever had.
    pub(crate) greatest: u64,
    pub(crate) held: [u32; 4],
    /// Places left for packets of each class.
    pub(crate) free: [u32; 4],
    pub(crate) inbox: VecDeque<Inbound>,
    /// Classes it takes nothing of, by number: their packets wait in its inbox.
    pub(crate) stopped: [bool; 4],
    /// Requests that it performs in one round, at most.
    pub(crate) pace: usize,
    pub(crate) notified: BTreeMap<NodeId, u64>,
    /// All peers that it was ever notified of, on this connection.
    pub(crate) heard: BTreeSet<(NodeId, u64)>,
    /// How often it was notified of each.
    pub(crate) eras: BTreeMap<NodeId, u64>,
    /// Requests that wait for an answer: tags and receivers.
    pub(crate) open: BTreeSet<(u32, NodeId)>,
    pub(crate) groups: BTreeMap<u32, Vec<NodeId>>,
    pub(crate) next_tag: u32,
}

impl Node {
    pub(crate) fn new(id: NodeId) -> Node {
        // Different tags in different nodes.
        Node { id, pace: usize::MAX, next_tag: u32::from(id) << 20, ..Node::default() }
    }

    pub(crate) fn takes(&self, inbound: &Inbound) -> bool {
        !self.stopped[class_of(&inbound.packet) as usize]
    }

    /// Whether it has nothing to do.
    pub(crate) fn rests(&self) -> bool {
        !self.inbox.iter().any(|inbound| self.takes(inbound))
    }

    pub(crate) fn era(&self, peer: NodeId) -> u64 {
        self.eras.get(&peer).copied().unwrap_or(0)
    }
}
