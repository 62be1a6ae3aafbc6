// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replicated pages as a model: the real boards of all nodes, small programs on their processors, every interleaving.
//!
//! Real: the boards ([`Hib`](telegraphos_device_core::Hib)), home and copies, from the store's arrival at the window to
//! the step in guest memory. Modelled: the processors, which run [`Op`]s; QEMU's queue of posted stores, one for each
//! node; the network, first in, first out for each pair and class, which takes any number of packets; the memory.
//!
//! Separate steps are: an operation of a program; the arrival of a posted store at its board; each step of a board in a
//! replicated page; the delivery of each packet, acknowledgements included; a load. Stores of a board into its own
//! tables happen at once.
//!
//! A *load* is the library's (SPEC E22b): it waits until the board has taken the program's stores to that page, and
//! then reads memory. A *raw* load reads memory at once. A *fence* waits until all stores of the program are
//! acknowledged.
//!
//! | File | Contents |
//! |---|---|
//! | `node.rs` | one node, and its local properties: I3, I4, I5 |
//! | `start.rs` | the boards before the programs begin |
//! | `reduce.rs` | which steps are enough to explore, and why |
//! | `symmetry.rs` | nodes with equal programs |
//! | `walk.rs` | long runs in random order |
//!
//! Nodes interact only by packets. So a state is a tuple of the nodes' states and the packets on the wires, and each
//! step of a node depends only on the node's state. Each state of a node and each packet gets a number, and each step
//! of a node is computed once.

mod node;
mod reduce;
mod start;
mod symmetry;
mod walk;

use crate::digest::digest;
use node::{Local, Node};
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;
use telegraphos_device_core::Bug;
use telegraphos_wire::{Body, Class, NodeId, Packet, admin};

pub(crate) use symmetry::{Names, rename};
pub(crate) use walk::Walks;

// What must hold (SPEC section 4).
pub(crate) const I1: &str = "I1: a copy's values are a subsequence of the home's";
pub(crate) const I2: &str = "I2: at rest all copies are equal, and all counters 0";
pub(crate) const I3: &str = "I3: there is a counter for each word with stores that have not come back";
pub(crate) const I4: &str = "I4: a program reads its last store, or what came later";
pub(crate) const I5: &str = "I5: no value comes twice";
pub(crate) const I6: &str = "I6: programs do not see the weak outcome";
pub(crate) const I7: &str = "I7: when a fence is over, no copy lacks a store before it";
pub(crate) const END: &str = "every run comes to an end";

/// Description of a fault.
type Fault = String;

/// A granule of a replicated page: `index` granules from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Word {
    pub(crate) page: u32,
    pub(crate) index: u32,
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", ["x", "y"].get(self.page as usize).unwrap_or(&"z"), self.index)
    }
}

/// An operation of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Store(Word, u64),
    /// One store of so many granules, with the same value in each.
    Wide(Word, u32, u64),
    Load(Word),
    Raw(Word),
    /// Reads memory until it has this value: synchronisation by a flag.
    Await(Word, u64),
    Fence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Steps {
    /// Every interleaving of all steps.
    Every,
    /// At least one of all interleavings that no node can distinguish (`reduce.rs`).
    Reduced,
}

/// A model's size and programs.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) mode: u32,
    /// By page.
    pub(crate) homes: Vec<NodeId>,
    pub(crate) programs: Vec<Vec<Op>>,
    pub(crate) counters: u16,
    /// Bytes of a granule.
    pub(crate) granule: u32,
    pub(crate) bug: Option<Bug>,
    /// A load waits until none of the program's stores to that page is in flight: s1's alternative to counters.
    pub(crate) stalled_reads: bool,
    /// Combinations of values that these nodes' loads must not read.
    pub(crate) weak: Vec<(NodeId, Vec<u64>)>,
    pub(crate) steps: Steps,
    /// Of states that differ only in the names of nodes, one is explored (`symmetry.rs`). The nodes of a counterexample
    /// may then change their names along the path.
    pub(crate) symmetric: bool,
    /// A network that may deliver packets of a pair and class in any order.
    pub(crate) unordered: bool,
}

/// A global state: the numbers of the nodes' states, then the packets on the wires, ordered by wire, the oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State(Vec<u32>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Next {
    Run(NodeId),
    Arrive(NodeId),
    Perform(NodeId, u32),
    /// From, to, class, and place in that wire.
    Deliver(NodeId, NodeId, u8, u8),
}

/// The outcome of a run: for each node the values read by loads, and all values of each word.
pub(crate) type Outcome = Vec<(Vec<u64>, BTreeMap<Word, Vec<u64>>)>;

/// A packet on a wire: the wire above, the packet's number below.
const WIRE_SHIFT: u32 = 24;

fn wire(src: NodeId, dst: NodeId, class: u8) -> u32 {
    (u32::from(src) * 8 + u32::from(dst)) * 4 + u32::from(class)
}

fn ends(word: u32) -> (NodeId, NodeId, u8) {
    let wire = word >> WIRE_SHIFT;
    ((wire / 32) as NodeId, (wire / 4 % 8) as NodeId, (wire % 4) as u8)
}

const REPLY: u8 = Class::Reply as u8;

/// The result of a step: the node's next state, and the packets sent.
type Stepped = (u32, Arc<[u32]>);

/// The explored states of nodes, and packets.
#[derive(Default)]
struct Tables {
    nodes: Vec<Arc<Node>>,
    node_numbers: HashMap<u64, u32>,
    packets: Vec<Packet>,
    packet_numbers: HashMap<Packet, u32>,
    /// By a node's state and a step: its next state, and the packets sent.
    steps: HashMap<(u32, u32), Stepped>,
    /// The state and step that each state of a node was first found by; its images, by renaming; those of packets.
    origins: Vec<(u32, u32)>,
    images: Vec<Box<[u32]>>,
    packet_images: Vec<Box<[u32]>>,
    /// Whether a packet may be taken before all else that can happen at a node.
    first: HashMap<(u32, u32), bool>,
    /// Some state of some node has a fault.
    faulty: bool,
}

impl Tables {
    fn node(&self, number: u32) -> &Arc<Node> {
        &self.nodes[number as usize]
    }

    fn number_of(&mut self, node: Node, origin: (u32, u32), images: usize) -> u32 {
        *self.node_numbers.entry(digest(&node)).or_insert_with(|| {
            self.faulty |= !node.faults.is_empty();
            self.nodes.push(Arc::new(node));
            self.origins.push(origin);
            self.images.push(vec![symmetry::UNKNOWN; images].into());
            self.nodes.len() as u32 - 1
        })
    }

    fn number_of_packet(&mut self, packet: Packet, images: usize) -> u32 {
        let wire = wire(packet.src, packet.dst, packet.class() as u8) << WIRE_SHIFT;
        let number = *self.packet_numbers.entry(packet.clone()).or_insert_with(|| {
            self.packets.push(packet);
            self.packet_images.push(vec![symmetry::UNKNOWN; images].into());
            self.packets.len() as u32 - 1
        });
        assert!(number >> WIRE_SHIFT == 0, "too many packets");
        wire | number
    }
}

/// The model, and the results of its exploration.
pub(crate) struct CopiesModel {
    pub(crate) setup: Setup,
    tables: RwLock<Tables>,
    first: State,
    /// Renamings of nodes that leave the model unchanged.
    pub(crate) renamings: Vec<Names>,
    /// The values read by loads in finished runs, and their full outcomes if requested.
    reads: Mutex<BTreeSet<Vec<Vec<u64>>>>,
    outcomes: Option<Mutex<BTreeSet<Outcome>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CopiesModel {
    pub(crate) fn new(setup: Setup) -> CopiesModel {
        let renamings = if setup.symmetric { symmetry::renamings(&setup) } else { Vec::new() };
        let mut tables = Tables::default();
        let nodes = start::boards(&setup).into_iter().zip(0..).map(|(hib, id)| Node::new(&setup, id, hib));
        let first = State(nodes.map(|node| tables.number_of(node, (0, 0), renamings.len())).collect());
        for (which, names) in renamings.iter().enumerate() {
            for (node, name) in first.0.iter().zip(names) {
                tables.images[*node as usize][which] = first.0[usize::from(*name)];
            }
        }
        assert!(setup.steps == Steps::Every || reduce::admits(&setup), "{setup:?} cannot be reduced");
        let (reads, outcomes) = (Mutex::new(BTreeSet::new()), None);
        CopiesModel { setup, tables: RwLock::new(tables), first, renamings, reads, outcomes }
    }

    /// Keeps the full outcomes of finished runs.
    pub(crate) fn with_outcomes(setup: Setup) -> CopiesModel {
        CopiesModel { outcomes: Some(Mutex::new(BTreeSet::new())), ..CopiesModel::new(setup) }
    }

    fn n(&self) -> usize {
        self.setup.programs.len()
    }

    fn known(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn learn(&self) -> RwLockWriteGuard<'_, Tables> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Performs a step of a node: its next state, and the packets sent.
    fn step(&self, node: u32, code: u32) -> Stepped {
        let known = self.known();
        if let Some(found) = known.steps.get(&(node, code)) {
            return found.clone();
        }
        let mut next = Node::clone(known.node(node));
        let event = match code >> WIRE_SHIFT {
            0 if code == RUN => Local::Run,
            0 if code == ARRIVE => Local::Arrive,
            0 => Local::Perform((code - PERFORM).into()),
            _ => Local::Take(known.packets[(code & ((1 << WIRE_SHIFT) - 1)) as usize].clone()),
        };
        drop(known);
        let mut sent = Vec::new();
        next.happens(&self.setup, event, &mut sent);
        let mut tables = self.learn();
        let images = self.renamings.len();
        let next = tables.number_of(next, (node, code), images);
        let sent: Arc<[u32]> = sent.into_iter().map(|packet| tables.number_of_packet(packet, images)).collect();
        tables.steps.insert((node, code), (next, sent.clone()));
        drop(tables);
        self.compare_step(node, code, next, &sent);
        (next, sent)
    }

    fn is_done(&self, tables: &Tables, state: &State) -> bool {
        state.0.len() == self.n() && state.0.iter().all(|node| tables.node(*node).is_idle(&self.setup))
    }

    /// The faults of a state.
    fn fault(&self, state: &State, property: &str) -> Option<Fault> {
        let tables = self.known();
        let nodes = || state.0[..self.n()].iter().map(|node| tables.node(*node));
        if tables.faulty {
            if let Some(fault) = nodes().find_map(|node| node.fault(property)) {
                return Some(fault);
            }
        }
        if state.0.len() > self.n() && ![I6, I7].contains(&property) {
            return None;
        }
        let all: Vec<&Node> = nodes().map(|node| &**node).collect();
        match property {
            I6 if !self.setup.weak.is_empty() => {
                let reads = |(id, read): &(NodeId, Vec<u64>)| all[usize::from(*id)].read == *read;
                let found = self.setup.weak.iter().map(|(id, read)| format!("node {id} has read {read:?}"));
                self.setup.weak.iter().all(reads).then(|| found.collect::<Vec<_>>().join(", "))
            }
            I7 => (0..self.n()).find_map(|id| fault_of_fence(&self.setup, &all, id)),
            I1 | I2 if self.is_done(&tables, state) => fault_at_rest(&self.setup, &all, property),
            END if !self.is_done(&tables, state) => {
                drop(tables);
                let mut actions = Vec::new();
                self.actions(state, &mut actions);
                actions.is_empty().then(|| "nothing can happen any more, and not everything is done".into())
            }
            _ => None,
        }
    }

    /// Description of a step.
    fn describe(&self, state: &State, action: Next) -> String {
        let tables = self.known();
        let node = |id: NodeId| tables.node(state.0[usize::from(id)]);
        let store = |(word, count, value): (Word, u32, u64)| match count {
            1 => format!("{word} = {value}"),
            _ => format!("{word} and {} more = {value}", count - 1),
        };
        match action {
            Next::Run(id) => match self.setup.programs[usize::from(id)].get(node(id).next) {
                Some(Op::Store(word, value)) => format!("node {id}: stores {word} = {value}"),
                Some(Op::Wide(word, count, value)) => format!("node {id}: stores {}", store((*word, *count, *value))),
                Some(Op::Load(word)) => format!("node {id}: loads {word}: {}", node(id).value(*word)),
                Some(Op::Raw(word)) => format!("node {id}: reads {word}: {}", node(id).value(*word)),
                Some(Op::Await(word, value)) => format!("node {id}: finds {word} = {value}"),
                Some(Op::Fence) if node(id).fence_is_over() => format!("node {id}: the fence is over"),
                Some(Op::Fence) => format!("node {id}: begins a fence"),
                None => format!("node {id}: nothing"),
            },
            Next::Arrive(id) => {
                let posted = node(id).posted.front().map_or_else(String::new, |posted| store(*posted));
                format!("node {id}: its board gets {posted}")
            }
            Next::Perform(id, step) => match node(id).step(step.into()) {
                Some((word, count, data)) => {
                    let ones = u64::MAX >> (64 - 8 * self.setup.granule);
                    format!("node {id}: memory: {}", store((word, count, data & ones)))
                }
                None => format!("node {id}: nothing"),
            },
            Next::Deliver(src, dst, class, place) => {
                let packet = reduce::on_wire(&state.0[self.n()..], wire(src, dst, class)).get(usize::from(place));
                let packet = packet.map(|word| &tables.packets[(word & ((1 << WIRE_SHIFT) - 1)) as usize]);
                let place = |page: u32, offset: u32| Word { page, index: offset / self.setup.granule };
                let ones = u64::MAX >> (64 - 8 * self.setup.granule);
                let what = match packet.map(|packet| &packet.body) {
                    Some(Body::Update { at, size, data, .. }) => {
                        let stored = (place(at.page, at.offset), u32::from(*size) / self.setup.granule, data & ones);
                        format!("update, {}", store(stored))
                    }
                    Some(Body::Reflected { at, size, data, writer }) => {
                        let stored = (place(at.page, at.offset), u32::from(*size) / self.setup.granule, data & ones);
                        format!("reflected, {}, of node {writer}", store(stored))
                    }
                    Some(Body::CopyAck { .. }) => "the copy has it".into(),
                    Some(Body::WriteAck { .. }) => "all copies have it".into(),
                    other => format!("{other:?}"),
                };
                format!("{src} -> {dst}: {what}")
            }
        }
    }
}

// Codes of the steps of a node; other numbers are packets on its wires.
const RUN: u32 = 0;
const ARRIVE: u32 = 1;
const PERFORM: u32 = 2;

/// The properties at the end of a run.
fn fault_at_rest(setup: &Setup, nodes: &[&Node], property: &str) -> Option<Fault> {
    let words: BTreeSet<Word> = nodes.iter().flat_map(|node| node.had.keys().copied()).collect();
    for word in words {
        let home = setup.homes[word.page as usize];
        let of_home = nodes[usize::from(home)];
        let had = |node: &Node| node.had.get(&word).cloned().unwrap_or_default();
        for (id, node) in nodes.iter().enumerate() {
            if property == I2 && node.value(word) != of_home.value(word) {
                let (here, there) = (node.value(word), of_home.value(word));
                return Some(format!("{word} is {here} at node {id}, and {there} at node {home}"));
            }
            if property == I1 && setup.mode != admin::NAIVE && !is_subsequence(&had(of_home), &had(node)) {
                return Some(format!("{word} of node {id} had {:?}, at its home {:?}", had(node), had(of_home)));
            }
        }
    }
    let left = |node: &&Node| property == I2 && node.pending_counters() != 0;
    nodes.iter().position(left).map(|id| format!("counters of node {id} are left"))
}

/// A fence of this node has completed: every copy has the node's earlier stores, or a value that the home ordered
/// later.
fn fault_of_fence(setup: &Setup, nodes: &[&Node], id: usize) -> Option<Fault> {
    let stored = setup.programs[id][..nodes[id].next].iter().filter(|_| nodes[id].fence_is_over());
    for op in stored {
        let Op::Store(word, value) = op else { continue };
        let home = nodes[usize::from(setup.homes[word.page as usize])];
        let place = |value: u64| home.had.get(word)?.iter().position(|had| *had == value);
        for (other, node) in nodes.iter().enumerate() {
            let now = node.value(*word);
            let old = now == 0 || place(now).is_some_and(|now| place(*value).is_none_or(|stored| now < stored));
            if old {
                return Some(format!(
                    "the fence of node {id} is over, and {word} of node {other} is {now}, not {value}"
                ));
            }
        }
    }
    None
}

fn is_subsequence(of: &[u64], part: &[u64]) -> bool {
    let mut of = of.iter();
    part.iter().all(|value| of.any(|other| other == value))
}

impl Model for CopiesModel {
    type State = State;
    type Action = Next;

    fn init_states(&self) -> Vec<State> {
        vec![self.first.clone()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Next>) {
        let begun = actions.len();
        match self.setup.steps {
            Steps::Every => {
                let tables = self.known();
                for (id, node) in state.0[..self.n()].iter().enumerate() {
                    node_actions(&self.setup, id as NodeId, tables.node(*node), actions);
                }
                wire_actions(&state.0[self.n()..], self.setup.unordered, actions);
            }
            Steps::Reduced => self.enough(state, actions),
        }
        if actions.len() == begun {
            let tables = self.known();
            if self.is_done(&tables, state) {
                let nodes = || state.0.iter().map(|node| tables.node(*node));
                locked(&self.reads).insert(nodes().map(|node| node.read.clone()).collect());
                if let Some(outcomes) = &self.outcomes {
                    locked(outcomes).insert(nodes().map(|node| (node.read.clone(), node.had.clone())).collect());
                }
            }
        }
    }

    fn next_state(&self, state: &State, action: Next) -> Option<State> {
        let mut words = state.0.clone();
        let (id, code) = match action {
            Next::Run(id) => (id, RUN),
            Next::Arrive(id) => (id, ARRIVE),
            Next::Perform(id, step) => (id, PERFORM + step),
            Next::Deliver(src, dst, class, place) => {
                let first = words[self.n()..].partition_point(|word| word >> WIRE_SHIFT < wire(src, dst, class));
                (dst, words.remove(self.n() + first + usize::from(place)))
            }
        };
        let (next, sent) = self.step(words[usize::from(id)], code);
        words[usize::from(id)] = next;
        for word in sent.iter() {
            let behind = words[self.n()..].partition_point(|other| other >> WIRE_SHIFT <= word >> WIRE_SHIFT);
            words.insert(self.n() + behind, *word);
        }
        Some(self.representative(State(words)))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        macro_rules! holds {
            ($($name:ident),*) => {
                vec![$(Property::always($name, |model: &CopiesModel, state: &State| model.fault(state, $name).is_none())),*]
            };
        }
        holds![I1, I2, I3, I4, I5, I6, I7, END]
    }
}

/// The local steps that are possible at a node.
fn node_actions(setup: &Setup, id: NodeId, node: &Node, actions: &mut Vec<Next>) {
    if node.can_run(setup) {
        actions.push(Next::Run(id));
    }
    if !node.posted.is_empty() {
        actions.push(Next::Arrive(id));
    }
    actions.extend(node.steps().map(|step| Next::Perform(id, step as u32)));
}

fn wire_actions(wires: &[u32], unordered: bool, actions: &mut Vec<Next>) {
    for queue in wires.chunk_by(|a, b| a >> WIRE_SHIFT == b >> WIRE_SHIFT) {
        let (src, dst, class) = ends(queue[0]);
        let places = if unordered { queue.len() as u8 } else { 1 };
        actions.extend((0..places).map(|place| Next::Deliver(src, dst, class, place)));
    }
}

/// The result of exploring a model.
pub(crate) struct Explored {
    pub(crate) states: usize,
    /// The first fault of each property, with the path to it.
    pub(crate) faults: BTreeMap<&'static str, Vec<String>>,
    /// For each finished run: the values read by loads, and the full outcome if requested.
    pub(crate) reads: BTreeSet<Vec<Vec<u64>>>,
    pub(crate) outcomes: BTreeSet<Outcome>,
}

/// How far a model is explored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    AnyFault,
    /// The first fault of this property, by a shortest path.
    Shortest(&'static str),
    /// Completely, whatever is found.
    End,
}

pub(crate) fn explore(name: &str, model: CopiesModel, until: Until) -> Explored {
    let begun = Instant::now();
    let explored = match until {
        Until::AnyFault => {
            explored(model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_dfs().join())
        }
        Until::Shortest(property) => {
            let wanted = HasDiscoveries::AnyOf([property].into());
            explored(model.checker().finish_when(wanted).spawn_bfs().join())
        }
        Until::End => explored(model.checker().threads(2).finish_when(HasDiscoveries::All).spawn_dfs().join()),
    };
    if !name.is_empty() {
        println!("{name}: {} states, {:.1} s", explored.states, begun.elapsed().as_secs_f32());
    }
    explored
}

fn explored(checker: impl Checker<CopiesModel>) -> Explored {
    let model = checker.model();
    let found = checker.discoveries().into_iter().map(|(property, path)| {
        let path = path.into_vec();
        let last = path.last().map(|(state, _)| state.clone());
        let steps = path.into_iter().filter_map(|(state, action)| Some(model.describe(&state, action?)));
        let mut lines: Vec<String> = steps.collect();
        lines.extend(last.and_then(|state| model.fault(&state, property)).map(|fault| format!("=> {fault}")));
        (property, lines)
    });
    let faults = found.collect();
    let outcomes = model.outcomes.as_ref().map(|outcomes| locked(outcomes).clone()).unwrap_or_default();
    Explored { states: checker.unique_state_count(), faults, reads: locked(&model.reads).clone(), outcomes }
}
