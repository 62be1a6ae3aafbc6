// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replicated pages: the home's order, pending-write counters, joins and leaves (SPEC items 23 to 27, E15 to E20, I1 to
//! I7).

use crate::common::replicas::{
    FanOut, Ideal, NETS, Net, OWN, OneByOne, RIGHTS, cluster, copies_are_equal, finds, go, history, import_own,
    is_orphaned, is_subsequence, join, join_all, replicated, set, set_page, store, taken, taken_word, word,
};
use crate::common::{
    Cluster, Driver, EXPORTS, grant_clear, import_ack, import_clear, is_remote_store, node_up, over_seeds,
    replica_clear,
};
use telegraphos_device_core::{Bar, Bug, Event, Notice, Step};
use telegraphos_fabric_core::Bug as SwitchBug;
use telegraphos_wire::admin::{self, Command, ReplicaCommand};
use telegraphos_wire::packet::NO_NODE;
use telegraphos_wire::{
    AtomicOp, Body, Class, ImportEpoch, Packet, RemoteAddr, Rights, STREAM_BLOCK, Status, UNIT, event,
};

/// Every node stores unique values to two words, at random moments; the values that each copy had are checked.
fn chaos(net: Net, seed: u64, n: u16, mode: u32, bug: Option<Bug>) -> Result<(), String> {
    const WORDS: u64 = 2;
    let mut c = replicated(net, n, seed, mode, bug, |config| config.pending_writes = [1, 2, 32][(seed % 3) as usize]);
    let mut mine: Vec<Vec<u64>> = vec![Vec::new(); usize::from(n) * WORDS as usize];
    for value in 1..=40u64 {
        let (id, at) = (c.rng.below(n), c.rng.below(WORDS as usize) as u64);
        store(&mut c, id, at * 8, 8, value);
        mine[usize::from(id) * WORDS as usize + at as usize].push(value);
        c.some_steps(12);
    }
    c.settle();
    copies_are_equal(&c)?;
    for at in 0..WORDS {
        let home = history(&c, 0, at * 8);
        for id in 0..n {
            let values = history(&c, id, at * 8);
            if !is_subsequence(&home, &values) {
                return Err(format!("I1: node {id} had {values:?}, the home {home:?}"));
            }
            // Unique values: none returns after another (I5), so neither does the node's own (I4).
            for (i, value) in values.iter().enumerate() {
                if values[i + 1..].contains(value) {
                    return Err(format!("I5: node {id} had {values:?}"));
                }
            }
            let own = &mine[usize::from(id) * WORDS as usize + at as usize];
            if !is_subsequence(&values, own) {
                return Err(format!("I4: node {id} stored {own:?} and had {values:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn i1_i2_i3_i4_i5_all_copies_follow_the_home() {
    for net in NETS {
        over_seeds(300, 20_000, |seed| chaos(net, seed, 4, admin::COUNTERS, None));
        finds("copies without counters", "I1", |seed| chaos(net, seed, 4, admin::OWNER, None));
        finds("naive multicast", "I2: byte", |seed| chaos(net, seed, 4, admin::NAIVE, None));
        finds(Bug::IgnoreCounters, "I1", |seed| chaos(net, seed, 4, admin::COUNTERS, Some(Bug::IgnoreCounters)));
    }
    // The protocol depends on the network's order, and on every copy being sent to.
    for (bug, check) in
        [(SwitchBug::MulticastOvertakes, "I1"), (SwitchBug::SkipMember, "I2"), (SwitchBug::LifoLane, "I1")]
    {
        finds(bug, check, |seed| chaos(FanOut(Some(bug)), seed, 4, admin::COUNTERS, None));
    }
}

/// The papers' anomaly: W2, W3 by one processor, then a read of 2.
#[test]
fn without_counters_a_program_sees_its_older_store_again() {
    let anomaly = |net, seed, mode| {
        let mut c = replicated(net, 3, seed, mode, None, |_| {});
        store(&mut c, 1, 0, 8, 2);
        store(&mut c, 1, 0, 8, 3);
        c.settle();
        if history(&c, 1, 0) == [2, 3, 2, 3] { Err("the copy went 2, 3, 2, 3".to_owned()) } else { Ok(()) }
    };
    for net in NETS {
        finds("W2, W3, R gives 2", "the copy went 2, 3, 2, 3", |seed| anomaly(net, seed, admin::OWNER));
        over_seeds(50, 1000, |seed| anomaly(net, seed, admin::COUNTERS));
    }
}

/// Stores of all sizes to the same words: bytes converge for any writers (E18).
fn mixed_sizes(net: Net, seed: u64) -> Result<(), String> {
    let mut c = replicated(net, 3, seed, admin::COUNTERS, None, |config| config.pending_writes = 1 + (seed % 2) as u16);
    for value in 1..=30u64 {
        let id = c.rng.below(3) as u16;
        let size = [1u64, 2, 4, 8][c.rng.below(4)];
        let at = c.rng.below((16 / size) as usize) as u64 * size;
        store(&mut c, id, at, size as u32, value * 0x0101_0101_0101_0101);
        c.some_steps(10);
    }
    c.settle();
    copies_are_equal(&c)
}

#[test]
fn e18_stores_of_all_sizes_converge() {
    for net in NETS {
        over_seeds(300, 20_000, |seed| mixed_sizes(net, seed));
    }
}

#[test]
fn a_counter_cache_of_one_stalls_and_loses_nothing() {
    let mut c = replicated(Ideal, 2, 1, admin::COUNTERS, None, |config| config.pending_writes = 1);
    for value in 0..20 {
        store(&mut c, 1, value * 8, 8, value + 1);
    }
    c.settle();
    assert!(c.hib(1).counters().counter_stalls > 10, "{}", c.hib(1).counters().counter_stalls);
    for value in 0..20 {
        assert_eq!((word(&c, 0, value * 8), word(&c, 1, value * 8)), (value + 1, value + 1));
    }
    copies_are_equal(&c).unwrap();
}

/// When quiet returns, every copy has every earlier store (E19); the count of stores taken is the local copy's.
fn fence(net: Net, seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut c = replicated(net, 4, seed, admin::COUNTERS, bug, |_| {});
    for value in 1..=10u64 {
        let id = c.rng.below(4) as u16;
        let at = c.rng.below(4) as u64 * 8;
        store(&mut c, id, at, 8, value);
        c.start_quiet(id, 0, OWN.into(), 100 + value);
        for _ in 0..200 {
            if c.quiet_word(id, 0).1 == 100 + value {
                break;
            }
            c.step();
        }
        while c.quiet_word(id, 0).1 != 100 + value {
            assert!(c.step(), "quiet never completes");
        }
        for other in 0..4 {
            let found = word(&c, other, at);
            if found != value {
                return Err(format!("I7: node {id} stored {value}, quiet is done, and node {other} has {found}"));
            }
        }
    }
    Ok(())
}

#[test]
fn i7_e19_quiet_waits_for_every_copy() {
    for net in NETS {
        over_seeds(150, 10_000, |seed| fence(net, seed, None));
        finds(Bug::AcknowledgeEarly, "I7", |seed| fence(net, seed, Some(Bug::AcknowledgeEarly)));
    }
}

#[test]
fn e22b_stores_taken_are_counted_when_the_own_copy_has_them() {
    for seed in 0..100 {
        let mut c = replicated(NETS[seed as usize % 3], 3, seed, admin::COUNTERS, None, |_| {});
        let id = (seed % 3) as u16;
        for value in 1..=5 {
            store(&mut c, id, 0, 8, value);
        }
        loop {
            // No other node stores: the copy is at least as far as the count.
            assert!(word(&c, id, 0) >= taken(&c, id), "seed {seed}");
            if !c.step() {
                break;
            }
        }
        assert_eq!(taken(&c, id), 5);
    }
}

#[test]
fn e20_atomics_run_at_the_home() {
    for seed in 0..50 {
        let mut c = replicated(NETS[seed as usize % 3], 3, seed, admin::COUNTERS, None, |_| {});
        let mut seen = Vec::new();
        for round in 0..10 {
            let id = (round % 3) as u16;
            let address = c.address(id, OWN.into(), 8);
            let (status, value) = c.atomic(id, AtomicOp::Add, 8, address, 1, 0);
            assert_eq!(status, Status::Ok);
            assert!(word(&c, id, 8) > value, "the own copy has it when it is done");
            seen.push(value);
        }
        assert_eq!(seen, (0..10).collect::<Vec<_>>(), "seed {seed}");
        c.settle();
        copies_are_equal(&c).unwrap();
    }
}

/// A copy joins while others store: it misses nothing.
#[test]
fn e20_a_new_copy_is_filled_in_order_and_an_old_one_leaves() {
    over_seeds(150, 5_000, |seed| {
        let mut c = cluster(NETS[seed as usize % 3], 4, seed, None, |_| {});
        join_all(&mut c, 0..3, 0, admin::COUNTERS);
        // The contents of the late joiner's page before the fill.
        c.poke(3, 0, 100, 8, 0xdead);
        let command = set(&mut c, 3, 0, admin::COUNTERS);
        let mut slot = None;
        for value in 1..=60u64 {
            let (id, at) = (c.rng.below(3) as u16, c.rng.below(8000) as u64 * 8);
            store(&mut c, id, at, 8, value);
            if value == 20 {
                slot = Some(c.post(3, command));
            }
            c.some_steps(10);
        }
        c.settle();
        let done = c.completion(3, slot.unwrap());
        if done.status != 0 || done.seq == 0 {
            return Err(format!("the join ended with {done:?}"));
        }
        copies_are_equal(&c)?;
        // Another copy leaves, with its stores in flight; later writes do not reach it.
        store(&mut c, 2, 0, 8, 1001);
        c.ok(2, replica_clear(0));
        assert_eq!(word(&c, 0, 0), 1001, "its own stores were waited for");
        store(&mut c, 1, 0, 8, 1002);
        c.settle();
        assert_eq!((word(&c, 0, 0), word(&c, 1, 0), word(&c, 3, 0)), (1002, 1002, 1002));
        assert_eq!(word(&c, 2, 0), 1001);
        // It is an ordinary page again, and may be a copy again.
        assert_eq!(join(&mut c, 2, 0, admin::COUNTERS), Status::Ok);
        c.settle();
        copies_are_equal(&c)
    });
}

#[test]
fn a_home_that_goes_orphans_its_copies_and_a_survivor_takes_over() {
    for seed in 0..60 {
        let net = NETS[seed as usize % 3];
        let mut c = replicated(net, 4, seed, admin::COUNTERS, None, |_| {});
        for value in 1..=20u64 {
            let id = c.rng.below(4) as u16;
            store(&mut c, id, value % 4 * 8, 8, value);
        }
        c.some_steps(100);
        go(&mut c, net, 0);
        c.settle();
        for id in 1..4 {
            let orphaned = u64::from(Status::NodeDown as u16) << 16 | event::REPLICA_ORPHANED;
            assert!(
                c.events(id, 64).contains(&(event::REPLICA, NO_NODE, orphaned)),
                "seed {seed}: node {id} is notified"
            );
            assert_eq!(c.hib(id).pending_counters(), 0);
            // All operations complete: quiet ends, and reports the loss.
            c.quiet(id, OWN.into(), 500);
        }
        // Node 2 is the home now; its page is authoritative.
        assert_eq!(join(&mut c, 2, 2, admin::COUNTERS), Status::Ok);
        join_all(&mut c, [1, 3], 2, admin::COUNTERS);
        for id in 1..4 {
            c.admin(id, import_ack(OWN));
            store(&mut c, id, 64 + u64::from(id) * 8, 8, 7000 + u64::from(id));
        }
        c.settle();
        for id in 1..4 {
            for other in 1..4u16 {
                assert_eq!(word(&c, id, 64 + u64::from(other) * 8), 7000 + u64::from(other), "seed {seed}");
            }
            assert_eq!(c.ram_u64(id, EXPORTS), c.ram_u64(2, EXPORTS));
        }
    }
}

#[test]
fn a_copy_that_goes_delays_no_other() {
    for seed in 0..60 {
        let net = NETS[seed as usize % 3];
        let mut c = replicated(net, 4, seed, admin::COUNTERS, None, |_| {});
        for value in 1..=20u64 {
            let id = c.rng.below(3) as u16;
            store(&mut c, id, value % 4 * 8, 8, value);
        }
        c.some_steps(60);
        go(&mut c, net, 3);
        for id in 0..3 {
            assert_eq!(c.quiet(id, OWN.into(), 9), 0, "seed {seed}");
        }
        c.settle();
        for id in 1..3 {
            assert_eq!(c.ram_u64(id, EXPORTS), c.ram_u64(0, EXPORTS));
        }
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let mut c = replicated(Ideal, 3, 1, admin::COUNTERS, None, |_| {});
    let good = set(&mut c, 1, 0, admin::COUNTERS);
    // Twice; with another home; a home that is a copy; an absent node; a page that is not granted; an unknown mode.
    assert_eq!(c.status(1, good), Status::NotHome);
    let other = set(&mut c, 1, 2, admin::COUNTERS);
    assert_eq!(c.status(1, other), Status::NotHome, "two owners");
    assert_eq!(c.status(1, ReplicaCommand { node: 1, home_page: 0, ..good }), Status::NotHome);
    c.export(2, "second", 1, 1, RIGHTS);
    let of_copy = ReplicaCommand { page: 1, ..set(&mut c, 2, 1, admin::COUNTERS) };
    assert_eq!(c.status(2, of_copy), Status::NotHome, "a copy is no home");
    assert_eq!(c.status(2, ReplicaCommand { page: 1, node: 7, ..good }), Status::BadNode);
    assert_eq!(c.status(2, ReplicaCommand { page: 9, ..good }), Status::NotGranted);
    assert_eq!(c.status(2, ReplicaCommand { page: 1, mode: 0, ..good }), Status::Invalid);
    assert_eq!(c.status(2, ReplicaCommand { page: 1, home_generation: 1, ..good }), Status::Stale);
    // Reflected writes of a node that is not the home.
    let at = RemoteAddr { page: 0, offset: 0, generation: good.home_generation };
    let forged = Body::Reflected { at, size: 8, data: 0xbad, writer: 2 };
    let refused = c.hib(1).counters().refused;
    c.forge(2, 1, 5, forged);
    c.settle();
    assert_eq!(word(&c, 1, 0), 0);
    assert_eq!(c.hib(1).counters().refused, refused + 1);
    // Updates of a node that is not a copy.
    let update = Body::Update { at, context: 0, epoch: ImportEpoch::default(), size: 8, data: 0xbad };
    c.ok(2, replica_clear(0));
    c.forge(2, 0, 6, update);
    c.settle();
    assert_eq!((word(&c, 0, 0), word(&c, 1, 0)), (0, 0));
    // The home is revoked: its copies are notified, and their stores are refused.
    let clear = grant_clear(0, 1);
    store(&mut c, 1, 0, 8, 1);
    c.ok(0, clear);
    c.settle();
    store(&mut c, 1, 0, 8, 2);
    c.settle();
    assert!(is_orphaned(&c, 1), "{:?}", c.events(1, 64));
    assert_ne!(c.latched(1, OWN), Status::Ok);
}

// ---- fan-out by the switch ----

#[test]
fn a_home_without_copies_answers_alone() {
    for net in NETS {
        let mut c = cluster(net, 2, 1, None, |_| {});
        assert_eq!(join(&mut c, 0, 0, admin::COUNTERS), Status::Ok);
        c.settle();
        let before = c.packets;
        store(&mut c, 0, 0, 8, 1);
        assert_eq!(c.quiet(0, OWN.into(), 5), 0);
        assert_eq!((word(&c, 0, 0), c.packets - before), (1, 0), "no packet is sent");
        // It repeatedly has copies and none: the group is removed with its last member.
        assert_eq!(join(&mut c, 1, 0, admin::COUNTERS), Status::Ok);
        assert_eq!(c.status(1, replica_clear(0)), Status::Ok);
        store(&mut c, 0, 0, 8, 2);
        assert_eq!(c.quiet(0, OWN.into(), 6), 0);
        assert_eq!((word(&c, 0, 0), word(&c, 1, 0)), (2, 1));
    }
}

#[test]
fn a_page_is_no_copy_of_one_of_its_own_node_or_of_a_node_that_is_down() {
    for net in NETS {
        let mut c = replicated(net, 4, 1, admin::COUNTERS, None, |_| {});
        c.export(2, "second", 1, 1, RIGHTS);
        let of = set(&mut c, 2, 0, admin::COUNTERS);
        // Its own node's other page; a second copy of the same page at one node.
        let own = ReplicaCommand { page: 1, node: 2, home_page: 0, ..of };
        assert_eq!(c.status(2, own), Status::Invalid);
        assert_eq!(c.status(2, ReplicaCommand { page: 1, ..of }), Status::Busy);
        go(&mut c, net, 3);
        c.settle();
        assert_eq!(c.status(2, ReplicaCommand { page: 1, node: 3, ..of }), Status::NodeDown);
        // The page is still an ordinary one, and may become a copy.
        assert_eq!(c.status(2, replica_clear(1)), Status::Invalid);
        store(&mut c, 2, 0, 8, 9);
        c.settle();
        assert_eq!([0, 1, 2].map(|id| word(&c, id, 0)), [9; 3]);
    }
}

/// A node that is a copy already is not filled a second time, whatever it requests: packets in flight to it stay in
/// order.
#[test]
fn a_second_join_of_a_copy_is_refused_by_the_home() {
    let mut c = replicated(Ideal, 3, 1, admin::COUNTERS, None, |_| {});
    let found = c.lookup(1, 0, "page");
    let at = RemoteAddr { page: found.index, offset: 0, generation: found.generation };
    let body = Body::Join { at, mode: admin::COUNTERS as u16, keep: false };
    let blocks = c.nodes[1].blocks.len();
    let refused = c.hib(0).counters().refused;
    c.forge(1, 0, 77, body);
    c.settle();
    assert_eq!(c.hib(0).counters().refused, refused + 1);
    assert_eq!(c.nodes[1].blocks.len(), blocks);
    store(&mut c, 1, 0, 8, 3);
    c.settle();
    copies_are_equal(&c).unwrap();
}

/// A page is revoked with stores of all nodes in flight: all operations end, every node is notified, and a survivor
/// becomes the home.
#[test]
fn a_revoked_page_with_updates_in_flight_ends_for_all() {
    over_seeds(90, 2_000, |seed| {
        let mut c = replicated(NETS[seed as usize % 3], 4, seed, admin::COUNTERS, None, |config| {
            config.pending_writes = [1, 32][(seed % 2) as usize];
        });
        for value in 1..=30u64 {
            let id = c.rng.below(4) as u16;
            store(&mut c, id, value % 4 * 8, 8, value);
        }
        c.some_steps(150);
        assert_eq!(c.status(0, grant_clear(0, 1)), Status::Ok);
        let before = c.pages(0, 0, 1).to_vec();
        c.settle();
        if c.pages(0, 0, 1) != before {
            return Err("the home's page changes after it was revoked".into());
        }
        for id in 1..4 {
            c.quiet(id, OWN.into(), 500);
            if !is_orphaned(&c, id) || c.hib(id).pending_counters() != 0 {
                return Err(format!("node {id} is not notified, or continues to count"));
            }
        }
        for id in [2, 1, 3] {
            assert_eq!(join(&mut c, id, 2, admin::COUNTERS), Status::Ok);
            c.admin(id, import_ack(OWN));
            store(&mut c, id, 64 + u64::from(id) * 8, 8, 7000 + u64::from(id));
        }
        c.settle();
        if [1, 3].into_iter().any(|id| c.pages(id, 0, 1) != c.pages(2, 0, 1)) || word(&c, 2, 64 + 8) != 7001 {
            return Err("the survivors differ".into());
        }
        Ok(())
    });
}

/// A home reads its page for a new copy, which leaves; the step in flight completes nothing else.
#[test]
fn a_copy_that_goes_while_it_is_filled_takes_no_store_with_it() {
    for net in NETS {
        let mut c = cluster(net, 4, 1, None, |_| {});
        join_all(&mut c, 0..3, 0, admin::COUNTERS);
        let command = set(&mut c, 3, 0, admin::COUNTERS);
        c.post(3, command);
        c.hold_next(0, |step| matches!(step, Step::LoadBlock { .. }));
        store(&mut c, 1, 0, 8, 5);
        c.settle();
        go(&mut c, net, 3);
        c.settle();
        c.proceed();
        assert_eq!([0, 1, 2].map(|id| word(&c, id, 0)), [5; 3], "{net:?}");
        assert_eq!(c.quiet(1, OWN.into(), 5), 0);
    }
}

/// A store is being made to a copy when its home leaves. The next home, which fills the copy without it, must not
/// receive it: it would assume that the copy has it.
#[test]
fn i2_a_store_under_way_when_the_home_goes_is_not_for_the_next_one() {
    for net in NETS {
        let mut c = replicated(net, 4, 1, admin::COUNTERS, None, |_| {});
        store(&mut c, 1, 0, 8, 5);
        c.hold_next(1, is_remote_store);
        go(&mut c, net, 0);
        c.settle();
        assert_eq!(join(&mut c, 2, 2, admin::COUNTERS), Status::Ok);
        let command = set(&mut c, 1, 2, admin::COUNTERS);
        let slot = c.post(1, command);
        c.settle();
        c.proceed();
        assert_eq!(c.completion(1, slot).status, 0);
        assert_eq!((word(&c, 1, 0), word(&c, 2, 0)), (0, 0), "{net:?}");
        assert_ne!(c.latched(1, OWN), Status::Ok, "the store has failed");
    }
}

/// The last block of a copy is being stored when its home leaves: it does not count as the fill for the next home.
#[test]
fn a_copy_is_not_filled_by_what_an_earlier_home_sent() {
    for (net, seed) in NETS.into_iter().flat_map(|net| (0..20).map(move |seed| (net, seed))) {
        let mut c = cluster(net, 4, seed, None, |_| {});
        join_all(&mut c, [0, 2, 3], 0, admin::COUNTERS);
        let command = set(&mut c, 1, 0, admin::COUNTERS);
        c.post(1, command);
        let last = EXPORTS + UNIT - STREAM_BLOCK as u64;
        c.hold_next(1, |step| matches!(step, Step::StoreBlock { address, .. } if *address == last));
        go(&mut c, net, 0);
        c.settle();
        c.poke(2, 0, UNIT / 8 - 1, 8, 0xfeed);
        assert_eq!(join(&mut c, 2, 2, admin::COUNTERS), Status::Ok);
        let command = set(&mut c, 1, 2, admin::COUNTERS);
        let slot = c.post(1, command);
        let seq = c.last_command(1);
        for _ in 0..100 {
            c.step();
        }
        c.release();
        while c.completion(1, slot).seq != seq {
            assert!(c.step(), "the join never ends");
        }
        assert_eq!(c.completion(1, slot).status, 0);
        assert!(c.pages(1, 0, 1) == c.pages(2, 0, 1), "{net:?}, seed {seed}: it is not filled when its join has ended");
    }
}

/// A home revokes its page and owes an answer; the node that has become the home meanwhile is not an orphan when the
/// answer fails.
#[test]
fn a_late_answer_of_an_earlier_home_orphans_no_node() {
    for net in NETS {
        let mut c = replicated(net, 4, 1, admin::COUNTERS, None, |_| {});
        store(&mut c, 1, 0, 8, 5);
        // It waits for the acknowledgement of node 3.
        c.hold_next(3, is_remote_store);
        c.settle();
        assert_eq!(c.status(0, grant_clear(0, 1)), Status::Ok);
        c.settle();
        assert_ne!(c.latched(1, OWN), Status::Ok, "the store has failed at once");
        assert_eq!(join(&mut c, 1, 1, admin::COUNTERS), Status::Ok);
        c.admin(1, import_ack(OWN));
        go(&mut c, net, 0);
        c.settle();
        assert_eq!(c.latched(1, OWN), Status::Ok, "{net:?}");
        assert_eq!(join(&mut c, 2, 1, admin::COUNTERS), Status::Ok);
        store(&mut c, 1, 0, 8, 6);
        c.proceed();
        assert_eq!((word(&c, 1, 0), word(&c, 2, 0)), (6, 6));
    }
}

/// A copy sees one home's writes to two pages in order, however long a step of the first takes.
#[test]
fn i6_a_copy_takes_what_one_home_sends_in_order_across_pages() {
    for net in NETS {
        let mut c = replicated(net, 2, 1, admin::COUNTERS, None, |_| {});
        let second = OWN + 1;
        for id in 0..2 {
            c.export(id, "second", 1, 1, RIGHTS);
        }
        let import = Command { taken: 1 + 8, ..c.import_command(0, 0, "second", second, second.into()) };
        assert_eq!(c.status(0, import), Status::Ok);
        let home = set_page(&mut c, 0, 0, "second", 1, admin::COUNTERS);
        for id in 0..2 {
            assert_eq!(c.status(id, home), Status::Ok);
        }
        store(&mut c, 0, 0, 8, 1);
        c.store(0, c.address(0, second.into(), 0), 8, 1);
        c.hold_next(1, is_remote_store);
        c.settle();
        let both = |c: &Cluster| [c.ram_u64(1, EXPORTS), c.ram_u64(1, EXPORTS + UNIT)];
        assert_eq!(both(&c), [0, 0], "{net:?}: the second page is ahead of the first");
        c.proceed();
        assert_eq!(both(&c), [1, 1]);
    }
}

/// A count of stores taken is being written to a word of the status page: no other import counts there before it has
/// been written.
#[test]
fn e22b_an_import_waits_for_the_last_count_of_its_word() {
    let mut c = replicated(Ideal, 2, 1, admin::COUNTERS, None, |_| {});
    store(&mut c, 1, 0, 8, 5);
    c.hold_next(1, |step| matches!(step, Step::Store { address, .. } if *address == taken_word()));
    c.settle();
    let slot = c.post(1, import_clear(OWN));
    let seq = c.last_command(1);
    c.settle();
    assert_ne!(c.completion(1, slot).seq, seq, "the count is still to be stored");
    c.proceed();
    assert_eq!((c.completion(1, slot).seq, c.completion(1, slot).status), (seq, 0));
    import_own(&mut c, 1);
    assert_eq!(taken(&c, 1), 1, "no stale count is written");
}

/// A copy whose memory could not be written is dropped, and its driver is notified.
#[test]
fn a_copy_that_cannot_be_stored_to_is_dropped_with_a_notification() {
    for net in NETS {
        let mut c = replicated(net, 3, 1, admin::COUNTERS, None, |_| {});
        c.event(1, Event::BusMaster(false));
        store(&mut c, 0, 0, 8, 5);
        c.settle();
        c.event(1, Event::BusMaster(true));
        c.settle();
        assert_eq!([0, 1, 2].map(|id| word(&c, id, 0)), [5, 0, 5]);
        assert!(is_orphaned(&c, 1), "{net:?}: its programs continue to read its contents");
    }
}

/// Packets of the class reflected so far: on the link of node 0 to the switch, and on the links to the others.
fn reflected_packets(c: &Cluster) -> (u64, Vec<u64>) {
    let nodes = &c.fabric.as_ref().unwrap().switch.statistics().ports;
    let class = Class::Reflected as usize;
    (nodes[0].classes[class].received_packets, nodes[1..].iter().map(|n| n.classes[class].sent_packets).collect())
}

/// An update is one packet on each link; without the switch's help, one for each copy on the link of the home (SPEC
/// item 23). Few credits make no difference.
#[test]
fn an_update_is_one_packet_on_each_link() {
    const UPDATES: u64 = 30;
    for (net, credits, n) in [(FanOut(None), 8, 2), (FanOut(None), 8, 3), (FanOut(None), 8, 8), (FanOut(None), 1, 5)]
        .into_iter()
        .chain([(OneByOne, 8, 2), (OneByOne, 8, 3), (OneByOne, 8, 8), (OneByOne, 1, 5)])
    {
        let mut c = replicated(net, n, 7, admin::COUNTERS, None, |config| config.credits = [credits; 4]);
        c.settle();
        let (sent, received) = reflected_packets(&c);
        for value in 1..=UPDATES {
            store(&mut c, (value % u64::from(n)) as u16, value % 4 * 8, 8, value);
        }
        c.settle();
        copies_are_equal(&c).unwrap();
        let (sent, received): (u64, Vec<u64>) = {
            let (s, r) = reflected_packets(&c);
            (s - sent, r.iter().zip(&received).map(|(now, before)| now - before).collect())
        };
        let copies = u64::from(n) - 1;
        let expected = if net == OneByOne { UPDATES * copies } else { UPDATES };
        assert_eq!(sent, expected, "{net:?}, {n} nodes, {credits} credits");
        assert_eq!(received, vec![UPDATES; copies as usize], "{net:?}, {n} nodes");
    }
}

/// The driver of a node restarts, and its page becomes a copy of node 0's again.
fn begin_anew(c: &mut Cluster, id: u16) -> Result<(), String> {
    c.start(id);
    find_home(c, id)?;
    c.export(id, "page", 0, 1, RIGHTS);
    import_own(c, id);
    match join(c, id, 0, admin::COUNTERS) {
        Status::Ok => Ok(()),
        status => Err(format!("node {id} is no copy: {status:?}")),
    }
}

/// Waits until a node has been notified of node 0.
fn find_home(c: &mut Cluster, id: u16) -> Result<(), String> {
    until_done(c, |c| Status::from_u16(c.lookup(id, 0, "page").status as u16))
        .map_err(|status| format!("node {id} never finds node 0: {status:?}"))
}

/// Retries until it succeeds, or fails although no event is left.
fn until_done(c: &mut Cluster, mut attempt: impl FnMut(&mut Cluster) -> Status) -> Result<(), Status> {
    let mut pending = true;
    loop {
        match attempt(c) {
            Status::Ok => return Ok(()),
            status if !pending => return Err(status),
            _ => pending = c.step(),
        }
    }
}

/// A node's link is up again. Its copy is an orphan, and joins its home again.
fn return_to_home(c: &mut Cluster, id: u16) -> Result<(), String> {
    find_home(c, id)?;
    until_done(c, |c| join(c, id, 0, admin::COUNTERS))
        .map_err(|status| format!("node {id} never becomes a copy again: {status:?}"))?;
    c.admin(id, import_ack(OWN));
    Ok(())
}

/// Copies are reset, die and come back, or lose their link, while the others store and the home multicasts: packets for
/// an earlier incarnation do not affect a later one, and its acknowledgements are not mistaken for others. No node
/// waits for an acknowledgement that no node owes.
fn sessions(net: Net, seed: u64, bug: Option<Bug>) -> Result<(), String> {
    const N: u16 = 4;
    let mut c = replicated(net, N, seed, admin::COUNTERS, bug, |config| config.credits = [2; 4]);
    for value in 1..=120u64 {
        let (id, at) = (c.rng.below(N), c.rng.below(4) as u64 * 8);
        store(&mut c, id, at, 8, value);
        c.some_steps(6);
        if c.rng.below(10) == 0 {
            let id = 1 + c.rng.below(usize::from(N) - 1) as u16;
            let what = c.rng.below(4);
            if what == 0 {
                c.disconnect(id);
                c.connect(id);
                return_to_home(&mut c, id)?;
                continue;
            }
            if what < 3 {
                c.reset(id);
            } else {
                c.replace(id);
                c.connect(id);
            }
            begin_anew(&mut c, id)?;
        }
    }
    c.settle();
    for id in 0..N {
        let status = c.quiet(id, OWN.into(), 7777);
        if status != 0 {
            return Err(format!("quiet of node {id} ends with {status}"));
        }
    }
    copies_are_equal(&c)?;
    // Every node is still a copy.
    for id in 0..N {
        store(&mut c, id, 64 + u64::from(id) * 8, 8, 5000 + u64::from(id));
    }
    c.settle();
    let (word, expected) = (word(&c, 0, 64 + 8 * 3), 5003);
    if word != expected {
        return Err(format!("node 3 stored {expected}, the home has {word}"));
    }
    copies_are_equal(&c)?;
    c.fabric.as_ref().unwrap().switch.audit()
}

#[test]
fn copies_under_new_incarnations_take_nothing_for_earlier_ones() {
    for net in [FanOut(None), OneByOne] {
        over_seeds(150, 10_000, |seed| sessions(net, seed, None));
    }
    for (bug, check) in [
        (Bug::StaleGroup, "I2: byte"),
        (Bug::ChargeNextLink, "it returned more credits"),
        (Bug::ForgetWork, "command Command"),
    ] {
        finds(bug, check, |seed| sessions(FanOut(None), seed, Some(bug)));
    }
    finds(SwitchBug::SkipMember, "never completes", |seed| sessions(FanOut(Some(SwitchBug::SkipMember)), seed, None));
}

/// An acknowledgement by the next incarnation of a copy, for a packet to the previous one, completes nothing else.
fn late_acknowledgement(bug: Option<Bug>) -> Result<(), String> {
    let mut c = replicated(Ideal, 3, 1, admin::COUNTERS, bug, |_| {});
    let address = c.address(0, OWN.into(), 0);
    let found = c.lookup(0, 0, "page");
    c.settle();
    let life = c.hib(0).incarnation();
    let mut handle = |event: Event| -> Vec<(u16, u32, Body)> {
        c.alone(0, event, |_| ()).into_iter().map(|packet| (packet.dst, packet.tag, packet.body)).collect()
    };
    let store = |data| Event::Write { bar: Bar::Window, offset: address, size: 8, data };
    let ack = |src, tag, status| {
        let body = Body::CopyAck { status };
        Event::Packet(Packet { src, dst: 0, tag, incarnation: life, target: 0, body })
    };
    let old = handle(store(1));
    assert_eq!(old.iter().map(|s| s.0).collect::<Vec<_>>(), [1, 2]);
    handle(node_up(2, 0x1001));
    handle(ack(1, old[0].1, Status::Ok));
    // It joins again, and refuses a packet for its earlier incarnation, which arrives only now.
    let at = RemoteAddr { page: found.index, offset: 0, generation: found.generation };
    let join = Packet {
        src: 2,
        dst: 0,
        tag: 1,
        incarnation: 0x1001,
        target: life,
        body: Body::Join { at, mode: admin::COUNTERS as u16, keep: false },
    };
    let fills = handle(Event::Packet(join));
    let filled = fills.iter().filter(|s| s.0 == 2 && matches!(s.2, Body::Fill { .. })).count();
    assert!(filled > 0, "{fills:?}");
    handle(ack(2, old[1].1, Status::Reset));
    handle(Event::Credit { class: Class::Reflected, count: 8 });
    let new = handle(store(2));
    let all: Vec<u16> = new.iter().filter(|s| matches!(s.2, Body::Reflected { .. })).map(|s| s.0).collect();
    // It is still a copy.
    if all == [1, 2] { Ok(()) } else { Err(format!("a store was sent to {all:?} alone")) }
}

#[test]
fn a_stale_acknowledgement_of_an_earlier_incarnation_completes_nothing() {
    late_acknowledgement(None).unwrap();
    finds(Bug::ReuseTags, "a store was sent to [1] alone", |_| late_acknowledgement(Some(Bug::ReuseTags)));
}

/// Blocks are not multicast: none may be stored to a replicated page, by other nodes or by its own board; other nodes
/// read the home, not a copy.
#[test]
fn blocks_do_not_go_behind_the_homes_back() {
    let mut c = cluster(FanOut(None), 3, 1, None, |_| {});
    let all = Rights(Rights::READ.0 | Rights::WRITE.0 | Rights::DMA.0);
    c.export(0, "replicated", 1, 1, all);
    c.export(1, "replicated", 1, 1, all);
    c.export(0, "plain", 2, 1, all);
    for id in 0..2 {
        let set = set_page(&mut c, id, 0, "replicated", 1, admin::COUNTERS);
        c.ok(id, set);
    }
    // Node 1's own copy, and node 0's plain page; node 2 reaches the home and the copy.
    c.import(1, 1, "replicated", 11, 11);
    c.import(1, 0, "plain", 12, 12);
    c.import(2, 0, "replicated", 11, 11);
    c.import(2, 1, "replicated", 12, 12);
    let (own, plain) = (c.address(1, 11, 0), c.address(0, 12, 0));
    assert_eq!(c.copy(1, own, plain, 4096), Status::Rights, "a get into the own copy");
    assert_eq!(c.copy(1, plain, own, 4096), Status::Ok, "a put out of it");
    let (home, copy) = (c.address(0, 11, 0), c.address(1, 12, 0));
    assert_eq!(c.load(2, home, 8), 0);
    assert_eq!(c.load(2, copy, 8), u64::MAX, "a copy is read by its own node alone");
    c.settle();
    assert!(c.nodes[1].notices.iter().any(|n| matches!(n, Notice::Refused { from: 2, status: Status::NotHome, .. })));
}

/// A home is revoked while all store: a store that quiet has reported is at every survivor, whichever of them is the
/// next home.
fn revoked(net: Net, seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut c = replicated(net, 4, seed, admin::COUNTERS, bug, |_| {});
    for value in 1..=8u64 {
        let id = 1 + c.rng.below(3) as u16;
        store(&mut c, id, u64::from(id) * 8, 8, value);
        c.some_steps(6);
    }
    for id in 1..4 {
        store(&mut c, id, 64 + u64::from(id) * 8, 8, 100 + u64::from(id));
        c.start_quiet(id, 0, OWN.into(), 55);
    }
    c.some_steps(50);
    c.post(0, grant_clear(0, 1));
    for _ in 0..c.rng.below(50) {
        c.step();
        let id = 1 + c.rng.below(3) as u16;
        store(&mut c, id, 256, 8, 999);
    }
    c.settle();
    for id in 1..4 {
        if c.quiet_word(id, 0) != (0, 55) {
            continue;
        }
        for other in 1..4 {
            let found = word(&c, other, 64 + u64::from(id) * 8);
            if found != 100 + u64::from(id) {
                return Err(format!("I7: quiet of node {id} is done, and node {other} survives with {found}"));
            }
        }
    }
    Ok(())
}

#[test]
fn i7_what_quiet_has_reported_is_at_every_survivor_of_a_home_that_is_revoked() {
    for net in NETS {
        over_seeds(400, 20_000, |seed| revoked(net, seed, None));
    }
    finds(Bug::AcknowledgeMissed, "I7", |seed| revoked(NETS[seed as usize % 3], seed, Some(Bug::AcknowledgeMissed)));
}
