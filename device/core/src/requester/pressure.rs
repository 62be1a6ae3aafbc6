// SPDX-License-Identifier: MIT OR Apache-2.0
//! Back-pressure: imports that must stop until what they have posted has been taken.

use crate::Notice;
use crate::config::Bug;
use crate::events::Cause;
use crate::hib::Hib;
use telegraphos_accounts::Shares;
use telegraphos_wire::event;

impl Hib {
    pub(super) fn stopped(&mut self, import: u16, on: bool) {
        if on {
            self.ctx.counters.congested += 1;
        }
        self.ctx.notice(Notice::Congested { import, on });
        self.ctx.cause(Cause::ImportState(import));
    }

    /// QEMU queues posted stores without bound. A socket that never runs dry means that its queue grows: stop the
    /// processes that store.
    pub(crate) fn count_intake(&mut self) {
        self.requester.intake = self.requester.intake.saturating_add(1);
        if self.requester.intake < self.ctx.config.intake_limit {
            return;
        }
        self.requester.intake = 0;
        self.throttle_contexts();
        for number in 0..self.requester.imports.len() as u16 {
            let Some(import) = self.requester.import(number) else { continue };
            if std::mem::take(&mut import.active) && !import.throttled {
                import.throttled = true;
                let news = !import.congested;
                self.requester.throttled.insert(number);
                if news {
                    self.stopped(number, true);
                }
            }
        }
    }

    pub(crate) fn intake_dry(&mut self) {
        self.requester.intake = 0;
        self.release_contexts();
        for number in std::mem::take(&mut self.requester.throttled) {
            let Some(import) = self.requester.import(number) else { continue };
            import.throttled = false;
            if !import.congested {
                self.stopped(number, false);
            }
        }
    }

    /// Whether one more store of an import may wait. Half of the reserve is divided among the open imports, so that one
    /// that only waits is not cut because others have filled it.
    pub(super) fn has_room(&self, number: u16) -> bool {
        let free = self.ctx.config.reserve.saturating_sub(self.requester.waiting_total);
        let held = self.requester.open_import(number).map_or(0, |import| import.waiting);
        if self.ctx.has(Bug::ShareWholeReserve) {
            return free > 0;
        }
        self.requester.reserve.admits(free.into(), held.into())
    }

    /// Divides the reserve among the open imports.
    pub(super) fn divide_reserve(&mut self) {
        let open = self.requester.imports.iter().flatten().count() as u64;
        self.requester.reserve = Shares::half_guaranteed(self.ctx.config.reserve.into(), open, u64::MAX);
    }

    /// Whether so many stores wait that the shell should take in no more for a while, if it can.
    pub fn is_nearly_full(&self) -> bool {
        self.requester.waiting_total >= self.ctx.config.reserve / 4
    }

    /// Stores and elements of the whole board that wait to be sent, of
    /// [`HibConfig::reserve`](crate::HibConfig::reserve).
    pub fn waiting(&self) -> u32 {
        self.requester.waiting_total
    }

    /// Stores (or elements) accepted through an open import and not dropped, and how many of those are finished: what
    /// quiet waits for.
    pub fn import_progress(&self, number: u16) -> Option<(u64, u64)> {
        self.requester.open_import(number).map(|import| (import.issued, import.finished))
    }

    /// The value that the next IMPORT_STATE event of an import tells: TG_IMPORT_* bits, its latched status in bits
    /// 31:16.
    pub fn import_state(&self, number: u16) -> u64 {
        let Some(import) = self.requester.imports.get(usize::from(number)).and_then(|i| i.as_deref()) else { return 0 };
        let mut value = import.error.map_or(0, |status| (status as u64) << 16);
        if import.stopped() {
            value |= event::IMPORT_CONGESTED;
        }
        if import.cut {
            value |= event::IMPORT_CUT;
        }
        value
    }
}
