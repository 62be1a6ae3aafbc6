// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a switch knows about the presence of each node of the fabric.
//!
//! Each switch knows of every node, so these tables grow with nodes times switches and are asked for every packet:
//! nodes of equal incarnation and session share one entry, and whether a node is up is one bit.

use std::hash::{Hash, Hasher};

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use telegraphos_wire::NodeId;

use crate::lane::Mark;

/// The last known presence of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Presence {
    pub(crate) up: bool,
    /// Of a node that is not up: its last one.
    pub(crate) incarnation: u64,
    /// 0 of a node of this switch.
    pub(crate) session: u64,
    /// Bytes of the longest block in its packets.
    pub(crate) block: u32,
}

impl Presence {
    /// What a notification of the node says.
    pub(crate) fn mark(&self) -> Mark {
        Mark { incarnation: self.incarnation, session: self.session, block: self.block }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Presences {
    /// One bit for each node that is up.
    up: Vec<u64>,
    /// By node: its entry in `lives`.
    life: Vec<u16>,
    /// What the nodes have, each once, and how many nodes have it. An entry that none has is free.
    lives: Vec<(Mark, u32)>,
    /// The entry that was found last of marks with the same [`slot`]: with thousands of nodes there are dozens of
    /// entries, and nodes that are notified of join in turn.
    found: [u16; SLOTS],
}

/// See [`Presences::found`].
const SLOTS: usize = 32;

/// Nodes differ by their session most, which is a small number in most cases.
fn slot(mark: Mark) -> usize {
    (mark.incarnation >> 12).wrapping_add(mark.session) as usize % SLOTS
}

impl Presences {
    /// The most nodes: each may have an entry of its own while one is replaced.
    const MAX: usize = u16::MAX as usize;

    /// So many nodes, at most [`Presences::MAX`], of this presence.
    pub(crate) fn new(nodes: usize, presence: Presence) -> Presences {
        let nodes = nodes.min(Presences::MAX);
        let mut presences = Presences {
            up: vec![0; nodes.div_ceil(64)],
            life: vec![0; nodes],
            lives: vec![(presence.mark(), nodes as u32)],
            found: [0; SLOTS],
        };
        if presence.up {
            (0..nodes).for_each(|node| presences.set_up(node, true));
        }
        presences
    }

    /// Number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.life.len()
    }

    fn set_up(&mut self, node: usize, up: bool) {
        if let Some(word) = self.up.get_mut(node / 64) {
            let bit = 1 << (node % 64);
            *word = if up { *word | bit } else { *word & !bit };
        }
    }

    /// Whether a node is up.
    pub(crate) fn is_up(&self, node: NodeId) -> bool {
        self.up.get(usize::from(node) / 64).is_some_and(|word| word >> (node % 64) & 1 == 1)
    }

    /// The presence of a node.
    pub(crate) fn get(&self, node: NodeId) -> Option<Presence> {
        let life = self.life.get(usize::from(node))?;
        let (Mark { incarnation, session, block }, _) = *self.lives.get(usize::from(*life))?;
        Some(Presence { up: self.is_up(node), incarnation, session, block })
    }

    /// The incarnation of a node, or the last it had.
    pub(crate) fn last_incarnation(&self, node: NodeId) -> u64 {
        self.get(node).map_or(0, |presence| presence.incarnation)
    }

    /// From now on this is the presence of a node; ignored for others than there are.
    pub(crate) fn set(&mut self, node: NodeId, presence: Presence) {
        let node = usize::from(node);
        let Some(old) = self.life.get(node).map(|old| usize::from(*old)) else { return };
        self.set_up(node, presence.up);
        let mark = presence.mark();
        if self.lives[old].0 == mark {
            return;
        }
        self.lives[old].1 -= 1;
        let found = usize::from(self.found[slot(mark)]);
        let is_same = |(other, users): &(Mark, u32)| *users > 0 && *other == mark;
        let same = match self.lives.get(found).filter(|entry| is_same(entry)) {
            Some(_) => Some(found),
            None => self.lives.iter().position(is_same),
        };
        let place = same.or_else(|| self.lives.iter().position(|(_, users)| *users == 0)).unwrap_or(self.lives.len());
        match self.lives.get_mut(place) {
            Some(entry) => *entry = (mark, entry.1 + 1),
            None => self.lives.push((mark, 1)),
        }
        // No more entries than nodes.
        self.life[node] = place as u16;
        self.found[slot(mark)] = place as u16;
    }

    /// A node is not up any more.
    pub(crate) fn set_down(&mut self, node: NodeId) {
        self.set_up(usize::from(node), false);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Presence> + '_ {
        (0..self.life.len()).filter_map(|node| self.get(node as NodeId))
    }
}

impl PartialEq for Presences {
    fn eq(&self, other: &Presences) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for Presences {}

impl Hash for Presences {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len().hash(state);
        self.iter().for_each(|presence| presence.hash(state));
    }
}

impl Serialize for Presences {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Presences {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Presences, D::Error> {
        let all = Vec::<Presence>::deserialize(deserializer)?;
        if all.len() > Presences::MAX {
            return Err(D::Error::custom(format!("{} nodes: expected at most {}", all.len(), Presences::MAX)));
        }
        let mut presences = Presences::new(all.len(), Presence { up: false, incarnation: 0, session: 0, block: 0 });
        (0..).zip(all).for_each(|(node, presence)| presences.set(node, presence));
        Ok(presences)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_what_was_set() {
        let start = Presence { up: false, incarnation: 7, session: 0, block: 0 };
        let (mut presences, mut plain) = (Presences::new(100, start), vec![start; 100]);
        for step in 0..10_000_u64 {
            let node = (step * 37 % 101) as NodeId;
            let presence = Presence { up: step % 3 > 0, incarnation: step * step % 17, session: step % 5, block: 1 };
            presences.set(node, presence);
            if let Some(entry) = plain.get_mut(usize::from(node)) {
                *entry = presence;
            }
            if step % 7 == 0 {
                presences.set_down(5);
                plain[5].up = false;
            }
            assert!(presences.iter().eq(plain.iter().copied()), "step {step}");
        }
        assert!(presences.lives.len() <= 100 && presences.get(100).is_none() && !presences.is_up(100));
        let text = serde_json::to_string(&presences).unwrap();
        assert_eq!(text, serde_json::to_string(&plain).unwrap());
        assert_eq!(serde_json::from_str::<Presences>(&text).unwrap(), presences);
    }
}
