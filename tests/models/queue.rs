// SPDX-License-Identifier: MIT OR Apache-2.0
//! One notification queue with its senders, its consumers and its driver, as a stateright model over the real parts (I9 to I12).
//!
//! A [`State`] is what is between two steps; an [`Action`] is one step of one party, any of which may come next:
//!
//! | Action | What it is | Real or modelled |
//! |---|---|---|
//! | [`Action::Arrive`] | the next element of a sender arrives at the board, at most `hold` of it unacknowledged | the sender is modelled |
//! | [`Action::Board`] | one load or store of the board's queue machine | the real [`hib_core::Hib`] |
//! | [`Action::Arm`] | a consumer's posted store to QUEUE_ARM arrives | the real board |
//! | [`Action::Interrupt`] | the driver reads the board's event ring | modelled, as `guest-driver/module/queue.c` |
//! | [`Action::Work`] | the driver's worker takes the queue's mutex | modelled |
//! | [`Action::Handler`] | the next step of whoever has the mutex: FULL, copy and link, resume, clear | modelled, around the real `queue_buffers.c` |
//! | [`Action::Consumer`] | one access of a consumer's dequeue; or the call of the driver | the real [`telegraphos::queue::dequeue`]; modelled |
//! | [`Action::Kill`], [`Action::Restart`] | a consumer dies at that point; starts anew, under another owner number | modelled |
//!
//! A consumer takes elements while there are any, calls the driver when the dequeue says so, and otherwise arms the queue with what
//! it saw and sleeps until a CONTEXT event. Of its stores to QUEUE_ARM one at a time is on its way; it may look again meanwhile, since another's
//! event can wake it. A consumer that found another inside tries again when that has left: earlier, it would find the same.
//!
//! Left out, since the protocol must hold without them: what the driver does after `queue_hold_ms` (E13), the event at the limit of linked
//! buffers, and the library's look at the memory before it sleeps. All accesses are in one order that everybody sees. Release and acquire, which
//! see to that on the processor, are the business of the code and its documentation, not of this model.
//!
//! What came out of the queue is compared with what the board took in, when a consumer is handed it. An element that was handed to a consumer
//! which is killed before it stored word 1 is handed out once more, next: that one repetition is allowed, and due.

use super::board::{Board, Reaction, Touch};
use super::buffers::{Buffers, Reading, Refusal};
use super::consumer::{self, Flags, Most};
use hib_core::{Bug, StepId};
use stateright::{Model, Property};
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use telegraphos::queue::dequeue::{Dequeue, Found, Literal, Pass};
use telegraphos_wire::Status;
use telegraphos_wire::queue::{BUSY, FULL, HEAD_WORD, HELD, NEXT_WORD, OWNER_SHIFT, Shape, TAIL_WORD};

/// Words of a buffer; they have 4 bytes.
pub(crate) const WORDS: u32 = 8;
/// Room for the first buffer and a quota of two.
const ROOM: usize = 3;
/// Senders, at nodes 1 and 2; and consumers at most.
pub(crate) const SENDERS: usize = 2;
const CONSUMERS: usize = 2;

/// What is checked, in how large a world, and what is done wrong.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Buffers that can be linked.
    pub(crate) quota: u32,
    /// Elements that have gone through the queue before: head and tail begin elsewhere.
    pub(crate) gone: u32,
    /// Elements that are in the queue already.
    pub(crate) fill: u32,
    /// Elements still to come of each sender, and how many of them may be unacknowledged.
    pub(crate) elements: [u32; SENDERS],
    pub(crate) hold: u32,
    pub(crate) consumers: usize,
    pub(crate) most: Most,
    /// A consumer takes so many and then goes about other things; or it waits for more for ever.
    pub(crate) wants: Option<u32>,
    /// So many times a consumer is killed, and whether it starts anew.
    pub(crate) kills: u8,
    pub(crate) restarts: bool,
    pub(crate) literal: Literal,
    pub(crate) reading: Reading,
    pub(crate) bug: Option<Bug>,
    /// BUSY and FULL are two words, read and written by plain accesses (SPEC item 12 on several processors, E11).
    pub(crate) two_words: bool,
}

impl Setup {
    /// One consumer of a queue with a quota of 1, and nothing to do.
    pub(crate) const SMALL: Setup = Setup {
        quota: 1,
        gone: 0,
        fill: 0,
        elements: [0; SENDERS],
        hold: 2,
        consumers: 1,
        most: Most::One,
        wants: None,
        kills: 0,
        restarts: true,
        literal: Literal::Sound,
        reading: Reading::Sound,
        bug: None,
        two_words: false,
    };
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setup { quota, gone, fill, elements: [a, b], hold, consumers, most, kills, restarts, .. } = self;
        write!(
            f,
            "quota {quota}, {fill} elements in it at {}, then {a} + {b} (hold {hold}), ",
            3 + gone % (WORDS - 3)
        )?;
        write!(f, "{consumers} consumer{}", if *consumers == 1 { "" } else { "s" })?;
        match most {
            Most::One => write!(f, " taking one")?,
            Most::All => write!(f, " taking all")?,
        }
        if let Some(wants) = self.wants {
            write!(f, ", wanting {wants}")?;
        }
        match (kills, restarts) {
            (0, _) => {}
            (n, true) => write!(f, ", {n} killed and restarted")?,
            (n, false) => write!(f, ", {n} killed for good")?,
        }
        if self.literal != Literal::Sound {
            write!(f, ", dequeue {:?}", self.literal)?;
        }
        if self.reading != Reading::Sound {
            write!(f, ", driver {:?}", self.reading)?;
        }
        if let Some(bug) = self.bug {
            write!(f, ", board {bug:?}")?;
        }
        if self.two_words { write!(f, ", BUSY and FULL in two words") } else { Ok(()) }
    }
}

// ---- what is in memory ----

/// The queue's buffers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Arena(pub(crate) [u32; WORDS as usize * ROOM]);

fn shape() -> Shape {
    Shape::new(WORDS, 4).expect("8 words of 4 bytes")
}

/// The number of an element: of which sender, which of its elements, both from 1.
fn element(sender: usize, number: u32) -> u32 {
    (sender as u32 + 1) << 8 | number
}

fn name(element: u32) -> String {
    match (element >> 8, element & 0xff) {
        (0, 0) => "nothing".into(),
        (sender @ 1..=26, number) => format!("{}{number}", char::from(b'a' + (sender - 1) as u8)),
        _ => format!("{element:#x}"),
    }
}

fn letter(buffer: u32) -> char {
    char::from(b'A' + buffer as u8)
}

/// The name of a word of the arena.
pub(crate) struct Word(pub(crate) u32);

impl Word {
    /// What it holds, readable.
    pub(crate) fn show(word: u32, value: u32) -> String {
        match u64::from(word % WORDS) {
            TAIL_WORD | HEAD_WORD if value >> 16 == WORDS => (value & 0xffff).to_string(),
            NEXT_WORD if value == 0 => "end".into(),
            NEXT_WORD if value % WORDS == 0 => letter(value / WORDS).to_string(),
            TAIL_WORD | HEAD_WORD | NEXT_WORD => format!("{value:#x}"),
            _ => name(value),
        }
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buffer = letter(self.0 / WORDS);
        match u64::from(self.0 % WORDS) {
            TAIL_WORD => write!(f, "{buffer}.tail"),
            HEAD_WORD => write!(f, "{buffer}.head"),
            NEXT_WORD => write!(f, "{buffer}.next"),
            index => write!(f, "{buffer}[{index}]"),
        }
    }
}

impl Arena {
    /// Whether every size, head and tail is in its range (I11).
    fn is_sound(&self, buffers: u32) -> bool {
        let header = |buffer: u32, word: u64| shape().header(self.0[(buffer * WORDS) as usize + word as usize].into());
        (0..buffers).all(|buffer| header(buffer, TAIL_WORD).is_some() && header(buffer, HEAD_WORD).is_some())
    }

    /// Whether an element is among those committed in these buffers.
    fn holds(&self, element: u32, mut buffers: impl Iterator<Item = u32>) -> bool {
        buffers.any(|buffer| {
            let at = (buffer * WORDS) as usize;
            let header = |word: u64| shape().header(self.0[at + word as usize].into());
            let (Some(tail), Some(mut head)) = (header(TAIL_WORD), header(HEAD_WORD)) else { return false };
            while head != tail {
                if self.0[at + usize::from(head.index)] == element {
                    return true;
                }
                head = head.advanced();
            }
            false
        })
    }
}

// ---- parties ----

/// A sender, by its elements' numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Sender {
    sent: u32,
    acknowledged: u32,
    last: u32,
}

/// What a consumer is about to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Mode {
    /// A pass, of which these answers have come.
    Pass(Vec<u64>),
    /// Another was inside. It tries again when that has left.
    Spin,
    /// To call the driver; `seen` is what it will arm the queue with when that returns.
    Call {
        seen: Option<u32>,
    },
    /// It waits in the driver for whoever is inside.
    Wait {
        seen: Option<u32>,
    },
    /// It acts in the driver, with the mutex.
    Act {
        seen: Option<u32>,
    },
    /// To arm the queue, when its last store has arrived.
    Tell {
        seen: u32,
    },
    /// It sleeps until a CONTEXT event.
    Sleep,
    /// It has had what it wants.
    Done,
    Dead,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Consumer {
    mode: Mode,
    owner: u32,
    /// It is in the dequeue section.
    inside: bool,
    /// A CONTEXT event has come since its pass began.
    rung: bool,
    /// An element it was handed and has not taken yet.
    handed: Option<u32>,
    /// Elements it wants, if it counts them.
    wants: Option<u32>,
    /// Its store to QUEUE_ARM that is still on its way.
    arm: Option<u32>,
}

/// The driver's stage of the queue, TG_STAGE_*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Running,
    Stopped,
    Copied,
    Held,
}

/// Who has the queue's mutex.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Who {
    Worker,
    Consumer(usize),
}

/// What it does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
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
struct Driver {
    mutex: Option<(Who, At)>,
    stage: Stage,
    /// Numbers of the linked buffers, oldest first.
    linked: Vec<u16>,
    /// The board has said that it has stopped the queue.
    news: bool,
    /// The worker is to run.
    work: bool,
    /// FULL stays set until whoever is BUSY calls.
    waits: bool,
    /// Owner numbers of processes that are gone.
    gone: Vec<u32>,
    /// The board's answer to the resume.
    resumed: Option<Status>,
    /// This stop's overflow has been handled.
    handled: bool,
}

/// What must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// I9: `due` is in the queue, and `got` came first.
    Order { got: u32, due: u32 },
    /// I10: `due` is nowhere, and `got` came.
    Lost { got: u32, due: u32 },
    /// I10: it came before.
    Doubled { got: u32 },
    /// I10: nobody sent it.
    Made { got: u32 },
    /// I10: an element was refused, or acknowledged out of turn.
    Ack { element: u32, status: Status },
    /// I11: somebody stored to a word of another's.
    Foreign { word: u32 },
    /// I11: a size, head or tail is out of its range.
    Header,
    /// I12: an overflow was handled that was none, or twice.
    Handled,
    /// The board would not go on.
    Resume(Status),
    /// The dequeue, the driver or the board has found the memory unsound.
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
            Fault::Made { got } => write!(f, "{} comes, which nobody has sent", name(got)),
            Fault::Ack { element, status } => write!(f, "{} is acknowledged with {status:?}", name(element)),
            Fault::Foreign { word } => write!(f, "{} was stored by somebody whose word it is not", Word(word)),
            Fault::Header => write!(f, "a size, head or tail is out of its range"),
            Fault::Handled => write!(f, "an overflow is handled that was none, or twice"),
            Fault::Resume(status) => write!(f, "the board does not go on: {status:?}"),
            Fault::Broken => write!(f, "a header or link is found unsound"),
        }
    }
}

/// Everything between two steps.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct State {
    board: Board,
    /// The step of its queue's machine that is to be performed.
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
    /// Elements that the board has been given and that were handed to nobody yet, oldest first.
    due: Vec<u32>,
    /// An element whose consumer was killed before it took it: it must come again, and next.
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
    Handler,
    Consumer(usize),
    Kill(usize),
    Restart(usize),
}

/// Takes note of what a step does, for people.
type Say<'a> = &'a mut dyn FnMut(fmt::Arguments<'_>);

/// Things that a check must have met, or it has checked nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Sight {
    /// An overflow is handled by the worker.
    Worker = 1,
    /// One is handled by a consumer that called.
    Caller = 2,
    /// The handler finds somebody BUSY.
    Busy = 4,
    /// The quota is used up.
    Held = 8,
    /// A consumer is killed inside.
    Killed = 16,
    /// An element comes again.
    Again = 32,
    /// A consumer is woken.
    Woken = 64,
    /// A buffer is taken back that has been emptied.
    Freed = 128,
    /// A consumer finds another inside.
    Spin = 256,
    /// A consumer is killed in the driver, between copy and resume.
    KilledInDriver = 512,
    /// A consumer is woken before it sleeps.
    Rung = 1024,
}

/// The model.
pub(crate) struct QueueModel {
    pub(crate) setup: Setup,
    initial: State,
    sights: AtomicU32,
    ends: AtomicUsize,
    /// Properties that were found violated.
    violated: AtomicU32,
}

/// What must hold, in the order of [`Model::properties`].
pub(crate) const I9: &str = "I9: elements come out in the order in which the board took them";
pub(crate) const I10: &str = "I10: no element is lost, doubled or made up";
pub(crate) const I11: &str = "I11: heads and tails stay in range, and nobody stores to another's words";
pub(crate) const I12: &str = "I12: each overflow is handled once, with nobody in the dequeue section";
pub(crate) const STOPPED: &str = "I12: the board is never left stopped with BUSY = 0";
pub(crate) const ASLEEP: &str = "no consumer sleeps for ever while there are elements";

impl QueueModel {
    pub(crate) fn new(setup: Setup) -> QueueModel {
        assert!(setup.quota < ROOM as u32 && (1..=CONSUMERS).contains(&setup.consumers));
        let mut arena = Arena([0; WORDS as usize * ROOM]);
        let mut buffers = Buffers::new(WORDS, 4, 1 + setup.quota, setup.reading);
        buffers.init();
        read_back(&buffers, &mut arena, 1 + setup.quota);
        let initial = State {
            board: Board::new(shape(), SENDERS as u16, setup.hold, setup.bug),
            step: None,
            arena,
            control: 0,
            senders: [Sender::default(); SENDERS],
            consumers: (0..setup.consumers).map(|number| Consumer::new(number as u32 + 1, setup.wants)).collect(),
            driver: Driver {
                mutex: None,
                stage: Stage::Running,
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

    /// Brings the initial state about, by the model's own steps in a fixed order.
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
        // Most often it is not the first time, and other threads look, too.
        if self.sights.load(Ordering::Relaxed) & sight as u32 == 0 {
            self.sights.fetch_or(sight as u32, Ordering::Relaxed);
        }
    }

    /// Whether it has been met.
    pub(crate) fn has_seen(&self, sight: Sight) -> bool {
        self.sights.load(Ordering::Relaxed) & sight as u32 != 0
    }

    /// Looks at states in which nothing can happen any more.
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
            Some((_, At::Resuming)) if state.driver.resumed.is_none() => {}
            Some(_) => actions.push(Action::Handler),
            None if state.driver.work => actions.push(Action::Work),
            None => {}
        }
        if state.stopped || state.ring {
            actions.push(Action::Interrupt);
        }
        for (number, consumer) in state.consumers.iter().enumerate() {
            if consumer.can_go_on(state) {
                actions.push(Action::Consumer(number));
            }
            if consumer.arm.is_some() {
                actions.push(Action::Arm(number));
            }
            if consumer.mode == Mode::Dead && self.setup.restarts {
                actions.push(Action::Restart(number));
            }
            if state.kills > 0 && consumer.is_worth_killing(state.driver.mutex) {
                actions.push(Action::Kill(number));
            }
        }
        for (number, sender) in state.senders.iter().enumerate() {
            if sender.sent < sender.last && sender.sent - sender.acknowledged < self.setup.hold {
                actions.push(Action::Arrive(number));
            }
        }
    }

    /// Whether nothing can happen any more.
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
                let reaction = state.board.arm(seen);
                self.absorb(state, reaction, say);
            }
            Action::Interrupt => self.interrupt(state, say),
            Action::Work => self.work(state, say),
            Action::Handler => self.handler(state, say),
            Action::Consumer(number) => self.consumer(state, number, say),
            Action::Kill(number) => self.kill(state, number, say),
            Action::Restart(number) => {
                say(format_args!("starts anew"));
                let consumer = &mut state.consumers[number];
                let owner = consumer.owner + CONSUMERS as u32;
                *consumer = Consumer { arm: consumer.arm, ..Consumer::new(owner, consumer.wants) };
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
                    consumer.rung = true;
                }
            }
        }
    }

    // ---- the driver ----

    fn work(&self, state: &mut State, say: Say<'_>) {
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

    fn handler(&self, state: &mut State, say: Say<'_>) {
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
        for word in 0..count * WORDS {
            buffers.set_word((word / WORDS) as usize, word % WORDS, state.arena.0[word as usize].into());
        }
        buffers.set_linked(&driver.linked);
        let result = buffers.overflow();
        let before = state.arena.clone();
        read_back(&buffers, &mut state.arena, count);
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

    // ---- consumers ----

    fn look_again_or_sleep(&self, state: &mut State, number: usize, seen: Option<u32>, say: Say<'_>) {
        let consumer = &mut state.consumers[number];
        consumer.mode = if consumer.wants == Some(0) { Mode::Done } else { Mode::Pass(Vec::new()) };
        if let Some(seen) = seen {
            if consumer.arm.is_some() {
                consumer.mode = Mode::Tell { seen };
                return;
            }
            consumer.arm = Some(seen);
            if consumer.rung {
                self.saw(Sight::Rung);
                say(format_args!("arms, but was woken"));
            } else {
                say(format_args!("arms and sleeps"));
                consumer.mode = Mode::Sleep;
            }
        }
    }

    fn consumer(&self, state: &mut State, number: usize, say: Say<'_>) {
        let consumer = &mut state.consumers[number];
        match consumer.mode {
            Mode::Call { seen } | Mode::Wait { seen } => {
                say(format_args!("calls the driver"));
                consumer.mode = Mode::Act { seen };
                state.driver.mutex = Some((Who::Consumer(number), At::Look));
                self.handler(state, say);
            }
            Mode::Pass(_) | Mode::Spin => self.pass(state, number, say),
            Mode::Tell { seen } => self.look_again_or_sleep(state, number, Some(seen), say),
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
            consumer.rung = false;
            consumer.inside = self.setup.literal == Literal::Unprotected;
        }
        let dequeue = self.dequeue(consumer);
        let stepped = consumer::step(
            &dequeue,
            (self.setup.most, self.setup.two_words),
            &mut answers,
            &mut state.arena,
            &mut state.control,
        );
        say(format_args!("{}", stepped.access));
        match stepped.access {
            consumer::Access::Enter { entered: true, .. } => consumer.inside = true,
            consumer::Access::Leave { .. } => consumer.inside = false,
            consumer::Access::Store { word, .. } => {
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
            consumer.wants = consumer.wants.map(|wants| wants.saturating_sub(1));
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

    /// Compares what came out with what is due.
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

    fn kill(&self, state: &mut State, number: usize, say: Say<'_>) {
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

impl Consumer {
    fn new(owner: u32, wants: Option<u32>) -> Consumer {
        Consumer { mode: Mode::Pass(Vec::new()), owner, inside: false, rung: false, handed: None, wants, arm: None }
    }

    /// Whether it is about to look into the queue.
    fn is_free(&self) -> bool {
        matches!(&self.mode, Mode::Pass(answers) if answers.is_empty())
    }

    fn can_go_on(&self, state: &State) -> bool {
        let free = state.driver.mutex.is_none();
        match self.mode {
            Mode::Pass(_) => true,
            Mode::Tell { .. } => self.arm.is_none(),
            // To try again earlier changes nothing.
            Mode::Spin => state.control & BUSY == 0,
            Mode::Call { .. } => free,
            Mode::Wait { .. } => free && !state.driver.waits,
            Mode::Act { .. } | Mode::Sleep | Mode::Done | Mode::Dead => false,
        }
    }

    /// Whether its death would leave anything behind. In the driver only who waits can be killed, be it for a free admin slot.
    fn is_worth_killing(&self, mutex: Option<(Who, At)>) -> bool {
        match &self.mode {
            Mode::Pass(answers) => !answers.is_empty(),
            Mode::Call { .. } | Mode::Wait { .. } => true,
            Mode::Act { .. } => matches!(mutex, Some((_, At::Resume))),
            Mode::Spin | Mode::Tell { .. } | Mode::Sleep | Mode::Done | Mode::Dead => false,
        }
    }
}

fn read_back(buffers: &Buffers, arena: &mut Arena, count: u32) {
    for word in 0..count * WORDS {
        arena.0[word as usize] = buffers.word((word / WORDS) as usize, word % WORDS) as u32;
    }
}

impl State {
    /// The handler is between "nobody is BUSY" and "FULL is clear", and a consumer is in the dequeue section.
    fn overlaps(&self) -> bool {
        let handling =
            matches!(self.driver.mutex, Some((_, At::Copy | At::Clear))) || self.driver.stage == Stage::Copied;
        handling && self.consumers.iter().any(|consumer| consumer.inside)
    }

    /// The board is stopped, and nobody is there who would see to that.
    fn is_stranded(&self) -> bool {
        self.board.is_stopped() && self.control & BUSY == 0 && self.driver.stage != Stage::Held
    }

    /// Everything has been sent and taken; or as much as the consumers wanted.
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
    /// False for the first violation of a property. The checker would keep the last one of many that it comes upon, which is not the
    /// shortest.
    fn unless(&self, property: u32, violated: bool) -> bool {
        !violated || self.violated.fetch_or(1 << property, Ordering::Relaxed) >> property & 1 == 1
    }
}

// ---- counterexamples ----

impl QueueModel {
    fn actor(&self, state: &State, action: Action) -> String {
        let who = |number: usize| match (self.setup.consumers, number) {
            (1, _) => "consumer".to_owned(),
            (_, number) => format!("consumer {}", number + 1),
        };
        match (action, state.driver.mutex) {
            (Action::Arrive(_) | Action::Board | Action::Arm(_), _) => "board".into(),
            (Action::Interrupt, _) => "interrupt".into(),
            (Action::Work, _) | (Action::Handler, Some((Who::Worker, _)) | None) => "worker".into(),
            (Action::Handler, Some((Who::Consumer(number), _))) => format!("{} in the driver", who(number)),
            (Action::Consumer(number) | Action::Kill(number) | Action::Restart(number), _) => who(number),
        }
    }

    /// A path in words: one line for what one party does without another in between.
    pub(crate) fn tell(&self, path: Vec<(State, Option<Action>)>) -> Vec<String> {
        let mut lines: Vec<(String, Vec<String>)> = Vec::new();
        let mut end = None;
        for (state, action) in path {
            let Some(action) = action else {
                let apart = "the driver handles an overflow, and a consumer is in the dequeue section";
                end = state.fault.map(|fault| fault.to_string()).or(state.overlaps().then(|| apart.into()));
                break;
            };
            let actor = self.actor(&state, action);
            let mut said = Vec::new();
            self.apply(&mut state.clone(), action, &mut |words| said.push(words.to_string()));
            match lines.last_mut() {
                Some((last, words)) if *last == actor => words.extend(said),
                _ => lines.push((actor, said)),
            }
        }
        let mut lines: Vec<String> =
            lines.into_iter().map(|(actor, words)| format!("{actor}: {}", words.join(", "))).collect();
        lines.push(format!("=> {}", end.unwrap_or_else(|| "and nothing can happen any more".into())));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of a step of a queue with four elements in it, after `change`.
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
            assert_eq!(
                consumer::Access::Store { word, value: 0 }.is_allowed(),
                allowed,
                "a consumer stores to word {word}"
            );
        }
    }
}
