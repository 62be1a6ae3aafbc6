// SPDX-License-Identifier: MIT OR Apache-2.0
//! Communication patterns: the partners of each node, and which of them the next operation is for.

use crate::random::Random;
use crate::workload::Pattern;
use telegraphos_wire::NodeId;

/// The partners of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Partners {
    /// None if it is idle.
    pub(crate) nodes: Vec<NodeId>,
    /// The first of them gets so many of a hundred operations; the others share the rest.
    favoured: u32,
}

impl Partners {
    /// The index of the next operation's partner. There must be one.
    pub(crate) fn pick(&self, random: &mut Random) -> usize {
        let count = self.nodes.len() as u64;
        if count == 1 || (self.favoured > 0 && random.below(100) < u64::from(self.favoured)) {
            return 0;
        }
        match self.favoured {
            0 => random.below(count) as usize,
            _ => 1 + random.below(count - 1) as usize,
        }
    }
}

/// The partners of all nodes, which a check of the workload has found possible.
pub(crate) fn partners(pattern: &Pattern, nodes: u32, seed: u64) -> Vec<Partners> {
    let plain = |nodes| Partners { nodes, favoured: 0 };
    let all = 0..nodes;
    match *pattern {
        Pattern::Uniform { partners } => all.map(|node| plain(draw(node, nodes, partners, seed, None))).collect(),
        Pattern::HotSpot { target, percent, partners } => {
            let one = |node: u32| {
                let hot = u32::from(target) != node;
                let mut others = draw(node, nodes, partners, seed, Some(target));
                if hot {
                    others.insert(0, target);
                }
                Partners { favoured: if hot && others.len() > 1 { percent } else { 0 }, nodes: others }
            };
            all.map(one).collect()
        }
        Pattern::Neighbour { width } => {
            let width = width.unwrap_or_else(|| side(nodes));
            all.map(|node| plain(neighbours(node, nodes, width))).collect()
        }
        Pattern::Transpose {} => {
            let side = nodes.isqrt();
            let other = |node: u32| (node % side) * side + node / side;
            all.map(|node| plain(others(node, [other(node)]))).collect()
        }
        Pattern::Permutation {} => {
            let cycle = one_cycle(nodes, seed);
            all.map(|node| plain(others(node, [cycle[node as usize]]))).collect()
        }
        Pattern::AllToOne { target } => all.map(|node| plain(others(node, [u32::from(target)]))).collect(),
        Pattern::Ring {} => all.map(|node| plain(others(node, [(node + 1) % nodes]))).collect(),
    }
}

/// Those of `candidates` that are not `node`, each once, in their order.
fn others(node: u32, candidates: impl IntoIterator<Item = u32>) -> Vec<NodeId> {
    let mut found: Vec<NodeId> = Vec::new();
    for candidate in candidates {
        if candidate != node && !found.contains(&(candidate as NodeId)) {
            found.push(candidate as NodeId);
        }
    }
    found
}

/// The divisor of `nodes` nearest below its root.
fn side(nodes: u32) -> u32 {
    (1..=nodes.isqrt()).rev().find(|side| nodes % side == 0).unwrap_or(1)
}

fn neighbours(node: u32, nodes: u32, width: u32) -> Vec<NodeId> {
    let (row, column, rows) = (node / width, node % width, nodes / width);
    let at = |row: u32, column: u32| (row % rows) * width + column % width;
    others(node, [at(row, column + 1), at(row, column + width - 1), at(row + 1, column), at(row + rows - 1, column)])
}

/// So many nodes at random, without `node` and `except`.
fn draw(node: u32, nodes: u32, count: u32, seed: u64, except: Option<NodeId>) -> Vec<NodeId> {
    let mut random = Random::new(seed, 1 << 40 | u64::from(node));
    let mut pool: Vec<NodeId> =
        (0..nodes as NodeId).filter(|other| u32::from(*other) != node && Some(*other) != except).collect();
    let count = (count as usize).min(pool.len());
    for index in 0..count {
        let other = index + random.below((pool.len() - index) as u64) as usize;
        pool.swap(index, other);
    }
    pool.truncate(count);
    pool
}

/// A permutation that is one cycle (Sattolo), so that no node is its own partner.
fn one_cycle(nodes: u32, seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed, 1 << 41);
    let mut cycle: Vec<u32> = (0..nodes).collect();
    for index in (1..nodes as usize).rev() {
        cycle.swap(index, random.below(index as u64) as usize);
    }
    cycle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partners_are_others_and_as_the_pattern_says() {
        let patterns = [
            Pattern::Uniform { partners: 5 },
            Pattern::Neighbour { width: None },
            Pattern::HotSpot { target: 7, percent: 30, partners: 4 },
            Pattern::Transpose {},
            Pattern::Permutation {},
            Pattern::AllToOne { target: 3 },
            Pattern::Ring {},
        ];
        for pattern in patterns {
            let all = partners(&pattern, 16, 1);
            for (node, partners) in all.iter().enumerate() {
                let distinct: std::collections::BTreeSet<_> = partners.nodes.iter().collect();
                assert_eq!(distinct.len(), partners.nodes.len(), "{pattern:?}");
                assert!(partners.nodes.iter().all(|p| usize::from(*p) != node && *p < 16), "{pattern:?}: {partners:?}");
            }
            let counts: Vec<usize> = all.iter().map(|p| p.nodes.len()).collect();
            match pattern {
                Pattern::Uniform { .. } => assert_eq!(counts, [5; 16]),
                Pattern::Neighbour { .. } => assert_eq!(counts, [4; 16]),
                Pattern::HotSpot { .. } => assert_eq!((counts[0], counts[7], all[7].favoured), (5, 4, 0)),
                Pattern::Transpose {} => assert_eq!((counts[5], all[1].nodes[0], all[14].nodes[0]), (0, 4, 11)),
                Pattern::Permutation {} => {
                    let to: std::collections::BTreeSet<_> = all.iter().flat_map(|p| &p.nodes).collect();
                    assert_eq!(to.len(), 16);
                }
                Pattern::AllToOne { .. } => assert_eq!((counts[3], counts.iter().sum::<usize>()), (0, 15)),
                Pattern::Ring {} => assert_eq!(all[15].nodes, [0]),
            }
        }
    }

    #[test]
    fn a_hot_spot_gets_its_share() {
        let all = partners(&Pattern::HotSpot { target: 0, percent: 25, partners: 8 }, 64, 9);
        let mut random = Random::new(1, 1);
        let hot = (0..10_000).filter(|_| all[5].pick(&mut random) == 0).count();
        assert!((2300..2700).contains(&hot), "{hot} of 10000");
    }
}
