// SPDX-License-Identifier: MIT OR Apache-2.0
//! The producer's side of a ring.

use super::memory::Memory;
use super::shape::{END, FREE, JOINING, MAGIC, PLACES, SHAPE, Shape, commit};

/// The producer's view of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Free,
    /// Its consumer takes this message next.
    Taken(u64),
    /// Its consumer was evicted, and has not noticed yet.
    Evicted,
}

/// The producer's side. [`Memory`] has an example.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Producer {
    shape: Shape,
    next: u64,
    places: Vec<Place>,
}

impl Producer {
    /// Makes an empty ring of zeroed memory.
    pub fn create<M: Memory>(shape: Shape, memory: &M) -> Result<Producer, M::Error> {
        memory.store(SHAPE, u64::from(shape.slots) << 32 | u64::from(shape.slot_words))?;
        memory.store(PLACES, shape.consumers.into())?;
        memory.store(0, MAGIC)?;
        Ok(Producer { shape, next: 0, places: vec![Place::Free; shape.consumers as usize] })
    }

    /// The layout.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Messages pushed so far.
    pub fn pushed(&self) -> u64 {
        self.next
    }

    /// Reads all places: how much each consumer has taken, which ones join, and which have left.
    pub fn look<M: Memory>(&mut self, memory: &M) -> Result<(), M::Error> {
        for consumer in 0..self.shape.consumers {
            let word = memory.load(self.shape.place(consumer))?;
            let place = &mut self.places[consumer as usize];
            *place = match (*place, word) {
                // It has left, after it has noticed an eviction.
                (Place::Evicted, FREE | JOINING) => {
                    memory.store(self.shape.evicted(consumer), 0)?;
                    Place::Free
                }
                (Place::Evicted, _) => Place::Evicted,
                (_, FREE) => Place::Free,
                (before, _) => before,
            };
            *place = match (*place, word) {
                (_, JOINING) => {
                    // It may have left meanwhile.
                    match memory.compare_swap(self.shape.place(consumer), JOINING, self.next + 1)? {
                        JOINING => Place::Taken(self.next),
                        _ => Place::Free,
                    }
                }
                // An impossible number is ignored.
                (Place::Taken(before), word) if (before..=self.next).contains(&word.wrapping_sub(1)) => {
                    Place::Taken(word - 1)
                }
                (before, _) => before,
            };
        }
        Ok(())
    }

    /// The message that each consumer takes next, by its place, as last read.
    pub fn wanted(&self) -> impl Iterator<Item = (u32, u64)> {
        self.places.iter().zip(0..).filter_map(|(place, consumer)| match place {
            Place::Taken(next) => Some((consumer, *next)),
            Place::Free | Place::Evicted => None,
        })
    }

    /// The words of which one changes before [`Producer::look`] finds a consumer that joins, has taken messages, or
    /// leaves.
    pub fn waits_for(&self) -> impl Iterator<Item = u32> + use<> {
        let shape = self.shape;
        (0..shape.consumers).map(move |consumer| shape.place(consumer))
    }

    /// Stores a message, if the slowest consumer leaves room for it: whether it was stored. A message longer than
    /// [`Shape::message`] is truncated.
    pub fn push<M: Memory>(&mut self, memory: &M, message: &[u8]) -> Result<bool, M::Error> {
        self.look(memory)?;
        let slowest = self.wanted().map(|(_, next)| next).min().unwrap_or(self.next);
        if self.next - slowest >= self.shape.slots.into() {
            return Ok(false);
        }
        let message = &message[..message.len().min(self.shape.message() as usize)];
        let slot = self.shape.slot(self.next);
        for (word, bytes) in (slot..).zip(message.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            memory.store(word, u64::from_le_bytes(padded))?;
        }
        memory.store(slot + self.shape.slot_words - 1, commit(self.next, message.len()))?;
        self.next += 1;
        Ok(true)
    }

    /// Evicts a consumer; false if that place is free. The consumer notices before it takes a message that is not
    /// whole.
    pub fn evict<M: Memory>(&mut self, memory: &M, consumer: u32) -> Result<bool, M::Error> {
        match self.places.get_mut(consumer as usize) {
            Some(place @ Place::Taken(_)) => {
                memory.store(self.shape.evicted(consumer), 1)?;
                // In all copies before any of its messages is overwritten, in any page.
                memory.quiet()?;
                *place = Place::Evicted;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Marks the end: no message follows.
    pub fn end<M: Memory>(&mut self, memory: &M) -> Result<(), M::Error> {
        memory.store(END, self.next + 1)
    }
}
