// SPDX-License-Identifier: MIT OR Apache-2.0
//! One node: the real board, and around it the memory, driver and processors of a simulated guest.

use crate::agenda::Kind;
use crate::driver::{Driver, Task};
use crate::guest::Guest;
use crate::layout::{self, ADMIN, EVENTS, RING, STATUS, Segment};
use crate::memory::Pages;
use crate::plan::Plan;
use crate::trace::Track;
use crate::units::{MICROSECOND, Time};
use crate::world::World;
use std::collections::VecDeque;
use std::hint::black_box;
use telegraphos_device_core::{Action, Bar, Event, Hib, Notice, Step, StepId};
use telegraphos_testkit::world::Memory;
use telegraphos_wire::link::Frame;
use telegraphos_wire::queue::TAIL_WORD;
use telegraphos_wire::regs::Register;
use telegraphos_wire::{Body, Class, NodeId, PROTOCOL_VERSION, Status, admin, context, event};

/// See the module.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) hib: Hib,
    pub(crate) memory: Pages,
    pub(crate) driver: Driver,
    pub(crate) guest: Guest,
    /// Guest-memory steps in the order of their end.
    steps: VecDeque<(Time, StepId, Step)>,
    /// The driver is on the agenda.
    driver_called: bool,
    consumer_called: bool,
    deadline_called: bool,
    /// By node: number of the last element of it that the consumer took.
    last_elements: Vec<u32>,
    /// Accesses to the board since the last [`Event::IntakeDry`].
    accesses: u32,
    told_time: Time,
    pub(crate) up: bool,
    /// It does nothing before.
    pub(crate) hangs_until: Time,
}

impl Node {
    /// A node that is switched on, its board not yet connected.
    pub(crate) fn new(id: NodeId, plan: &Plan) -> Node {
        Node {
            id,
            hib: Hib::new(plan.board(id)),
            memory: Pages::new(layout::MEMORY),
            driver: Driver::default(),
            guest: Guest::new(id, plan),
            steps: VecDeque::new(),
            driver_called: false,
            consumer_called: false,
            deadline_called: false,
            last_elements: Vec::new(),
            accesses: 0,
            told_time: 0,
            up: false,
            hangs_until: 0,
        }
    }

    /// Reads what is used of the node, whatever happens to it; changes nothing.
    pub(crate) fn look_ahead(&self) {
        black_box((self.steps.front().map(|(at, ..)| *at), self.deadline_called, self.hangs_until, self.told_time));
        self.guest.look_ahead();
        self.hib.look_ahead();
    }

    /// The same, and what is used for a packet of `source`.
    pub(crate) fn look_ahead_of(&self, source: NodeId) {
        self.look_ahead();
        self.hib.look_ahead_of(source);
    }

    /// Does what a driver does at probe, after which the board sends Hello.
    pub(crate) fn start(&mut self, world: &mut World<'_>) {
        self.up = true;
        self.handle(world, Event::BusMaster(true));
        self.register(world, Register::AdminBase, ADMIN);
        self.register(world, Register::EventBase, EVENTS);
        self.register(world, Register::EventSize, RING.into());
        self.register(world, Register::Control, 1);
        self.say_hello(world);
        self.task(world, Task::Context);
    }

    /// Sends the Hello of the board.
    pub(crate) fn say_hello(&mut self, world: &mut World<'_>) {
        let config = self.hib.config();
        let hello =
            Frame::Hello { version: PROTOCOL_VERSION, node: self.id, window: config.window, credits: config.offered() };
        self.send(world, hello);
    }

    fn send(&mut self, world: &mut World<'_>, frame: Frame) {
        let costs = &world.plan.workload.costs;
        let wire = (costs.link_bandwidth, costs.link_latency + costs.switch_crossing);
        if let Some(trace) = &mut world.trace {
            trace.frame(Track::Up(self.id.into()), &world.up.sender, world.now, &frame, wire);
        }
        if let Some(at) = world.up.send(world.now, frame, wire, world.frames) {
            world.agenda.add(at, world.switch, Kind::Up, self.id.into());
        }
    }

    /// Writes a register of the board.
    pub(crate) fn register(&mut self, world: &mut World<'_>, register: Register, data: u64) {
        let (offset, size) = (register.offset(), u32::from(register.size()));
        self.handle(world, Event::Write { bar: Bar::Control, offset, size, data });
    }

    /// An access of a processor to the board.
    pub(crate) fn access(&mut self, world: &mut World<'_>, bar: Bar, offset: u64, size: u32, data: u64) {
        self.accesses += 1;
        if self.accesses == 1024 {
            // A simulated processor never runs ahead of the board.
            self.accesses = 0;
            self.handle(world, Event::IntakeDry);
        }
        self.handle(world, Event::Write { bar, offset, size, data });
    }

    /// Advances the board's clock, in steps of 100 us, since its limits are long.
    pub(crate) fn tell_time(&mut self, world: &mut World<'_>) {
        if world.now >= self.told_time + 100 * MICROSECOND {
            self.told_time = world.now;
            self.handle(world, Event::Tick { now: world.now / MICROSECOND });
        }
    }

    // ---- the board ----

    /// Passes an event to the board and performs its actions.
    pub(crate) fn handle(&mut self, world: &mut World<'_>, event: Event) {
        let mut actions = std::mem::take(&mut world.actions);
        self.hib.handle(event, &mut actions);
        // Each moment of a simulated board is a turn of its own.
        self.hib.end_turn(&mut actions);
        let mut failed = false;
        let mut turn = false;
        for action in actions.drain(..) {
            match action {
                Action::Send(packet) => {
                    world.statistics.sent += 1;
                    self.send(world, Frame::Packet(packet));
                }
                Action::Step { step, op } => {
                    let at = world.now + world.plan.workload.costs.memory;
                    if self.steps.is_empty() {
                        world.call(at, Kind::Step, self.id.into());
                    }
                    self.steps.push_back((at, step, op));
                }
                Action::ReadDone { token, .. } => {
                    self.guest.load_done(world, self.id, token, !std::mem::take(&mut failed));
                }
                Action::Credit { class, count } => self.send(world, Frame::Credit { class, count }),
                Action::AnnounceReset { incarnation } => self.send(world, Frame::Reset { incarnation }),
                Action::Group { page, members } => self.send(world, Frame::Group { page, members }),
                Action::Continue => turn = true,
                Action::Interrupt => self.call_driver(world, world.plan.workload.costs.interrupt),
                // The next action answers the load.
                Action::Notice(Notice::FailedLoad { .. }) => failed = true,
                // Its memory lends nothing.
                Action::Notice(_) | Action::ResetDone | Action::Recall { .. } => {}
                // A simulated switch offers no rings.
                Action::RingSend(_) | Action::RingSendLent(_) | Action::SendLent(_) | Action::Ring { .. } => {}
            }
        }
        world.actions = actions;
        if turn {
            // The next turn of the board's loop takes no time.
            self.handle(world, Event::Continue);
        }
        if !self.deadline_called {
            self.call_deadline(world);
        }
    }

    fn call_deadline(&mut self, world: &mut World<'_>) {
        if let Some(deadline) = self.hib.deadline() {
            self.deadline_called = true;
            world.call((deadline * MICROSECOND).max(world.now), Kind::Deadline, self.id.into());
        }
    }

    /// The board's deadline may have passed.
    pub(crate) fn deadline(&mut self, world: &mut World<'_>) {
        self.deadline_called = false;
        if self.hib.deadline().is_some_and(|deadline| deadline <= world.now / MICROSECOND) {
            self.handle(world, Event::Tick { now: world.now / MICROSECOND });
        } else {
            self.call_deadline(world);
        }
    }

    /// A frame from the switch.
    pub(crate) fn arrive(&mut self, world: &mut World<'_>, frame: Frame) {
        match frame {
            Frame::Packet(packet) => {
                let class = packet.class();
                world.statistics.delivered += 1;
                world.statistics.delivered_of[class as usize] += 1;
                let source = packet.src;
                let ok = !matches!(&packet.body, Body::WriteAck { status } if !status.is_ok());
                self.handle(world, Event::Packet(packet));
                if class == Class::Reply {
                    self.guest.settle(world, self.id, &self.hib, source, ok);
                }
            }
            Frame::Credit { class, count } => self.handle(world, Event::Credit { class, count }),
            Frame::NodeUp { node, incarnation, block } => {
                self.handle(world, Event::NodeUp { node, incarnation, block });
                self.guest.settle(world, self.id, &self.hib, node, false);
            }
            Frame::NodeDown { node } => {
                self.handle(world, Event::NodeDown { node });
                self.guest.settle(world, self.id, &self.hib, node, false);
            }
            Frame::Welcome { incarnation, nodes, credits } => {
                self.handle(world, Event::LinkUp { incarnation, nodes, credits });
            }
            Frame::Probe => self.send(world, Frame::Alive),
            // A switch sends no other frames, and a refusal only before it closes the link.
            _ => {}
        }
    }

    /// The switch has ended the link.
    pub(crate) fn link_down(&mut self, world: &mut World<'_>) {
        self.handle(world, Event::LinkDown);
        self.guest.settle_all(world, self.id, &self.hib);
    }

    // ---- guest memory ----

    /// The oldest step is done, unless this call has become idle.
    pub(crate) fn step(&mut self, world: &mut World<'_>) {
        if self.steps.front().is_none_or(|(at, ..)| *at > world.now) {
            return;
        }
        let Some((_, step, op)) = self.steps.pop_front() else { return };
        match self.steps.front() {
            Some((next, ..)) => world.call((*next).max(world.now), Kind::Step, self.id.into()),
            None => self.steps.clear(),
        }
        let stored = match op {
            Step::Store { address, size, data } => {
                self.memory.word(address, size).map(|before| (address, size, before, data))
            }
            _ => None,
        };
        let result = self.memory.perform(&op);
        self.handle(world, Event::StepDone { step, result });
        if let Some(stored) = stored {
            self.stored(world, stored);
        }
    }

    /// Passes a stored word to the part of the guest that polls it.
    fn stored(&mut self, world: &mut World<'_>, (address, size, before, value): (u64, u8, u64, u64)) {
        match address {
            STATUS.. if address < STATUS + 8 * context::SLOTS as u64 => {
                self.guest.slot_done(world, self.id, ((address - STATUS) / 8) as usize, value);
            }
            ADMIN..EVENTS if (address - ADMIN) % admin::BLOCK_SIZE as u64 == admin::COMPLETION_OFFSET as u64 => {
                if let Some((task, status)) = self.driver.completed(address, &self.memory) {
                    self.done(world, task, status);
                }
                self.run_driver(world);
            }
            ADMIN..EVENTS => {}
            _ if address >= Segment::Data.address() && address < Segment::Data.address() + layout::ATOMIC => {
                // Stores of one node to one other carry numbers that count up from 1, and again when it has lost one.
                let numbers = if size >= 8 { u64::MAX } else { (1 << (8 * u32::from(size))) - 1 };
                if value != before.wrapping_add(1) & numbers && value != 1 {
                    world.statistics.disorder += 1;
                }
            }
            _ if address == Segment::Queue.address() + 8 * TAIL_WORD => self.call_consumer(world),
            _ => {}
        }
    }

    // ---- the driver ----

    /// Gives the driver a task.
    pub(crate) fn task(&mut self, world: &mut World<'_>, task: Task) {
        self.driver.add(task);
        self.run_driver(world);
    }

    fn run_driver(&mut self, world: &mut World<'_>) {
        if let Some(slot) = self.driver.start(&mut self.memory, world.plan) {
            self.register(world, Register::AdminDoorbell, slot.into());
        }
    }

    fn call_driver(&mut self, world: &mut World<'_>, delay: Time) {
        if !self.driver_called {
            self.driver_called = true;
            world.call(world.now + delay, Kind::Driver, self.id.into());
        }
    }

    pub(crate) fn interrupt(&mut self, world: &mut World<'_>) {
        self.driver_called = false;
        let before = self.driver.events_taken();
        while let Some(event) = self.driver.take_event(&self.memory) {
            match event.kind {
                event::QUEUE if event.value & event::QUEUE_OVERFLOW != 0 => {
                    world.statistics.overflows += 1;
                    self.driver.empty_queue(&mut self.memory, world.plan);
                }
                event::IMPORT_STATE if event.value & event::IMPORT_CUT != 0 => {
                    self.guest.import_lost(&mut self.driver, event.index);
                }
                event::NODE_STATE if event.value != 0 => self.guest.node_up(&mut self.driver, event.index),
                _ => {}
            }
        }
        let taken = self.driver.events_taken();
        if taken != before {
            self.register(world, Register::EventConsumer, taken.into());
        }
        self.guest.retry_imports(&mut self.driver);
        self.run_driver(world);
    }

    fn done(&mut self, world: &mut World<'_>, task: Task, status: Status) {
        match task {
            Task::Import { import, .. } => {
                self.guest.imported(world, self.id, import, status);
                // The name may be published soon, unless the node is down: its return is an event.
                if !matches!(status, Status::Ok | Status::NodeDown | Status::LinkDown) {
                    self.call_driver(world, world.plan.workload.costs.retry);
                }
            }
            Task::Join { .. } => self.guest.joined(status.is_ok()),
            Task::Resume => self.call_consumer(world),
            Task::Context | Task::Export(_) | Task::Close { .. } => {}
        }
    }

    // ---- the consumer of the queue ----

    fn call_consumer(&mut self, world: &mut World<'_>) {
        if !self.consumer_called {
            self.consumer_called = true;
            world.call(world.now + world.plan.workload.queue.consume, Kind::Consumer, self.id.into());
        }
    }

    /// The consumer takes an element, if there is one, and checks its order.
    pub(crate) fn consume(&mut self, world: &mut World<'_>) {
        self.consumer_called = false;
        let Some(element) = self.driver.take_element(&mut self.memory, world.plan) else { return };
        world.statistics.consumed += 1;
        if self.last_elements.is_empty() {
            self.last_elements = vec![0; world.plan.nodes as usize];
        }
        let (source, number) = ((element >> 32) as usize, element as u32);
        match self.last_elements.get_mut(source) {
            Some(last) if number == last.wrapping_add(1) || number == 1 => *last = number,
            _ => world.statistics.disorder += 1,
        }
        self.call_consumer(world);
    }
}
