// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for words of this node's own memory that other nodes store to: by polling, and asleep when it takes long.
//!
//! A waiter that has polled for 20 ms stores what it has read in the words to WORD_ARM of its context page, polls once
//! more, and sleeps until the board's event. A change before it has read is found by that poll; one after that by the
//! board, which compares the words when the arm arrives, or makes the change later. So no wake-up is lost, and one that
//! waits for hours wakes for what it waits for, once a second to see that its board is there, and for nothing else.

use crate::backoff::{Backoff, Pause, unwoken};
use crate::context::Context;
use crate::error::Result;
use std::time::Duration;
use telegraphos_wire::context::WordArm;

/// Where memory of this node lies among its export pages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watchable {
    /// The page of its first unit, if the driver has said.
    first: Option<u32>,
}

impl Watchable {
    /// From a field of the driver's: 1 and the export page; 0 of a driver that does not say.
    pub(crate) fn of(page: u32) -> Watchable {
        Watchable { first: page.checked_sub(1) }
    }

    /// Requests an event when the page of the word at `offset` changes, or at once if the word is not `value` any more:
    /// false if that is not possible. `offset` is a multiple of 8 within the memory.
    pub(crate) fn arm(self, context: &Context, offset: u64, value: u64) -> bool {
        let unit = u32::try_from(offset / context.unit).ok();
        let Some(page) = self.first.zip(unit).and_then(|(first, unit)| first.checked_add(unit)) else { return false };
        let word = (offset % context.unit / 8) as u16;
        let (register, data) = WordArm { page, word, seen: WordArm::fold(value) }.encode();
        context.slots.write_register(register, data);
        true
    }
}

/// A wait for words.
#[derive(Debug)]
pub(crate) struct WordWait {
    pub(crate) backoff: Backoff,
    /// The epoch of the completion channel before the words were armed, if they are.
    armed: Option<u64>,
}

impl WordWait {
    /// A wait that begins now and ends after `limit` (`None`: never).
    pub(crate) fn new(limit: Option<Duration>) -> WordWait {
        WordWait { backoff: Backoff::new(limit), armed: None }
    }

    /// Pauses once before the next poll; false when the limit is reached. `arm` reads each of the words and arms it
    /// with what it has read, or says that it cannot. `check`, for which system calls are not too dear, fails when
    /// waiting makes no sense any more.
    ///
    /// A waiter that cannot be woken looks after an eighth of what it has waited, and after 10 ms at most. So does one
    /// whose program reads the context's events itself.
    pub(crate) fn pause(
        &mut self,
        context: &Context,
        arm: impl FnOnce() -> Result<bool>,
        check: impl FnOnce() -> Result<()>,
    ) -> Result<bool> {
        if let Some(epoch) = self.armed.take() {
            self.sleep(context, epoch)?;
            check()?;
            return Ok(true);
        }
        match self.backoff.next() {
            None => return Ok(false),
            Some(Pause::Spin) => std::hint::spin_loop(),
            Some(Pause::Yield) => std::thread::yield_now(),
            Some(Pause::Sleep(time)) => std::thread::sleep(time),
            Some(Pause::Block(_)) => {
                // Before the words are read: an event that another thread takes is noticed.
                let epoch = context.completions.epoch();
                if context.completions.is_private(&context.device) && arm()? {
                    self.armed = Some(epoch);
                } else {
                    let time = unwoken(self.backoff.waited());
                    std::thread::sleep(self.backoff.left().map_or(time, |left| left.min(time)));
                }
            }
        }
        if self.backoff.is_time_to_check() {
            check()?;
        }
        Ok(true)
    }

    /// Sleeps until there has been an event since `epoch`, but not past the time of the next check for a board that is
    /// gone.
    fn sleep(&mut self, context: &Context, epoch: u64) -> Result<()> {
        let Context { completions, device, .. } = context;
        let time = self.backoff.left().map_or(device.check_every, |left| left.min(device.check_every));
        let is_woken = || completions.epoch() != epoch;
        completions.wait(device, &Backoff::new(Some(time)), is_woken)?;
        if is_woken() {
            // What has changed may be the first of several words: the others come soon.
            self.backoff.restart();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn an_arm_names_the_page_of_the_word_and_what_was_seen() {
        let context = Context::without_board();
        let memory = Watchable::of(1 + 7);
        assert!(memory.arm(&context, 2 * 65536 + 8 * 700, 5 << 32 | 3));
        let (register, data) = WordArm { page: 9, word: 700, seen: 6 }.encode();
        assert_eq!(context.slots.register(register), data);
        assert!(!Watchable::of(0).arm(&context, 0, 0), "the driver does not say where it lies");
    }

    #[test]
    fn without_a_board_a_wait_polls_ever_more_slowly_and_ends_at_its_limit() {
        let context = Context::without_board();
        let mut wait = WordWait::new(Some(Duration::from_millis(300)));
        let (polls, checks) = (Cell::new(0), Cell::new(0));
        let arm = || Ok(false);
        let check = || {
            checks.set(checks.get() + 1);
            Ok(())
        };
        while wait.pause(&context, arm, check).unwrap() {
            polls.set(polls.get() + 1);
        }
        assert!(wait.backoff.waited() >= Duration::from_millis(300));
        // 320 without sleep; some 60 sleeps up to 80 ms, and then one every 10 ms: not one every millisecond.
        assert!(polls.get() < 320 + 120, "{}", polls.get());
    }
}
