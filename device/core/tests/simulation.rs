// SPDX-License-Identifier: MIT OR Apache-2.0
//! A seeded simulation of whole clusters: real boards, the real switch, random schedules and faults.
//!
//! Every source stores numbered values into every destination. For every schedule and all faults, the stores that a
//! destination performs of one *session* of an import (from its opening to its end) are a prefix of those issued, in
//! order, each once; a session without a fault loses none; quiet reports success only for performed stores. A failure
//! prints its seed: `TELEGRAPHOS_SEED=n cargo test -p telegraphos-device-core prefix_of_every_session` replays it.

use crate::common::{self, Cluster, Driver, grant_clear, import_clear, import_set, over_seeds, withdraw};
use std::collections::BTreeMap;
use telegraphos_device_core::{Bug, WindowStore};
use telegraphos_wire::Rights;
use telegraphos_wire::admin::Command;

const NODES: u16 = 4;
const STEPS: usize = 600;

/// The state of one import as its program sees it.
#[derive(Clone, Copy, Default)]
struct Session {
    number: u64,
    issued: u64,
    broken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    None,
    Reset,
    Crash,
    LinkFlap,
    Revoke,
    /// Something begins or ends to look at what a node exchanges: its rings are withdrawn, or used again.
    Observe,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Operation {
    Store,
    Stores,
    Load,
    Quiet,
    Import,
}

#[derive(Default)]
struct Tally {
    operations: BTreeMap<(Operation, Fault), u64>,
    /// Packets by rings.
    by_ring: u64,
    /// Rings that both ends have left while they were withdrawn.
    withdrawn: u64,
}

struct World {
    cluster: Cluster,
    /// sessions[src][dst]
    sessions: Vec<Vec<Session>>,
    /// Per destination: (entries of `performed` at its last loss of memory, sessions of each source then).
    wiped: Vec<(usize, Vec<u64>)>,
    last_fault: Fault,
    /// Stores are sometimes posted one after the other.
    several: bool,
    cookie: u64,
    tally: BTreeMap<(Operation, Fault), u64>,
}

/// `src | session | number`: the source, the session of the import, the ordinal of the store.
fn value(src: u16, session: u64, number: u64) -> u64 {
    u64::from(src) << 48 | session << 24 | number
}

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> World {
        let mut cluster = Cluster::switched(NODES, seed, |c| {
            c.bug = bug;
            // Three at a time are the minimum that a receiver can confuse: one in service, two behind it.
            c.outstanding = 2 + (seed % 2) as u32;
            c.credits = [8; 4];
            c.congest_at = 16;
            c.clear_at = 4;
        });
        if seed % 4 > 0 {
            cluster.use_rings(false);
        }
        let n = usize::from(NODES);
        let mut world = World {
            cluster,
            sessions: vec![vec![Session { broken: true, ..Session::default() }; n]; n],
            wiped: vec![(0, vec![0; n]); n],
            last_fault: Fault::None,
            several: seed % 3 > 0,
            cookie: 0,
            tally: BTreeMap::new(),
        };
        for node in 0..NODES {
            world.publish(node);
        }
        world
    }

    fn count(&mut self, operation: Operation) {
        *self.tally.entry((operation, self.last_fault)).or_default() += 1;
    }

    fn publish(&mut self, node: u16) {
        self.cluster.export(node, "segment", 0, 2, Rights(3));
    }

    fn session(&mut self, src: u16, dst: u16) -> &mut Session {
        &mut self.sessions[usize::from(src)][usize::from(dst)]
    }

    /// Closes a broken import and tries to open a new one.
    fn import(&mut self, src: u16, dst: u16) {
        self.cluster.admin(src, import_clear(dst));
        let found = self.cluster.lookup(src, dst, "segment");
        if found.status != 0 {
            return;
        }
        self.cluster.ok(src, Command { rights: 3, ..import_set(dst, dst, 0, &found) });
        let session = self.session(src, dst);
        *session = Session { number: session.number + 1, issued: 0, broken: false };
        self.count(Operation::Import);
    }

    /// A store, or several that are posted one after the other.
    fn store(&mut self, src: u16, dst: u16) {
        let several = self.several && self.cluster.rng.percent(30);
        let count = if several { 2 + self.cluster.rng.below(5) } else { 1 };
        let stores: Vec<WindowStore> = (0..count)
            .map(|_| {
                let session = self.session(src, dst);
                session.issued += 1;
                let data = value(src, session.number, session.issued);
                let word = self.cluster.rng.below(64) as u64 * 8 + u64::from(src) * 1024;
                WindowStore { offset: self.cluster.address(dst, 0, word), size: 8, data }
            })
            .collect();
        self.cluster.store_all(src, &stores);
        self.count(if count > 1 { Operation::Stores } else { Operation::Store });
    }

    /// A load of the source's own last word returns what it stored there, unless the import has failed meanwhile.
    fn load(&mut self, src: u16, dst: u16) -> Result<(), String> {
        let session = self.session(src, dst);
        session.issued += 1;
        let data = value(src, session.number, session.issued);
        let address = self.cluster.address(dst, 1, u64::from(src) * 8);
        self.cluster.store(src, address, 8, data);
        let found = self.cluster.load(src, address, 8);
        self.count(Operation::Load);
        match found {
            _ if found == data => Ok(()),
            u64::MAX => {
                self.session(src, dst).broken = true;
                Ok(())
            }
            _ => Err(format!("{src} stored {data:#x} to {dst} and loads {found:#x}")),
        }
    }

    fn quiet(&mut self, src: u16, dst: u16) -> Result<(), String> {
        let Session { number, issued, .. } = *self.session(src, dst);
        self.cookie += 1;
        let status = self.cluster.quiet(src, u64::from(dst), self.cookie);
        self.count(Operation::Quiet);
        if status != 0 {
            self.session(src, dst).broken = true;
            return Ok(());
        }
        let last = self.performed(src, dst, number).len() as u64;
        if last < issued {
            return Err(format!("quiet of {src} to {dst} at {issued} stores: only {last} have landed"));
        }
        Ok(())
    }

    fn performed(&self, src: u16, dst: u16, session: u64) -> Vec<u64> {
        let mine = |v: &u64| (v >> 48) as u16 == src && v >> 24 & 0xff_ffff == session;
        let performed = &self.cluster.nodes[usize::from(dst)].performed;
        performed.iter().map(|p| p.1).filter(mine).map(|v| v & 0xff_ffff).collect()
    }

    fn break_all(&mut self, node: u16, memory: bool) {
        for other in 0..NODES {
            self.session(other, node).broken = true;
            self.session(node, other).broken = true;
        }
        if memory {
            let sessions = (0..NODES).map(|src| self.sessions[usize::from(src)][usize::from(node)].number).collect();
            let performed = self.cluster.nodes[usize::from(node)].performed.len();
            self.wiped[usize::from(node)] = (performed, sessions);
        }
    }

    fn fault(&mut self, node: u16, fault: Fault) -> Result<(), String> {
        self.last_fault = fault;
        match fault {
            Fault::None => {}
            Fault::Reset => {
                self.cluster.reset(node);
                self.cluster.nodes[usize::from(node)].ram.fill(0);
                self.break_all(node, true);
                self.cluster.start(node);
                self.publish(node);
            }
            Fault::Crash => {
                self.cluster.replace(node);
                self.break_all(node, true);
                self.cluster.connect(node);
                self.cluster.start(node);
                self.publish(node);
            }
            Fault::LinkFlap => {
                self.cluster.disconnect(node);
                let own = *self.session(node, node);
                self.break_all(node, false);
                *self.session(node, node) = own; // Its own memory does not depend on the link.
                self.cluster.some_steps(20);
                self.cluster.connect(node);
            }
            Fault::Revoke => {
                self.cluster.ok(node, withdraw("segment"));
                self.cluster.ok(node, grant_clear(0, 2));
                let sessions: Vec<u64> =
                    (0..NODES).map(|src| self.sessions[usize::from(src)][usize::from(node)].number).collect();
                for other in 0..NODES {
                    self.session(other, node).broken = true;
                }
                self.wiped[usize::from(node)] = (self.cluster.nodes[usize::from(node)].performed.len(), sessions);
                self.publish(node);
            }
            Fault::Observe => {
                let nodes = [node];
                let begins = self.cluster.rng.below(2);
                self.cluster.observe(&nodes[..begins]);
            }
        }
        Ok(())
    }

    /// No store of an earlier session reaches revoked memory.
    fn check_wiped(&self) -> Result<(), String> {
        for dst in 0..NODES {
            let (from, sessions) = &self.wiped[usize::from(dst)];
            for (_, v) in &self.cluster.nodes[usize::from(dst)].performed[*from..] {
                let (src, session) = ((v >> 48) as usize, v >> 24 & 0xff_ffff);
                if session <= sessions[src] {
                    return Err(format!(
                        "a store of {src}, session {session}, landed in {dst} after its memory was revoked"
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_prefixes(&self) -> Result<(), String> {
        for src in 0..NODES {
            for dst in 0..NODES {
                let session = self.sessions[usize::from(src)][usize::from(dst)];
                for number in 1..=session.number {
                    let performed = self.performed(src, dst, number);
                    if performed.iter().enumerate().any(|(i, v)| *v != i as u64 + 1) {
                        return Err(format!("{src} to {dst}, session {number}: performed {performed:?}"));
                    }
                }
                let performed = self.performed(src, dst, session.number).len() as u64;
                if !session.broken && performed != session.issued {
                    return Err(format!("{src} to {dst}: {performed} of {} stores performed at rest", session.issued));
                }
            }
        }
        Ok(())
    }
}

fn run(seed: u64, bug: Option<Bug>, tally: &mut Tally) -> Result<(), String> {
    let mut world = World::new(seed, bug);
    for _ in 0..STEPS {
        let (src, dst) = (world.cluster.rng.below(4) as u16, world.cluster.rng.below(4) as u16);
        let broken = world.session(src, dst).broken;
        match world.cluster.rng.below(100) {
            0 => world.fault(dst, Fault::Reset)?,
            1 => world.fault(dst, Fault::Crash)?,
            2 => world.fault(dst, Fault::LinkFlap)?,
            3 => world.fault(dst, Fault::Revoke)?,
            95..=97 => world.fault(dst, Fault::Observe)?,
            4..=44 if broken => world.import(src, dst),
            // A program continues to store until it detects that its import has failed.
            4..=64 => world.store(src, dst),
            65..=69 if !broken => world.load(src, dst)?,
            70..=74 if !broken => world.quiet(src, dst)?,
            _ => {
                world.cluster.step();
            }
        }
        world.check_wiped()?;
    }
    world.cluster.settle();
    world.check_wiped()?;
    world.check_prefixes()?;
    if let Some(rings) = &world.cluster.rings {
        tally.by_ring += rings.packets;
        tally.withdrawn += rings.withdrawn;
    }
    for (key, count) in world.tally {
        *tally.operations.entry(key).or_default() += count;
    }
    Ok(())
}

#[test]
fn i8_i7_prefix_of_every_session_lands_once_in_order_whatever_fails() {
    let mut tally = Tally::default();
    let Some(seeds) = over_seeds(400, 20_000, |seed| run(seed, None, &mut tally)) else { return };
    println!("{seeds} seeds of {STEPS} steps; operations after each fault:");
    use Operation::{Import, Load, Quiet, Store, Stores};
    for operation in [Store, Stores, Load, Quiet, Import] {
        for fault in [Fault::None, Fault::Reset, Fault::Crash, Fault::LinkFlap, Fault::Revoke, Fault::Observe] {
            let count = tally.operations.get(&(operation, fault)).copied().unwrap_or(0);
            println!("  {operation:?} after {fault:?}: {count}");
            assert!(count > 0, "{operation:?} after {fault:?} was never simulated");
        }
    }
    println!("{} packets by rings, {} rings withdrawn", tally.by_ring, tally.withdrawn);
    assert!(tally.by_ring > 0 && tally.withdrawn > 0);
}

#[test]
fn the_simulation_sees_the_bugs() {
    for (bug, check) in [
        (Bug::QuietIgnoresOutstanding, "stores: only"),
        (Bug::ServeOutOfOrder, "performed ["),
        (Bug::IgnoreGeneration, "after its memory was revoked"),
        (Bug::DropWhenFull, "stores performed at rest"),
        (Bug::LeaveRingAtOnce, "performed ["),
    ] {
        common::finds(bug, check, 0..1000, |seed| run(seed, Some(bug), &mut Tally::default()));
    }
}
