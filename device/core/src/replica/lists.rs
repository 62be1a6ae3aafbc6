// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists of nodes, whose memory is used again: a multicast allocates none for its destinations.

use crate::kept::Kept;
use telegraphos_wire::NodeId;

/// See the module.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Lists {
    empty: Kept<Vec<NodeId>>,
}

impl Lists {
    /// A list of these nodes.
    pub(super) fn of(&mut self, nodes: impl IntoIterator<Item = NodeId>) -> Vec<NodeId> {
        let mut list = self.empty.take().unwrap_or_default();
        list.extend(nodes);
        list
    }

    /// Keeps the memory of a list.
    pub(super) fn put(&mut self, mut list: Vec<NodeId>) {
        if list.capacity() > 0 {
            list.clear();
            self.empty.put(list);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept::KEPT;

    #[test]
    fn memory_is_used_again_and_not_more_is_kept_than_said() {
        let mut lists = Lists::default();
        let first = lists.of([3, 1]);
        let place = first.as_ptr();
        assert_eq!(first, [3, 1]);
        lists.put(first);
        let again = lists.of([2]);
        assert_eq!((again.as_ptr(), &again[..]), (place, &[2][..]));
        lists.put(Vec::new());
        assert!(lists.empty.all().is_empty(), "there is no memory in it");
        let many: Vec<_> = (0..2 * KEPT as NodeId).map(|node| lists.of([node])).collect();
        many.into_iter().for_each(|list| lists.put(list));
        let kept = lists.empty.all();
        assert!(kept.len() == KEPT && kept.iter().all(Vec::is_empty));
    }
}
