// SPDX-License-Identifier: MIT OR Apache-2.0
//! The consumers: the library's code around a pass through the dequeue section.

use super::driver::{Driver, Holder};
use super::mode::Mode;
use super::{Counting, Fault, QueueModel, SENDERS, Say, Sight, State};
use crate::consumer::{self, Access};
use crate::handler::At;
use crate::memory::{WORDS, name};
use telegraphos::queue::dequeue::{Found, Literal, Pass};
use telegraphos_wire::queue::{BUSY, HEAD_WORD, OWNER_SHIFT};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Consumer {
    pub(super) mode: Mode,
    pub(super) owner: u32,
    /// It is in the dequeue section.
    pub(super) inside: bool,
    /// A CONTEXT event has come since its pass began.
    pub(super) woken: bool,
    /// An element that it has received and not taken yet.
    pub(super) handed: Option<u32>,
    /// Elements that it still takes; `None`: no limit.
    pub(super) takes: Option<u32>,
    /// Its store to QUEUE_ARM that is in flight.
    pub(super) arm: Option<u32>,
    /// Wake-ups that the board holds for it, as it counts.
    pub(super) left: u16,
}

impl Consumer {
    pub(super) fn new(owner: u32, takes: Option<u32>) -> Consumer {
        let mode = Mode::Pass(Vec::new());
        Consumer { mode, owner, inside: false, woken: false, handed: None, takes, arm: None, left: 0 }
    }

    /// Whether it is in the middle of a pass.
    pub(super) fn is_amid(&self) -> bool {
        matches!(&self.mode, Mode::Pass(answers) if !answers.is_empty())
    }

    /// Whether its next step is a poll of the queue.
    pub(super) fn is_free(&self) -> bool {
        matches!(&self.mode, Mode::Pass(answers) if answers.is_empty())
    }

    pub(super) fn can_continue(&self, state: &State) -> bool {
        let free = state.driver.mutex.is_none();
        match self.mode {
            Mode::Pass(_) => true,
            Mode::Arm { .. } => self.arm.is_none(),
            // An earlier retry has no effect.
            Mode::Spin => state.control & BUSY == 0,
            Mode::Call { .. } => free,
            Mode::Wait { .. } => free && !state.driver.waits,
            Mode::Act { .. } | Mode::Sleep | Mode::Done | Mode::Dead => false,
        }
    }

    /// Whether killing it would leave anything behind. In the driver it can be killed only while it waits, including
    /// for a free admin slot.
    pub(super) fn is_worth_killing(&self, driver: &Driver) -> bool {
        match &self.mode {
            Mode::Pass(answers) => consumer::is_in_pass(answers),
            Mode::Call { .. } | Mode::Wait { .. } => true,
            Mode::Act { .. } => driver.is_at(At::Resume) && !driver.resume_sent,
            Mode::Spin | Mode::Arm { .. } | Mode::Sleep | Mode::Done | Mode::Dead => false,
        }
    }
}

impl QueueModel {
    pub(super) fn look_again_or_sleep(&self, state: &mut State, number: usize, seen: Option<u32>, say: Say<'_>) {
        let consumer = &mut state.consumers[number];
        consumer.mode = if consumer.takes == Some(0) { Mode::Done } else { Mode::Pass(Vec::new()) };
        if let Some(seen) = seen {
            let armed = consumer.left > 0;
            if !armed && consumer.arm.is_some() {
                consumer.mode = Mode::Arm { seen };
                return;
            }
            if !armed {
                consumer.arm = Some(seen);
                consumer.left = self.setup.wakes;
            }
            let how = if armed { "is armed" } else { "arms" };
            if consumer.woken {
                self.saw(Sight::WokenEarly);
                say(format_args!("{how}, but was woken"));
            } else {
                if armed {
                    self.saw(Sight::SleptUnarmed);
                }
                say(format_args!("{how} and sleeps"));
                consumer.mode = Mode::Sleep;
            }
        }
    }

    pub(super) fn consumer(&self, state: &mut State, number: usize, say: Say<'_>) {
        let consumer = &mut state.consumers[number];
        match consumer.mode {
            Mode::Call { seen } | Mode::Wait { seen } => {
                say(format_args!("calls the driver"));
                consumer.mode = Mode::Act { seen };
                state.driver.enter(Holder::Consumer(number));
                self.handler(state, say);
            }
            Mode::Pass(_) | Mode::Spin => self.pass(state, number, say),
            Mode::Arm { seen } => self.look_again_or_sleep(state, number, Some(seen), say),
            Mode::Act { .. } | Mode::Sleep | Mode::Done | Mode::Dead => {}
        }
    }

    /// The next access of a consumer's pass.
    fn pass(&self, state: &mut State, number: usize, say: Say<'_>) {
        let consumer = &mut state.consumers[number];
        let mut answers = match std::mem::replace(&mut consumer.mode, Mode::Spin) {
            Mode::Pass(answers) => answers,
            _ => Vec::new(),
        };
        if answers.is_empty() {
            consumer.woken = false;
            consumer.inside = self.setup.literal == Literal::Unprotected;
        }
        let dequeue = self.dequeue(consumer);
        let before = state.control >> OWNER_SHIFT;
        let stepped = consumer::step(
            &dequeue,
            (self.setup.most, self.setup.has_two_words()),
            &mut answers,
            &mut state.arena,
            &mut state.control,
        );
        say(format_args!("{}", stepped.access));
        match stepped.access {
            Access::Enter { entered: true, .. } => {
                consumer.inside = true;
                if before != state.control >> OWNER_SHIFT && self.setup.counting != Counting::Unshared {
                    consumer.left = 0;
                }
            }
            Access::Leave { .. } => consumer.inside = false,
            Access::Store { word, .. } => {
                if !stepped.access.is_allowed() {
                    state.fault = Some(Fault::Foreign { word });
                }
                if u64::from(word % WORDS) == HEAD_WORD {
                    consumer.handed = None;
                }
            }
            _ => {}
        }
        if let Some(got) = stepped.handed {
            say(format_args!("has {}", name(got)));
            consumer.handed = Some(got);
            if self.setup.counting != Counting::Uncounted {
                consumer.left = consumer.left.saturating_sub(1);
            }
            consumer.takes = consumer.takes.map(|takes| takes.saturating_sub(1));
            let fault = self.hand_over(state, got);
            state.fault = state.fault.or(fault);
        }
        let Some(pass) = stepped.pass else {
            state.consumers[number].mode = Mode::Pass(answers);
            return;
        };
        let consumer = &mut state.consumers[number];
        consumer.inside = false;
        match pass {
            Pass::Busy => {
                self.saw(Sight::Spin);
                consumer.mode = Mode::Spin;
            }
            Pass::Full => consumer.mode = Mode::Call { seen: None },
            Pass::Dead | Pass::Left { found: Err(_), .. } => state.fault = Some(Fault::Broken),
            Pass::Left { found: Ok(found), call } => {
                let seen = match found {
                    Found::Took { .. } => None,
                    Found::Empty { seen } => Some(seen),
                };
                if call {
                    consumer.mode = Mode::Call { seen };
                } else {
                    self.look_again_or_sleep(state, number, seen, say);
                }
            }
        }
    }

    /// Compares the received element with the expected one.
    fn hand_over(&self, state: &mut State, got: u32) -> Option<Fault> {
        if let Some(again) = state.again.take() {
            self.saw(Sight::Again);
            return (got != again).then_some(Fault::Lost { got, due: again });
        }
        let (sender, number) = ((got >> 8) as usize, got & 0xff);
        if state.due.first() == Some(&got) {
            state.due.remove(0);
            return None;
        }
        let sent = (1..=SENDERS).contains(&sender) && (1..=state.senders[sender - 1].sent).contains(&number);
        if !sent {
            return Some(Fault::Made { got });
        }
        if !state.due.contains(&got) {
            return Some(Fault::Doubled { got });
        }
        let due = state.due[0];
        let buffers = state.driver.linked.iter().map(|n| u32::from(*n)).chain([0]);
        Some(if state.arena.holds(due, buffers) { Fault::Order { got, due } } else { Fault::Lost { got, due } })
    }

    pub(super) fn kill(&self, state: &mut State, number: usize, say: Say<'_>) {
        let consumer = &mut state.consumers[number];
        state.kills -= 1;
        if let Mode::Act { .. } = consumer.mode {
            self.saw(Sight::KilledInDriver);
            state.driver.mutex = None;
        }
        if consumer.inside {
            self.saw(Sight::Killed);
        }
        if let Some(element) = consumer.handed.take() {
            state.again = Some(element);
        }
        consumer.mode = Mode::Dead;
        consumer.inside = false;
        state.driver.gone.push(consumer.owner);
        state.driver.work = true;
        say(format_args!("is killed"));
    }
}
