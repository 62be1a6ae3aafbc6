// SPDX-License-Identifier: MIT OR Apache-2.0
//! The event queue: causes are pending bits, posted oldest first while the ring in guest memory has room.
//!
//! The part that changes a state marks a cause through [`Ctx::cause`](crate::ctx::Ctx::cause). The value of the event
//! is read from that part when the event is posted, at the end of [`Hib::handle`](crate::Hib::handle).

use std::collections::{BTreeSet, VecDeque};
use telegraphos_wire::event::{EVENTS_MAX, EVENTS_MIN};
use telegraphos_wire::{NodeId, Status};

/// A state change that the driver must handle. Each cause is pending at most once; its value is read when it is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Cause {
    AdminDone(u32),
    ImportState(u16),
    NodeState(NodeId),
    LinkState,
    Error,
    Context(u16),
    ContextState(u16),
    Counter(u16),
    Queue(u32),
    Replica(u32),
    Direct,
}

/// What follows the store of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// The ring has been disabled meanwhile.
    Nowhere,
    /// The entry is posted; whether the ring was empty before.
    Posted { was_empty: bool },
    /// The driver's count at this address is to be read, and passed to [`Events::counted`].
    Compare { address: u64 },
}

/// The ring as the driver programmed it, and the pending causes.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Events {
    pub(crate) base: u64,
    pub(crate) size: u32,
    /// Address of the word in which the driver counts what it has consumed; 0: it writes EVENT_CONSUMER.
    pub(crate) index: u64,
    posted: u32,
    /// What the driver has consumed, as far as it has said.
    pub(crate) consumer: u32,
    posting: bool,
    pending: BTreeSet<Cause>,
    order: VecDeque<Cause>,
}

impl Events {
    /// Disables the ring after a failed store. Causes stay pending until the driver programs another ring.
    pub(crate) fn disable(&mut self) {
        self.size = 0;
        self.posting = false;
    }

    /// Returns whether the ring has events that the driver has not consumed.
    pub(crate) fn unconsumed(&self) -> bool {
        self.posted != self.consumer
    }

    /// Returns whether a ring is programmed and full.
    pub(crate) fn is_full(&self) -> bool {
        self.size > 0 && self.posted.wrapping_sub(self.consumer) >= self.size
    }

    /// Marks a cause as pending, if it is not.
    pub(crate) fn note(&mut self, cause: Cause) {
        if self.pending.insert(cause) {
            self.order.push_back(cause);
        }
    }

    /// Whether a cause is pending.
    pub(crate) fn is_pending(&self) -> bool {
        !self.order.is_empty()
    }

    /// Takes the oldest pending cause. Returns `None` if there is none, the ring is full or disabled, or an event is
    /// being stored.
    pub(crate) fn next(&mut self) -> Option<Cause> {
        if self.order.is_empty() || self.posting || self.size == 0 || self.is_full() {
            return None;
        }
        let cause = self.order.pop_front()?;
        self.pending.remove(&cause);
        Some(cause)
    }

    /// Starts an entry of the ring. Returns its words with their addresses, in the order in which they are stored.
    pub(crate) fn post(&mut self, kind: u16, index: u16, value: u64) -> [(u64, u64); 2] {
        self.posting = true;
        let entry = self.base + u64::from(self.posted & (self.size - 1)) * 16;
        let seq = self.posted.wrapping_add(1);
        let word = u64::from(kind) | u64::from(index) << 16 | u64::from(seq) << 32;
        [(entry, value), (entry + 8, word)]
    }

    /// The entry is stored. If the driver counts in memory, it is posted by [`Events::counted`], else it is now.
    pub(crate) fn stored(&mut self) -> Stored {
        match self.index {
            address if address != 0 && self.size != 0 => Stored::Compare { address },
            _ => self.posted().map_or(Stored::Nowhere, |was_empty| Stored::Posted { was_empty }),
        }
    }

    /// Ends an entry with the driver's count, as read after the entry was stored; `None` if it could not be read. Fails
    /// with `Invalid` for a count outside the posted events.
    pub(crate) fn counted(&mut self, count: Option<u32>) -> (Stored, Result<(), Status>) {
        let before = self.posted;
        if self.posted().is_none() {
            return (Stored::Nowhere, Ok(()));
        }
        let result = count.map_or(Ok(()), |count| self.consume(count));
        // A driver that has handled everything before this entry waits for an interrupt. If its count is not known, it
        // may.
        let was_empty = result.is_err() || count.is_none_or(|count| count == before);
        (Stored::Posted { was_empty }, result)
    }

    /// Ends the entry that was stored. Returns whether the ring was empty before; `None` if it has been disabled
    /// meanwhile.
    fn posted(&mut self) -> Option<bool> {
        self.posting = false;
        if self.size == 0 {
            return None;
        }
        let was_empty = !self.unconsumed();
        self.posted = self.posted.wrapping_add(1);
        Some(was_empty)
    }

    /// EVENT_SIZE was written: a new ring starts at entry 0; size 0 disables it. Fails with `Invalid` unless the size
    /// is a power of two between 4 and 65536 and the base is aligned to 16.
    pub(crate) fn set_size(&mut self, size: u32) -> Result<(), Status> {
        let ok =
            size == 0 || (size.is_power_of_two() && (EVENTS_MIN..=EVENTS_MAX).contains(&size) && self.base % 16 == 0);
        if !ok {
            return Err(Status::Invalid);
        }
        (self.size, self.posted, self.consumer) = (size, 0, 0);
        Ok(())
    }

    /// EVENT_CONSUMER was written. Fails with `Invalid` for an index outside the posted events.
    pub(crate) fn consume(&mut self, consumer: u32) -> Result<(), Status> {
        if consumer.wrapping_sub(self.consumer) > self.posted.wrapping_sub(self.consumer) {
            return Err(Status::Invalid);
        }
        self.consumer = consumer;
        Ok(())
    }
}
