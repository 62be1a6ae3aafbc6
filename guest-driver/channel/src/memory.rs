// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of the two ends: a segment of this node, and an import of the other's.

use std::time::Duration;
use telegraphos::{Remote, Segment};
use telegraphos_channel_core::{Far, Near};

/// How long a fence may wait for boards to acknowledge stores.
const FENCE: Duration = Duration::from_secs(1);

/// This end's memory.
#[derive(Debug)]
pub(crate) struct NearMemory(pub(crate) Segment);

impl Near for NearMemory {
    #[inline]
    fn load(&self, at: u64) -> u64 {
        // It has the size of the layout, beyond which nothing is loaded. A 0 says that there is nothing.
        self.0.load(at).unwrap_or(0)
    }

    #[inline]
    fn read(&self, at: u64, to: &mut [u8]) {
        // As above.
        _ = self.0.load_bytes(at, to);
    }
}

/// The other end's memory. Stores are single instructions, whether they trap or not: an import that was memory in
/// common may be the board's at any time.
#[derive(Debug)]
pub(crate) struct FarMemory {
    pub(crate) remote: Remote,
    /// Whether stores are in memory at once.
    pub(crate) is_direct: bool,
    /// The first error of a store or a fence.
    pub(crate) failed: Option<telegraphos::Error>,
}

impl FarMemory {
    pub(crate) fn new(remote: Remote, is_direct: bool) -> FarMemory {
        FarMemory { remote, is_direct, failed: None }
    }

    #[inline]
    fn note(&mut self, done: telegraphos::Result<()>) {
        if let Err(error) = done {
            self.failed.get_or_insert(error);
        }
    }
}

impl Far for FarMemory {
    #[inline]
    fn store(&mut self, at: u64, word: u64) {
        // On x86 stores are in order, through windows and to memory.
        if !cfg!(target_arch = "x86_64") {
            telegraphos::fence();
        }
        let done = self.remote.put(at, word);
        self.note(done);
    }

    #[inline]
    fn write(&mut self, at: u64, bytes: &[u8]) {
        let done = self.remote.put_bytes(at, bytes);
        self.note(done);
    }

    #[inline]
    fn fence(&mut self) {
        telegraphos::fence();
        if !self.is_direct {
            let done = self.remote.quiet_timeout(FENCE);
            self.note(done);
        }
    }
}
