// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contexts of processes: opening, closing, and the words of their status pages. Called by `control` for admin
//! commands, and by every part that completes a slot.

use super::imports::{Import, Imports};
use super::quiet::Quiet;
use crate::HibConfig;
use crate::config::{Bug, STATUS_WORDS};
use crate::ctx::Ctx;
use crate::table::Table;
use crate::tables::AfterWrite;
use std::collections::{BTreeMap, BTreeSet};
use telegraphos_accounts::{Account, Shares};
use telegraphos_wire::admin::Command;
use telegraphos_wire::{Status, context};

/// An open context of a process.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Context {
    /// Guest address of its status page.
    pub(crate) status_page: u64,
    pub(crate) key: u64,
    /// Quiets in progress, by slot.
    pub(crate) quiets: BTreeMap<u8, Quiet>,
    /// Errors of its imports and loads, as its status page counts them.
    pub(crate) errors: u64,
    /// Open imports of the context.
    pub(super) imports: BTreeSet<u16>,
}

/// The contexts of the board.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Contexts {
    pub(crate) table: Table<Context>,
    /// Status words that are reserved or wait to be written, by context.
    pub(crate) status_words: Account<u16>,
}

impl Contexts {
    /// No contexts.
    pub(super) fn new(config: &HibConfig) -> Contexts {
        let shares = Shares::equal(u64::from(config.contexts) * STATUS_WORDS, config.contexts.into());
        Contexts { table: Table::default(), status_words: Account::new(shares) }
    }

    /// CONTEXT_OPEN. Fails with `Invalid` for bad arguments, and with `Busy` if the context is open.
    pub(crate) fn open(&mut self, ctx: &Ctx, command: &Command) -> Result<(), Status> {
        let Command { context, address, key, .. } = *command;
        if context >= ctx.config.contexts || address % context::STATUS_SIZE != 0 || key >> context::KEY_BITS != 0 {
            return Err(Status::Invalid);
        }
        if self.table.contains(context) {
            return Err(Status::Busy);
        }
        let (quiets, imports) = (BTreeMap::new(), BTreeSet::new());
        self.table.insert(context, Context { status_page: address, key, quiets, errors: 0, imports });
        Ok(())
    }

    /// CONTEXT_CLOSE. Fails with `Busy` if the context has imports. Its quiets in progress are dropped.
    pub(crate) fn close(&mut self, number: u16) -> Result<(), Status> {
        if self.table.get(number).is_some_and(|context| !context.imports.is_empty()) {
            return Err(Status::Busy);
        }
        let context = self.table.remove(number).ok_or(Status::Invalid)?;
        self.status_words.give(&number, context.quiets.len() as u64);
        Ok(())
    }

    /// Reserves a status word of a context. Each word is reserved before its request is accepted. Fails with `NoSpace`.
    pub(crate) fn take_status_word(&mut self, ctx: &Ctx, context: u16) -> Result<(), Status> {
        if ctx.has(Bug::UnboundedStatusWords) {
            return Ok(());
        }
        self.status_words.take(context, 1).map_err(|_| Status::NoSpace)
    }

    /// Returns a reserved status word that has been written, or that will not be written.
    pub(crate) fn return_status_word(&mut self, context: u16) {
        self.status_words.give(&context, 1);
    }

    /// Writes the completion of a slot, for which the caller has reserved a status word: the value first, `done` last,
    /// then the event.
    pub(crate) fn slot_done(
        &mut self,
        ctx: &mut Ctx,
        (number, slot): (u16, u8),
        cookie: u64,
        status: Status,
        value: Option<u64>,
        notify: bool,
    ) {
        let Some(page) = self.table.get(number).map(|context| context.status_page) else {
            return self.return_status_word(number);
        };
        let at = 8 * u64::from(slot);
        let value = value.map(|value| (page + context::VALUE_OFFSET + at, value));
        let done = (page + at, (status as u64) << context::COOKIE_BITS | cookie);
        let then = if notify { AfterWrite::ContextDone(number) } else { AfterWrite::Nothing };
        ctx.write_status(number, value.into_iter().chain([done]), then, true);
    }

    /// Counts an error in a context's status page.
    pub(crate) fn count_error(&mut self, ctx: &mut Ctx, number: u16) {
        if let Some(context) = self.table.get_mut(number) {
            context.errors += 1;
            let (address, errors) = (context.status_page + context::ERRORS_OFFSET, context.errors);
            ctx.count_in_status(number, address, errors);
        }
    }

    /// Returns whether a store of a count to this word of a context's status page is in progress.
    pub(super) fn taken_in_progress(&self, ctx: &Ctx, context: u16, word: u32) -> bool {
        self.taken_word(context, word).is_some_and(|address| ctx.tables.counting.contains_key(&address))
    }

    /// Returns whether no store or operation of an import is unfinished and its count of taken stores is in memory, so
    /// that its status word can be reused.
    pub(super) fn has_ended(&self, ctx: &Ctx, import: &Import) -> bool {
        import.is_idle() && !import.taken.is_some_and(|(word, _)| self.taken_in_progress(ctx, import.context, word))
    }

    /// Address of the word that counts the stores of an import that were taken.
    fn taken_word(&self, context: u16, word: u32) -> Option<u64> {
        self.table.get(context).map(|context| context.status_page + context::TAKEN_OFFSET + 8 * u64::from(word))
    }

    /// Counts a store as taken by the copy on this node.
    pub(super) fn count_taken(&self, ctx: &mut Ctx, imports: &mut Imports, number: u16) {
        let Some(import) = imports.get_mut(number) else { return };
        let Some((word, count)) = import.taken.as_mut() else { return };
        *count += 1;
        if let Some(address) = self.taken_word(import.context, *word) {
            ctx.count_in_status(import.context, address, *count);
        }
    }
}
