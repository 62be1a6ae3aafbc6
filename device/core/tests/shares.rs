// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one destination, or one import, can take from the others at the requesting side: credits, time, the reserve.

#![allow(clippy::unwrap_used, clippy::panic, reason = "checks are functions called by tests")]

mod common;

use common::{Cluster, EXPORTS};
use hib_core::Bug;
use telegraphos_wire::queue::Shape;
use telegraphos_wire::{Rights, UNIT};

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

/// Whether a store and a load of the last node are performed, and elements enqueued there, while `hanging` others take nothing.
fn reaches(seed: u64, bug: Option<Bug>, credits: u32, hanging: u16) -> Result<(), String> {
    let mut c = eight(seed, bug, credits, 64);
    c.hanging = (1..=hanging).collect();
    for n in 0..300u64 {
        for id in 1..=hanging {
            let address = c.address(id, 0, 8 * n);
            c.store(0, address, 8, 1 + n);
            if n < 100 {
                c.enqueue(0, id, 4, 8, 1 + n);
            }
        }
    }
    c.settle();
    for n in 0..200u64 {
        let address = c.address(7, 0, 8 * n);
        c.store(0, address, 8, 1 + n);
        c.enqueue(0, 7, 4, 8, 1 + n);
    }
    c.settle();
    let stores = (0..200).filter(|n| c.ram_u64(7, EXPORTS + 8 * n) == 1 + n).count();
    let elements = c.nodes[7].hib.counters().elements;
    if (stores, elements) != (200, 200) {
        return Err(format!("{stores} stores and {elements} elements of 200 reached the healthy node"));
    }
    // Those that hang have lost nothing.
    c.release();
    c.settle();
    for id in 1..=hanging {
        let stores = (0..300).filter(|n| c.ram_u64(id, EXPORTS + 8 * n) == 1 + n).count();
        let elements = c.nodes[usize::from(id)].hib.counters().elements;
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
            println!("{credits} credits, {hanging} hang: {}", blind.expect_err("blind to Bug::ShareAllCredits"));
        }
    }
}

/// With fewer credits than destinations none is reserved, and nothing stands still when all take what they get.
#[test]
fn i13_few_credits_are_enough_for_all_that_take_what_they_get() {
    for credits in [1, 2, 3, 5, 8] {
        let mut c = eight(credits.into(), None, credits, 1);
        for n in 0..50u64 {
            for id in 1..NODES {
                let address = c.address(id, 0, 8 * n);
                c.store(0, address, 8, 1 + n);
                c.enqueue(0, id, 4, 8, 1 + n);
            }
        }
        c.settle();
        for id in 1..NODES {
            let stores = (0..50).filter(|n| c.ram_u64(id, EXPORTS + 8 * n) == 1 + n).count();
            assert_eq!((stores, c.nodes[usize::from(id)].hib.counters().elements), (50, 50), "{credits} credits");
        }
    }
}

/// One destination alone has the whole window of requests under way, whatever number of nodes is present.
#[test]
fn a_single_destination_has_its_window_of_requests() {
    let mut c = eight(1, None, 256, 8);
    c.hanging = vec![3];
    let before = c.packets;
    for n in 0..200u64 {
        let address = c.address(3, 0, 8 * n % UNIT);
        c.store(0, address, 8, n);
    }
    c.settle();
    assert_eq!(c.packets - before, u64::from(c.nodes[0].hib.config().outstanding));
}
