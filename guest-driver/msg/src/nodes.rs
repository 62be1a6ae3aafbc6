// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers of nodes where several clusters work as one: those of this one follow the first.

use telegraphos::NodeId;

/// The nodes of this cluster among all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nodes {
    first: u16,
    count: u32,
}

impl Nodes {
    /// As many, from the first on; `None` if they do not all have numbers.
    pub(crate) fn new(first: u16, count: u32) -> Option<Nodes> {
        (u32::from(first).saturating_add(count) <= 1 << 16).then_some(Nodes { first, count })
    }

    /// The number of a node of this cluster among all.
    pub(crate) fn global(self, node: NodeId) -> u16 {
        // The board's ids are below `count`.
        self.first.wrapping_add(node)
    }

    /// The board's id of a node, if it is one of this cluster.
    pub(crate) fn local(self, node: u16) -> Option<NodeId> {
        node.checked_sub(self.first).filter(|node| u32::from(*node) < self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_other_clusters_are_not_this_ones() {
        let nodes = Nodes::new(100, 4).unwrap_or_else(|| panic!("there are numbers"));
        assert_eq!(nodes.global(3), 103);
        assert_eq!([99, 100, 103, 104].map(|node| nodes.local(node)), [None, Some(0), Some(3), None]);
        assert!(Nodes::new(65_530, 6).is_some_and(|nodes| nodes.local(65_535) == Some(5)));
        assert!(Nodes::new(65_530, 7).is_none());
    }
}
