// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a topology is refused.

use crate::CheckError;
use crate::lists::ranges;

/// Why a topology, or the file that describes it, is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// What is wrong, by its name and value, and what was expected.
    #[error("{0}")]
    Refused(String),
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
}

/// A [`TopologyError::Refused`] with a text as of `format!`.
macro_rules! refused {
    ($($text:tt)*) => {
        $crate::TopologyError::Refused(format!($($text)*))
    };
}
pub(crate) use refused;

/// Not each of the nodes, `missing` of them, is at a switch. Names enough of them to find the mistake.
pub(crate) fn missing_nodes(missing: impl Iterator<Item = crate::NodeId>, nodes: usize) -> TopologyError {
    const SHOWN: usize = 8;
    let mut ranges = ranges(missing);
    if ranges.len() > SHOWN {
        ranges.truncate(SHOWN);
        ranges.push("...".to_owned());
    }
    let (first, last) = (ranges.join(","), nodes - 1);
    refused!("nodes without a switch: {first}; expected each of the {nodes} nodes (0 to {last}) at one switch")
}
