// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hook by which deliberate bugs get into a topology.

/// Whether the topology at work has this deliberate bug. Without the feature `bugs` it is `false`, whatever the name.
#[cfg(feature = "bugs")]
macro_rules! bug {
    ($name:ident) => {
        crate::bugs::has(crate::bugs::Bug::$name)
    };
}

/// Whether the topology at work has this deliberate bug. Without the feature `bugs` it is `false`, whatever the name.
#[cfg(not(feature = "bugs"))]
macro_rules! bug {
    ($name:ident) => {
        false
    };
}
