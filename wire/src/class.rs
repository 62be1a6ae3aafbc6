// SPDX-License-Identifier: MIT OR Apache-2.0
//! Classes of traffic.

use crate::numbers::numbers;

numbers! {
    /// Traffic class. A class may wait only for classes to its right; replies always sink (contract 3).
    #[derive(PartialOrd, Ord)]
    pub enum Class: u8, pub fn from_u8;

    /// Remote enqueue requests (s0).
    Enqueue = 0,
    /// Loads, stores, atomics, lookups.
    Request = 1,
    /// Multicast updates from the home node.
    Reflected = 2,
    /// Replies and acknowledgements.
    Reply = 3,
}
