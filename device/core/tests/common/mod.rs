// SPDX-License-Identifier: MIT OR Apache-2.0
//! A cluster of real cores over an ideal network, driven one step at a time by a seeded schedule.
//!
//! Packets of one pair and class stay in order, everything else may happen in any order: guest-memory steps of
//! different nodes and purposes complete when the schedule chooses them.

pub(crate) mod loans;
pub(crate) mod queues;
pub(crate) mod replicas;
pub(crate) mod rings;

use std::collections::{BTreeMap, VecDeque};
use telegraphos_device_core::{Action, Bar, Bug, Event, Hib, HibConfig, Notice, Piece, Step, StepId, StepResult};
use telegraphos_fabric_core::{Action as SwitchAction, Event as SwitchEvent, Switch, SwitchConfig, UNLIMITED};
pub(crate) use telegraphos_testkit::{Rng, finds, over_seeds, over_seeds_on_all_processors};
use telegraphos_wire::admin::{self, Command, Completion, QueueCommand};
use telegraphos_wire::context::{Argument, Launch, Operation};
use telegraphos_wire::link::Frame;
use telegraphos_wire::queue::Shape;
use telegraphos_wire::regs::Register;
use telegraphos_wire::{
    Aperture, AtomicOp, Block, Body, Class, MAX_BLOCK, Packet, Rights, STREAM_BLOCK, Status, UNIT, WindowAddress,
    WindowLayout, context,
};

pub(crate) const RAM: usize = 2 << 20;
pub(crate) const ADMIN: u64 = 0x1_0000;
pub(crate) const EVENTS: u64 = 0x2_0000;
pub(crate) const STATUS_PAGES: u64 = 0x3_0000;
/// Entries of the event ring.
const RING: u32 = 64;
/// Everything but remote enqueue.
pub(crate) const ALL: Rights = Rights(23);
/// Address of export page p of a node.
pub(crate) const EXPORTS: u64 = 0x10_0000;

pub(crate) struct Node {
    pub(crate) hib: Hib,
    pub(crate) ram: Vec<u8>,
    pub(crate) loans: loans::Loans,
    steps: BTreeMap<StepId, Step>,
    pub(crate) reads: BTreeMap<u64, u64>,
    pub(crate) interrupts: u32,
    pub(crate) notices: Vec<Notice>,
    pub(crate) resets: u32,
    /// Stores performed into exported memory, in order: (address, value).
    pub(crate) performed: Vec<(u64, u64)>,
    /// Atomics performed, in order: (address, value before, value after).
    pub(crate) atomics: Vec<(u64, u64, u64)>,
    /// Words of exported memory as they change: (moment, address, value).
    pub(crate) history: Vec<(u64, u64, u64)>,
    /// Blocks stored, in order: (address, bytes).
    pub(crate) blocks: Vec<(u64, usize)>,
    /// Bytes of blocks that this node has copied, to or from its memory; what it lends is copied by another.
    pub(crate) moved: u64,
    next_token: u64,
    pub(crate) seq: u32,
    /// Events that the driver has taken from the ring since its start.
    taken_events: u32,
    pub(crate) sent: u64,
    /// A turn of its loop has begun, at the end of which it acknowledges something.
    in_turn: bool,
}

/// A change that a board has made to exported memory.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) node: u16,
    pub(crate) address: u64,
    pub(crate) bytes: Changed,
}

/// The bytes of a [`Change`].
#[derive(Clone, Debug)]
pub(crate) enum Changed {
    /// This many low bytes of this value, by a store or an atomic.
    Word(u8, u64),
    Block(Block),
}

/// (src, dst, class).
type Wire = (u16, u16, Class);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    Perform(u16, StepId),
    /// The next turn of a board's loop.
    Continue(u16),
    /// The end of a turn, if something was performed in it that is to be acknowledged: so a turn has any length.
    EndTurn(u16),
    Deliver(Wire),
    Ring(rings::Way),
    Up(u16),
    Down(u16),
}

/// Adds to a queue, which becomes a possible next event.
fn push<T>(queue: &mut VecDeque<T>, what: T, choice: Choice, ready: &mut Vec<Choice>) {
    if queue.is_empty() {
        ready.push(choice);
    }
    queue.push_back(what);
}

/// Takes from the queue with this index among the choices.
fn pull<T>(queue: &mut VecDeque<T>, at: usize, ready: &mut Vec<Choice>) -> T {
    let what = queue.pop_front().unwrap();
    if queue.is_empty() {
        ready.swap_remove(at);
    }
    what
}

/// The real switch and the byte streams to and from it, as queues of frames.
pub(crate) struct Fabric {
    pub(crate) switch: Switch,
    up: Vec<VecDeque<Frame>>,
    down: Vec<VecDeque<Frame>>,
}

pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    /// Packets in flight.
    wires: BTreeMap<Wire, VecDeque<Packet>>,
    pub(crate) fabric: Option<Fabric>,
    /// Rings between the boards, if there are any.
    pub(crate) rings: Option<rings::Rings>,
    /// The possible next events: each step of a node, and each wire and direction of a link that is not empty, once.
    ready: Vec<Choice>,
    /// Steps that are held until they are released.
    held: Vec<Choice>,
    /// Nodes to which the ideal network delivers nothing before [`Cluster::release`]; so the credits of packets for
    /// them are not returned.
    pub(crate) hanging: Vec<u16>,
    /// Changes to exported memory, in order; recorded only while this is `Some`.
    pub(crate) changes: Option<Vec<Change>>,
    pub(crate) rng: Rng,
    pub(crate) packets: u64,
    /// Acknowledgements of several requests among them.
    pub(crate) several: u64,
    cookies: u64,
    /// Bytes of the longest block between nodes. Where that is more than [`STREAM_BLOCK`] boards are as if they were in
    /// one process: they lend each other memory.
    pub(crate) block: usize,
    /// A hostile node's manipulation of packets on the ideal network.
    pub(crate) tamper: Option<fn(&mut Packet)>,
    /// Number of events so far.
    pub(crate) moment: u64,
}

impl Node {
    fn new(config: HibConfig) -> Node {
        Node {
            hib: Hib::new(config),
            ram: vec![0; RAM],
            loans: loans::Loans::default(),
            steps: BTreeMap::new(),
            reads: BTreeMap::new(),
            interrupts: 0,
            notices: Vec::new(),
            resets: 0,
            performed: Vec::new(),
            atomics: Vec::new(),
            history: Vec::new(),
            blocks: Vec::new(),
            moved: 0,
            next_token: 0,
            seq: 0,
            taken_events: 0,
            sent: 0,
            in_turn: false,
        }
    }
}

impl Cluster {
    fn power_on(n: u16, seed: u64, adjust: impl Fn(&mut HibConfig)) -> Cluster {
        let config = |id| {
            let mut config = HibConfig::new(id);
            config.window = WindowLayout::new(3, 20).unwrap();
            adjust(&mut config);
            config
        };
        Cluster {
            nodes: (0..n).map(|id| Node::new(config(id))).collect(),
            wires: BTreeMap::new(),
            fabric: None,
            rings: None,
            ready: Vec::new(),
            held: Vec::new(),
            hanging: Vec::new(),
            changes: None,
            rng: Rng::new(seed),
            packets: 0,
            several: 0,
            cookies: 1 << 40,
            // With every other seed as if they were linked in memory.
            block: [STREAM_BLOCK, MAX_BLOCK][seed as usize % 2],
            tamper: None,
            moment: 0,
        }
    }

    /// Boards over an ideal network, all joined and started. It has no switch to copy multicasts.
    pub(crate) fn new(n: u16, seed: u64, adjust: impl Fn(&mut HibConfig)) -> Cluster {
        let mut cluster = Cluster::power_on(n, seed, |config| {
            config.fanout_by_switch = false;
            adjust(config);
        });
        for id in 0..n {
            let credits = cluster.nodes[usize::from(id)].hib.config().offered();
            cluster.event(id, Event::LinkUp { incarnation: 0x1000, nodes: u32::from(n), credits });
            let block = cluster.block as u32;
            for node in 0..n {
                cluster.event(id, Event::NodeUp { node, incarnation: 0x1000, block });
            }
            cluster.start(id);
        }
        cluster
    }

    /// Three boards with small windows over an ideal network. Each exports two pages as "seg" with these rights and has
    /// imported those of all, its own included, as import = node.
    pub(crate) fn of_three(seed: u64, rights: Rights, bug: Option<Bug>) -> Cluster {
        let mut cluster = Cluster::new(3, seed, |config| {
            config.bug = bug;
            config.outstanding = 4;
            config.credits = [8; 4];
        });
        for id in 0..3 {
            cluster.export(id, "seg", 0, 2, rights);
        }
        for id in 0..3u16 {
            for other in 0..3u16 {
                cluster.import(id, other, "seg", other, 0);
            }
        }
        cluster
    }

    /// Boards and the real switch, all joined and started.
    pub(crate) fn switched(n: u16, seed: u64, adjust: impl Fn(&mut HibConfig)) -> Cluster {
        Cluster::over_switch(n, seed, None, adjust)
    }

    /// The same over a switch with a deliberate bug.
    pub(crate) fn over_switch(
        n: u16,
        seed: u64,
        bug: Option<telegraphos_fabric_core::Bug>,
        adjust: impl Fn(&mut HibConfig),
    ) -> Cluster {
        let mut cluster = Cluster::power_on(n, seed, adjust);
        let mut config = SwitchConfig::new(u32::from(n));
        config.credits = cluster.nodes[0].hib.config().credits;
        config.bug = bug;
        cluster.fabric = Some(Fabric {
            switch: Switch::new(config).unwrap(),
            up: vec![VecDeque::new(); usize::from(n)],
            down: vec![VecDeque::new(); usize::from(n)],
        });
        for id in 0..n {
            cluster.connect(id);
        }
        cluster.settle();
        for id in 0..n {
            cluster.start(id);
        }
        cluster
    }

    fn switch_event(&mut self, event: SwitchEvent) {
        let Some(fabric) = &mut self.fabric else { return };
        let mut out = Vec::new();
        let (mut disconnected, mut notices) = (None, Vec::new());
        fabric.switch.handle(event, &mut out);
        for action in out {
            match action {
                SwitchAction::Send(port, frame) => {
                    if let (Some(rings), Frame::NodeUp { node, incarnation, .. }) = (&mut self.rings, &frame) {
                        rings.pairs.notified(port as u16, *node, *incarnation);
                    }
                    push(&mut fabric.down[port as usize], frame, Choice::Down(port as u16), &mut self.ready);
                }
                // These boards never break the protocol.
                SwitchAction::Close(port) => disconnected = Some(port),
                SwitchAction::Diagnostic(notice) => notices.push(notice.to_string()),
            }
        }
        assert!(disconnected.is_none(), "the switch disconnected node {disconnected:?}: {notices:?}");
        self.tend_rings();
    }

    /// A node stops or resumes reading its socket.
    pub(crate) fn listens(&mut self, id: u16, yes: bool) {
        let frames = if yes { UNLIMITED } else { 0 };
        self.switch_event(SwitchEvent::PortRoom { port: u32::from(id), frames });
    }

    /// A node's link comes up.
    pub(crate) fn connect(&mut self, id: u16) {
        let block = self.block as u32;
        self.switch_event(SwitchEvent::PortOpened { port: u32::from(id), room: UNLIMITED, block });
        let config = self.nodes[usize::from(id)].hib.config();
        let hello = Frame::Hello {
            version: telegraphos_wire::PROTOCOL_VERSION,
            node: id,
            window: config.window,
            credits: config.offered(),
        };
        self.up(id, hello);
    }

    /// A node's link breaks: frames in flight on it are lost.
    pub(crate) fn disconnect(&mut self, id: u16) {
        if let Some(fabric) = &mut self.fabric {
            fabric.up[usize::from(id)].clear();
            fabric.down[usize::from(id)].clear();
            self.ready.retain(|choice| *choice != Choice::Up(id) && *choice != Choice::Down(id));
        }
        self.cut_rings_of(id);
        self.switch_event(SwitchEvent::PortClosed { port: u32::from(id) });
        self.event(id, Event::LinkDown);
    }

    /// The HIB process and its guest die; a new one starts under the same node id, not yet connected.
    pub(crate) fn replace(&mut self, id: u16) {
        self.disconnect(id);
        self.release();
        let of_old = |choice: &Choice| match choice {
            Choice::Perform(node, _) | Choice::Continue(node) | Choice::EndTurn(node) => *node == id,
            _ => false,
        };
        self.ready.retain(|choice| !of_old(choice));
        let node = &mut self.nodes[usize::from(id)];
        node.loans.recall(&node.ram, 0, u64::MAX);
        let performed = std::mem::take(&mut node.performed);
        let atomics = std::mem::take(&mut node.atomics);
        let blocks = std::mem::take(&mut node.blocks);
        let history = std::mem::take(&mut node.history);
        *node = Node { performed, atomics, blocks, history, ..Node::new(node.hib.config().clone()) };
    }

    fn up(&mut self, id: u16, frame: Frame) {
        if let Some(fabric) = &mut self.fabric {
            push(&mut fabric.up[usize::from(id)], frame, Choice::Up(id), &mut self.ready);
        }
    }

    fn arrive(&mut self, id: u16, frame: Frame) {
        if let Frame::Ring { .. } = frame {
            return self.open_ring(id, &frame);
        }
        let event = Event::try_from(frame).unwrap_or_else(|frame| panic!("node {id} was sent {frame:?}"));
        self.event(id, event);
    }

    pub(crate) fn start(&mut self, id: u16) {
        self.event(id, Event::BusMaster(true));
        self.register(id, Register::AdminBase, ADMIN);
        self.register(id, Register::EventBase, EVENTS);
        self.register(id, Register::EventSize, RING.into());
        self.nodes[usize::from(id)].taken_events = 0;
        self.register(id, Register::Control, 1);
        self.open_context(id, 0);
    }

    /// Opens a context with the key and the status page of its number.
    pub(crate) fn open_context(&mut self, id: u16, context: u16) {
        let address = status_page(context);
        let open =
            Command { opcode: admin::CONTEXT_OPEN, context, address, key: key_of(context), ..Command::default() };
        assert_eq!(self.admin(id, open).status, 0);
    }

    // ---- operations ----

    /// A store to the argument aperture at `address` of the plain one.
    pub(crate) fn argument_at(&mut self, id: u16, address: u64, argument: Argument) {
        let layout = self.nodes[0].hib.config().window;
        let mut parts = layout.decode(address);
        parts.aperture = Aperture::Argument;
        parts.offset &= !7;
        let offset = layout.encode(parts).unwrap();
        self.event(id, Event::Write { bar: Bar::Window, offset, size: 8, data: argument.encode() });
    }

    /// Passes `address` as argument `which` of slot `slot` of a context, with its key.
    pub(crate) fn argument(&mut self, id: u16, context: u16, slot: u8, which: u8, address: u64) {
        let argument = Argument { context: context as u8, slot, which, key: key_of(context) };
        self.argument_at(id, address, argument);
    }

    /// Writes a launch register of a slot.
    pub(crate) fn slot_register(&mut self, id: u16, context: u16, slot: u8, register: u64, data: u64) {
        let page = u64::from(context) * UNIT + context::REGISTERS + u64::from(slot) * context::STRIDE;
        self.event(id, Event::Write { bar: Bar::Contexts, offset: page + register, size: 8, data });
    }

    /// The steps of an atomic's launch, as a process performs them one by one.
    pub(crate) fn atomic_steps(launch: Launch, operand: u64, compare: u64, address: u64) -> Vec<LaunchStep> {
        vec![
            LaunchStep::Argument(0, address),
            LaunchStep::Register(context::OPERAND, operand),
            LaunchStep::Register(context::COMPARE, compare),
            LaunchStep::Register(context::LENGTH, (address & 7) << 48),
            LaunchStep::Register(context::LAUNCH, launch.encode()),
        ]
    }

    /// The steps of a copy's launch.
    pub(crate) fn copy_steps(launch: Launch, to: u64, from: u64, length: u64) -> Vec<LaunchStep> {
        let low = (to & 7) << 48 | (from & 7) << 52;
        vec![
            LaunchStep::Argument(0, to),
            LaunchStep::Argument(1, from),
            LaunchStep::Register(context::LENGTH, length & ((1 << 48) - 1) | low),
            LaunchStep::Register(context::LAUNCH, launch.encode()),
        ]
    }

    pub(crate) fn launch_step(&mut self, id: u16, context: u16, slot: u8, step: LaunchStep) {
        match step {
            LaunchStep::Argument(which, address) => self.argument(id, context, slot, which, address),
            LaunchStep::Register(register, data) => self.slot_register(id, context, slot, register, data),
        }
    }

    /// Status and cookie of a context's slot.
    pub(crate) fn done(&self, id: u16, context: u16, slot: u8) -> (u16, u64) {
        let word = self.ram_u64(id, status_page(context) + 8 * u64::from(slot));
        ((word >> context::COOKIE_BITS) as u16, word & ((1 << context::COOKIE_BITS) - 1))
    }

    /// Runs until the operation with this cookie is done: its status and value.
    pub(crate) fn finish(&mut self, id: u16, context: u16, slot: u8, cookie: u64) -> (Status, u64) {
        for _ in 0..1_000_000 {
            let (status, found) = self.done(id, context, slot);
            if found == cookie {
                let value = self.ram_u64(id, status_page(context) + context::VALUE_OFFSET + 8 * u64::from(slot));
                return (Status::from_u16(status), value);
            }
            assert!(self.step(), "operation {cookie} never completes");
        }
        panic!("operation {cookie} never completes");
    }

    /// An atomic of context 0 from beginning to end, in slot 1.
    pub(crate) fn atomic(
        &mut self,
        id: u16,
        op: AtomicOp,
        size: u8,
        address: u64,
        operand: u64,
        compare: u64,
    ) -> (Status, u64) {
        let cookie = self.cookie();
        let launch = Launch { operation: Operation::Atomic { op, size }, notify: false, cookie };
        for step in Cluster::atomic_steps(launch, operand, compare, address) {
            self.launch_step(id, 0, 1, step);
        }
        self.finish(id, 0, 1, cookie)
    }

    /// A copy of context 0 from beginning to end, in slot 2.
    pub(crate) fn copy(&mut self, id: u16, to: u64, from: u64, length: u64) -> Status {
        let cookie = self.cookie();
        let launch = Launch { operation: Operation::Copy, notify: false, cookie };
        for step in Cluster::copy_steps(launch, to, from, length) {
            self.launch_step(id, 0, 2, step);
        }
        self.finish(id, 0, 2, cookie).0
    }

    pub(crate) fn cookie(&mut self) -> u64 {
        self.cookies += 1;
        self.cookies
    }

    /// Reads the new events from the ring, as the driver does.
    pub(crate) fn take_events(&mut self, id: u16) -> Vec<(u16, u16, u64)> {
        let mut events = Vec::new();
        loop {
            let taken = &mut self.nodes[usize::from(id)].taken_events;
            let (entry, next) = (EVENTS + u64::from(*taken & (RING - 1)) * 16, taken.wrapping_add(1));
            let word = self.ram_u64(id, entry + 8);
            if word >> 32 != u64::from(next) {
                break;
            }
            self.nodes[usize::from(id)].taken_events = next;
            events.push((word as u16, (word >> 16) as u16, self.ram_u64(id, entry)));
        }
        if !events.is_empty() {
            let taken = self.nodes[usize::from(id)].taken_events;
            self.register(id, Register::EventConsumer, taken.into());
        }
        events
    }

    /// Events in the ring of a node, by kind and index, with their values.
    pub(crate) fn events(&self, id: u16, count: u64) -> Vec<(u16, u16, u64)> {
        let entry = |n: u64| (self.ram_u64(id, EVENTS + 16 * n), self.ram_u64(id, EVENTS + 16 * n + 8));
        (0..count).map(entry).filter(|(_, w)| *w != 0).map(|(v, w)| (w as u16, (w >> 16) as u16, v)).collect()
    }

    pub(crate) fn event(&mut self, id: u16, event: Event) {
        let mut out = Vec::new();
        let node = &mut self.nodes[usize::from(id)];
        node.hib.handle(event, &mut out);
        if node.hib.owes_acknowledgements() && !std::mem::replace(&mut node.in_turn, true) {
            self.ready.push(Choice::EndTurn(id));
        }
        self.act(id, out);
    }

    /// Ends a turn of a board's loop.
    pub(crate) fn end_turn(&mut self, id: u16) {
        self.ready.retain(|choice| *choice != Choice::EndTurn(id));
        let mut out = Vec::new();
        let node = &mut self.nodes[usize::from(id)];
        node.in_turn = false;
        node.hib.end_turn(&mut out);
        assert!(!node.hib.owes_acknowledgements(), "node {id} does not acknowledge at the end of its turn");
        self.act(id, out);
    }

    fn act(&mut self, id: u16, out: Vec<Action>) {
        for action in out {
            let node = &mut self.nodes[usize::from(id)];
            match action {
                Action::ReadDone { token, data } => {
                    assert!(node.reads.insert(token, data).is_none(), "a read was answered twice");
                }
                Action::Send(packet) => {
                    self.packets += 1;
                    node.sent += 1;
                    self.several += u64::from(matches!(packet.body, Body::WriteAcks { .. }));
                    if self.fabric.is_some() {
                        self.up(id, Frame::Packet(packet));
                    } else {
                        let wire = (packet.src, packet.dst, packet.class());
                        push(self.wires.entry(wire).or_default(), packet, Choice::Deliver(wire), &mut self.ready);
                    }
                }
                Action::RingSend(packet) => {
                    self.packets += 1;
                    self.ring_send(packet.src, packet.dst, Frame::Packet(packet));
                }
                Action::Ring { peer, what } => self.ring_action(id, peer, what),
                Action::Step { step, op } => {
                    node.steps.insert(step, op);
                    self.ready.push(Choice::Perform(id, step));
                }
                Action::Continue => self.ready.push(Choice::Continue(id)),
                Action::Recall { address, length } => node.loans.recall(&node.ram, address, length),
                Action::Interrupt => node.interrupts += 1,
                Action::ResetDone => node.resets += 1,
                Action::Notice(notice) => node.notices.push(notice),
                // The ideal network returns credits on delivery.
                Action::Credit { class, count } => self.up(id, Frame::Credit { class, count }),
                Action::AnnounceReset { incarnation } => {
                    self.close_rings_of(id);
                    self.up(id, Frame::Reset { incarnation });
                }
                Action::Group { page, members } => {
                    assert!(self.fabric.is_some(), "node {id} names a group, and there is no switch");
                    self.up(id, Frame::Group { page, members });
                }
            }
        }
    }

    pub(crate) fn register(&mut self, id: u16, register: Register, data: u64) {
        let event =
            Event::Write { bar: Bar::Control, offset: register.offset(), size: u32::from(register.size()), data };
        self.event(id, event);
    }

    pub(crate) fn ram_u64(&self, id: u16, address: u64) -> u64 {
        let at = address as usize;
        u64::from_le_bytes(self.nodes[usize::from(id)].ram[at..at + 8].try_into().unwrap())
    }

    fn perform(&mut self, id: u16, step: StepId) {
        let moment = self.moment;
        let op = self.nodes[usize::from(id)].steps.remove(&step).unwrap();
        let (op, pieces) = op.apart();
        let filled = self.fill(id, &op, &pieces);
        let (op, there) = self.with_bytes(id, op);
        let node = &mut self.nodes[usize::from(id)];
        let (mut changed, bytes) = (None, node.ram.len());
        let span = |address: u64, size: usize| {
            let at = address as usize;
            (at + size <= bytes).then_some(at..at + size)
        };
        let whole = |pieces: &[Piece]| pieces.iter().all(|piece| loans::span(piece).end <= bytes);
        let result = match op {
            _ if filled.is_some() => filled.unwrap(),
            Step::Load { address, size } => match span(address, usize::from(size)) {
                Some(range) => {
                    let mut bytes = [0; 8];
                    bytes[..usize::from(size)].copy_from_slice(&node.ram[range]);
                    StepResult::Loaded(u64::from_le_bytes(bytes))
                }
                None => StepResult::Failed(Status::MemoryFault),
            },
            Step::Store { address, size, data } => match span(address, usize::from(size)) {
                Some(range) => {
                    node.ram[range].copy_from_slice(&data.to_le_bytes()[..usize::from(size)]);
                    changed = Some((address, Changed::Word(size, data)));
                    if address >= EXPORTS {
                        node.performed.push((address, data));
                        node.history.push((moment, address, data));
                    }
                    StepResult::Stored
                }
                None => StepResult::Failed(Status::MemoryFault),
            },
            Step::Atomic { address, size, op, operand, compare } => match span(address, usize::from(size)) {
                Some(range) => {
                    let mut bytes = [0; 8];
                    bytes[..usize::from(size)].copy_from_slice(&node.ram[range.clone()]);
                    let old = u64::from_le_bytes(bytes);
                    let new = op.apply(size, old, operand, compare);
                    node.ram[range].copy_from_slice(&new.to_le_bytes()[..usize::from(size)]);
                    node.atomics.push((address, old, new));
                    changed = Some((address, Changed::Word(size, new)));
                    if new != old {
                        node.history.push((moment, address, new));
                    }
                    StepResult::Loaded(old)
                }
                None => StepResult::Failed(Status::MemoryFault),
            },
            Step::Lend { address, length } => {
                let pieces = Piece::of(address, length as usize, &pieces);
                if whole(&pieces) {
                    StepResult::Lent(Some(node.loans.lend(id, &pieces)))
                } else {
                    StepResult::Failed(Status::MemoryFault)
                }
            }
            Step::LoadBlock { address, length, lend, .. } => {
                let pieces = Piece::of(address, length as usize, &pieces);
                if !whole(&pieces) {
                    StepResult::Failed(Status::MemoryFault)
                } else if lend {
                    StepResult::Block(Block::Lent(node.loans.lend(id, &pieces)))
                } else {
                    node.moved += u64::from(length);
                    let bytes: Vec<u8> = pieces.iter().flat_map(|p| &node.ram[loans::span(p)]).copied().collect();
                    StepResult::Block(bytes.into())
                }
            }
            Step::StoreBlock { address, data } => {
                let pieces = Piece::of(address, data.len(), &pieces);
                if whole(&pieces) {
                    loans::place(&mut node.ram, &pieces, &data.bytes());
                    node.blocks.push((address, data.len()));
                    node.moved += if there { 0 } else { data.len() as u64 };
                    changed = (pieces.len() == 1).then_some((address, Changed::Block(data)));
                    StepResult::Stored
                } else {
                    StepResult::Failed(Status::MemoryFault)
                }
            }
            Step::Pieces { .. } => panic!("pieces of pieces"),
            Step::LoadCommand { address } => match span(address, size_of::<Command>()) {
                Some(range) => StepResult::Command(bytemuck::pod_read_unaligned(&node.ram[range])),
                None => StepResult::Failed(Status::MemoryFault),
            },
        };
        if let (Some(changes), Some((address, bytes))) = (&mut self.changes, changed) {
            if address >= EXPORTS {
                changes.push(Change { node: id, address, bytes });
            }
        }
        self.event(id, Event::StepDone { step, result });
    }

    /// Performs one possible event, chosen by the seed; false if there are none.
    pub(crate) fn step(&mut self) -> bool {
        if self.ready.is_empty() {
            return false;
        }
        if self.rings.as_ref().is_some_and(|rings| rings.restless) && self.rng.below(400) == 0 {
            let node = self.rng.below(self.nodes.len()) as u16;
            self.observe(&[node][..usize::from(node % 2)]);
        }
        let at = self.rng.below(self.ready.len());
        self.take(at);
        true
    }

    /// Performs one possible event.
    fn take(&mut self, at: usize) {
        let choice = self.ready[at];
        let hangs = match choice {
            Choice::Deliver((_, dst, _)) => self.hanging.contains(&dst),
            Choice::Ring(way) => self.hanging.contains(&way.to),
            _ => false,
        };
        if hangs {
            self.held.push(self.ready.swap_remove(at));
            return;
        }
        self.choose(at);
    }

    /// Performs the possible event with this index.
    fn choose(&mut self, at: usize) {
        self.moment += 1;
        match self.ready[at] {
            Choice::Perform(id, step) => {
                self.ready.swap_remove(at);
                self.perform(id, step);
            }
            Choice::Continue(id) => {
                self.ready.swap_remove(at);
                self.event(id, Event::Continue);
            }
            Choice::EndTurn(id) => self.end_turn(id),
            Choice::Up(id) => {
                let fabric = self.fabric.as_mut().unwrap();
                let frame = pull(&mut fabric.up[usize::from(id)], at, &mut self.ready);
                match frame {
                    Frame::RingUse { node, incarnation, .. } => self.ring_unused(id, node, incarnation),
                    Frame::RingLost { node, incarnation } => self.ring_lost(id, node, incarnation),
                    frame => self.switch_event(SwitchEvent::Frame { port: u32::from(id), frame }),
                }
            }
            Choice::Down(id) => {
                let fabric = self.fabric.as_mut().unwrap();
                let frame = pull(&mut fabric.down[usize::from(id)], at, &mut self.ready);
                self.arrive(id, frame);
            }
            Choice::Ring(way) => self.ring_step(way, at),
            Choice::Deliver(wire) => {
                let mut packet = pull(self.wires.get_mut(&wire).unwrap(), at, &mut self.ready);
                if let Some(tamper) = self.tamper {
                    tamper(&mut packet);
                }
                if packet.class() != Class::Reply {
                    self.event(packet.src, Event::Credit { class: packet.class(), count: 1 });
                }
                self.event(packet.dst, Event::Packet(packet));
            }
        }
    }

    /// A node is given all packets for it and performs all its steps, in one turn of its loop. Returns how many packets
    /// it sends in that.
    pub(crate) fn one_turn(&mut self, id: u16) -> u64 {
        let before = self.nodes[usize::from(id)].sent;
        let of_node = |choice: &Choice| match choice {
            Choice::Perform(node, _) => *node == id,
            Choice::Deliver((_, dst, _)) => *dst == id,
            _ => false,
        };
        while let Some(at) = self.ready.iter().position(of_node) {
            self.choose(at);
        }
        self.end_turn(id);
        self.nodes[usize::from(id)].sent - before
    }

    /// A turn of a loop that serves all boards, as a host's, up to the copies that wait for a turn.
    pub(crate) fn serve_all(&mut self) {
        // Steps first: a server performs them at once.
        let order = |choice: &Choice| match *choice {
            Choice::Perform(_, step) => (0, step),
            Choice::Continue(_) => (2, 0),
            _ => (1, 0),
        };
        loop {
            let next = self.ready.iter().enumerate().min_by_key(|(_, choice)| order(choice));
            match next {
                Some((at, choice)) if !matches!(choice, Choice::Continue(_)) => self.take(at),
                _ => return,
            }
        }
    }

    /// The end of that turn: the copies of the next board behind `last` that wait, if there is one. Returns that board.
    pub(crate) fn copy_slice(&mut self, last: u16) -> Option<u16> {
        let nodes = self.nodes.len() as u16;
        let id = (1..=nodes).map(|n| (last + n) % nodes).find(|id| self.asks_for_a_turn(*id))?;
        self.at_once(id, Event::Continue);
        Some(id)
    }

    /// Passes an event to a node and performs its steps at once, as a server does. Returns the number of blocks stored.
    pub(crate) fn at_once(&mut self, id: u16, event: Event) -> usize {
        let before = self.nodes[usize::from(id)].blocks.len();
        self.event(id, event);
        let of_node = |choice: &Choice| matches!(choice, Choice::Perform(node, _) if *node == id);
        while let Some(at) = self.ready.iter().position(of_node) {
            if let Choice::Perform(_, step) = self.ready.swap_remove(at) {
                self.perform(id, step);
            }
        }
        self.nodes[usize::from(id)].blocks.len() - before
    }

    /// Cancels a node's request for another turn of its server's loop. Returns whether there was one.
    pub(crate) fn asks_for_a_turn(&mut self, id: u16) -> bool {
        let before = self.ready.len();
        self.ready.retain(|choice| *choice != Choice::Continue(id));
        self.ready.len() < before
    }

    /// Steps of a node in flight.
    pub(crate) fn steps(&self, id: u16) -> usize {
        self.nodes[usize::from(id)].steps.len()
    }

    /// Begins a load of FETCH.
    pub(crate) fn start_fetch(&mut self, id: u16, context: u16, slot: u8, size: u32) -> u64 {
        let node = &mut self.nodes[usize::from(id)];
        node.next_token += 1;
        let token = node.next_token;
        let offset = u64::from(context) * UNIT + context::FETCH + 8 * u64::from(slot);
        self.event(id, Event::Read { token, bar: Bar::Contexts, offset, size });
        token
    }

    /// Runs until a load is answered.
    pub(crate) fn finish_load(&mut self, id: u16, token: u64) -> u64 {
        for _ in 0..1_000_000 {
            if let Some(data) = self.nodes[usize::from(id)].reads.remove(&token) {
                return data;
            }
            assert!(self.step(), "a load is never answered");
        }
        panic!("a load is never answered");
    }

    /// An atomic by a load, from beginning to end.
    pub(crate) fn fetch(&mut self, id: u16, op: AtomicOp, size: u32, address: u64, operand: u64, compare: u64) -> u64 {
        for step in Cluster::fetch_steps(op, operand, compare, address) {
            self.launch_step(id, 0, 1, step);
        }
        let token = self.start_fetch(id, 0, 1, size);
        self.finish_load(id, token)
    }

    /// The stores before a load of FETCH.
    pub(crate) fn fetch_steps(op: AtomicOp, operand: u64, compare: u64, address: u64) -> Vec<LaunchStep> {
        vec![
            LaunchStep::Argument(0, address),
            LaunchStep::Register(context::OPERAND, operand),
            LaunchStep::Register(context::COMPARE, compare),
            LaunchStep::Register(context::LENGTH, (address & 7) << 48 | (op as u64) << 56),
        ]
    }

    /// Holds those steps of a node that are in flight and match; returns their number.
    pub(crate) fn hold(&mut self, id: u16, meant: impl Fn(&Step) -> bool) -> usize {
        let steps = &self.nodes[usize::from(id)].steps;
        let is_meant = |choice: &Choice| match choice {
            Choice::Perform(node, step) => *node == id && steps.get(step).is_some_and(&meant),
            _ => false,
        };
        let (held, ready): (Vec<Choice>, Vec<Choice>) = self.ready.drain(..).partition(is_meant);
        self.ready = ready;
        self.held.extend(&held);
        held.len()
    }

    /// Runs until such a step is in flight, and holds it.
    pub(crate) fn hold_next(&mut self, id: u16, meant: impl Fn(&Step) -> bool) {
        while self.hold(id, &meant) == 0 {
            assert!(self.step(), "there is no such step of node {id}");
        }
    }

    /// Requests of one node that are on the ideal network to another.
    pub(crate) fn requests_between(&self, from: u16, to: u16) -> usize {
        self.wires.get(&(from, to, Class::Request)).map_or(0, VecDeque::len)
    }

    /// Delivers the oldest of them, to a node that [hangs](Cluster::hanging).
    pub(crate) fn deliver_one(&mut self, from: u16, to: u16) {
        let wire = Choice::Deliver((from, to, Class::Request));
        let at = self.held.iter().position(|held| *held == wire).unwrap();
        let held = self.held.swap_remove(at);
        self.ready.push(held);
        self.choose(self.ready.len() - 1);
    }

    /// Releases held steps.
    pub(crate) fn release(&mut self) {
        self.hanging.clear();
        self.ready.append(&mut self.held);
    }

    /// Drops the packets on the ideal network from or to a node.
    pub(crate) fn lose_packets_of(&mut self, id: u16) {
        self.wires.retain(|(src, dst, _), _| *src != id && *dst != id);
        let lost = |(src, dst, _): Wire| src == id || dst == id;
        self.ready.retain(|choice| !matches!(choice, Choice::Deliver(wire) if lost(*wire)));
    }

    /// Drops all packets on the ideal network.
    pub(crate) fn lose_packets(&mut self) {
        self.wires.clear();
        self.ready.retain(|choice| !matches!(choice, Choice::Deliver(_)));
    }

    pub(crate) fn settle(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the cluster never comes to rest");
    }

    /// Posts a command without waiting; returns its slot.
    pub(crate) fn post(&mut self, id: u16, mut command: Command) -> u32 {
        let node = &mut self.nodes[usize::from(id)];
        node.seq += 1;
        command.seq = node.seq;
        // The driver may use fewer than all slots.
        let slot = node.seq % 64;
        let at = ADMIN as usize + slot as usize * admin::BLOCK_SIZE;
        node.ram[at..at + size_of::<Command>()].copy_from_slice(bytemuck::bytes_of(&command));
        self.register(id, Register::AdminDoorbell, u64::from(slot));
        slot
    }

    /// The number of a node's last command.
    pub(crate) fn last_command(&self, id: u16) -> u32 {
        self.nodes[usize::from(id)].seq
    }

    pub(crate) fn completion(&self, id: u16, slot: u32) -> Completion {
        let at = ADMIN as usize + slot as usize * admin::BLOCK_SIZE + admin::COMPLETION_OFFSET;
        let node = &self.nodes[usize::from(id)];
        bytemuck::pod_read_unaligned(&node.ram[at..at + size_of::<Completion>()])
    }

    pub(crate) fn admin(&mut self, id: u16, command: Command) -> Completion {
        let slot = self.post(id, command);
        let seq = self.nodes[usize::from(id)].seq;
        for _ in 0..1_000_000 {
            let completion = self.completion(id, slot);
            if completion.seq == seq {
                return completion;
            }
            assert!(self.step(), "command {command:?} never completes");
        }
        panic!("command {command:?} never completes");
    }

    /// Grants export pages 0..count of a node and publishes them as `name`.
    pub(crate) fn export(&mut self, id: u16, name: &str, index: u32, count: u32, rights: Rights) -> u64 {
        let grant = Command {
            opcode: admin::GRANT_SET,
            index,
            count,
            address: EXPORTS + u64::from(index) * UNIT,
            length: u64::from(count) * UNIT,
            rights: rights.0,
            nodes: [u64::MAX; 4],
            ..Command::default()
        };
        let done = self.admin(id, grant);
        assert_eq!(done.status, 0);
        let publish = Command {
            opcode: admin::SEGMENT_PUBLISH,
            index,
            count,
            length: u64::from(count) * UNIT,
            generation: done.generation,
            rights_owner: rights.0,
            rights_others: rights.0,
            name: name64(name),
            ..Command::default()
        };
        assert_eq!(self.admin(id, publish).status, 0);
        done.generation
    }

    /// Makes export page `page` a queue of that shape, armed by context 0, published as `name`.
    pub(crate) fn make_queue(&mut self, id: u16, name: &str, page: u32, shape: Shape) {
        let empty = u64::from(shape.empty().encode());
        for word in [0, 1] {
            self.poke(id, page, word, shape.width(), empty);
        }
        let set = QueueCommand {
            opcode: admin::QUEUE_SET,
            page,
            words: shape.words().into(),
            width: shape.width().into(),
            address: EXPORTS + u64::from(page) * UNIT,
            nodes: [u64::MAX; 4],
            ..QueueCommand::default()
        };
        let done = self.admin(id, set.into());
        assert_eq!(done.status, 0);
        let publish = Command {
            opcode: admin::SEGMENT_PUBLISH,
            index: page,
            count: 1,
            length: shape.bytes(),
            generation: done.generation,
            rights_owner: Rights::ENQUEUE.0,
            rights_others: Rights::ENQUEUE.0,
            name: name64(name),
            ..Command::default()
        };
        assert_eq!(self.admin(id, publish).status, 0);
    }

    /// Word `word` of export page `page`, as the processor reads it.
    pub(crate) fn peek(&self, id: u16, page: u32, word: u64, width: u8) -> u64 {
        let at = (EXPORTS + u64::from(page) * UNIT + word * u64::from(width)) as usize;
        let mut bytes = [0; 8];
        bytes[..usize::from(width)].copy_from_slice(&self.nodes[usize::from(id)].ram[at..at + usize::from(width)]);
        u64::from_le_bytes(bytes)
    }

    /// The processor stores to word `word` of export page `page`.
    pub(crate) fn poke(&mut self, id: u16, page: u32, word: u64, width: u8, value: u64) {
        let at = (EXPORTS + u64::from(page) * UNIT + word * u64::from(width)) as usize;
        let bytes = &value.to_le_bytes()[..usize::from(width)];
        self.nodes[usize::from(id)].ram[at..at + usize::from(width)].copy_from_slice(bytes);
    }

    /// A store to the enqueue aperture.
    pub(crate) fn enqueue(&mut self, id: u16, node: u16, index: u32, width: u32, value: u64) {
        let offset = self.aperture(Aperture::Enqueue, node, index, 0);
        self.event(id, Event::Write { bar: Bar::Window, offset, size: width, data: value });
    }

    pub(crate) fn lookup(&mut self, id: u16, node: u16, name: &str) -> Completion {
        self.admin(id, Command { opcode: admin::LOOKUP, node, name: name64(name), ..Command::default() })
    }

    /// Looks a segment up and imports it as `import` at window slot `index`.
    pub(crate) fn import(&mut self, id: u16, node: u16, name: &str, import: u16, index: u32) {
        self.import_into(id, 0, node, name, import, index);
    }

    /// The same for any context.
    pub(crate) fn import_into(&mut self, id: u16, context: u16, node: u16, name: &str, import: u16, index: u32) {
        let set = Command { context, ..self.import_command(id, node, name, import, index) };
        assert_eq!(self.admin(id, set).status, 0, "import");
    }

    /// The command that imports a segment, which is looked up.
    pub(crate) fn import_command(&mut self, id: u16, node: u16, name: &str, import: u16, index: u32) -> Command {
        let found = self.lookup(id, node, name);
        assert_eq!(found.status, 0, "lookup");
        Command {
            opcode: admin::IMPORT_SET,
            import,
            node,
            index,
            count: found.count,
            page: found.index,
            generation: found.generation,
            length: found.length,
            rights: found.rights as u16,
            ..Command::default()
        }
    }

    pub(crate) fn address(&self, node: u16, index: u32, offset: u64) -> u64 {
        self.aperture(Aperture::Plain, node, index, offset)
    }

    pub(crate) fn aperture(&self, aperture: Aperture, node: u16, index: u32, offset: u64) -> u64 {
        let layout = self.nodes[0].hib.config().window;
        let offset = u64::from(index) * UNIT + offset;
        layout.encode(WindowAddress { aperture, node, offset }).unwrap()
    }

    pub(crate) fn store(&mut self, id: u16, address: u64, size: u32, data: u64) {
        self.event(id, Event::Write { bar: Bar::Window, offset: address, size, data });
    }

    pub(crate) fn start_load(&mut self, id: u16, address: u64, size: u32) -> u64 {
        let node = &mut self.nodes[usize::from(id)];
        node.next_token += 1;
        let token = node.next_token;
        self.event(id, Event::Read { token, bar: Bar::Window, offset: address, size });
        token
    }

    pub(crate) fn load(&mut self, id: u16, address: u64, size: u32) -> u64 {
        let token = self.start_load(id, address, size);
        for _ in 0..1_000_000 {
            if let Some(data) = self.nodes[usize::from(id)].reads.remove(&token) {
                return data;
            }
            assert!(self.step(), "a load is never answered");
        }
        panic!("a load is never answered");
    }

    pub(crate) fn start_quiet(&mut self, id: u16, slot: u64, scope: u64, cookie: u64) {
        let data = scope << context::COOKIE_BITS | cookie;
        self.event(id, Event::Write { bar: Bar::Contexts, offset: context::QUIET + 8 * slot, size: 8, data });
    }

    /// The (status, cookie) of a quiet slot.
    pub(crate) fn quiet_word(&self, id: u16, slot: u64) -> (u16, u64) {
        let word = self.ram_u64(id, STATUS_PAGES + 8 * slot);
        ((word >> context::COOKIE_BITS) as u16, word & ((1 << context::COOKIE_BITS) - 1))
    }

    pub(crate) fn quiet(&mut self, id: u16, scope: u64, cookie: u64) -> u16 {
        self.start_quiet(id, 0, scope, cookie);
        for _ in 0..1_000_000 {
            let (status, done) = self.quiet_word(id, 0);
            if done == cookie {
                return status;
            }
            assert!(self.step(), "quiet never completes");
        }
        panic!("quiet never completes");
    }
}

/// One store of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LaunchStep {
    /// Which argument, and the plain window address.
    Argument(u8, u64),
    /// Which register, and its data.
    Register(u64, u64),
}

/// The key of a context in these tests.
pub(crate) fn key_of(context: u16) -> u64 {
    0x5eed_0000_0001 + u64::from(context) * 0x1111
}

pub(crate) fn status_page(context: u16) -> u64 {
    STATUS_PAGES + u64::from(context) * context::STATUS_SIZE
}

pub(crate) fn name64(name: &str) -> [u8; 64] {
    let mut out = [0; 64];
    out[..name.len()].copy_from_slice(name.as_bytes());
    out
}
