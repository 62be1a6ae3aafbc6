// SPDX-License-Identifier: MIT OR Apache-2.0
//! Congestion of contexts: by the bytes of their unfinished copies, or by the rate of the guest's stores. Called by the
//! launcher when copies start or end, and by `hib` for the state of the guest's socket.

use super::Launcher;
use crate::ctx::Ctx;
use crate::events::Cause;
use crate::{Bug, Notice};
use telegraphos_wire::Status;
use telegraphos_wire::event;

impl Launcher {
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
        let stores = self.stores.take();
        let part = ctx.config.intake_limit / 2 / (stores.len() as u32).max(1);
        for context in stores.into_iter().filter(|(_, count)| *count >= part).map(|(context, _)| context) {
            let newly_stopped = !self.is_stopped(context);
            self.throttled.insert(context);
            if newly_stopped {
                self.congestion_changed(ctx, context, true);
            }
        }
    }

    /// The guest's socket is empty: releases the contexts that [`Launcher::throttle`] has stopped.
    pub(crate) fn intake_dry(&mut self, ctx: &mut Ctx) {
        self.stores.clear();
        // Called in each turn: most of them have nothing to release.
        if self.throttled.is_empty() {
            return;
        }
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

    /// Bytes of unfinished copies of a context, of [`HibConfig::copies_limit`](crate::HibConfig::copies_limit).
    pub(crate) fn copying(&self, context: u16) -> u64 {
        self.bytes.held(&context)
    }
}
