// SPDX-License-Identifier: MIT OR Apache-2.0
//! What identifies the stores of an import at their responder.

/// The stores that belong together: if one of them is lost, all later ones are refused.
///
/// A board gives each import an epoch when it is opened, and another one when the driver acknowledges a refusal; no two
/// openings or acknowledgements of a board have the same one (modulo 2^32). A responder that refuses a store refuses
/// every later one of the same import and epoch, so that none passes a lost one (SPEC I8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ImportEpoch {
    /// Number of the import in the sender's table.
    pub import: u16,
    /// Its present epoch.
    pub epoch: u32,
}
