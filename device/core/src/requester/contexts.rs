// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contexts of processes: opening, closing, and the words of their status pages. Called by `control` for admin
//! commands, and by every part that completes a slot.

use super::{Context, Requester};
use crate::config::Bug;
use crate::ctx::Ctx;
use crate::tables::AfterWrite;
use std::collections::{BTreeMap, BTreeSet};
use telegraphos_wire::admin::Command;
use telegraphos_wire::{Status, context};

impl Requester {
    /// CONTEXT_OPEN. Fails with `Invalid` for bad arguments, and with `Busy` if the context is open.
    pub(crate) fn open_context(&mut self, ctx: &Ctx, command: &Command) -> Result<(), Status> {
        let Command { context, address, key, .. } = *command;
        if context >= ctx.config.contexts || address % context::STATUS_SIZE != 0 || key >> context::KEY_BITS != 0 {
            return Err(Status::Invalid);
        }
        if self.contexts.contains(context) {
            return Err(Status::Busy);
        }
        let (quiets, imports) = (BTreeMap::new(), BTreeSet::new());
        self.contexts.insert(context, Context { status_page: address, key, quiets, errors: 0, imports });
        Ok(())
    }

    /// CONTEXT_CLOSE. Fails with `Busy` if the context has imports. Its quiets in progress are dropped.
    pub(crate) fn close_context(&mut self, number: u16) -> Result<(), Status> {
        if self.contexts.get(number).is_some_and(|context| !context.imports.is_empty()) {
            return Err(Status::Busy);
        }
        let context = self.contexts.remove(number).ok_or(Status::Invalid)?;
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

    /// Number of status words of a context that are reserved or wait to be written, of
    /// [`STATUS_WORDS`](crate::STATUS_WORDS).
    pub(crate) fn status_words(&self, context: u16) -> u64 {
        self.status_words.held(&context)
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
        let Some(page) = self.contexts.get(number).map(|context| context.status_page) else {
            return self.return_status_word(number);
        };
        let at = 8 * u64::from(slot);
        let value = value.map(|value| (page + context::VALUE_OFFSET + at, value));
        let done = (page + at, (status as u64) << context::COOKIE_BITS | cookie);
        let then = if notify { AfterWrite::ContextDone(number) } else { AfterWrite::Nothing };
        ctx.write_status(number, value.into_iter().chain([done]), then, true);
    }

    /// Counts an error in a context's status page.
    pub(crate) fn count_context_error(&mut self, ctx: &mut Ctx, number: u16) {
        if let Some(context) = self.contexts.get_mut(number) {
            context.errors += 1;
            let (address, errors) = (context.status_page + context::ERRORS_OFFSET, context.errors);
            ctx.count_in_status(number, address, errors);
        }
    }
}
