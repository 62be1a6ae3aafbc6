// SPDX-License-Identifier: MIT OR Apache-2.0
//! Layout of a notification queue in its receiver's memory (s0 §3; SPEC items 4-6, E5-E9, E11).
//!
//! A queue is a list of buffers in one *arena*. Word 0 of a buffer = `size << 16 | tail` (written by the HIB alone),
//! word 1 = `size << 16 | head` (written by the CPU alone), word 2 = `next`, data from index 3. Words have 4 or 8
//! bytes; in wide ones the upper half of the three header words is zero. Size, head and tail count words; a buffer is a
//! power of two words, aligned to its size, and at most 64 KiB, so `base | index` addresses an entry. `head == tail`
//! always means empty (E1).
//!
//! The first buffer, at arena index 0, is the one that senders address; it is the newest. `next` leads from it to older
//! ones: it is the arena index of the next buffer's word 0 and 0 at the end (E3, E9). The HIB never reads it.
//!
//! The word `state` of the [`Control`] page keeps dequeue and overflow handling apart (E11). Consumers enter by a
//! compare-and-swap that sets [`BUSY`] and their owner number while neither BUSY nor [`FULL`] is set, and leave by
//! clearing both; a consumer that then finds FULL set calls the driver. The driver sets FULL when the board has stopped
//! the queue, and acts only if BUSY was clear.

/// First data index.
pub const FIRST: u16 = 3;
/// Smallest buffer in words (E7).
pub const MIN_WORDS: u16 = 8;
/// Largest buffer in 32-bit words.
pub const MAX_WORDS: u16 = 1 << 14;
/// Largest buffer in bytes.
pub const MAX_BYTES: u64 = 1 << 16;

c_consts! {
    /// Layout for the C header.
    pub ALL: u64, prefix "TG_QUEUE_" {
        /// Index of the header word with the tail.
        TAIL_WORD = 0,
        /// Index of the header word with the head.
        HEAD_WORD = 1,
        /// Index of the header word with the arena index of the next older buffer.
        NEXT_WORD = 2,
        /// Index of the first data word.
        FIRST_WORD = 3,
        /// Words of the smallest buffer.
        WORDS_MIN = 8,
        /// Bytes of the largest buffer.
        BYTES_MAX = 65536,
        /// Linked buffers of a queue, at most.
        QUOTA_MAX = 1024,
        /// tg_queue_control.state: a consumer is in the dequeue section.
        BUSY = 1,
        /// tg_queue_control.state: the board has stopped the queue, and the driver has not handled it yet.
        FULL = 2,
        /// tg_queue_control.state: the quota is used up and senders are held back; a consumer that frees a buffer calls
        /// the driver.
        HELD = 4,
        /// tg_queue_control.state: the queue is broken or gone; see TG_IOCTL_QUEUE_STATE.
        DEAD = 8,
        /// Shift of the owner number in tg_queue_control.state.
        OWNER_SHIFT = 32,
        /// Bytes of the control page.
        CONTROL_SIZE = 4096,
    }
}

c_struct! {
    NATIVE {}
    /// The control page of a queue, shared by its consumers and the driver.
    pub struct Control as "tg_queue_control" {
        /// TG_QUEUE_* bits, and in bits 63:32 the owner number of the consumer that is BUSY, or was last.
        pub state: u64,
        /// Number of limit events: the linked buffers have reached the limit.
        pub limits: u64,
        /// Number of overflows handled.
        pub overflows: u64,
        /// Zero.
        pub reserved: [u64; 509],
    }
}

const _: () = assert!(size_of::<Control>() == CONTROL_SIZE as usize);

/// Words per buffer and bytes per word of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    words: u16,
    width: u8,
}

impl Shape {
    /// A checked shape: a power of two of words, 4 or 8 bytes each, at least 8 words and at most 64 KiB.
    pub fn new(words: u32, width: u32) -> Option<Shape> {
        let sane = matches!(width, 4 | 8)
            && words.is_power_of_two()
            && words >= u32::from(MIN_WORDS)
            && u64::from(words) * u64::from(width) <= MAX_BYTES;
        sane.then_some(Shape { words: words as u16, width: width as u8 })
    }

    /// Words of a buffer, header included.
    pub fn words(self) -> u16 {
        self.words
    }

    /// Bytes of a word: 4 or 8.
    pub fn width(self) -> u8 {
        self.width
    }

    /// Bytes of a buffer.
    pub fn bytes(self) -> u64 {
        u64::from(self.words) * u64::from(self.width)
    }

    /// Elements that a buffer holds: all but the header, and one that would make it look empty (E1).
    pub fn capacity(self) -> u16 {
        self.words - FIRST - 1
    }

    /// The header word of an empty buffer, for tail and head.
    pub fn empty(self) -> HeaderWord {
        HeaderWord { size: self.words, index: FIRST }
    }

    /// Checks a header word read from memory against this shape (SPEC I11: 3 <= index < size).
    #[inline]
    pub fn header(self, word: u64) -> Option<HeaderWord> {
        HeaderWord::decode(u32::try_from(word).ok()?).filter(|header| header.size == self.words)
    }
}

/// A header word: size and an index (tail in word 0, head in word 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeaderWord {
    /// Buffer size in words, header included.
    pub size: u16,
    /// Tail or head, in `FIRST..size`.
    pub index: u16,
}

impl HeaderWord {
    /// Checks size and index (SPEC I11: 3 <= index < size).
    pub fn decode(word: u32) -> Option<HeaderWord> {
        let (size, index) = ((word >> 16) as u16, word as u16);
        let ok = size.is_power_of_two() && (MIN_WORDS..=MAX_WORDS).contains(&size) && (FIRST..size).contains(&index);
        ok.then_some(HeaderWord { size, index })
    }

    /// The word in memory.
    pub fn encode(self) -> u32 {
        u32::from(self.size) << 16 | u32::from(self.index)
    }

    /// The index after this one: wraps size - 1 -> 3 (SPEC item 8, E5).
    pub fn advanced(self) -> HeaderWord {
        let next = self.index + 1;
        HeaderWord { index: if next & self.size != 0 { FIRST } else { next }, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i11_index_stays_between_three_and_size() {
        for shift in 3..=14 {
            let size = 1u16 << shift;
            let mut word = HeaderWord { size, index: FIRST };
            for _ in 0..u32::from(size) * 2 {
                word = word.advanced();
                assert_eq!(HeaderWord::decode(word.encode()), Some(word));
            }
        }
        for bad in [0, 7 << 16 | 3, 8 << 16 | 2, 8 << 16 | 8, 12 << 16 | 4, 0x8000 << 16 | 3] {
            assert_eq!(HeaderWord::decode(bad), None, "{bad:#x}");
        }
    }

    #[test]
    fn e7_shapes_are_powers_of_two_from_8_words_to_64_kib() {
        for (words, width) in [(8, 4), (1 << 14, 4), (8, 8), (1 << 13, 8)] {
            let shape = Shape::new(words, width).unwrap();
            assert_eq!((u32::from(shape.words()), u32::from(shape.width())), (words, width));
            assert_eq!(shape.header(shape.empty().encode().into()), Some(shape.empty()));
            assert_eq!(shape.header(1 << 32 | u64::from(shape.empty().encode())), None);
        }
        for (words, width) in [(4, 4), (12, 4), (1 << 15, 4), (1 << 14, 8), (0, 4), (8, 2), (8, 16), (u32::MAX, 4)] {
            assert_eq!(Shape::new(words, width), None, "{words} words of {width}");
        }
        assert_eq!(Shape::new(1 << 14, 4).unwrap().capacity(), 16380);
    }
}
