// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which nodes are up, and with which incarnation. Every board knows of every node, so a node takes two bytes here:
//! nodes of equal incarnation share an entry.

use std::fmt;
use std::hash::{Hash, Hasher};
use telegraphos_wire::NodeId;

/// See the module. It is hashed and shown as the incarnations of all nodes.
#[derive(Clone)]
pub(crate) struct Presence {
    /// By node: its incarnation's place in `lives` plus 1; 0 of a node that is down.
    life: Vec<u16>,
    /// Incarnations, each once, and how many nodes have it. One that none has is free.
    lives: Vec<(u64, u32)>,
    /// Nodes that are up.
    present: u32,
}

impl Presence {
    /// So many nodes, all of them down.
    pub(super) fn new(nodes: u32) -> Presence {
        Presence { life: vec![0; nodes as usize], lives: Vec::new(), present: 0 }
    }

    /// The incarnations of all nodes.
    fn all(&self) -> impl Iterator<Item = Option<u64>> {
        (0..self.life.len()).map(|node| self.incarnation(node as NodeId))
    }

    /// How many nodes are up.
    pub(super) fn present(&self) -> u32 {
        self.present
    }

    /// Whether there can be such a node.
    pub(crate) fn contains(&self, node: NodeId) -> bool {
        usize::from(node) < self.life.len()
    }

    /// The incarnation of a node that is up.
    pub(crate) fn incarnation(&self, node: NodeId) -> Option<u64> {
        let life = *self.life.get(usize::from(node))?;
        self.lives.get(usize::from(life).checked_sub(1)?).map(|(incarnation, _)| *incarnation)
    }

    /// From now on a node is up with this incarnation, or down. Returns what it had before; no effect for a node that
    /// cannot be.
    pub(crate) fn replace(&mut self, node: NodeId, incarnation: Option<u64>) -> Option<u64> {
        let before = self.incarnation(node);
        if before == incarnation || !self.contains(node) {
            return before;
        }
        let life = &mut self.life[usize::from(node)];
        if let Some(old) = usize::from(*life).checked_sub(1) {
            self.lives[old].1 -= 1;
            self.present -= 1;
        }
        *life = 0;
        if let Some(incarnation) = incarnation {
            self.present += 1;
            let same = self.lives.iter().position(|(other, nodes)| *nodes > 0 && *other == incarnation);
            let place = same.or_else(|| self.lives.iter().position(|(_, nodes)| *nodes == 0));
            let place = place.unwrap_or(self.lives.len());
            match self.lives.get_mut(place) {
                Some(entry) => *entry = (incarnation, entry.1 + 1),
                None => self.lives.push((incarnation, 1)),
            }
            // No more entries than nodes.
            *life = place as u16 + 1;
        }
        before
    }
}

impl fmt::Debug for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presence").field("incarnation", &self.all().collect::<Vec<_>>()).finish()
    }
}

impl Hash for Presence {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.all().for_each(|incarnation| incarnation.hash(state));
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
                let (node, incarnation) = (rng.below(9) as usize, Some(rng.below(5)).filter(|n| *n > 0));
                let before = std::mem::replace(&mut plain[node], incarnation);
                assert_eq!(presence.replace(node as NodeId, incarnation), before, "seed {seed}");
                assert!((0..9).all(|node| presence.incarnation(node as NodeId) == plain[node]), "seed {seed}");
                assert_eq!(presence.present() as usize, plain.iter().flatten().count(), "seed {seed}");
                assert!(presence.lives.len() <= 9, "seed {seed}");
            }
        }
        let mut presence = Presence::new(2);
        assert_eq!((presence.replace(2, Some(1)), presence.incarnation(2), presence.present()), (None, None, 0));
    }
}
