// SPDX-License-Identifier: MIT OR Apache-2.0
//! The history of nodes and trunks, for reports: since when they are up or down, how often they joined, and the
//! counters of transports that have ended.

use std::collections::BTreeMap;

use telegraphos_fabric_core::Diagnostic;
use telegraphos_topology::TrunkId;
use telegraphos_transport::TransportStatistics;
use telegraphos_wire::NodeId;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeSession {
    pub(super) up: bool,
    pub(super) incarnation: u64,
    pub(super) since: u64,
    pub(super) joins: u64,
}

/// One end of a trunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TrunkSession {
    pub(super) up: bool,
    pub(super) epoch: u64,
    pub(super) since: u64,
    pub(super) resets: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// Nodes of switches here that have joined.
    pub(super) nodes: BTreeMap<NodeId, NodeSession>,
    /// By the index of the switch here.
    trunks: BTreeMap<(usize, TrunkId), TrunkSession>,
    /// By the index of the end.
    ended: BTreeMap<usize, TransportStatistics>,
}

impl Sessions {
    /// A trunk of the switch with this index; the default if it was never up.
    pub(super) fn trunk(&self, switch: usize, trunk: TrunkId) -> TrunkSession {
        self.trunks.get(&(switch, trunk)).copied().unwrap_or_default()
    }

    /// What transports of this end of a trunk counted that have ended.
    pub(super) fn ended(&self, end: usize) -> TransportStatistics {
        self.ended.get(&end).copied().unwrap_or_default()
    }

    /// Adds the counters of a transport of this end that has ended.
    pub(super) fn transport_ended(&mut self, end: usize, counted: TransportStatistics) {
        let before = self.ended.entry(end).or_default();
        *before = before.plus(counted);
    }

    /// Updates the history by a diagnostic of the switch with this index; `now` in microseconds.
    pub(super) fn diagnostic(&mut self, switch: usize, diagnostic: &Diagnostic, now: u64) {
        match *diagnostic {
            Diagnostic::Joined { node, incarnation, .. } => {
                let session = self.nodes.entry(node).or_default();
                *session = NodeSession { up: true, incarnation, since: now, joins: session.joins + 1 };
            }
            Diagnostic::Reset { node, incarnation } => {
                self.nodes.entry(node).or_default().incarnation = incarnation;
            }
            Diagnostic::Left { node, .. } => {
                let session = self.nodes.entry(node).or_default();
                (session.up, session.since) = (false, now);
            }
            Diagnostic::TrunkUp { trunk, epoch, .. } => {
                let session = self.trunks.entry((switch, trunk)).or_default();
                (session.up, session.epoch, session.since) = (true, epoch, now);
            }
            Diagnostic::TrunkDown { trunk, .. } => {
                let session = self.trunks.entry((switch, trunk)).or_default();
                (session.up, session.since) = (false, now);
                session.resets += 1;
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
        let mut sessions = Sessions::default();
        for (at, diagnostic) in [
            (10, Diagnostic::Joined { port: 0, node: 3, incarnation: 4096 }),
            (20, Diagnostic::Reset { node: 3, incarnation: 4097 }),
            (30, Diagnostic::Left { node: 3, dropped: 0 }),
            (40, Diagnostic::Joined { port: 1, node: 3, incarnation: 8192 }),
            (50, Diagnostic::TrunkUp { port: 2, trunk: 1, to: 7, epoch: 1 }),
            (60, Diagnostic::TrunkDown { trunk: 1, to: 7, dropped: 2 }),
        ] {
            sessions.diagnostic(0, &diagnostic, at);
        }
        assert_eq!(sessions.nodes[&3], NodeSession { up: true, incarnation: 8192, since: 40, joins: 2 });
        assert_eq!(sessions.trunk(0, 1), TrunkSession { up: false, epoch: 1, since: 60, resets: 1 });
        assert_eq!(sessions.trunk(1, 1), TrunkSession::default());
        let counted = TransportStatistics { retransmitted: 2, ..TransportStatistics::default() };
        sessions.transport_ended(0, counted);
        sessions.transport_ended(0, counted);
        assert_eq!((sessions.ended(0).retransmitted, sessions.ended(1).retransmitted), (4, 0));
    }
}
