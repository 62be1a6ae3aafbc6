// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes to the board's own tables in guest memory: admin completions, the event queue, and the status pages of
//! contexts.
//!
//! A *table write* is a series of words, stored one after the other, each by a guest-memory step, followed by an action
//! ([`AfterWrite`]). It waits while bus mastering is off. [`Ctx`](crate::ctx::Ctx) creates the writes and starts their
//! steps; `hib` performs the action.

use crate::numbered::Numbered;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

/// The action after the last store of a table write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AfterWrite {
    Nothing,
    /// The completion of an admin slot is stored: frees the slot and posts an event.
    AdminDone(u32),
    /// An event is stored: posts the next one.
    EventPosted,
    /// A status word of a context is stored that has requested an event.
    ContextDone(u16),
    /// A counter word was stored: context, address, value.
    Counted(u16, u64, u64),
}

/// Most stores of one table write: the words of an admin completion.
const MAX_STORES: usize = 5;

/// The remaining stores of a table write, as address and value.
#[derive(Clone, Debug)]
struct Stores {
    stores: [(u64, u64); MAX_STORES],
    next: usize,
    end: usize,
}

impl Stores {
    fn new(stores: impl IntoIterator<Item = (u64, u64)>) -> Stores {
        let mut all = Stores { stores: [(0, 0); MAX_STORES], next: 0, end: 0 };
        for (place, store) in all.stores.iter_mut().zip(stores) {
            *place = store;
            all.end += 1;
        }
        all
    }

    fn remaining(&self) -> &[(u64, u64)] {
        &self.stores[self.next..self.end]
    }

    /// Removes the first store, and returns its address.
    fn pop(&mut self) -> u64 {
        let address = self.remaining().first().map_or(0, |(address, _)| *address);
        self.next = (self.next + 1).min(self.end);
        address
    }
}

impl Hash for Stores {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.remaining().hash(state);
    }
}

/// A table write in progress.
#[derive(Clone, Debug, Hash)]
pub(crate) struct TableWrite {
    stores: Stores,
    after: AfterWrite,
    /// The context whose status page is written. It cannot be closed before the write ends.
    context: Option<u16>,
    /// The write holds one unit of its context's status-word account.
    charged: bool,
    /// The first of the remaining stores is in flight.
    storing: bool,
}

/// A table write that has ended, successful or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) after: AfterWrite,
    pub(crate) context: Option<u16>,
    pub(crate) charged: bool,
    /// True if all words are in memory.
    pub(crate) stored: bool,
    /// The new value of its counter word, if that has changed since the write started.
    pub(crate) latest: Option<u64>,
}

/// The table writes in progress.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Tables {
    pub(crate) writes: Numbered<TableWrite>,
    /// Counter words with a write in progress, by address, and their latest values.
    pub(crate) counting: BTreeMap<u64, u64>,
}

impl Tables {
    /// Returns whether a write to the status page of a context is in progress.
    pub(crate) fn writes_status(&self, context: u16) -> bool {
        self.writes.iter().any(|(_, write)| write.context == Some(context))
    }

    /// Adds a write of 8-byte words, at most [`MAX_STORES`], at these addresses and returns its number. A write for a
    /// `context` delays the close of that context; a `charged` one holds one unit of the context's status-word account.
    pub(crate) fn insert(
        &mut self,
        stores: impl IntoIterator<Item = (u64, u64)>,
        after: AfterWrite,
        context: Option<u16>,
        charged: bool,
    ) -> u64 {
        let stores = Stores::new(stores);
        self.writes.insert(TableWrite { stores, after, context, charged, storing: false })
    }

    /// Starts the next store of a write. Returns `None` if a store of it is in flight.
    pub(crate) fn next_store(&mut self, number: u64) -> Option<(u64, u64)> {
        let write = self.writes.get_mut(number).filter(|write| !write.storing)?;
        let next = write.stores.remaining().first().copied();
        write.storing = next.is_some();
        next
    }

    /// Ends the store in flight of a write; a failed store (`stored` false) ends the whole write. Returns the store's
    /// address, and the write if it has ended.
    pub(crate) fn stepped(&mut self, number: u64, stored: bool) -> Option<(u64, Option<Written>)> {
        let write = self.writes.get_mut(number)?;
        write.storing = false;
        let address = write.stores.pop();
        if stored && !write.stores.remaining().is_empty() {
            return Some((address, None));
        }
        let TableWrite { after, context, charged, .. } = self.writes.remove(number)?;
        let latest = match after {
            AfterWrite::Counted(_, address, value) => {
                self.counting.remove(&address).filter(|latest| stored && *latest != value)
            }
            _ => None,
        };
        Some((address, Some(Written { after, context, charged, stored, latest })))
    }
}
