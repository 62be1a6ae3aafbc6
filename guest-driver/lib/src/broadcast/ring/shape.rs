// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layout of a ring.

/// Word 0 once the header is complete; its low 16 bits are the layout's version.
pub const MAGIC: u64 = 0x5447_4252_4f41_0001;
/// Bytes of a page, within which stores are in order.
pub const PAGE: u64 = telegraphos_wire::UNIT;
/// Places for consumers, at most.
pub const CONSUMERS_MAX: u32 = 255;
/// Bytes of a message, at most.
pub const MESSAGE_MAX: u32 = PAGE as u32 - 8;

pub(super) const SHAPE: u32 = 1;
pub(super) const PLACES: u32 = 2;
pub(super) const END: u32 = 3;
pub(super) const FIRST_PLACE: u32 = 4;
pub(super) const FREE: u64 = 0;
pub(super) const JOINING: u64 = u64::MAX;
pub(super) const LENGTH_BITS: u32 = 16;

/// The layout of a ring.
///
/// ```
/// use telegraphos::broadcast::ring::Shape;
///
/// let shape = Shape::new(64, 250, 16).unwrap();
/// assert_eq!((shape.slots(), shape.message(), shape.consumers()), (64, 504, 16)); // a slot is a power of two words
/// assert_eq!(Shape::new(64, 0, 16), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    pub(super) slots: u32,
    pub(super) slot_words: u32,
    pub(super) consumers: u32,
}

impl Shape {
    /// A ring of `slots` messages of at most `message` bytes for at most `consumers`; `None` for
    /// invalid numbers: `slots` is 1 to 65536, `message` 1 to [`MESSAGE_MAX`], `consumers` 1 to [`CONSUMERS_MAX`].
    pub fn new(slots: u32, message: u32, consumers: u32) -> Option<Shape> {
        if message == 0 || message > MESSAGE_MAX {
            return None;
        }
        // A power of two, so that no slot lies in two pages.
        Shape::of(slots, (message.div_ceil(8) + 1).next_power_of_two(), consumers)
    }

    /// The layout of a ring with slots of `slot_words` words, if that is valid.
    pub(super) fn of(slots: u32, slot_words: u32, consumers: u32) -> Option<Shape> {
        let sound = (1..=1 << 16).contains(&slots)
            && slot_words.is_power_of_two()
            && (2..=PAGE as u32 / 8).contains(&slot_words)
            && (1..=CONSUMERS_MAX).contains(&consumers);
        // At most 2^29 words and the header, which 32 bits count.
        sound.then_some(Shape { slots, slot_words, consumers })
    }

    /// Messages that the slowest consumer may be behind.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of a message, at most.
    pub fn message(&self) -> u32 {
        (self.slot_words - 1) * 8
    }

    /// Places for consumers.
    pub fn consumers(&self) -> u32 {
        self.consumers
    }

    /// Bytes of the whole ring.
    pub fn bytes(&self) -> u64 {
        8 * (u64::from(self.first_slot()) + u64::from(self.slots) * u64::from(self.slot_words))
    }

    /// The word with which the slots begin.
    pub(super) fn first_slot(&self) -> u32 {
        (FIRST_PLACE + 2 * self.consumers).next_multiple_of(self.slot_words)
    }

    /// The first word of the slot of a message.
    pub(super) fn slot(&self, message: u64) -> u32 {
        self.first_slot() + (message % u64::from(self.slots)) as u32 * self.slot_words
    }

    /// The word of a consumer's place.
    pub(super) fn place(&self, consumer: u32) -> u32 {
        FIRST_PLACE + consumer
    }

    /// The word that is 1 once that consumer is evicted.
    pub(super) fn evicted(&self, consumer: u32) -> u32 {
        FIRST_PLACE + self.consumers + consumer
    }
}

/// The word behind a message's data.
pub(super) fn commit(message: u64, bytes: usize) -> u64 {
    (message + 1) << LENGTH_BITS | bytes as u64
}
