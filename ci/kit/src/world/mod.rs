// SPDX-License-Identifier: MIT OR Apache-2.0
//! The world of boards: real cores with their guests' memory, over an ideal network or the real switch, driven one step
//! at a time by a seeded schedule.
//!
//! Packets of one pair and class stay in order, everything else may happen in any order: guest-memory steps of
//! different nodes and purposes complete when the schedule chooses them.
//!
//! | Part | What it has |
//! |---|---|
//! | `memory` | a guest's memory, and every [`Step`] in it: for all worlds |
//! | `commands`, `driver` | what a driver does with its board: for all worlds |
//! | `programs` | what processes do: loads and stores, operations, elements |
//! | `loans`, `rings` | memory that boards of a process lend, and rings between boards of a host |
//! | `queues` | the owner of a notification queue |
//!
//! Worlds of their own, over `memory` and `driver`: `ci/budgets` measures, and does what a server does and no more;
//! `ci/models` has states that are compared; `ci/fuzz/targets` breaks the rules; `lab/sim` has a time.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

pub mod commands;
mod driver;
pub mod loans;
mod memory;
pub mod programs;
pub mod queues;
pub mod rings;

pub use commands::name64;
pub use driver::{ADMIN, Driver, EVENTS, Kernel, key_of};
pub use memory::Memory;
pub use programs::{LaunchStep, atomic_steps, copy_steps, copying, fetch_steps, operating};

use crate::random::Rng;
use std::collections::{BTreeMap, VecDeque};
use telegraphos_device_core::{Action, Data, Event, Hib, HibConfig, LentPacket, Notice, Step, StepId, StepResult};
use telegraphos_fabric_core::{Action as SwitchAction, Event as SwitchEvent, Switch, SwitchConfig, UNLIMITED};
use telegraphos_wire::link::Frame;
use telegraphos_wire::regs::Register;
use telegraphos_wire::{
    Block, Body, BurstStore, Class, MAX_BLOCK, NodeId, Packet, Rights, STREAM_BLOCK, Status, UNIT, WindowLayout,
    context,
};

pub const RAM: usize = 2 << 20;
pub const STATUS_PAGES: u64 = 0x3_0000;
/// Everything but remote enqueue.
pub const ALL: Rights = Rights(23);
/// Address of export page p of a node.
pub const EXPORTS: u64 = 0x10_0000;

pub struct Node {
    pub hib: Hib,
    pub ram: Vec<u8>,
    pub loans: loans::Loans,
    steps: BTreeMap<StepId, Step>,
    /// Bursts that have begun: how many of their stores have been performed.
    bursts: BTreeMap<StepId, usize>,
    pub reads: BTreeMap<u64, u64>,
    pub interrupts: u32,
    pub notices: Vec<Notice>,
    pub resets: u32,
    /// Stores performed into exported memory, in order: (address, value).
    pub performed: Vec<(u64, u64)>,
    /// Words of exported memory as they change: (moment, address, value).
    pub history: Vec<(u64, u64, u64)>,
    /// Blocks stored, in order: (address, bytes).
    pub blocks: Vec<(u64, usize)>,
    /// Bytes of blocks that this node has copied, to or from its memory; what it lends is copied by another.
    pub moved: u64,
    next_token: u64,
    pub kernel: Kernel,
    pub sent: u64,
    /// A turn of its loop has begun, at the end of which it acknowledges something.
    in_turn: bool,
}

/// A change that a board has made to exported memory.
#[derive(Clone, Debug)]
pub struct Change {
    pub node: u16,
    pub address: u64,
    pub bytes: Changed,
}

/// The bytes of a [`Change`].
#[derive(Clone, Debug)]
pub enum Changed {
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
pub struct Fabric {
    pub switch: Switch,
    up: Vec<VecDeque<Frame>>,
    down: Vec<VecDeque<Frame>>,
}

pub struct Cluster {
    pub nodes: Vec<Node>,
    /// Packets in flight.
    wires: BTreeMap<Wire, VecDeque<Packet>>,
    pub fabric: Option<Fabric>,
    /// Rings between the boards, if there are any.
    pub rings: Option<rings::Rings>,
    /// The possible next events: each step of a node, and each wire and direction of a link that is not empty, once.
    ready: Vec<Choice>,
    /// Steps that are held until they are released.
    held: Vec<Choice>,
    /// Nodes to which the ideal network delivers nothing before [`Cluster::release`]; so the credits of packets for
    /// them are not returned.
    pub hanging: Vec<u16>,
    /// Changes to exported memory, in order; recorded only while this is `Some`.
    pub changes: Option<Vec<Change>>,
    pub rng: Rng,
    pub packets: u64,
    /// Acknowledgements of several requests among them.
    pub several: u64,
    /// Packets with the bytes of what was lent for a ring.
    pub unlent: u64,
    cookies: u64,
    /// Bytes of the longest block between nodes. Where that is more than [`STREAM_BLOCK`] boards are as if they were in
    /// one process: rings between them lend memory.
    pub block: usize,
    /// A hostile node's manipulation of packets on the ideal network.
    pub tamper: Option<fn(&mut Packet)>,
    /// Number of events so far.
    pub moment: u64,
}

impl Node {
    fn new(config: HibConfig) -> Node {
        Node {
            hib: Hib::new(config),
            ram: vec![0; RAM],
            loans: loans::Loans::default(),
            steps: BTreeMap::new(),
            bursts: BTreeMap::new(),
            reads: BTreeMap::new(),
            interrupts: 0,
            notices: Vec::new(),
            resets: 0,
            performed: Vec::new(),
            history: Vec::new(),
            blocks: Vec::new(),
            moved: 0,
            next_token: 0,
            kernel: Kernel::default(),
            sent: 0,
            in_turn: false,
        }
    }

    /// A block was stored; its bytes may have been there.
    fn stored(&mut self, address: u64, bytes: usize, there: bool) {
        self.blocks.push((address, bytes));
        self.moved += if there { 0 } else { bytes as u64 };
    }
}

impl Cluster {
    /// Boards over an ideal network that have not joined it.
    pub fn power_on(n: u16, seed: u64, adjust: impl Fn(&mut HibConfig)) -> Cluster {
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
            unlent: 0,
            cookies: 1 << 40,
            // With every other seed as if they were linked in memory.
            block: [STREAM_BLOCK, MAX_BLOCK][seed as usize % 2],
            tamper: None,
            moment: 0,
        }
    }

    /// Boards over an ideal network, all joined and started. It has no switch to copy multicasts.
    pub fn new(n: u16, seed: u64, adjust: impl Fn(&mut HibConfig)) -> Cluster {
        let mut cluster = Cluster::power_on(n, seed, |config| {
            config.fanout_by_switch = false;
            adjust(config);
        });
        for id in 0..n {
            let block = cluster.block as u32;
            cluster.join(id, 0x1000, block);
            cluster.start(id);
        }
        cluster
    }

    /// A board joins the ideal network, with all others there.
    pub fn join(&mut self, id: NodeId, incarnation: u64, block: u32) {
        let (n, credits) = (self.nodes.len() as NodeId, self.nodes[usize::from(id)].hib.config().offered());
        self.event(id, Event::LinkUp { incarnation, nodes: n.into(), credits });
        (0..n).for_each(|node| self.event(id, Event::NodeUp { node, incarnation, block }));
    }

    /// Each board exports so many pages as "seg" with these rights, and imports those of all, its own included, as
    /// import = node.
    pub fn share(&mut self, pages: u32, rights: Rights) {
        let n = self.nodes.len() as NodeId;
        (0..n).for_each(|id| _ = self.export(id, "seg", 0, pages, rights));
        for (id, other) in (0..n).flat_map(|id| (0..n).map(move |other| (id, other))) {
            self.import(id, other, "seg", other, 0);
        }
    }

    /// Boards and the real switch, all joined and started.
    pub fn switched(n: u16, seed: u64, adjust: impl Fn(&mut HibConfig)) -> Cluster {
        Cluster::over_switch(n, seed, |_| {}, adjust)
    }

    /// The same over a switch that is not as usual.
    pub fn over_switch(
        n: u16,
        seed: u64,
        switch: impl FnOnce(&mut SwitchConfig),
        adjust: impl Fn(&mut HibConfig),
    ) -> Cluster {
        let mut cluster = Cluster::power_on(n, seed, adjust);
        let mut config = SwitchConfig::new(u32::from(n));
        config.credits = cluster.nodes[0].hib.config().credits;
        switch(&mut config);
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
                        rings.pairs.notified(port as u16, *node, *incarnation, true);
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
    pub fn listens(&mut self, id: u16, yes: bool) {
        let frames = if yes { UNLIMITED } else { 0 };
        self.switch_event(SwitchEvent::PortRoom { port: u32::from(id), frames });
    }

    /// A node's link comes up.
    pub fn connect(&mut self, id: u16) {
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
    pub fn disconnect(&mut self, id: u16) {
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
    pub fn replace(&mut self, id: u16) {
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
        let blocks = std::mem::take(&mut node.blocks);
        let history = std::mem::take(&mut node.history);
        *node = Node { performed, blocks, history, ..Node::new(node.hib.config().clone()) };
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

    /// Ends a turn of a board's loop.
    pub fn end_turn(&mut self, id: u16) {
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
                Action::Send(packet) => self.send(id, packet),
                Action::SendLent(lent) => {
                    let LentPacket { mut packet, loan } = *lent;
                    let bytes = self.bytes_of(&loan);
                    // The process copies them.
                    self.nodes[usize::from(id)].moved += bytes.len() as u64;
                    self.unlent += 1;
                    packet.body.set_block(bytes.into());
                    self.send(id, packet);
                }
                Action::RingSend(packet) => {
                    self.packets += 1;
                    self.ring_send(packet.src, packet.dst, Frame::Packet(packet), None);
                }
                Action::RingSendLent(lent) => {
                    let LentPacket { packet, loan } = *lent;
                    self.packets += 1;
                    self.ring_send(packet.src, packet.dst, Frame::Packet(packet), Some(loan));
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

    /// A packet of a node takes the way by the switch.
    fn send(&mut self, id: u16, packet: Packet) {
        self.packets += 1;
        self.nodes[usize::from(id)].sent += 1;
        self.several += u64::from(matches!(packet.body, Body::WriteAcks { .. }));
        if self.fabric.is_some() {
            self.up(id, Frame::Packet(packet));
        } else {
            let wire = (packet.src, packet.dst, packet.class());
            push(self.wires.entry(wire).or_default(), packet, Choice::Deliver(wire), &mut self.ready);
        }
    }

    /// Whatever is passed to a board, and all that it does.
    fn with_board(&mut self, id: u16, pass: impl FnOnce(&mut Hib, &mut Vec<Action>)) {
        let mut out = Vec::new();
        let node = &mut self.nodes[usize::from(id)];
        pass(&mut node.hib, &mut out);
        if node.hib.owes_acknowledgements() && !std::mem::replace(&mut node.in_turn, true) {
            self.ready.push(Choice::EndTurn(id));
        }
        self.act(id, out);
    }

    fn perform(&mut self, id: u16, step: StepId) {
        let moment = self.moment;
        let op = self.nodes[usize::from(id)].steps.remove(&step).unwrap();
        // Anything may come between two stores of a burst.
        let (op, burst) = match op {
            Step::StoreBurst { base, stores } => {
                let done = self.nodes[usize::from(id)].bursts.remove(&step).unwrap_or(0);
                let BurstStore { offset, size, data } = stores[done];
                let address = base.wrapping_add(offset.into());
                (Step::Store { address, size, data }, Some((done, base, stores)))
            }
            op => (op, None),
        };
        if let Some(result) = self.fill(id, &op) {
            return self.event(id, Event::StepDone { step, result });
        }
        let (op, there) = self.with_bytes(id, op);
        let node = &mut self.nodes[usize::from(id)];
        let result = node.loans.lend(id, &node.ram, &op).unwrap_or_else(|| node.ram.perform(&op));
        let changed = match (&op, &result) {
            (Step::Store { address, size, data }, StepResult::Stored) => {
                if *address >= EXPORTS {
                    node.performed.push((*address, *data));
                    node.history.push((moment, *address, *data));
                }
                Some((*address, Changed::Word(*size, *data)))
            }
            (Step::Atomic { address, size, op, operand, compare }, StepResult::Loaded(old)) => {
                let new = op.apply(*size, *old, *operand, *compare);
                if new != *old {
                    node.history.push((moment, *address, new));
                }
                Some((*address, Changed::Word(*size, new)))
            }
            (_, StepResult::Block(Data::Bytes(block))) => {
                node.moved += block.len() as u64;
                None
            }
            (Step::StoreBlock { address, data: Data::Bytes(block) }, StepResult::Stored) => {
                node.stored(*address, block.len(), there);
                Some((*address, Changed::Block(block.clone())))
            }
            (Step::Pieces { step, .. }, StepResult::Stored) => {
                let Step::StoreBlock { address, data } = &**step else { panic!("{step:?} in pieces is stored") };
                node.stored(*address, data.length() as usize, there);
                None
            }
            _ => None,
        };
        if let (Some(changes), Some((address, bytes))) = (&mut self.changes, changed) {
            if address >= EXPORTS {
                changes.push(Change { node: id, address, bytes });
            }
        }
        let result = match (burst, result) {
            (Some((done, base, stores)), StepResult::Stored) if done + 1 < stores.len() => {
                let node = &mut self.nodes[usize::from(id)];
                node.bursts.insert(step, done + 1);
                node.steps.insert(step, Step::StoreBurst { base, stores });
                return self.ready.push(Choice::Perform(id, step));
            }
            (Some((stores, ..)), StepResult::Failed(status)) => StepResult::StoredPart { stores, status },
            (_, result) => result,
        };
        self.event(id, Event::StepDone { step, result });
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
    pub fn one_turn(&mut self, id: u16) -> u64 {
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
    pub fn serve_all(&mut self) {
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
    pub fn copy_slice(&mut self, last: u16) -> Option<u16> {
        let nodes = self.nodes.len() as u16;
        let id = (1..=nodes).map(|n| (last + n) % nodes).find(|id| self.asks_for_a_turn(*id))?;
        self.at_once(id, Event::Continue);
        Some(id)
    }

    /// Passes an event to a node and performs its steps at once, as a server does. Returns the number of blocks stored.
    pub fn at_once(&mut self, id: u16, event: Event) -> usize {
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

    /// An event of a board that is alone: its steps are performed at once, and all else that it does goes nowhere.
    /// Returns what it sends.
    pub fn alone(&mut self, id: u16, event: Event, mut looks: impl FnMut(&Step)) -> Vec<Packet> {
        let node = &mut self.nodes[usize::from(id)];
        let (mut events, mut sent) = (VecDeque::from([event]), Vec::new());
        while let Some(event) = events.pop_front() {
            let mut out = Vec::new();
            node.hib.handle(event, &mut out);
            for action in out {
                match action {
                    Action::Send(packet) => sent.push(packet),
                    Action::Step { step, op } => {
                        looks(&op);
                        events.push_back(Event::StepDone { step, result: node.ram.perform(&op) });
                    }
                    _ => {}
                }
            }
        }
        sent
    }

    /// Cancels a node's request for another turn of its server's loop. Returns whether there was one.
    pub fn asks_for_a_turn(&mut self, id: u16) -> bool {
        let before = self.ready.len();
        self.ready.retain(|choice| *choice != Choice::Continue(id));
        self.ready.len() < before
    }

    /// Steps of a node in flight.
    pub fn steps(&self, id: u16) -> usize {
        self.nodes[usize::from(id)].steps.len()
    }
    /// Holds those steps of a node that are in flight and match; returns their number.
    pub fn hold(&mut self, id: u16, meant: impl Fn(&Step) -> bool) -> usize {
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
    pub fn hold_next(&mut self, id: u16, meant: impl Fn(&Step) -> bool) {
        while self.hold(id, &meant) == 0 {
            assert!(self.step(), "there is no such step of node {id}");
        }
    }

    /// Requests of one node that are on the ideal network to another.
    pub fn requests_between(&self, from: u16, to: u16) -> usize {
        self.wires.get(&(from, to, Class::Request)).map_or(0, VecDeque::len)
    }

    /// Delivers the oldest of them, to a node that [hangs](Cluster::hanging).
    pub fn deliver_one(&mut self, from: u16, to: u16) {
        let wire = Choice::Deliver((from, to, Class::Request));
        let at = self.held.iter().position(|held| *held == wire).unwrap();
        let held = self.held.swap_remove(at);
        self.ready.push(held);
        self.choose(self.ready.len() - 1);
    }

    /// Releases held steps.
    pub fn release(&mut self) {
        self.hanging.clear();
        self.ready.append(&mut self.held);
    }

    /// The same, and all that follows.
    pub fn proceed(&mut self) {
        self.release();
        self.settle();
    }

    /// Drops the packets on the ideal network from or to a node.
    pub fn lose_packets_of(&mut self, id: u16) {
        self.wires.retain(|(src, dst, _), _| *src != id && *dst != id);
        let lost = |(src, dst, _): Wire| src == id || dst == id;
        self.ready.retain(|choice| !matches!(choice, Choice::Deliver(wire) if lost(*wire)));
    }

    /// Drops all packets on the ideal network.
    pub fn lose_packets(&mut self) {
        self.wires.clear();
        self.ready.retain(|choice| !matches!(choice, Choice::Deliver(_)));
    }

    pub fn settle(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the cluster never comes to rest");
    }

    /// The board of a node.
    pub fn hib(&self, id: NodeId) -> &Hib {
        &self.nodes[usize::from(id)].hib
    }

    /// The status that is latched on an import.
    pub fn latched(&self, id: NodeId, import: u16) -> Status {
        Status::from_u16((self.hib(id).import_state(import) >> 16) as u16)
    }

    /// The status that is latched in a board's ERROR.
    pub fn error(&self, id: NodeId) -> Status {
        Status::from_u16(self.hib(id).register(Register::Error) as u16)
    }

    /// The bytes of export pages.
    pub fn pages(&self, id: NodeId, first: u32, count: u32) -> &[u8] {
        &self.nodes[usize::from(id)].ram[range(first, count)]
    }

    pub fn pages_mut(&mut self, id: NodeId, first: u32, count: u32) -> &mut [u8] {
        &mut self.nodes[usize::from(id)].ram[range(first, count)]
    }

    /// Some steps, fewer than `limit`.
    pub fn some_steps(&mut self, limit: impl crate::random::Number) {
        for _ in 0..self.rng.below(limit).bound() {
            self.step();
        }
    }

    /// A board is reset, by its device or its driver.
    pub fn reset(&mut self, id: NodeId) {
        let before = self.nodes[usize::from(id)].resets;
        self.event(id, Event::Reset);
        while self.nodes[usize::from(id)].resets == before {
            assert!(self.step(), "the reset of node {id} never ends");
        }
    }
}

impl Driver for Cluster {
    type Memory = Vec<u8>;

    fn event(&mut self, id: u16, event: Event) {
        self.with_board(id, |hib, out| hib.handle(event, out));
    }

    /// Performs one possible event, chosen by the seed; false if there are none.
    fn step(&mut self) -> bool {
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

    fn memory(&self, id: NodeId) -> &Vec<u8> {
        &self.nodes[usize::from(id)].ram
    }

    fn memory_mut(&mut self, id: NodeId) -> &mut Vec<u8> {
        &mut self.nodes[usize::from(id)].ram
    }

    fn kernel(&self, id: NodeId) -> &Kernel {
        &self.nodes[usize::from(id)].kernel
    }

    fn kernel_mut(&mut self, id: NodeId) -> &mut Kernel {
        &mut self.nodes[usize::from(id)].kernel
    }

    fn exports(&self) -> u64 {
        EXPORTS
    }

    fn status_pages(&self) -> u64 {
        STATUS_PAGES
    }
}

/// Where export pages lie in a guest's memory.
fn range(first: u32, count: u32) -> std::ops::Range<usize> {
    let start = (EXPORTS + u64::from(first) * UNIT) as usize;
    start..start + count as usize * UNIT as usize
}

/// A node comes, or comes again, over streams.
pub fn node_up(node: NodeId, incarnation: u64) -> Event {
    Event::NodeUp { node, incarnation, block: STREAM_BLOCK as u32 }
}

pub fn status_page(context: u16) -> u64 {
    STATUS_PAGES + u64::from(context) * context::STATUS_SIZE
}
