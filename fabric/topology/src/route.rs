// SPDX-License-Identifier: MIT OR Apache-2.0
//! What routes are made of.

use crate::{SwitchId, TrunkId};

/// What joins two switches; there is at most one trunk between any two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Trunk {
    /// The end with the lower number.
    pub a: SwitchId,
    pub b: SwitchId,
}

impl Trunk {
    /// The end that is not `at`, which is one of them.
    pub(crate) fn other_end(self, at: SwitchId) -> SwitchId {
        if self.a == at { self.b } else { self.a }
    }
}

/// One step of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    pub trunk: TrunkId,
    /// The layer to take on it, below [`Topology::layers`](crate::Topology::layers).
    pub layer: u8,
}

/// What the routes say of a packet that arrives at a switch by a trunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transit {
    /// The step at the other end of the trunk: by this trunk, on its layer, if the packet is on its route.
    pub came: Option<Hop>,
    /// Whether what comes from its source arrives by this trunk.
    pub arrives: bool,
    /// The next step; `None` at the destination.
    pub next: Option<Hop>,
}
