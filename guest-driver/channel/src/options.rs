// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a channel is made.

use std::time::Duration;
use telegraphos::Secret;

/// How an end of a channel is made. Each end chooses for itself, but for the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The secret that both ends must have; zeros mean none.
    pub key: Secret,
    /// Which processes may connect, as [`ExportBuilder::mode`](telegraphos::ExportBuilder::mode): 0o600 admits those
    /// of the same user, 0o606 all.
    pub mode: u32,
    /// Bytes of the ring in which this end receives: a power of two. A record has at most half of it, less 16 bytes.
    pub ring: u64,
    /// How long this end looks for what it waits for before it sleeps.
    pub look: Duration,
    /// How long connecting, and the admission of one process, may take.
    pub patience: Duration,
    /// Whether memory in common is used where there is any.
    pub direct: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            key: [0; 16],
            mode: 0o600,
            ring: 256 << 10,
            look: Duration::from_micros(100),
            patience: Duration::from_secs(5),
            direct: true,
        }
    }
}
