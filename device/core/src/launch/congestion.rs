// SPDX-License-Identifier: MIT OR Apache-2.0
//! Congestion of contexts: by the bytes of their unfinished copies, or by the rate of the guest's stores. The launcher
//! calls it when copies start or end, and `hib` for stores and the state of the guest's socket.

use crate::ctx::Ctx;
use crate::events::Cause;
use crate::{Bug, HibConfig, Notice};
use std::collections::BTreeSet;
use telegraphos_accounts::{Account, Shares};
use telegraphos_wire::{Status, event};

/// Numbers of stores by context, ascending. Those that are not zero are few: of the contexts that store at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Stores(Vec<(u16, u32)>);

impl Stores {
    fn place(&self, context: u16) -> Result<usize, usize> {
        self.0.binary_search_by_key(&context, |(context, _)| *context)
    }

    /// Counts one more of a context.
    fn increment(&mut self, context: u16) {
        match self.place(context) {
            Ok(place) => self.0[place].1 += 1,
            Err(place) => self.0.insert(place, (context, 1)),
        }
    }

    /// Counts none of a context.
    fn reset(&mut self, context: u16) {
        if let Ok(place) = self.place(context) {
            self.0.remove(place);
        }
    }
}

/// The contexts whose processes must stop, and what they are charged.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Congestion {
    /// Account of the bytes of unfinished copies, by context.
    pub(crate) bytes: Account<u16>,
    /// Contexts congested by their copies.
    congested: BTreeSet<u16>,
    throttled: BTreeSet<u16>,
    /// Stores to context pages by context, since the guest's socket was last empty or contexts were last throttled.
    stores: Stores,
}

impl Congestion {
    /// Nothing charged.
    pub(super) fn new(config: &HibConfig) -> Congestion {
        let contexts = u64::from(config.contexts);
        let shares = Shares::equal(contexts.saturating_mul(config.copies_limit), contexts);
        Congestion {
            bytes: Account::new(shares),
            congested: BTreeSet::new(),
            throttled: BTreeSet::new(),
            stores: Stores::default(),
        }
    }

    /// Removes the state of a closed context. Returns whether it was congested.
    pub(super) fn forget_context(&mut self, number: u16) -> bool {
        self.stores.reset(number);
        // Each is removed, whatever the other was.
        self.congested.remove(&number) | self.throttled.remove(&number)
    }

    /// Returns whether the driver must stop the processes of a context.
    fn is_stopped(&self, context: u16) -> bool {
        self.congested.contains(&context) || self.throttled.contains(&context)
    }

    /// Returns whether a context is congested.
    pub(crate) fn any_stopped(&self) -> bool {
        !self.congested.is_empty() || !self.throttled.is_empty()
    }

    /// Counts a store to the page of an open context, for [`Congestion::throttle`].
    pub(crate) fn count_store(&mut self, context: u16) {
        self.stores.increment(context);
    }

    /// The value of the next CONTEXT_STATE event of a context: TG_CONTEXT_* bits.
    pub(crate) fn context_state(&self, context: u16) -> u64 {
        if self.is_stopped(context) { event::CONTEXT_CONGESTED } else { 0 }
    }

    /// Reports that a context has become congested (`on`) or is no longer congested, and posts an event.
    fn congestion_changed(&mut self, ctx: &mut Ctx, context: u16, on: bool) {
        if on {
            ctx.counters.congested += 1;
        } else if ctx.has(Bug::ForgetContextClear) {
            return;
        }
        ctx.notice(Notice::ContextCongested { context, on });
        ctx.cause(Cause::ContextState(context));
    }

    /// The board cannot keep up with the guest's stores: stops each context that issued at least its part of half the
    /// intake limit, which is divided evenly among the storing contexts. The requester stops the active imports.
    pub(crate) fn throttle(&mut self, ctx: &mut Ctx) {
        let Stores(stores) = std::mem::take(&mut self.stores);
        let part = ctx.config.intake_limit / 2 / (stores.len() as u32).max(1);
        for context in stores.into_iter().filter(|(_, count)| *count >= part).map(|(context, _)| context) {
            let newly_stopped = !self.is_stopped(context);
            self.throttled.insert(context);
            if newly_stopped {
                self.congestion_changed(ctx, context, true);
            }
        }
    }

    /// The guest's socket is empty: stores are counted anew. Returns whether contexts are to be
    /// [released](Congestion::release).
    #[inline]
    pub(crate) fn intake_dry(&mut self) -> bool {
        self.stores.0.clear();
        !self.throttled.is_empty()
    }

    /// Releases the contexts that [`Congestion::throttle`] has stopped.
    pub(crate) fn release(&mut self, ctx: &mut Ctx) {
        for context in std::mem::take(&mut self.throttled) {
            if !self.is_stopped(context) {
                self.congestion_changed(ctx, context, false);
            }
        }
    }

    /// Charges the bytes of a copy to its context, which may become congested. Fails with `NoSpace` at
    /// [`HibConfig::copies_limit`](crate::HibConfig::copies_limit).
    pub(super) fn charge_copy(&mut self, ctx: &mut Ctx, context: u16, length: u64) -> Result<(), Status> {
        if ctx.has(Bug::UnboundedCopies) {
            return Ok(());
        }
        self.bytes.take(context, length).map_err(|_| Status::NoSpace)?;
        if self.bytes.held(&context) >= ctx.config.copies_congest_at && !self.congested.contains(&context) {
            let newly_stopped = !self.is_stopped(context);
            self.congested.insert(context);
            if newly_stopped {
                self.congestion_changed(ctx, context, true);
            }
        }
        Ok(())
    }

    /// Returns the bytes of a finished copy to its context, whose congestion may end.
    pub(super) fn credit_copy(&mut self, ctx: &mut Ctx, context: u16, length: u64) {
        self.bytes.give(&context, length);
        if self.bytes.held(&context) <= ctx.config.copies_clear_at
            && self.congested.remove(&context)
            && !self.is_stopped(context)
        {
            self.congestion_changed(ctx, context, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_taken_in_order_and_zero_ones_are_not_seen() {
        let mut stores = Stores::default();
        for context in [7, 3, 7, 250, 9] {
            stores.increment(context);
        }
        stores.reset(9);
        stores.reset(250);
        stores.reset(400);
        assert_eq!(stores, Stores(vec![(3, 1), (7, 2)]));
    }
}
