// SPDX-License-Identifier: MIT OR Apache-2.0
//! State for each node of the fabric, of which there is memory for those only that it was ever changed for: a board may
//! know of thousands of nodes and exchange packets with a dozen. What is kept of a node that it only knows of is two
//! bytes.

use std::fmt::{self, Debug};
use std::hash::{Hash, Hasher};
use std::ops::{Index, IndexMut};
use telegraphos_wire::NodeId;

/// See the module. It behaves (and hashes, and is shown) like an array with an element for each node, all of them equal
/// at first: an element that was created and one that was not are the same.
#[derive(Clone)]
pub(crate) struct ByNode<T> {
    /// Node ids are below it.
    nodes: usize,
    /// What every node has that has no entry.
    absent: T,
    /// By node: its entry plus 1; 0 if it has none. Empty until there is an entry.
    places: Vec<u16>,
    /// In the order of their creation.
    entries: Vec<T>,
}

impl<T: Clone> ByNode<T> {
    /// An element for each of so many nodes, at most 2^15, all of them equal to `absent`.
    pub(crate) fn new(nodes: u32, absent: T) -> ByNode<T> {
        ByNode { nodes: nodes as usize, absent, places: Vec::new(), entries: Vec::new() }
    }

    /// The element of each node that was never changed.
    pub(crate) fn absent(&self) -> &T {
        &self.absent
    }

    /// The element of a node, to be changed; `None` for a node that cannot be.
    pub(crate) fn get_mut(&mut self, node: NodeId) -> Option<&mut T> {
        let node = usize::from(node);
        (node < self.nodes).then(|| &mut self[node])
    }

    /// The element of a node if there is memory for it: for changes that do nothing to an element as it is at first.
    pub(crate) fn existing_mut(&mut self, node: NodeId) -> Option<&mut T> {
        let place = *self.places.get(usize::from(node))?;
        self.entries.get_mut(usize::from(place).checked_sub(1)?)
    }

    /// The elements there is memory for with their nodes, in the order of the nodes.
    pub(crate) fn existing(&self) -> impl Iterator<Item = (NodeId, &T)> {
        let places = (0..).zip(&self.places);
        places.filter_map(|(node, place)| Some((node, self.entries.get(usize::from(*place).checked_sub(1)?)?)))
    }

    /// The elements there is memory for, in any order.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut()
    }

    /// The first change of a node's element.
    #[cold]
    fn create(&mut self, node: usize) -> usize {
        self.places.resize(self.nodes, 0);
        self.entries.push(self.absent.clone());
        self.places[node] = self.entries.len() as u16;
        self.entries.len() - 1
    }
}

impl<T> Index<usize> for ByNode<T> {
    type Output = T;

    fn index(&self, node: usize) -> &T {
        match self.places.get(node) {
            Some(place @ 1..) => &self.entries[usize::from(*place) - 1],
            _ => &self.absent,
        }
    }
}

impl<T: Clone> IndexMut<usize> for ByNode<T> {
    fn index_mut(&mut self, node: usize) -> &mut T {
        let entry = match self.places.get(node) {
            Some(place @ 1..) => usize::from(*place) - 1,
            _ => self.create(node),
        };
        &mut self.entries[entry]
    }
}

impl<T: Debug> Debug for ByNode<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries((0..self.nodes).map(|node| &self[node])).finish()
    }
}

impl<T: Hash> Hash for ByNode<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (0..self.nodes).for_each(|node| self[node].hash(state));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::DefaultHasher;
    use telegraphos_testkit::{Rng, seeds};

    fn hash_of(value: &impl Hash) -> u64 {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        hasher.finish()
    }

    #[test]
    fn it_is_an_array_of_all_nodes() {
        for seed in seeds(20, 2000) {
            let (mut rng, mut table, mut plain) = (Rng::new(seed), ByNode::new(20, 7), vec![7; 20]);
            for _ in 0..100 {
                let (node, value) = (rng.below(22) as usize, rng.below(3));
                match table.get_mut(node as NodeId) {
                    Some(entry) => (*entry, plain[node]) = (value, value),
                    None => assert!(node >= 20),
                }
            }
            assert!((0..20).all(|node| table[node] == plain[node]), "seed {seed}");
            let existing: Vec<(NodeId, u64)> = table.existing().map(|(node, value)| (node, *value)).collect();
            let expected = (0..).zip(&plain).filter(|(node, _)| table.places[usize::from(*node)] > 0);
            assert!(existing.into_iter().eq(expected.map(|(node, value)| (node, *value))), "seed {seed}");
        }
    }

    #[test]
    fn an_element_without_memory_is_like_one_with() {
        let (mut changed, unchanged) = (ByNode::new(5, 0), ByNode::new(5, 0));
        changed[3] = 1;
        assert_ne!(hash_of(&changed), hash_of(&unchanged));
        changed[3] = 0;
        assert_eq!(hash_of(&changed), hash_of(&unchanged));
        assert_eq!(format!("{changed:?}"), format!("{unchanged:?}"));
        assert_eq!(changed.existing_mut(2), None);
        assert_eq!(changed.existing_mut(3), Some(&mut 0));
        assert_eq!(changed.entries.len(), 1);
    }
}
