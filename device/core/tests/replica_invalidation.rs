// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies that become invalid instead of being updated (`docs/replication.md`, "Invalidation"; SPEC item 28, E19,
//! E22b).

use crate::common::replicas::{
    FanOut, Ideal, NETS, Net, OWN, OneByOne, finds, go, is_orphaned, join, replicated, set, store, word,
};
use crate::common::{self, Cluster, Driver, atomic_steps, over_seeds, replica_clear, replica_invalid};
use telegraphos_device_core::Bug;
use telegraphos_wire::admin::{self, Command, ReplicaCommand};
use telegraphos_wire::regs::Register;
use telegraphos_wire::{AtomicOp, Status, context, event};

const NODES: u16 = 4;

/// The driver of each node: it maps a page when a processor reads it, and unmaps it on its board's event.
struct Drivers {
    mapped: Vec<bool>,
    /// Events of its ring that it has seen.
    seen: Vec<u32>,
    /// Number of unmaps of each node's page.
    unmapped: Vec<u32>,
    /// The command that fills each node's copy.
    fill: Vec<ReplicaCommand>,
}

impl Drivers {
    /// All copies are valid, and mapped.
    fn new(c: &mut Cluster) -> Drivers {
        let fill = (0..NODES).map(|id| set(c, id, 0, admin::INVALIDATE)).collect();
        Drivers {
            mapped: vec![true; c.nodes.len()],
            seen: vec![0; c.nodes.len()],
            unmapped: vec![0; c.nodes.len()],
            fill,
        }
    }

    /// The driver of a node reads its events.
    fn run(&mut self, c: &mut Cluster, id: u16) {
        let node = usize::from(id);
        while let Some((kind, _, value)) = c.take_event(id) {
            self.seen[node] += 1;
            c.register(id, Register::EventConsumer, u64::from(self.seen[node]));
            if kind == event::REPLICA && value & event::REPLICA_INVALID != 0 {
                self.mapped[node] = false;
                self.unmapped[node] += 1;
                c.post(id, replica_invalid(0));
            }
        }
    }

    fn run_all(&mut self, c: &mut Cluster) {
        (0..NODES).for_each(|id| self.run(c, id));
    }

    /// A processor reads a word: from the copy if it is mapped, else the driver's fault handler fills it first.
    fn read(&mut self, c: &mut Cluster, id: u16, offset: u64) -> Result<u64, String> {
        for _ in 0..1000 {
            if self.mapped[usize::from(id)] {
                return Ok(word(c, id, offset));
            }
            let before = self.unmapped[usize::from(id)];
            let slot = c.post(id, self.fill[usize::from(id)]);
            let seq = c.last_command(id);
            while c.completion(id, slot).seq != seq {
                if !c.step() {
                    return Err(format!("node {id}'s fault is never handled"));
                }
                self.run_all(c);
            }
            match Status::from_u16(c.completion(id, slot).status as u16) {
                Status::Ok => {}
                Status::Busy => {
                    self.run(c, id);
                    c.step();
                    continue;
                }
                status => return Err(format!("node {id}'s fault: {status:?}")),
            }
            // Mapped, unless it has become invalid again in the meantime.
            self.mapped[usize::from(id)] = self.unmapped[usize::from(id)] == before;
            self.run(c, id);
        }
        Err(format!("node {id} never gets a valid copy"))
    }
}

fn invalidating(net: Net, seed: u64, bug: Option<Bug>) -> (Cluster, Drivers) {
    let mut c = replicated(net, NODES, seed, admin::INVALIDATE, bug, |_| {});
    let drivers = Drivers::new(&mut c);
    (c, drivers)
}

/// When quiet has returned, no node can read an older value; a program reads its own stores once they are taken.
fn fence(net: Net, seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let (mut c, mut drivers) = invalidating(net, seed, bug);
    let mut taken = vec![0; usize::from(NODES)];
    for value in 1..=12u64 {
        let id = c.rng.below(NODES);
        store(&mut c, id, 0, 8, value);
        taken[usize::from(id)] += 1;
        c.start_quiet(id, 0, OWN.into(), 100 + value);
        while c.quiet_word(id, 0).1 != 100 + value {
            if !c.step() {
                let before = drivers.seen.clone();
                drivers.run_all(&mut c);
                if drivers.seen == before {
                    return Err("quiet never returns".into());
                }
            } else if c.rng.below(4) == 0 {
                let other = c.rng.below(NODES);
                drivers.run(&mut c, other);
            }
        }
        let count = common::replicas::taken(&c, id);
        let fault = |c: &Cluster, other: u16| {
            let found = word(c, other, 0);
            format!("E19: node {id} stored {value}, quiet is done, and node {other} can read {found}")
        };
        for other in 0..NODES {
            if drivers.mapped[usize::from(other)] && word(&c, other, 0) != value {
                return Err(fault(&c, other));
            }
        }
        if c.rng.below(2) == 0 {
            let other = c.rng.below(NODES);
            if drivers.read(&mut c, other, 0)? != value {
                return Err(fault(&c, other));
            }
        }
        // Its count may be in flight; it is never ahead.
        if count > taken[usize::from(id)] {
            return Err(format!("E22b: {count} stores of node {id} taken"));
        }
    }
    Ok(())
}

#[test]
fn i7_e19_after_quiet_no_read_returns_an_older_value() {
    for net in NETS {
        over_seeds(150, 10_000, |seed| fence(net, seed, None));
        finds(Bug::AcknowledgeMapped, "quiet is done, and node", |seed| fence(net, seed, Some(Bug::AcknowledgeMapped)));
    }
}

/// Every node stores, reads, and launches atomics; its own stores are read once they are counted (I4), no node reads x,
/// y, x (I5), and all copies are equal in the end.
fn chaos(net: Net, seed: u64) -> Result<(), String> {
    let (mut c, mut drivers) = invalidating(net, seed, None);
    let mut read = vec![Vec::new(); usize::from(NODES)];
    let mut sum = 0;
    let mut stores = vec![Vec::new(); usize::from(NODES)];
    for value in 1..=60u64 {
        let id = c.rng.below(NODES);
        store(&mut c, id, 0, 8, value);
        stores[usize::from(id)].push(value);
        for _ in 0..c.rng.below(16) {
            c.step();
            if c.rng.below(3) == 0 {
                let other = c.rng.below(NODES);
                drivers.run(&mut c, other);
            }
        }
        let id = c.rng.below(NODES);
        let count = common::replicas::taken(&c, id);
        let own = stores[usize::from(id)].get(..count as usize).and_then(|own| own.last()).copied();
        let found = drivers.read(&mut c, id, 0)?;
        // A value that was read or stored before must not return after another one.
        let seen = &mut read[usize::from(id)];
        if seen.last() != Some(&found) {
            if seen.contains(&found) {
                return Err(format!("I5: node {id} read {seen:?}, then {found}"));
            }
            seen.push(found);
        }
        if let Some(own) = own.filter(|own| *own != found) {
            let home: Vec<u64> = common::replicas::history(&c, 0, 0);
            let place = |value| home.iter().position(|v| *v == value);
            if place(found) < place(own) {
                return Err(format!("I4: node {id} has stored {own} and reads {found}; the home had {home:?}"));
            }
        }
        if c.rng.below(8) == 0 {
            let address = c.address(id, OWN.into(), 64);
            let cookie = c.cookie();
            let launch = context::Launch {
                operation: context::Operation::Atomic { op: AtomicOp::Add, size: 8 },
                notify: false,
                cookie,
            };
            c.launch(id, 0, 1, atomic_steps(launch, 1, 0, address));
            while c.done(id, 0, 1).1 != cookie {
                if !c.step() {
                    drivers.run_all(&mut c);
                }
            }
            sum += 1;
        }
    }
    loop {
        c.settle();
        let before = drivers.seen.clone();
        drivers.run_all(&mut c);
        if drivers.seen == before {
            break;
        }
    }
    c.settle();
    let last = word(&c, 0, 0);
    for id in 0..NODES {
        let count = common::replicas::taken(&c, id);
        if count != stores[usize::from(id)].len() as u64 {
            return Err(format!("E22b: {count} stores of node {id} taken, of {:?}", stores[usize::from(id)]));
        }
        let found = (drivers.read(&mut c, id, 0)?, drivers.read(&mut c, id, 64)?);
        if found != (last, sum) {
            return Err(format!("I2: node {id} reads {found:?}, the home has {last} and {sum} atomics were made"));
        }
        if c.quiet(id, OWN.into(), 999) != 0 {
            return Err(format!("a store of node {id} was lost"));
        }
        // A trapped load is performed at the home, after the node's own stores.
        let address = c.address(id, OWN.into(), 0);
        if c.load(id, address, 8) != last {
            return Err(format!("a trapped load of node {id} is not {last}"));
        }
    }
    Ok(())
}

#[test]
fn i2_i4_i5_copies_are_filled_again_when_they_are_read() {
    for net in NETS {
        over_seeds(200, 10_000, |seed| chaos(net, seed));
    }
}

/// A node's command; meanwhile all drivers run now and then. `Err` if it never completes.
fn complete(c: &mut Cluster, drivers: &mut Drivers, id: u16, command: Command) -> Result<Status, String> {
    let slot = c.post(id, command);
    let seq = c.last_command(id);
    while c.completion(id, slot).seq != seq {
        if !c.step() {
            let before = drivers.seen.clone();
            drivers.run_all(c);
            if drivers.seen == before {
                return Err(format!("{command:?} of node {id} is accepted and never filled"));
            }
        } else if c.rng.below(4) == 0 {
            let other = c.rng.below(NODES);
            drivers.run(c, other);
        }
    }
    Ok(Status::from_u16(c.completion(id, slot).status as u16))
}

/// A copy leaves and joins again while its home continues to store: what the node has refused in between, and what the
/// home learns of that only behind the Join, ends no copy.
fn rejoining(net: Net, rings: bool, seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let (mut c, mut drivers) = invalidating(net, seed, bug);
    if rings {
        c.use_rings(seed % 2 == 1);
    }
    let mut value = 0;
    for _ in 0..6 {
        for _ in 0..c.rng.below(12) {
            value += 1;
            store(&mut c, 0, 0, 8, value);
            c.some_steps(6);
        }
        let leave = replica_clear(0);
        drivers.mapped[1] = false;
        let left = complete(&mut c, &mut drivers, 1, leave)?;
        for _ in 0..c.rng.below(12) {
            value += 1;
            store(&mut c, 0, 0, 8, value);
            c.some_steps(6);
        }
        let before = drivers.unmapped[1];
        let fill = drivers.fill[1].into();
        let joined = complete(&mut c, &mut drivers, 1, fill)?;
        if (left, joined) != (Status::Ok, Status::Ok) {
            return Err(format!("node 1 leaves: {left:?}; joins again: {joined:?}"));
        }
        drivers.mapped[1] = drivers.unmapped[1] == before;
    }
    loop {
        c.settle();
        let before = drivers.seen.clone();
        drivers.run_all(&mut c);
        if drivers.seen == before {
            break;
        }
    }
    match drivers.read(&mut c, 1, 0)? {
        found if found == value => Ok(()),
        found => Err(format!("E19: node 1 reads {found}: expected {value}")),
    }
}

#[test]
fn e20_what_a_copy_has_refused_ends_no_copy_that_joins_afterwards() {
    for (net, rings) in [(Ideal, false), (OneByOne, false), (FanOut(None), true), (OneByOne, true)] {
        over_seeds(200, 10_000, |seed| rejoining(net, rings, seed, None));
    }
    let bug = Bug::RefusalEndsNextCopy;
    for (net, rings) in [(Ideal, false), (FanOut(None), true), (OneByOne, true)] {
        finds(bug, "is accepted and never filled", |seed| rejoining(net, rings, seed, Some(bug)));
    }
    // By the switch alone no request passes the replies that its node has sent before it.
    over_seeds(200, 10_000, |seed| rejoining(OneByOne, false, seed, Some(bug)));
}

/// A page can be replicated again as soon as its REPLICA_CLEAR has completed, though a block of it was being stored
/// when its homes answered: found by the long form of the test above.
#[test]
fn a_page_that_is_left_is_free_when_that_has_completed() {
    for (net, rings) in [(Ideal, false), (OneByOne, false), (FanOut(None), true), (OneByOne, true)] {
        assert_eq!(rejoining(net, rings, 527, None), Ok(()), "{net:?}, by rings: {rings}");
    }
}

/// The driver may need the loading processor to unmap the page.
#[test]
fn i4_a_trapped_load_waits_for_no_driver() {
    for net in NETS {
        let (mut c, mut drivers) = invalidating(net, 7, None);
        for (id, value) in [(1, 5), (2, 6), (0, 7), (1, 8)] {
            store(&mut c, id, 0, 8, value);
            let address = c.address(id, OWN.into(), 0);
            assert_eq!(c.load(id, address, 8), value, "{net:?}: node {id}, with no driver awake");
        }
        c.start_quiet(1, 0, OWN.into(), 44);
        c.settle();
        assert_ne!(c.quiet_word(1, 0).1, 44, "copies are mapped still");
        drivers.run_all(&mut c);
        c.settle();
        assert_eq!(c.quiet_word(1, 0), (0, 44));
        assert_eq!(drivers.read(&mut c, 2, 0), Ok(8));
    }
}

#[test]
fn a_store_is_one_message_to_the_home_while_no_copy_is_valid() {
    let (mut c, mut drivers) = invalidating(FanOut(None), 5, None);
    store(&mut c, 1, 0, 8, 1);
    c.settle();
    drivers.run_all(&mut c);
    c.settle();
    let reflected = c.hib(0).counters().reflected;
    for value in 2..100 {
        store(&mut c, 1, 0, 8, value);
    }
    c.settle();
    assert_eq!(c.hib(0).counters().reflected, reflected, "no copy is valid");
    assert_eq!(drivers.read(&mut c, 3, 0), Ok(99));
}

#[test]
fn a_home_that_goes_orphans_copies_valid_or_not() {
    for seed in 0..60 {
        let net = NETS[seed as usize % 3];
        let (mut c, mut drivers) = invalidating(net, seed, None);
        for value in 1..=6 {
            let id = c.rng.below(NODES);
            store(&mut c, id, 0, 8, value);
            c.some_steps(20);
            let other = c.rng.below(NODES);
            drivers.run(&mut c, other);
        }
        go(&mut c, net, 0);
        c.settle();
        for id in 1..NODES {
            assert_eq!(c.hib(id).home_of(0), None, "seed {seed}: node {id}");
            assert!(is_orphaned(&c, id), "seed {seed}");
            // All operations complete.
            c.quiet(id, OWN.into(), 500);
        }
        assert_eq!(join(&mut c, 2, 2, admin::INVALIDATE), Status::Ok);
        assert_eq!(join(&mut c, 1, 2, admin::INVALIDATE), Status::Ok);
        c.settle();
        assert_eq!(word(&c, 1, 0), word(&c, 2, 0));
    }
}

#[test]
fn what_is_not_invalid_is_not_made_so() {
    let mut c = replicated(FanOut(None), NODES, 3, admin::COUNTERS, None, |_| {});
    let status = |c: &mut Cluster, id, opcode, index| c.status(id, Command { opcode, index, ..Command::default() });
    assert_eq!(status(&mut c, 1, admin::REPLICA_INVALID, 0), Status::Invalid, "another mode");
    assert_eq!(status(&mut c, 1, admin::REPLICA_INVALID, 9), Status::Invalid, "not replicated");
    let (mut c, _) = invalidating(FanOut(None), 3, None);
    assert_eq!(status(&mut c, 1, admin::REPLICA_INVALID, 0), Status::Ok, "it is valid, and stays so");
    assert_eq!(join(&mut c, 1, 0, admin::INVALIDATE), Status::Ok, "there is nothing to fill");
    assert_eq!(status(&mut c, 1, admin::REPLICA_MOVE, 0), Status::Invalid, "its home does not move");
}
