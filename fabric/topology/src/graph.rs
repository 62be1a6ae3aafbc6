// SPDX-License-Identifier: MIT OR Apache-2.0
//! Routes of an arbitrary graph, in tables: shortest paths, one for each pair.
//!
//! Of equally short paths that one is taken whose set of trunks is the least: sets are compared by the greatest trunk
//! in which they differ, as the binary numbers would be that have bit `t` set for each trunk `t`. These numbers are
//! exact weights: a path's is the sum of its trunks', and no two different sets have the same. So the least path of a
//! pair is one and no other, whichever end one looks from, and each part of it is the least path between its ends (were
//! there a lesser one, it would make the whole less).

use std::cmp::Ordering;

use crate::digest::Digest;
use crate::layers;
use crate::{Hop, SwitchId, Trunk, TrunkId};

/// No trunk: in the tables, that of a switch to itself.
const NONE: TrunkId = TrunkId::MAX;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Graph {
    pub(crate) switches: u16,
    /// For each root, for each switch, the first trunk from there towards the root.
    pub(crate) toward: Vec<TrunkId>,
    /// For each pair in both orders, the layer of its routes.
    pub(crate) layer: Vec<u8>,
    pub(crate) layers: u8,
}

impl Graph {
    /// The routes of a connected graph, in at most `layers` layers; and how many it takes.
    pub(crate) fn new(switches: u16, trunks: &[Trunk], trunks_of: &[Vec<TrunkId>], layers: u8) -> (Graph, usize) {
        let toward = (0..switches).flat_map(|root| least_paths(root, switches, trunks, trunks_of)).collect();
        let size = usize::from(switches).pow(2);
        let mut graph = Graph { switches, toward, layer: vec![0; size], layers: 1 };
        let step = |at, destination| {
            let trunk = graph.next(at, destination)?;
            Some((trunk, trunks[usize::from(trunk)].other_end(at)))
        };
        let (pairs, needed) = layers::assign(switches, trunks.len(), layers, step);
        for (p, q, layer) in pairs {
            graph.set_layer(p, q, layer);
        }
        (graph, needed)
    }

    fn index(&self, row: SwitchId, column: SwitchId) -> usize {
        usize::from(row) * usize::from(self.switches) + usize::from(column)
    }

    /// The first trunk of the route from `at`; `None` at the destination.
    pub(crate) fn next(&self, at: SwitchId, destination: SwitchId) -> Option<TrunkId> {
        Some(self.toward[self.index(destination, at)]).filter(|trunk| *trunk != NONE)
    }

    /// The next step at `at` of the route from `source` to `destination`.
    pub(crate) fn hop(&self, at: SwitchId, source: SwitchId, destination: SwitchId) -> Option<Hop> {
        Some(Hop { trunk: self.next(at, destination)?, layer: self.layer[self.index(source, destination)] })
    }

    /// Adds the tables to a digest.
    pub(crate) fn digest(&self, digest: &mut Digest) {
        digest.numbers(self.toward.iter().copied());
        digest.numbers(self.layer.iter().map(|layer| u16::from(*layer)));
    }

    /// Gives both routes of a pair their layer.
    fn set_layer(&mut self, p: SwitchId, q: SwitchId, layer: u8) {
        let (there, back) = (self.index(p, q), self.index(q, p));
        self.layer[there] = layer;
        self.layer[back] = layer;
        self.layers = self.layers.max(layer + 1);
    }
}

/// For each switch the first trunk of its least path to `root`.
fn least_paths(root: SwitchId, switches: u16, trunks: &[Trunk], trunks_of: &[Vec<TrunkId>]) -> Vec<TrunkId> {
    let mut toward = vec![NONE; switches.into()];
    // The trunks of each switch's path, greatest first, so that comparing vectors compares sets; those of the same
    // length only.
    let mut paths: Vec<Vec<TrunkId>> = vec![Vec::new(); switches.into()];
    let mut distance = vec![u16::MAX; switches.into()];
    distance[usize::from(root)] = 0;
    let mut ring = vec![root];
    let mut candidate = Vec::new();
    while !ring.is_empty() {
        // All paths of this ring of switches are final: those of the next are one trunk longer.
        let mut next_ring = Vec::new();
        for at in ring {
            for &trunk in &trunks_of[usize::from(at)] {
                let next = usize::from(trunks[usize::from(trunk)].other_end(at));
                let further = distance[usize::from(at)] + 1;
                if distance[next] < further {
                    continue;
                }
                candidate.clone_from(&paths[usize::from(at)]);
                let place = candidate.partition_point(|t| *t > trunk);
                candidate.insert(place, trunk);
                if distance[next] > further {
                    distance[next] = further;
                    next_ring.push(next as SwitchId);
                } else if bug!(AsymmetricTie) || candidate.cmp(&paths[next]) != Ordering::Less {
                    continue;
                }
                toward[next] = trunk;
                paths[next].clone_from(&candidate);
            }
        }
        ring = next_ring;
    }
    toward
}
