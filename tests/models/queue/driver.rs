// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver: what `guest-driver/module/queue.c` does, step by step, around the real `queue_buffers.c`.

use super::consumers::Mode;
use super::{Fault, QueueModel, Say, Sight, State};
use crate::buffers::{Buffers, Refusal};
use crate::consumer::Flags;
use crate::memory::{WORDS, letter};
use telegraphos_wire::Status;
use telegraphos_wire::queue::{BUSY, FULL, HEAD_WORD, HELD, NEXT_WORD, OWNER_SHIFT};

/// The driver's stage of the queue, TG_STAGE_*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    Running,
    Stopped,
    Copied,
    Held,
}

/// Who has the queue's mutex.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Who {
    Worker,
    Consumer(usize),
}

/// What it does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum At {
    /// Hear the news, set FULL, look whether somebody is BUSY.
    Look,
    /// With two words: set FULL, since somebody was BUSY.
    Flag,
    /// Copy and link.
    Copy,
    /// Set HELD, since there is no room.
    Hold,
    /// Clear FULL then.
    Held,
    /// Tell the board to go on.
    Resume,
    /// Wait for its answer.
    Resuming,
    /// Clear FULL and HELD.
    Clear,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Driver {
    pub(super) mutex: Option<(Who, At)>,
    pub(super) stage: Stage,
    /// Numbers of the linked buffers, oldest first.
    pub(super) linked: Vec<u16>,
    /// The board has said that it has stopped the queue.
    pub(super) news: bool,
    /// The worker is to run.
    pub(super) work: bool,
    /// FULL stays set until whoever is BUSY calls.
    pub(super) waits: bool,
    /// Owner numbers of processes that are gone.
    pub(super) gone: Vec<u32>,
    /// The board's answer to the resume.
    pub(super) resumed: Option<Status>,
    /// This stop's overflow has been handled.
    pub(super) handled: bool,
}

impl QueueModel {
    pub(super) fn work(&self, state: &mut State, say: Say<'_>) {
        let driver = &mut state.driver;
        driver.work = false;
        driver.mutex = Some((Who::Worker, At::Look));
        if driver.gone.is_empty() {
            return self.handler(state, say);
        }
        for owner in std::mem::take(&mut driver.gone) {
            if state.control & BUSY != 0 && state.control >> OWNER_SHIFT == u64::from(owner) {
                say(format_args!("clears BUSY({owner}) of the dead"));
                state.control &= (FULL | HELD) & ((1 << OWNER_SHIFT) - 1);
            }
        }
    }

    /// Who is BUSY has been so for too long: its next access is SIGBUS. It maps the queue anew, and begins anew.
    pub(super) fn bound(&self, state: &mut State, say: Say<'_>) {
        state.bounds -= 1;
        state.driver.mutex = Some((Who::Worker, At::Look));
        state.driver.waits = false;
        if state.control & BUSY == 0 {
            self.saw(Sight::Uncalled);
            return self.handler(state, say);
        }
        for consumer in state.consumers.iter_mut().filter(|consumer| consumer.is_amid()) {
            self.saw(Sight::Evicted);
            consumer.mode = Mode::Pass(Vec::new());
            consumer.inside = false;
            if let Some(element) = consumer.handed.take() {
                state.again = Some(element);
            }
        }
        say(format_args!("takes the mappings away, clears BUSY"));
        state.control &= (FULL | HELD) & ((1 << OWNER_SHIFT) - 1);
    }

    pub(super) fn handler(&self, state: &mut State, say: Say<'_>) {
        let driver = &mut state.driver;
        let Some((who, at)) = driver.mutex else { return };
        let next = match at {
            At::Look => {
                if std::mem::take(&mut driver.news) && driver.stage == Stage::Running {
                    driver.stage = Stage::Stopped;
                }
                match driver.stage {
                    Stage::Running => {
                        say(format_args!("nothing to do"));
                        state.control &= !(FULL | HELD);
                        return self.end(state, who, false, say);
                    }
                    Stage::Copied => At::Resume,
                    Stage::Stopped | Stage::Held if self.setup.two_words => {
                        say(format_args!("state is {}", Flags(state.control)));
                        if state.control & BUSY != 0 { At::Flag } else { At::Copy }
                    }
                    Stage::Stopped | Stage::Held => {
                        let before = state.control;
                        state.control |= FULL;
                        say(format_args!("sets FULL, state was {}", Flags(before)));
                        if before & BUSY != 0 {
                            self.saw(Sight::Busy);
                            driver.waits = true;
                            return self.end(state, who, true, say);
                        }
                        At::Copy
                    }
                }
            }
            At::Flag => {
                state.control |= FULL;
                say(format_args!("sets FULL"));
                driver.waits = true;
                return self.end(state, who, true, say);
            }
            At::Copy => match self.copy(state, say) {
                Ok(next) => next,
                Err(fault) => {
                    state.fault = Some(fault);
                    return;
                }
            },
            At::Hold => {
                state.control |= HELD;
                say(format_args!("sets HELD"));
                At::Held
            }
            At::Held => {
                state.control &= !FULL;
                say(format_args!("clears FULL"));
                driver.waits = false;
                return self.end(state, who, false, say);
            }
            At::Resume => {
                say(format_args!("tells the board to go on"));
                driver.resumed = None;
                let reaction = state.board.resume();
                self.absorb(state, reaction, say);
                At::Resuming
            }
            At::Resuming => {
                match driver.resumed.take() {
                    Some(Status::Ok) => say(format_args!("it does")),
                    status => {
                        state.fault = Some(Fault::Resume(status.unwrap_or(Status::Invalid)));
                        return;
                    }
                }
                self.saw(if who == Who::Worker { Sight::Worker } else { Sight::Caller });
                driver.stage = Stage::Running;
                driver.handled = false;
                At::Clear
            }
            At::Clear => {
                state.control &= !(FULL | HELD);
                say(format_args!("clears FULL and HELD"));
                driver.waits = false;
                return self.end(state, who, false, say);
            }
        };
        state.driver.mutex = Some((who, next));
    }

    /// Copies and links, with the driver's own code.
    fn copy(&self, state: &mut State, say: Say<'_>) -> Result<At, Fault> {
        let driver = &mut state.driver;
        if driver.handled || !state.board.is_stopped() {
            return Err(Fault::Handled);
        }
        let count = 1 + self.setup.quota;
        let mut buffers = Buffers::new(WORDS, 4, count, self.setup.reading);
        state.arena.copy_to(&mut buffers, count);
        buffers.set_linked(&driver.linked);
        let result = buffers.overflow();
        let before = state.arena.clone();
        state.arena.copy_from(&buffers, count);
        // Of the first buffer, its head and its link are the processor's (I11).
        if let Some(word) = (0..WORDS).find(|word| {
            before.0[*word as usize] != state.arena.0[*word as usize]
                && !matches!(u64::from(*word), HEAD_WORD | NEXT_WORD)
        }) {
            return Err(Fault::Foreign { word });
        }
        if !driver.linked.is_empty() && result.is_ok() && buffers.linked().len() <= driver.linked.len() {
            self.saw(Sight::Freed);
        }
        driver.linked = buffers.linked().to_vec();
        let chain = || driver.linked.iter().rev().map(|n| format!(" -> {}", letter((*n).into()))).collect::<String>();
        match result {
            Ok(()) => {
                say(format_args!("copies and links: A{}", chain()));
                driver.stage = Stage::Copied;
                driver.handled = true;
                Ok(At::Resume)
            }
            Err(Refusal::NoRoom) => {
                self.saw(Sight::Held);
                say(format_args!("finds no room: A{}", chain()));
                driver.stage = Stage::Held;
                Ok(At::Hold)
            }
            Err(Refusal::Unsound) => Err(Fault::Broken),
        }
    }

    /// The mutex is free again, and whoever had it goes on; `busy`: as a consumer, not before FULL is clear.
    fn end(&self, state: &mut State, who: Who, busy: bool, say: Say<'_>) {
        state.driver.mutex = None;
        let Who::Consumer(number) = who else { return };
        let Mode::Act { seen } = state.consumers[number].mode else { return };
        if busy {
            state.consumers[number].mode = Mode::Wait { seen };
        } else {
            self.look_again_or_sleep(state, number, seen, say);
        }
    }
}
