// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receive credits and names: their limits per node, and the result of a lookup of a segment that does not admit the
//! node.

use crate::common::{self, Cluster, Driver, EXPORTS, grant_clear, grant_set, import_clear, name64, node_up, withdraw};
use telegraphos_device_core::{Bug, Event, Notice};
use telegraphos_wire::admin::{self, Command, Completion};
use telegraphos_wire::queue::Shape;
use telegraphos_wire::{Body, Rights, Status, UNIT, WindowLayout};

/// Four nodes; node 0 has two queues and receive credits for 32 imports of queues.
fn with_queues(bug: Option<Bug>) -> Cluster {
    let mut c = Cluster::new(4, 1, |config| {
        config.bug = bug;
        config.hold = 8;
        config.holds = 256;
        config.window = WindowLayout::new(3, 22).unwrap();
    });
    for (page, name) in [(0, "a"), (1, "b")] {
        c.make_queue(0, name, page, Shape::new(64, 8).unwrap());
    }
    c
}

/// Imports a queue until it is refused; returns the number of imports.
fn import_all(c: &mut Cluster, id: u16, name: &str, first: u16) -> u16 {
    for n in 0..100 {
        let import = first + n;
        let command = c.import_command(id, 0, name, import, import.into());
        let done = c.admin(id, command);
        match Status::from_u16(done.status as u16) {
            Status::Ok => {}
            Status::NoHold => return n,
            other => panic!("import {import}: {other:?}"),
        }
    }
    100
}

#[test]
fn one_sender_leaves_hold_slots_to_the_others() {
    let mut c = with_queues(None);
    assert_eq!(import_all(&mut c, 1, "a", 0), 4, "half of a node's part is for one queue");
    assert!(c.nodes[0].notices.iter().any(|n| matches!(n, Notice::NoHold { from: 1, page: 0, imports: 5 })));
    // Guaranteed regardless of the others: 16 of 32 for 8 nodes.
    for id in 2..4 {
        assert!(import_all(&mut c, id, "a", 0) >= 2, "node {id}");
    }
    // Returned credits are available again, and a node that leaves returns all.
    for number in 0..4 {
        c.ok(1, import_clear(number));
    }
    c.settle();
    assert_eq!(import_all(&mut c, 1, "a", 0), 4);
    c.event(0, Event::NodeDown { node: 1 });
    c.event(0, node_up(1, 0x2000));
    assert!(import_all(&mut c, 2, "b", 32) >= 4);
    // With the bug, the first node takes all.
    let mut c = with_queues(Some(Bug::UnsharedHolds));
    let first = import_all_slots(&mut c, 1);
    assert_eq!((first, import_all(&mut c, 2, "a", 0)), (32, 0));
}

/// All receive credits, by both windows of slots that a node has.
fn import_all_slots(c: &mut Cluster, id: u16) -> u16 {
    import_all(c, id, "a", 0) + import_all(c, id, "b", 40)
}

fn accepts(bug: Option<Bug>) -> u32 {
    let mut c = Cluster::new(2, 1, |config| {
        config.bug = bug;
        config.hold = 8;
    });
    c.make_queue(0, "a", 0, Shape::new(64, 8).unwrap());
    c.tamper = Some(|packet| {
        if let Body::ReserveReply { holds, .. } = &mut packet.body {
            *holds = u32::MAX;
        }
    });
    c.import(1, 0, "a", 5, 5);
    for value in 0..100 {
        c.enqueue(1, 0, 5, 8, value);
    }
    c.hib(1).elements_under_way(5)
}

#[test]
fn no_more_hold_slots_are_accepted_than_were_requested() {
    assert_eq!(accepts(None), 8);
    assert_eq!(accepts(Some(Bug::AcceptAnyHolds)), 100);
}

/// Opens and closes imports of a queue whose node no longer answers: few requests wait.
#[test]
fn hold_slots_are_given_back_by_one_request_at_a_time() {
    let mut c = Cluster::new(2, 1, |config| config.window = WindowLayout::new(3, 22).unwrap());
    c.make_queue(0, "a", 0, Shape::new(64, 8).unwrap());
    let command = c.import_command(1, 0, "a", 5, 5);
    c.settle();
    let before = c.packets;
    for _ in 0..50 {
        c.ok(1, command);
        c.ok(1, import_clear(5));
    }
    c.settle();
    println!("{} packets", c.packets - before);
    // In the end the queue's node has none left.
    assert_eq!(import_all(&mut c, 1, "a", 10), 8192 / 32 / 4 / 2);
}

/// Enqueued elements outlive their import until the receiver takes them. The number of such imports is bounded, and no
/// element is lost.
#[test]
fn lines_of_closed_imports_are_bounded() {
    const IMPORTS: u16 = 4;
    let mut c = Cluster::new(2, 1, |config| {
        config.imports = IMPORTS;
        config.hold = 8;
    });
    c.make_queue(0, "a", 0, Shape::new(64, 8).unwrap());
    let command = c.import_command(1, 0, "a", 1, 1);
    let close = import_clear(1);
    let mut opened = 0;
    let refused = loop {
        match c.status(1, command) {
            Status::Ok => opened += 1,
            status => break status,
        }
        // Far more than the queue accepts without a consumer.
        (0..200).for_each(|value| c.enqueue(1, 0, 1, 8, value));
        c.settle();
        c.ok(1, close);
        assert!(opened < 100, "there is no limit");
    };
    assert_eq!((refused, opened), (Status::NoSpace, 2 * IMPORTS));
    // The queue is destroyed, and with it the elements that wait for it.
    c.ok(0, grant_clear(0, 1));
    c.settle();
    c.make_queue(0, "b", 2, Shape::new(64, 8).unwrap());
    let command = c.import_command(1, 0, "b", 1, 1);
    c.ok(1, command);
}

fn publish(c: &mut Cluster, generation: u64, name: [u8; 64]) -> Status {
    let command = Command { name, ..common::publish("", 0, UNIT, generation, Rights(7)) };
    c.status(0, command)
}

fn grant(c: &mut Cluster, nodes: [u64; 4]) -> u64 {
    let done = c.admin(0, Command { nodes, ..grant_set(0, 1, EXPORTS, Rights(7)) });
    assert_eq!(done.status, 0);
    done.generation
}

fn names_for_one_page(bug: Option<Bug>) -> usize {
    let mut c = Cluster::new(2, 1, |config| {
        config.export_pages = 16;
        config.bug = bug;
    });
    let generation = grant(&mut c, [u64::MAX; 4]);
    let published = (0..100).take_while(|n| match publish(&mut c, generation, name64(&format!("n{n}"))) {
        Status::Ok => true,
        Status::NoSpace => false,
        other => panic!("{other:?}"),
    });
    let published = published.count();
    // Withdrawing a name makes room; a reset removes all names.
    c.ok(0, withdraw("n3"));
    assert_eq!(publish(&mut c, generation, name64("again")), Status::Ok);
    c.event(0, Event::Reset);
    c.settle();
    c.start(0);
    let generation = grant(&mut c, [u64::MAX; 4]);
    assert_eq!(publish(&mut c, generation, name64("n0")), Status::Ok);
    published
}

#[test]
fn names_are_bounded_by_the_pages_of_the_board_and_go_with_a_reset() {
    assert_eq!(names_for_one_page(None), 16);
    assert_eq!(names_for_one_page(Some(Bug::EndlessNames)), 100);
}

#[test]
fn names_are_printable() {
    let mut c = Cluster::new(2, 1, |_| {});
    let generation = grant(&mut c, [u64::MAX; 4]);
    let long: String = "x".repeat(63);
    for good in ["a", "a name", "~!\"#%/\\", &long] {
        assert_eq!(publish(&mut c, generation, name64(good)), Status::Ok, "{good}");
    }
    let mut behind = name64("ab");
    behind[5] = b'c';
    let bad = ["", "a\nhib 0: all is well", "\u{1b}[2J", "a\u{7f}", "gr\u{f6}\u{df}e", "tab\t"].map(name64);
    for bad in bad.into_iter().chain([[b'x'; 64], behind]) {
        assert_eq!(publish(&mut c, generation, bad), Status::BadName, "{}", bad.escape_ascii());
        let lookup = Command { opcode: admin::LOOKUP, node: 0, name: bad, ..Command::default() };
        assert_eq!(c.status(1, lookup), Status::BadName);
    }
}

/// The reply to a node's lookup of a name, without the node's own number.
fn answer(c: &mut Cluster, id: u16, name: &str, secret: [u8; 16]) -> Completion {
    let lookup = Command { opcode: admin::LOOKUP, node: 0, name: name64(name), secret, ..Command::default() };
    Completion { seq: 0, ..c.admin(id, lookup) }
}

fn probed(bug: Option<Bug>) -> bool {
    let mut c = Cluster::new(3, 1, |config| config.bug = bug);
    let generation = grant(&mut c, [0b010, 0, 0, 0]);
    let secret = [7; 16];
    c.ok(0, Command { secret, ..common::publish("treasure", 0, UNIT, generation, Rights::READ) });
    assert_eq!(answer(&mut c, 1, "treasure", secret).status, 0);
    assert_eq!(answer(&mut c, 1, "treasure", [0; 16]).status, Status::Denied as u32);
    let none = answer(&mut c, 2, "nothing", secret);
    assert_eq!(none.status, Status::NoSegment as u32);
    [secret, [0; 16]].into_iter().any(|secret| answer(&mut c, 2, "treasure", secret) != none)
}

#[test]
fn a_node_that_is_not_admitted_cannot_tell_a_segment_from_none() {
    assert!(!probed(None));
    assert!(probed(Some(Bug::TellOfSegments)));
    // Nor one whose grant was revoked.
    let mut c = Cluster::new(2, 1, |_| {});
    let generation = grant(&mut c, [u64::MAX; 4]);
    assert_eq!(publish(&mut c, generation, name64("gone")), Status::Ok);
    c.ok(0, grant_clear(0, 1));
    assert_eq!(answer(&mut c, 1, "gone", [0; 16]), answer(&mut c, 1, "none", [0; 16]));
}
