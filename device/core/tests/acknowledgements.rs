// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a board performs for another node in one turn of its server's loop is acknowledged by one packet, at the end of
//! the turn: nothing is acknowledged earlier than it was performed (SPEC I7, E19), nothing later, and nothing twice.

use crate::common::{self, ALL, Cluster, Driver, copy_steps, copying, grant_clear};
use telegraphos_device_core::{Bug, Event, HibConfig};
use telegraphos_wire::queue::Shape;
use telegraphos_wire::{Body, Packet, Status, Tags};

const SEEDS: u64 = 100;

/// Boards over an ideal network. Each exports two pages, and has imported those of each node as import = node.
fn boards(n: u16, seed: u64, adjust: impl Fn(&mut HibConfig)) -> Cluster {
    let mut c = Cluster::new(n, seed, adjust);
    c.share(2, ALL);
    c.settle();
    c
}

fn store(c: &mut Cluster, from: u16, to: u16, word: u64, data: u64) {
    c.store(from, c.address(to, 0, 8 * word), 8, data);
}

fn progress(c: &Cluster, id: u16, import: u16) -> (u64, u64) {
    c.hib(id).import_progress(import).unwrap()
}

#[test]
fn the_stores_of_one_turn_are_acknowledged_by_one_packet() {
    let mut c = boards(2, 0, |_| {});
    let before = c.packets;
    for n in 0..40 {
        store(&mut c, 0, 1, n, n + 1);
    }
    c.start_quiet(0, 0, 1, 7);
    assert_eq!((c.packets - before, progress(&c, 0, 1)), (40, (40, 0)));
    assert_eq!(c.one_turn(1), 1);
    assert_eq!((c.several, progress(&c, 0, 1)), (1, (40, 0)));
    c.one_turn(0);
    assert_eq!((progress(&c, 0, 1), c.quiet_word(0, 0)), ((40, 40), (0, 7)));
    assert_eq!(c.packets - before, 41);
    // A single one is acknowledged as ever.
    store(&mut c, 0, 1, 0, 5);
    assert_eq!((c.one_turn(1), c.several), (1, 1));
}

#[test]
fn stores_blocks_and_elements_of_a_node_share_its_packet() {
    let mut c = boards(3, 0, |_| {});
    c.make_queue(1, "queue", 2, Shape::new(64, 8).unwrap());
    for id in [0, 2] {
        c.import(id, 1, "queue", 9, 4);
    }
    c.settle();
    for id in [0, 2] {
        for n in 0..10 {
            store(&mut c, id, 1, 100 * u64::from(id) + n, n);
            c.enqueue(id, 1, 4, 8, n);
        }
        let (to, from) = (c.address(1, 1, 4096 * u64::from(id)), c.address(id, 0, 0));
        c.launch(id, 0, 2, copy_steps(copying(3), to, from, 64));
        // It loads the block.
        c.one_turn(id);
    }
    assert_eq!(c.one_turn(1), 2, "one for each node");
    c.settle();
    for id in [0, 2] {
        assert_eq!((progress(&c, id, 1), progress(&c, id, 9)), ((10, 10), (10, 10)));
        assert_eq!(c.done(id, 0, 2), (Status::Ok as u16, 3));
    }
}

#[test]
fn tags_of_two_blocks_take_two_packets() {
    let mut c = boards(2, 0, |config| {
        config.outstanding = 300;
        config.credits = [1024; 4];
    });
    for n in 0..300 {
        store(&mut c, 0, 1, n, n);
    }
    assert_eq!(c.one_turn(1), 2);
    c.settle();
    assert_eq!(progress(&c, 0, 1), (300, 300));
}

/// A load, an atomic or a refusal is answered behind the acknowledgement of what was performed before it.
#[test]
fn replies_leave_in_the_order_of_what_they_answer() {
    let mut c = boards(2, 0, |_| {});
    for n in 0..5 {
        store(&mut c, 0, 1, n, n);
    }
    c.start_load(0, c.address(1, 0, 0), 8);
    for n in 0..5 {
        store(&mut c, 0, 1, n, n);
    }
    assert_eq!(c.one_turn(1), 3);
    c.settle();
    assert_eq!(progress(&c, 0, 1), (10, 10));
}

/// A store, a quiet, a store that is refused, and another quiet.
fn refused(bug: Option<Bug>) -> Result<(), String> {
    let mut c = boards(2, 0, |config| config.bug = bug);
    c.ok(1, grant_clear(0, 1));
    let (good, bad) = (c.address(1, 1, 0), c.address(1, 0, 0));
    for _ in 0..3 {
        c.store(0, good, 8, 1);
    }
    c.start_quiet(0, 1, 1, 10);
    c.store(0, bad, 8, 2);
    c.start_quiet(0, 2, 1, 20);
    assert_eq!(c.one_turn(1), 2, "an acknowledgement and a refusal");
    c.settle();
    assert_eq!(progress(&c, 0, 1), (4, 4));
    let (before, behind) = (c.quiet_word(0, 1), c.quiet_word(0, 2));
    assert!(before.1 == 10 && behind.1 == 20 && behind.0 != 0, "{before:?}, {behind:?}");
    if before.0 == 0 { Ok(()) } else { Err(format!("I7: the quiet before the refused store says {}", before.0)) }
}

#[test]
fn i7_a_refusal_does_not_pass_what_was_performed_before() {
    refused(None).unwrap();
    common::finds(Bug::PassAcknowledgement, "I7: the quiet before the refused store says", 0..1, |_| {
        refused(Some(Bug::PassAcknowledgement))
    });
}

/// What has become due to a node that goes is not sent to it, nor by another link.
#[test]
fn nothing_is_acknowledged_to_a_node_that_has_gone() {
    for event in [Event::NodeDown { node: 0 }, Event::LinkDown] {
        let mut c = boards(3, 0, |_| {});
        let credits = c.hib(1).config().offered();
        store(&mut c, 0, 1, 0, 1);
        c.hold_next(1, |_| true);
        c.release();
        c.at_once(1, Event::IntakeDry);
        assert!(c.hib(1).owes_acknowledgements());
        let before = c.packets;
        c.event(1, event.clone());
        c.event(1, Event::LinkUp { incarnation: 0x2000, nodes: 3, credits });
        c.end_turn(1);
        assert_eq!(c.packets, before, "{event:?}");
    }
}

/// A reset is announced behind the acknowledgements of what was performed before.
#[test]
fn a_reset_ends_the_turn() {
    let mut c = boards(2, 0, |_| {});
    store(&mut c, 0, 1, 0, 1);
    c.hold_next(1, |_| true);
    c.release();
    c.at_once(1, Event::IntakeDry);
    let before = c.packets;
    c.event(1, Event::Reset);
    assert_eq!(c.packets - before, 1);
    assert!(!c.hib(1).owes_acknowledgements());
    c.settle();
    assert_eq!(progress(&c, 0, 1), (1, 1));
}

/// Tags that are not in flight, or to another node, are ignored: so nothing is acknowledged twice.
#[test]
fn an_acknowledgement_that_comes_twice_or_from_elsewhere_counts_nothing() {
    let mut c = boards(3, 0, |_| {});
    for n in 0..4 {
        store(&mut c, 0, 1, n, n);
    }
    c.one_turn(1);
    c.one_turn(0);
    for n in 0..4 {
        store(&mut c, 0, 2, n, n);
    }
    let mut tags = Tags::of(0);
    (1..256).for_each(|tag| tags.insert(tag));
    let incarnation = c.hib(0).incarnation();
    // Also from nodes that cannot be: found by the fuzz target `hib`.
    for (incarnation, src) in [(incarnation, 1), (incarnation + 1, 2), (incarnation, 3), (incarnation, u16::MAX)] {
        let body = Body::WriteAcks { tags };
        c.event(0, Event::Packet(Packet { src, dst: 0, tag: 0, incarnation, target: 0, body }));
        assert_eq!((progress(&c, 0, 1), progress(&c, 0, 2)), ((4, 4), (4, 0)));
    }
    c.settle();
    assert_eq!(progress(&c, 0, 2), (4, 4));
}

/// Stores, loads and quiets of three nodes in any order, with turns of any length. At each moment no more stores of an
/// import count as finished than its node has performed; in the end all do. Returns the number of acknowledgements of
/// several requests.
fn any_order(seed: u64, bug: Option<Bug>) -> Result<u64, String> {
    let mut c = boards(3, seed, |config| {
        config.bug = bug;
        config.outstanding = 8;
    });
    let mut issued = [[0u64; 3]; 3];
    let check = |c: &Cluster| {
        for (src, dst) in (0..9u16).map(|pair| (pair / 3, pair % 3)) {
            let (_, finished) = progress(c, src, dst);
            let performed = &c.nodes[usize::from(dst)].performed;
            let performed = performed.iter().filter(|(_, data)| data >> 48 == u64::from(src) + 1).count() as u64;
            if finished > performed {
                return Err(format!("E19: {finished} stores of node {src} are finished, {performed} performed"));
            }
        }
        Ok(())
    };
    for round in 0..300 {
        let (src, dst) = (c.rng.below(3) as u16, c.rng.below(3) as u16);
        match c.rng.below(12) {
            0..=5 => {
                let count = &mut issued[usize::from(src)][usize::from(dst)];
                *count += 1;
                let data = (u64::from(src) + 1) << 48 | *count;
                store(&mut c, src, dst, 64 * u64::from(src) + data % 64, data);
            }
            6 => {
                c.start_load(src, c.address(dst, 0, 8), 8);
            }
            7 => c.start_quiet(src, round % 8, dst.into(), round + 1),
            8 => c.end_turn(dst),
            _ => {
                c.step();
            }
        }
        check(&c)?;
    }
    while c.step() {
        check(&c)?;
    }
    for (src, dst) in (0..9u16).map(|pair| (pair / 3, pair % 3)) {
        let issued = issued[usize::from(src)][usize::from(dst)];
        let found = progress(&c, src, dst);
        if found != (issued, issued) {
            return Err(format!(
                "I7: of {issued} stores of node {src} to node {dst} {found:?} are issued and finished"
            ));
        }
    }
    Ok(c.several)
}

#[test]
fn e19_nothing_is_finished_before_it_is_performed_and_all_is_in_the_end() {
    let mut several = 0;
    for seed in 0..SEEDS {
        several += any_order(seed, None).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    assert!(several > SEEDS, "{several} acknowledgements of several requests");
    for (bug, says) in
        [(Bug::AckTwice, "E19"), (Bug::KeepAcknowledgement, "does not acknowledge at the end of its turn")]
    {
        common::finds(bug, says, 0..SEEDS, |seed| any_order(seed, Some(bug)).map(|_| ()));
    }
}

/// Memory is bounded: a turn in which many nodes store.
#[test]
fn many_nodes_in_one_turn_each_get_theirs() {
    let mut c = boards(8, 0, |_| {});
    for id in 1..8 {
        for n in 0..3 {
            store(&mut c, id, 0, 10 * u64::from(id) + n, 1);
        }
    }
    assert_eq!(c.one_turn(0), 7);
    c.settle();
    assert!((1..8).all(|id| progress(&c, id, 0) == (3, 3)));
}
