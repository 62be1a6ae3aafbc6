// SPDX-License-Identifier: MIT OR Apache-2.0
//! The event queue with EVENT_INDEX: in every order in which board, driver, and the driver's posted stores can act, no
//! event waits while the driver sleeps.
//!
//! The driver is a model of `tg_irq` in `guest-driver/module/events.c`. Accesses to memory take effect in the order in
//! which they are made; the barriers that ensure this on a processor are outside the model.

use crate::common::node_up;
use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use telegraphos_device_core::{Action, Bar, Bug, Event, Hib, HibConfig, Step, StepId, StepResult};
use telegraphos_testkit::finds;
use telegraphos_wire::regs::{self, Register};
use telegraphos_wire::{AtomicOp, Status, WindowLayout, event};

const EVENTS: u64 = 0x1000;
const INDEX: u64 = 0x2000;
/// Entries of the ring: the least.
const RING: u32 = 4;

/// What the driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Asleep,
    /// It looks for an event, and handles it.
    Look,
    /// It stores how many it has handled.
    Store,
}

/// How a driver may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// It sleeps once it has stored the index.
    LooksNotAgain,
    /// It never writes EVENT_CONSUMER.
    NeverAnnounces,
}

#[derive(Clone, Debug)]
struct World {
    hib: Hib,
    ring: [u64; 2 * RING as usize],
    index: u32,
    steps: VecDeque<(StepId, Step)>,
    /// Stores to EVENT_CONSUMER in flight.
    posted: VecDeque<u32>,
    /// Nodes that have not come yet; each is an event.
    nodes: std::ops::Range<u16>,
    /// Changes of the memory of the trust group that have not happened yet.
    changes: u32,
    /// How many have, and how many of these the driver has seen.
    changed: u32,
    seen: u32,
    /// Other events that the driver has handled.
    others: u32,
    irq: bool,
    driver: At,
    consumed: u32,
    stored: u32,
    announced: u32,
}

#[derive(Clone, Copy, Debug)]
enum Choice {
    /// Something happens that is an event.
    Cause,
    /// The memory of the trust group changes.
    Change,
    Step,
    /// A posted store of the driver arrives.
    Arrive,
    Driver,
}

impl World {
    fn new(nodes: u16, changes: u32, bug: Option<Bug>) -> World {
        let mut config = HibConfig::new(0);
        config.window = WindowLayout::new(4, 16).unwrap();
        (config.contexts, config.imports, config.export_pages, config.counters) = (1, 1, 1, 0);
        config.bug = bug;
        let credits = config.offered();
        let mut world = World {
            hib: Hib::new(config),
            ring: [0; 2 * RING as usize],
            index: 0,
            steps: VecDeque::new(),
            posted: VecDeque::new(),
            nodes: 1..1 + nodes,
            changes,
            changed: 0,
            seen: 0,
            others: 0,
            irq: false,
            driver: At::Asleep,
            consumed: 0,
            stored: 0,
            announced: 0,
        };
        world.event(Event::BusMaster(true));
        world.register(Register::EventBase, EVENTS);
        world.register(Register::EventIndex, INDEX);
        world.register(Register::EventSize, RING.into());
        world.register(Register::Control, regs::CONTROL_IRQ_ENABLE);
        world.event(Event::LinkUp { incarnation: 8, nodes: 16, credits });
        world
    }

    fn event(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.hib.handle(event, &mut actions);
        for action in actions {
            match action {
                Action::Step { step, op } => self.steps.push_back((step, op)),
                Action::Interrupt => self.irq = true,
                Action::Notice(_) | Action::Credit { .. } | Action::Send(_) | Action::Group { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn register(&mut self, register: Register, data: u64) {
        self.event(Event::Write { bar: Bar::Control, offset: register.offset(), size: register.size().into(), data });
    }

    fn perform(&mut self, op: &Step) -> StepResult {
        match *op {
            Step::Store { address, size: 8, data } => {
                self.ring[((address - EVENTS) / 8) as usize] = data;
                StepResult::Stored
            }
            Step::Atomic { address: INDEX, size: 4, op: AtomicOp::Add, operand: 0, .. } => {
                StepResult::Loaded(self.index.into())
            }
            ref other => panic!("{other:?}"),
        }
    }

    fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        choices.extend((!self.nodes.is_empty()).then_some(Choice::Cause));
        choices.extend((self.changes > 0).then_some(Choice::Change));
        choices.extend((!self.steps.is_empty()).then_some(Choice::Step));
        choices.extend((!self.posted.is_empty()).then_some(Choice::Arrive));
        choices.extend((self.driver != At::Asleep || self.irq).then_some(Choice::Driver));
        choices
    }

    fn act(&mut self, choice: Choice, wrong: Option<Wrong>) {
        match choice {
            Choice::Cause => {
                let node = self.nodes.next().unwrap();
                self.event(node_up(node, 8));
            }
            Choice::Change => {
                self.changes -= 1;
                self.changed += 1;
                self.event(Event::DirectChanged);
            }
            Choice::Step => {
                let (step, op) = self.steps.pop_front().unwrap();
                let result = self.perform(&op);
                self.event(Event::StepDone { step, result });
            }
            Choice::Arrive => {
                let count = self.posted.pop_front().unwrap();
                self.register(Register::EventConsumer, count.into());
            }
            Choice::Driver => self.driver(wrong),
        }
    }

    /// All steps are performed.
    fn run(&mut self) {
        while !self.steps.is_empty() {
            self.act(Choice::Step, None);
        }
    }

    fn driver(&mut self, wrong: Option<Wrong>) {
        self.driver = match self.driver {
            At::Asleep => {
                self.irq = false;
                At::Look
            }
            At::Look => {
                let word = self.ring[2 * (self.consumed % RING) as usize + 1];
                if (word >> 32) as u32 == self.consumed + 1 {
                    self.consumed += 1;
                    match word as u16 {
                        event::DIRECT => self.seen = self.changed,
                        _ => self.others += 1,
                    }
                    At::Look
                } else if self.consumed != self.stored {
                    At::Store
                } else {
                    At::Asleep
                }
            }
            At::Store => {
                (self.index, self.stored) = (self.consumed, self.consumed);
                if self.consumed - self.announced >= RING / 2 && wrong != Some(Wrong::NeverAnnounces) {
                    self.announced = self.consumed;
                    self.posted.push_back(self.consumed);
                }
                if wrong == Some(Wrong::LooksNotAgain) { At::Asleep } else { At::Look }
            }
        };
    }

    fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let World { hib, ring, index, steps, posted, nodes, irq, driver, consumed, stored, announced, .. } = self;
        (hib, ring, index, format!("{steps:?}"), posted, nodes, irq, driver).hash(&mut hasher);
        (consumed, stored, announced).hash(&mut hasher);
        (self.changes, self.changed, self.seen, self.others).hash(&mut hasher);
        hasher.finish()
    }
}

/// The number of states that can be reached with so many nodes and changes of direct memory.
fn explore(nodes: u16, changes: u32, bug: Option<Bug>, wrong: Option<Wrong>) -> Result<usize, String> {
    let mut seen = HashSet::new();
    let mut open = vec![World::new(nodes, changes, bug)];
    while let Some(world) = open.pop() {
        let choices = world.choices();
        if choices.is_empty() {
            // One more: the link came up.
            let all = u32::from(nodes) + 1;
            if world.others != all {
                return Err(format!("the driver sleeps after {} of {all} events", world.others));
            }
            if world.seen != world.changed {
                return Err(format!("the driver has seen change {} of {changes}, and sleeps", world.seen));
            }
            // However many there were, at most one of them waited at a time.
            if world.consumed - world.others > changes {
                return Err(format!("{} events for {changes} changes", world.consumed - world.others));
            }
            let error = world.hib.register(Register::Error);
            if error != 0 {
                return Err(format!("error {error:#x}"));
            }
        }
        for choice in choices {
            let mut next = world.clone();
            next.act(choice, wrong);
            if seen.insert(next.key()) {
                open.push(next);
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn no_event_waits_while_the_driver_sleeps() {
    // More than the ring holds twice.
    const NODES: u16 = 9;
    let states = explore(NODES, 0, None, None).unwrap();
    println!("{states} states");
    assert!(states > 10_000, "{states}");
    for wrong in [Wrong::LooksNotAgain, Wrong::NeverAnnounces] {
        let found = explore(NODES, 0, None, Some(wrong)).unwrap_err();
        assert!(found.contains("the driver sleeps"), "{wrong:?}: {found}");
    }
    finds(Bug::ForgetIndex, "the driver sleeps", 0..1, |_| explore(NODES, 0, Some(Bug::ForgetIndex), None).map(|_| ()));
}

/// Also if the ring is full when it changes: no driver uses an outdated state of its group's memory.
#[test]
fn no_change_of_direct_memory_stays_unseen() {
    let states = explore(4, 2, None, None).unwrap();
    println!("{states} states");
    assert!(states > 10_000, "{states}");
    finds(Bug::ForgetDirect, "the driver has seen change 0", 0..1, |_| {
        explore(4, 2, Some(Bug::ForgetDirect), None).map(|_| ())
    });
}

/// What changes while the driver does not listen is one event, later.
#[test]
fn many_changes_of_direct_memory_are_one_event() {
    let mut world = World::new(0, 1000, None);
    while let [Choice::Change, .., next] = world.choices()[..] {
        world.act(next, None);
    }
    world.register(Register::EventSize, 0);
    for _ in 0..1000 {
        world.act(Choice::Change, None);
    }
    assert!(world.steps.is_empty(), "{:?}", world.steps);
    // A new ring starts at entry 0.
    (world.ring, world.index) = ([0; 2 * RING as usize], 0);
    (world.consumed, world.stored, world.announced) = (0, 0, 0);
    world.register(Register::EventSize, RING.into());
    while let Some(choice) = world.choices().pop() {
        world.act(choice, None);
    }
    assert_eq!((world.seen, world.consumed), (1000, 1));
}

/// A driver that is behind is not interrupted; nor does it write a register for each wake-up.
#[test]
fn a_notified_driver_is_not_interrupted_again() {
    let mut world = World::new(3, 0, None);
    world.act(Choice::Step, None);
    world.act(Choice::Step, None);
    assert!(!world.irq, "the event is stored, but not yet posted");
    world.act(Choice::Step, None);
    assert!(std::mem::take(&mut world.irq), "posted into an empty ring");
    for _ in 0..2 {
        world.act(Choice::Cause, None);
        world.run();
        assert!(!world.irq, "the driver has not handled the first one yet");
    }
    (world.consumed, world.index) = (3, 3);
    world.act(Choice::Cause, None);
    world.run();
    assert!(world.irq, "it has handled all, as its memory says");
}

#[test]
fn what_the_driver_says_is_not_trusted() {
    // A count of the future: an error, and an interrupt rather than none.
    let mut world = World::new(2, 0, None);
    world.index = 77;
    world.run();
    assert!(world.irq);
    assert_eq!(world.hib.register(Register::Error) as u16, Status::Invalid as u16);
    // Memory that is not there: the same.
    let mut world = World::new(2, 0, None);
    for expected in [2, 1] {
        assert_eq!(world.steps.len(), 1, "{expected} more");
        world.act(Choice::Step, None);
    }
    let (step, _) = world.steps.pop_front().unwrap();
    world.event(Event::StepDone { step, result: StepResult::Failed(Status::MemoryFault) });
    assert!(world.irq);
    assert_eq!(world.hib.register(Register::Error) as u16, Status::MemoryFault as u16);
    // An old count that arrives late is ignored.
    let mut world = World::new(2, 0, None);
    world.run();
    world.index = 1;
    world.act(Choice::Cause, None);
    world.run();
    world.register(Register::EventConsumer, 0);
    assert_eq!(world.hib.register(Register::EventConsumer), 1);
    assert_eq!(world.hib.register(Register::Error), 0);
    // The word does not move while the ring is in use, and is aligned.
    world.register(Register::EventIndex, INDEX + 8);
    assert_eq!(world.hib.register(Register::Error) as u16, Status::Busy as u16);
    assert_eq!(world.hib.register(Register::EventIndex), INDEX);
    world.register(Register::ErrorAck, 1);
    world.register(Register::EventSize, 0);
    world.register(Register::EventIndex, INDEX + 2);
    assert_eq!(world.hib.register(Register::Error) as u16, Status::Invalid as u16);
}
