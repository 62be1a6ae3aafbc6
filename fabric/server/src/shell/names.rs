// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names of links and trunks, by which faults and notes of captures are known.

use telegraphos_topology::{SwitchId, Topology};
use telegraphos_wire::NodeId;

/// The name of a node's link.
pub(super) fn link_name(node: NodeId) -> String {
    format!("node:{node}")
}

/// The name of a trunk, by those of its switches, the first in the topology first.
pub(super) fn trunk_name(name: &str) -> String {
    format!("trunk:{name}")
}

/// The names of two switches, with a dash.
pub(super) fn between(topology: &Topology, a: SwitchId, b: SwitchId) -> String {
    format!("{}-{}", topology.name(a), topology.name(b))
}
