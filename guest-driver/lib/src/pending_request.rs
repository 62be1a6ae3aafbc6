// SPDX-License-Identifier: MIT OR Apache-2.0
//! A request to the board with the slot that it occupies.

use crate::backoff::{Backoff, Pause, seen};
use crate::context::Context;
use crate::error::Result;
use crate::slots::{Answer, SlotUse};
use std::ops::Deref;
use std::time::{Duration, Instant};
use telegraphos_wire::{Status, context};

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
    /// The length of a copy, and when it was submitted.
    copy: Option<(u64, Instant)>,
}

impl<C: Deref<Target = Context>> PendingRequest<C> {
    /// Takes a slot, waiting until one is free; `None` when `backoff` ends first.
    pub(crate) fn new(context: C, purpose: SlotUse, backoff: &mut Backoff) -> Option<PendingRequest<C>> {
        loop {
            if let Some((slot, cookie)) = context.slots.take(purpose) {
                let (submitted, armed) = (false, false);
                return Some(PendingRequest { context, slot, cookie, submitted, armed, answer: None, copy: None });
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

    /// [`PendingRequest::submit`] of a copy of that length, of which the time is predicted and measured.
    pub(crate) fn submit_copy(&mut self, offset: u64, word: u64, length: u64) {
        self.submit(offset, word);
        self.copy = Some((length, Instant::now()));
    }

    /// The answer, if it is there. A load from memory, no system call.
    pub(crate) fn poll(&mut self) -> Option<Answer> {
        if self.answer.is_none() {
            self.answer = self.context.slots.fetch(self.slot, self.cookie);
        }
        self.answer
    }

    /// Polls until the answer is there, and sleeps until the board's interrupt when it is long overdue; `None` when
    /// `backoff` ends first. Fails when the board is gone.
    pub(crate) fn wait(&mut self, backoff: &mut Backoff) -> Result<Option<Answer>> {
        let (mut early, mut slept) = (false, None);
        if let Some((length, at)) = self.copy {
            let pace = &self.context.pace;
            backoff.expect(pace.expected(length).and_then(|time| at.checked_add(time)), pace.late());
        }
        loop {
            if let Some(answer) = self.poll() {
                // Seen as it came: what was there before could be of any age.
                if let Some((length, at)) = self.copy.take().filter(|_| early && answer.0 == Status::Ok) {
                    let took = at.elapsed();
                    let before = slept.map_or(took, |begun: Instant| begun.saturating_duration_since(at));
                    self.context.pace.learn(length, seen(before, took));
                }
                backoff.expect(None, Duration::ZERO);
                return Ok(Some(answer));
            }
            (early, slept) = (true, None);
            match backoff.next() {
                None => return Ok(None),
                Some(Pause::Spin) => std::hint::spin_loop(),
                Some(Pause::Yield) => std::thread::yield_now(),
                Some(Pause::Sleep(time)) => {
                    let begun = *slept.insert(Instant::now());
                    std::thread::sleep(time);
                    self.context.pace.overslept(begun.elapsed().saturating_sub(time));
                }
                Some(Pause::Block(time)) => {
                    if !self.block(backoff)? {
                        std::thread::sleep(time);
                    }
                }
            }
            if backoff.is_time_to_check() {
                self.context.device.check()?;
            }
        }
    }

    /// Sleeps until the answer is there, or `backoff` ends; false if the completion channel has another reader.
    fn block(&mut self, backoff: &Backoff) -> Result<bool> {
        if !self.context.completions.is_private(&self.context.device) {
            return Ok(false);
        }
        // Overdue, so its time says nothing about the next.
        self.copy = None;
        self.arm();
        let mut answer = self.answer;
        let Context { slots, completions, device, .. } = &*self.context;
        let (slot, cookie) = (self.slot, self.cookie);
        completions.wait(device, backoff, || {
            answer = answer.or_else(|| slots.fetch(slot, cookie));
            answer.is_some()
        })?;
        self.answer = answer;
        Ok(true)
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
