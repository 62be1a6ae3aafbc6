// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists of nodes, whose memory is used again: a multicast allocates none for its destinations.

use std::fmt::{self, Debug};
use std::hash::{Hash, Hasher};
use telegraphos_wire::NodeId;

/// Empty lists that are kept, at most: a home that waits for more multicasts than half of them allocates for the next.
const KEPT: usize = 64;

/// See the module. Not part of the state that is hashed and shown: lists behave the same whatever memory they have.
#[derive(Clone, Default)]
pub(super) struct Lists {
    empty: Vec<Vec<NodeId>>,
}

impl Hash for Lists {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Debug for Lists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lists")
    }
}

impl Lists {
    /// A list of these nodes.
    pub(super) fn of(&mut self, nodes: impl IntoIterator<Item = NodeId>) -> Vec<NodeId> {
        let mut list = self.empty.pop().unwrap_or_default();
        list.extend(nodes);
        list
    }

    /// Keeps the memory of a list.
    pub(super) fn put(&mut self, mut list: Vec<NodeId>) {
        if list.capacity() > 0 && self.empty.len() < KEPT {
            list.clear();
            self.empty.push(list);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(lists.empty.is_empty(), "there is no memory in it");
        let many: Vec<_> = (0..2 * KEPT as NodeId).map(|node| lists.of([node])).collect();
        many.into_iter().for_each(|list| lists.put(list));
        assert!(lists.empty.len() == KEPT && lists.empty.iter().all(Vec::is_empty));
    }
}
