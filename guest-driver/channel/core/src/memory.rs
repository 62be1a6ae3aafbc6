// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of the two ends, as one of them has it. Offsets are multiples of 8 below [`Layout::size`](crate::Layout).

/// This end's memory, which the other end stores into at any time.
pub trait Near {
    /// Loads a word, with acquire order: what the other end has stored before that word is loaded by what follows.
    fn load(&self, at: u64) -> u64;

    /// Copies the bytes from there on, which need no order.
    fn read(&self, at: u64, to: &mut [u8]);
}

/// The other end's memory. Its owner loads from it at any time, and stores nothing into it.
pub trait Far {
    /// Stores a word, with release order: no earlier [`Far::write`] or [`Far::store`] is seen after it.
    fn store(&mut self, at: u64, word: u64);

    /// Stores bytes from there on, in whole words: what the last word has beyond them is arbitrary.
    fn write(&mut self, at: u64, bytes: &[u8]);

    /// Returns when the other end loads all that was stored before, and before any later load from [`Near`] (a full
    /// fence). In memory in common that is an instruction of the processor. Through boards, where a store is posted, it
    /// is a wait for their acknowledgement (`quiet`).
    fn fence(&mut self);
}
