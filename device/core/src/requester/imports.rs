// SPDX-License-Identifier: MIT OR Apache-2.0
//! Imports: what an import is, and the table of the open ones.

use crate::ctx::Ctx;
use crate::events::Cause;
use crate::keyed::Key;
use crate::{HibConfig, Notice};
use std::collections::BTreeSet;
use telegraphos_wire::admin::Command;
use telegraphos_wire::{ImportEpoch, NodeId, RemoteAddr, Rights, Status, UNIT, UNIT_SHIFT, context, event, range};

/// One open import: its destination, and the progress of its stores.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Import {
    pub(crate) number: u16,
    pub(crate) context: u16,
    /// Number of this opening among all of the board; unlike the import's number it is never reused.
    pub(crate) opening: u64,
    pub(crate) node: NodeId,
    /// The window slots of the node that it occupies.
    pub(crate) first_slot: u32,
    pub(super) slots: u32,
    pub(crate) page: u32,
    pub(crate) length: u64,
    /// Generation of the grant at the node.
    pub(super) generation: u64,
    pub(crate) rights: Rights,
    /// Stores accepted and stores finished, both since the import was opened.
    pub(crate) issued: u64,
    pub(crate) finished: u64,
    /// The smallest number of finished stores that some quiet waits for, if any.
    pub(super) awaited: Option<u64>,
    /// Unfinished operations that use the import.
    pub(crate) operations: u32,
    /// Accepted stores that are not sent.
    pub(super) waiting: u32,
    /// Congested by its own waiting stores.
    pub(super) congested: bool,
    /// Stopped because the board cannot keep up with the guest's stores.
    pub(super) throttled: bool,
    /// A store came through the import since the guest's socket was last empty.
    pub(crate) active: bool,
    /// A store was lost: later stores are dropped until the driver acknowledges.
    pub(crate) in_error: bool,
    /// Epoch of its stores: a receiver that refuses a store refuses all later ones of the same epoch.
    pub(crate) epoch: u32,
    /// The receiver has refused a store of this epoch; an acknowledgement by the driver begins a new epoch.
    pub(super) refused: bool,
    /// For a page replicated on this node: the word of the status page that counts the stores taken, and the count.
    pub(super) taken: Option<(u32, u64)>,
    /// The import of a queue.
    pub(crate) queue: bool,
    /// The send queue of an import of a queue.
    pub(super) send_queue: Option<Key>,
    /// Launch arguments through the import with a wrong key or for another process's context.
    pub(crate) bad_keys: u32,
    /// Permanently failed: its node went down or was reset, or it had too many wrong keys. An acknowledgement does not
    /// clear the error; the import can only be closed. The node may come back with other memory under the same pages
    /// and even generations.
    pub(crate) dead: bool,
    pub(crate) error: Option<Status>,
    /// The admin slot of a pending close.
    pub(super) closing: Option<u32>,
    /// The admin slot of a pending IMPORT_QUIET.
    pub(super) settling: Option<u32>,
}

impl Import {
    /// Returns whether the driver must stop the importing processes.
    pub(crate) fn is_stopped(&self) -> bool {
        self.congested || self.throttled
    }

    /// Returns whether no store or operation of the import is unfinished.
    pub(super) fn is_idle(&self) -> bool {
        self.finished == self.issued && self.operations == 0
    }

    /// The remote address of the byte at `offset` of the segment.
    pub(crate) fn address(&self, offset: u64) -> RemoteAddr {
        let page = self.page + (offset >> UNIT_SHIFT) as u32;
        RemoteAddr { page, offset: (offset & (UNIT - 1)) as u32, generation: self.generation }
    }
}

impl Import {
    /// Checks the arguments of an IMPORT_SET, apart from what is open.
    pub(super) fn check(ctx: &Ctx, command: &Command) -> Result<(), Status> {
        let Command { import, node, index, count, page, length, rights, .. } = *command;
        if u32::from(node) >= ctx.config.window.nodes() {
            return Err(Status::BadNode);
        }
        let windowless = count == 0;
        let units = if windowless { length.div_ceil(UNIT).min(u64::from(u32::MAX)) as u32 } else { count };
        let most = if windowless { range::MAX_BYTES } else { u64::from(count) * UNIT };
        let valid = import < ctx.config.imports
            && u64::from(index) + u64::from(count) <= u64::from(ctx.config.window.slots())
            && page.checked_add(units).is_some()
            && length > 0
            && length <= most
            && Rights::ALL.contains(Rights(rights))
            && command.taken <= context::TAKEN_WORDS
            && (!Rights(rights).contains(Rights::ENQUEUE) || (rights == Rights::ENQUEUE.0 && count == 1));
        if valid { Ok(()) } else { Err(Status::Invalid) }
    }

    /// Reports that the import has become congested (`on`) or is no longer congested, and posts an event.
    pub(super) fn congestion_changed(&self, ctx: &mut Ctx, on: bool) {
        if on {
            ctx.counters.congested += 1;
        }
        ctx.notice(Notice::Congested { import: self.number, on });
        ctx.cause(Cause::ImportState(self.number));
    }

    /// The value of the next IMPORT_STATE event: TG_IMPORT_* bits, its latched status in bits 31:16.
    pub(crate) fn state(&self) -> u64 {
        let mut value = self.error.map_or(0, |status| (status as u64) << 16);
        if self.is_stopped() {
            value |= event::IMPORT_CONGESTED;
        }
        if self.in_error {
            value |= event::IMPORT_CUT;
        }
        value
    }
}

/// The imports of the board.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Imports {
    table: Vec<Option<Box<Import>>>,
    /// Number of openings so far.
    openings: u64,
    /// The epoch assigned last, of all imports of the board, modulo 2^32.
    epochs: u32,
    /// Imports whose close is pending.
    pub(super) closing: BTreeSet<u16>,
}

impl Imports {
    /// No imports.
    pub(super) fn new(config: &HibConfig) -> Imports {
        Imports { table: vec![None; usize::from(config.imports)], openings: 0, epochs: 0, closing: BTreeSet::new() }
    }

    /// No imports, of a board that has had others: openings and epochs are not repeated.
    pub(super) fn emptied(&self, config: &HibConfig) -> Imports {
        Imports { openings: self.openings, epochs: self.epochs, ..Imports::new(config) }
    }

    /// The import with this number, if it is open.
    pub(crate) fn get(&self, number: u16) -> Option<&Import> {
        self.table.get(usize::from(number))?.as_deref()
    }

    /// The import with this number for modification, if it is open.
    pub(crate) fn get_mut(&mut self, number: u16) -> Option<&mut Import> {
        self.table.get_mut(usize::from(number))?.as_deref_mut()
    }

    /// The open imports, ascending.
    pub(crate) fn open(&self) -> impl Iterator<Item = &Import> {
        self.table.iter().flatten().map(|import| &**import)
    }

    /// The open imports, ascending, for modification.
    pub(super) fn open_mut(&mut self) -> impl Iterator<Item = &mut Import> {
        self.table.iter_mut().flatten().map(|import| &mut **import)
    }

    /// The numbers of the open imports that `selects` selects, ascending.
    pub(super) fn numbers(&self, selects: impl Fn(&Import) -> bool) -> Vec<u16> {
        self.open().filter(|import| selects(import)).map(|import| import.number).collect()
    }

    /// Opens an import as a command says that has been checked ([`Import::check`]).
    pub(super) fn insert(&mut self, command: &Command) {
        let Command { import, context, node, index, count, page, generation, length, rights, .. } = *command;
        self.openings += 1;
        self.epochs = self.epochs.wrapping_add(1);
        self.table[usize::from(import)] = Some(Box::new(Import {
            number: import,
            context,
            opening: self.openings,
            node,
            first_slot: index,
            slots: count,
            page,
            length,
            generation,
            rights: Rights(rights),
            taken: command.taken.checked_sub(1).map(|word| (word, 0)),
            queue: rights == Rights::ENQUEUE.0,
            epoch: self.epochs,
            ..Import::default()
        }));
    }

    /// Closes an import.
    pub(super) fn remove(&mut self, number: u16) -> Option<Box<Import>> {
        self.closing.remove(&number);
        self.table.get_mut(usize::from(number))?.take()
    }

    /// The import and epoch that stores of an open import carry.
    pub(crate) fn epoch_of(&self, number: u16) -> ImportEpoch {
        ImportEpoch { import: number, epoch: self.get(number).map_or(0, |import| import.epoch) }
    }

    /// Begins a new epoch of an import: earlier refusals do not concern its later stores.
    pub(super) fn begin_epoch(&mut self, number: u16) -> Option<&Import> {
        self.epochs = self.epochs.wrapping_add(1);
        let epoch = self.epochs;
        let import = self.get_mut(number)?;
        (import.epoch, import.refused) = (epoch, false);
        Some(import)
    }
}
