// SPDX-License-Identifier: MIT OR Apache-2.0
//! The identity of a state: 64 bits, as the checker's own fingerprints, and the same in every run.

use ahash::RandomState;
use std::hash::Hash;

/// Two states with the same digest are the same: a few million of them have two by chance once in a million runs.
pub(crate) fn digest(state: &impl Hash) -> u64 {
    RandomState::with_seeds(1, 2, 3, 4).hash_one(state)
}
