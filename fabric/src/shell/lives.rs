// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is remembered of nodes and trunks for those who ask: since when they are up or down, how often they came, and
//! what transports counted that have ended.

use std::collections::BTreeMap;

use fabric_topology::TrunkId;
use switch_core::Notice;
use telegraphos_transport::TransportStatistics;
use telegraphos_wire::NodeId;

/// One node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeLife {
    pub(super) up: bool,
    pub(super) incarnation: u64,
    pub(super) since: u64,
    pub(super) joins: u64,
}

/// One end of a trunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TrunkLife {
    pub(super) up: bool,
    pub(super) epoch: u64,
    pub(super) since: u64,
    pub(super) resets: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Lives {
    /// Nodes of switches here that have joined.
    pub(super) nodes: BTreeMap<NodeId, NodeLife>,
    /// By the index of the switch here.
    trunks: BTreeMap<(usize, TrunkId), TrunkLife>,
    /// By the index of the end.
    ended: BTreeMap<usize, TransportStatistics>,
}

impl Lives {
    pub(super) fn trunk(&self, switch: usize, trunk: TrunkId) -> TrunkLife {
        self.trunks.get(&(switch, trunk)).copied().unwrap_or_default()
    }

    /// What transports of this end of a trunk counted that have ended.
    pub(super) fn ended(&self, end: usize) -> TransportStatistics {
        self.ended.get(&end).copied().unwrap_or_default()
    }

    pub(super) fn transport_ended(&mut self, end: usize, counted: TransportStatistics) {
        let before = self.ended.entry(end).or_default();
        *before = before.plus(counted);
    }

    pub(super) fn notice(&mut self, switch: usize, notice: &Notice, now: u64) {
        match *notice {
            Notice::Joined { node, incarnation, .. } => {
                let life = self.nodes.entry(node).or_default();
                *life = NodeLife { up: true, incarnation, since: now, joins: life.joins + 1 };
            }
            Notice::Reset { node, incarnation } => {
                self.nodes.entry(node).or_default().incarnation = incarnation;
            }
            Notice::Left { node, .. } => {
                let life = self.nodes.entry(node).or_default();
                (life.up, life.since) = (false, now);
            }
            Notice::TrunkUp { trunk, epoch, .. } => {
                let life = self.trunks.entry((switch, trunk)).or_default();
                (life.up, life.epoch, life.since) = (true, epoch, now);
            }
            Notice::TrunkDown { trunk, .. } => {
                let life = self.trunks.entry((switch, trunk)).or_default();
                (life.up, life.since) = (false, now);
                life.resets += 1;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_are_counted() {
        let mut lives = Lives::default();
        for (at, notice) in [
            (10, Notice::Joined { port: 0, node: 3, incarnation: 4096 }),
            (20, Notice::Reset { node: 3, incarnation: 4097 }),
            (30, Notice::Left { node: 3, dropped: 0 }),
            (40, Notice::Joined { port: 1, node: 3, incarnation: 8192 }),
            (50, Notice::TrunkUp { port: 2, trunk: 1, to: 7, epoch: 1 }),
            (60, Notice::TrunkDown { trunk: 1, to: 7, dropped: 2 }),
        ] {
            lives.notice(0, &notice, at);
        }
        assert_eq!(lives.nodes[&3], NodeLife { up: true, incarnation: 8192, since: 40, joins: 2 });
        assert_eq!(lives.trunk(0, 1), TrunkLife { up: false, epoch: 1, since: 60, resets: 1 });
        assert_eq!(lives.trunk(1, 1), TrunkLife::default());
        let counted = TransportStatistics { retransmitted: 2, ..TransportStatistics::default() };
        lives.transport_ended(0, counted);
        lives.transport_ended(0, counted);
        assert_eq!((lives.ended(0).retransmitted, lives.ended(1).retransmitted), (4, 0));
    }
}
