// SPDX-License-Identifier: MIT OR Apache-2.0
//! The numbers behind every choice: a run replays from its seed alone.

/// A small deterministic generator (`fastrand`).
#[derive(Clone, Debug)]
pub(crate) struct Random(fastrand::Rng);

impl Random {
    /// The generator of stream `stream` of a seed: each node has its own, so that what one draws changes nothing for
    /// another.
    pub(crate) fn new(seed: u64, stream: u64) -> Random {
        // The first numbers of neighbouring seeds lie at equal distances; those of their forks do not.
        Random(fastrand::Rng::with_seed(seed ^ stream.wrapping_add(1).wrapping_mul(0xd134_2543_de82_ef95)).fork())
    }

    /// A number below `n`; 0 if `n` is 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.0.u64(..n) }
    }
}
