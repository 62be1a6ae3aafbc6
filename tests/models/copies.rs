// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replicated pages as a model: the real boards of all nodes, small programs on their processors, every interleaving.
//!
//! Real: the boards ([`Hib`]), home and copies, from the store's arrival at the window to the step in guest memory. Modelled: the processors, which
//! run [`Op`]s; QEMU's queue of posted stores, one for each node; the network, first in, first out for each pair and class; the memory.
//!
//! Separate steps are: an operation of a program; the arrival of a posted store at its board; each step of a board in a replicated page; the
//! delivery of each packet, acknowledgements included; a load. What a board stores in its own tables happens at once.
//!
//! A *load* is the library's (SPEC E22b): it waits until the board has taken the program's stores to that page, and then reads memory. A *raw* load
//! reads memory at once. A *fence* waits until all stores of the program are acknowledged.

use hib_core::{Action, Bar, Bug, Event, Hib, HibConfig, Step, StepId, StepResult};
use stateright::{Model, Property};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use telegraphos_wire::admin::{self, COMPLETION_OFFSET, Command, ReplicaCommand};
use telegraphos_wire::regs::Register;
use telegraphos_wire::{Aperture, Block, Class, NodeId, Packet, Rights, UNIT, WindowAddress, WindowLayout, context};

const ADMIN: u64 = 0x1_0000;
const STATUS_PAGE: u64 = 0x3_0000;
const EXPORTS: u64 = 0x10_0000;
const INCARNATION: u32 = 1;

/// A word of the model: 8 bytes at the beginning of page `page`, whose home the setup says, `index` words further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Word {
    pub(crate) page: u32,
    pub(crate) index: u32,
}

/// What a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Store(Word, u64),
    Load(Word),
    Raw(Word),
    Fence,
}

/// A model's size and programs.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) mode: u32,
    /// By page.
    pub(crate) homes: Vec<NodeId>,
    /// By node.
    pub(crate) programs: Vec<Vec<Op>>,
    pub(crate) counters: u16,
    pub(crate) bug: Option<Bug>,
    /// Every step is one of its own. Else answers and steps in memory happen as soon as they can, and programs have posted all their stores in the
    /// beginning: what is left is the order in which stores, updates and multicasts meet, which decides what copies hold.
    pub(crate) fine: bool,
    /// A network that may deliver packets of a pair and class in any order.
    pub(crate) unordered: bool,
}

#[derive(Clone, Debug)]
struct Board {
    hib: Arc<Hib>,
    key: u64,
}

impl Board {
    fn of(hib: Hib) -> Board {
        let mut hasher = DefaultHasher::new();
        hib.hash(&mut hasher);
        Board { hib: Arc::new(hib), key: hasher.finish() }
    }
}

impl PartialEq for Board {
    fn eq(&self, other: &Board) -> bool {
        self.key == other.key
    }
}

impl Hash for Board {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

#[derive(Clone, Debug, PartialEq, Hash)]
struct Node {
    board: Board,
    memory: BTreeMap<Word, u64>,
    /// Values that each word had here, in order.
    had: BTreeMap<Word, Vec<u64>>,
    steps: BTreeMap<StepId, (Word, u64)>,
    posted: VecDeque<(Word, u64)>,
    next: usize,
    /// Stores to each page that the program has made, that the board has taken.
    made: BTreeMap<u32, u64>,
    taken: BTreeMap<u32, u64>,
    /// A fence waits for the board's answer; it has come.
    fencing: Option<bool>,
    /// What loads have read.
    read: Vec<u64>,
}

/// A state of the whole.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct State {
    nodes: Vec<Node>,
    wires: BTreeMap<(NodeId, NodeId, u8), VecDeque<Packet>>,
}

/// What happens next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Next {
    Run(NodeId),
    Arrive(NodeId),
    Perform(NodeId, StepId),
    Deliver(NodeId, NodeId, u8, usize),
}

/// The model; outcomes of finished runs are gathered.
pub(crate) struct CopiesModel {
    pub(crate) setup: Setup,
    pub(crate) outcomes: Mutex<BTreeSet<Vec<Vec<u64>>>>,
    first: State,
}

impl CopiesModel {
    pub(crate) fn new(setup: Setup) -> CopiesModel {
        let n = setup.programs.len() as u16;
        let pages = setup.homes.len() as u32;
        let mut nodes = Vec::new();
        for id in 0..n {
            let mut config = HibConfig::new(id);
            config.window = WindowLayout::new(2, 18).expect("four nodes of 256 KiB");
            config.contexts = 1;
            config.imports = 4;
            config.export_pages = pages;
            config.counters = 0;
            config.credits = [16; 4];
            config.outstanding = 8;
            config.pending_writes = setup.counters;
            // One packet for each copy: the ideal network knows no groups.
            config.fanout_by_switch = false;
            config.bug = setup.bug;
            let credits = config.offered();
            let mut world = Loose { hib: Hib::new(config), out: Vec::new(), answer: None };
            world.event(Event::LinkUp { incarnation: INCARNATION, nodes: n.into(), credits }, None);
            for node in 0..n {
                world.event(Event::NodeUp { node, incarnation: INCARNATION }, None);
            }
            world.event(Event::BusMaster(true), None);
            world.register(Register::AdminBase, ADMIN);
            world.command(Command { opcode: admin::CONTEXT_OPEN, address: STATUS_PAGE, ..Command::default() });
            nodes.push(world);
        }
        // Every node exports every page; the homes' are joined.
        let mut generations = vec![Vec::new(); usize::from(n)];
        for id in 0..n {
            for page in 0..pages {
                let grant = Command {
                    opcode: admin::GRANT_SET,
                    index: page,
                    count: 1,
                    address: EXPORTS + u64::from(page) * UNIT,
                    length: UNIT,
                    rights: 7,
                    nodes: [u64::MAX; 4],
                    ..Command::default()
                };
                let generation = nodes[usize::from(id)].command(grant);
                generations[usize::from(id)].push(generation);
                let import = Command {
                    opcode: admin::IMPORT_SET,
                    import: page as u16,
                    node: id,
                    index: page,
                    count: 1,
                    page,
                    generation,
                    length: UNIT,
                    rights: Rights(7).0,
                    taken: 1 + page,
                    ..Command::default()
                };
                nodes[usize::from(id)].command(import);
            }
        }
        let mut become_copy = |id: NodeId, page: u32, home: NodeId| {
            let set = ReplicaCommand {
                opcode: admin::REPLICA_SET,
                page,
                mode: setup.mode,
                node: home.into(),
                home_page: page,
                home_generation: generations[usize::from(home)][page as usize],
                ..ReplicaCommand::default()
            };
            nodes[usize::from(id)].begin(set.into());
            exchange(&mut nodes);
            assert!(nodes[usize::from(id)].answer.take().is_some(), "node {id} does not become a copy of node {home}");
        };
        for page in 0..pages {
            let home = setup.homes[page as usize];
            let others = |of: NodeId| (0..n).filter(move |id| *id != of);
            if setup.mode == admin::NAIVE {
                (0..n).for_each(|id| become_copy(id, page, id));
                (0..n).for_each(|id| others(id).for_each(|other| become_copy(id, page, other)));
            } else {
                become_copy(home, page, home);
                others(home).for_each(|id| become_copy(id, page, home));
            }
        }
        let mut first = State {
            nodes: nodes
                .into_iter()
                .map(|world| Node {
                    board: Board::of(world.hib),
                    memory: BTreeMap::new(),
                    had: BTreeMap::new(),
                    steps: BTreeMap::new(),
                    posted: VecDeque::new(),
                    next: 0,
                    made: BTreeMap::new(),
                    taken: BTreeMap::new(),
                    fencing: None,
                    read: Vec::new(),
                })
                .collect(),
            wires: BTreeMap::new(),
        };
        if !setup.fine {
            for (node, program) in first.nodes.iter_mut().zip(&setup.programs) {
                while let Some(Op::Store(word, value)) = program.get(node.next) {
                    node.posted.push_back((*word, *value));
                    *node.made.entry(word.page).or_default() += 1;
                    node.next += 1;
                }
            }
        }
        CopiesModel { setup, outcomes: Mutex::new(BTreeSet::new()), first }
    }
}

/// A board during the setup: everything happens at once.
struct Loose {
    hib: Hib,
    out: Vec<Packet>,
    answer: Option<u64>,
}

impl Loose {
    fn register(&mut self, register: Register, data: u64) {
        let (offset, size) = (register.offset(), register.size().into());
        self.event(Event::Write { bar: Bar::Control, offset, size, data }, None);
    }

    fn begin(&mut self, command: Command) {
        let register = Register::AdminDoorbell;
        let event =
            Event::Write { bar: Bar::Control, offset: register.offset(), size: register.size().into(), data: 0 };
        self.answer = None;
        self.event(event, Some(Command { seq: 1, ..command }));
    }

    fn command(&mut self, command: Command) -> u64 {
        self.begin(command);
        self.answer.take().expect("the command completes at once")
    }

    fn event(&mut self, event: Event, command: Option<Command>) {
        let mut events = VecDeque::from([event]);
        let mut generation = 0;
        while let Some(event) = events.pop_front() {
            let mut actions = Vec::new();
            self.hib.handle(event, &mut actions);
            for action in actions {
                match action {
                    Action::Send(packet) => self.out.push(packet),
                    Action::Step { step, op } => {
                        let result = match op {
                            Step::LoadCommand { .. } => StepResult::Command(command.expect("a command was given")),
                            Step::LoadBlock { length, .. } => StepResult::Block(Block::from(vec![0; length as usize])),
                            Step::Store { address, data, .. } => {
                                let completion = ADMIN + COMPLETION_OFFSET as u64;
                                if address == completion + 16 {
                                    generation = data;
                                }
                                if address == completion {
                                    assert_eq!(data >> 32, 0, "status of {command:?}");
                                    self.answer = Some(generation);
                                }
                                StepResult::Stored
                            }
                            Step::StoreBlock { .. } => StepResult::Stored,
                            other => panic!("the board wants {other:?}"),
                        };
                        events.push_back(Event::StepDone { step, result });
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Delivers everything that boards have to say to each other during the setup.
fn exchange(nodes: &mut [Loose]) {
    loop {
        let packets: Vec<Packet> = nodes.iter_mut().flat_map(|node| std::mem::take(&mut node.out)).collect();
        if packets.is_empty() {
            return;
        }
        for packet in packets {
            let (src, class) = (packet.src, packet.class());
            nodes[usize::from(packet.dst)].event(Event::Packet(packet), None);
            if class != Class::Reply {
                nodes[usize::from(src)].event(Event::Credit { class, count: 1 }, None);
            }
        }
    }
}

impl State {
    /// Lets a board handle an event, and all steps at its own tables.
    fn handle(&mut self, id: NodeId, event: Event) {
        let node = &mut self.nodes[usize::from(id)];
        let mut hib = Hib::clone(&node.board.hib);
        let mut events = VecDeque::from([event]);
        let mut sent = Vec::new();
        while let Some(event) = events.pop_front() {
            let mut actions = Vec::new();
            hib.handle(event, &mut actions);
            for action in actions {
                match action {
                    Action::Send(packet) => sent.push(packet),
                    Action::Step { step, op: Step::Store { address, size: 8, data } } if address >= EXPORTS => {
                        let at = address - EXPORTS;
                        let word = Word { page: (at / UNIT) as u32, index: (at % UNIT / 8) as u32 };
                        node.steps.insert(step, (word, data));
                    }
                    Action::Step { step, op: Step::Store { address, data, .. } } => {
                        let taken = STATUS_PAGE + context::TAKEN_OFFSET;
                        if (taken..taken + 8 * 256).contains(&address) {
                            node.taken.insert(((address - taken) / 8) as u32, data);
                        } else if address == STATUS_PAGE {
                            node.fencing = Some(true);
                        }
                        events.push_back(Event::StepDone { step, result: StepResult::Stored });
                    }
                    Action::Step { op, .. } => panic!("the board wants {op:?}"),
                    _ => {}
                }
            }
        }
        node.board = Board::of(hib);
        for packet in sent {
            let wire = (packet.src, packet.dst, packet.class() as u8);
            self.wires.entry(wire).or_default().push_back(packet);
        }
    }

    fn perform(&mut self, id: NodeId, step: StepId) -> Option<()> {
        let node = &mut self.nodes[usize::from(id)];
        let (word, value) = node.steps.remove(&step)?;
        node.memory.insert(word, value);
        node.had.entry(word).or_default().push(value);
        self.handle(id, Event::StepDone { step, result: StepResult::Stored });
        Some(())
    }

    fn deliver(&mut self, wire: (NodeId, NodeId, u8), place: usize) -> Option<()> {
        let queue = self.wires.get_mut(&wire)?;
        let packet = queue.remove(place)?;
        if queue.is_empty() {
            self.wires.remove(&wire);
        }
        let class = packet.class();
        self.handle(wire.1, Event::Packet(packet));
        if class != Class::Reply {
            self.handle(wire.0, Event::Credit { class, count: 1 });
        }
        Some(())
    }

    /// Everything that decides nothing happens.
    fn settle(&mut self) {
        loop {
            let step =
                self.nodes.iter().enumerate().find_map(|(id, node)| Some((id as NodeId, *node.steps.keys().next()?)));
            let reply = self.wires.keys().find(|wire| wire.2 == Class::Reply as u8).copied();
            match (step, reply) {
                (Some((id, step)), _) => self.perform(id, step),
                (_, Some(wire)) => self.deliver(wire, 0),
                _ => return,
            };
        }
    }

    fn is_done(&self, setup: &Setup) -> bool {
        let idle = |node: &Node, program: &Vec<Op>| {
            node.next == program.len() && node.posted.is_empty() && node.steps.is_empty() && node.fencing.is_none()
        };
        self.wires.is_empty() && self.nodes.iter().zip(&setup.programs).all(|(node, program)| idle(node, program))
    }

    fn value(&self, id: usize, word: Word) -> u64 {
        self.nodes[id].memory.get(&word).copied().unwrap_or(0)
    }
}

fn repeats(values: &[u64]) -> bool {
    values.iter().enumerate().any(|(i, value)| values[i + 1..].contains(value))
}

fn is_subsequence(of: &[u64], part: &[u64]) -> bool {
    let mut of = of.iter();
    part.iter().all(|value| of.any(|other| other == value))
}

/// What is wrong with a state.
pub(crate) fn fault(setup: &Setup, state: &State) -> Option<String> {
    for (id, node) in state.nodes.iter().enumerate() {
        for (word, values) in &node.had {
            if repeats(values) {
                return Some(format!("I5: {word:?} of node {id} had {values:?}"));
            }
        }
        // A load now would be behind all stores of the program: it reads none that is older (I4).
        for (page, made) in &node.made {
            if node.taken.get(page).copied().unwrap_or(0) < *made {
                continue;
            }
            let program = &setup.programs[id][..node.next];
            let mine = |word: Word| {
                program.iter().filter_map(move |op| match op {
                    Op::Store(w, value) if *w == word => Some(*value),
                    _ => None,
                })
            };
            for (word, values) in node.had.iter().filter(|(word, _)| word.page == *page) {
                let own: Vec<u64> = mine(*word).collect();
                if let (Some(last), Some((now, _))) = (own.last(), values.split_last()) {
                    if own.contains(now) && now != last {
                        return Some(format!("I4: node {id} stored {own:?} to {word:?} and reads {now}"));
                    }
                    if !values.contains(last) {
                        return Some(format!(
                            "E22b: node {id} stored {own:?} to {word:?}, taken, and it had {values:?}"
                        ));
                    }
                }
            }
        }
    }
    if !state.is_done(setup) {
        return None;
    }
    for (page, home) in setup.homes.iter().enumerate() {
        let words: BTreeSet<Word> =
            state.nodes.iter().flat_map(|node| node.had.keys().copied()).filter(|w| w.page as usize == page).collect();
        for word in words {
            let of_home = state.nodes[usize::from(*home)].had.get(&word).cloned().unwrap_or_default();
            for id in 0..state.nodes.len() {
                let here = state.value(id, word);
                if here != state.value(usize::from(*home), word) {
                    return Some(format!(
                        "I2: {word:?} is {here} at node {id} and {} at its home",
                        state.value((*home).into(), word)
                    ));
                }
                let had = state.nodes[id].had.get(&word).cloned().unwrap_or_default();
                if setup.mode != admin::NAIVE && !is_subsequence(&of_home, &had) {
                    return Some(format!("I1: {word:?} of node {id} had {had:?}, at its home {of_home:?}"));
                }
            }
        }
    }
    let pending = state.nodes.iter().position(|node| node.board.hib.pending_counters() != 0);
    pending.map(|id| format!("I3: counters of node {id} are left"))
}

impl Model for CopiesModel {
    type State = State;
    type Action = Next;

    fn init_states(&self) -> Vec<State> {
        vec![self.first.clone()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Next>) {
        for (id, node) in state.nodes.iter().enumerate() {
            let id = id as NodeId;
            if let Some(op) = self.setup.programs[usize::from(id)].get(node.next) {
                let covered = |page: &u32| {
                    node.taken.get(page).copied().unwrap_or(0) >= node.made.get(page).copied().unwrap_or(0)
                };
                let enabled = match op {
                    Op::Store(..) | Op::Raw(_) => true,
                    Op::Load(word) => covered(&word.page),
                    // The fence's own store is posted behind the others.
                    Op::Fence => node.fencing != Some(false) && (node.fencing.is_some() || node.posted.is_empty()),
                };
                if enabled {
                    actions.push(Next::Run(id));
                }
            }
            if !node.posted.is_empty() {
                actions.push(Next::Arrive(id));
            }
            actions.extend(node.steps.keys().map(|step| Next::Perform(id, *step)));
        }
        for ((src, dst, class), queue) in &state.wires {
            let places = if self.setup.unordered { queue.len() } else { 1 };
            actions.extend((0..places).map(|place| Next::Deliver(*src, *dst, *class, place)));
        }
    }

    fn next_state(&self, state: &State, action: Next) -> Option<State> {
        let mut state = state.clone();
        match action {
            Next::Run(id) => {
                let op = self.setup.programs[usize::from(id)][state.nodes[usize::from(id)].next];
                let node = &mut state.nodes[usize::from(id)];
                match op {
                    Op::Store(word, value) => {
                        node.posted.push_back((word, value));
                        *node.made.entry(word.page).or_default() += 1;
                        node.next += 1;
                    }
                    Op::Load(word) | Op::Raw(word) => {
                        let value = node.memory.get(&word).copied().unwrap_or(0);
                        node.read.push(value);
                        node.next += 1;
                    }
                    Op::Fence if node.fencing == Some(true) => {
                        node.fencing = None;
                        node.next += 1;
                    }
                    Op::Fence => {
                        node.fencing = Some(false);
                        let cookie = node.next as u64 + 1;
                        let data = context::QUIET_ALL << context::COOKIE_BITS | cookie;
                        state.handle(id, Event::Write { bar: Bar::Contexts, offset: context::QUIET, size: 8, data });
                    }
                }
            }
            Next::Arrive(id) => {
                let node = &mut state.nodes[usize::from(id)];
                let (word, value) = node.posted.pop_front()?;
                let layout = node.board.hib.config().window;
                let offset = u64::from(word.page) * UNIT + u64::from(word.index) * 8;
                let offset = layout.encode(WindowAddress { aperture: Aperture::Plain, node: id, offset })?;
                state.handle(id, Event::Write { bar: Bar::Window, offset, size: 8, data: value });
            }
            Next::Perform(id, step) => state.perform(id, step)?,
            Next::Deliver(src, dst, class, place) => state.deliver((src, dst, class), place)?,
        }
        if !self.setup.fine {
            state.settle();
        }
        if state.is_done(&self.setup) {
            let read = state.nodes.iter().map(|node| node.read.clone()).collect();
            self.outcomes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(read);
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("I1 to I5", |model: &CopiesModel, state: &State| fault(&model.setup, state).is_none()),
            Property::sometimes("an end", |model: &CopiesModel, state: &State| state.is_done(&model.setup)),
        ]
    }
}

impl fmt::Display for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Next::Run(id) => write!(f, "node {id}: program"),
            Next::Arrive(id) => write!(f, "node {id}: posted store arrives"),
            Next::Perform(id, _) => write!(f, "node {id}: memory"),
            Next::Deliver(src, dst, class, _) => write!(f, "{src} -> {dst}: class {class}"),
        }
    }
}
