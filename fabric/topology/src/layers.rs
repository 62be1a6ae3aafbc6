// SPDX-License-Identifier: MIT OR Apache-2.0
//! Layers for the routes of a graph: each pair of switches goes into the first layer in which its routes, there and
//! back, close no cycle of channels with those that are in it already (layered shortest-path routing, LASH: Skeie,
//! Lysne and Theiss, 2002).

use std::collections::HashSet;

use petgraph::acyclic::Acyclic;
use petgraph::data::Build;
use petgraph::graph::{DiGraph, NodeIndex};

use crate::{SwitchId, TrunkId};

/// The channels of one layer and the dependencies between them: a graph without a cycle.
struct Layer {
    waits: Acyclic<DiGraph<(), ()>>,
    known: HashSet<(usize, usize)>,
}

impl Layer {
    fn new(channels: usize) -> Layer {
        let mut waits: Acyclic<DiGraph<(), ()>> = Acyclic::new();
        for _ in 0..channels {
            waits.add_node(());
        }
        Layer { waits, known: HashSet::new() }
    }

    /// Adds these dependencies if no cycle comes of it; else none of them.
    fn add(&mut self, dependencies: &[(usize, usize)]) -> bool {
        let mut added = Vec::new();
        for &(channel, on) in dependencies {
            if self.known.contains(&(channel, on)) {
                continue;
            }
            match self.waits.try_add_edge(NodeIndex::new(channel), NodeIndex::new(on), ()) {
                Ok(edge) => {
                    self.known.insert((channel, on));
                    added.push((edge, (channel, on)));
                }
                Err(_) => {
                    // The last first: removing moves the last edge into the gap.
                    for (edge, dependency) in added.into_iter().rev() {
                        self.waits.remove_edge(edge);
                        self.known.remove(&dependency);
                    }
                    return false;
                }
            }
        }
        true
    }
}

/// Gives every pair of switches a layer below `most`, and says how many layers the pairs need. If these are more than
/// `most`, the remaining pairs are in the last layer and close a cycle there. Pairs that are missing in the result
/// depend on nothing: any layer will do. `step` is the first trunk of a route, and the switch at its other end.
pub(crate) fn assign(
    switches: u16,
    trunks: usize,
    most: u8,
    step: impl Fn(SwitchId, SwitchId) -> Option<(TrunkId, SwitchId)>,
) -> (Vec<(SwitchId, SwitchId, u8)>, usize) {
    let mut pairs: Vec<_> = (0..switches)
        .flat_map(|p| (p + 1..switches).map(move |q| (p, q)))
        .map(|(p, q)| (p, q, dependencies(p, q, &step)))
        .filter(|(_, _, dependencies)| !dependencies.is_empty() && !bug!(UncheckedLayers))
        .collect();
    // Long routes first: what their parts need is there then, in the same layer. The sort keeps the order of equally
    // long ones.
    pairs.sort_by_key(|(_, _, dependencies)| std::cmp::Reverse(dependencies.len()));
    let mut layers: Vec<Layer> = Vec::new();
    let mut layer_of = |dependencies: &[(usize, usize)]| {
        layers.iter_mut().position(|layer| layer.add(dependencies)).unwrap_or_else(|| {
            let mut new = Layer::new(2 * trunks);
            // Alone they close no cycle: a route crosses no switch twice.
            new.add(dependencies);
            layers.push(new);
            layers.len() - 1
        })
    };
    let assigned = pairs
        .iter()
        .map(|(p, q, dependencies)| (*p, *q, u8::try_from(layer_of(dependencies)).unwrap_or(most).min(most - 1)))
        .collect();
    (assigned, layers.len())
}

/// Which channel waits for which on the ways between two switches. A channel is twice its trunk, one more if it goes
/// downward.
fn dependencies(
    p: SwitchId,
    q: SwitchId,
    step: impl Fn(SwitchId, SwitchId) -> Option<(TrunkId, SwitchId)>,
) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut at = p;
    let mut before = None;
    while let Some((trunk, next)) = step(at, q) {
        let channel = 2 * usize::from(trunk) + usize::from(next < at);
        if let Some(before) = before {
            found.push((before, channel));
            // The way back, on the same trunks in the other direction.
            found.push((channel ^ 1, before ^ 1));
        }
        before = Some(channel);
        at = next;
    }
    found
}
