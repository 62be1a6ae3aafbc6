// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a topology is refused.

use crate::lists::ranges;
use crate::{CheckError, MAX_GRAPH_SWITCHES, MAX_LAYERS, MAX_NODES, MAX_SWITCHES, NodeId, Shape};

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
    /// A number of layers that cannot be.
    #[error("layers is {layers}: expected 1 to {MAX_LAYERS}")]
    Layers {
        /// What was given.
        layers: u64,
    },
    /// A graph without switches, or with too many.
    #[error(
        "{switches} switches: expected 1 to {MAX_GRAPH_SWITCHES} (a star, tree, mesh or torus may have {MAX_SWITCHES})"
    )]
    Switches {
        /// How many were given.
        switches: usize,
    },
    /// A name that is not one.
    #[error("switch `{name}`: expected a name of 1 to 64 letters, digits, '.', '_' or '-'")]
    Name {
        /// What was given.
        name: String,
    },
    /// Two switches of one name.
    #[error("switch `{name}` is there twice: expected each name once")]
    DuplicateSwitch {
        /// The name.
        name: String,
    },
    /// A trunk to nowhere.
    #[error("trunk between `{a}` and `{b}`: there is no switch `{unknown}`; expected the name of a switch")]
    UnknownSwitch {
        /// One end.
        a: String,
        /// The other end.
        b: String,
        /// The end that does not exist.
        unknown: String,
    },
    /// A trunk from a switch to itself.
    #[error("trunk between `{name}` and itself: expected two switches")]
    SelfTrunk {
        /// The switch.
        name: String,
    },
    /// Two trunks between the same switches.
    #[error("trunk between `{a}` and `{b}` is there twice: expected at most one between two switches; remove one")]
    DuplicateTrunk {
        /// One end.
        a: String,
        /// The other end.
        b: String,
    },
    /// Not all switches can be reached.
    #[error(
        "switch `{unreached}` cannot be reached from switch `{from}`: expected every two to be joined by trunks; add a trunk"
    )]
    Disconnected {
        /// The first switch.
        from: String,
        /// One that cannot be reached from it.
        unreached: String,
    },
    /// A node without a switch.
    #[error("nodes without a switch: {}; expected each of the {nodes} nodes (0 to {}) at one switch", first_ranges(missing), nodes - 1)]
    MissingNodes {
        /// The nodes.
        missing: Vec<NodeId>,
        /// Number of nodes.
        nodes: u32,
    },
    /// The routes of a graph need more layers than they may use.
    #[error("the routes need {needed} layers, and {allowed} {} allowed: {why}", if *allowed == 1 { "is" } else { "are" })]
    NeedsLayers {
        /// How many they need.
        needed: usize,
        /// How many they may use.
        allowed: u8,
        /// The cycle that is left.
        why: CheckError,
    },
    /// The routes fail the check; for a graph, [`TopologyError::NeedsLayers`] says so.
    #[error(transparent)]
    Check(#[from] CheckError),
}

/// The first ranges of ascending nodes, and whether there are more: an error names enough of them to find the mistake.
fn first_ranges(nodes: &[NodeId]) -> String {
    const SHOWN: usize = 8;
    let mut ranges = ranges(nodes.iter().copied());
    if ranges.len() > SHOWN {
        ranges.truncate(SHOWN);
        ranges.push("...".to_owned());
    }
    ranges.join(",")
}
