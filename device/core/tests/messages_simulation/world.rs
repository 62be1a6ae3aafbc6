// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes, what they export and import, and the choice of what happens next.

use super::pending::{Flying, Item, Sent, Transfer, Wanted};
use crate::common::queues::Owner;
use crate::common::{ALL, Cluster, Driver, EXPORTS, grant_clear, import_clear, name64};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use telegraphos_device_core::Bug as BoardBug;
use telegraphos_msg_core::layout::Layout;
use telegraphos_msg_core::{Bug, Config, Endpoint, Engine, Pattern, Place, Process, Way};
use telegraphos_wire::admin::{self, Command};
use telegraphos_wire::{UNIT, event};

pub(crate) const NODES: u16 = 3;
pub(crate) const PROCESSES: [Process; 4] = [
    Process { node: 0, number: 1 },
    Process { node: 0, number: 2 },
    Process { node: 1, number: 1 },
    Process { node: 2, number: 1 },
];
/// Threads of each process that receive; messages go to one more, which there is not.
pub(crate) const THREADS: u32 = 2;
/// Export pages of a process, and window slots of a process for another node: its queue, memory for long messages, and
/// an inbox for each process.
const PAGES: u32 = 8;
const QUEUE: u32 = 0;
const MEMORY: u32 = 1;
const MEMORY_PAGES: u32 = 2;
pub(crate) const INBOXES: u32 = MEMORY + MEMORY_PAGES;
/// Window slots for a process of another node: its inbox, its queue, and its memory.
const WINDOWS: u32 = 4;
/// Bytes that memory is allocated in.
const CHUNK: u64 = 256;
/// The longest message: several blocks of a stream.
const LONGEST: u64 = 20_000;

/// Number of events by kind.
pub(crate) type Tally = BTreeMap<&'static str, u64>;

/// What a process imports of another one.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    Inbox,
    Queue,
    Memory,
}

/// What a process has for another one.
#[derive(Default)]
pub(crate) struct Link {
    /// The other has not gone, or is connected again.
    pub(crate) up: bool,
    /// What its elements carry: another one for each connection.
    pub(crate) key: u32,
    /// What is to be done with it, in this order.
    pub(crate) items: VecDeque<Item>,
    /// Packets that the other has posted and this one has not taken: a record of the test.
    pub(crate) coming: VecDeque<Flying>,
}

pub(crate) struct Program {
    pub(crate) engine: Engine,
    pub(crate) queue: Owner,
    pub(crate) links: Vec<Link>,
    /// Chunks of its memory that are in use: of sends, and of receives.
    memory: [Vec<bool>; MEMORY_PAGES as usize],
    pub(crate) alive: bool,
    /// Percent of its turns in which it looks at its queue.
    pace: u64,
}

pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) config: Config,
    pub(crate) layout: Layout,
    pub(crate) programs: Vec<Program>,
    pub(crate) transfers: Vec<Transfer>,
    pub(crate) sends: Vec<Sent>,
    pub(crate) receives: Vec<Wanted>,
    /// Sends that have arrived and are not matched, in the order of their arrival: what the plain list says.
    pub(crate) arrived: Vec<usize>,
    /// The last send of one thread to another that has arrived.
    pub(crate) last: BTreeMap<(Endpoint, Endpoint), usize>,
    /// Sends whose bytes a board has moved (I17), and from which on.
    pub(crate) moved: BTreeSet<(usize, u64)>,
    /// The sends whose requests were put into slots last: of whom, at whom, and which slot.
    pub(crate) requests: BTreeMap<(usize, usize, u16), Option<usize>>,
    pub(crate) closed: BTreeSet<Endpoint>,
    /// Processes that others have lost: by whom, and of whom.
    pub(crate) lost: BTreeSet<(usize, usize)>,
    /// Nodes without a link.
    pub(crate) absent: BTreeSet<u16>,
    pub(crate) faulty: bool,
    pub(crate) tally: Tally,
    turns: u64,
    keys: u32,
}

/// Which of the processes of its node it is: its context there.
pub(crate) fn context(who: usize) -> u16 {
    PROCESSES[who].number as u16 - 1
}

pub(crate) fn node(who: usize) -> u16 {
    PROCESSES[who].node
}

pub(crate) fn which(process: Process) -> usize {
    PROCESSES.iter().position(|of| *of == process).unwrap()
}

/// First export page of a process.
pub(crate) fn pages(who: usize) -> u32 {
    u32::from(context(who)) * PAGES
}

/// Number of an import.
pub(crate) fn import(who: usize, of: usize, part: Part) -> u16 {
    (usize::from(context(who)) * PROCESSES.len() + of) as u16 * 3 + part as u16
}

fn slot(who: usize, of: usize, part: Part) -> u32 {
    u32::from(context(who)) * PAGES + u32::from(context(of)) * WINDOWS + part as u32
}

fn config(cluster: &mut Cluster, bug: Option<Bug>) -> Config {
    let random = &mut cluster.rng;
    let fragments = 1 + random.below(4_u16);
    let block = 1 + random.below(64_u32);
    let room = u64::from(block) * u64::from(fragments);
    let eager = if random.percent(50) { room } else { random.below(room + 1) };
    Config {
        slots: 1 + random.below(4_u16),
        block,
        fragments,
        eager,
        eager_floor: if random.percent(50) { eager } else { random.below(eager + 1) },
        longest: LONGEST,
        way: if random.percent(50) { Way::Get } else { Way::Put },
        chains: 1 + random.below(4_u16),
        bug,
        ..Config::default()
    }
}

impl World {
    pub(crate) fn new(seed: u64, bug: Option<Bug>, board: Option<BoardBug>) -> World {
        let mut cluster = Cluster::switched(NODES, seed, |c| {
            c.bug = board;
            c.outstanding = 2 + (seed % 3) as u32;
            c.credits = [4; 4];
            c.hold = 3;
            c.congest_at = 12;
            c.clear_at = 4;
        });
        if cluster.rng.percent(50) {
            cluster.use_rings(true);
        }
        let config = config(&mut cluster, bug);
        let words = [8, 8, 16, 64][cluster.rng.below(4_usize)];
        let programs = (0..PROCESSES.len()).map(|who| World::begin(&mut cluster, &config, who, words)).collect();
        let mut world = World {
            layout: Layout::of(&config),
            cluster,
            config,
            programs,
            transfers: Vec::new(),
            sends: Vec::new(),
            receives: Vec::new(),
            arrived: Vec::new(),
            last: BTreeMap::new(),
            moved: BTreeSet::new(),
            requests: BTreeMap::new(),
            closed: BTreeSet::new(),
            lost: BTreeSet::new(),
            absent: BTreeSet::new(),
            faulty: false,
            tally: Tally::new(),
            turns: 0,
            keys: 0x5eed_0000,
        };
        for who in 0..PROCESSES.len() {
            for of in 0..PROCESSES.len() {
                world.connect(who, of);
            }
        }
        world
    }

    /// A process makes what others import.
    fn begin(cluster: &mut Cluster, config: &Config, who: usize, words: u32) -> Program {
        let (node, first) = (node(who), pages(who));
        if context(who) > 0 {
            cluster.open_context(node, context(who));
        }
        let queue = Owner::new(cluster, node, first + QUEUE, &format!("queue.{who}"), words, 8);
        cluster.export(node, &format!("memory.{who}"), first + MEMORY, MEMORY_PAGES, ALL);
        assert!(Layout::of(config).size() <= UNIT, "an inbox is a page");
        (0..PROCESSES.len()).for_each(|other| World::make_inbox(cluster, who, other));
        let mut engine = Engine::new(config.clone()).unwrap();
        (0..THREADS).for_each(|thread| engine.open(thread).unwrap());
        let chunks = || vec![false; (UNIT / CHUNK) as usize];
        Program {
            engine,
            queue,
            links: (0..PROCESSES.len()).map(|_| Link::default()).collect(),
            memory: [chunks(), chunks()],
            alive: true,
            pace: 100,
        }
    }

    fn make_inbox(cluster: &mut Cluster, who: usize, of: usize) {
        let page = pages(who) + INBOXES + of as u32;
        cluster.export(node(who), &format!("inbox.{who}.{of}"), page, 1, ALL);
    }

    /// Two processes that have lost each other, and whose boards have not, connect again: each makes another inbox, and
    /// what they said before is not heard.
    pub(crate) fn connect_again(&mut self, who: usize, of: usize) {
        let apart = |who: usize, of: usize| {
            let (program, link) = (&self.programs[who], &self.programs[who].links[of]);
            program.alive && !link.up && link.items.is_empty() && !self.absent.contains(&node(who))
        };
        if !apart(who, of) || !apart(of, who) {
            return;
        }
        for (who, of) in [(who, of), (of, who)] {
            // Their boards may not know of each other yet.
            if self.cluster.lookup(node(who), node(of), &format!("memory.{of}")).status != 0 {
                return;
            }
        }
        self.count("processes that connect again", 1);
        for (who, of) in [(who, of), (of, who)] {
            let name = name64(&format!("inbox.{who}.{of}"));
            let index = pages(who) + INBOXES + of as u32;
            for command in
                [Command { opcode: admin::SEGMENT_WITHDRAW, name, ..Command::default() }, grant_clear(index, 1)]
            {
                self.cluster.ok(node(who), command);
            }
            World::make_inbox(&mut self.cluster, who, of);
            for part in [Part::Inbox, Part::Queue, Part::Memory] {
                let import = import(who, of, part);
                self.cluster.ok(node(who), import_clear(import));
            }
        }
        self.connect(who, of);
        self.connect(of, who);
    }

    fn connect(&mut self, who: usize, of: usize) {
        let names = [format!("inbox.{of}.{who}"), format!("queue.{of}"), format!("memory.{of}")];
        for (part, name) in [Part::Inbox, Part::Queue, Part::Memory].into_iter().zip(names) {
            let (number, slot) = (import(who, of, part), slot(who, of, part));
            self.cluster.import_into(node(who), context(who), node(of), &name, number, slot);
        }
        self.programs[who].engine.connect(PROCESSES[of]).unwrap();
        self.keys += 1;
        let link = &mut self.programs[who].links[of];
        (link.up, link.key) = (true, self.keys);
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.cluster.rng.below(n)
    }

    pub(crate) fn count(&mut self, what: &'static str, n: u64) {
        *self.tally.entry(what).or_default() += n;
    }

    // ---- memory ----

    /// Address, in its node's memory, of a place in a process's memory for long messages.
    pub(crate) fn memory_at(who: usize, place: Place) -> u64 {
        EXPORTS + u64::from(pages(who) + MEMORY) * UNIT + place.0
    }

    /// Address, in its node's memory, of what is in the inbox of a process for another one.
    pub(crate) fn inbox_at(who: usize, of: usize, at: u64) -> u64 {
        EXPORTS + (u64::from(pages(who) + INBOXES) + of as u64) * UNIT + at
    }

    pub(crate) fn ram(&mut self, who: usize) -> &mut [u8] {
        &mut self.cluster.nodes[usize::from(node(who))].ram
    }

    /// The window address at which a process reaches a part of another one.
    pub(crate) fn window(&self, who: usize, of: usize, part: Part, at: u64) -> u64 {
        self.cluster.address(node(of), slot(who, of, part), at)
    }

    /// Appends to the queue of another process.
    pub(crate) fn enqueue(&mut self, who: usize, of: usize, element: u64) {
        self.cluster.enqueue(node(who), node(of), slot(who, of, Part::Queue), 8, element);
    }

    /// A place for so many bytes and some before and after them, at any address; of a receive, or of a send.
    pub(crate) fn allocate(&mut self, who: usize, receive: bool, bytes: u64) -> Option<Place> {
        let shift = 8 + self.below(16) as u64;
        let (page, wanted) = (usize::from(receive), (shift + bytes + 8).div_ceil(CHUNK) as usize);
        let chunks = &mut self.programs[who].memory[page];
        let first = chunks.windows(wanted).position(|free| !free.contains(&true))?;
        chunks[first..first + wanted].fill(true);
        Some(Place(page as u64 * UNIT + first as u64 * CHUNK + shift))
    }

    pub(crate) fn free(&mut self, who: usize, place: Place, bytes: u64) {
        let (page, at) = ((place.0 / UNIT) as usize, place.0 % UNIT);
        let used = (at / CHUNK) as usize..(at + bytes + 8).div_ceil(CHUNK) as usize;
        assert!(!self.programs[who].memory[page][used.clone()].contains(&false), "memory is freed twice");
        self.programs[who].memory[page][used].fill(false);
    }

    // ---- the choice ----

    /// TG_IMPORT_* bits of an import, with its error.
    pub(crate) fn import_state(&self, who: usize, of: usize, part: Part) -> u64 {
        self.cluster.hib(node(who)).import_state(import(who, of, part))
    }

    pub(crate) fn is_congested(&self, who: usize, of: usize) -> bool {
        let congested = |part| self.import_state(who, of, part) & event::IMPORT_CONGESTED != 0;
        congested(Part::Inbox) || congested(Part::Queue)
    }

    /// Something happens. True if it was an operation of a program.
    pub(crate) fn turn(&mut self) -> Result<bool, String> {
        if self.turns % 1000 == 0 {
            for who in 0..PROCESSES.len() {
                self.programs[who].pace = [0, 5, 100, 100][self.below(4)];
            }
        }
        self.turns += 1;
        let (who, of) = (self.below(PROCESSES.len()), self.below(PROCESSES.len()));
        match self.below(1000) {
            0..30 => return self.operation(who),
            30..230 => drop(self.advance(who, of)?),
            230..330 => {
                if self.cluster.rng.percent(self.programs[who].pace) {
                    self.pop(who)?;
                }
            }
            330..350 => drop(self.handle_overflow(who)),
            350..400 => drop(self.transfer()?),
            400..405 => self.probe(who, of),
            405..410 => drop(self.look(who)?),
            410..430 if who != of => self.connect_again(who, of),
            _ => drop(self.cluster.step()),
        }
        Ok(false)
    }

    fn endpoint(&mut self, threads: u32) -> Endpoint {
        Endpoint { process: PROCESSES[self.below(PROCESSES.len())], thread: self.cluster.rng.below(threads) }
    }

    fn pattern(&mut self) -> Pattern {
        let from = self.endpoint(THREADS);
        let random = &mut self.cluster.rng;
        Pattern {
            process: random.percent(70).then_some(from.process),
            thread: random.percent(70).then_some(from.thread),
            tag: random.percent(70).then(|| random.below(2)),
        }
    }

    /// Bytes of a message: most are near a bound.
    fn length(&mut self) -> u64 {
        let (block, eager) = (u64::from(self.config.block), self.config.eager);
        let near = |bound: u64, random: u64| (bound + random).saturating_sub(1);
        let any = self.below(3) as u64;
        match self.below(20) {
            0 => 0,
            1..=4 => near(block, any),
            5..=8 => near(eager, any),
            9..=10 => near(2 * block, any),
            11..=17 => self.below(300) as u64,
            18 => self.below(3000) as u64,
            _ => self.below(LONGEST as usize) as u64,
        }
    }

    fn operation(&mut self, who: usize) -> Result<bool, String> {
        if !self.programs[who].alive {
            return Ok(false);
        }
        match self.below(100) {
            0..46 => {
                let (from, to) = (self.cluster.rng.below(THREADS), self.endpoint(THREADS));
                let to = if self.below(50) == 0 { Endpoint { thread: THREADS, ..to } } else { to };
                let (tag, length) = (self.cluster.rng.below(2), self.length());
                self.send(who, from, to, tag, length)
            }
            46..92 => {
                let (thread, pattern) = (self.cluster.rng.below(THREADS), self.pattern());
                let capacity = if self.below(4) > 0 { LONGEST / 8 } else { self.length() };
                self.receive(who, thread, pattern, capacity).map(|receive| receive.is_some())
            }
            92..95 => self.withdraw_a_send(who),
            95..99 => self.withdraw_a_receive(who),
            _ if self.below(3) == 0 => {
                let thread = self.cluster.rng.below(THREADS);
                self.close(Endpoint { process: PROCESSES[who], thread })
            }
            _ => Ok(false),
        }
    }
}
