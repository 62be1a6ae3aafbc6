// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rings between boards of one host: what passes by them, what does not, and peers that break their rules.

use crate::common::{Cluster, Driver, finds};
use std::sync::Arc;
use telegraphos_device_core::{Bug, Event, Loan, RingEvent};
use telegraphos_wire::{Body, Class, MAX_BLOCK, Packet, RemoteAddr, Rights, Status};

/// Three boards with rings. Each exports a page and has imported those of all, as import = node.
fn cluster(seed: u64, bug: Option<Bug>) -> Cluster {
    let mut cluster = Cluster::switched(3, seed, |config| config.bug = bug);
    cluster.use_rings(false);
    cluster.share(1, Rights(Rights::READ.0 | Rights::WRITE.0));
    cluster
}

/// Packets that the switch has received.
fn switched(cluster: &Cluster) -> u64 {
    let statistics = cluster.fabric.as_ref().unwrap().switch.statistics();
    statistics.ports.iter().flat_map(|port| &port.classes).map(|class| class.received_packets).sum()
}

fn by_ring(cluster: &Cluster) -> u64 {
    cluster.rings.as_ref().unwrap().packets
}

/// A store and a load of a word of node `to`; its packets by the switch and by the ring.
fn exchange(cluster: &mut Cluster, from: u16, to: u16, value: u64) -> (u64, u64) {
    let (before, ring) = (switched(cluster), by_ring(cluster));
    let address = cluster.address(to, 0, u64::from(from) * 8);
    cluster.store(from, address, 8, value);
    assert_eq!(cluster.load(from, address, 8), value);
    cluster.settle();
    (switched(cluster) - before, by_ring(cluster) - ring)
}

#[test]
fn a_load_passes_by_the_ring_alone() {
    for seed in 0..10 {
        let mut cluster = cluster(seed, None);
        assert_eq!(exchange(&mut cluster, 0, 1, 7), (0, 4));
        assert_eq!(exchange(&mut cluster, 2, 1, 8), (0, 4));
        assert_eq!(exchange(&mut cluster, 1, 1, 9), (0, 0), "its own memory");
    }
}

#[test]
fn what_is_observed_passes_the_switch_and_afterwards_the_ring_again() {
    let mut cluster = cluster(1, None);
    cluster.observe(&[1]);
    cluster.settle();
    assert_eq!(cluster.rings.as_ref().unwrap().withdrawn, 2, "of 0 and 1, and of 1 and 2");
    assert_eq!(exchange(&mut cluster, 0, 1, 7), (4, 0));
    assert_eq!(exchange(&mut cluster, 1, 2, 7), (4, 0));
    assert_eq!(exchange(&mut cluster, 0, 2, 7), (0, 4));
    cluster.observe(&[]);
    cluster.settle();
    assert_eq!(exchange(&mut cluster, 0, 1, 8), (0, 4));
}

#[test]
fn a_node_that_is_reset_gets_new_rings() {
    let mut cluster = cluster(2, None);
    cluster.event(1, Event::Reset);
    cluster.settle();
    assert!(cluster.has_ring(0, 1) && cluster.has_ring(1, 0));
    cluster.start(1);
    cluster.export(1, "new", 0, 1, Rights(3));
    cluster.import(0, 1, "new", 5, 8);
    let address = cluster.address(1, 8, 0);
    let before = switched(&cluster);
    cluster.store(0, address, 8, 7);
    assert_eq!(cluster.load(0, address, 8), 7);
    assert_eq!(switched(&cluster), before);
}

#[test]
fn a_board_that_could_not_open_its_end_delays_no_withdrawal() {
    let mut cluster = cluster(7, None);
    cluster.rings.as_mut().unwrap().unable.insert((1, 0));
    cluster.event(1, Event::Reset);
    cluster.settle();
    assert!(cluster.has_ring(0, 1) && !cluster.has_ring(1, 0) && cluster.has_ring(1, 2));
    cluster.observe(&[1]);
    cluster.settle();
    assert_eq!(cluster.rings.as_ref().unwrap().withdrawn, 2, "of 0 and 1, and of 1 and 2");
}

#[test]
fn what_waits_for_a_board_that_dies_ends_with_an_error() {
    let mut cluster = cluster(3, None);
    cluster.hanging.push(1);
    cluster.store(0, cluster.address(1, 0, 0), 8, 7);
    cluster.settle();
    assert_eq!(cluster.latched(0, 1), Status::Ok);
    cluster.release();
    cluster.disconnect(1);
    cluster.settle();
    assert_eq!(cluster.latched(0, 1), Status::NodeDown);
    assert!(!cluster.has_ring(0, 1) && !cluster.has_ring(1, 0) && cluster.has_ring(0, 2));
}

fn answered_by_the_ring(bug: Option<Bug>) -> Result<(), String> {
    let (by_switch, by_ring) = exchange(&mut cluster(4, bug), 0, 1, 7);
    if (by_switch, by_ring) == (0, 4) {
        return Ok(());
    }
    Err(format!("{by_switch} packets by the switch: what comes by a ring is answered by the ring"))
}

#[test]
fn requests_by_a_ring_are_answered_by_it() {
    answered_by_the_ring(None).unwrap();
    finds(Bug::AnswerBesideRing, "is answered by the ring", 0..1, |_| {
        answered_by_the_ring(Some(Bug::AnswerBesideRing))
    });
}

/// What a hostile node 1 may write into its ring to node 0.
fn forgeries(incarnation: u64, target: u64, generation: u64) -> Vec<(&'static str, Vec<Event>)> {
    let at = RemoteAddr { page: 1, offset: 0, generation };
    let packet = |tag, body| Packet { src: 1, dst: 0, tag, incarnation, target, body };
    let bare = |packet| Event::RingPacket { packet, loan: None };
    let read = |tag| bare(packet(tag, Body::Read { at, context: 0, size: 8 }));
    let event = |what| Event::Ring { peer: 1, what };
    let block = |length| packet(1, Body::ReadBlock { at, context: 0, length });
    let ack = |status| packet(77, Body::WriteAck { status });
    let lent = |packet, length| Event::RingPacket { packet, loan: Some(Loan::new(length, Arc::new(()))) };
    let multicast = Body::Reflected { at, size: 8, data: 1, writer: 1 };
    vec![
        ("another destination", vec![bare(Packet { dst: 2, ..packet(1, Body::Read { at, context: 0, size: 8 }) })]),
        (
            "another incarnation",
            vec![bare(Packet { incarnation: 3, ..packet(1, Body::Read { at, context: 0, size: 8 }) })],
        ),
        ("a long block", vec![bare(block(MAX_BLOCK as u32 + 1))]),
        ("a loan of another length", vec![lent(block(4096), 4095)]),
        ("a loan beside no block", vec![lent(ack(Status::Ok), 8)]),
        ("a reply to nothing", vec![bare(ack(Status::Ok))]),
        ("a multicast", vec![bare(packet(1, multicast))]),
        ("a copy's acknowledgement", vec![bare(packet(1, Body::CopyAck { status: Status::Ok }))]),
        ("more requests than credits", (100..200).map(read).collect()),
        ("one tag twice", vec![read(100), read(100)]),
        ("credits", vec![event(RingEvent::Credit { class: Class::Request, count: 1 })]),
        ("many credits", vec![event(RingEvent::Credit { class: Class::Enqueue, count: u32::MAX })]),
        ("credits of another class", vec![event(RingEvent::Credit { class: Class::Reply, count: 1 })]),
        ("no frames", vec![event(RingEvent::Broken)]),
    ]
}

fn hostile(bug: Option<Bug>, which: usize) -> Result<(), String> {
    let mut cluster = cluster(5, bug);
    assert_eq!(exchange(&mut cluster, 0, 1, 7), (0, 4));
    // Requests for it wait for a step of guest memory.
    let generation = cluster.export(0, "again", 1, 1, Rights(3));
    let (incarnation, target) = (cluster.hib(1).incarnation(), cluster.hib(0).incarnation());
    let (what, events) = forgeries(incarnation, target, generation).swap_remove(which);
    for event in events {
        if cluster.has_ring(0, 1) {
            cluster.event(0, event);
        }
    }
    if cluster.has_ring(0, 1) {
        return Err(format!("a peer that sends {what} is disconnected, and was not"));
    }
    cluster.settle();
    // Both ends count the other as down. No other board is harmed.
    if cluster.has_ring(1, 0) || cluster.latched(0, 1).is_ok() || cluster.latched(1, 0).is_ok() {
        return Err(format!("{what}: the other end was not notified"));
    }
    assert_eq!(exchange(&mut cluster, 0, 2, 8), (0, 4));
    assert_eq!(exchange(&mut cluster, 2, 1, 9), (0, 4));
    // With its next incarnation the node is welcome again.
    cluster.event(1, Event::Reset);
    cluster.settle();
    assert!(cluster.has_ring(0, 1) && cluster.has_ring(1, 0), "{what}");
    Ok(())
}

#[test]
fn a_peer_that_breaks_the_rules_is_disconnected_and_no_other() {
    for which in 0..forgeries(0, 0, 0).len() {
        hostile(None, which).unwrap();
    }
    let long = 2;
    finds(Bug::TrustRing, "is disconnected", 0..1, |_| hostile(Some(Bug::TrustRing), long));
}

#[test]
fn packets_of_a_ring_that_is_closed_are_dropped() {
    let mut cluster = cluster(6, None);
    let packet = cluster.forged(
        1,
        0,
        1,
        Body::Read { at: RemoteAddr { page: 0, offset: 0, generation: 1 }, context: 0, size: 8 },
    );
    cluster.disconnect(1);
    cluster.settle();
    cluster.event(0, Event::RingPacket { packet, loan: None });
    for what in [RingEvent::Alive, RingEvent::Broken, RingEvent::Lost { incarnation: 1 }] {
        cluster.event(0, Event::Ring { peer: 1, what });
    }
    cluster.settle();
    assert_eq!(exchange(&mut cluster, 0, 2, 8), (0, 4));
}
