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
    pub(crate) busy: BTreeMap<u32, u32>,
    /// Contexts whose close waits for stores to their status pages, and the slots to complete then.
    pub(crate) closing: BTreeMap<u16, u32>,
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
}
