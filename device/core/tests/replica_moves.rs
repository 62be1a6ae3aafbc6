// SPDX-License-Identifier: MIT OR Apache-2.0
//! The home of a replicated page moves while every node stores (`docs/replication.md`, "Moving the home"; SPEC I1 to
//! I5, I7, E19).

use crate::common::replicas::{
    FanOut, NETS, Net, OWN, cluster, copies_are_equal, finds, go, history, is_orphaned, join, join_all, replicated,
    set, set_page, store, word,
};
use crate::common::{self, Cluster, Driver, EXPORTS, over_seeds, replica_clear, replica_move};
use telegraphos_device_core::{Bug, Event};
use telegraphos_wire::admin::{self, Command};
use telegraphos_wire::{AtomicOp, Status, UNIT, event};

const NODES: u16 = 4;
/// A word that only atomics access.
const SUM: u64 = 128;

fn move_to(page: u32) -> Command {
    replica_move(page)
}

/// The pairs of values that two histories have in the same order, or an error: there is one order (I1).
fn one_order(a: &[u64], b: &[u64]) -> bool {
    let place = |of: &[u64], value: u64| of.iter().position(|v| *v == value);
    let common: Vec<usize> = a.iter().filter_map(|value| place(b, *value)).collect();
    common.is_sorted()
}

/// Every node stores unique values to two words; atomics on a third; moves to any node at any moment.
fn chaos(net: Net, seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut c = replicated(net, NODES, seed, admin::COUNTERS, bug, |config| {
        config.pending_writes = [1, 2, 32][(seed % 3) as usize];
    });
    let mut mine = vec![Vec::new(); usize::from(NODES) * 2];
    let (mut moves, mut sum) = (Vec::new(), 0);
    for value in 1..=60u64 {
        let (id, at) = (c.rng.below(NODES), c.rng.below(2));
        store(&mut c, id, at as u64 * 8, 8, value);
        mine[usize::from(id) * 2 + at].push(value);
        if c.rng.below(8) == 0 {
            let to = c.rng.below(NODES);
            moves.push((to, c.post(to, move_to(0))));
        }
        if c.rng.below(10) == 0 {
            let (address, id) = (c.address(id, OWN.into(), SUM), id);
            let (status, _) = c.atomic(id, AtomicOp::Add, 8, address, 1, 0);
            if status != Status::Ok {
                return Err(format!("an atomic of node {id}: {status:?}"));
            }
            sum += 1;
        }
        c.some_steps(10);
    }
    c.settle();
    for (node, slot) in moves {
        let status = Status::from_u16(c.completion(node, slot).status as u16);
        // It is the home already, or another node is becoming it.
        if !matches!(status, Status::Ok | Status::NotHome | Status::Busy) {
            return Err(format!("a move to node {node}: {status:?}"));
        }
    }
    for id in 0..NODES {
        match c.quiet(id, OWN.into(), 900) {
            0 => {}
            status => return Err(format!("quiet of node {id} ends with {status}")),
        }
    }
    let home = c.hib(0).home_of(0);
    if home.is_none() || (1..NODES).any(|id| c.hib(id).home_of(0) != home) {
        let homes: Vec<_> = c.nodes.iter().map(|node| node.hib.home_of(0)).collect();
        return Err(format!("homes: {homes:?}"));
    }
    copies_are_equal(&c)?;
    if word(&c, 0, SUM) != sum {
        return Err(format!("{sum} atomics made {}", word(&c, 0, SUM)));
    }
    for at in 0..2 {
        let histories: Vec<_> = (0..NODES).map(|id| history(&c, id, at * 8)).collect();
        for (id, values) in histories.iter().enumerate() {
            if let Some(value) = values.iter().enumerate().find(|(i, value)| values[i + 1..].contains(value)) {
                return Err(format!("I5: node {id} had {} twice: {values:?}", value.1));
            }
            let own = &mine[id * 2 + at as usize];
            if !own.iter().all(|value| values.contains(value)) || !one_order(own, values) {
                return Err(format!("I4: node {id} stored {own:?} and had {values:?}"));
            }
            if let Some(other) = histories.iter().find(|other| !one_order(values, other)) {
                return Err(format!("I1: node {id} had {values:?}, another {other:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn i1_i2_i4_i5_the_home_moves_while_all_store() {
    for net in NETS {
        over_seeds(300, 20_000, |seed| chaos(net, seed, None));
        finds(Bug::ServeWhileMoving, "I2: byte", |seed| chaos(net, seed, Some(Bug::ServeWhileMoving)));
    }
}

#[test]
fn a_home_moves_once_and_the_old_one_is_a_copy() {
    for net in NETS {
        let mut c = replicated(net, NODES, 3, admin::COUNTERS, None, |_| {});
        c.ok(2, move_to(0));
        c.settle();
        for id in 0..NODES {
            assert_eq!(c.hib(id).home_of(0), Some(2));
            let notified =
                c.events(id, 64).iter().any(|e| e.0 == event::REPLICA && e.1 == 2 && e.2 & event::REPLICA_MOVED != 0);
            assert!(notified, "the driver of node {id} is notified: {:?}", c.events(id, 64));
        }
        // The former home may leave and return; a new copy joins the new home.
        c.ok(0, replica_clear(0));
        assert_eq!(join(&mut c, 0, 1, admin::COUNTERS), Status::NotHome, "node 1 is a copy");
        assert_eq!(join(&mut c, 0, 2, admin::COUNTERS), Status::Ok);
        store(&mut c, 0, 0, 8, 5);
        c.settle();
        copies_are_equal(&c).unwrap();
        assert_eq!(word(&c, 2, 0), 5);
    }
}

#[test]
fn what_cannot_move_does_not() {
    let mut c = replicated(FanOut(None), NODES, 3, admin::COUNTERS, None, |_| {});
    let status = |c: &mut Cluster, id, page| c.status(id, move_to(page));
    assert_eq!(status(&mut c, 0, 0), Status::NotHome, "it is the home");
    assert_eq!(status(&mut c, 1, 7), Status::Invalid, "not replicated");
    c.ok(3, replica_clear(0));
    assert_eq!(status(&mut c, 3, 0), Status::Invalid, "not a copy any more");
    let mut c = replicated(NETS[0], 2, 3, admin::NAIVE, None, |_| {});
    assert_eq!(status(&mut c, 1, 0), Status::Invalid, "a naive page has no home");
}

/// A node leaves while the home moves: no node waits forever, there are never two homes, and all copies of a present
/// home are equal.
fn accident(net: Net, seed: u64) -> Result<(), String> {
    let mut c = replicated(net, NODES, seed, admin::COUNTERS, None, |_| {});
    let to = 1 + (seed % 3) as u16;
    let gone = c.rng.below(NODES);
    for value in 1..=12u64 {
        let id = c.rng.below(NODES);
        store(&mut c, id, value % 4 * 8, 8, value);
    }
    let slot = c.post(to, move_to(0));
    let seq = c.last_command(to);
    for _ in 0..c.rng.below(60) {
        let id = c.rng.below(NODES);
        if c.rng.below(4) == 0 {
            let value = 100 + c.moment;
            store(&mut c, id, value % 4 * 8, 8, value);
        }
        c.step();
    }
    go(&mut c, net, gone);
    c.settle();
    let alive: Vec<u16> = (0..NODES).filter(|id| *id != gone).collect();
    if alive.contains(&to) && c.completion(to, slot).seq != seq {
        return Err("the move never ends".into());
    }
    for id in &alive {
        c.quiet(*id, OWN.into(), 500);
    }
    c.settle();
    let home_of = |c: &Cluster, id: u16| c.hib(id).home_of(0);
    let homes: Vec<u16> = alive.iter().copied().filter(|id| home_of(&c, *id) == Some(*id)).collect();
    if homes.len() > 1 {
        return Err(format!("homes: {homes:?}"));
    }
    for id in alive {
        match home_of(&c, id) {
            Some(home) if home == gone || home_of(&c, home) != Some(home) => {
                return Err(format!("node {id} is a copy of node {home}, which is no home; node {gone} has gone"));
            }
            Some(home) => {
                let page = |id: u16| c.pages(id, 0, 1);
                if page(home) != page(id) {
                    return Err(format!("node {id} differs from its home {home}; node {gone} has gone"));
                }
            }
            None => {
                if !is_orphaned(&c, id) {
                    return Err(format!("node {id} is an orphan without notification: {:?}", c.events(id, 64)));
                }
            }
        }
        if c.hib(id).pending_counters() != 0 {
            return Err(format!("node {id} has counters"));
        }
    }
    Ok(())
}

#[test]
fn there_is_at_most_one_home_whichever_node_goes_during_a_move() {
    for net in NETS {
        over_seeds(600, 40_000, |seed| accident(net, seed));
    }
}

/// Time passes at all boards while their packets are in flight, as when one board is not scheduled for two seconds:
/// that is not silence. A home moves meanwhile, and then a node leaves and joins again.
fn pause(net: Net, seed: u64) -> Result<(), String> {
    let mut c = replicated(net, 3, seed, admin::COUNTERS, None, |_| {});
    for value in 1..=6 {
        let id = c.rng.below(3) as u16;
        store(&mut c, id, value % 4 * 8, 8, value);
    }
    let mut now = 0;
    let mut through = |c: &mut Cluster, id: u16, what: &str, command: Command| {
        let slot = c.post(id, command);
        c.some_steps(40);
        now += 2_000_000;
        (0..3).for_each(|id| c.event(id, Event::Tick { now }));
        c.settle();
        match Status::from_u16(c.completion(id, slot).status as u16) {
            Status::Ok => Ok(()),
            status => Err(format!("{what} through a pause: {status:?}")),
        }
    };
    through(&mut c, 1, "a move to node 1", move_to(0))?;
    through(&mut c, 0, "a move back", move_to(0))?;
    let leave = replica_clear(0);
    through(&mut c, 2, "a leave", leave)?;
    let again = set(&mut c, 2, 0, admin::COUNTERS);
    through(&mut c, 2, "a join", again.into())?;
    copies_are_equal(&c)
}

#[test]
fn a_home_moves_through_a_pause_of_two_seconds() {
    for net in NETS {
        over_seeds(200, 10_000, |seed| pause(net, seed));
    }
}

/// Two pages exchange their homes, while a third node stores to both.
#[test]
fn two_homes_change_places() {
    over_seeds(100, 5_000, |seed| {
        let mut c = cluster(NETS[seed as usize % 3], 3, seed, None, |_| {});
        for id in 0..3 {
            c.export(id, "other", 1, 1, common::replicas::RIGHTS);
        }
        join_all(&mut c, 0..3, 0, admin::COUNTERS);
        for id in [1, 0, 2] {
            let set = set_page(&mut c, id, 1, "other", 1, admin::COUNTERS);
            c.ok(id, set);
            c.import(id, id, "other", 11, 11);
        }
        for value in 1..=10 {
            let other = c.address(2, 11, 0);
            store(&mut c, 2, 0, 8, value);
            c.store(2, other, 8, value);
            c.some_steps(5);
        }
        let (one, two) = (c.post(1, move_to(0)), c.post(0, move_to(1)));
        for value in 11..=20 {
            let other = c.address(2, 11, 0);
            store(&mut c, 2, 0, 8, value);
            c.store(2, other, 8, value);
            c.some_steps(5);
        }
        c.settle();
        let ended = (c.completion(1, one).status, c.completion(0, two).status);
        let words: Vec<_> = (0..3).map(|id| (word(&c, id, 0), c.ram_u64(id, EXPORTS + UNIT))).collect();
        if ended != (0, 0) || words.iter().any(|word| *word != (20, 20)) {
            return Err(format!("{ended:?}, {words:?}"));
        }
        Ok(())
    });
}

/// A node with only the right to read cannot determine what others read.
#[test]
fn who_may_not_write_does_not_become_the_home() {
    let mut c = cluster(FanOut(None), 2, 3, None, |_| {});
    c.export(0, "read-only", 1, 1, telegraphos_wire::Rights::READ);
    let set = set_page(&mut c, 1, 0, "read-only", 1, admin::COUNTERS);
    c.export(1, "copy", 1, 1, common::replicas::RIGHTS);
    c.ok(0, set);
    c.ok(1, set);
    assert_eq!(c.status(1, move_to(1)), Status::Rights);
    assert_eq!(c.hib(1).home_of(1), Some(0));
}
