// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which nodes are up, with which incarnation, and the longest block that can be exchanged with them. Every board knows
//! of every node, so a node takes two bytes here: nodes of equal incarnation and limit share an entry.

use std::fmt;
use std::hash::{Hash, Hasher};
use telegraphos_wire::{MAX_BLOCK, NodeId, STREAM_BLOCK};

/// What the fabric said of a node that is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Life {
    pub(crate) incarnation: u64,
    /// Bytes of the longest block in a packet to or from the node.
    block: u32,
}

impl Life {
    /// A limit that is none of the link's is taken for the nearest that is.
    pub(crate) fn new(incarnation: u64, block: u32) -> Life {
        Life { incarnation, block: block.clamp(STREAM_BLOCK as u32, MAX_BLOCK as u32) }
    }
}

/// See the module. It is hashed and shown as what was said of all nodes.
#[derive(Clone)]
pub(crate) struct Presence {
    /// By node: its place in `lives` plus 1; 0 of a node that is down.
    life: Vec<u16>,
    /// What nodes have, each once, and how many have it. One that none has is free.
    lives: Vec<(Life, u32)>,
    /// Nodes that are up.
    present: u32,
}

impl Presence {
    /// So many nodes, all of them down.
    pub(super) fn new(nodes: u32) -> Presence {
        Presence { life: vec![0; nodes as usize], lives: Vec::new(), present: 0 }
    }

    fn all(&self) -> impl Iterator<Item = Option<Life>> {
        (0..self.life.len()).map(|node| self.get(node as NodeId))
    }

    /// How many nodes are up.
    pub(super) fn present(&self) -> u32 {
        self.present
    }

    /// Whether there can be such a node.
    pub(crate) fn contains(&self, node: NodeId) -> bool {
        usize::from(node) < self.life.len()
    }

    fn get(&self, node: NodeId) -> Option<Life> {
        let life = *self.life.get(usize::from(node))?;
        self.lives.get(usize::from(life).checked_sub(1)?).map(|(life, _)| *life)
    }

    /// The incarnation of a node that is up.
    pub(crate) fn incarnation(&self, node: NodeId) -> Option<u64> {
        self.get(node).map(|life| life.incarnation)
    }

    /// Bytes of the longest block in a packet to or from a node.
    pub(crate) fn block(&self, node: NodeId) -> u64 {
        self.get(node).map_or(STREAM_BLOCK as u64, |life| life.block.into())
    }

    /// From now on this is known of a node that is up, or it is down. Returns what was known before; no effect for a
    /// node that cannot be.
    pub(crate) fn replace(&mut self, node: NodeId, now: Option<Life>) -> Option<Life> {
        let before = self.get(node);
        if before == now || !self.contains(node) {
            return before;
        }
        let life = &mut self.life[usize::from(node)];
        if let Some(old) = usize::from(*life).checked_sub(1) {
            self.lives[old].1 -= 1;
            self.present -= 1;
        }
        *life = 0;
        if let Some(now) = now {
            self.present += 1;
            let same = self.lives.iter().position(|(other, nodes)| *nodes > 0 && *other == now);
            let place = same.or_else(|| self.lives.iter().position(|(_, nodes)| *nodes == 0));
            let place = place.unwrap_or(self.lives.len());
            match self.lives.get_mut(place) {
                Some(entry) => *entry = (now, entry.1 + 1),
                None => self.lives.push((now, 1)),
            }
            // No more entries than nodes.
            *life = place as u16 + 1;
        }
        before
    }
}

impl fmt::Debug for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presence").field("lives", &self.all().collect::<Vec<_>>()).finish()
    }
}

impl Hash for Presence {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.all().for_each(|life| life.hash(state));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telegraphos_testkit::{Rng, seeds};

    #[test]
    fn each_node_has_its_incarnation() {
        for seed in seeds(20, 2000) {
            let (mut rng, mut presence, mut plain) = (Rng::new(seed), Presence::new(9), [None; 9]);
            for _ in 0..200 {
                let block = 8192 << rng.below(3);
                let now = Some(rng.below(5)).filter(|n| *n > 0).map(|n| Life::new(n, block));
                let node = rng.below(9) as usize;
                let before = std::mem::replace(&mut plain[node], now);
                assert_eq!(presence.replace(node as NodeId, now), before, "seed {seed}");
                assert!((0..9).all(|node| presence.get(node as NodeId) == plain[node]), "seed {seed}");
                assert_eq!(presence.present() as usize, plain.iter().flatten().count(), "seed {seed}");
                assert!(presence.lives.len() <= 9, "seed {seed}");
            }
        }
        let mut presence = Presence::new(2);
        assert_eq!(
            (presence.replace(2, Some(Life::new(1, 0))), presence.incarnation(2), presence.present()),
            (None, None, 0)
        );
    }
}
