// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the switch counts. No part of the protocol state: models neither hash nor compare it.

use crate::Attached;

/// Counters of one port and class since the start of the switch. A trunk's layers count together. All of them are one
/// cache line, since each packet counts at two ports.
#[repr(align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStatistics {
    /// Packets accepted from the port.
    pub received_packets: u64,
    /// Their bytes on the link.
    pub received_bytes: u64,
    /// Packets sent to the port.
    pub sent_packets: u64,
    /// Their bytes on the link.
    pub sent_bytes: u64,
    /// Packets to the port that had to wait, for its credit, its room or others before them.
    pub stalls: u64,
    /// Those of them that found no credit.
    pub credit_stalls: u64,
    /// Packets that wait for the port now.
    pub depth: u32,
    /// The most that ever waited.
    pub depth_max: u32,
    /// Packets from or to the port that were dropped because their sender or receiver could not be reached any more.
    pub dropped: u64,
}

const _: () = assert!(size_of::<ClassStatistics>() == 64);

/// Counters of one port, by class number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortStatistics {
    /// The node or trunk that the port is for.
    pub attached: Attached,
    pub classes: [ClassStatistics; 4],
}

/// Counters of the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Of each port: the nodes of this switch in ascending order, then its trunks.
    pub ports: Vec<PortStatistics>,
    /// Nodes that joined.
    pub joined: u64,
    /// Joiners, of links and trunks, refused.
    pub refused: u64,
    /// Neighbours disconnected for a violation.
    pub violations: u64,
    /// Requests to absent nodes that the switch answered.
    pub answered: u64,
    /// Times that a trunk was joined.
    pub trunks_joined: u64,
}

impl Statistics {
    /// The counters of a port.
    pub fn of(&self, attached: Attached) -> Option<&PortStatistics> {
        self.ports.iter().find(|port| port.attached == attached)
    }
}
