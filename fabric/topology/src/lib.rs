// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the switches of a fabric are joined, and the routes between them: pure, the same on all hosts.
//!
//! ```text
//!   Topology ── switches, joined by trunks; each node at one switch
//!      │  hop       next trunk and layer of a route                 grid.rs, tree.rs: closed forms
//!      │  children  where the tree of one source leads             graph.rs: tables, layers.rs: their layers
//!      │  check     proof that no routes can block each other in a circle
//!   Plan ────── with names, the processes that host the switches, the addresses of trunks between them: one file
//! ```
//!
//! Every topology keeps these promises, which [`Topology::check`] verifies:
//!
//! - there is a route between any two switches, and none crosses a switch twice;
//! - the way back uses the same trunks as the way there;
//! - each part of a route is the route between its ends. So the routes of one source form a tree, and what it sends to
//!   many (packets to groups, news of its presence) goes along that tree in order with everything else it sends;
//! - channel dependencies have no cycle (SPEC item 15, I13). A *channel* is one direction of a trunk in one layer, with
//!   credits of its own; a channel depends on another if a packet in the first can wait for room in the second. Without
//!   a cycle of such waits the packet at the end of each chain moves on (Dally and Seitz, 1987).
//!
//! `docs/topologies.md` says how to choose a topology.
#![forbid(unsafe_code)]

#[macro_use]
mod hook;
#[cfg(feature = "bugs")]
mod bugs;
mod check;
mod dependencies;
mod digest;
mod draw;
mod error;
mod graph;
mod grid;
mod layers;
mod lists;
mod plan;
mod route;
mod shape;
#[cfg(feature = "bugs")]
mod spoiled;
mod svg;
mod text;
mod topology;
mod tree;

#[cfg(feature = "bugs")]
pub use bugs::Bug;
pub use check::CheckReport;
pub use error::{Channel, CheckError, TopologyError};
pub use plan::{Plan, TrunkAddress};
pub use route::{Hop, Transit, Trunk};
pub use shape::Shape;
pub use telegraphos_wire::NodeId;
pub use topology::Topology;

/// A switch: from 0 on, in the order of the file or of the closed form.
pub type SwitchId = u16;
/// A trunk: the index of [`Topology::trunks`].
pub type TrunkId = u16;

/// The most nodes of a fabric: as many as a window can address.
pub const MAX_NODES: u32 = telegraphos_wire::link::MAX_MEMBERS as u32;
/// The most switches of a star, tree, mesh or torus.
pub const MAX_SWITCHES: u32 = 1 << 12;
/// The most switches of a graph, whose routes are in tables.
pub const MAX_GRAPH_SWITCHES: usize = 1 << 8;
/// The most layers (virtual channels) of a trunk, and how many a topology may use by default.
pub const MAX_LAYERS: u8 = telegraphos_wire::link::MAX_LAYERS;
/// Nodes of a fabric by default.
pub const DEFAULT_NODES: u32 = 64;
