// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a topology is refused.

use crate::{MAX_NODES, MAX_SWITCHES, Shape};

/// Why a topology is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// Not the name of a regular topology.
    #[error(
        "topology `{text}`: expected star, tree:ARITYxDEPTH, mesh:WIDTHxHEIGHT or torus:WIDTHxHEIGHT, such as torus:4x4"
    )]
    Flag {
        /// What was given.
        text: String,
    },
    /// No such tree.
    #[error("topology tree:{arity}x{depth}: expected an arity of at least 2 and a depth of at least 1")]
    TreeSize {
        /// Switches below each switch.
        arity: u16,
        /// Levels below the root.
        depth: u16,
    },
    /// A mesh or torus without switches.
    #[error("topology {shape}: expected a width and a height of at least 1")]
    GridSize {
        /// What was given.
        shape: Shape,
    },
    /// A regular topology that is too large.
    #[error("topology {shape} has more than {MAX_SWITCHES} switches: expected at most {MAX_SWITCHES}")]
    TooManySwitches {
        /// What was given.
        shape: Shape,
    },
    /// A number of nodes that cannot be.
    #[error("nodes is {nodes}: expected 1 to {MAX_NODES}")]
    Nodes {
        /// What was given.
        nodes: u64,
    },
}
