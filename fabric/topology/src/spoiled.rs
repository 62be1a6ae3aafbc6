// SPDX-License-Identifier: MIT OR Apache-2.0
//! Topologies with a deliberate bug, for tests (feature `bugs`).

use crate::bugs::{Bug, turn_on};
use crate::graph::Graph;
use crate::topology::Routing;
use crate::{SwitchId, Topology, TopologyError, Trunk, TrunkId};

impl Topology {
    /// [`Topology::graph`] with a deliberate bug, and its errors.
    pub fn graph_with_bug(
        names: Vec<String>,
        trunks: &[(SwitchId, SwitchId)],
        switch_of: Vec<SwitchId>,
        layers: u8,
        bug: Bug,
    ) -> Result<Topology, TopologyError> {
        let _on = turn_on(Some(bug));
        let mut topology = Topology::graph(names, trunks, switch_of, layers)?;
        let trunks = topology.trunks().to_vec();
        if let Routing::Graph(graph) = &mut topology.routing {
            spoil(graph, &trunks, bug);
        }
        Ok(topology)
    }

    /// A mesh or torus with a deliberate bug in its routes.
    #[must_use]
    pub fn with_bug(mut self, bug: Bug) -> Topology {
        if let Routing::Grid(grid) = &mut self.routing {
            grid.bug = Some(bug);
        }
        self
    }
}

/// Puts the bug into finished tables, between switch 0 and the first that is two trunks away from it.
fn spoil(graph: &mut Graph, trunks: &[Trunk], bug: Bug) {
    let two_away = (0..graph.switches).find_map(|at| {
        let first = graph.next(at, 0)?;
        let between = trunks[usize::from(first)].other_end(at);
        graph.next(between, 0).map(|_| (at, first, between))
    });
    let Some((at, first, between)): Option<(SwitchId, TrunkId, SwitchId)> = two_away else { return };
    match bug {
        Bug::ForgetRoute => graph.toward[usize::from(at)] = TrunkId::MAX,
        Bug::TurnBack => graph.toward[usize::from(between)] = first,
        Bug::LayerBeyond => graph.layer[usize::from(at)] = graph.layers,
        _ => {}
    }
}
