// SPDX-License-Identifier: MIT OR Apache-2.0
//! A seeded simulation of notification queues: four nodes over the real switch, a queue and a plain segment at each,
//! every node enqueues to every node after a store that announces the element; the schedule decides when consumers and
//! handlers run; and faults.
//!
//! The checks, for every schedule and all faults:
//!
//! - I9, I10: elements of one node through one import are dequeued in its order, none twice; without a fault all of
//!   them.
//! - I8: a consumer that takes an element finds its sender's earlier stores.
//! - I7, E20: when quiet of an import reports success, all its elements are in the queue or out of it.
//! - I13: loads are answered while queues are stopped; in the end nothing is outstanding anywhere.
//! - A sender never has more elements in flight than it has reserved.
//!
//! A failure prints its seed: `TELEGRAPHOS_SEED=n cargo test -p telegraphos-device-core queues_simulation::`
//! replays it.

use crate::common::queues::Owner;
use crate::common::{self, ALL, Cluster, Driver, grant_clear, import_clear, name64, over_seeds};
use std::collections::BTreeMap;
use telegraphos_device_core::Bug;
use telegraphos_wire::admin::{self, Command};
use telegraphos_wire::context;

const NODES: u16 = 4;
/// Number of actions of the programs in a schedule.
const ACTIONS: usize = 300;
const HOLD: u32 = 3;
/// Export page of the queue; the segment has page 0.
const PAGE: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Enqueue,
    Load,
    Quiet,
    Pop,
    Overflow,
    Revoke,
    Flap,
    Reset,
}

const KINDS: [Kind; 8] =
    [Kind::Enqueue, Kind::Load, Kind::Quiet, Kind::Pop, Kind::Overflow, Kind::Revoke, Kind::Flap, Kind::Reset];

/// A sender's imports of another node: of its segment and of its queue.
#[derive(Clone, Default)]
struct Imports {
    sound: bool,
    /// Elements sent through the current one.
    sent: Vec<u64>,
    /// A pending quiet: its cookie, and the number of elements that it covers.
    quiet: Option<(u64, usize)>,
}

struct World {
    cluster: Cluster,
    owners: Vec<Owner>,
    /// By sender, then by destination.
    imports: Vec<Vec<Imports>>,
    next: u64,
    /// Taken from each node's current queue.
    taken: Vec<Vec<u64>>,
    loads: Vec<(u16, u64)>,
    faulty: bool,
    tally: BTreeMap<Kind, u64>,
}

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> World {
        let mut cluster = Cluster::switched(NODES, seed, |c| {
            c.bug = bug;
            c.outstanding = 2;
            c.credits = [4; 4];
            c.hold = HOLD;
            c.congest_at = 12;
            c.clear_at = 4;
        });
        if seed % 2 == 1 {
            cluster.use_rings(true);
        }
        let owners = (0..NODES).map(|id| World::own(&mut cluster, id)).collect();
        let mut world = World {
            cluster,
            owners,
            imports: vec![vec![Imports::default(); usize::from(NODES)]; usize::from(NODES)],
            next: 0,
            taken: vec![Vec::new(); usize::from(NODES)],
            loads: Vec::new(),
            faulty: false,
            tally: BTreeMap::new(),
        };
        for from in 0..NODES {
            for to in 0..NODES {
                world.import(from, to);
            }
        }
        world
    }

    /// The actions of exporter and queue owner on a new board.
    fn own(cluster: &mut Cluster, id: u16) -> Owner {
        cluster.export(id, "segment", 0, 1, ALL);
        Owner::new(cluster, id, PAGE, "queue", 8, 8)
    }

    /// Imports of the segment and the queue of `to`: numbers and window slots.
    fn numbers(to: u16) -> [u16; 2] {
        [2 * to, 2 * to + 1]
    }

    fn import(&mut self, from: u16, to: u16) {
        for number in World::numbers(to) {
            let clear = import_clear(number);
            // An import with elements in flight closes when they have arrived: a consumer must take them.
            let slot = self.cluster.post(from, clear);
            for _ in 0..100_000 {
                if self.cluster.completion(from, slot).seq != 0 && !self.cluster.step() {
                    break;
                }
                self.cluster.step();
                for to in 0..NODES {
                    self.handle(to);
                }
            }
        }
        let found = ["segment", "queue"].map(|name| self.cluster.lookup(from, to, name).status == 0);
        if found == [true, true] {
            let [segment, queue] = World::numbers(to);
            self.cluster.import(from, to, "segment", segment, segment.into());
            self.cluster.import(from, to, "queue", queue, queue.into());
            self.imports[usize::from(from)][usize::from(to)] = Imports { sound: true, ..Imports::default() };
        }
    }

    fn count(&mut self, kind: Kind) {
        *self.tally.entry(kind).or_default() += 1;
    }

    fn handle(&mut self, at: u16) {
        let owner = &mut self.owners[usize::from(at)];
        if owner.is_stopped(&self.cluster) && owner.resumed(&self.cluster) {
            owner.handle(&mut self.cluster);
            self.count(Kind::Overflow);
        }
    }

    /// Takes the oldest element of a node's queue: its message must have arrived.
    fn pop(&mut self, at: u16) -> Result<bool, String> {
        let owner = &mut self.owners[usize::from(at)];
        if owner.is_stopped(&self.cluster) || !owner.resumed(&self.cluster) {
            return Ok(false);
        }
        let Some(value) = owner.pop(&mut self.cluster) else { return Ok(false) };
        self.count(Kind::Pop);
        let (sender, number) = (value >> 32, value & 0xffff_ffff);
        let announced = self.cluster.peek(at, 0, sender, 8);
        if announced < number {
            return Err(format!(
                "element {number} of node {sender} came to {at} before its message, which is {announced}"
            ));
        }
        self.taken[usize::from(at)].push(value);
        Ok(true)
    }

    fn act(&mut self, from: u16, to: u16) -> Result<(), String> {
        let (f, t) = (usize::from(from), usize::from(to));
        if !self.imports[f][t].sound {
            self.import(from, to);
            return Ok(());
        }
        let [segment, queue] = World::numbers(to).map(u32::from);
        match self.cluster.rng.below(10) {
            0 => {
                self.count(Kind::Load);
                let address = self.cluster.address(to, segment, 512);
                let token = self.cluster.start_load(from, address, 8);
                self.loads.push((from, token));
            }
            1 if self.imports[f][t].quiet.is_none() => {
                self.count(Kind::Quiet);
                let cookie = self.cluster.cookie();
                self.imports[f][t].quiet = Some((cookie, self.imports[f][t].sent.len()));
                self.cluster.start_quiet(from, u64::from(to), queue.into(), cookie);
            }
            _ => {
                self.count(Kind::Enqueue);
                self.next += 1;
                let value = u64::from(from) << 32 | self.next;
                self.cluster.store(from, self.cluster.address(to, segment, u64::from(from) * 8), 8, self.next);
                self.cluster.enqueue(from, to, queue, 8, value);
                self.imports[f][t].sent.push(value);
            }
        }
        let under_way = self.cluster.nodes[f].hib.elements_under_way(queue as u16);
        if under_way > HOLD { Err(format!("node {from} has {under_way} elements under way to {to}")) } else { Ok(()) }
    }

    /// All elements of a node's queue, in it and out of it.
    fn arrived(&self, at: u16) -> Vec<u64> {
        let owner = &self.owners[usize::from(at)];
        let mut out = self.taken[usize::from(at)].clone();
        out.extend(&owner.linked);
        let mut head = owner.header(&self.cluster, 1);
        let tail = owner.header(&self.cluster, 0);
        while head != tail {
            out.push(self.cluster.peek(at, PAGE, head.index.into(), 8));
            head = head.advanced();
        }
        out
    }

    fn check_quiets(&mut self) -> Result<(), String> {
        for from in 0..NODES {
            for to in 0..NODES {
                let imports = &mut self.imports[usize::from(from)][usize::from(to)];
                let Some((cookie, covered)) = imports.quiet else { continue };
                let (status, done) = self.cluster.quiet_word(from, to.into());
                if done != cookie {
                    continue;
                }
                imports.quiet = None;
                let covered = imports.sent[..covered].to_vec();
                let owner = &self.owners[usize::from(to)];
                // Between a resume and its answer the buffer belongs to driver and board.
                if status == 0 && imports.sound && owner.resumed(&self.cluster) && !owner.is_stopped(&self.cluster) {
                    let arrived = self.arrived(to);
                    if let Some(missing) = covered.iter().find(|value| !arrived.contains(value)) {
                        return Err(format!("quiet of node {from} to {to} is done, and {missing:#x} is not there"));
                    }
                }
            }
        }
        Ok(())
    }

    fn forget_imports_of(&mut self, node: u16, both: bool) {
        for other in 0..NODES {
            self.imports[usize::from(other)][usize::from(node)].sound = false;
            if both && other != node {
                self.imports[usize::from(node)][usize::from(other)].sound = false;
            }
        }
    }

    /// I9 and I10, for the current queue of a node.
    fn check_order(&self, at: u16) -> Result<(), String> {
        let arrived = self.arrived(at);
        for from in 0..NODES {
            let of_it: Vec<u64> = arrived.iter().copied().filter(|v| v >> 32 == u64::from(from)).collect();
            let sent = &self.imports[usize::from(from)][usize::from(at)].sent;
            if !self.faulty && of_it != *sent {
                return Err(format!("node {from} sent {sent:x?} to {at}, and {of_it:x?} came"));
            }
            if of_it.windows(2).any(|pair| pair[0] >= pair[1]) {
                return Err(format!("of node {from} came to {at}: {of_it:x?}"));
            }
        }
        Ok(())
    }

    fn fault(&mut self) -> Result<(), String> {
        self.faulty = true;
        let node = self.cluster.rng.below(usize::from(NODES)) as u16;
        let n = usize::from(node);
        match self.cluster.rng.below(3) {
            0 => {
                self.count(Kind::Flap);
                self.cluster.disconnect(node);
                self.cluster.some_steps(20);
                self.cluster.connect(node);
                let own = self.imports[n][n].sound;
                self.forget_imports_of(node, true);
                self.imports[n][n].sound = own;
            }
            1 => {
                self.count(Kind::Reset);
                self.cluster.reset(node);
                self.cluster.nodes[n].ram.fill(0);
                self.loads.retain(|(loader, _)| *loader != node);
                for imports in &mut self.imports[n] {
                    imports.quiet = None;
                }
                self.cluster.start(node);
                self.owners[n] = World::own(&mut self.cluster, node);
                self.taken[n].clear();
                self.forget_imports_of(node, true);
            }
            _ => {
                // The owner destroys its queue with elements in flight, and creates it again.
                let owner = &self.owners[n];
                if owner.resumed(&self.cluster) && !owner.is_stopped(&self.cluster) {
                    self.check_order(node)?;
                }
                self.count(Kind::Revoke);
                let name = name64("queue");
                self.cluster.admin(node, Command { opcode: admin::SEGMENT_WITHDRAW, name, ..Command::default() });
                self.cluster.ok(node, grant_clear(PAGE, 1));
                self.owners[n] = Owner::new(&mut self.cluster, node, PAGE, "queue", 8, 8);
                self.taken[n].clear();
                self.forget_imports_of(node, false);
            }
        }
        Ok(())
    }

    fn answered_loads(&mut self) {
        let nodes = &mut self.cluster.nodes;
        self.loads.retain(|(node, token)| nodes[usize::from(*node)].reads.remove(token).is_none());
    }
}

fn run(seed: u64, bug: Option<Bug>, tally: &mut BTreeMap<Kind, u64>) -> Result<(), String> {
    let mut world = World::new(seed, bug);
    let faults = seed % 2 == 1;
    let mut actions = 0;
    while actions < ACTIONS {
        match world.cluster.rng.below(1000) {
            0..=3 if faults => world.fault()?,
            0..=199 => {
                let (from, to) = (world.cluster.rng.below(4) as u16, world.cluster.rng.below(4) as u16);
                world.act(from, to)?;
                actions += 1;
            }
            200..=299 => {
                let at = world.cluster.rng.below(4) as u16;
                world.pop(at)?;
            }
            300..=319 => {
                let at = world.cluster.rng.below(4) as u16;
                world.handle(at);
            }
            _ => {
                world.cluster.step();
            }
        }
        world.check_quiets()?;
        world.answered_loads();
    }
    // Queues stay stopped; everything else runs until no event is left.
    world.cluster.settle();
    world.answered_loads();
    if !world.loads.is_empty() {
        return Err(format!("{} loads wait for queues", world.loads.len()));
    }
    loop {
        let mut more = false;
        for at in 0..NODES {
            world.cluster.settle();
            more |= world.owners[usize::from(at)].is_stopped(&world.cluster);
            world.handle(at);
            while world.pop(at)? {
                more = true;
            }
        }
        if !more {
            break;
        }
    }
    world.check_quiets()?;
    for at in 0..NODES {
        world.check_order(at)?;
        for number in 0..2 * NODES {
            let under_way = world.cluster.hib(at).elements_under_way(number);
            if under_way != 0 {
                return Err(format!("{under_way} elements of import {number} of node {at} are never acknowledged"));
            }
        }
        if let Some((cookie, _)) = world.imports[usize::from(at)].iter().find_map(|imports| imports.quiet) {
            return Err(format!("quiet {cookie} of node {at} is never done"));
        }
    }
    for (kind, count) in world.tally {
        *tally.entry(kind).or_default() += count;
    }
    Ok(())
}

#[test]
fn i7_i8_i9_i10_i13_queues_on_random_schedules() {
    assert!(context::SLOT_COUNT >= u64::from(NODES), "a slot for each node's quiet");
    let mut tally = BTreeMap::new();
    let Some(seeds) = over_seeds(1_000, 100_000, |seed| run(seed, None, &mut tally)) else { return };
    println!("{seeds} schedules of {ACTIONS} actions on {NODES} nodes:");
    for kind in KINDS {
        let count = tally.get(&kind).copied().unwrap_or(0);
        println!("  {kind:?}: {count}");
        assert!(count > 0, "{kind:?} was never simulated");
    }
}

#[test]
fn each_deliberate_bug_is_seen() {
    for (bug, check) in [
        (Bug::NeverStop, "is done, and"),
        (Bug::ForgetPending, "is done, and"),
        (Bug::EnqueuePassesRequests, "before its message, which is"),
        (Bug::QuietIgnoresOutstanding, "is done, and"),
    ] {
        common::finds(bug, check, 0..500, |seed| run(seed, Some(bug), &mut BTreeMap::new()));
    }
}
