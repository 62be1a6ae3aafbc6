// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deliberate bugs, behind the feature `bugs`: a product build compiles neither their names nor their branches.
//!
//! While a topology with a bug computes, the bug is in a thread-local, so that no function needs a parameter for it.

use std::cell::Cell;

/// For each promise of a topology a bug that makes its check fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// Symmetry: routes of a mesh or torus go along x first in both directions.
    XFirstBothWays,
    /// Symmetry: of two equally short ways round a ring, the upward one is taken in both directions; of a graph, the
    /// one found first.
    AsymmetricTie,
    /// Deadlock: the layer of a torus does not change with the wrap-around trunk.
    NoDateline,
    /// Deadlock: a pair of switches of a graph gets the first layer, whether that closes a cycle or not.
    UncheckedLayers,
    /// Connection: from one switch there is no route to another.
    ForgetRoute,
    /// Connection: a route turns back before it arrives, again and again.
    TurnBack,
    /// Layers: a route uses one more than there are.
    LayerBeyond,
}

thread_local! {
    static ON: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Until it is dropped, [`has`] is about one topology's bug.
pub(crate) struct Guard(Option<Bug>);

impl Drop for Guard {
    fn drop(&mut self) {
        ON.set(self.0);
    }
}

/// Begins a computation for a topology with this bug.
pub(crate) fn turn_on(bug: Option<Bug>) -> Guard {
    Guard(ON.replace(bug))
}

/// Whether the topology at work has the bug; see `bug!`.
pub(crate) fn has(bug: Bug) -> bool {
    ON.get() == Some(bug)
}
