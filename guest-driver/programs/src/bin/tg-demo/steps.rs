// SPDX-License-Identifier: MIT OR Apache-2.0
//! The steps, and what this process has for them.

use super::PATIENCE;
use super::pattern::{AREA, COUNTER, MARKS, Pattern, RUN, RUN_COUNT, SIZE, SIZES, TICKETS};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use telegraphos::{Node, NodeId, Queue, RemoteQueue, Replicated, Segment, State};
use telegraphos_agent::Figure;
use telegraphos_guest_tests::cli::{Failure, Outcome};
use telegraphos_guest_tests::peers::import_patiently;
use telegraphos_guest_tests::replica::{self, History};
use telegraphos_guest_tests::{queue, random, raw};

/// The segment that each node exports.
pub(crate) const DATA: &str = "demo-data";
const BOARD: &str = "demo-board";
const QUEUE: &str = "demo-queue";
const NODES: NodeId = 3;
/// Where the replicated page has its home, and where the words for atomics are.
const HOME: NodeId = 0;
/// Where the queue is.
const QUEUE_NODE: NodeId = 2;
/// Words of each of the queue's buffers, of which 4 are not for elements, and buffers behind the first.
const QUEUE_WORDS: u32 = 8;
const QUEUE_QUOTA: u32 = 4;
const WIDTH: u32 = 8;
/// How long a consumer waits for the next element.
const SILENCE: Duration = Duration::from_secs(10);
/// Between two stores to the replicated page, during which it is watched.
const PAUSE: Duration = Duration::from_micros(100);
/// Wrong words that are named.
const NAMED: u64 = 8;

/// What came of a step: operations, nanoseconds, wrong ones.
type Done = (u64, u64, u64);

pub(crate) struct Demo {
    node: Node,
    mine: Segment,
    queue: Option<Queue>,
    board: Option<Replicated>,
    remotes: BTreeMap<NodeId, telegraphos::Remote>,
    sink: Option<RemoteQueue>,
    tickets: Vec<u64>,
    painted: u64,
    history: History,
}

impl Demo {
    pub(crate) fn new(node: Node) -> Outcome<Demo> {
        let me = node.id();
        let queue = Queue::create(&node, QUEUE).wide().words(QUEUE_WORDS).quota(QUEUE_QUOTA);
        let queue = (me == QUEUE_NODE).then(|| queue.create()).transpose()?;
        let board = Replicated::create(&node, BOARD, replica::PAGE);
        let board = (me == HOME).then(|| board.create()).transpose()?;
        Ok(Demo {
            mine: node.export(DATA, SIZE).create()?,
            queue,
            board,
            node,
            remotes: BTreeMap::new(),
            sink: None,
            tickets: Vec::new(),
            painted: 0,
            history: History::new(NODES.into()),
        })
    }

    fn me(&self) -> NodeId {
        self.node.id()
    }

    /// Makes the step of that name.
    pub(crate) fn step(&mut self, name: &str, numbers: &[u64], broken: bool) -> Outcome<Figure> {
        let (count, ns, wrong) = match (name, numbers) {
            ("connect", []) => self.connect()?,
            ("store", [peer, seed]) => self.store(*peer, *seed)?,
            ("compare", [seed]) => self.compare(*seed, broken)?,
            ("fill", [seed]) => self.fill(*seed, broken)?,
            ("load", [peer, seed, count]) => self.load(*peer, *seed, *count)?,
            ("atomic", [count]) => self.atomic(*count)?,
            ("mark", []) => self.mark(broken)?,
            ("tickets", [count]) => self.check_tickets(*count)?,
            ("enqueue", [count]) => self.enqueue(*count)?,
            ("dequeue", [count, senders]) => self.dequeue(*count, *senders, broken)?,
            ("paint", [count]) => self.paint(*count)?,
            ("look", []) => self.look(broken)?,
            ("digest", []) => (replica::digest(self.board()?)?, 0, 0),
            ("quiet", []) => self.quiet()?,
            ("return", [peer, seed, count]) => self.store_again(*peer, *seed, *count, broken)?,
            ("arrived", [seed, count]) => self.arrived(*seed, *count)?,
            _ => return Err(Failure::Usage(format!("command {name:?} with {} numbers is unknown", numbers.len()))),
        };
        Ok(Figure::Step { node: self.me(), step: name.into(), count, ns, wrong })
    }

    fn board(&self) -> Outcome<&Replicated> {
        self.board.as_ref().ok_or_else(|| Failure::Usage("no copy of the replicated page: connect first".into()))
    }

    fn remote(&self, peer: u64) -> Outcome<&telegraphos::Remote> {
        let found = NodeId::try_from(peer).ok().and_then(|peer| self.remotes.get(&peer));
        found.ok_or_else(|| Failure::Usage(format!("nothing of node {peer} is imported: connect first")))
    }

    /// Node 0 imports its own memory, too: its processor's atomics are not atomic with the board's.
    fn connect(&mut self) -> Outcome<Done> {
        let begun = Instant::now();
        for peer in 0..NODES {
            let dead = |remote: &telegraphos::Remote| {
                Ok::<_, telegraphos::Error>(matches!(remote.state()?, State { dead: true, .. }))
            };
            if self.remotes.get(&peer).map(dead).transpose()?.unwrap_or(true) {
                self.remotes.insert(peer, import_patiently(&self.node, peer, DATA, PATIENCE)?);
            }
        }
        if self.board.is_none() {
            self.board = Some(replica::join_patiently(Replicated::join(&self.node, HOME, BOARD), PATIENCE)?);
        }
        if self.me() != QUEUE_NODE && self.sink.is_none() {
            self.sink = Some(queue::import_patiently(&self.node, QUEUE_NODE, QUEUE, PATIENCE)?);
        }
        Ok((self.remotes.len() as u64, nanoseconds(begun), 0))
    }

    /// Stores through a bare pointer; what an instruction took is measured until the last one returned, before any of
    /// them needs to have arrived.
    fn store(&self, peer: u64, seed: u64) -> Outcome<Done> {
        let remote = self.remote(peer)?;
        let (window, mut count, mut ns) = (remote.as_ptr(), 0, 0);
        for (number, pattern) in Pattern::all().enumerate() {
            let seed = random::derive(seed, number as u64);
            let begun = Instant::now();
            for index in 0..pattern.count() {
                let (offset, size) = pattern.at(index);
                // SAFETY: every offset of a pattern lies, aligned, within the segment, of SIZE bytes on each node.
                unsafe { raw::store_size(window, offset, size, random::word(seed, index)) };
            }
            ns += nanoseconds(begun);
            count += pattern.count();
        }
        remote.quiet()?;
        Ok((count, ns, 0))
    }

    /// Compares this node's own memory.
    fn compare(&self, seed: u64, broken: bool) -> Outcome<Done> {
        if broken {
            let (offset, _) = Pattern::Run.at(random::word(seed, u64::MAX) % RUN_COUNT);
            self.mine.store(offset, self.mine.load::<u64>(offset)? ^ 1)?;
        }
        let (mut count, mut wrong) = (0, 0);
        for (number, pattern) in Pattern::all().enumerate() {
            let seed = random::derive(seed, number as u64);
            for index in 0..pattern.count() {
                let (offset, size) = pattern.at(index);
                let expected = raw::masked(random::word(seed, index), size);
                wrong += self.differs(self.me(), offset, size, expected, raw::own(&self.mine, offset, size)?, wrong);
            }
            count += pattern.count();
        }
        Ok((count, 0, wrong))
    }

    fn differs(&self, node: NodeId, offset: u64, size: usize, expected: u64, found: u64, before: u64) -> u64 {
        if expected == found {
            return 0;
        }
        if before < NAMED {
            let width = 2 + 2 * size;
            eprintln!("MISMATCH node={node} offset={offset:#x} expected={expected:#0width$x} found={found:#0width$x}");
        }
        1
    }

    fn fill(&self, seed: u64, broken: bool) -> Outcome<Done> {
        for index in 0..AREA / 8 {
            // The last is the first that is loaded.
            let fault = u64::from(broken && index == AREA / 8 - 1) << 63;
            self.mine.store(index * 8, random::word(seed, index) ^ fault)?;
        }
        Ok((AREA / 8, 0, 0))
    }

    /// Loads from the other's memory, a quarter of them of each size, from the end of the area backwards.
    fn load(&self, peer: u64, seed: u64, count: u64) -> Outcome<Done> {
        let window = self.remote(peer)?.as_ptr();
        let (mut done, mut ns, mut wrong) = (0, 0, 0);
        for size in SIZES {
            for number in 0..(count / 4).min(AREA / 8) {
                let offset = AREA - (number + 1) * size as u64;
                let begun = Instant::now();
                // SAFETY: it lies, aligned, in the area, which is within the segment.
                let found = unsafe { raw::load_size(window, offset, size) };
                ns += nanoseconds(begun);
                let word = random::word(seed, offset / 8);
                let expected = raw::masked(word >> (8 * (offset % 8)), size);
                wrong += self.differs(peer as NodeId, offset, size, expected, found, wrong);
                done += 1;
            }
        }
        Ok((done, ns, wrong))
    }

    fn atomic(&mut self, count: u64) -> Outcome<Done> {
        let remote = self.remote(HOME.into())?;
        let begun = Instant::now();
        let tickets = (0..count).map(|_| remote.fetch_inc(COUNTER)).collect::<Result<Vec<u64>, _>>()?;
        let ns = nanoseconds(begun);
        self.tickets = tickets;
        Ok((count, ns, 0))
    }

    /// Two equal tickets leave a place without a mark.
    fn mark(&mut self, broken: bool) -> Outcome<Done> {
        if let (true, [first, second, ..]) = (broken, self.tickets.as_mut_slice()) {
            *first = *second;
        }
        let (mark, remote) = (u64::from(self.me()) + 1, self.remote(HOME.into())?);
        for ticket in self.tickets.iter().filter(|ticket| **ticket < TICKETS) {
            remote.put64(MARKS + ticket * 8, mark)?;
        }
        remote.quiet()?;
        Ok((self.tickets.len() as u64, 0, 0))
    }

    /// Each ticket was drawn once, and the word counts all.
    fn check_tickets(&self, count: u64) -> Outcome<Done> {
        let mut wrong = self.differs(HOME, COUNTER, 8, count, self.mine.load(COUNTER)?, 0);
        for ticket in 0..count.min(TICKETS) {
            if self.mine.load::<u64>(MARKS + ticket * 8)? == 0 {
                eprintln!("MISMATCH node={HOME} ticket={ticket} was drawn by no node");
                wrong += 1;
            }
        }
        Ok((count, 0, wrong))
    }

    fn enqueue(&self, count: u64) -> Outcome<Done> {
        let sink = self.sink.as_ref().ok_or_else(|| Failure::Usage("no queue is imported: connect first".into()))?;
        let begun = Instant::now();
        for number in 0..count as u32 {
            sink.enqueue(queue::element(WIDTH, self.me().into(), number))?;
        }
        Ok((count, nanoseconds(begun), 0))
    }

    /// Takes `count` elements out; those of each sender must be its next ones.
    fn dequeue(&self, count: u64, senders: u64, broken: bool) -> Outcome<Done> {
        let queue = self.queue.as_ref().ok_or_else(|| Failure::Usage("the queue is not here".into()))?;
        let begun = Instant::now();
        let mut next = vec![0u32; senders as usize];
        let (mut came, mut wrong) = (0, 0);
        while came < count {
            let Some(element) = queue.pop_wait(Some(SILENCE))? else { break };
            came += 1;
            if broken && came == 5 {
                continue;
            }
            let parsed = queue::parse(WIDTH, element);
            match parsed.and_then(|(sender, number)| Some((next.get_mut(sender as usize)?, number))) {
                Some((next, number)) => {
                    if *next != number {
                        eprintln!("MISMATCH element={element:#x} expected number {next}, found {number}");
                        wrong += 1;
                    }
                    *next = number + 1;
                }
                None => {
                    eprintln!("MISMATCH element={element:#x} was sent by no node");
                    wrong += 1;
                }
            }
        }
        if came < count {
            eprintln!("MISMATCH {} of {count} elements did not come", count - came);
        }
        Ok((came, nanoseconds(begun), wrong + (count - came)))
    }

    /// Stores to the one word that all nodes store to, and watches this node's copy of it meanwhile.
    fn paint(&mut self, count: u64) -> Outcome<Done> {
        let me = u64::from(self.me());
        let mut ns = 0;
        for _ in 0..count {
            self.painted += 1;
            let begun = Instant::now();
            self.board()?.store(0, replica::value(me, self.painted))?;
            ns += nanoseconds(begun);
            while begun.elapsed() < PAUSE {
                self.watch()?;
            }
        }
        Ok((count, ns, 0))
    }

    /// A raw read: its order is that of the home, and it needs nothing from the board.
    fn watch(&mut self) -> Outcome<()> {
        let copy = self.board()?.as_ptr().cast_mut();
        // SAFETY: the first word of the copy, which is mapped as long as the board is there.
        let value = unsafe { raw::load::<u64>(copy, 0) };
        self.history.look(value).map_err(Failure::Refused)
    }

    fn look(&mut self, broken: bool) -> Outcome<Done> {
        if broken {
            self.board()?.store(0, replica::value(self.me().into(), 1))?;
            self.quiet()?;
        }
        self.watch()?;
        let History { changes, older, .. } = self.history;
        if older > 0 {
            eprintln!("MISMATCH node={} saw {older} values of the replicated page after later ones", self.me());
        }
        Ok((changes, 0, older))
    }

    fn quiet(&self) -> Outcome<Done> {
        let begun = Instant::now();
        self.node.quiet()?;
        Ok((1, nanoseconds(begun), 0))
    }

    /// Where the words of a sender to a node that was away begin.
    fn place(sender: NodeId, count: u64) -> u64 {
        RUN + u64::from(sender) * count * 8
    }

    fn store_again(&self, peer: u64, seed: u64, count: u64, broken: bool) -> Outcome<Done> {
        let (remote, seed) = (self.remote(peer)?, random::derive(seed, self.me().into()));
        let begun = Instant::now();
        for index in 0..count {
            let fault = u64::from(broken && index == count / 2);
            remote.put64(Demo::place(self.me(), count) + index * 8, random::word(seed, index) ^ fault)?;
        }
        let ns = nanoseconds(begun);
        remote.quiet()?;
        Ok((count, ns, 0))
    }

    /// The words that were stored after this node's return are there, and no others are.
    fn arrived(&self, seed: u64, count: u64) -> Outcome<Done> {
        let mut wrong = 0;
        for sender in 0..NODES - 1 {
            let seed = random::derive(seed, sender.into());
            for index in 0..count {
                let (offset, expected) = (Demo::place(sender, count) + index * 8, random::word(seed, index));
                wrong += self.differs(self.me(), offset, 8, expected, self.mine.load(offset)?, wrong);
            }
        }
        for offset in (0..RUN).chain(Demo::place(NODES - 1, count)..SIZE).step_by(8) {
            wrong += self.differs(self.me(), offset, 8, 0, self.mine.load(offset)?, wrong);
        }
        Ok((count * u64::from(NODES - 1), 0, wrong))
    }
}

fn nanoseconds(begun: Instant) -> u64 {
    begun.elapsed().as_nanos() as u64
}
