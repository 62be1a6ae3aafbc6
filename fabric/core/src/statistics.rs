// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the switch counts. No part of the protocol state: models neither hash nor compare it.

use telegraphos_wire::{Packet, link, packet};

/// Counters of one node and class since the start of the switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStatistics {
    /// Packets accepted from the node.
    pub received_packets: u64,
    /// Their bytes on the link.
    pub received_bytes: u64,
    /// Packets sent to the node.
    pub sent_packets: u64,
    /// Their bytes on the link.
    pub sent_bytes: u64,
    /// Packets to the node that had to wait, for its credit, its room or others before them.
    pub stalls: u64,
    /// Packets that wait for the node now.
    pub depth: u64,
    /// The most that ever waited.
    pub depth_max: u64,
    /// Packets from or to the node that were dropped because one of the two had gone.
    pub dropped: u64,
}

/// Counters of one node, by class number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeStatistics {
    /// By class number.
    pub classes: [ClassStatistics; 4],
}

/// Counters of the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// By node.
    pub nodes: Vec<NodeStatistics>,
    /// Nodes that joined.
    pub joined: u64,
    /// Joiners refused.
    pub refused: u64,
    /// Nodes thrown out.
    pub violations: u64,
    /// Requests to absent nodes that the switch answered.
    pub answered: u64,
}

/// Bytes of a packet on the link.
pub(crate) fn bytes(packet: &Packet) -> u64 {
    let packet = packet::HEADER_LEN + packet.body.payload_len();
    (link::HEAD_LEN + packet) as u64
}
