// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies and homes that do not answer, and pages that are no longer replicated: refused accesses, unaffected nodes,
//! and used resources (SPEC E19, E20, I7; `docs/replication.md`, "Silent copies and homes").

use crate::common::replicas::{
    FanOut, Ideal, NETS, Net, OWN, RIGHTS, cluster, finds, join, join_all, replicated, set, set_page, store, unmap,
    word,
};
use crate::common::{Cluster, Driver, EXPORTS, atomic_steps, import_ack, is_remote_store, over_seeds, replica_clear};
use telegraphos_device_core::{Bug, Event, Notice, Step};
use telegraphos_wire::admin::{self, Command};
use telegraphos_wire::context::{Launch, Operation};
use telegraphos_wire::{
    AtomicOp, Body, Class, ImportEpoch, NodeId, Packet, RemoteAddr, STREAM_BLOCK, Status, UNIT, event,
};

fn clear(page: u32) -> Command {
    replica_clear(page)
}

// ---- E20: between REPLICA_CLEAR and GRANT_CLEAR ----

/// A copy launches an atomic, and a node without a copy stores, while the home resigns. All copies have every
/// acknowledged store.
fn resigns(net: Net, seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut c = cluster(net, 4, seed, bug, |_| {});
    join_all(&mut c, 0..3, 0, admin::COUNTERS);
    // Node 3 has no copy: an ordinary import of the home's page.
    c.import(3, 0, "page", 11, 11);
    let cookie = c.cookie();
    let operation = Operation::Atomic { op: AtomicOp::Add, size: 8 };
    c.launch(1, 0, 1, atomic_steps(Launch { operation, notify: false, cookie }, 1, 0, c.address(1, OWN.into(), 8)));
    c.store(3, c.address(0, 11, 64), 8, 7);
    c.start_quiet(3, 0, 11, 99);
    c.some_steps(30);
    c.post(0, clear(0));
    c.settle();
    let (atomic, stored) = (c.finish(1, 0, 1, cookie).0, c.quiet_word(3, 0));
    assert_eq!(stored.1, 99);
    for (acknowledged, at, value) in [(atomic.is_ok(), 8, 1), (stored.0 == 0, 64, 7)] {
        let found = [0, 1, 2].map(|id| word(&c, id, at));
        if acknowledged && found != [value; 3] {
            return Err(format!("E20: acknowledged, and the copies have {found:?}"));
        }
    }
    Ok(())
}

#[test]
fn e20_nothing_is_changed_between_replica_clear_and_grant_clear() {
    for net in NETS {
        over_seeds(200, 10_000, |seed| resigns(net, seed, None));
        finds(Bug::ServeResigned, "E20: acknowledged, and the copies have", |seed| {
            resigns(net, seed, Some(Bug::ServeResigned))
        });
    }
    // It can be read, granted again as an ordinary page, or replicated again.
    let mut c = replicated(Ideal, 3, 1, admin::COUNTERS, None, |_| {});
    c.import(2, 0, "page", 11, 11);
    let home = c.address(0, 11, 0);
    assert_eq!(c.status(0, clear(0)), Status::Ok);
    assert_eq!(c.load(2, home, 8), 0);
    store(&mut c, 0, 0, 8, 5);
    assert_eq!(c.quiet(0, OWN.into(), 5), Status::NotHome as u16, "its own processors' stores, too");
    assert_eq!(word(&c, 0, 0), 0);
    c.admin(0, import_ack(OWN));
    assert_eq!(join(&mut c, 0, 0, admin::COUNTERS), Status::Ok);
    store(&mut c, 0, 0, 8, 6);
    assert_eq!(c.quiet(0, OWN.into(), 6), 0);
}

// ---- a copy that does not acknowledge ----

const LIMIT: u64 = 5_000_000;

fn settle(c: &mut Cluster, drivers: &[u16]) {
    for _ in 0..20 {
        c.settle();
        drivers.iter().for_each(|id| _ = unmap(c, *id));
    }
    c.settle();
}

/// Node 0 is the home of a page, node 2 that of another; node 3's driver unmaps nothing. Nodes 1 and 2 store far more
/// than their windows allow.
fn silent_copy(net: Net, bug: Option<Bug>) -> Result<(), String> {
    const STORES: u64 = 40;
    let mut c = replicated(net, 4, 5, admin::INVALIDATE, bug, |_| {});
    let drivers = [0, 1, 2];
    // Another page, whose home is node 2, and an ordinary one of node 0.
    let other = OWN + 1;
    for id in 1..3 {
        c.export(id, "other", 1, 1, RIGHTS);
    }
    let command = Command { taken: 30, ..c.import_command(1, 1, "other", other, other.into()) };
    assert_eq!(c.status(1, command), Status::Ok);
    for id in [2, 1] {
        let command = set_page(&mut c, id, 2, "other", 1, admin::COUNTERS);
        assert_eq!(c.status(id, command), Status::Ok);
    }
    c.export(0, "plain", 2, 1, RIGHTS);
    c.import(1, 0, "plain", 12, 12);
    for value in 1..=STORES {
        store(&mut c, 1, 0, 8, value);
    }
    c.start_quiet(1, 0, OWN.into(), 1000);
    settle(&mut c, &drivers);
    assert_ne!(c.quiet_word(1, 0).1, 1000, "node 3 still has it mapped");
    // All other traffic continues meanwhile: stores to the same home, and those to replicated pages of other homes.
    let plain = c.address(0, 12, 0);
    let elsewhere = c.address(1, other.into(), 0);
    for value in 1..=STORES {
        c.store(1, plain, 8, value);
        c.store(1, elsewhere, 8, 100 + value);
    }
    c.start_quiet(1, 1, 12, 1001);
    c.start_quiet(1, 2, other.into(), 1002);
    settle(&mut c, &drivers);
    let words = [c.ram_u64(0, EXPORTS + 2 * UNIT), c.ram_u64(2, EXPORTS + UNIT)];
    let done = [c.quiet_word(1, 1), c.quiet_word(1, 2)];
    if words != [STORES, 100 + STORES] || done != [(0, 1001), (0, 1002)] {
        return Err(format!("held up by one page's silent copy: {words:?}, {done:?}"));
    }
    // After the limit the silent copy is dropped, and all stores to the page continue, in order.
    c.event(0, Event::Tick { now: LIMIT + 1 });
    settle(&mut c, &drivers);
    if c.quiet_word(1, 0) != (0, 1000) {
        return Err(format!("the silent copy is waited for: {:?}", c.quiet_word(1, 0)));
    }
    assert_eq!(word(&c, 0, 0), STORES);
    let event = (event::REPLICA, telegraphos_wire::packet::NO_NODE);
    let orphaned = u64::from(Status::Timeout as u16) << 16 | event::REPLICA_ORPHANED;
    let events = c.events(3, 64);
    assert!(events.iter().any(|e| (e.0, e.1) == event && e.2 & orphaned == orphaned), "{net:?}: {events:?}");
    assert_eq!(c.hib(0).counters().silent_copies, 1);
    assert!(c.nodes[0].notices.contains(&Notice::SilentCopy { node: 3, page: 0 }));
    // The others are still copies, or again.
    let again = set(&mut c, 2, 0, admin::INVALIDATE);
    assert_eq!(c.status(2, again), Status::Ok);
    store(&mut c, 1, 8, 8, 77);
    c.start_quiet(1, 0, OWN.into(), 1003);
    settle(&mut c, &drivers);
    assert_eq!((c.quiet_word(1, 0), word(&c, 0, 8)), ((0, 1003), 77));
    // It cannot join again at once: it would delay all again. Later it can.
    assert_eq!(c.status(3, clear(0)), Status::Ok);
    let command = set(&mut c, 3, 0, admin::INVALIDATE);
    assert_eq!(c.status(3, command), Status::Timeout);
    assert_eq!(c.status(3, clear(0)), Status::Ok);
    c.event(0, Event::Tick { now: 10 * LIMIT });
    assert_eq!(c.status(3, command), Status::Ok);
    assert_eq!(word(&c, 3, 8), 77);
    Ok(())
}

#[test]
fn i7_e19_a_silent_copy_is_dropped_and_holds_up_its_page_alone() {
    for net in NETS {
        silent_copy(net, None).unwrap();
        finds(Bug::KeepSilentCopies, "the silent copy is waited for", |_| {
            silent_copy(net, Some(Bug::KeepSilentCopies))
        });
        let check = "held up by one page's silent copy";
        finds(Bug::ForwardsShareWindow, check, |_| silent_copy(net, Some(Bug::ForwardsShareWindow)));
    }
}

/// A home that stores regardless of acknowledgements, and a driver that unmaps nothing: the board keeps as many as an
/// honest home can have unacknowledged, and no more.
#[test]
fn a_home_has_a_bounded_number_of_acknowledgements_held() {
    let mut c = replicated(Ideal, 3, 1, admin::INVALIDATE, None, |_| {});
    let at = RemoteAddr { page: 0, offset: 0, generation: set(&mut c, 1, 0, admin::INVALIDATE).home_generation };
    let reflect = |c: &mut Cluster, tag: u32| {
        let body = Body::Reflected { at, size: 8, data: 1, writer: 2 };
        c.forge(0, 1, tag, body);
    };
    let orphaned = |c: &mut Cluster| {
        let events = c.take_events(1);
        events.iter().find(|e| e.0 == event::REPLICA && e.2 & event::REPLICA_ORPHANED != 0).map(|e| e.2 >> 16 & 0xffff)
    };
    let most = 256 * c.hib(1).config().window.nodes();
    (0..most).for_each(|tag| reflect(&mut c, tag));
    c.settle();
    assert_eq!(orphaned(&mut c), None);
    reflect(&mut c, most);
    c.settle();
    assert_eq!(orphaned(&mut c), Some(Status::NoSpace as u64));
}

/// A store's acknowledgement waits for the limit and no longer, and no acknowledged store is missing from a remaining
/// copy.
#[test]
fn i7_what_is_acknowledged_when_a_copy_is_dropped_all_others_have() {
    over_seeds(100, 5_000, |seed| {
        let net = NETS[seed as usize % 3];
        let mut c = replicated(net, 4, seed, admin::COUNTERS, None, |_| {});
        // The memory of node 3 accepts nothing for a while.
        store(&mut c, 1, 0, 8, 1);
        c.hold_next(3, is_remote_store);
        for value in 2..=20u64 {
            let id = c.rng.below(3) as u16;
            store(&mut c, id, value % 4 * 8, 8, value);
        }
        for id in 0..3 {
            c.start_quiet(id, 0, OWN.into(), 50);
        }
        c.settle();
        c.event(0, Event::Tick { now: 3 * LIMIT });
        c.settle();
        for id in 0..3 {
            if c.quiet_word(id, 0) != (0, 50) {
                return Err(format!("quiet of node {id}: {:?}", c.quiet_word(id, 0)));
            }
        }
        for at in 0..4 {
            let found = [0, 1, 2].map(|id| word(&c, id, at * 8));
            if found != [found[0]; 3] {
                return Err(format!("I7: {found:?}"));
            }
        }
        c.proceed();
        if c.hib(3).home_of(0).is_some() {
            return Err("node 3 counts itself as a copy".into());
        }
        Ok(())
    });
}

// ---- one board alone ----

/// An event of the home, which is alone. Returns the packets sent, and counts the blocks loaded.
fn handle(c: &mut Cluster, event: Event, loads: &mut usize) -> Vec<Packet> {
    c.alone(0, event, |step| *loads += usize::from(matches!(step, Step::LoadBlock { .. })))
}

fn packet(c: &Cluster, src: NodeId, tag: u32, body: Body) -> Event {
    Event::Packet(c.forged(src, 0, tag, body))
}

/// A node joins, leaves and joins, and accepts nothing. Returns the blocks in the home, and whether a store still
/// reaches another copy.
fn joins_and_leaves(bug: Option<Bug>) -> (usize, bool) {
    let mut c = replicated(Ideal, 3, 1, admin::COUNTERS, bug, |config| config.credits = [256; 4]);
    assert_eq!(c.status(2, clear(0)), Status::Ok);
    c.settle();
    let generation = c.lookup(0, 0, "page").generation;
    c.settle();
    let at = RemoteAddr { page: 0, offset: 0, generation };
    let (mut loads, mut fills) = (0, 0);
    for round in 0..1000 {
        let join = packet(&c, 2, 2 * round, Body::Join { at, mode: admin::COUNTERS as u16, keep: false });
        let sent = handle(&mut c, join, &mut loads);
        fills += sent.iter().filter(|packet| matches!(packet.body, Body::Fill { .. })).count();
        let leave = packet(&c, 2, 2 * round + 1, Body::Leave { at });
        handle(&mut c, leave, &mut loads);
    }
    println!("{bug:?}: 1000 times joined and left: {loads} blocks loaded, {fills} sent");
    let address = c.address(0, OWN.into(), 0);
    let store = Event::Write { bar: telegraphos_device_core::Bar::Window, offset: address, size: 8, data: 9 };
    let sent = handle(&mut c, store, &mut loads);
    (loads, sent.iter().any(|packet| packet.dst == 1 && matches!(packet.body, Body::Reflected { .. })))
}

#[test]
fn a_node_that_joins_and_leaves_uses_up_its_own_share_of_blocks_alone() {
    let (blocks, reaches) = joins_and_leaves(None);
    assert_eq!((blocks, reaches), (2, true), "two blocks on their way to one node, whatever it joins");
    let (blocks, reaches) = joins_and_leaves(Some(Bug::FillAtOnce));
    assert!(blocks > 1000 && !reaches, "{blocks}: all credits of the class are gone");
}

/// Copies of many pages at once are all filled, for any shares; credits from 1 up.
#[test]
fn e20_many_copies_at_once_are_all_filled() {
    for (net, credits) in NETS.into_iter().flat_map(|net| [1, 2, 8, 64].map(|credits| (net, credits))) {
        let mut c = cluster(net, 4, credits.into(), None, |config| config.credits = [credits; 4]);
        for page in 1..5u32 {
            for id in 0..4 {
                c.export(id, &format!("p{page}"), page, 1, RIGHTS);
            }
        }
        for page in 1..5u32 {
            let name = format!("p{page}");
            let command = set_page(&mut c, 0, 0, &name, page, admin::COUNTERS);
            assert_eq!(c.status(0, command), Status::Ok);
            c.poke(0, page, UNIT / 8 - 1, 8, u64::from(page));
        }
        let mut slots = Vec::new();
        for (id, page) in (1..4).flat_map(|id| (1..5u32).map(move |page| (id, page))) {
            let command = set_page(&mut c, id, 0, &format!("p{page}"), page, admin::COUNTERS);
            slots.push((id, page, c.post(id, command)));
        }
        c.settle();
        for (id, page, slot) in slots {
            assert_eq!(c.completion(id, slot).status, 0, "{net:?}, {credits} credits, node {id}, page {page}");
            assert_eq!(c.ram_u64(id, EXPORTS + (u64::from(page) + 1) * UNIT - 8), u64::from(page));
        }
    }
}

/// A requester that ignores its window: the home performs as many as it has room for.
#[test]
fn a_home_bounds_what_waits_for_copies() {
    let mut c = replicated(Ideal, 3, 1, admin::COUNTERS, None, |config| config.credits = [4096; 4]);
    let generation = c.lookup(0, 0, "page").generation;
    c.settle();
    let at = RemoteAddr { page: 0, offset: 0, generation };
    let (mut loads, mut sent) = (0, Vec::new());
    for tag in 0..2000 {
        let update = packet(
            &c,
            1,
            tag,
            Body::Update { at, context: 0, epoch: ImportEpoch::default(), size: 8, data: tag.into() },
        );
        sent.extend(handle(&mut c, update, &mut loads));
    }
    let performed = sent.iter().filter(|p| p.dst == 2 && matches!(p.body, Body::Reflected { .. })).count();
    assert_eq!(performed, 256);
    // The others have separate room.
    let update = packet(&c, 2, 1, Body::Update { at, context: 0, epoch: ImportEpoch::default(), size: 8, data: 5 });
    let others = handle(&mut c, update, &mut loads);
    assert!(others.iter().any(|p| matches!(p.body, Body::Reflected { writer: 2, .. })));
    // As copies acknowledge, the rest is performed, and all are answered.
    sent.extend(others);
    let mut answered = 0;
    while let Some(p) = sent.pop() {
        answered += usize::from(matches!(p.body, Body::WriteAck { status: Status::Ok }));
        if p.class() == Class::Reflected {
            let ack = packet(&c, p.dst, p.tag, Body::CopyAck { status: Status::Ok });
            sent.extend(handle(&mut c, ack, &mut loads));
        }
    }
    assert_eq!(answered, 2001);
}

// ---- a home that does not fill ----

fn silent_home(net: Net, bug: Option<Bug>) -> Result<(), String> {
    let mut c = cluster(net, 3, 1, bug, |_| {});
    join_all(&mut c, [0, 2], 0, admin::COUNTERS);
    let command = set(&mut c, 1, 0, admin::COUNTERS);
    let slot = c.post(1, command);
    let seq = c.last_command(1);
    c.hold_next(0, |step| matches!(step, Step::LoadBlock { .. }));
    c.settle();
    assert_ne!(c.completion(1, slot).seq, seq);
    assert!(bug.is_some() || c.hib(1).deadline().is_some());
    c.event(1, Event::Tick { now: LIMIT + 1 });
    c.settle();
    let done = c.completion(1, slot);
    if (done.seq, done.status) != (seq, Status::Timeout as u32) {
        return Err(format!("the join of a home that sends nothing: {done:?}"));
    }
    assert!(c.nodes[1].notices.contains(&Notice::SilentHome { page: 0 }));
    let orphaned = u64::from(Status::Timeout as u16) << 16 | event::REPLICA_ORPHANED;
    assert!(c.events(1, 64).iter().any(|e| e.0 == event::REPLICA && e.2 & orphaned == orphaned));
    store(&mut c, 1, 0, 8, 5);
    assert_eq!(c.quiet(1, OWN.into(), 5), Status::Timeout as u16);
    // A late block fills nothing, and the home drops the copy. It may join again.
    c.release();
    store(&mut c, 2, 0, 8, 6);
    c.settle();
    assert_eq!((word(&c, 0, 0), word(&c, 1, 0), word(&c, 2, 0)), (6, 0, 6), "{net:?}");
    let command = set(&mut c, 1, 0, admin::COUNTERS);
    assert_eq!(c.status(1, command), Status::Ok);
    assert_eq!(word(&c, 1, 0), 6);
    Ok(())
}

#[test]
fn a_home_that_accepts_a_join_and_sends_nothing_is_not_waited_for_without_limit() {
    for net in NETS {
        silent_home(net, None).unwrap();
        let check = "the join of a home that sends nothing";
        finds(Bug::KeepSilentHomes, check, |_| silent_home(net, Some(Bug::KeepSilentHomes)));
    }
    // A copy of a slow home that sends is filled.
    let mut c = cluster(FanOut(None), 3, 1, None, |_| {});
    assert_eq!(join(&mut c, 0, 0, admin::COUNTERS), Status::Ok);
    let command = set(&mut c, 1, 0, admin::COUNTERS);
    let slot = c.post(1, command);
    for round in 1..=8 {
        let block = EXPORTS + (round - 1) * STREAM_BLOCK as u64;
        c.hold_next(0, |step| matches!(step, Step::LoadBlock { address, .. } if *address == block));
        c.settle();
        c.event(1, Event::Tick { now: round * (LIMIT - 1) });
        c.release();
    }
    c.settle();
    assert_eq!(c.completion(1, slot).status, 0, "{:?}", c.nodes[1].notices);
    assert_eq!(c.hib(1).home_of(0), Some(0));
}
