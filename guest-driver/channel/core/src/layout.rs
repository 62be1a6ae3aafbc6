// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where things lie in the memory of an end. All words are little-endian, of 64 bits, at multiples of 8.
//!
//! ```text
//!   0      CONSUMED   bytes of the other end's ring that the other end has taken
//!   64     ASLEEP     whether the other end sleeps: number of its sleep << 2 | what it waits for; 0 while it does not
//!   128    END        1 + bytes that the other end has sent, once it sends no more; 0 before
//!   256    ring       records of the other end; a power of two of bytes
//! ```
//!
//! The other end stores all of them, and this end none: each word has one writer, since atomic instructions of two
//! guests are not atomic towards each other under emulation.
//!
//! ```text
//!   a record: head, bytes up to a multiple of 8, at any word of the ring, which it may wrap around; behind it a 0
//!   head: length (0..32) · kind (32..40, not 0) · number of the record modulo 2^24 (40..64)
//! ```

/// Bytes of a word.
pub const WORD: u64 = 8;
/// Bytes that the other end has taken: its credits.
pub const CONSUMED: u64 = 0;
/// Whether the other end sleeps.
pub const ASLEEP: u64 = 64;
/// Where the other end's records end.
pub const END: u64 = 128;
/// First byte of the ring.
pub const RING: u64 = 256;

/// Sizes of the memory of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    capacity: u64,
}

/// A ring that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a ring of {0} bytes: expected a power of two from {min} to {max}", min = Layout::MIN, max = Layout::MAX)]
pub struct LayoutError(pub u64);

impl Layout {
    /// Bytes of the smallest ring.
    pub const MIN: u64 = 64;
    /// Bytes of the largest ring.
    pub const MAX: u64 = 1 << 30;

    /// That of a ring of so many bytes. Fails unless that is a power of two from [`Layout::MIN`] to [`Layout::MAX`].
    pub fn new(capacity: u64) -> Result<Layout, LayoutError> {
        let is_sound = capacity.is_power_of_two() && (Layout::MIN..=Layout::MAX).contains(&capacity);
        if is_sound { Ok(Layout { capacity }) } else { Err(LayoutError(capacity)) }
    }

    /// Bytes of the ring.
    pub fn capacity(self) -> u64 {
        self.capacity
    }

    /// Bytes of the whole memory.
    pub fn size(self) -> u64 {
        RING + self.capacity
    }

    /// Bytes of the longest record: with its head and the word behind it, half of the ring.
    pub fn max_record(self) -> u64 {
        self.capacity / 2 - 2 * WORD
    }

    /// Where the byte of the ring lies that has `position` before it, of all that were ever sent.
    pub fn at(self, position: u64) -> u64 {
        RING + (position & (self.capacity - 1))
    }

    /// Bytes from there to the end of the ring.
    pub(crate) fn run(self, position: u64) -> u64 {
        self.capacity - (position & (self.capacity - 1))
    }
}

/// Bytes of the words that hold so many bytes.
pub(crate) fn padded(length: u64) -> u64 {
    // Lengths are below 2^32.
    length.next_multiple_of(WORD)
}

/// The first word of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Head {
    /// Bytes of the record.
    pub length: u32,
    /// What the layer above distinguishes; not 0.
    pub kind: u8,
    /// Number of the record, of which 24 bits are kept.
    pub number: u64,
}

impl Head {
    /// Bits of a number that a head has.
    pub const NUMBER_BITS: u32 = 24;

    /// The word, which is not 0.
    pub fn encode(self) -> u64 {
        u64::from(self.length) | u64::from(self.kind) << 32 | self.number << 40
    }

    /// The mirror of [`Head::encode`], whatever the word is.
    pub fn decode(word: u64) -> Head {
        Head { length: word as u32, kind: (word >> 32) as u8, number: word >> 40 }
    }
}
