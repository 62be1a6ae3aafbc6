// SPDX-License-Identifier: MIT OR Apache-2.0
//! The board's guarantees. Each is tested on seeded schedules, and shown to fail with a deliberate bug.

use crate::common::{
    self, Cluster, Driver, EVENTS, EXPORTS, grant_clear, grant_set, import_ack, import_clear, import_pages,
    is_remote_store, name64, node_up, of_three, publish, withdraw,
};
use telegraphos_device_core::{Bar, Bug, Event, Notice};
use telegraphos_wire::admin::{self, Command, Completion};
use telegraphos_wire::regs::{self, Register};
use telegraphos_wire::{Rights, Status, UNIT, context, event};

const RW: Rights = Rights(3);
const SEEDS: u64 = 200;

fn pair(seed: u64, bug: Option<Bug>) -> Cluster {
    of_three(seed, RW, bug)
}

/// A check must pass on the real core and fail with its deliberate bug, with an error that contains this text.
fn sees(bug: Bug, says: &str, check: impl Fn(u64, Option<Bug>) -> Result<(), String>) {
    common::sees(bug, says, 0..SEEDS, check);
}

#[test]
fn every_size_lands_and_reads_back_also_on_the_own_node() {
    let mut c = pair(1, None);
    for dst in [1, 0] {
        for (i, size) in [1u32, 2, 4, 8].into_iter().enumerate() {
            let value = 0x8877_6655_4433_2211u64;
            let at = 64 * i as u64 + UNIT - 256;
            let address = c.address(dst, 0, at);
            c.store(0, address, size, value);
            let mask = if size == 8 { u64::MAX } else { (1 << (8 * size)) - 1 };
            assert_eq!(c.load(0, address, size), value & mask);
            assert_eq!(c.ram_u64(dst, EXPORTS + at), value & mask, "neighbouring bytes stay untouched");
        }
        let last = c.address(dst, 1, UNIT - 8);
        c.store(0, last, 8, 42);
        assert_eq!(c.load(0, last, 8), 42, "the last word of the segment");
    }
}

#[test]
fn i8_per_pair_fifo() {
    sees(Bug::ServeOutOfOrder, "performed [", |seed, bug| {
        let mut c = pair(seed, bug);
        for i in 0..40u64 {
            for src in 0..2 {
                c.store(src, c.address(2, 0, 8 * (c.rng.clone().next() % 512)), 8, u64::from(src) << 32 | (i + 1));
            }
            if c.rng.below(3) == 0 {
                c.step();
            }
        }
        c.settle();
        for src in 0..2u64 {
            let seen: Vec<u64> = c.nodes[2].performed.iter().map(|p| p.1).filter(|v| v >> 32 == src).collect();
            let wanted: Vec<u64> = (1..=40).map(|i| src << 32 | i).collect();
            if seen != wanted {
                return Err(format!("source {src}: performed {seen:x?}"));
            }
        }
        Ok(())
    });
}

#[test]
fn i7_quiet_waits_for_every_earlier_store() {
    sees(Bug::QuietIgnoresOutstanding, "is missing after quiet", |seed, bug| {
        let mut c = pair(seed, bug);
        for i in 0..30u64 {
            let dst = 1 + (i % 2) as u16;
            c.store(0, c.address(dst, 0, 8 * i), 8, i + 1);
        }
        if c.quiet(0, context::QUIET_ALL, 7) != 0 {
            return Err("quiet reports an error".into());
        }
        for i in 0..30u64 {
            let dst = 1 + (i % 2) as u16;
            if c.ram_u64(dst, EXPORTS + 8 * i) != i + 1 {
                return Err(format!("store {i} is missing after quiet"));
            }
        }
        Ok(())
    });
}

#[test]
fn i7_quiet_reports_stores_that_were_never_sent() {
    for link in [false, true] {
        let mut c = pair(1, None);
        c.import(0, 1, "seg", 6, 4);
        // Another import's stores fill the window of requests; these wait, and are dropped with their node.
        for i in 0..20 {
            c.store(0, c.address(1, if i < 10 { 4 } else { 0 }, 8 * i), 8, i);
        }
        c.start_quiet(0, 5, 1, 44);
        c.event(0, if link { Event::LinkDown } else { Event::NodeDown { node: 1 } });
        c.settle();
        let wanted = if link { Status::LinkDown } else { Status::NodeDown };
        assert_eq!(c.quiet_word(0, 5), (wanted as u16, 44));
        // A refusal drops them as well.
        let mut c = pair(1, None);
        c.ok(1, grant_clear(0, 2));
        for i in 0..20 {
            c.store(0, c.address(1, 0, 8 * i), 8, i);
        }
        c.start_quiet(0, 5, 1, 44);
        c.settle();
        assert_eq!(c.quiet_word(0, 5), (Status::NotGranted as u16, 44));
    }
}

/// A process may issue a quiet while its import is being closed and reopened (an orphan that is adopted).
#[test]
fn i7_a_quiet_of_an_import_that_is_not_open_is_answered() {
    let mut c = pair(1, None);
    assert_eq!(c.quiet(0, 9, 44), Status::Unmapped as u16);
    // Nor does a quiet that waits in the slot complete after it.
    let (near, far) = (c.address(1, 0, 0), c.address(2, 0, 0));
    c.store(0, near, 8, 1);
    c.store(0, far, 8, 1);
    c.hold_next(1, is_remote_store);
    c.start_quiet(0, 5, context::QUIET_ALL, 45);
    c.settle();
    assert_ne!(c.quiet_word(0, 5).1, 45, "the quiet waits");
    c.start_quiet(0, 5, 9, 46);
    c.settle();
    assert_eq!(c.quiet_word(0, 5), (Status::Unmapped as u16, 46));
    c.proceed();
    assert_eq!(c.quiet_word(0, 5), (Status::Unmapped as u16, 46));
}

/// Node 0 has lost a store to node 1, and waits in a quiet of everything for a store to node 2, which is held.
fn quiet_with_a_loss(seed: u64, bug: Option<Bug>, cookie: u64) -> Cluster {
    let mut c = pair(seed, bug);
    c.ok(1, grant_clear(0, 2));
    c.store(0, c.address(2, 0, 0), 8, 7);
    c.hold_next(2, is_remote_store);
    let one = c.address(1, 0, 0);
    if seed % 2 == 0 {
        c.store(0, one, 8, 1);
        c.start_quiet(0, 5, context::QUIET_ALL, cookie);
    } else {
        // The loss is latched, and not acknowledged, when the quiet is issued.
        c.store(0, one, 8, 1);
        c.settle();
        c.start_quiet(0, 5, context::QUIET_ALL, cookie);
    }
    c.settle();
    assert_ne!(c.quiet_word(0, 5).1, cookie, "the quiet waits");
    c
}

#[test]
fn i7_e19_an_acknowledgement_takes_no_loss_from_a_quiet_that_waits() {
    sees(Bug::QuietReadsPresentError, "the quiet that waited for a lost store says", |seed, bug| {
        let mut c = quiet_with_a_loss(seed, bug, 44);
        c.ok(0, import_ack(1));
        // Nor does a later import under the same number, after the acknowledgement.
        if seed % 3 == 0 {
            c.ok(0, import_clear(1));
            c.export(1, "other", 0, 2, RW);
            c.import(0, 1, "other", 1, 0);
        }
        c.proceed();
        let found = c.quiet_word(0, 5);
        if found != (Status::NotGranted as u16, 44) {
            return Err(format!("the quiet that waited for a lost store says {found:?}"));
        }
        if c.quiet(0, context::QUIET_ALL, 45) != 0 {
            return Err("a quiet behind the acknowledgement reports what was acknowledged".into());
        }
        Ok(())
    });
}

#[test]
fn i7_a_quiet_does_not_wait_for_stores_behind_an_acknowledged_loss() {
    let mut c = pair(2, None);
    c.ok(1, grant_clear(0, 1));
    c.store(0, c.address(2, 0, 0), 8, 7);
    c.hold_next(2, is_remote_store);
    let (bad, good) = (c.address(1, 0, 0), c.address(1, 1, 0));
    for i in 0..20 {
        c.store(0, bad, 8, i);
    }
    c.start_quiet(0, 5, context::QUIET_ALL, 44);
    c.settle();
    c.ok(0, import_ack(1));
    // As many as the quiet has waited for, and these are not performed.
    for i in 0..20 {
        c.store(0, good, 8, i);
    }
    c.release();
    c.hold_next(1, is_remote_store);
    c.settle();
    assert_eq!(c.quiet_word(0, 5), (Status::NotGranted as u16, 44));
}

#[test]
fn quiet_of_one_import_does_not_wait_for_another() {
    let mut c = pair(3, None);
    let (one, two) = (c.address(1, 0, 0), c.address(2, 0, 0));
    c.event(0, node_up(2, 0x1000));
    for i in 0..100 {
        c.store(0, two, 8, i);
    }
    c.store(0, one, 8, 5);
    assert_eq!(c.quiet(0, 1, 9), 0);
    assert_eq!(c.ram_u64(1, EXPORTS), 5);
}

#[test]
fn no_store_is_lost_however_small_the_buffers() {
    sees(Bug::DropWhenFull, "stores are missing", |seed, bug| {
        let mut c = pair(seed, bug);
        c.store_words(0, 1, 0..200);
        c.settle();
        let missing = (0..200u64).filter(|i| c.ram_u64(1, EXPORTS + 8 * i) != i + 1).count();
        if missing == 0 { Ok(()) } else { Err(format!("{missing} stores are missing")) }
    });
}

#[test]
fn an_old_generation_is_refused() {
    sees(Bug::IgnoreGeneration, "the new owner's memory was written", |seed, bug| {
        let mut c = pair(seed, bug);
        let address = c.address(1, 0, 16);
        c.store(0, address, 8, 1);
        c.settle();
        c.ok(1, grant_clear(0, 2));
        c.ok(1, withdraw("seg"));
        c.export(1, "other", 0, 2, RW);
        c.store(0, address, 8, 0xbad);
        let quiet = c.quiet(0, 1, 3);
        if c.ram_u64(1, EXPORTS + 16) != 1 {
            return Err("the new owner's memory was written".into());
        }
        if quiet != Status::Stale as u16 {
            return Err("quiet does not report the refusal".into());
        }
        Ok(())
    });
}

#[test]
fn revocation_completes_only_when_nothing_is_in_flight() {
    for seed in 0..SEEDS {
        let mut c = pair(seed, None);
        c.store_words(0, 1, 0..20);
        c.some_steps(40);
        c.admin(1, grant_clear(0, 2));
        let before = c.nodes[1].performed.len();
        c.settle();
        assert_eq!(c.nodes[1].performed.len(), before, "seed {seed}: a store landed after the revocation");
    }
}

#[test]
fn no_store_passes_a_lost_one() {
    sees(Bug::PassLostStore, "a store passed a lost one", |seed, bug| {
        let mut c = pair(seed, bug);
        // A store that may not be made is lost among others; what follows must not land until acknowledged.
        let address = c.address(1, 1, 0);
        c.store_words(0, 1, 0..20);
        c.admin(1, grant_clear(0, 1));
        let before = c.quiet(0, 1, 3);
        c.store(0, c.address(1, 0, 0), 8, 1);
        c.settle();
        assert!(before != 0 || c.quiet(0, 1, 4) == Status::NotGranted as u16);
        c.store(0, address, 8, 0xbad);
        c.settle();
        if c.ram_u64(1, EXPORTS + UNIT) != 0 {
            return Err("a store passed a lost one".into());
        }
        c.ok(0, import_ack(1));
        c.store(0, address, 8, 6);
        c.settle();
        assert_eq!(c.ram_u64(1, EXPORTS + UNIT), 6, "an acknowledged import works again");
        Ok(())
    });
}

#[test]
fn an_event_queue_of_4_entries_loses_none_of_1000_causes() {
    sees(Bug::ForgetCause, "was never reported", |seed, bug| {
        let mut c = Cluster::new(2, seed, |config| config.bug = bug);
        c.settle();
        c.register(0, Register::EventSize, 0);
        c.nodes[0].ram[EVENTS as usize..EVENTS as usize + 64].fill(0);
        c.register(0, Register::EventSize, 4);
        let mut seen = std::collections::BTreeSet::new();
        let mut consumed = 0u32;
        let mut raised = 0u32;
        let drain = |c: &mut Cluster, consumed: &mut u32, seen: &mut std::collections::BTreeSet<u64>| {
            loop {
                let entry = EVENTS + u64::from(*consumed % 4) * 16;
                let word = c.ram_u64(0, entry + 8);
                if (word >> 32) as u32 != *consumed + 1 {
                    break;
                }
                if word as u16 == event::NODE_STATE {
                    seen.insert(c.ram_u64(0, entry));
                }
                *consumed += 1;
            }
            c.register(0, Register::EventConsumer, u64::from(*consumed));
        };
        // The driver must see the last of 1000 incarnations whenever it has read all events.
        for i in 1..=1000u32 {
            for node in 2..8 {
                c.event(0, node_up(node, u64::from(i << 8 | u32::from(node))));
            }
            raised = raised.max(c.nodes[0].interrupts);
            c.some_steps(4);
            if c.rng.below(5) == 0 {
                drain(&mut c, &mut consumed, &mut seen);
            }
        }
        for _ in 0..50 {
            c.settle();
            drain(&mut c, &mut consumed, &mut seen);
        }
        if raised == 0 {
            return Err("no interrupt at all".into());
        }
        for node in 2..8u64 {
            if !seen.contains(&(1000 << 8 | node)) {
                return Err(format!("the last state of node {node} was never reported"));
            }
        }
        Ok(())
    });
}

/// A peer that has been notified of node 1's reset uses the old grant again, which must be refused.
fn claim_again(c: &mut Cluster, old: &Completion) {
    let incarnation = c.hib(1).incarnation();
    c.event(0, node_up(1, incarnation));
    c.admin(0, import_clear(1));
    c.ok(0, Command { length: old.length, ..import_pages(1, 1, 0, (0, 2), old.generation, RW) });
}

#[test]
fn a_reset_board_grants_nothing_and_peers_learn_it() {
    sees(Bug::KeepGrantsOnReset, "an old store landed in a rebooted guest", |seed, bug| {
        let mut c = pair(seed, bug);
        for i in 0..20u64 {
            c.store(0, c.address(1, 0, 8 * i), 8, 0x5a5a);
        }
        c.some_steps(60);
        let old = c.lookup(0, 1, "seg");
        c.reset(1);
        c.nodes[1].ram.fill(0); // The rebooted guest's own memory.
        c.event(1, Event::BusMaster(true));
        let before = c.nodes[1].performed.len();
        c.settle();
        claim_again(&mut c, &old);
        c.store(0, c.address(1, 0, 0), 8, 0x5a5a);
        c.settle();
        if c.nodes[1].performed.len() != before || c.nodes[1].ram.iter().any(|b| *b != 0) {
            return Err("an old store landed in a rebooted guest".into());
        }
        let status = c.quiet(0, 1, 77);
        if c.hib(1).counters().refused > 0 && status == 0 {
            return Err("a refused store is not reported".into());
        }
        Ok(())
    });
}

#[test]
fn an_unanswered_load_returns_all_ones_in_time() {
    let mut c = pair(5, None);
    let address = c.address(1, 0, 0);
    let token = c.start_load(0, address, 4);
    assert_eq!(c.hib(0).deadline(), Some(1_000_000));
    c.event(0, Event::Tick { now: 999_999 });
    assert!(c.nodes[0].reads.is_empty());
    c.event(0, Event::Tick { now: 1_000_000 });
    assert_eq!(c.answer(0, token), Some(0xffff_ffff));
    assert!(c.hib(0).deadline() > Some(1_000_000), "only the age of the request counts on");
    c.settle();
    assert!(c.nodes[0].reads.is_empty(), "the stale reply is dropped");
    assert_eq!(c.hib(0).deadline(), None);
    assert_eq!(c.quiet(0, 1, 2), Status::Timeout as u16, "the error is latched");
    c.admin(0, import_ack(1));
    assert_eq!(c.load(0, address, 4), 0, "loads work again");
}

#[test]
fn a_dead_node_or_link_fails_everything_at_once() {
    for link in [false, true] {
        let mut c = pair(6, None);
        let address = c.address(1, 0, 0);
        let token = c.start_load(0, address, 8);
        for i in 0..50 {
            c.store(0, address, 8, i);
        }
        c.start_quiet(0, 3, 1, 55);
        c.event(0, if link { Event::LinkDown } else { Event::NodeDown { node: 1 } });
        assert_eq!(c.answer(0, token), Some(u64::MAX));
        c.settle();
        let wanted = if link { Status::LinkDown } else { Status::NodeDown };
        assert_eq!(c.quiet_word(0, 3), (wanted as u16, 55));
        assert_eq!(c.load(0, address, 8), u64::MAX);
        let own = c.address(0, 0, 8);
        c.store(0, own, 8, 9);
        assert_eq!(c.load(0, own, 8), 9, "the node itself continues");
        assert_eq!(c.lookup(0, 1, "seg").status, wanted as u32);
    }
}

#[test]
fn bad_accesses_are_refused_latched_and_counted() {
    let mut c = pair(7, None);
    let sent = c.packets;
    let cases = [
        (c.address(1, 5, 0), 8, Status::Unmapped),
        (c.address(1, 0, 1), 2, Status::BadSize),
        (c.address(1, 0, 0), 3, Status::BadSize),
        (c.address(1, 0, 0), 16, Status::BadSize),
        (c.address(1, 0, 0) + (3 << 23), 8, Status::Aperture),
        (c.address(7, 0, 0), 8, Status::BadNode),
    ];
    for (i, (address, size, wanted)) in cases.into_iter().enumerate() {
        c.register(0, Register::ErrorAck, 1);
        c.store(0, address, size, 1);
        let error = c.hib(0).register(Register::Error);
        assert_eq!(error as u16, wanted as u16, "case {i}");
        assert_eq!(c.hib(0).register(Register::ErrorAddress), address);
        let ones = if size == 2 { 0xffff } else { u64::MAX };
        let got = c.load(0, address, size);
        assert!(got == ones || size == 3, "case {i}: {got:#x}");
    }
    assert_eq!(c.packets, sent, "no packet leaves");
    assert!(c.hib(0).counters().errors >= 12);
    assert!(c.nodes[0].notices.iter().any(|n| matches!(n, Notice::BadAccess { bar: Bar::Window, .. })));
}

#[test]
fn rights_are_checked_at_the_issuer_and_at_the_receiver() {
    let mut c = Cluster::new(2, 8, |_| {});
    let generation = c.export(1, "ro", 0, 1, Rights::READ);
    c.import(0, 1, "ro", 0, 0);
    let address = c.address(1, 0, 0);
    let sent = c.packets;
    c.store(0, address, 8, 1);
    assert_eq!(c.packets, sent, "refused at the issuer");
    assert_eq!(c.quiet(0, 0, 1), Status::Rights as u16);
    // A driver that claims more rights than granted gains nothing.
    c.ok(0, import_pages(1, 1, 1, (0, 1), generation, RW));
    c.store(0, c.address(1, 1, 0), 8, 1);
    assert_eq!(c.quiet(0, 1, 2), Status::Rights as u16);
    assert_eq!(c.ram_u64(1, EXPORTS), 0);
    assert_eq!(c.hib(1).counters().refused, 1);
}

#[test]
fn a_full_reserve_cuts_the_import_and_keeps_what_was_accepted() {
    let mut c = Cluster::new(2, 9, |config| {
        config.outstanding = 1;
        config.congest_at = 10;
        config.clear_at = 2;
        config.reserve = 50;
    });
    c.export(1, "seg", 0, 1, RW);
    c.import(0, 1, "seg", 0, 0);
    c.store_words(0, 1, 0..100);
    assert!(c.nodes[0].notices.contains(&Notice::Congested { import: 0, on: true }));
    c.settle();
    assert!(c.nodes[0].notices.contains(&Notice::Congested { import: 0, on: false }));
    let landed = (0..100u64).take_while(|i| c.ram_u64(1, EXPORTS + 8 * i) == i + 1).count();
    assert_eq!(landed, 51, "one outstanding and fifty waiting");
    assert_eq!(c.nodes[1].performed.len(), landed, "nothing after the first lost one");
    assert_eq!(c.quiet(0, 0, 4), Status::Cut as u16);
    assert_eq!(c.hib(0).counters().dropped, 49);
}

#[test]
fn a_socket_that_never_runs_dry_stops_the_storing_processes() {
    let mut c = Cluster::new(2, 10, |config| config.intake_limit = 100);
    c.export(1, "seg", 0, 1, RW);
    c.import(0, 1, "seg", 0, 0);
    let address = c.address(1, 0, 0);
    for i in 0..100 {
        c.store(0, address, 8, i);
        c.settle();
    }
    assert!(c.nodes[0].notices.contains(&Notice::Congested { import: 0, on: true }));
    c.event(0, Event::IntakeDry);
    assert!(c.nodes[0].notices.contains(&Notice::Congested { import: 0, on: false }));
}

#[test]
fn names_modes_and_secrets_are_checked_by_the_exporter() {
    let mut c = Cluster::new(2, 11, |_| {});
    let grant = Command { length: 100, nodes: [1, 0, 0, 0], ..grant_set(0, 1, EXPORTS, RW) };
    let done = c.admin(1, grant);
    let publish = Command {
        rights_others: Rights::READ.0,
        uid: 1000,
        secret: [7; 16],
        ..publish("s", 0, 100, done.generation, RW)
    };
    c.ok(1, publish);
    assert_eq!(c.status(1, publish), Status::NameTaken);
    let ask = |uid, rights: Rights, secret, name: &str| Command {
        opcode: admin::LOOKUP,
        node: 1,
        uid,
        rights: rights.0,
        secret,
        name: name64(name),
        ..Command::default()
    };
    c.ok(0, ask(1000, RW, [7; 16], "s"));
    assert_eq!(c.admin(0, ask(1001, Rights::READ, [7; 16], "s")).rights, u32::from(Rights::READ.0));
    assert_eq!(c.status(0, ask(1001, RW, [7; 16], "s")), Status::Denied);
    assert_eq!(c.status(0, ask(1000, RW, [8; 16], "s")), Status::Denied);
    assert_eq!(c.status(0, ask(1000, RW, [7; 16], "t")), Status::NoSegment);
    let own = Command { node: 1, ..ask(1000, RW, [7; 16], "s") };
    assert_eq!(c.status(1, own), Status::NoSegment, "node 1 is not among the grant's nodes");
    assert_eq!(c.status(0, Command { node: 9, ..own }), Status::BadNode);
}

#[test]
fn an_access_past_the_end_of_a_short_segment_is_refused() {
    let mut c = Cluster::new(2, 12, |_| {});
    let generation = c.admin(1, Command { length: 100, ..grant_set(0, 1, EXPORTS, RW) }).generation;
    let set = |import, index, length| Command { length, ..import_pages(import, 1, index, (0, 1), generation, RW) };
    c.ok(0, set(0, 0, 100));
    c.ok(0, set(1, 1, UNIT));
    let (local, remote) = (c.address(1, 0, 96), c.address(1, 1, 96));
    c.store(0, local, 4, 1);
    assert_eq!(c.quiet(0, 0, 1), 0);
    c.store(0, local, 8, 1);
    assert_eq!(c.quiet(0, 0, 2), Status::Bounds as u16);
    c.store(0, remote, 8, 1);
    assert_eq!(c.quiet(0, 1, 3), Status::Bounds as u16, "also if the importer claims a longer segment");
}

#[test]
fn import_clear_waits_for_its_stores() {
    for seed in 0..SEEDS {
        let mut c = pair(seed, None);
        c.store_words(0, 1, 0..30);
        let clear = import_clear(1);
        c.ok(0, clear);
        assert!((0..30u64).all(|i| c.ram_u64(1, EXPORTS + 8 * i) == i + 1), "seed {seed}");
        assert_eq!(c.status(0, clear), Status::Invalid);
        c.store(0, c.address(1, 0, 0), 8, 99);
        c.settle();
        assert_eq!(c.error(0), Status::Unmapped);
    }
}

/// A driver takes over a board that a crashed one left in use; a peer's stores under the old grants must not land.
fn take_over(seed: u64, bug: Option<Bug>, reset: bool) -> Result<(), String> {
    let mut c = pair(seed, bug);
    let address = c.address(1, 0, 0);
    for _ in 0..c.rng.below(20) {
        c.store(0, address, 8, 0x5a5a);
        c.step();
    }
    c.event(1, Event::BusMaster(false));
    let incarnation = c.hib(1).incarnation();
    let old = c.lookup(0, 1, "seg");
    if reset {
        c.register(1, Register::Control, regs::CONTROL_RESET);
        while c.hib(1).register(Register::Control) & regs::CONTROL_RESET != 0 {
            assert!(c.step(), "the reset never completes");
        }
        assert_eq!(c.hib(1).incarnation(), incarnation + 1);
        assert_eq!(c.hib(1).register(Register::AdminBase), 0, "the next driver finds nothing left");
    } else {
        while !c.hib(1).is_quiescent() {
            assert!(c.step(), "steps in flight never complete");
        }
    }
    c.nodes[1].ram.fill(0); // The memory has a new user by now.
    c.event(1, Event::BusMaster(true));
    c.settle();
    claim_again(&mut c, &old);
    c.store(0, address, 8, 0x5a5a);
    c.settle();
    if c.nodes[1].ram.iter().any(|b| *b != 0) {
        return Err("a store landed under a grant of the driver before".into());
    }
    Ok(())
}

#[test]
fn a_board_that_a_crashed_driver_left_in_use_is_reset_before_it_may_write() {
    assert!((0..SEEDS).any(|seed| take_over(seed, None, false).is_err()), "without a reset nothing is wrong");
    sees(Bug::KeepGrantsOnReset, "a store landed under a grant of the driver before", |seed, bug| {
        take_over(seed, bug, true)
    });
}

#[test]
fn the_board_does_not_touch_memory_while_bus_mastering_is_off() {
    let mut c = pair(13, None);
    c.event(1, Event::BusMaster(false));
    c.store(0, c.address(1, 0, 0), 8, 5);
    assert_eq!(c.quiet(0, 1, 1), Status::MemoryFault as u16);
    assert_eq!(c.ram_u64(1, EXPORTS), 0);
}
