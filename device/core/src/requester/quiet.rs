// SPDX-License-Identifier: MIT OR Apache-2.0
//! `quiet`: waits for stores and operations, and reports their losses (SPEC E19, I7). Called by the launcher for a
//! store to QUIET, and whenever a store or operation ends.

use super::{Quiet, QuietTarget, Requester};
use crate::config::Bug;
use crate::ctx::Ctx;
use crate::keyed::Key;
use telegraphos_wire::Status;

impl Requester {
    /// A store to `QUIET[slot]` of a context: waits for the stores of the import `scope`, or of all imports if that is
    /// `None`, and for `operations`, the unfinished ones it concerns, ascending. A quiet for an import that is not open
    /// in this context is refused but still completed: a process may issue it while its import is being closed
    /// (adoption of a replicated segment), and must not wait forever.
    pub(crate) fn quiet(
        &mut self,
        ctx: &mut Ctx,
        number: u16,
        slot: u8,
        scope: Option<u16>,
        cookie: u64,
        operations: Vec<Key>,
    ) -> Result<(), Status> {
        // An earlier quiet in this slot is dropped; its status word serves the new one.
        let Some(context) = self.contexts.get_mut(number) else { return Err(Status::Unmapped) };
        if context.quiets.remove(&slot).is_none() {
            self.take_status_word(ctx, number)?;
        }
        if scope.is_some_and(|n| self.open_import(n).is_none_or(|import| import.context != number)) {
            self.slot_done(ctx, (number, slot), cookie, Status::Unmapped, None, false);
            return Err(Status::Rights);
        }
        let Some(context) = self.contexts.get_mut(number) else { return Err(Status::Unmapped) };
        let scope = match scope {
            None => context.imports.iter().copied().collect(),
            Some(import) => vec![import],
        };
        let (mut targets, mut lost) = (Vec::with_capacity(scope.len()), None);
        let mut unfinished = operations.len();
        for n in scope {
            let Some(import) = self.import(n) else { continue };
            let (opening, stores, reached) = (import.opening, import.issued, import.finished >= import.issued);
            targets.push(QuietTarget { import: n, opening, stores, reached });
            lost = lost.or(import.error);
            if !reached {
                unfinished += 1;
                import.awaited = Some(import.awaited.map_or(stores, |awaited| awaited.min(stores)));
            }
        }
        if let Some(context) = self.contexts.get_mut(number) {
            context.quiets.insert(slot, Quiet { cookie, notify: false, targets, operations, unfinished, lost });
        }
        self.check_quiet(ctx, number, slot);
        Ok(())
    }

    /// Records a loss in the quiets of a context that wait for it. They report it even if the driver acknowledges the
    /// error before they complete (SPEC I7, E19).
    pub(super) fn fail_quiets(&mut self, context: u16, status: Status, waits: impl Fn(&Quiet) -> bool) {
        let Some(context) = self.contexts.get_mut(context) else { return };
        for quiet in context.quiets.values_mut().filter(|quiet| waits(quiet)) {
            quiet.lost = quiet.lost.or(Some(status));
        }
    }

    /// Records a failed operation in the quiets that wait for it, whichever of its imports they concern.
    pub(crate) fn fail_quiets_of(&mut self, context: u16, operation: Key, status: Status) {
        self.fail_quiets(context, status, |quiet| quiet.operations.contains(&operation));
    }

    /// Completes a quiet if everything it waits for is finished.
    fn check_quiet(&mut self, ctx: &mut Ctx, number: u16, slot: u8) {
        let ignore = ctx.has(Bug::QuietIgnoresOutstanding);
        let Some(context) = self.contexts.get_mut(number) else { return };
        if context.quiets.get(&slot).is_none_or(|quiet| quiet.unfinished > 0 && !ignore) {
            return;
        }
        let Some(quiet) = context.quiets.remove(&slot) else { return };
        let mut status = quiet.lost;
        if ctx.has(Bug::QuietReadsPresentError) {
            let open = |t: &QuietTarget| self.open_import(t.import).filter(|import| import.opening == t.opening);
            status = quiet.targets.iter().find_map(|target| open(target).and_then(|import| import.error));
        }
        let status = status.unwrap_or(Status::Ok);
        self.slot_done(ctx, (number, slot), quiet.cookie, status, None, quiet.notify);
    }

    /// Updates the quiets that wait for stores of an import, and completes those with nothing left to wait for. With
    /// `all`, the import is being removed and no quiet waits for it any longer.
    pub(super) fn reach_quiets(&mut self, ctx: &mut Ctx, number: u16, all: bool) {
        let Some(import) = self.import(number) else { return };
        let (context, opening, finished, issued) = (import.context, import.opening, import.finished, import.issued);
        let reached = |stores: u64| all || finished >= stores.min(issued);
        if import.awaited.is_none_or(|stores| !reached(stores)) {
            return;
        }
        let (mut awaited, mut done) = (None, Vec::new());
        let quiets = self.contexts.get_mut(context).map(|context| &mut context.quiets);
        for (slot, quiet) in quiets.into_iter().flatten() {
            let Ok(at) = quiet.targets.binary_search_by_key(&number, |target| target.import) else { continue };
            let Some(target) = quiet.targets.get_mut(at).filter(|t| t.opening == opening && !t.reached) else {
                continue;
            };
            if reached(target.stores) {
                target.reached = true;
                quiet.unfinished -= 1;
                done.push(*slot);
            } else {
                awaited = Some(awaited.map_or(target.stores, |least: u64| least.min(target.stores)));
            }
        }
        if let Some(import) = self.import(number) {
            import.awaited = awaited;
        }
        for slot in done {
            self.check_quiet(ctx, context, slot);
        }
    }

    /// Removes a finished operation from the quiets of a context, and completes those with nothing left to wait for.
    pub(crate) fn operation_ended(&mut self, ctx: &mut Ctx, number: u16, operation: Key) {
        let Some(context) = self.contexts.get_mut(number) else { return };
        let mut done = Vec::new();
        for (slot, quiet) in &mut context.quiets {
            if let Ok(at) = quiet.operations.binary_search(&operation) {
                quiet.operations.remove(at);
                quiet.unfinished -= 1;
                done.push(*slot);
            }
        }
        for slot in done {
            self.check_quiet(ctx, number, slot);
        }
    }

    /// Completes the quiets, those of the driver included, and the pending close that a finished store or operation of
    /// an import allows.
    pub(crate) fn progressed(&mut self, ctx: &mut Ctx, number: u16) {
        self.reach_quiets(ctx, number, false);
        let settled = self.import(number).filter(|import| import.is_idle()).and_then(|import| import.settling.take());
        if let Some(slot) = settled {
            ctx.complete_status(slot, Status::Ok);
        }
        let Some(import) = self.open_import(number) else { return };
        let closed = import.closing.filter(|_| self.has_ended(ctx, import));
        if let Some(slot) = closed {
            self.remove_import(ctx, number);
            ctx.complete_status(slot, Status::Ok);
        }
    }
}
