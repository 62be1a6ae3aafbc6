// SPDX-License-Identifier: MIT OR Apache-2.0
//! `quiet`: which stores and operations are waited for, and what is reported (SPEC E19, I7).

use super::{Quiet, QuietTarget};
use crate::config::Bug;
use crate::hib::Hib;
use telegraphos_wire::{Status, context};

impl Hib {
    /// `QUIET[slot]` of a context <- import << 48 | cookie. One about an import that is not open here is refused and
    /// answered all the same: who has asked while the import was closed (a replicated segment is adopted) waits for
    /// nothing that never comes.
    pub(crate) fn quiet(&mut self, number: u16, slot: u8, data: u64) -> Result<(), Status> {
        let scope = (data >> context::COOKIE_BITS) as u16;
        let cookie = data & ((1 << context::COOKIE_BITS) - 1);
        let all = u64::from(scope) == context::QUIET_ALL;
        if self.slot_is_busy(number, slot) {
            return Err(Status::Busy);
        }
        // One that waits in this slot is forgotten, and its word is for this one.
        let Some(context) = self.requester.contexts.get_mut(&number) else { return Err(Status::Unmapped) };
        if context.quiets.remove(&slot).is_none() {
            self.take_word(number)?;
        }
        if !all && self.requester.open_import(scope).is_none_or(|import| import.context != number) {
            self.slot_done((number, slot), cookie, Status::Unmapped, None, false);
            return Err(Status::Rights);
        }
        let Some(context) = self.requester.contexts.get_mut(&number) else { return Err(Status::Unmapped) };
        let scope = match all {
            true => context.imports.iter().copied().collect(),
            false => vec![scope],
        };
        let operations = self.launcher.used_by(number, |import| all || scope.contains(&import));
        let (mut targets, mut lost) = (Vec::with_capacity(scope.len()), None);
        let mut unfinished = operations.len();
        for n in scope {
            let Some(import) = self.requester.import(n) else { continue };
            let (opening, stores, reached) = (import.opening, import.issued, import.finished >= import.issued);
            targets.push(QuietTarget { import: n, opening, stores, reached });
            lost = lost.or(import.error);
            if !reached {
                unfinished += 1;
                import.awaited = Some(import.awaited.map_or(stores, |awaited| awaited.min(stores)));
            }
        }
        if let Some(context) = self.requester.contexts.get_mut(&number) {
            context.quiets.insert(slot, Quiet { cookie, notify: false, targets, operations, unfinished, lost });
        }
        self.check_quiet(number, slot);
        Ok(())
    }

    /// Something is lost: the quiets of a context that wait for it report it, whatever is acknowledged before they are
    /// done (SPEC I7, E19).
    pub(super) fn charge_quiets(&mut self, context: u16, status: Status, waits: impl Fn(&Quiet) -> bool) {
        let Some(context) = self.requester.contexts.get_mut(&context) else { return };
        for quiet in context.quiets.values_mut().filter(|quiet| waits(quiet)) {
            quiet.lost = quiet.lost.or(Some(status));
        }
    }

    /// An operation has failed: so do the quiets that wait for it, whichever of its imports they are about.
    pub(crate) fn charge_quiets_of(&mut self, context: u16, operation: u64, status: Status) {
        self.charge_quiets(context, status, |quiet| quiet.operations.contains(&operation));
    }

    /// Completes a quiet if all that it waits for is finished.
    fn check_quiet(&mut self, number: u16, slot: u8) {
        let ignore = self.ctx.has(Bug::QuietIgnoresOutstanding);
        let Some(context) = self.requester.contexts.get_mut(&number) else { return };
        if context.quiets.get(&slot).is_none_or(|quiet| quiet.unfinished > 0 && !ignore) {
            return;
        }
        let Some(quiet) = context.quiets.remove(&slot) else { return };
        let mut status = quiet.lost;
        if self.ctx.has(Bug::QuietReadsPresentError) {
            let open =
                |t: &QuietTarget| self.requester.open_import(t.import).filter(|import| import.opening == t.opening);
            status = quiet.targets.iter().find_map(|target| open(target).and_then(|import| import.error));
        }
        let status = status.unwrap_or(Status::Ok);
        self.slot_done((number, slot), quiet.cookie, status, None, quiet.notify);
    }

    /// As many stores of an import are finished (all, if it goes) as some quiet waits for: those that wait for no more
    /// may be done.
    pub(super) fn reach_quiets(&mut self, number: u16, all: bool) {
        let Some(import) = self.requester.import(number) else { return };
        let (context, opening, finished, issued) = (import.context, import.opening, import.finished, import.issued);
        let reached = |stores: u64| all || finished >= stores.min(issued);
        if import.awaited.is_none_or(|stores| !reached(stores)) {
            return;
        }
        let (mut awaited, mut done) = (None, Vec::new());
        let quiets = self.requester.contexts.get_mut(&context).map(|context| &mut context.quiets);
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
        if let Some(import) = self.requester.import(number) {
            import.awaited = awaited;
        }
        for slot in done {
            self.check_quiet(context, slot);
        }
    }

    /// An operation has ended that a quiet of this context may wait for.
    pub(crate) fn operation_ended(&mut self, number: u16, operation: u64) {
        let Some(context) = self.requester.contexts.get_mut(&number) else { return };
        let mut done = Vec::new();
        for (slot, quiet) in &mut context.quiets {
            if let Ok(at) = quiet.operations.binary_search(&operation) {
                quiet.operations.remove(at);
                quiet.unfinished -= 1;
                done.push(*slot);
            }
        }
        for slot in done {
            self.check_quiet(number, slot);
        }
    }

    /// A store of an import has finished: quiets and a pending close may be done.
    pub(crate) fn progressed(&mut self, number: u16) {
        self.reach_quiets(number, false);
        let Some(import) = self.requester.open_import(number) else { return };
        let closed = import.closing.filter(|_| self.has_ended(import));
        if let Some(slot) = closed {
            self.remove_import(number);
            self.ctx.complete_status(slot, Status::Ok);
        }
    }
}
