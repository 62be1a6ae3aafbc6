// SPDX-License-Identifier: MIT OR Apache-2.0
//! Back-pressure: stores that wait, and imports whose processes must stop until the board has sent them. The requester
//! calls it when stores start or end to wait, and `hib` for the state of the guest's socket.

use super::imports::{Import, Imports};
use crate::HibConfig;
use crate::config::Bug;
use crate::ctx::Ctx;
use std::collections::BTreeSet;
use telegraphos_accounts::Shares;

/// The reserve of waiting stores, and what the guest has stored since its socket was last empty.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Pressure {
    /// Stores and elements of all imports that wait to be sent.
    pub(crate) waiting: u32,
    /// How the reserve is divided among the open imports.
    reserve: Shares,
    /// Posted stores since the guest's socket was last empty.
    intake: u32,
    /// Imports that are throttled.
    pub(super) throttled: BTreeSet<u16>,
}

impl Pressure {
    /// Nothing waits.
    pub(super) fn new(config: &HibConfig) -> Pressure {
        let reserve = Shares::half_guaranteed(config.reserve.into(), 0, u64::MAX);
        Pressure { waiting: 0, reserve, intake: 0, throttled: BTreeSet::new() }
    }

    /// Divides the reserve among the open imports.
    pub(super) fn divide_reserve(&mut self, ctx: &Ctx, imports: &Imports) {
        self.reserve = Shares::half_guaranteed(ctx.config.reserve.into(), imports.open().count() as u64, u64::MAX);
    }

    /// Returns whether one more store of an import may wait. Half of the reserve is divided among the open imports, so
    /// that an import does not lose stores because others have filled the reserve.
    pub(super) fn has_room(&self, ctx: &Ctx, import: &Import) -> bool {
        self.has_room_behind(ctx, import, 0)
    }

    /// The same, when so many other stores of the import are waiting, too.
    pub(super) fn has_room_behind(&self, ctx: &Ctx, import: &Import, others: u32) -> bool {
        let free = ctx.config.reserve.saturating_sub(self.waiting).saturating_sub(others);
        if ctx.has(Bug::ShareWholeReserve) {
            return free > 0;
        }
        self.reserve.admits(free.into(), (import.waiting + others).into())
    }

    /// Marks an import with too many waiting stores as congested.
    pub(super) fn congest_if_full(&self, ctx: &mut Ctx, import: &mut Import) {
        if import.waiting >= ctx.config.congest_at && !import.congested {
            import.congested = true;
            import.congestion_changed(ctx, true);
        }
    }

    /// Uncounts waiting stores of an import, and ends the import's congestion if few are left. Returns the import's
    /// context.
    pub(super) fn uncount(&mut self, ctx: &mut Ctx, import: Option<&mut Import>, count: u32) -> u16 {
        self.waiting -= count;
        let Some(import) = import else { return 0 };
        import.waiting -= count;
        if import.congested && import.waiting <= ctx.config.clear_at {
            import.congested = false;
            if !import.throttled {
                import.congestion_changed(ctx, false);
            }
        }
        import.context
    }

    /// Counts a posted store. QEMU queues them without limit, and a socket that is never empty means that its queue
    /// grows. Returns true if the storing processes must be stopped ([`Pressure::throttle`]).
    pub(crate) fn count_intake(&mut self, ctx: &Ctx) -> bool {
        self.intake = self.intake.saturating_add(1);
        let limit = self.intake >= ctx.config.intake_limit;
        if limit {
            self.intake = 0;
        }
        limit
    }

    /// Stops the imports that had stores since the guest's socket was last empty.
    pub(crate) fn throttle(&mut self, ctx: &mut Ctx, imports: &mut Imports) {
        for import in imports.open_mut() {
            if std::mem::take(&mut import.active) && !import.throttled {
                import.throttled = true;
                self.throttled.insert(import.number);
                if !import.congested {
                    import.congestion_changed(ctx, true);
                }
            }
        }
    }

    /// The guest's socket is empty: stores are counted anew. Returns whether imports are to be
    /// [released](Pressure::release).
    #[inline]
    pub(crate) fn intake_dry(&mut self) -> bool {
        self.intake = 0;
        !self.throttled.is_empty()
    }

    /// Releases the imports that [`Pressure::throttle`] has stopped.
    pub(crate) fn release(&mut self, ctx: &mut Ctx, imports: &mut Imports) {
        for number in std::mem::take(&mut self.throttled) {
            let Some(import) = imports.get_mut(number) else { continue };
            import.throttled = false;
            if !import.congested {
                import.congestion_changed(ctx, false);
            }
        }
    }
}
