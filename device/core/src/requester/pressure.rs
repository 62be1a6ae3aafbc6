// SPDX-License-Identifier: MIT OR Apache-2.0
//! Back-pressure: imports whose processes must stop until the board has sent their stores. Called by the other files of
//! the requester when stores start or end to wait, and by `hib` for the state of the guest's socket.

use super::Requester;
use crate::Notice;
use crate::config::Bug;
use crate::ctx::Ctx;
use crate::events::Cause;
use telegraphos_accounts::Shares;
use telegraphos_wire::event;

impl Requester {
    /// Marks an import with too many waiting stores as congested.
    pub(super) fn congest_if_full(&mut self, ctx: &mut Ctx, number: u16) {
        let congest_at = ctx.config.congest_at;
        if let Some(import) = self.import(number).filter(|import| import.waiting >= congest_at && !import.congested) {
            import.congested = true;
            self.congestion_changed(ctx, number, true);
        }
    }

    /// Reports that an import has become congested (`on`) or is no longer congested, and posts an event.
    pub(super) fn congestion_changed(&mut self, ctx: &mut Ctx, import: u16, on: bool) {
        if on {
            ctx.counters.congested += 1;
        }
        ctx.notice(Notice::Congested { import, on });
        ctx.cause(Cause::ImportState(import));
    }

    /// Counts a posted store. QEMU queues them without limit, and a socket that is never empty means that its queue
    /// grows. Returns true if the storing processes must be stopped ([`Requester::throttle`]).
    pub(crate) fn count_intake(&mut self, ctx: &Ctx) -> bool {
        self.intake = self.intake.saturating_add(1);
        let limit = self.intake >= ctx.config.intake_limit;
        if limit {
            self.intake = 0;
        }
        limit
    }

    /// Stops the imports that had stores since the guest's socket was last empty.
    pub(crate) fn throttle(&mut self, ctx: &mut Ctx) {
        for number in 0..self.imports.len() as u16 {
            let Some(import) = self.import(number) else { continue };
            if std::mem::take(&mut import.active) && !import.throttled {
                import.throttled = true;
                let newly_stopped = !import.congested;
                self.throttled.insert(number);
                if newly_stopped {
                    self.congestion_changed(ctx, number, true);
                }
            }
        }
    }

    /// The guest's socket is empty: releases the imports that [`Requester::throttle`] has stopped.
    pub(crate) fn intake_dry(&mut self, ctx: &mut Ctx) {
        self.intake = 0;
        // Called in each turn: most of them have nothing to release.
        if self.throttled.is_empty() {
            return;
        }
        for number in std::mem::take(&mut self.throttled) {
            let Some(import) = self.import(number) else { continue };
            import.throttled = false;
            if !import.congested {
                self.congestion_changed(ctx, number, false);
            }
        }
    }

    /// Returns whether one more store of an import may wait. Half of the reserve is divided among the open imports, so
    /// that an import does not lose stores because others have filled the reserve.
    pub(super) fn has_room(&self, ctx: &Ctx, number: u16) -> bool {
        let free = ctx.config.reserve.saturating_sub(self.waiting_total);
        let waiting = self.open_import(number).map_or(0, |import| import.waiting);
        if ctx.has(Bug::ShareWholeReserve) {
            return free > 0;
        }
        self.reserve.admits(free.into(), waiting.into())
    }

    /// Divides the reserve among the open imports.
    pub(super) fn divide_reserve(&mut self, ctx: &mut Ctx) {
        let open = self.imports.iter().flatten().count() as u64;
        self.reserve = Shares::half_guaranteed(ctx.config.reserve.into(), open, u64::MAX);
    }

    /// Number of stores (or elements) accepted through an open import and not dropped, and how many of those are
    /// finished.
    pub(crate) fn progress(&self, number: u16) -> Option<(u64, u64)> {
        self.open_import(number).map(|import| (import.issued, import.finished))
    }

    /// The value of the next IMPORT_STATE event of an import: TG_IMPORT_* bits, its latched status in bits 31:16.
    pub(crate) fn import_state(&self, number: u16) -> u64 {
        let Some(import) = self.imports.get(usize::from(number)).and_then(|i| i.as_deref()) else { return 0 };
        let mut value = import.error.map_or(0, |status| (status as u64) << 16);
        if import.is_stopped() {
            value |= event::IMPORT_CONGESTED;
        }
        if import.in_error {
            value |= event::IMPORT_CUT;
        }
        value
    }
}
