// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a queue in the model, and the names of its words and elements.

use super::buffers::Buffers;
use std::fmt;
use telegraphos_wire::queue::{HEAD_WORD, NEXT_WORD, Shape, TAIL_WORD};

/// Words of a buffer; they have 4 bytes.
pub(crate) const WORDS: u32 = 8;
/// Room for the first buffer and a quota of two.
pub(crate) const ROOM: usize = 3;
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Arena(pub(crate) [u32; WORDS as usize * ROOM]);

pub(crate) fn shape() -> Shape {
    Shape::new(WORDS, 4).expect("8 words of 4 bytes")
}

/// The number of an element: of which sender, which of its elements, both from 1.
pub(crate) fn element(sender: usize, number: u32) -> u32 {
    (sender as u32 + 1) << 8 | number
}

pub(crate) fn name(element: u32) -> String {
    match (element >> 8, element & 0xff) {
        (0, 0) => "nothing".into(),
        (sender @ 1..=26, number) => format!("{}{number}", char::from(b'a' + (sender - 1) as u8)),
        _ => format!("{element:#x}"),
    }
}

pub(crate) fn letter(buffer: u32) -> char {
    char::from(b'A' + buffer as u8)
}

/// The name of a word of the arena.
pub(crate) struct Word(pub(crate) u32);

impl Word {
    pub(crate) fn show(word: u32, value: u32) -> String {
        match u64::from(word % WORDS) {
            TAIL_WORD | HEAD_WORD if value >> 16 == WORDS => (value & 0xffff).to_string(),
            NEXT_WORD if value == 0 => "end".into(),
            NEXT_WORD if value % WORDS == 0 => letter(value / WORDS).to_string(),
            TAIL_WORD | HEAD_WORD | NEXT_WORD => format!("{value:#x}"),
            _ => name(value),
        }
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buffer = letter(self.0 / WORDS);
        match u64::from(self.0 % WORDS) {
            TAIL_WORD => write!(f, "{buffer}.tail"),
            HEAD_WORD => write!(f, "{buffer}.head"),
            NEXT_WORD => write!(f, "{buffer}.next"),
            index => write!(f, "{buffer}[{index}]"),
        }
    }
}

impl Arena {
    /// Whether every size, head and tail is in its range (I11).
    pub(crate) fn is_sound(&self, buffers: u32) -> bool {
        let header = |buffer: u32, word: u64| shape().header(self.0[(buffer * WORDS) as usize + word as usize].into());
        (0..buffers).all(|buffer| header(buffer, TAIL_WORD).is_some() && header(buffer, HEAD_WORD).is_some())
    }

    /// Whether an element is among those committed in these buffers.
    pub(crate) fn holds(&self, element: u32, mut buffers: impl Iterator<Item = u32>) -> bool {
        buffers.any(|buffer| {
            let at = (buffer * WORDS) as usize;
            let header = |word: u64| shape().header(self.0[at + word as usize].into());
            let (Some(tail), Some(mut head)) = (header(TAIL_WORD), header(HEAD_WORD)) else { return false };
            while head != tail {
                if self.0[at + usize::from(head.index)] == element {
                    return true;
                }
                head = head.advanced();
            }
            false
        })
    }
}

impl Arena {
    /// Copies the buffers in, for the driver's code.
    pub(crate) fn copy_to(&self, buffers: &mut Buffers, count: u32) {
        for word in 0..count * WORDS {
            buffers.set_word((word / WORDS) as usize, word % WORDS, self.0[word as usize].into());
        }
    }

    /// Copies them back.
    pub(crate) fn copy_from(&mut self, buffers: &Buffers, count: u32) {
        for word in 0..count * WORDS {
            self.0[word as usize] = buffers.word((word / WORDS) as usize, word % WORDS) as u32;
        }
    }
}
