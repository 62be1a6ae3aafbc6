// SPDX-License-Identifier: MIT OR Apache-2.0
//! Layers for the routes of a graph: each pair of switches goes into the first layer in which its routes, there and
//! back, close no cycle of channels with those that are in it already (layered shortest-path routing, LASH: Skeie,
//! Lysne and Theiss, 2002).

use std::collections::HashSet;

use petgraph::acyclic::Acyclic;
use petgraph::data::Build;
use petgraph::graph::{DiGraph, NodeIndex};

use crate::graph::{Graph, across};
use crate::{SwitchId, Trunk};

/// The channels of one layer and who waits for whom; without a cycle.
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

/// Gives every pair its layer, of at most `most`, and returns how many layers it takes. If these are more, pairs are
/// left over, and in the last layer close a cycle there. `unchecked`: every pair gets the first layer, whatever comes
/// of it.
pub(crate) fn assign(graph: &mut Graph, trunks: &[Trunk], most: u8, unchecked: bool) -> usize {
    let mut layers: Vec<Layer> = Vec::new();
    let switches = graph.switches();
    let mut pairs: Vec<_> = (0..switches)
        .flat_map(|p| (p + 1..switches).map(move |q| (p, q)))
        .map(|(p, q)| (p, q, dependencies(graph, trunks, p, q)))
        .filter(|(_, _, dependencies)| !dependencies.is_empty() && !unchecked)
        .collect();
    // Long routes first: what their parts need is there then, in the same layer. The sort keeps the order of equally
    // long ones.
    pairs.sort_by_key(|(_, _, dependencies)| std::cmp::Reverse(dependencies.len()));
    for (p, q, dependencies) in pairs {
        let layer = layers.iter_mut().position(|layer| layer.add(&dependencies)).unwrap_or_else(|| {
            let mut new = Layer::new(2 * trunks.len());
            // Alone they close no cycle: a route crosses no switch twice.
            new.add(&dependencies);
            layers.push(new);
            layers.len() - 1
        });
        graph.set_layer(p, q, u8::try_from(layer).unwrap_or(most).min(most - 1));
    }
    layers.len()
}

/// Which channel waits for which on the ways between two switches. A channel is twice its trunk, one more if it goes
/// downward.
fn dependencies(graph: &Graph, trunks: &[Trunk], p: SwitchId, q: SwitchId) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut at = p;
    let mut before = None;
    while let Some(trunk) = graph.next(at, q) {
        let next = across(trunks, trunk, at);
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
