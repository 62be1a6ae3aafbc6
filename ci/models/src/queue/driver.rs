// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver: the code of `guest-driver/module/queue.c` around the real `queue_handler.c` and `queue_buffers.c`, step
//! by step.

use super::mode::Mode;
use super::{Fault, QueueModel, Say, Sight, State};
use crate::buffers::Buffers;
use crate::consumer::Flags;
use crate::handler::{At, Handler, Next, Stage};
use crate::memory::{WORDS, letter};
use telegraphos_wire::Status;
use telegraphos_wire::queue::{BUSY, HEAD_WORD, NEXT_WORD, OWNER_SHIFT};

/// The holder of the queue's mutex.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Holder {
    Worker,
    Consumer(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Driver {
    pub(super) mutex: Option<Holder>,
    pub(super) handler: Handler,
    /// The board's events have been read since the mutex was taken.
    pub(super) begun: bool,
    /// QUEUE_RESUME has been sent, and the handler waits for its completion.
    pub(super) resume_sent: bool,
    /// Numbers of the linked buffers, oldest first.
    pub(super) linked: Vec<u16>,
    /// The board has reported that the queue has stopped.
    pub(super) news: bool,
    /// The worker is to run.
    pub(super) work: bool,
    /// FULL stays set until the BUSY consumer calls the driver.
    pub(super) waits: bool,
    /// Owner numbers of processes that have exited.
    pub(super) gone: Vec<u32>,
    pub(super) resumed: Option<Status>,
    /// This stop's overflow has been handled.
    pub(super) handled: bool,
}

impl Driver {
    /// Takes the mutex, which is free, and begins.
    pub(super) fn enter(&mut self, holder: Holder) {
        self.mutex = Some(holder);
        self.handler.begin();
        self.resume_sent = false;
        self.begun = false;
    }

    /// Whether the mutex is held and this is the handler's next step.
    pub(super) fn is_at(&self, at: At) -> bool {
        self.mutex.is_some() && self.handler.at == at
    }
}

impl QueueModel {
    pub(super) fn work(&self, state: &mut State, say: Say<'_>) {
        let driver = &mut state.driver;
        driver.work = false;
        driver.enter(Holder::Worker);
        if driver.gone.is_empty() {
            return self.handler(state, say);
        }
        for owner in std::mem::take(&mut driver.gone) {
            if state.control & BUSY != 0 && state.control >> OWNER_SHIFT == u64::from(owner) {
                say(format_args!("clears BUSY({owner}) of the dead"));
            }
            state.driver.handler.clear_busy(&mut state.control, owner);
        }
    }

    /// A consumer has been BUSY for too long: its next access raises SIGBUS. It maps the queue again and restarts.
    pub(super) fn bound(&self, state: &mut State, say: Say<'_>) {
        state.bounds -= 1;
        state.driver.enter(Holder::Worker);
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
        state.driver.handler.evict(&mut state.control);
    }

    pub(super) fn handler(&self, state: &mut State, say: Say<'_>) {
        let Some(holder) = state.driver.mutex else { return };
        if state.driver.handler.at == At::Resume {
            return self.resume(state, holder, say);
        }
        // The holder of the mutex reads the events first.
        if !std::mem::replace(&mut state.driver.begun, true) && std::mem::take(&mut state.driver.news) {
            state.driver.handler.stopped();
        }
        let (before, at, control) = (state.arena.clone(), state.driver.handler.at, state.control);
        if at == At::Copy && (state.driver.handled || !state.board.is_stopped()) {
            state.fault = Some(Fault::Handled);
            return;
        }
        let next = self.step(state);
        match at {
            At::Look if control == state.control => say(format_args!("state is {}", Flags(control))),
            At::Look | At::Flag => say(format_args!("sets FULL, state was {}", Flags(control))),
            At::Copy => {
                // Of the first buffer, its head and its link are the processor's (I11).
                if let Some(word) = (0..WORDS).find(|word| {
                    before.0[*word as usize] != state.arena.0[*word as usize]
                        && !matches!(u64::from(*word), HEAD_WORD | NEXT_WORD)
                }) {
                    state.fault = Some(Fault::Foreign { word });
                    return;
                }
                self.say_copied(state, say);
            }
            At::Hold => say(format_args!("sets HELD")),
            At::Unfull => say(format_args!("clears FULL")),
            At::Clear => say(format_args!("clears FULL and HELD")),
            At::Resume => {}
        }
        match next {
            Next::Step | Next::Resume => {}
            Next::Done => {
                state.driver.waits = false;
                self.end(state, holder, false, say);
            }
            Next::Busy => {
                self.saw(Sight::Busy);
                state.driver.waits = true;
                self.end(state, holder, true, say);
            }
            Next::Broken => state.fault = Some(Fault::Broken),
        }
    }

    /// The driver's own code, on the queue's buffers.
    fn step(&self, state: &mut State) -> Next {
        let driver = &mut state.driver;
        let count = 1 + self.setup.quota;
        let copies = driver.handler.at == At::Copy;
        let mut buffers = Buffers::new(WORDS, 4, count, self.setup.reading);
        if copies {
            state.arena.copy_to(&mut buffers, count);
            buffers.set_linked(&driver.linked);
        }
        let next = driver.handler.step(&mut state.control, &mut buffers, self.setup.handler);
        if copies {
            state.arena.copy_from(&buffers, count);
            let copied = driver.handler.stage == Stage::Copied;
            if !driver.linked.is_empty() && copied && buffers.linked().len() <= driver.linked.len() {
                self.saw(Sight::Freed);
            }
            driver.linked = buffers.linked().to_vec();
            driver.handled |= copied;
        }
        next
    }

    fn say_copied(&self, state: &State, say: Say<'_>) {
        let driver = &state.driver;
        let chain = driver.linked.iter().rev().map(|n| format!(" -> {}", letter((*n).into()))).collect::<String>();
        if driver.handler.stage == Stage::Held {
            self.saw(Sight::Held);
            say(format_args!("finds no room: A{chain}"));
        } else {
            say(format_args!("copies and links: A{chain}"));
        }
    }

    /// The driver's part after the handler: it sends QUEUE_RESUME and waits for its completion.
    fn resume(&self, state: &mut State, holder: Holder, say: Say<'_>) {
        if !std::mem::replace(&mut state.driver.resume_sent, true) {
            say(format_args!("sends QUEUE_RESUME"));
            state.driver.resumed = None;
            let reaction = state.board.resume();
            return self.absorb(state, reaction, say);
        }
        match state.driver.resumed.take() {
            Some(Status::Ok) => say(format_args!("it does")),
            status => {
                state.fault = Some(Fault::Resume(status.unwrap_or(Status::Invalid)));
                return;
            }
        }
        self.saw(if holder == Holder::Worker { Sight::Worker } else { Sight::Caller });
        state.driver.handler.resumed();
        state.driver.resume_sent = false;
        state.driver.handled = false;
    }

    /// Releases the mutex; the holder continues. `busy`: a consumer continues only when FULL is clear.
    fn end(&self, state: &mut State, holder: Holder, busy: bool, say: Say<'_>) {
        state.driver.mutex = None;
        state.driver.handler.begin();
        state.driver.begun = false;
        let Holder::Consumer(number) = holder else { return };
        let Mode::Act { seen } = state.consumers[number].mode else { return };
        if busy {
            state.consumers[number].mode = Mode::Wait { seen };
        } else {
            self.look_again_or_sleep(state, number, seen, say);
        }
    }
}
