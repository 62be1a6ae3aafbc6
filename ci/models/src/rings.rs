// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stores of one node to another, one by one and as bursts, while the ring between them is withdrawn and offered again,
//! as a model: the two real boards, every interleaving.
//!
//! Real: the boards ([`Hib`]), from a store's arrival at the window to the step in guest memory. Modelled: the network,
//! first in, first out for each direction and class; the ring, first in, first out for each direction; the fabric,
//! which withdraws the ring and offers it again at any time, as each board learns at any time after that.
//!
//! What is modelled of the fabric's policy is only that both boards hear the same (`fabric/core/src/rings.rs`).

use crate::digest::digest;
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use telegraphos_device_core::{Action, Bug, Event, Hib, RingAction, RingEvent, Step, StepResult, WindowStore};
use telegraphos_testkit::world::commands::{context_open, grant_set, import_pages};
use telegraphos_testkit::world::{ADMIN, Cluster, Driver, EXPORTS, STATUS_PAGES};
use telegraphos_wire::regs::Register;
use telegraphos_wire::{Aperture, Class, NodeId, Packet, Rights, STREAM_BLOCK, WindowAddress, WindowLayout};

const INCARNATION: u64 = 1;
/// Packets of each class that a ring takes.
const CREDITS: u32 = 2;

/// What must hold (SPEC section 4).
const I8: &str = "I8: stores of one node are performed in the order of its program";
const END: &str = "every run comes to an end with all stores performed";

/// A frame of a ring.
#[derive(Clone, Debug, Hash)]
enum Frame {
    Packet(Packet),
    Credit(Class, u32),
    Probe,
    Alive,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happens {
    /// Node 0's processor stores the next number.
    Store,
    /// The next two, and its board gets both at once: a burst.
    Burst,
    /// The oldest packet of a class arrives from this node by the switch.
    Switch(NodeId, usize),
    /// The oldest frame of the ring arrives from this node.
    Ring(NodeId),
    /// The fabric's next frame about the ring arrives at this node.
    Hear(NodeId),
}

/// Boards that hash alike behave alike, so states that do are equal.
#[derive(Clone, Debug)]
pub(crate) struct State {
    hibs: [Hib; 2],
    wires: BTreeMap<(NodeId, usize), VecDeque<Packet>>,
    rings: [VecDeque<Frame>; 2],
    /// By node: how much of what the fabric says it has heard.
    heard: [usize; 2],
    stored: u64,
    /// Numbers in node 1's memory, in order.
    performed: Vec<u64>,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let State { hibs, wires, rings, heard, stored, performed } = self;
        (hibs, wires, rings, heard, stored, performed).hash(hasher);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &State) -> bool {
        digest(self) == digest(other)
    }
}

/// The model: so many stores, and what the fabric says.
pub(crate) struct Handover {
    stores: u64,
    /// Whether the ring may be used from then on.
    says: Vec<bool>,
    start: State,
    /// A store has passed by the ring; by the switch behind one by the ring.
    by_ring: AtomicBool,
    back: AtomicBool,
}

impl State {
    /// Both boards have joined; node 0 has imported a page of node 1. Both ends of the ring are open.
    fn new(bug: Option<Bug>) -> State {
        let mut c = Cluster::power_on(2, 0, |config| {
            config.window = WindowLayout::new(1, 18).expect("nodes of 256 KiB");
            (config.contexts, config.imports, config.export_pages, config.counters) = (1, 1, 1, 0);
            (config.credits, config.outstanding, config.holds) = ([8; 4], 8, 8);
            config.bug = bug;
        });
        for id in 0..2 {
            c.join(id, INCARNATION, STREAM_BLOCK as u32);
            c.event(id, Event::BusMaster(true));
            c.register(id, Register::AdminBase, ADMIN);
            c.ok(id, context_open(0, STATUS_PAGES, 0));
        }
        let generation = c.ok(1, grant_set(0, 1, EXPORTS, Rights::WRITE)).generation;
        c.ok(0, import_pages(0, 1, 0, (0, 1), generation, Rights::WRITE));
        c.settle();
        let [own, other] = [0, 1].map(|id| c.nodes[id].hib.clone());
        let (wires, rings) = (BTreeMap::new(), [const { VecDeque::new() }; 2]);
        let mut state = State { hibs: [own, other], wires, rings, heard: [0; 2], stored: 0, performed: Vec::new() };
        for id in 0..2 {
            let up = RingEvent::Up { incarnation: INCARNATION, own: INCARNATION, credits: CREDITS, lends: false };
            state.event(id, Event::Ring { peer: 1 - id, what: up });
        }
        state
    }

    /// Lets a board handle an event, and performs all its steps at once. The network takes each packet at once.
    fn event(&mut self, id: NodeId, event: Event) {
        let mut actions = Vec::new();
        self.hibs[usize::from(id)].handle(event, &mut actions);
        self.act(id, actions);
    }

    /// The next stores of node 0's processor, so many, which its board gets at once.
    fn store(&mut self, count: u64) -> Option<()> {
        let layout = self.hibs[0].config().window;
        let offset = layout.encode(WindowAddress { aperture: Aperture::Plain, node: 1, offset: 0 })?;
        let numbers = self.stored + 1..=self.stored + count;
        let stores: Vec<_> = numbers.map(|data| WindowStore { offset, size: 8, data }).collect();
        self.stored += count;
        let mut actions = Vec::new();
        self.hibs[0].stores(&stores, &mut actions);
        self.act(0, actions);
        Some(())
    }

    fn act(&mut self, id: NodeId, mut actions: Vec<Action>) {
        let (at, mut events) = (usize::from(id), VecDeque::new());
        loop {
            // Each event is a turn of its own.
            self.hibs[at].end_turn(&mut actions);
            for action in actions.drain(..) {
                match action {
                    Action::Send(packet) => {
                        let class = packet.class();
                        if class != Class::Reply {
                            events.push_back(Event::Credit { class, count: 1 });
                        }
                        self.wires.entry((id, class as usize)).or_default().push_back(packet);
                    }
                    Action::RingSend(packet) => self.rings[at].push_back(Frame::Packet(packet)),
                    Action::Ring { what: RingAction::Probe, .. } => self.rings[at].push_back(Frame::Probe),
                    Action::Ring { what: RingAction::Credit { class, count }, .. } => {
                        self.rings[at].push_back(Frame::Credit(class, count));
                    }
                    Action::Ring { what: RingAction::Close(why), .. } => panic!("node {id} closes the ring: {why:?}"),
                    Action::Step { step, op: Step::Store { address, data, .. } } => {
                        if address >= EXPORTS {
                            self.performed.push(data);
                        }
                        events.push_back(Event::StepDone { step, result: StepResult::Stored });
                    }
                    Action::Step { step, op: Step::StoreBurst { stores, .. } } => {
                        self.performed.extend(stores.iter().map(|store| store.data));
                        events.push_back(Event::StepDone { step, result: StepResult::Stored });
                    }
                    Action::Step { op, .. } => panic!("unexpected action of the board: {op:?}"),
                    _ => {}
                }
            }
            let Some(event) = events.pop_front() else { return };
            self.hibs[at].handle(event, &mut actions);
        }
    }
}

impl Handover {
    fn new(stores: u64, says: &[bool], bug: Option<Bug>) -> Handover {
        let (by_ring, back) = (AtomicBool::new(false), AtomicBool::new(false));
        Handover { stores, says: says.to_vec(), start: State::new(bug), by_ring, back }
    }

    fn all(&self, state: &State, out: &mut Vec<Happens>) {
        if state.stored < self.stores {
            out.push(Happens::Store);
        }
        if state.stored + 1 < self.stores {
            out.push(Happens::Burst);
        }
        let wires = state.wires.iter().filter(|(_, packets)| !packets.is_empty());
        out.extend(wires.map(|((from, class), _)| Happens::Switch(*from, *class)));
        for id in 0..2 {
            if !state.rings[usize::from(id)].is_empty() {
                out.push(Happens::Ring(id));
            }
            if state.heard[usize::from(id)] < self.says.len() {
                out.push(Happens::Hear(id));
            }
        }
    }
}

impl Model for Handover {
    type State = State;
    type Action = Happens;

    fn init_states(&self) -> Vec<State> {
        vec![self.start.clone()]
    }

    fn actions(&self, state: &State, out: &mut Vec<Happens>) {
        self.all(state, out);
    }

    fn next_state(&self, last: &State, action: Happens) -> Option<State> {
        let mut state = last.clone();
        match action {
            Happens::Store => state.store(1)?,
            Happens::Burst => state.store(2)?,
            Happens::Switch(from, class) => {
                let packet = state.wires.get_mut(&(from, class))?.pop_front()?;
                if packet.class() == Class::Request && self.by_ring.load(Ordering::Relaxed) {
                    self.back.store(true, Ordering::Relaxed);
                }
                state.wires.retain(|_, packets| !packets.is_empty());
                state.event(1 - from, Event::Packet(packet));
            }
            Happens::Ring(from) => {
                let (to, peer) = (1 - from, from);
                let ring = |what| Event::Ring { peer, what };
                match state.rings[usize::from(from)].pop_front()? {
                    Frame::Packet(packet) => {
                        self.by_ring.store(true, Ordering::Relaxed);
                        state.event(to, Event::RingPacket { packet, loan: None });
                    }
                    Frame::Credit(class, count) => state.event(to, ring(RingEvent::Credit { class, count })),
                    Frame::Probe => state.rings[usize::from(to)].push_back(Frame::Alive),
                    Frame::Alive => state.event(to, ring(RingEvent::Alive)),
                }
            }
            Happens::Hear(id) => {
                let heard = &mut state.heard[usize::from(id)];
                let on = *self.says.get(*heard)?;
                *heard += 1;
                state.event(id, Event::Ring { peer: 1 - id, what: RingEvent::Use { incarnation: INCARNATION, on } });
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(I8, |_, state: &State| {
                state.performed.iter().copied().eq(1..=state.performed.len() as u64)
            }),
            Property::always(END, |model: &Handover, state: &State| {
                let mut next = Vec::new();
                model.all(state, &mut next);
                let finished = state.hibs[0].import_progress(0) == Some((model.stores, model.stores));
                !next.is_empty() || finished && state.performed.len() as u64 == model.stores
            }),
        ]
    }
}

/// Checks that no interleaving is wrong, and that stores change their path both ways.
pub(crate) fn holds(stores: u64, says: &[bool]) {
    let begun = Instant::now();
    let model = Handover::new(stores, says, None);
    let checker = model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_dfs().join();
    let about = format!("{stores} stores, the ring is offered and then {says:?}");
    println!("{about}: {} states in {:.1} s", checker.unique_state_count(), begun.elapsed().as_secs_f64());
    if let Some((property, path)) = checker.discoveries().into_iter().next() {
        panic!("{about}\nviolates {property:?}:\n  {:?}", path.into_actions());
    }
    let model = checker.model();
    assert!(model.by_ring.load(Ordering::Relaxed) && model.back.load(Ordering::Relaxed), "{about}: one path only");
}

/// Finds the shortest counterexample to the order of stores.
pub(crate) fn fails(stores: u64, says: &[bool], bug: Bug) {
    let wanted = HasDiscoveries::AnyOf(BTreeSet::from([I8]));
    let checker = Handover::new(stores, says, Some(bug)).checker().finish_when(wanted).spawn_bfs().join();
    let Some(path) = checker.discoveries().remove(I8) else {
        panic!("{bug:?}: no interleaving of {} shows it", checker.unique_state_count());
    };
    println!("{bug:?} against {I8:?}:\n  {:?}\n", path.into_actions());
}
