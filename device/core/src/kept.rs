// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that is used again, so that a message allocates none.

use std::fmt::{self, Debug};
use std::hash::{Hash, Hasher};

/// What is kept of one kind, at most: as much is rarely needed at the same time for longer than a turn.
pub(crate) const KEPT: usize = 64;

/// Empty boxes or lists. Not part of the state that is hashed and shown: what uses them behaves the same whatever
/// memory it has.
#[derive(Clone)]
pub(crate) struct Kept<T>(Vec<T>);

impl<T> Default for Kept<T> {
    fn default() -> Kept<T> {
        Kept(Vec::new())
    }
}

impl<T> Hash for Kept<T> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl<T> Debug for Kept<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

impl<T> Kept<T> {
    /// Takes one, if there is one.
    pub(crate) fn take(&mut self) -> Option<T> {
        self.0.pop()
    }

    /// Keeps one, which the caller has emptied, unless [`KEPT`] are.
    pub(crate) fn put(&mut self, empty: T) {
        if self.0.len() < KEPT {
            self.0.push(empty);
        }
    }

    /// All that are kept.
    #[cfg(test)]
    pub(crate) fn all(&self) -> &[T] {
        &self.0
    }
}
