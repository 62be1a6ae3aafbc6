// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets of node ids.

use serde::{Deserialize, Serialize};
use telegraphos_wire::NodeId;

/// A set of node ids, as bits: there is one or two for each port, and with thousands of nodes most ports are notified
/// of all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct NodeSet {
    /// Never ends with zero, so that equal sets are equal.
    words: Vec<u64>,
}

impl NodeSet {
    fn position(node: NodeId) -> (usize, u64) {
        (usize::from(node) / 64, 1 << (node % 64))
    }

    /// Adds a node; no effect if it is in the set.
    pub(crate) fn insert(&mut self, node: NodeId) {
        let (word, bit) = NodeSet::position(node);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= bit;
    }

    /// Whether it was in the set.
    pub(crate) fn remove(&mut self, node: NodeId) -> bool {
        let (word, bit) = NodeSet::position(node);
        let Some(position) = self.words.get_mut(word).filter(|position| **position & bit != 0) else { return false };
        *position &= !bit;
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
        true
    }

    /// Whether the set has no node.
    pub(crate) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Removes the lowest node.
    pub(crate) fn pop_first(&mut self) -> Option<NodeId> {
        let (word, bits) = self.words.iter().enumerate().find(|(_, bits)| **bits != 0)?;
        let node = (word * 64) as NodeId + bits.trailing_zeros() as NodeId;
        self.remove(node);
        Some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_set() {
        let mut set = NodeSet::default();
        for node in [4095, 0, 64, 63, 64] {
            set.insert(node);
        }
        assert!(set.remove(63) && !set.remove(63) && !set.remove(100));
        assert_eq!(std::iter::from_fn(|| set.pop_first()).collect::<Vec<_>>(), [0, 64, 4095]);
        assert_eq!(set, NodeSet::default());
    }
}
