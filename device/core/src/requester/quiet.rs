// SPDX-License-Identifier: MIT OR Apache-2.0
//! `quiet`: waits for stores and operations, and reports their losses (SPEC E19, I7). Called by the launcher for a
//! store to QUIET, and whenever a store or operation ends.

use super::contexts::Contexts;
use super::imports::{Import, Imports};
use crate::config::Bug;
use crate::ctx::Ctx;
use crate::keyed::Key;
use telegraphos_wire::Status;

#[derive(Clone, Debug, Hash)]
pub(crate) struct Quiet {
    pub(crate) cookie: u64,
    /// Post an event when the quiet completes.
    pub(crate) notify: bool,
    /// The imports it waits for, ascending.
    targets: Vec<QuietTarget>,
    /// The unfinished operations it waits for, ascending.
    operations: Vec<Key>,
    /// Number of targets and operations that are unfinished.
    unfinished: usize,
    /// The status to report: the first loss among the stores and operations it waits for, or an error that was latched
    /// when it was issued. A later acknowledgement does not change it.
    lost: Option<Status>,
}

/// An import that a quiet waits for.
#[derive(Clone, Copy, Debug, Hash)]
struct QuietTarget {
    import: u16,
    /// The opening of that import number: a reopened import has other stores.
    opening: u64,
    /// The number of its stores that must be finished.
    stores: u64,
    /// That many stores are finished.
    reached: bool,
}

impl Quiet {
    /// What it waits for of an import, if anything.
    fn target(&mut self, number: u16, opening: u64) -> Option<&mut QuietTarget> {
        let at = self.targets.binary_search_by_key(&number, |target| target.import).ok()?;
        self.targets.get_mut(at).filter(|target| target.opening == opening)
    }
}

impl Contexts {
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
