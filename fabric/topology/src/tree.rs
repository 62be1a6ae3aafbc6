// SPDX-License-Identifier: MIT OR Apache-2.0
//! Routes of a tree, in closed form: up to the common ancestor and down again.
//!
//! Switches are numbered level by level, so those below `i` are `arity * i + 1` to `arity * i + arity`; the trunk up
//! from `i` is `i - 1`. One layer is enough: no packet goes down and then up.

use crate::{SwitchId, TrunkId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    pub(crate) arity: u16,
    pub(crate) depth: u16,
}

impl Tree {
    /// The switch above `child`, which is not the root.
    fn above(&self, child: SwitchId) -> SwitchId {
        (child - 1) / self.arity
    }

    /// Ends of the trunks, in their order.
    pub(crate) fn trunks(&self, switches: u16) -> impl Iterator<Item = (SwitchId, SwitchId)> {
        (1..switches).map(|child| (self.above(child), child))
    }

    /// The first leaf; the others follow.
    pub(crate) fn first_leaf(&self) -> SwitchId {
        (0..self.depth)
            .fold((0, 1u16), |(first, count), level| {
                // The last level's successor may not fit.
                (first + count, if level + 1 < self.depth { count * self.arity } else { 0 })
            })
            .0
    }

    /// Trunks between the root and `switch`.
    pub(crate) fn level(&self, switch: SwitchId) -> u16 {
        let mut level = 0;
        let mut at = switch;
        while at != 0 {
            at = self.above(at);
            level += 1;
        }
        level
    }

    /// The first and the last of the switches below `switch`; a leaf has none.
    pub(crate) fn below(&self, switch: SwitchId) -> Option<(SwitchId, SwitchId)> {
        (switch < self.first_leaf()).then(|| (self.arity * switch + 1, self.arity * switch + self.arity))
    }

    /// The first trunk of the route from `at`; `None` at the destination.
    pub(crate) fn next(&self, at: SwitchId, destination: SwitchId) -> Option<TrunkId> {
        if at == destination {
            return None;
        }
        // The ancestor of the destination on the level below `at`, if `at` is an ancestor of it: deeper levels have
        // greater numbers.
        let mut below = destination;
        while below > at {
            let above = self.above(below);
            if above == at {
                return Some(below - 1);
            }
            below = above;
        }
        at.checked_sub(1)
    }
}
