// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deliberate bugs of the cores, to see that a run shows them.

/// Which, if any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bugs {
    pub board: Option<telegraphos_device_core::Bug>,
    pub switch: Option<telegraphos_fabric_core::Bug>,
}
