// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deliberate bugs that the fabric's conformance suite must find; its table names the check of each.

/// Deliberate bugs behind the `bugs` feature, each of which a check of the conformance suite must find.
#[cfg_attr(not(feature = "bugs"), expect(unreachable_pub, reason = "exported with the feature only"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A dropped transport keeps its descriptors.
    KeepDescriptors,
    /// The end overtakes bytes that have arrived.
    EndOvertakes,
}
