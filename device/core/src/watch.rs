// SPDX-License-Identifier: MIT OR Apache-2.0
//! Watched pages: a process that waits for a word of its own exported or replicated memory arms the word's page and
//! sleeps until the board changes it ([`WordArm`]).
//!
//! An arm is served in two parts: from its arrival on, each change of the page counts; then the word is loaded, and
//! compared with what the process saw. So a change before the arm is found by the comparison, and one after it by the
//! part that makes it. `hib` calls this part for arms, and after each guest-memory step that changes a granted page.

use crate::config::Bug;
use crate::ctx::{Ctx, StepOwner};
use crate::events::Cause;
use crate::grants::Grants;
use crate::{Bar, Step, StepResult};
use std::collections::BTreeMap;
use telegraphos_wire::Status;
use telegraphos_wire::context::WordArm;

/// An armed page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Watch {
    /// The context that is notified: the one that has granted the page.
    context: u16,
    /// What the process saw in the word that is being loaded.
    looking: Option<u32>,
}

/// The armed pages of the board.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Watches {
    /// By export page. An entry goes with its event.
    pub(crate) pages: BTreeMap<u32, Watch>,
}

impl Watches {
    /// A store to a WORD_ARM of this context. `current`: stores of other nodes show in the page's memory.
    pub(crate) fn arm(
        &mut self,
        ctx: &mut Ctx,
        grants: &Grants,
        context: u16,
        offset: u64,
        arm: WordArm,
        current: bool,
    ) {
        let own = |owner: Option<u16>| owner == Some(context) || ctx.has(Bug::WatchForeign);
        let Some(grant) = grants.pages.get(arm.page).filter(|grant| own(grant.context)) else {
            return ctx.bad_access(Bar::Contexts, offset, 8, Status::NotGranted);
        };
        let at = u64::from(arm.word) * 8;
        if at + 8 > grant.valid {
            return ctx.bad_access(Bar::Contexts, offset, 8, Status::Bounds);
        }
        let busy = self.pages.get(&arm.page).is_some_and(|watch| watch.looking.is_some());
        if busy || !current || !ctx.bus_master {
            // One look at a page at a time. A wake-up too many is harmless.
            return ctx.cause(Cause::Context(context));
        }
        if ctx.has(Bug::WatchBlindly) {
            self.pages.insert(arm.page, Watch { context, looking: None });
            return;
        }
        self.pages.insert(arm.page, Watch { context, looking: Some(arm.seen) });
        ctx.step(Step::Load { address: grant.address + at, size: 8 }, StepOwner::Watch(arm.page));
    }

    /// The word of an arm has been loaded: the page stays armed if it is the one that the process saw.
    pub(crate) fn looked(&mut self, ctx: &mut Ctx, page: u32, result: StepResult) {
        // Else there has been an event since.
        let Some(watch) = self.pages.get_mut(&page) else { return };
        let Some(seen) = watch.looking.take() else { return };
        if !matches!(result, StepResult::Loaded(word) if WordArm::fold(word) == seen) {
            self.changed(ctx, page);
        }
    }

    /// A page has changed, or does not show stores any more: notifies the context that has armed it.
    pub(crate) fn changed(&mut self, ctx: &mut Ctx, page: u32) {
        if let Some(watch) = self.pages.remove(&page) {
            ctx.cause(Cause::Context(watch.context));
        }
    }
}
