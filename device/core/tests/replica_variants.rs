// SPDX-License-Identifier: MIT OR Apache-2.0
//! The designs that s1 considers before its counters, and their cost: an owner without local update, reads stalled
//! while a write is pending; and update against invalidate (SPEC items 24, 25, 28).

use crate::common::replicas::{Ideal, OWN, join, replicated, set, store, taken, unmap, word};
use crate::common::{Cluster, Driver};
use std::collections::BTreeMap;
use telegraphos_device_core::Bug;
use telegraphos_wire::Status;
use telegraphos_wire::admin;

/// A program at a copy stores n and reads, 100 times. Returns the number of wrong reads, of reads that had to wait for
/// the network, and of events in the whole cluster meanwhile.
#[derive(Debug, Default, PartialEq)]
struct Cost {
    wrong: u32,
    stalls: u32,
    waited: u64,
}

/// The condition for which a read of the node's copy waits.
#[derive(Clone, Copy, PartialEq)]
enum Read {
    /// Until the board has taken the stores before it (E22b).
    Taken,
    /// Until no store of the node is in flight.
    Stalled,
}

fn stores_and_reads(mode: u32, bug: Option<Bug>, read: Read) -> Cost {
    let mut c = replicated(Ideal, 3, 7, mode, bug, |_| {});
    let mut cost = Cost::default();
    for value in 1..=100 {
        store(&mut c, 1, 0, 8, value);
        while taken(&c, 1) < value {
            assert!(c.step());
        }
        let (begun, packets) = (c.moment, c.packets);
        // The store has returned when its bytes are in memory, as ordered by the home.
        while read == Read::Stalled && word(&c, 1, 0) != value {
            assert!(c.step());
        }
        cost.stalls += u32::from(c.packets > packets);
        cost.waited += c.moment - begun;
        cost.wrong += u32::from(word(&c, 1, 0) != value);
        // The network is idle when the next one begins.
        c.settle();
    }
    cost
}

#[test]
fn i4_s1_reads_stalled_while_a_write_is_pending_are_right_and_wait_for_the_owner() {
    let first = stores_and_reads(admin::OWNER, Some(Bug::NoLocalUpdate), Read::Taken);
    let stalled = stores_and_reads(admin::OWNER, Some(Bug::NoLocalUpdate), Read::Stalled);
    let counters = stores_and_reads(admin::COUNTERS, None, Read::Taken);
    println!("owner, no local update: {first:?}\nthe same, reads stalled: {stalled:?}\ncounters: {counters:?}");
    // Occasionally a store returns before its processor reads.
    assert!(first.wrong > 80, "P reads M = 0 after M = 1");
    assert_eq!((stalled.wrong, counters.wrong), (0, 0));
    assert_eq!((stalled.stalls, counters.stalls), (first.wrong, 0), "such reads wait for a way to the owner and back");
    assert_eq!(counters.waited, 0);
}

// ---- update against invalidate ----

/// Packets of a run, and accesses.
struct Traffic {
    packets: u64,
    faults: u64,
}

/// Of 100 accesses by three copies in turn this many are stores, evenly spread; each read follows a quiet of the
/// earlier stores.
fn traffic(mode: u32, stores: u64) -> Traffic {
    const NODES: u16 = 4;
    const ACCESSES: u64 = 400;
    let mut c = replicated(Ideal, NODES, 3, mode, None, |_| {});
    let fill = [0, 1, 2, 3].map(|id| set(&mut c, id, 0, mode));
    c.settle();
    (0..NODES).for_each(|id| drop(c.take_events(id)));
    let mut valid = BTreeMap::from([1, 2, 3].map(|id| (id, true)));
    let before = c.packets;
    let mut faults = 0;
    let mut last = 0;
    for n in 0..ACCESSES {
        let id = 1 + (n % 3) as u16;
        if (n + 1) * stores / 100 > n * stores / 100 {
            last = n + 1;
            store(&mut c, id, 0, 8, last);
            rest(&mut c, &mut valid);
        } else {
            if !valid[&id] {
                faults += 1;
                let status = c.status(id, fill[usize::from(id)]);
                assert_eq!(status, Status::Ok);
                valid.insert(id, true);
            }
            assert_eq!(word(&c, id, 0), last);
        }
    }
    rest(&mut c, &mut valid);
    Traffic { packets: c.packets - before, faults }
}

/// Runs until no event is left, drivers included.
fn rest(c: &mut Cluster, valid: &mut BTreeMap<u16, bool>) {
    c.settle();
    for id in 1..4 {
        if unmap(c, id) > 0 {
            valid.insert(id, false);
        }
    }
    c.settle();
}

/// One page, a home and three copies: packets for an access, by the part of accesses that are stores. Packets are
/// counted, not timed, so the result is the same on every machine.
#[test]
fn update_against_invalidate_in_packets() {
    println!("stores of 100 | update: packets | invalidate: packets, faults (for 100 accesses)");
    let mut better = Vec::new();
    for stores in [1, 2, 5, 10, 20, 50, 80, 90, 98, 100] {
        let (update, invalidate) = (traffic(admin::COUNTERS, stores), traffic(admin::INVALIDATE, stores));
        let of_100 = |n: u64| n as f64 / 4.0;
        println!(
            "{stores:3} | {:6.1} | {:6.1}, {:5.1}",
            of_100(update.packets),
            of_100(invalidate.packets),
            of_100(invalidate.faults)
        );
        // A store of a copy: its update, three reflected ones with their acknowledgements, the answer.
        assert_eq!(update.packets, 4 * stores * 8, "{stores} of 100");
        assert_eq!(update.faults, 0);
        better.push(update.packets < invalidate.packets);
    }
    assert_eq!((better[0], better.last()), (true, Some(&false)), "each has programs that it is for");
}

/// A copy in mode invalidate joins like any other.
#[test]
fn a_variant_is_no_mode_of_its_own() {
    let mut c = replicated(Ideal, 3, 7, admin::OWNER, Some(Bug::NoLocalUpdate), |_| {});
    assert_eq!(join(&mut c, 1, 0, admin::OWNER), Status::NotHome, "it is a copy already");
    let address = c.address(1, OWN.into(), 0);
    assert_eq!(c.load(1, address, 8), 0);
}
