// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contexts of processes: opening, closing, the words of their status pages, and quiets. Called by `control` for admin
//! commands, and by every part that completes a slot.

use super::imports::{Import, Imports};
use super::quiet::{Quiet, QuietTarget};
use crate::HibConfig;
use crate::config::{Bug, STATUS_WORDS};
use crate::ctx::Ctx;
use crate::keyed::Key;
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

    // ---- quiet: called by the launcher for a store to QUIET, and whenever a store or operation ends ----

    /// A store to `QUIET[slot]` of a context: waits for the stores of the import `scope`, or of all imports if that is
    /// `None`, and for `operations`, the unfinished ones it concerns, ascending. A quiet for an import that is not open
    /// in this context is refused but still completed: a process may issue it while its import is being closed
    /// (adoption of a replicated segment), and must not wait forever.
    #[expect(clippy::too_many_arguments, reason = "these are what a quiet consists of")]
    pub(crate) fn quiet(
        &mut self,
        ctx: &mut Ctx,
        imports: &mut Imports,
        number: u16,
        slot: u8,
        scope: Option<u16>,
        cookie: u64,
        operations: Vec<Key>,
    ) -> Result<(), Status> {
        // An earlier quiet in this slot is dropped; its status word serves the new one.
        let Some(context) = self.table.get_mut(number) else { return Err(Status::Unmapped) };
        if context.quiets.remove(&slot).is_none() {
            self.take_status_word(ctx, number)?;
        }
        if scope.is_some_and(|n| imports.get(n).is_none_or(|import| import.context != number)) {
            self.slot_done(ctx, (number, slot), cookie, Status::Unmapped, None, false);
            return Err(Status::Rights);
        }
        let Some(context) = self.table.get_mut(number) else { return Err(Status::Unmapped) };
        let scope = match scope {
            None => context.imports.iter().copied().collect(),
            Some(import) => vec![import],
        };
        let (mut targets, mut lost) = (Vec::with_capacity(scope.len()), None);
        let mut unfinished = operations.len();
        for n in scope {
            let Some(import) = imports.get_mut(n) else { continue };
            let (opening, stores, reached) = (import.opening, import.issued, import.finished >= import.issued);
            targets.push(QuietTarget { import: n, opening, stores, reached });
            lost = lost.or(import.error);
            if !reached {
                unfinished += 1;
                import.awaited = Some(import.awaited.map_or(stores, |awaited| awaited.min(stores)));
            }
        }
        context.quiets.insert(slot, Quiet { cookie, notify: false, targets, operations, unfinished, lost });
        self.check_quiet(ctx, imports, number, slot);
        Ok(())
    }

    /// Records a loss in the quiets of a context that wait for it. They report it even if the driver acknowledges the
    /// error before they complete (SPEC I7, E19).
    fn fail_quiets(&mut self, context: u16, status: Status, waits: impl Fn(&Quiet) -> bool) {
        let Some(context) = self.table.get_mut(context) else { return };
        for quiet in context.quiets.values_mut().filter(|quiet| waits(quiet)) {
            quiet.lost = quiet.lost.or(Some(status));
        }
    }

    /// Records a failed operation in the quiets that wait for it, whichever of its imports they concern.
    pub(crate) fn fail_quiets_of(&mut self, context: u16, operation: Key, status: Status) {
        self.fail_quiets(context, status, |quiet| quiet.operations.contains(&operation));
    }

    /// Records an error of an import in the quiets that wait for its stores, and counts it in its context.
    pub(super) fn import_failed(&mut self, ctx: &mut Ctx, import: &Import, status: Status) {
        self.fail_quiets(import.context, status, |quiet| {
            quiet.targets.iter().any(|target| target.import == import.number && target.opening == import.opening)
        });
        self.count_error(ctx, import.context);
    }

    /// Waiting stores of an import were dropped: a quiet that waited for them must not wait for stores issued from now
    /// on instead.
    pub(super) fn stores_dropped(&mut self, import: &mut Import) {
        let issued = import.issued;
        import.awaited = import.awaited.map(|stores| stores.min(issued));
        let quiets = self.table.get_mut(import.context).map(|context| context.quiets.values_mut());
        for target in quiets.into_iter().flatten().filter_map(|quiet| quiet.target(import.number, import.opening)) {
            target.stores = target.stores.min(issued);
        }
    }

    /// Completes a quiet if everything it waits for is finished.
    fn check_quiet(&mut self, ctx: &mut Ctx, imports: &Imports, number: u16, slot: u8) {
        let ignore = ctx.has(Bug::QuietIgnoresOutstanding);
        let Some(context) = self.table.get_mut(number) else { return };
        if context.quiets.get(&slot).is_none_or(|quiet| quiet.unfinished > 0 && !ignore) {
            return;
        }
        let Some(quiet) = context.quiets.remove(&slot) else { return };
        let mut status = quiet.lost;
        if ctx.has(Bug::QuietReadsPresentError) {
            let open = |t: &QuietTarget| imports.get(t.import).filter(|import| import.opening == t.opening);
            status = quiet.targets.iter().find_map(|target| open(target).and_then(|import| import.error));
        }
        let status = status.unwrap_or(Status::Ok);
        self.slot_done(ctx, (number, slot), quiet.cookie, status, None, quiet.notify);
    }

    /// Updates the quiets that wait for stores of an import, and completes those with nothing left to wait for. With
    /// `all`, the import is being removed and no quiet waits for it any longer.
    pub(super) fn reach_quiets(&mut self, ctx: &mut Ctx, imports: &mut Imports, number: u16, all: bool) {
        let Some(import) = imports.get_mut(number) else { return };
        let (context, opening, finished, issued) = (import.context, import.opening, import.finished, import.issued);
        let reached = |stores: u64| all || finished >= stores.min(issued);
        if import.awaited.is_none_or(|stores| !reached(stores)) {
            return;
        }
        let (mut awaited, mut done) = (None, Vec::new());
        let quiets = self.table.get_mut(context).map(|context| &mut context.quiets);
        for (slot, quiet) in quiets.into_iter().flatten() {
            let Some(target) = quiet.target(number, opening).filter(|target| !target.reached) else { continue };
            if reached(target.stores) {
                target.reached = true;
                quiet.unfinished -= 1;
                done.push(*slot);
            } else {
                awaited = Some(awaited.map_or(target.stores, |least: u64| least.min(target.stores)));
            }
        }
        import.awaited = awaited;
        for slot in done {
            self.check_quiet(ctx, imports, context, slot);
        }
    }

    /// Removes a finished operation from the quiets of a context, and completes those with nothing left to wait for.
    pub(crate) fn operation_ended(&mut self, ctx: &mut Ctx, imports: &Imports, number: u16, operation: Key) {
        let Some(context) = self.table.get_mut(number) else { return };
        let mut done = Vec::new();
        for (slot, quiet) in &mut context.quiets {
            if let Ok(at) = quiet.operations.binary_search(&operation) {
                quiet.operations.remove(at);
                quiet.unfinished -= 1;
                done.push(*slot);
            }
        }
        for slot in done {
            self.check_quiet(ctx, imports, number, slot);
        }
    }
}
