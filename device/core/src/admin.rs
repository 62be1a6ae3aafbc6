// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admin slots: commands that are under way, and their completions.

use crate::ctx::Ctx;
use crate::tables::AfterWrite;
use std::collections::BTreeMap;
use telegraphos_wire::Status;
use telegraphos_wire::admin::{BLOCK_SIZE, COMPLETION_OFFSET, Completion, SLOTS};

/// Admin slots whose command has not completed, with its `seq` once it is known.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Admin {
    busy: BTreeMap<u32, u32>,
    /// Contexts closed but for their last status words, and the slots that wait for it.
    closing: BTreeMap<u16, u32>,
}

impl Admin {
    /// Takes a slot whose command is to be loaded.
    pub(crate) fn begin(&mut self, slot: u32) -> Result<(), Status> {
        if slot as usize >= SLOTS {
            return Err(Status::Invalid);
        }
        if self.busy.contains_key(&slot) {
            return Err(Status::Busy);
        }
        self.busy.insert(slot, 0);
        Ok(())
    }

    /// The command of a slot has been loaded.
    pub(crate) fn loaded(&mut self, slot: u32, seq: u32) {
        self.busy.insert(slot, seq);
    }

    /// The slot may have another command.
    pub(crate) fn release(&mut self, slot: u32) {
        self.busy.remove(&slot);
    }

    /// A slot's command closes a context whose status page is still to be written.
    pub(crate) fn close_later(&mut self, context: u16, slot: u32) {
        self.closing.insert(context, slot);
    }

    /// The slot that waits for a context to be closed; it waits no more.
    pub(crate) fn take_closing(&mut self, context: u16) -> Option<u32> {
        self.closing.remove(&context)
    }
}

impl Ctx {
    pub(crate) fn slot_address(&self, slot: u32) -> u64 {
        self.registers.admin_base.wrapping_add(u64::from(slot) * BLOCK_SIZE as u64)
    }

    /// Completes the command of a slot with a bare status.
    pub(crate) fn complete_status(&mut self, slot: u32, status: Status) {
        self.complete(slot, Completion::of(0, status));
    }

    /// Writes the completion of a slot: result words first, `{seq, status}` last.
    pub(crate) fn complete(&mut self, slot: u32, completion: Completion) {
        let Some(&seq) = self.admin.busy.get(&slot) else { return };
        let at = self.slot_address(slot) + COMPLETION_OFFSET as u64;
        let stores = [
            (at + 8, u64::from(completion.index) | u64::from(completion.count) << 32),
            (at + 16, completion.generation),
            (at + 24, completion.length),
            (at + 32, u64::from(completion.rights) | u64::from(completion.width) << 32),
            (at, u64::from(seq) | u64::from(completion.status) << 32),
        ];
        self.write_table(stores, AfterWrite::AdminDone(slot));
    }
}
