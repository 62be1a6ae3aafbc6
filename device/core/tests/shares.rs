// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one destination, or one import, can use up at the requester: credits, time, the reserve.

use crate::common::{Cluster, Driver, EXPORTS, import_ack, is_remote_store, lookup};
use telegraphos_device_core::{Bug, Event};
use telegraphos_wire::queue::Shape;
use telegraphos_wire::{Rights, Status, UNIT, event};

const RW: Rights = Rights(3);
/// Node 0 sends; nodes 1 to 6 may hang; node 7 never does.
const NODES: u16 = 8;

/// Eight boards; node 0 has imported the memory and a queue of each other.
fn eight(seed: u64, bug: Option<Bug>, credits: u32, hold: u32) -> Cluster {
    let mut c = Cluster::new(NODES, seed, |config| {
        config.bug = bug;
        config.credits = [credits; 4];
        (config.hold, config.holds) = (hold, credits.max(hold));
    });
    for id in 1..NODES {
        c.export(id, "seg", 0, 1, RW);
        c.make_queue(id, "queue", 4, Shape::new(1024, 8).unwrap());
        c.import(0, id, "seg", id, 0);
        c.import(0, id, "queue", 20 + id, 4);
    }
    c
}

/// Whether a store and a load of the last node are performed, and elements enqueued there, while `hanging` others
/// accept nothing.
fn reaches(seed: u64, bug: Option<Bug>, credits: u32, hanging: u16) -> Result<(), String> {
    let mut c = eight(seed, bug, credits, 64);
    c.hanging = (1..=hanging).collect();
    for n in 0..300u64 {
        for id in 1..=hanging {
            c.store(0, c.address(id, 0, 8 * n), 8, 1 + n);
            if n < 100 {
                c.enqueue(0, id, 4, 8, 1 + n);
            }
        }
    }
    c.settle();
    for n in 0..200u64 {
        c.store(0, c.address(7, 0, 8 * n), 8, 1 + n);
        c.enqueue(0, 7, 4, 8, 1 + n);
    }
    c.settle();
    let stores = (0..200).filter(|n| c.ram_u64(7, EXPORTS + 8 * n) == 1 + n).count();
    let elements = c.hib(7).counters().elements;
    if (stores, elements) != (200, 200) {
        return Err(format!("{stores} stores and {elements} elements of 200 reached the healthy node"));
    }
    // The hanging ones have lost nothing.
    c.proceed();
    for id in 1..=hanging {
        let stores = (0..300).filter(|n| c.ram_u64(id, EXPORTS + 8 * n) == 1 + n).count();
        let elements = c.hib(id).counters().elements;
        if (stores, elements) != (300, 100) {
            return Err(format!("node {id}: {stores} stores and {elements} elements"));
        }
    }
    Ok(())
}

#[test]
fn i13_a_healthy_node_is_reached_while_others_take_nothing() {
    for (credits, hanging) in [(256, 4), (256, 6), (64, 6), (16, 6)] {
        for seed in 0..3 {
            reaches(seed, None, credits, hanging).unwrap_or_else(|e| panic!("{credits} credits, {hanging} hang: {e}"));
            let blind = reaches(seed, Some(Bug::ShareAllCredits), credits, hanging);
            let failure = blind.expect_err("blind to Bug::ShareAllCredits");
            assert!(failure.contains("reached the healthy node"), "{failure}");
        }
    }
}

/// With fewer credits than destinations none is reserved, and traffic continues while all destinations accept packets.
#[test]
fn i13_few_credits_are_enough_for_all_that_take_what_they_get() {
    for credits in [1, 2, 3, 5, 8] {
        let mut c = eight(credits.into(), None, credits, 1);
        for n in 0..50u64 {
            for id in 1..NODES {
                c.store(0, c.address(id, 0, 8 * n), 8, 1 + n);
                c.enqueue(0, id, 4, 8, 1 + n);
            }
        }
        c.settle();
        for id in 1..NODES {
            let stores = (0..50).filter(|n| c.ram_u64(id, EXPORTS + 8 * n) == 1 + n).count();
            assert_eq!((stores, c.hib(id).counters().elements), (50, 50), "{credits} credits");
        }
    }
}

/// A single destination can use the whole window of requests, for any number of present nodes.
#[test]
fn a_single_destination_has_its_window_of_requests() {
    let mut c = eight(1, None, 256, 8);
    c.hanging = vec![3];
    let before = c.packets;
    for n in 0..200u64 {
        c.store(0, c.address(3, 0, 8 * n % UNIT), 8, n);
    }
    c.settle();
    assert_eq!(c.packets - before, u64::from(c.hib(0).config().outstanding));
}

/// The first load to a node that is silent costs the load limit; those behind it fail at once with the same error,
/// until the node answers anything, including the first one.
#[test]
fn a_silent_node_costs_the_load_limit_once() {
    let check = |bug: Option<Bug>| {
        let mut c = eight(1, bug, 256, 8);
        c.settle();
        c.hanging = vec![3, 4];
        let (address, other) = (c.address(3, 0, 64), c.address(5, 0, 64));
        let first = c.start_load(0, address, 4);
        c.settle();
        c.event(0, Event::Tick { now: 1_000_000 });
        assert_eq!(c.answer(0, first), Some(0xffff_ffff));
        for n in 0..20 {
            let token = c.start_load(0, address, 8);
            assert_eq!(c.answer(0, token), Some(u64::MAX), "load {n} behind it is answered at once");
        }
        assert_eq!(c.hib(0).counters().silent_loads, 20);
        assert_eq!(c.quiet(0, 3, 2), Status::Timeout as u16, "and says why");
        // Other nodes are not affected, including one to which no load was sent.
        assert_eq!(c.load(0, other, 8), 0);
        let token = {
            let address = c.address(4, 0, 0);
            c.start_load(0, address, 8)
        };
        assert!(!c.nodes[0].reads.contains_key(&token));
        // Its reply to the first load arrives eventually.
        c.nodes[3].ram[EXPORTS as usize + 64] = 7;
        c.proceed();
        c.ok(0, import_ack(3));
        let token = c.start_load(0, address, 4);
        c.settle();
        (c.answer(0, token), c.hib(0).counters().silent_loads)
    };
    assert_eq!(check(None), (Some(7), 20));
    // With the bug, nothing is in flight, so that a load is sent; a load behind another one still fails.
    let mut c = eight(1, Some(Bug::SilentForEver), 256, 8);
    c.hanging = vec![3];
    let address = c.address(3, 0, 64);
    c.start_load(0, address, 4);
    c.event(0, Event::Tick { now: 1_000_000 });
    c.proceed();
    c.start_load(0, address, 4);
    c.start_load(0, address, 4);
    assert_eq!(c.hib(0).counters().silent_loads, 1, "the check is blind to Bug::SilentForEver");
}

/// A node that answers other requests slowly is not silent: each load has its full time limit.
#[test]
fn a_slow_node_is_not_silent() {
    let mut c = eight(2, None, 256, 8);
    let address = c.address(3, 0, 0);
    c.store(0, address, 8, 1);
    c.hold_next(3, is_remote_store);
    let first = c.start_load(0, address, 8);
    // The node answers something of another import meanwhile, in another class.
    c.enqueue(0, 3, 4, 8, 5);
    c.settle();
    let lookup = c.post(3, lookup(0, "none"));
    c.settle();
    let _ = c.completion(3, lookup);
    c.event(0, Event::Tick { now: 1_000_000 });
    assert_eq!(c.answer(0, first), Some(u64::MAX));
    let second = c.start_load(0, address, 8);
    assert!(!c.nodes[0].reads.contains_key(&second), "it has its time");
    c.proceed();
    assert_eq!(c.answer(0, second), Some(1));
}

/// More stores of one import than fit the reserve, as a board finds them that was not scheduled: other imports that
/// only wait lose none.
#[test]
fn an_import_that_only_waits_is_not_cut_for_what_others_have_posted() {
    let cut = |bug: Option<Bug>| {
        let mut c = Cluster::new(3, 4, |config| {
            config.bug = bug;
            (config.outstanding, config.reserve, config.hold) = (4, 1000, 8);
            (config.congest_at, config.clear_at) = (50, 10);
        });
        c.make_queue(1, "queue", 4, Shape::new(8, 8).unwrap());
        c.import(0, 1, "queue", 1, 0);
        c.export(2, "seg", 0, 1, RW);
        c.import(0, 2, "seg", 2, 0);
        // The queue is full, and its sender waits.
        for n in 0..40 {
            c.enqueue(0, 1, 0, 8, 1 + n);
        }
        c.settle();
        // This import was not stopped.
        for n in 0..3000u64 {
            c.store(0, c.address(2, 0, 8 * (n % 1000)), 8, n);
        }
        for n in 40..100 {
            c.enqueue(0, 1, 0, 8, 1 + n);
        }
        assert!(c.hib(0).waiting() <= 1000);
        let is_cut = |import| c.hib(0).import_state(import) & event::IMPORT_CUT != 0;
        (is_cut(1), is_cut(2))
    };
    assert_eq!(cut(None), (false, true));
    assert_eq!(cut(Some(Bug::ShareWholeReserve)), (true, true), "the check is blind to Bug::ShareWholeReserve");
}
