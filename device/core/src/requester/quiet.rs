// SPDX-License-Identifier: MIT OR Apache-2.0
//! `quiet`: waits for stores and operations, and reports their losses (SPEC E19, I7). `contexts` owns those in
//! progress.

use crate::keyed::Key;
use telegraphos_wire::Status;

#[derive(Clone, Debug, Hash)]
pub(crate) struct Quiet {
    pub(crate) cookie: u64,
    /// Post an event when the quiet completes.
    pub(crate) notify: bool,
    /// The imports it waits for, ascending.
    pub(super) targets: Vec<QuietTarget>,
    /// The unfinished operations it waits for, ascending.
    pub(super) operations: Vec<Key>,
    /// Number of targets and operations that are unfinished.
    pub(super) unfinished: usize,
    /// The status to report: the first loss among the stores and operations it waits for, or an error that was latched
    /// when it was issued. A later acknowledgement does not change it.
    pub(super) lost: Option<Status>,
}

/// An import that a quiet waits for.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct QuietTarget {
    pub(super) import: u16,
    /// The opening of that import number: a reopened import has other stores.
    pub(super) opening: u64,
    /// The number of its stores that must be finished.
    pub(super) stores: u64,
    /// That many stores are finished.
    pub(super) reached: bool,
}

impl Quiet {
    /// What it waits for of an import, if anything.
    pub(super) fn target(&mut self, number: u16, opening: u64) -> Option<&mut QuietTarget> {
        let at = self.targets.binary_search_by_key(&number, |target| target.import).ok()?;
        self.targets.get_mut(at).filter(|target| target.opening == opening)
    }
}
