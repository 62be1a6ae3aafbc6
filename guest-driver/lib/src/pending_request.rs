// SPDX-License-Identifier: MIT OR Apache-2.0
//! A request to the board with the slot that it occupies.

use crate::backoff::Backoff;
use crate::context::Context;
use crate::error::Result;
use crate::slots::{Answer, SlotUse};
use std::ops::Deref;
use telegraphos_wire::context;

/// A slot with, once submitted, a request to the board that is not yet answered. Dropped before the answer, it leaves
/// the slot to [`Slots`](crate::slots::Slots) as an orphan.
#[derive(Debug)]
pub(crate) struct PendingRequest<C: Deref<Target = Context>> {
    pub(crate) context: C,
    pub(crate) slot: u32,
    /// The number that the answer will bear.
    pub(crate) cookie: u64,
    submitted: bool,
    armed: bool,
    answer: Option<Answer>,
}

impl<C: Deref<Target = Context>> PendingRequest<C> {
    /// Takes a slot, waiting until one is free; `None` when `backoff` ends first.
    pub(crate) fn new(context: C, purpose: SlotUse, backoff: &mut Backoff) -> Option<PendingRequest<C>> {
        loop {
            if let Some((slot, cookie)) = context.slots.take(purpose) {
                return Some(PendingRequest { context, slot, cookie, submitted: false, armed: false, answer: None });
            }
            if !backoff.wait() {
                return None;
            }
        }
    }

    /// Submits the request with one store to a register of the context page. From now on the slot is the board's until
    /// it answers.
    pub(crate) fn submit(&mut self, offset: u64, word: u64) {
        self.submitted = true;
        self.context.slots.write_register(offset, word);
    }

    /// The answer, if it is there. A load from memory, no system call.
    pub(crate) fn poll(&mut self) -> Option<Answer> {
        if self.answer.is_none() {
            self.answer = self.context.slots.fetch(self.slot, self.cookie);
        }
        self.answer
    }

    /// Polls until the answer is there; `None` when `backoff` ends first. Fails when the board is gone.
    pub(crate) fn wait(&mut self, backoff: &mut Backoff) -> Result<Option<Answer>> {
        loop {
            if let Some(answer) = self.poll() {
                return Ok(Some(answer));
            }
            if !backoff.wait_checked(|| self.context.device.check())? {
                return Ok(None);
            }
        }
    }

    /// Has the board signal the completion channel at the answer; at once if that is there already.
    pub(crate) fn arm(&mut self) {
        if !self.armed {
            self.armed = true;
            self.context.slots.write_register(context::ARM + 8 * u64::from(self.slot), self.cookie);
        }
    }
}

impl<C: Deref<Target = Context>> Drop for PendingRequest<C> {
    fn drop(&mut self) {
        if !self.submitted {
            self.context.slots.release(self.slot);
        } else if self.poll().is_none() {
            self.context.slots.abandon(self.slot, self.cookie);
        }
    }
}
