// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of the ends, as tests have it.

use std::cell::RefCell;
use std::collections::VecDeque;
use telegraphos_channel_core::{Far, Layout, Near, WORD};

/// Words of the memory of one end, and behind them the word that wakes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Words(pub(crate) Vec<u64>);

impl Words {
    pub(crate) fn of(layout: Layout) -> Words {
        Words(vec![0; (layout.size() / WORD) as usize + 1])
    }

    fn index(&self, at: u64) -> usize {
        let index = (at / WORD) as usize;
        assert!(at % WORD == 0 && index < self.0.len(), "word {at} is misaligned, or beyond the memory");
        index
    }

    pub(crate) fn set(&mut self, at: u64, word: u64) {
        let index = self.index(at);
        self.0[index] = word;
    }
}

/// Bytes as the words that they take.
pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    })
}

/// Bytes out of words that begin at `at`.
pub(crate) fn read_words(at: u64, to: &mut [u8], load: impl Fn(u64) -> u64) {
    for (chunk, n) in to.chunks_mut(8).zip(0..) {
        chunk.copy_from_slice(&load(at + WORD * n).to_le_bytes()[..chunk.len()]);
    }
}

impl Near for Words {
    fn load(&self, at: u64) -> u64 {
        self.0[self.index(at)]
    }

    fn read(&self, at: u64, to: &mut [u8]) {
        read_words(at, to, |at| self.load(at));
    }
}

/// A store that is there at once.
impl Far for Words {
    fn store(&mut self, at: u64, word: u64) {
        self.set(at, word);
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        assert!(at % WORD == 0, "bytes at {at}, which is misaligned");
        for (word, n) in words(bytes).zip(0..) {
            self.set(at + WORD * n, word);
        }
    }

    fn fence(&mut self) {}
}

/// Stores that are under way: of a processor whose stores wait in a buffer, or posted ones of a board.
pub(crate) struct Posted<'a> {
    pub(crate) under_way: &'a mut VecDeque<(u64, u64)>,
    pub(crate) memory: &'a mut Words,
    /// Whether a fence waits until they are there.
    pub(crate) fence_waits: bool,
}

impl Far for Posted<'_> {
    fn store(&mut self, at: u64, word: u64) {
        self.under_way.push_back((at, word));
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        assert!(at % WORD == 0, "bytes at {at}, which is misaligned");
        self.under_way.extend(words(bytes).zip(0..).map(|(word, n)| (at + WORD * n, word)));
    }

    fn fence(&mut self) {
        if self.fence_waits {
            self.under_way.drain(..).for_each(|(at, word)| self.memory.set(at, word));
        }
    }
}

/// Memory whose words are changed by `change`, at any load.
pub(crate) struct Changing<F> {
    pub(crate) words: Words,
    pub(crate) change: RefCell<F>,
    pub(crate) loads: std::cell::Cell<u64>,
}

impl<F: FnMut(u64, u64) -> u64> Near for Changing<F> {
    fn load(&self, at: u64) -> u64 {
        self.loads.set(self.loads.get() + 1);
        (self.change.borrow_mut())(at, self.words.load(at))
    }

    fn read(&self, at: u64, to: &mut [u8]) {
        read_words(at, to, |at| self.load(at));
    }
}
