// SPDX-License-Identifier: MIT OR Apache-2.0
//! A consumer's side of a ring.

use super::memory::Memory;
use super::shape::{END, FREE, JOINING, LENGTH_BITS, MAGIC, PLACES, SHAPE, Shape, commit};

/// How joining ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Joined {
    /// As this consumer.
    Consumer(Consumer),
    /// All places are taken.
    Full,
    /// The producer has not made the ring yet: try again.
    Unready,
    /// The words are not a ring of this version and size.
    Unsound,
}

/// The outcome of [`Consumer::pop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Found {
    /// The next message, whole.
    Message,
    /// No message.
    Empty,
    /// No message follows.
    Ended,
    /// The producer has evicted this consumer.
    Evicted,
}

/// A consumer's side. [`Memory`] has an example.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Consumer {
    shape: Shape,
    place: u32,
    /// The next message, once the producer has assigned the first.
    next: Option<u64>,
    /// The number last reported to the producer.
    reported: u64,
}

impl Consumer {
    /// Claims a place in the ring in `bytes` of memory. The producer assigns the first message at its next look.
    pub fn join<M: Memory>(memory: &M, bytes: u64) -> Result<Joined, M::Error> {
        match memory.load(0)? {
            MAGIC => {}
            0 => return Ok(Joined::Unready),
            _ => return Ok(Joined::Unsound),
        }
        let (words, consumers) = (memory.load(SHAPE)?, memory.load(PLACES)?);
        let shape = u32::try_from(consumers).ok().and_then(|c| Shape::of((words >> 32) as u32, words as u32, c));
        let Some(shape) = shape.filter(|shape| shape.bytes() <= bytes) else { return Ok(Joined::Unsound) };
        for place in 0..shape.consumers {
            let word = shape.place(place);
            if memory.load(word)? == FREE && memory.compare_swap(word, FREE, JOINING)? == FREE {
                return Ok(Joined::Consumer(Consumer { shape, place, next: None, reported: 0 }));
            }
        }
        Ok(Joined::Full)
    }

    /// The layout.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Its place.
    pub fn place(&self) -> u32 {
        self.place
    }

    /// The number of the next message; `None` until the producer has assigned the first.
    pub fn next(&self) -> Option<u64> {
        self.next
    }

    /// Takes the next message into `message`.
    ///
    /// Reports to the producer when a quarter of the ring has been read, and when there is no more to read: each report
    /// is a store to all copies.
    pub fn pop<M: Memory>(&mut self, memory: &M, message: &mut Vec<u8>) -> Result<Found, M::Error> {
        let next = match self.next {
            Some(next) => next,
            None => match memory.load(self.shape.place(self.place))? {
                // The claim has not reached this copy yet, or was not answered.
                JOINING | FREE => return Ok(Found::Empty),
                word => {
                    self.reported = word - 1;
                    *self.next.insert(word - 1)
                }
            },
        };
        let slot = self.shape.slot(next);
        let word = memory.load(slot + self.shape.slot_words - 1)?;
        let length = (word & ((1 << LENGTH_BITS) - 1)) as usize;
        if word != commit(next, length) || length > self.shape.message() as usize {
            return self.nothing(memory, next);
        }
        message.clear();
        for word in (slot..).take(length.div_ceil(8)) {
            message.extend_from_slice(&memory.load(word)?.to_le_bytes());
        }
        message.truncate(length);
        // Behind the data: had that been overwritten by now, this would be set.
        if memory.load(self.shape.evicted(self.place))? != 0 {
            return Ok(Found::Evicted);
        }
        self.next = Some(next + 1);
        if next + 1 - self.reported >= u64::from(self.shape.slots / 4).max(1) {
            self.report(memory, next + 1)?;
        }
        Ok(Found::Message)
    }

    fn nothing<M: Memory>(&mut self, memory: &M, next: u64) -> Result<Found, M::Error> {
        if memory.load(self.shape.evicted(self.place))? != 0 {
            return Ok(Found::Evicted);
        }
        if next != self.reported {
            self.report(memory, next)?;
        }
        Ok(if memory.load(END)? == next + 1 { Found::Ended } else { Found::Empty })
    }

    fn report<M: Memory>(&mut self, memory: &M, next: u64) -> Result<(), M::Error> {
        self.reported = next;
        memory.store(self.shape.place(self.place), next + 1)
    }

    /// The words of which one changes before [`Consumer::pop`] finds another thing than [`Found::Empty`].
    pub fn waits_for(&self) -> impl Iterator<Item = u32> + use<> {
        let word = match self.next {
            Some(next) => self.shape.slot(next) + self.shape.slot_words - 1,
            None => self.shape.place(self.place),
        };
        [word, self.shape.evicted(self.place), END].into_iter()
    }

    /// Leaves the place, also one that it was evicted from.
    pub fn leave<M: Memory>(self, memory: &M) -> Result<(), M::Error> {
        // The producer may assign the place at the same time: either its atomic comes first, and then it sees this
        // store, or it comes later and fails.
        memory.store(self.shape.place(self.place), FREE)
    }
}
