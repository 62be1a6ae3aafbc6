// SPDX-License-Identifier: MIT OR Apache-2.0
//! One notification queue with its senders, its consumers and its driver, as a stateright model over the real parts (I9
//! to I12).
//!
//! An [`Action`] is one step of one party, any of which may come next; a [`State`] lies between two steps:
//!
//! | Action | Meaning | Real or modelled |
//! |---|---|---|
//! | [`Action::Arrive`] | the next element of a sender arrives at the board, at most `hold` of it unacknowledged | the sender is modelled |
//! | [`Action::Board`] | one load or store of the board's queue machine | the real [`telegraphos_device_core::Hib`] |
//! | [`Action::Arm`] | a consumer's posted store to QUEUE_ARM arrives | the real board |
//! | [`Action::Interrupt`] | the driver reads the board's event ring | modelled, as `guest-driver/module/queue.c` |
//! | [`Action::Work`] | the driver's worker takes the queue's mutex | modelled |
//! | [`Action::Handler`] | the next step of the holder of the mutex: FULL, copy and link, clear; resume | the real `queue_handler.c` and `queue_buffers.c`; modelled |
//! | [`Action::Bound`] | FULL has waited for `queue_hold_ms`: the BUSY consumer loses its mapping (E13) | modelled |
//! | [`Action::Consumer`] | one access of a consumer's dequeue; or the call of the driver | the real [`telegraphos::queue::dequeue`]; modelled |
//! | [`Action::Kill`], [`Action::Restart`] | a consumer is killed at that point; restarts with another owner number | modelled |
//!
//! A consumer takes elements while there are any, calls the driver when the dequeue requires it, and otherwise arms the
//! queue with the word that it read, for [`Setup::wakes`] elements, and sleeps until a CONTEXT event. It does not arm
//! while the board owes it a wake-up of an earlier arm, by its own count. At most one of its stores to QUEUE_ARM is in
//! flight; it may poll again meanwhile, since another consumer's event can wake it. A consumer that found another one
//! inside retries when that one has left: an earlier retry would find the same.
//!
//! Omitted, since the protocol must hold without them: the event at the limit of linked buffers, and the library's poll
//! of the memory before it sleeps. `queue_hold_ms` expires [`Setup::bounds`] times: in most checks never.
//!
//! All accesses are sequentially consistent. The release and acquire orderings that ensure this on a processor are
//! outside this model. A step of the board and its completion are one action, as its shells perform them.
//!
//! When a consumer receives an element, it is compared with the elements that the board has accepted. If a consumer is
//! killed after it received an element and before it stored word 1, the next consumer must receive that element again,
//! once.

mod consumers;
mod driver;
mod mode;
mod setup;
mod story;

use super::board::{Board, Reaction, Touch};
use super::buffers::Buffers;
use super::handler::{At, Handler, Stage};
use super::memory::{Arena, ROOM, WORDS, Word, element, name, shape};
use consumers::Consumer;
use driver::Driver;
use mode::Mode;
pub(crate) use setup::{Counting, Setup};
use stateright::{Model, Property};
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use telegraphos::queue::dequeue::Dequeue;
use telegraphos_device_core::StepId;
use telegraphos_wire::Status;
use telegraphos_wire::queue::{BUSY, HEAD_WORD, NEXT_WORD};

/// Senders, at nodes 1 and 2; and consumers at most.
pub(crate) const SENDERS: usize = 2;
const CONSUMERS: usize = 2;

/// A sender, by its elements' numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Sender {
    sent: u32,
    acknowledged: u32,
    last: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// I9: `due` is in the queue, but `got` was received first.
    Order { got: u32, due: u32 },
    /// I10: `due` is lost, and `got` was received.
    Lost { got: u32, due: u32 },
    /// I10: it was received before.
    Doubled { got: u32 },
    /// I10: it was never sent.
    Made { got: u32 },
    /// I10: an element was refused, or acknowledged out of turn.
    Ack { element: u32, status: Status },
    /// I11: a party stored to a word of another party.
    Foreign { word: u32 },
    /// I11: a size, head or tail is out of its range.
    Header,
    /// I12: an overflow was handled twice, or did not exist.
    Handled,
    /// The board refused to resume.
    Resume(Status),
    /// The dequeue, the driver or the board has found invalid memory.
    Broken,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Fault::Order { got, due } => {
                write!(f, "{} comes before {}, which is still in the queue", name(got), name(due))
            }
            Fault::Lost { got, due } => write!(f, "{} is lost: {} comes in its place", name(due), name(got)),
            Fault::Doubled { got } => write!(f, "{} comes twice", name(got)),
            Fault::Made { got } => write!(f, "{} comes, which was never sent", name(got)),
            Fault::Ack { element, status } => write!(f, "{} is acknowledged with {status:?}", name(element)),
            Fault::Foreign { word } => write!(f, "{} was stored by a party that does not own it", Word(word)),
            Fault::Header => write!(f, "a size, head or tail is out of its range"),
            Fault::Handled => write!(f, "an overflow is handled that was none, or twice"),
            Fault::Resume(status) => write!(f, "the board does not continue: {status:?}"),
            Fault::Broken => write!(f, "a header or link is found unsound"),
        }
    }
}

/// The state between two steps.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct State {
    board: Board,
    /// The next step of its queue's machine.
    step: Option<(StepId, Touch)>,
    arena: Arena,
    /// The control page's `state`.
    control: u64,
    senders: [Sender; SENDERS],
    consumers: Vec<Consumer>,
    driver: Driver,
    /// Events in the ring: that the queue has stopped; for the consumers.
    stopped: bool,
    ring: bool,
    kills: u8,
    bounds: u8,
    /// Elements that the board has accepted and no consumer has received, oldest first.
    due: Vec<u32>,
    /// An element whose consumer was killed before it took it: it must be received again, next.
    again: Option<u32>,
    pub(crate) fault: Option<Fault>,
}

/// One step of one party.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Arrive(usize),
    Board,
    Arm(usize),
    Interrupt,
    Work,
    Bound,
    Handler,
    Consumer(usize),
    Kill(usize),
    Restart(usize),
}

/// Records a step for the printed counterexample.
type Say<'a> = &'a mut dyn FnMut(fmt::Arguments<'_>);

/// Situations that a check must have reached to be meaningful.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Sight {
    /// An overflow is handled by the worker.
    Worker = 1,
    /// One is handled by a consumer that called.
    Caller = 2,
    /// The handler finds BUSY set.
    Busy = 4,
    /// The quota is used up.
    Held = 8,
    /// A consumer is killed inside.
    Killed = 16,
    Again = 32,
    Woken = 64,
    /// An empty buffer is reclaimed.
    Freed = 128,
    /// A consumer finds another inside.
    Spin = 256,
    /// A consumer is killed in the driver, between copy and resume.
    KilledInDriver = 512,
    /// A consumer is woken before it sleeps.
    WokenEarly = 1024,
    /// The time limit ends while a consumer is inside; after it has left without calling the driver.
    Evicted = 2048,
    Uncalled = 4096,
    /// A consumer sleeps without another arm, since it has a wake-up left.
    SleptUnarmed = 8192,
}

pub(crate) struct QueueModel {
    pub(crate) setup: Setup,
    initial: State,
    sights: AtomicU32,
    ends: AtomicUsize,
    violated: AtomicU32,
}

/// The properties, in the order of [`Model::properties`].
pub(crate) const I9: &str = "I9: elements come out in the order in which the board took them";
pub(crate) const I10: &str = "I10: no element is lost, doubled or made up";
pub(crate) const I11: &str = "I11: heads and tails stay in range, and no party stores to another's words";
pub(crate) const I12: &str = "I12: each overflow is handled once, with no consumer in the dequeue section";
pub(crate) const STOPPED: &str = "I12: the board is never left stopped with BUSY = 0";
pub(crate) const ASLEEP: &str = "no consumer sleeps for ever while there are elements";

impl QueueModel {
    pub(crate) fn new(setup: Setup) -> QueueModel {
        assert!(setup.quota < ROOM as u32 && (1..=CONSUMERS).contains(&setup.consumers));
        let mut arena = Arena([0; WORDS as usize * ROOM]);
        let mut buffers = Buffers::new(WORDS, 4, 1 + setup.quota, setup.reading);
        buffers.init();
        arena.copy_from(&buffers, 1 + setup.quota);
        let initial = State {
            board: Board::new(shape(), SENDERS as u16, setup.hold, setup.bug),
            step: None,
            arena,
            control: 0,
            senders: [Sender::default(); SENDERS],
            consumers: (0..setup.consumers).map(|number| Consumer::new(number as u32 + 1, setup.takes)).collect(),
            driver: Driver {
                mutex: None,
                handler: Handler::NEW,
                begun: false,
                resume_sent: false,
                linked: Vec::new(),
                news: false,
                work: false,
                waits: false,
                gone: Vec::new(),
                resumed: None,
                handled: false,
            },
            stopped: false,
            ring: false,
            kills: setup.kills,
            bounds: setup.bounds,
            due: Vec::new(),
            again: None,
            fault: None,
        };
        let mut model = QueueModel {
            setup,
            initial,
            sights: AtomicU32::new(0),
            ends: AtomicUsize::new(0),
            violated: AtomicU32::new(0),
        };
        model.prepare();
        model
    }

    /// Reaches the initial state by the model's own steps in a fixed order.
    fn prepare(&mut self) {
        let mut state = self.initial.clone();
        for number in 0..self.setup.gone + self.setup.fill {
            state.senders[0].last += 1;
            self.apply(&mut state, Action::Arrive(0), &mut |_| {});
            self.settle(&mut state);
            while number < self.setup.gone && !(state.due.is_empty() && state.consumers[0].is_free()) {
                self.apply(&mut state, Action::Consumer(0), &mut |_| {});
            }
        }
        assert_eq!((state.fault, state.due.len() as u32), (None, self.setup.fill), "{}", self.setup);
        for (sender, more) in state.senders.iter_mut().zip(self.setup.elements) {
            sender.last += more;
        }
        self.initial = state;
        self.sights.store(0, Ordering::Relaxed);
    }

    /// Lets board and driver come to rest.
    fn settle(&self, state: &mut State) {
        let mut actions = Vec::new();
        loop {
            self.enabled(state, &mut actions);
            let inner =
                |action: &&Action| matches!(action, Action::Board | Action::Interrupt | Action::Work | Action::Handler);
            let Some(action) = actions.iter().find(inner).copied() else { return };
            self.apply(state, action, &mut |_| {});
            actions.clear();
        }
    }

    fn saw(&self, sight: Sight) {
        // Usually it is not the first time, and other threads read it too.
        if self.sights.load(Ordering::Relaxed) & sight as u32 == 0 {
            self.sights.fetch_or(sight as u32, Ordering::Relaxed);
        }
    }

    /// Whether it has been reached.
    pub(crate) fn has_seen(&self, sight: Sight) -> bool {
        self.sights.load(Ordering::Relaxed) & sight as u32 != 0
    }

    /// Checks states in which no step is possible.
    pub(crate) fn ends(&self) -> usize {
        self.ends.load(Ordering::Relaxed)
    }

    fn dequeue(&self, consumer: &Consumer) -> Dequeue {
        Dequeue::new(shape(), self.setup.quota, consumer.owner).literally(self.setup.literal)
    }

    // ---- which steps there are ----

    fn enabled(&self, state: &State, actions: &mut Vec<Action>) {
        if state.fault.is_some() {
            return;
        }
        if state.step.is_some() {
            actions.push(Action::Board);
        }
        match state.driver.mutex {
            Some(_) if state.driver.resume_sent && state.driver.resumed.is_none() => {}
            Some(_) => actions.push(Action::Handler),
            None if state.driver.work => actions.push(Action::Work),
            None => {}
        }
        if state.driver.mutex.is_none() && state.driver.waits && state.bounds > 0 {
            actions.push(Action::Bound);
        }
        if state.stopped || state.ring {
            actions.push(Action::Interrupt);
        }
        for (number, consumer) in state.consumers.iter().enumerate() {
            if consumer.can_continue(state) {
                actions.push(Action::Consumer(number));
            }
            if consumer.arm.is_some() {
                actions.push(Action::Arm(number));
            }
            if consumer.mode == Mode::Dead && self.setup.restarts {
                actions.push(Action::Restart(number));
            }
            if state.kills > 0 && consumer.is_worth_killing(&state.driver) {
                actions.push(Action::Kill(number));
            }
        }
        for (number, sender) in state.senders.iter().enumerate() {
            if sender.sent < sender.last && sender.sent - sender.acknowledged < self.setup.hold {
                actions.push(Action::Arrive(number));
            }
        }
    }

    /// Whether no step is possible.
    fn has_ended(&self, state: &State) -> bool {
        let quiet = state.step.is_none() && state.driver.mutex.is_none() && state.fault.is_none();
        if !quiet {
            return false;
        }
        let mut actions = Vec::new();
        self.enabled(state, &mut actions);
        actions.is_empty()
    }

    // ---- what they do ----

    /// Performs a step.
    pub(crate) fn apply(&self, state: &mut State, action: Action, say: Say<'_>) {
        match action {
            Action::Arrive(number) => {
                let sender = &mut state.senders[number];
                sender.sent += 1;
                let (tag, element) = (sender.sent, element(number, sender.sent));
                state.due.push(element);
                say(format_args!("{} arrives", name(element)));
                let reaction = state.board.element(number as u16 + 1, tag, element);
                self.absorb(state, reaction, say);
            }
            Action::Board => self.board(state, say),
            Action::Arm(number) => {
                let Some(seen) = state.consumers[number].arm.take() else { return };
                say(format_args!("is armed with tail {}", seen & 0xffff));
                let reaction = state.board.arm(self.setup.wakes, seen);
                self.absorb(state, reaction, say);
            }
            Action::Interrupt => self.interrupt(state, say),
            Action::Work => self.work(state, say),
            Action::Bound => self.bound(state, say),
            Action::Handler => self.handler(state, say),
            Action::Consumer(number) => self.consumer(state, number, say),
            Action::Kill(number) => self.kill(state, number, say),
            Action::Restart(number) => {
                say(format_args!("starts anew"));
                let consumer = &mut state.consumers[number];
                let owner = consumer.owner + CONSUMERS as u32;
                *consumer = Consumer { arm: consumer.arm, ..Consumer::new(owner, consumer.takes) };
            }
        }
        if state.fault.is_none() && !state.arena.is_sound(1 + self.setup.quota) {
            state.fault = Some(Fault::Header);
        }
    }

    fn absorb(&self, state: &mut State, reaction: Reaction, say: Say<'_>) {
        if reaction.step.is_some() {
            state.step = reaction.step;
        }
        for (node, tag, status) in reaction.acks {
            let sender = &mut state.senders[usize::from(node) - 1];
            let element = element(usize::from(node) - 1, tag);
            say(format_args!("acknowledges {}", name(element)));
            if !status.is_ok() || tag != sender.acknowledged + 1 {
                state.fault = Some(Fault::Ack { element, status });
            }
            sender.acknowledged = tag;
        }
        if reaction.overflow {
            say(format_args!("stops"));
        }
        if reaction.wake {
            say(format_args!("rings"));
        }
        state.stopped |= reaction.overflow;
        state.ring |= reaction.wake;
        if reaction.completed.is_some() {
            state.driver.resumed = reaction.completed;
        }
        if state.board.is_broken() {
            state.fault = Some(Fault::Broken);
        }
    }

    fn board(&self, state: &mut State, say: Say<'_>) {
        let Some((step, touch)) = state.step.take() else { return };
        let loaded = match touch {
            Touch::Load { word } => {
                let value = state.arena.0[word as usize];
                say(format_args!("{} is {}", Word(word), Word::show(word, value)));
                Some(value)
            }
            Touch::Store { word, value } => {
                say(format_args!("{} = {}", Word(word), Word::show(word, value)));
                if word >= WORDS || matches!(word.into(), HEAD_WORD | NEXT_WORD) {
                    state.fault = Some(Fault::Foreign { word });
                    return;
                }
                state.arena.0[word as usize] = value;
                None
            }
        };
        let reaction = state.board.stepped(step, loaded);
        self.absorb(state, reaction, say);
    }

    fn interrupt(&self, state: &mut State, say: Say<'_>) {
        if std::mem::take(&mut state.stopped) {
            say(format_args!("the queue has stopped"));
            state.driver.news = true;
            state.driver.work = true;
        }
        if std::mem::take(&mut state.ring) {
            say(format_args!("wakes consumers"));
            for consumer in &mut state.consumers {
                if consumer.mode == Mode::Sleep {
                    self.saw(Sight::Woken);
                    consumer.mode = Mode::Pass(Vec::new());
                } else {
                    consumer.woken = true;
                }
            }
        }
    }
}

impl State {
    /// The handler is between "BUSY is clear" and "FULL is clear", and a consumer is in the dequeue section.
    fn overlaps(&self) -> bool {
        let handling =
            self.driver.is_at(At::Copy) || self.driver.is_at(At::Clear) || self.driver.handler.stage == Stage::Copied;
        handling && self.consumers.iter().any(|consumer| consumer.inside)
    }

    /// The board is stopped, and no party will resume it.
    fn is_stranded(&self) -> bool {
        self.board.is_stopped() && self.control & BUSY == 0 && self.driver.handler.stage != Stage::Held
    }

    /// Everything has been sent and taken, or as much as the consumers take.
    pub(crate) fn is_done(&self) -> bool {
        let is = |consumer: &Consumer, modes: &[Mode]| modes.contains(&consumer.mode);
        if self.consumers.iter().all(|consumer| is(consumer, &[Mode::Done, Mode::Dead])) {
            return !self.is_stranded();
        }
        let sent = |sender: &Sender| sender.sent == sender.last && sender.acknowledged == sender.sent;
        self.senders.iter().all(sent)
            && self.due.is_empty()
            && self.again.is_none()
            && !self.board.is_stopped()
            && self.consumers.iter().all(|consumer| is(consumer, &[Mode::Sleep, Mode::Done, Mode::Dead]))
    }
}

impl Model for QueueModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.initial.clone()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.enabled(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut state = state.clone();
        self.apply(&mut state, action, &mut |_| {});
        Some(state)
    }

    fn properties(&self) -> Vec<Property<QueueModel>> {
        use Fault::{Ack, Broken, Doubled, Foreign, Handled, Header, Lost, Made, Order, Resume};
        vec![
            Property::always(I9, |model: &QueueModel, state: &State| {
                model.unless(0, matches!(state.fault, Some(Order { .. })))
            }),
            Property::always(I10, |model: &QueueModel, state: &State| {
                model.unless(1, matches!(state.fault, Some(Lost { .. } | Doubled { .. } | Made { .. } | Ack { .. })))
            }),
            Property::always(I11, |model: &QueueModel, state: &State| {
                model.unless(2, matches!(state.fault, Some(Foreign { .. } | Header | Broken)))
            }),
            Property::always(I12, |model: &QueueModel, state: &State| {
                model.unless(3, matches!(state.fault, Some(Handled | Resume(_))) || state.overlaps())
            }),
            Property::always(STOPPED, |model: &QueueModel, state: &State| {
                model.unless(4, state.is_stranded() && model.has_ended(state))
            }),
            Property::always(ASLEEP, |model: &QueueModel, state: &State| {
                let ended = model.has_ended(state);
                if ended {
                    model.ends.fetch_add(1, Ordering::Relaxed);
                }
                model.unless(5, ended && !state.is_done())
            }),
        ]
    }
}

impl QueueModel {
    /// False for the first violation of a property. The checker would keep the last of those that it finds, which is
    /// not the shortest.
    fn unless(&self, property: u32, violated: bool) -> bool {
        !violated || self.violated.fetch_or(1 << property, Ordering::Relaxed) >> property & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consumer::Access;
    use telegraphos_wire::queue::TAIL_WORD;

    /// The effects of a step of a queue with four elements, after `change`.
    fn fault(change: impl FnOnce(&mut State), action: Action) -> Option<Fault> {
        let model = QueueModel::new(Setup { fill: 4, ..Setup::SMALL });
        let mut state = model.initial.clone();
        change(&mut state);
        model.apply(&mut state, action, &mut |_| {});
        state.fault
    }

    #[test]
    fn i11_the_model_sees_indices_out_of_range_and_stores_to_the_words_of_others() {
        let consumer = Action::Consumer(0);
        assert_eq!(fault(|_| {}, consumer), None);
        for (word, index) in [(TAIL_WORD, 2), (TAIL_WORD, 8), (HEAD_WORD, 0), (HEAD_WORD, 9)] {
            let spoil = |state: &mut State| state.arena.0[word as usize] = WORDS << 16 | index;
            assert_eq!(fault(spoil, consumer), Some(Fault::Header), "{word}: {index}");
        }
        for (word, expected) in
            [(HEAD_WORD, true), (NEXT_WORD, true), (WORDS.into(), true), (TAIL_WORD, false), (4, false)]
        {
            let word = word as u32;
            let touch = |state: &mut State| {
                let value = state.arena.0[word as usize];
                state.board.element(1, 5, element(0, 5));
                state.step = Some((0, Touch::Store { word, value }));
            };
            let foreign = fault(touch, Action::Board) == Some(Fault::Foreign { word });
            assert_eq!(foreign, expected, "the board stores to word {word}");
        }
        for (word, allowed) in
            [(0, false), (1, true), (2, true), (3, false), (8, false), (9, true), (10, true), (15, false)]
        {
            assert_eq!(Access::Store { word, value: 0 }.is_allowed(), allowed, "a consumer stores to word {word}");
        }
    }
}
