// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deliberate bugs.

/// Deliberate bugs behind the `bugs` feature: for each promise of a topology one that makes its check fail.
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
