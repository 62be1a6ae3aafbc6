// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the board stores into its own tables in guest memory: admin completions, the event queue, and the status pages
//! of contexts.
//!
//! A *table write* is a series of words, stored one after the other, each a guest-memory step, and then what follows it
//! ([`AfterWrite`]). Without bus mastering it waits.

use crate::ctx::{Ctx, Numbered, StepOwner};
use crate::{Step, StepResult};
use std::collections::{BTreeMap, VecDeque};

/// What follows the last store of a table write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AfterWrite {
    Nothing,
    AdminDone(u32),
    EventPosted,
    ContextDone(u16),
    /// The counting word of a context's status page at this address holds this.
    Counted(u16, u64, u64),
}

/// Stores of whole words, one after the other.
#[derive(Clone, Debug, Hash)]
struct TableWrite {
    stores: VecDeque<(u64, u64)>,
    then: AfterWrite,
    /// The context whose status page this is: it cannot be closed before.
    context: Option<u16>,
    /// It holds a unit of its context's account of status words.
    charged: bool,
    /// The first of its stores is a step in flight.
    storing: bool,
}

/// A table write that has ended, well or badly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) then: AfterWrite,
    pub(crate) context: Option<u16>,
    pub(crate) charged: bool,
    /// All of it is in memory.
    pub(crate) stored: bool,
}

/// The table writes under way.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Tables {
    writes: Numbered<TableWrite>,
    /// Their number for each context.
    by_context: BTreeMap<u16, u32>,
    /// Counting words of status pages that are being stored, and what they are to hold in the end.
    counting: BTreeMap<u64, u64>,
}

impl Tables {
    /// Whether stores into the status page of a context are still to be made.
    pub(crate) fn writes_status(&self, context: u16) -> bool {
        self.by_context.contains_key(&context)
    }

    /// Whether a count is on its way to the word at this address.
    pub(crate) fn counts_at(&self, address: u64) -> bool {
        self.counting.contains_key(&address)
    }

    /// A counting word has been stored; what it is to hold now, if that has changed since.
    fn counted(&mut self, address: u64, value: u64) -> Option<u64> {
        self.counting.remove(&address).filter(|latest| *latest != value)
    }

    /// Takes a write away that has ended.
    fn end(&mut self, number: u64, stored: bool) -> Option<Written> {
        let TableWrite { then, context, charged, .. } = self.writes.remove(number)?;
        if let Some(context) = context {
            match self.by_context.get_mut(&context) {
                Some(count) if *count > 1 => *count -= 1,
                _ => {
                    self.by_context.remove(&context);
                }
            }
        }
        Some(Written { then, context, charged, stored })
    }
}

impl Ctx {
    /// Starts a series of 8-byte stores. While bus mastering is off they wait.
    pub(crate) fn write_table(&mut self, stores: impl IntoIterator<Item = (u64, u64)>, then: AfterWrite) {
        self.add_write(stores.into_iter().collect(), then, None, false);
    }

    /// The same, into the status page of a context. If it is `charged`, a unit of the context's account of status words
    /// is given back at its end.
    pub(crate) fn write_status(
        &mut self,
        context: u16,
        stores: impl IntoIterator<Item = (u64, u64)>,
        then: AfterWrite,
        charged: bool,
    ) {
        self.add_write(stores.into_iter().collect(), then, Some(context), charged);
    }

    /// A word of a status page that only grows. One store of it is in flight at a time, so that it never falls back.
    pub(crate) fn count_in_status(&mut self, context: u16, address: u64, value: u64) {
        if self.tables.counting.insert(address, value).is_none() {
            self.write_status(context, [(address, value)], AfterWrite::Counted(context, address, value), false);
        }
    }

    fn add_write(&mut self, stores: VecDeque<(u64, u64)>, then: AfterWrite, context: Option<u16>, charged: bool) {
        let number = self.tables.writes.insert(TableWrite { stores, then, context, charged, storing: false });
        if let Some(context) = context {
            *self.tables.by_context.entry(context).or_default() += 1;
        }
        self.advance_write(number);
    }

    /// Starts the next store of a write, if bus mastering is on and none is in flight.
    fn advance_write(&mut self, number: u64) {
        if !self.bus_master {
            return;
        }
        let Some(write) = self.tables.writes.get_mut(number).filter(|write| !write.storing) else { return };
        if let Some(&(address, data)) = write.stores.front() {
            write.storing = true;
            self.step(Step::Store { address, size: 8, data }, StepOwner::TableWrite(number));
        }
    }

    /// Bus mastering is on: what has waited for it goes on.
    pub(crate) fn advance_writes(&mut self) {
        for number in self.tables.writes.numbers() {
            self.advance_write(number);
        }
    }

    /// A store of a write is done; what has ended with it, if it was the last.
    pub(crate) fn table_stepped(&mut self, number: u64, result: StepResult) -> Option<Written> {
        let write = self.tables.writes.get_mut(number)?;
        write.storing = false;
        let (address, _) = write.stores.pop_front().unwrap_or_default();
        if let StepResult::Failed(status) = result {
            self.own_memory_failed(address, status);
            let written = self.tables.end(number, false);
            if let Some(Written { then: AfterWrite::Counted(_, address, _), .. }) = written {
                self.tables.counting.remove(&address);
            }
            return written;
        }
        if !write.stores.is_empty() {
            self.advance_write(number);
            return None;
        }
        let written = self.tables.end(number, true)?;
        if let AfterWrite::Counted(context, address, value) = written.then {
            if let Some(latest) = self.tables.counted(address, value) {
                self.count_in_status(context, address, latest);
            }
        }
        Some(written)
    }
}
