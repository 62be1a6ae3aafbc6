// SPDX-License-Identifier: MIT OR Apache-2.0
//! Invalid words in a queue.

use std::fmt;
use telegraphos_wire::queue::{HEAD_WORD, Shape, TAIL_WORD};

/// An invalid word of the arena.
///
/// ```
/// use telegraphos::queue::dequeue::{Broken, Fault};
/// use telegraphos_wire::queue::Shape;
///
/// let broken = Broken { word: 2, value: 5, fault: Fault::Link, shape: Shape::new(8, 4).unwrap(), quota: 2 };
/// assert_eq!(broken.to_string(), "word 2 (next of buffer 0) is 0x5: expected 0 or a multiple of 8 up to 16");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Broken {
    /// Its index in the arena.
    pub word: u32,
    /// Its value.
    pub value: u64,
    /// What is wrong with it.
    pub fault: Fault,
    /// The shape of the queue.
    pub shape: Shape,
    /// The quota of the queue.
    pub quota: u32,
}

/// What is wrong with a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A header word: not this queue's size, or its index lies outside 3 to size - 1 (SPEC I11).
    Header,
    /// A link that leads to no linked buffer.
    Link,
    /// A link behind as many buffers as the queue has: they form a ring.
    Ring,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = u32::from(self.shape.words());
        let name = match u64::from(self.word % words) {
            TAIL_WORD => "size and tail",
            HEAD_WORD => "size and head",
            _ => "next",
        };
        write!(f, "word {} ({name} of buffer {}) is {:#x}: expected ", self.word, self.word / words, self.value)?;
        match self.fault {
            Fault::Header => write!(f, "{words:#x} << 16 | an index from 3 to {}", words - 1),
            Fault::Link => write!(f, "0 or a multiple of {words} up to {}", words * self.quota),
            Fault::Ring => write!(f, "0, since {} buffers have come before", 1 + self.quota),
        }
    }
}

impl std::error::Error for Broken {}
