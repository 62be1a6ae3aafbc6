// SPDX-License-Identifier: MIT OR Apache-2.0
//! How two processes come to a channel: what each exports first, and the words in it.
//!
//! ```text
//!   the end that connects                                          the end that listens
//!   exports its control segment, and appends a hello to the queue of the name ──►
//!                                                imports the control segment; exports its own, and its memory
//!   ◄── answer in the control segment: there is memory, in common or not
//!   imports both; exports its own memory
//!   answer in the other's control segment ──►                      imports the memory
//!
//!   control segment: never memory in common, so that a board can be armed for its words
//!     0    MAGIC and version, 8 bytes of the ring, 128 name of the trust group       stored by its owner
//!     64   ANSWER, 72 WAKE, 80 PROBE                                                 stored by the other end
//! ```

use crate::layout::{Layout, LayoutError, WORD};

/// First word of a control segment; its low 16 bits are the version.
const MAGIC: u64 = 0x5447_4348_414e_0001;
/// Bytes of the name of a trust group, with a 0 behind it.
pub const GROUP_BYTES: usize = 64;
const GROUP_WORDS: usize = GROUP_BYTES / WORD as usize;
const GROUP: u64 = 128;
/// The word of the control segment that the other end answers in.
pub const ANSWER: u64 = 64;
/// The word of the control segment by which the other end wakes this one, by another number each time.
pub const WAKE: u64 = 72;
/// A word of the control segment that its owner never reads: a store of the other end to it, which is refused where the
/// owner is gone, shows whether it is there.
pub const PROBE: u64 = 80;
/// Bytes of a control segment.
pub const CONTROL_SIZE: u64 = 4096;

/// The element of the queue of a name: a process of that node has a control segment of that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hello {
    /// The node of the process that connects.
    pub node: u16,
    /// The number, which no other channel of that process has.
    pub number: u32,
}

impl Hello {
    /// The element.
    pub fn encode(self) -> u64 {
        u64::from(self.number) | u64::from(self.node) << 32 | 1 << 63
    }

    /// The mirror of [`Hello::encode`]; `None` for what that never makes.
    pub fn decode(word: u64) -> Option<Hello> {
        let hello = Hello { node: (word >> 32) as u16, number: word as u32 };
        (hello.encode() == word).then_some(hello)
    }
}

/// What an end says in its control segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Offer {
    /// Sizes of its memory.
    pub layout: Layout,
    /// Name of its trust group, padded with zeros; all zeros without one.
    pub group: [u8; GROUP_BYTES],
}

/// A control segment that is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OfferError {
    /// It has another first word.
    #[error(
        "a control segment that begins with {0:#x}: expected {MAGIC:#x}; both ends need one version of the library"
    )]
    Magic(u64),
    /// Its memory has sizes that cannot be.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

impl Offer {
    /// The words, and where each goes. The first is stored last.
    pub fn words(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + use<> {
        let mut words = [(0, MAGIC); 2 + GROUP_WORDS];
        words[1] = (8, self.layout.capacity());
        for ((word, chunk), n) in words[2..].iter_mut().zip(self.group.chunks_exact(8)).zip(0..) {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(chunk);
            *word = (GROUP + WORD * n, u64::from_le_bytes(bytes));
        }
        words.into_iter()
    }

    /// The mirror of [`Offer::words`]: `load` loads a word of the other end's control segment, once each.
    pub fn read<E: From<OfferError>>(mut load: impl FnMut(u64) -> Result<u64, E>) -> Result<Offer, E> {
        match load(0)? {
            MAGIC => {}
            other => return Err(OfferError::Magic(other).into()),
        }
        let layout = Layout::new(load(8)?).map_err(OfferError::Layout)?;
        let mut group = [0; GROUP_BYTES];
        for (chunk, n) in group.chunks_exact_mut(8).zip(0..) {
            chunk.copy_from_slice(&load(GROUP + WORD * n)?.to_le_bytes());
        }
        Ok(Offer { layout, group })
    }

    /// Whether two ends may have memory in common.
    pub fn is_of_group(&self, other: &Offer) -> bool {
        self.group[0] != 0 && self.group == other.group
    }
}

/// An answer in the other end's control segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    /// Whether this end's memory is that of the trust group.
    pub direct: bool,
}

impl Answer {
    /// The word, which is not 0.
    pub fn encode(self) -> u64 {
        2 | u64::from(self.direct)
    }

    /// The mirror of [`Answer::encode`]; `None` for what that never makes.
    pub fn decode(word: u64) -> Option<Answer> {
        let answer = Answer { direct: word & 1 != 0 };
        (answer.encode() == word).then_some(answer)
    }
}
