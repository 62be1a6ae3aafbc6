// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pending operations of the programs.

use super::record::Stored;

pub(crate) struct Load {
    pub(crate) mended: u32,
    pub(crate) token: u64,
    pub(crate) place: usize,
    pub(crate) offset: u64,
    pub(crate) size: u8,
    /// The newest own store to each byte, if none has failed.
    pub(crate) newest: Vec<(usize, u8)>,
}

pub(crate) struct Quiet {
    pub(crate) mended: u32,
    /// It waits for an atomic that was launched before the export page was repaired, and reports its status (SPEC I7).
    pub(crate) older: bool,
    pub(crate) cookie: u64,
    pub(crate) place: usize,
    pub(crate) stores: Vec<Stored>,
}

pub(crate) struct Atomic {
    pub(crate) mended: u32,
    pub(crate) cookie: u64,
    pub(crate) place: usize,
    pub(crate) store: Stored,
    pub(crate) compare: Option<u64>,
}

/// The pending operations of a node's program: at most one load, one quiet and one atomic.
#[derive(Default)]
pub(crate) struct Program {
    pub(crate) load: Option<Load>,
    pub(crate) quiet: Option<Quiet>,
    pub(crate) atomic: Option<Atomic>,
}

impl Program {
    pub(crate) fn uses(&self, place: usize) -> bool {
        let of = [
            self.load.as_ref().map(|load| load.place),
            self.quiet.as_ref().map(|quiet| quiet.place),
            self.atomic.as_ref().map(|atomic| atomic.place),
        ];
        of.contains(&Some(place))
    }

    pub(crate) fn waits(&self) -> bool {
        self.load.is_some() || self.quiet.is_some() || self.atomic.is_some()
    }
}
