// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two boards, their guests' memory and the packets between them, driven by a script.
//!
//! An input is a byte with bits of the configuration ([`config`]), and then [`Op`]s: a byte that says what happens, at
//! board 1 if its bit 7 is set and else at board 0, and its operands, little-endian.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use telegraphos_device_core::{
    Action, Bar, Event, Hib, HibConfig, Loan, RingAction, RingEvent, Step, StepId, Token, WindowStore,
};
use telegraphos_testkit::world::Memory;
use telegraphos_wire::packet::MULTICAST;
use telegraphos_wire::{Class, MAX_BURST, NodeId, Packet, STREAM_BLOCK, WindowLayout, regs};

use crate::input::Input;

/// Bytes of a guest's memory.
pub const MEMORY: usize = 512 << 10;
/// Steps, deliveries and turns of one input: copies and atomics multiply what an input says.
const BUDGET: u32 = 20_000;
/// Operations of one input.
const OPERATIONS: usize = 4000;
/// Longest wait of a load, in microseconds.
const LOAD_LIMIT: u64 = 1_000_000;

/// A board's index: 0 or 1.
pub type Index = usize;

#[derive(Clone, Debug)]
pub enum Op {
    Write {
        bar: Bar,
        /// Offset; taken modulo the bytes of the BAR, as the server checks.
        offset: u64,
        /// Bytes.
        size: u8,
        data: u64,
    },
    Read {
        bar: Bar,
        /// Offset, as for stores.
        offset: u64,
        /// Bytes.
        size: u8,
    },
    /// The guest writes its memory; what lies outside is left out.
    Memory {
        address: u32,
        /// At most 255.
        bytes: Vec<u8>,
    },
    /// Everything that waits is done, until nothing is left.
    Run,
    /// One of the steps that wait is done: this one, modulo their number.
    Perform(u8),
    /// The oldest packet for the board comes.
    Deliver,
    /// A forged packet comes: its encoded bytes. Nothing happens if they are none.
    Forged(Vec<u8>),
    /// Time passes, in microseconds.
    Pass(u32),
    Credit {
        /// Class, modulo 4.
        class: u8,
        count: u32,
    },
    NodeUp {
        node: u16,
        incarnation: u64,
    },
    NodeDown(u16),
    /// The board joins. The link is lost before, if there is one.
    LinkUp {
        /// Incarnation of this join.
        incarnation: u64,
        /// Credits of each class.
        credits: u16,
    },
    /// The board leaves; packets to and from it are lost.
    LinkDown,
    Reset,
    /// Bus mastering is switched.
    BusMaster(bool),
    /// The socket of the guest is empty; so the turn of the board's loop ends.
    IntakeDry,
    /// The fabric offers an end of a ring to the other board. Nothing happens if the server would not open it.
    RingUp {
        /// The other board's incarnation that it is for.
        incarnation: u64,
        own: u64,
        /// Packets of each class.
        credits: u32,
    },
    /// The fabric withdraws the ring to this incarnation, offers it again, or reports it lost.
    RingUse {
        /// 0: withdrawn; 1: offered; else: lost.
        what: u8,
        incarnation: u64,
    },
    /// What the other end of the ring sends comes, one frame of it.
    RingDeliver,
    /// A hostile peer writes a packet into the ring: its encoded bytes. The server checks its source.
    RingForged(Vec<u8>),
    /// The same with credits, or with an answer to a probe where class is 4; with what is no frame above that.
    RingCredit {
        /// Class; see above.
        class: u8,
        count: u32,
    },
}

impl Op {
    /// Appends the operation at that board.
    pub fn encode(&self, board: Index, out: &mut Vec<u8>) {
        let bar = |bar: Bar| match bar {
            Bar::Control => 0,
            Bar::Contexts => 1,
            Bar::Window => 2,
        };
        let mut put = |what: u8, operands: &[&[u8]]| {
            out.push(what | (board as u8 & 1) << 7);
            operands.iter().for_each(|bytes| out.extend_from_slice(bytes));
        };
        match self {
            Op::Write { bar: at, offset, size, data } => {
                put(0, &[&[bar(*at), *size], &offset.to_le_bytes(), &data.to_le_bytes()]);
            }
            Op::Read { bar: at, offset, size } => put(1, &[&[bar(*at), *size], &offset.to_le_bytes()]),
            Op::Memory { address, bytes } => put(2, &[&address.to_le_bytes(), &[bytes.len() as u8], bytes]),
            Op::Run => put(3, &[]),
            Op::Perform(which) => put(4, &[&[*which]]),
            Op::Deliver => put(5, &[]),
            Op::Forged(bytes) => put(6, &[&(bytes.len() as u16).to_le_bytes(), bytes]),
            Op::Pass(time) => put(7, &[&time.to_le_bytes()]),
            Op::Credit { class, count } => put(8, &[&[*class], &count.to_le_bytes()]),
            Op::NodeUp { node, incarnation } => put(9, &[&node.to_le_bytes(), &incarnation.to_le_bytes()]),
            Op::NodeDown(node) => put(10, &[&node.to_le_bytes()]),
            Op::LinkUp { incarnation, credits } => put(11, &[&incarnation.to_le_bytes(), &credits.to_le_bytes()]),
            Op::LinkDown => put(12, &[]),
            Op::Reset => put(13, &[]),
            Op::BusMaster(on) => put(14, &[&[u8::from(*on)]]),
            Op::IntakeDry => put(15, &[]),
            Op::RingUp { incarnation, own, credits } => {
                put(16, &[&incarnation.to_le_bytes(), &own.to_le_bytes(), &credits.to_le_bytes()]);
            }
            Op::RingUse { what, incarnation } => put(17, &[&[*what], &incarnation.to_le_bytes()]),
            Op::RingDeliver => put(18, &[]),
            Op::RingForged(bytes) => put(19, &[&(bytes.len() as u16).to_le_bytes(), bytes]),
            Op::RingCredit { class, count } => put(20, &[&[*class], &count.to_le_bytes()]),
        }
    }

    fn decode(input: &mut Input<'_>) -> (Index, Op) {
        let what = input.u8();
        let bar = |byte: u8| match byte % 3 {
            0 => Bar::Control,
            1 => Bar::Contexts,
            _ => Bar::Window,
        };
        let op = match what & 31 {
            0 => {
                let (at, size) = (bar(input.u8()), input.u8());
                Op::Write { bar: at, size, offset: input.u64(), data: input.u64() }
            }
            1 => {
                let (at, size) = (bar(input.u8()), input.u8());
                Op::Read { bar: at, size, offset: input.u64() }
            }
            2 => {
                let (address, length) = (input.u32(), input.u8());
                Op::Memory { address, bytes: input.bytes(length.into()).to_vec() }
            }
            3 => Op::Run,
            4 => Op::Perform(input.u8()),
            5 => Op::Deliver,
            6 => {
                let length = input.u16();
                Op::Forged(input.bytes(length.into()).to_vec())
            }
            7 => Op::Pass(input.u32()),
            8 => Op::Credit { class: input.u8(), count: input.u32() },
            9 => Op::NodeUp { node: input.u16(), incarnation: input.u64() },
            10 => Op::NodeDown(input.u16()),
            11 => Op::LinkUp { incarnation: input.u64(), credits: input.u16() },
            12 => Op::LinkDown,
            13 => Op::Reset,
            14 => Op::BusMaster(input.u8() & 1 != 0),
            16 => Op::RingUp { incarnation: input.u64(), own: input.u64(), credits: input.u32() },
            17 => Op::RingUse { what: input.u8(), incarnation: input.u64() },
            18 => Op::RingDeliver,
            19 => {
                let length = input.u16();
                Op::RingForged(input.bytes(length.into()).to_vec())
            }
            20 => Op::RingCredit { class: input.u8(), count: input.u32() },
            _ => Op::IntakeDry,
        };
        (usize::from(what >> 7), op)
    }
}

/// A board on which limits are near.
pub(crate) fn small(node: u16) -> HibConfig {
    let mut config = HibConfig::new(node);
    // 8 nodes of 1 MiB: valid.
    config.window = WindowLayout::new(3, 20).unwrap_or_default();
    (config.outstanding, config.credits) = (4, [8; 4]);
    (config.congest_at, config.clear_at, config.reserve, config.intake_limit) = (8, 4, 64, 32);
    (config.copies_congest_at, config.copies_clear_at, config.copies_limit) = (64 << 10, 16 << 10, 1 << 20);
    (config.contexts, config.imports, config.export_pages, config.counters) = (4, 8, 8, 4);
    (config.hold, config.holds, config.pending_writes) = (4, 8, 2);
    config.load_limit = LOAD_LIMIT;
    config
}

/// The configuration of a board: bit 0 of `bits` leaves multicasts to the switch, bit 1 makes interrupts MSI-X.
pub fn config(node: u16, bits: u8) -> HibConfig {
    let mut config = small(node);
    config.fanout_by_switch = bits & 1 != 0;
    config.msix = bits & 2 != 0;
    config
}

/// A frame of a ring.
#[derive(Debug)]
enum RingFrame {
    Packet(Packet),
    Credit { class: Class, count: u32 },
    Probe,
    Alive,
}

/// A board and its guest.
#[derive(Debug)]
struct Node {
    hib: Hib,
    memory: Vec<u8>,
    steps: BTreeMap<StepId, Step>,
    /// Loads that wait, with the time they were made.
    loads: BTreeMap<Token, u64>,
    /// Packets for it, in order.
    inbox: VecDeque<Packet>,
    /// Its end of a ring is open.
    ring: bool,
    /// What the other end has sent, in order.
    ring_inbox: VecDeque<RingFrame>,
    /// It has more to do.
    turn: bool,
    linked: bool,
    now: u64,
}

/// Two boards, their guests' memory and the packets between them.
#[derive(Debug)]
pub struct World {
    nodes: [Node; 2],
    tokens: Token,
    budget: u32,
    /// Stores that this guest has posted to the window, one after the other.
    posted: Vec<WindowStore>,
    posting: Index,
}

impl World {
    /// Both powered on; `bits` as in [`config`].
    pub fn new(bits: u8) -> World {
        let node = |node| Node {
            hib: Hib::new(config(node, bits)),
            memory: vec![0; MEMORY],
            steps: BTreeMap::new(),
            loads: BTreeMap::new(),
            inbox: VecDeque::new(),
            ring: false,
            ring_inbox: VecDeque::new(),
            turn: false,
            linked: false,
            now: 0,
        };
        World { nodes: [node(0), node(1)], tokens: 0, budget: BUDGET, posted: Vec::new(), posting: 0 }
    }

    pub fn memory(&self, at: Index) -> &[u8] {
        &self.nodes[at & 1].memory
    }

    /// Bytes of a BAR.
    fn size(&self, at: Index, bar: Bar) -> u64 {
        let config = self.nodes[at].hib.config();
        match bar {
            Bar::Control => regs::BAR0_SIZE,
            Bar::Contexts => u64::from(config.contexts) * telegraphos_wire::UNIT,
            Bar::Window => config.window.bar_size(),
        }
    }

    pub fn apply(&mut self, at: Index, op: Op) {
        let at = at & 1;
        if let Op::Write { bar: Bar::Window, offset, size, data } = op {
            // What comes next shows which others are posted with it.
            if at != self.posting || self.posted.len() > MAX_BURST {
                self.pass_stores();
            }
            self.posting = at;
            let offset = offset % self.size(at, Bar::Window);
            return self.posted.push(WindowStore { offset, size: size.into(), data });
        }
        self.pass_stores();
        match op {
            Op::Write { bar, offset, size, data } => {
                let offset = offset % self.size(at, bar);
                self.event(at, Event::Write { bar, offset, size: size.into(), data });
            }
            Op::Read { bar, offset, size } => {
                let offset = offset % self.size(at, bar);
                self.tokens += 1;
                self.nodes[at].loads.insert(self.tokens, self.nodes[at].now);
                self.event(at, Event::Read { token: self.tokens, bar, offset, size: size.into() });
            }
            Op::Memory { address, bytes } => {
                // What lies outside is left out.
                let _ = self.nodes[at].memory.write(address.into(), &bytes);
            }
            Op::Run => self.run(),
            Op::Perform(which) => {
                let count = self.nodes[at].steps.len();
                if let Some(step) = self.nodes[at].steps.keys().nth(usize::from(which) % count.max(1)).copied() {
                    self.perform(at, step);
                }
            }
            Op::Deliver => self.deliver(at),
            Op::Forged(bytes) => {
                if let Ok(packet) = Packet::decode(&bytes) {
                    self.event(at, Event::Packet(packet));
                }
            }
            Op::Pass(time) => self.pass(at, time.into()),
            Op::Credit { class, count } => {
                self.event(at, Event::Credit { class: Class::ALL[usize::from(class) % 4], count })
            }
            Op::NodeUp { node, incarnation } => {
                self.event(at, Event::NodeUp { node, incarnation, block: STREAM_BLOCK as u32 })
            }
            Op::NodeDown(node) => self.event(at, Event::NodeDown { node }),
            Op::LinkUp { incarnation, credits } => {
                self.link_down(at);
                self.nodes[at].linked = true;
                // The low bits count resets (`telegraphos_wire::link`).
                let incarnation = incarnation & !0xfff;
                self.event(at, Event::LinkUp { incarnation, nodes: 2, credits: [credits.into(); 4] });
            }
            Op::LinkDown => self.link_down(at),
            Op::Reset => self.event(at, Event::Reset),
            Op::BusMaster(on) => self.event(at, Event::BusMaster(on)),
            Op::IntakeDry => {
                self.event(at, Event::IntakeDry);
                self.end_turn(at);
            }
            Op::RingUp { incarnation, own, credits } => {
                let peer = self.other(at);
                if self.nodes[at].hib.accepts_ring(peer, incarnation, own) {
                    self.nodes[at].ring = true;
                    self.nodes[at].ring_inbox.clear();
                    // Memory that is asked to lend never does.
                    self.ring_event(at, RingEvent::Up { incarnation, own, credits, lends: credits % 2 == 1 });
                }
            }
            Op::RingUse { what: what @ 0..=1, incarnation } => {
                self.ring_event(at, RingEvent::Use { incarnation, on: what == 1 });
            }
            Op::RingUse { incarnation, .. } => self.ring_event(at, RingEvent::Lost { incarnation }),
            Op::RingDeliver => self.ring_deliver(at),
            Op::RingForged(bytes) => match Packet::decode(&bytes) {
                Ok(packet) if packet.src == self.other(at) => {
                    let lent = || Loan::new(packet.body.block_len() as u32, Arc::new(()));
                    let loan = (packet.tag % 4 == 3).then(lent);
                    self.event(at, Event::RingPacket { packet, loan });
                }
                _ => self.ring_event(at, RingEvent::Broken),
            },
            Op::RingCredit { class, count } => {
                let class = Class::ALL.get(usize::from(class)).copied();
                let alive = RingEvent::Alive;
                self.ring_event(at, class.map_or(alive, |class| RingEvent::Credit { class, count }));
            }
        }
    }

    /// The node of the other board.
    fn other(&self, at: Index) -> NodeId {
        self.nodes[1 - at].hib.config().node
    }

    fn ring_event(&mut self, at: Index, what: RingEvent) {
        let peer = self.other(at);
        self.event(at, Event::Ring { peer, what });
    }

    /// The oldest frame of the ring comes, if this end is open.
    fn ring_deliver(&mut self, at: Index) {
        let frame = self.nodes[at].ring_inbox.pop_front().filter(|_| self.nodes[at].ring);
        match frame {
            Some(RingFrame::Packet(packet)) => self.event(at, Event::RingPacket { packet, loan: None }),
            Some(RingFrame::Credit { class, count }) => self.ring_event(at, RingEvent::Credit { class, count }),
            Some(RingFrame::Probe) => self.nodes[1 - at].ring_inbox.push_back(RingFrame::Alive),
            Some(RingFrame::Alive) => self.ring_event(at, RingEvent::Alive),
            None => {}
        }
    }

    fn link_down(&mut self, at: Index) {
        self.nodes.iter_mut().for_each(|node| node.inbox.clear());
        if std::mem::take(&mut self.nodes[at].linked) {
            self.event(at, Event::LinkDown);
        }
    }

    /// Time passes at a board; no load waits beyond the limit.
    fn pass(&mut self, at: Index, time: u64) {
        let node = &mut self.nodes[at];
        node.now = node.now.saturating_add(time);
        let now = node.now;
        self.event(at, Event::Tick { now });
        let overdue = self.nodes[at].loads.iter().find(|(_, since)| now - **since > LOAD_LIMIT);
        assert!(overdue.is_none(), "load {overdue:?} is not answered at {now}");
    }

    fn spend(&mut self) -> bool {
        self.budget = self.budget.saturating_sub(1);
        self.budget > 0
    }

    fn run(&mut self) {
        let mut idle = false;
        while !idle && self.budget > 0 {
            idle = true;
            for at in 0..2 {
                while let Some((step, _)) = self.nodes[at].steps.first_key_value() {
                    let step = *step;
                    idle = false;
                    if !self.spend() {
                        return;
                    }
                    self.perform(at, step);
                }
                if self.nodes[at].turn && self.spend() {
                    idle = false;
                    self.nodes[at].turn = false;
                    self.event(at, Event::Continue);
                }
                if !self.nodes[at].inbox.is_empty() && self.spend() {
                    idle = false;
                    self.deliver(at);
                }
                if !self.nodes[at].ring_inbox.is_empty() && self.spend() {
                    idle = false;
                    self.ring_deliver(at);
                }
                if idle && self.nodes[at].hib.owes_acknowledgements() {
                    idle = false;
                    self.end_turn(at);
                }
            }
        }
    }

    /// The oldest packet comes, and its sender's credit returns.
    fn deliver(&mut self, at: Index) {
        let Some(packet) = self.nodes[at].inbox.pop_front() else { return };
        let (class, own) = (packet.class(), packet.src == self.nodes[at].hib.config().node);
        self.event(at, Event::Packet(packet));
        self.event(if own { at } else { 1 - at }, Event::Credit { class, count: 1 });
    }

    fn perform(&mut self, at: Index, step: StepId) {
        let Some(op) = self.nodes[at].steps.remove(&step) else { return };
        let result = self.nodes[at].memory.perform(&op);
        self.event(at, Event::StepDone { step, result });
    }

    fn event(&mut self, at: Index, event: Event) {
        let mut actions = Vec::new();
        self.nodes[at].hib.handle(event, &mut actions);
        self.act(at, actions);
    }

    /// The board gets the stores that its guest has posted one after the other.
    fn pass_stores(&mut self) {
        let mut actions = Vec::new();
        self.nodes[self.posting].hib.stores(&std::mem::take(&mut self.posted), &mut actions);
        self.act(self.posting, actions);
    }

    /// The board's server has served all that it had.
    fn end_turn(&mut self, at: Index) {
        let mut actions = Vec::new();
        self.nodes[at].hib.end_turn(&mut actions);
        assert!(!self.nodes[at].hib.owes_acknowledgements(), "something is not acknowledged at the end of its turn");
        self.act(at, actions);
    }

    fn act(&mut self, at: Index, actions: Vec<Action>) {
        for action in actions {
            let node = &mut self.nodes[at];
            match action {
                Action::ReadDone { token, data: _ } => {
                    assert!(node.loads.remove(&token).is_some(), "load {token} is answered twice");
                }
                Action::Send(mut packet) => {
                    assert!(node.linked, "{packet:?} is sent without a link");
                    check_packet(&packet);
                    let other = &mut self.nodes[1 - at];
                    if packet.dst == MULTICAST {
                        // The switch's copy.
                        (packet.dst, packet.target) = (other.hib.config().node, other.hib.incarnation());
                    }
                    if packet.dst == other.hib.config().node {
                        other.inbox.push_back(packet);
                    } else if packet.dst == packet.src {
                        self.nodes[at].inbox.push_back(packet);
                    }
                }
                Action::Step { step, op } => {
                    assert!(node.steps.insert(step, op).is_none(), "step {step} is requested twice");
                }
                Action::Continue => {
                    assert!(!node.turn, "a turn is requested twice");
                    node.turn = true;
                }
                Action::AnnounceReset { incarnation } => {
                    node.ring = false;
                    let node = node.hib.config().node;
                    self.event(1 - at, Event::NodeUp { node, incarnation, block: STREAM_BLOCK as u32 });
                }
                Action::SendLent(lent) | Action::RingSendLent(lent) => assert_eq!(Some(lent), None, "nothing is lent"),
                Action::RingSend(packet) => {
                    assert!(node.ring && packet.dst != packet.src, "{packet:?} is sent without a ring");
                    check_packet(&packet);
                    self.nodes[1 - at].ring_inbox.push_back(RingFrame::Packet(packet));
                }
                Action::Ring { what, .. } => {
                    let frame = match what {
                        RingAction::Credit { class, count } => RingFrame::Credit { class, count },
                        RingAction::Probe => RingFrame::Probe,
                        RingAction::Unused { .. } => continue,
                        RingAction::Close(_) => {
                            node.ring = false;
                            continue;
                        }
                    };
                    assert!(node.ring, "{frame:?} is sent without a ring");
                    self.nodes[1 - at].ring_inbox.push_back(frame);
                }
                Action::Credit { .. }
                | Action::Group { .. }
                | Action::Recall { .. }
                | Action::Interrupt
                | Action::ResetDone
                | Action::Notice(_) => {}
            }
        }
    }
}

/// What a board sends is a packet.
fn check_packet(packet: &Packet) {
    let mut bytes = Vec::new();
    packet.encode(&mut bytes);
    assert_eq!(Packet::decode(&bytes).as_ref(), Ok(packet));
}

/// A script for two boards: any sequence of accesses, packets and other events. Each load is answered once and in time,
/// a step and a turn are requested once, and what is sent is a packet.
pub fn hib(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new(input.u8());
    for _ in 0..OPERATIONS {
        if input.is_empty() {
            break;
        }
        let (at, op) = Op::decode(&mut input);
        world.apply(at, op);
    }
    // Whatever was begun comes to an end.
    world.run();
    for at in 0..2 {
        world.pass(at, 2 * LOAD_LIMIT);
    }
}
