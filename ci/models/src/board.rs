// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receiver's board: the real [`Hib`], with one queue at export page 0, set up through its registers and admin
//! commands.
//!
//! Steps at the queue's buffers are returned to the model. Steps at the board's own tables are performed at once, since
//! no other party reads the tables in between; their contents are returned as [`Reaction`].

use crate::digest::digest;
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use telegraphos_device_core::{Action, Bar, Bug, Event, Hib, Step, StepId, StepResult};
use telegraphos_testkit::world::commands::{context_open, queue_resume, queue_set};
use telegraphos_testkit::world::{ADMIN, Cluster, Driver, EVENTS, EXPORTS, Node, STATUS_PAGES, node_up};
use telegraphos_wire::admin::{BLOCK_SIZE, COMPLETION_OFFSET, Command};
use telegraphos_wire::context::QueueArm;
use telegraphos_wire::queue::Shape;
use telegraphos_wire::regs::Register;
use telegraphos_wire::{Body, ImportEpoch, NodeId, Packet, RemoteAddr, Status, UNIT, WindowLayout, context, event};

const NODE: NodeId = 0;
const PAGE: u32 = 0;
const CONTEXT: u16 = 0;
const INCARNATION: u64 = 1;
const RING: u64 = 16;
/// DMA address of the queue's first buffer.
const ARENA: u64 = EXPORTS;

/// A board between two events. Equal hashes mean equal behaviour, so the hash, computed once, represents it.
#[derive(Clone, Debug)]
pub(crate) struct Board {
    hib: Arc<Hib>,
    generation: u64,
    key: u64,
}

impl Hash for Board {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl PartialEq for Board {
    fn eq(&self, other: &Board) -> bool {
        self.key == other.key
    }
}

/// An access of the queue's machine to a word of the first buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Touch {
    Load { word: u32 },
    Store { word: u32, value: u32 },
}

/// The effects of an event.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reaction {
    /// A step of the queue's machine, to be performed.
    pub(crate) step: Option<(StepId, Touch)>,
    /// Elements acknowledged: source, tag, status.
    pub(crate) acks: Vec<(NodeId, u32, Status)>,
    /// Events posted to the ring: the queue has stopped; a consumer must be woken.
    pub(crate) overflow: bool,
    pub(crate) wake: bool,
    /// An admin command has completed.
    pub(crate) completed: Option<Status>,
}

impl Reaction {
    fn sent(&mut self, packet: &Packet) {
        match packet.body {
            Body::WriteAck { status } | Body::ReserveReply { status, .. } => {
                self.acks.push((packet.dst, packet.tag, status));
            }
            Body::WriteAcks { tags } => {
                self.acks.extend(tags.within(packet.tag).map(|tag| (packet.dst, tag, Status::Ok)));
            }
            ref body => panic!("the board sends {body:?}"),
        }
    }
}

impl Board {
    /// A board with an empty queue of this shape, in which nodes 1 to `senders` have reserved `hold` elements each.
    pub(crate) fn new(shape: Shape, senders: u16, hold: u32, bug: Option<Bug>) -> Board {
        let mut c = Cluster::power_on(1, 0, |config| {
            config.window = WindowLayout::new(2, 16).expect("the smallest window");
            config.contexts = 1;
            config.imports = 1;
            config.export_pages = 1;
            config.counters = 0;
            // So that credits are returned one by one, and no count remains in the state.
            config.credits = [1; 4];
            config.hold = hold;
            config.holds = hold * u32::from(senders);
            config.bug = bug;
        });
        let credits = c.nodes[usize::from(NODE)].hib.config().offered();
        c.event(NODE, Event::LinkUp { incarnation: INCARNATION, nodes: u32::from(senders) + 1, credits });
        (1..=senders).for_each(|node| c.event(NODE, node_up(node, INCARNATION)));
        c.event(NODE, Event::BusMaster(true));
        c.register(NODE, Register::AdminBase, ADMIN);
        c.ok(NODE, context_open(CONTEXT, STATUS_PAGES, 0));
        let generation = c.ok(NODE, queue_set(PAGE, shape, EXPORTS)).generation;
        c.settle();
        let [Node { mut hib, .. }] = <[Node; 1]>::try_from(c.nodes).unwrap_or_else(|_| panic!("one board"));
        for (register, data) in [(Register::EventBase, EVENTS), (Register::EventSize, RING)] {
            let (offset, size) = (register.offset(), register.size().into());
            run(&mut hib, Event::Write { bar: Bar::Control, offset, size, data }, None);
        }
        let mut board = Board::of(hib, generation);
        for node in 1..=senders {
            let body = Body::Reserve { at: board.queue(), imports: 1 };
            assert_eq!(board.arrive(node, 0, body).acks, [(node, 0, Status::Ok)]);
        }
        board
    }

    fn of(hib: Hib, generation: u64) -> Board {
        let key = digest(&hib);
        Board { hib: Arc::new(hib), generation, key }
    }

    fn queue(&self) -> RemoteAddr {
        RemoteAddr { page: PAGE, offset: 0, generation: self.generation }
    }

    fn react(&mut self, event: Event, command: Option<Command>) -> Reaction {
        let mut hib = Hib::clone(&self.hib);
        let reaction = run(&mut hib, event, command);
        *self = Board::of(hib, self.generation);
        reaction
    }

    fn arrive(&mut self, src: NodeId, tag: u32, body: Body) -> Reaction {
        let target = self.hib.incarnation();
        self.react(Event::Packet(Packet { src, dst: NODE, tag, incarnation: INCARNATION, target, body }), None)
    }

    pub(crate) fn element(&mut self, src: NodeId, tag: u32, data: u32) -> Reaction {
        // The element follows the reservation, the only request of each node.
        let body = Body::Enqueue {
            at: self.queue(),
            context: 0,
            epoch: ImportEpoch::default(),
            size: 4,
            data: data.into(),
            after: 1,
        };
        self.arrive(src, tag, body)
    }

    /// The step in flight is done.
    pub(crate) fn stepped(&mut self, step: StepId, loaded: Option<u32>) -> Reaction {
        let result = loaded.map_or(StepResult::Stored, |value| StepResult::Loaded(value.into()));
        self.react(Event::StepDone { step, result }, None)
    }

    /// A consumer's store to QUEUE_ARM, for so many elements, arrives.
    pub(crate) fn arm(&mut self, count: u16, seen: u32) -> Reaction {
        let offset = u64::from(CONTEXT) * UNIT + context::QUEUE_ARM;
        let data = QueueArm { count, page: PAGE, seen }.encode();
        let reaction = self.react(Event::Write { bar: Bar::Contexts, offset, size: 8, data }, None);
        // A modelled processor never runs ahead of the board; otherwise the number of its stores would be part of each
        // state.
        self.react(Event::IntakeDry, None);
        reaction
    }

    /// The driver resumes the queue.
    pub(crate) fn resume(&mut self) -> Reaction {
        self.react(doorbell(), Some(Command { seq: 1, ..queue_resume(PAGE) }))
    }

    /// Whether the queue has stopped and waits to be resumed.
    pub(crate) fn is_stopped(&self) -> bool {
        self.hib.queue_state(PAGE) & event::QUEUE_OVERFLOW != 0
    }

    /// Whether the queue's header was found unsound.
    pub(crate) fn is_broken(&self) -> bool {
        self.hib.queue_state(PAGE) & event::QUEUE_BROKEN != 0
    }
}

fn doorbell() -> Event {
    let register = Register::AdminDoorbell;
    Event::Write { bar: Bar::Control, offset: register.offset(), size: register.size().into(), data: 0 }
}

/// Lets the board handle an event, and all resulting steps at its own tables. `command` is what the admin slot holds.
fn run(hib: &mut Hib, event: Event, command: Option<Command>) -> Reaction {
    let mut reaction = Reaction::default();
    let mut events = VecDeque::from([event]);
    let mut posted = 0;
    let mut value = 0;
    loop {
        while let Some(event) = events.pop_front() {
            let mut actions = Vec::new();
            hib.handle(event, &mut actions);
            for action in actions {
                match action {
                    Action::Step { step, op } => match perform(&op, command, &mut reaction, &mut value, &mut posted) {
                        Ok(result) => events.push_back(Event::StepDone { step, result }),
                        Err(touch) => {
                            assert!(reaction.step.is_none(), "one queue, two steps at a time");
                            reaction.step = Some((step, touch));
                        }
                    },
                    Action::Send(packet) => reaction.sent(&packet),
                    Action::Credit { .. } | Action::Interrupt | Action::Notice(_) => {}
                    other => panic!("unexpected action of the board: {other:?}"),
                }
            }
        }
        // The turn of the board's loop ends with what it can do at once.
        let mut actions = Vec::new();
        hib.end_turn(&mut actions);
        for action in actions {
            let Action::Send(packet) = action else { panic!("unexpected action at the end of a turn: {action:?}") };
            reaction.sent(&packet);
        }
        if posted == 0 {
            return reaction;
        }
        // The ring is empty. It restarts, so that states do not differ in the number of past events.
        for (register, data) in [(Register::EventConsumer, posted), (Register::EventSize, RING)] {
            let (offset, size) = (register.offset(), register.size().into());
            let mut actions = Vec::new();
            hib.handle(Event::Write { bar: Bar::Control, offset, size, data }, &mut actions);
            assert_eq!(actions, [], "events do not wait in a ring of {RING}");
        }
        posted = 0;
    }
}

/// Performs a step at the board's own tables; a step at the queue's first buffer is not.
fn perform(
    op: &Step,
    command: Option<Command>,
    reaction: &mut Reaction,
    value: &mut u64,
    posted: &mut u64,
) -> Result<StepResult, Touch> {
    const COMPLETION: u64 = ADMIN + COMPLETION_OFFSET as u64;
    match *op {
        Step::Load { address, size: 4 } if address >= ARENA => {
            Err(Touch::Load { word: ((address - ARENA) / 4) as u32 })
        }
        Step::Store { address, size: 4, data } if address >= ARENA => {
            Err(Touch::Store { word: ((address - ARENA) / 4) as u32, value: data as u32 })
        }
        Step::LoadCommand { address: ADMIN } => Ok(StepResult::Command(Box::new(
            command.unwrap_or_else(|| panic!("the board loads a command without one in its slot")),
        ))),
        Step::Store { address, size: 8, data } => {
            match address {
                COMPLETION => reaction.completed = Some(Status::from_u16((data >> 32) as u16)),
                _ if (ADMIN..ADMIN + BLOCK_SIZE as u64).contains(&address) => {}
                _ if (EVENTS..EVENTS + RING * 16).contains(&address) && address % 16 == 0 => *value = data,
                _ if (EVENTS..EVENTS + RING * 16).contains(&address) => {
                    *posted = data >> 32;
                    match data as u16 {
                        event::QUEUE => {
                            assert_eq!(*value >> 32, u64::from(PAGE));
                            reaction.overflow |= *value & event::QUEUE_OVERFLOW != 0;
                        }
                        event::CONTEXT => reaction.wake = true,
                        _ => {}
                    }
                }
                _ => panic!("the board stores to {address:#x}"),
            }
            Ok(StepResult::Stored)
        }
        ref other => panic!("unexpected action of the board: {other:?}"),
    }
}
