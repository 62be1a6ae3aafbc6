// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admin slots: which of them have a command in progress. `control` loads and executes the commands;
//! [`Ctx`](crate::ctx::Ctx) writes the completions.

use std::collections::BTreeMap;
use telegraphos_wire::Status;
use telegraphos_wire::admin::SLOTS;

/// State of the admin slots.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Admin {
    /// Slots in use, with the `seq` of their command; 0 until it is loaded.
    busy: BTreeMap<u32, u32>,
    /// Contexts whose close waits for stores to their status pages, and the slots to complete then.
    closing: BTreeMap<u16, u32>,
}

impl Admin {
    /// Occupies a slot whose command is about to be loaded. Fails with `Invalid` for a number out of range, and with
    /// `Busy` if the slot is in use.
    pub(crate) fn occupy(&mut self, slot: u32) -> Result<(), Status> {
        if slot as usize >= SLOTS {
            return Err(Status::Invalid);
        }
        if self.busy.contains_key(&slot) {
            return Err(Status::Busy);
        }
        self.busy.insert(slot, 0);
        Ok(())
    }

    /// Records the `seq` of a slot's loaded command.
    pub(crate) fn loaded(&mut self, slot: u32, seq: u32) {
        self.busy.insert(slot, seq);
    }

    /// The `seq` of a slot's command; `None` if the slot is free.
    pub(crate) fn seq(&self, slot: u32) -> Option<u32> {
        self.busy.get(&slot).copied()
    }

    /// Frees a slot for the next command.
    pub(crate) fn release(&mut self, slot: u32) {
        self.busy.remove(&slot);
    }

    /// Delays the completion of a CONTEXT_CLOSE until the stores to the context's status page have ended.
    pub(crate) fn close_later(&mut self, context: u16, slot: u32) {
        self.closing.insert(context, slot);
    }

    /// Takes the slot that waits for this context to close, if any.
    pub(crate) fn take_closing(&mut self, context: u16) -> Option<u32> {
        self.closing.remove(&context)
    }
}
