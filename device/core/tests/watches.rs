// SPDX-License-Identifier: MIT OR Apache-2.0
//! Words that processes wait for asleep (`WORD_ARM`): in exported pages, and in copies of replicated ones.

use crate::common::replicas::{Ideal, NETS, replicated};
use crate::common::{self, ALL, Cluster, Driver, EXPORTS, finds, grant_clear, grant_set, of_three, over_seeds};
use telegraphos_device_core::{Bar, Bug, Event, Step};
use telegraphos_wire::admin::{self, Command};
use telegraphos_wire::context::WordArm;
use telegraphos_wire::regs::Register;
use telegraphos_wire::{AtomicOp, Status, UNIT, event};

fn arm(c: &mut Cluster, id: u16, context: u16, arm: WordArm) {
    let (offset, data) = arm.encode();
    let offset = u64::from(context) * UNIT + offset;
    c.write(id, Bar::Contexts, offset, data);
}

/// Arms a word of a page for context 0 with what is in it now.
fn arm_now(c: &mut Cluster, id: u16, page: u32, word: u16) {
    let seen = WordArm::fold(c.peek(id, page, word.into(), 8));
    arm(c, id, 0, WordArm { page, word, seen });
    c.settle();
}

/// The events that wake this context.
fn wakes(c: &Cluster, id: u16, context: u16) -> usize {
    c.events(id, 64).iter().filter(|(kind, index, _)| (*kind, *index) == (event::CONTEXT, context)).count()
}

/// A process looks, arms at some later moment, and sleeps; the word is stored to meanwhile, or later.
fn waiter_wakes(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut c = of_three(seed, ALL, bug);
    let word = [0, 5, 255, 256, 8191][c.rng.below(5)];
    let seen = WordArm::fold(c.peek(1, 0, word.into(), 8));
    let address = c.address(1, 0, 8 * u64::from(word));
    let storing = [0, 1, 2][c.rng.below(3)];
    c.store(storing, address, 8, seed + 1);
    c.some_steps(12);
    arm(&mut c, 1, 0, WordArm { page: 0, word, seen });
    c.settle();
    assert_eq!(c.peek(1, 0, word.into(), 8), seed + 1);
    if wakes(&c, 1, 0) == 0 {
        return Err("the word has changed, and its reader sleeps".into());
    }
    Ok(())
}

#[test]
fn no_wake_up_is_lost_between_a_look_and_its_arm() {
    over_seeds(500, 20_000, |seed| waiter_wakes(seed, None));
    finds(Bug::WatchBlindly, "its reader sleeps", 0..500, |seed| waiter_wakes(seed, Some(Bug::WatchBlindly)));
}

#[test]
fn an_armed_page_wakes_once_at_whatever_changes_it_and_at_nothing_else() {
    let word = |c: &Cluster, offset| c.address(1, 0, offset);
    let changes: [fn(&mut Cluster, u64); 4] = [
        |c, at| c.store(2, at, 1, 7),
        |c, at| assert_eq!(c.atomic(0, AtomicOp::Add, 8, at, 1, 0).0, Status::Ok),
        |c, at| assert_eq!(c.copy(2, at, c.address(2, 0, 0), 4096), Status::Ok),
        // The other node's page, to its own: a block of a get.
        |c, at| assert_eq!(c.copy(1, at, c.address(0, 0, 0), 100), Status::Ok),
    ];
    for change in changes {
        let mut c = of_three(3, ALL, None);
        let (at, other_page) = (word(&c, 4096), c.address(1, 1, 0));
        arm_now(&mut c, 1, 0, 9);
        c.load(0, at, 8);
        c.store(0, other_page, 8, 1);
        c.settle();
        assert_eq!(wakes(&c, 1, 0), 0);
        change(&mut c, at);
        c.settle();
        assert_eq!(wakes(&c, 1, 0), 1, "another word of the page, too");
        change(&mut c, at);
        c.settle();
        assert_eq!(wakes(&c, 1, 0), 1, "an arm is for one event");
        arm_now(&mut c, 1, 0, 9);
        c.store(0, at, 8, 5);
        c.settle();
        assert_eq!(wakes(&c, 1, 0), 2);
    }
}

/// A process watches what another one has exported.
fn foreign_pages(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut c = of_three(seed, ALL, bug);
    c.open_context(1, 3);
    arm(&mut c, 1, 3, WordArm { page: 0, word: 0, seen: 0 });
    c.settle();
    let error = c.hib(1).register(Register::Error) & 0xffff;
    c.store(0, c.address(1, 0, 0), 8, 1);
    c.settle();
    if (error, wakes(&c, 1, 3)) != (Status::NotGranted as u64, 0) {
        return Err(format!("another process's page is watched: status {error}"));
    }
    Ok(())
}

#[test]
fn a_process_watches_only_its_own_pages() {
    foreign_pages(1, None).unwrap();
    finds(Bug::WatchForeign, "another process's page", 0..20, |seed| foreign_pages(seed, Some(Bug::WatchForeign)));
}

#[test]
fn what_cannot_be_watched_is_refused() {
    for (page, word, expected) in [(2, 0, Status::NotGranted), (0x00ff_ffff, 0, Status::NotGranted)] {
        let mut c = of_three(1, ALL, None);
        arm(&mut c, 1, 0, WordArm { page, word, seen: 0 });
        assert_eq!(c.hib(1).register(Register::Error) & 0xffff, expected as u64);
    }
    // A page that ends after its first word, and a store that is no arm.
    let mut c = of_three(1, ALL, None);
    c.ok(1, Command { length: 12, ..grant_set(7, 1, EXPORTS, ALL) });
    arm(&mut c, 1, 0, WordArm { page: 7, word: 0, seen: 1 });
    c.settle();
    assert_eq!((c.hib(1).register(Register::Error), wakes(&c, 1, 0)), (0, 1));
    arm(&mut c, 1, 0, WordArm { page: 7, word: 1, seen: 0 });
    assert_eq!(c.hib(1).register(Register::Error) & 0xffff, Status::Bounds as u64);
    let (offset, data) = WordArm { page: 0, word: 0, seen: 0 }.encode();
    c.event(2, Event::Write { bar: Bar::Contexts, offset, size: 4, data });
    assert_eq!(c.hib(2).register(Register::Error) & 0xffff, Status::BadSize as u64);
}

#[test]
fn looks_are_one_at_a_time_and_a_revocation_waits_for_them() {
    let mut c = of_three(1, ALL, None);
    let load = |step: &Step| matches!(step, Step::Load { .. });
    for word in 0..100 {
        arm(&mut c, 1, 0, WordArm { page: 0, word, seen: 0 });
    }
    assert_eq!(c.hold(1, load), 1);
    c.settle();
    assert!(wakes(&c, 1, 0) > 0, "the others must look again");
    let slot = c.post(1, grant_clear(0, 2));
    let seq = c.last_command(1);
    c.settle();
    assert_ne!(c.completion(1, slot).seq, seq, "memory is loaded that the driver may have given away");
    c.proceed();
    assert_eq!((c.completion(1, slot).seq, c.completion(1, slot).status), (seq, 0));
    arm(&mut c, 1, 0, WordArm { page: 0, word: 0, seen: 0 });
    assert_eq!(c.hib(1).register(Register::Error) & 0xffff, Status::NotGranted as u64);
}

#[test]
fn a_reset_disarms() {
    let mut c = of_three(1, ALL, None);
    arm_now(&mut c, 1, 0, 0);
    c.event(1, Event::Reset);
    c.settle();
    c.start(1);
    c.export(1, "seg", 0, 2, ALL);
    c.import(1, 1, "seg", 1, 0);
    let before = wakes(&c, 1, 0);
    c.store(1, c.address(1, 0, 0), 8, 1);
    c.settle();
    assert_eq!((c.peek(1, 0, 0, 8), wakes(&c, 1, 0)), (1, before));
}

/// The same with a replicated page: the waiter is at the home, or at a copy.
fn replica_waiter_wakes(net: common::replicas::Net, mode: u32, seed: u64) -> Result<(), String> {
    let mut c = replicated(net, 3, seed, mode, None, |_| {});
    let (waiting, storing) = (seed as u16 % 3, (seed / 3) as u16 % 3);
    let seen = WordArm::fold(c.peek(waiting, 0, 6, 8));
    common::replicas::store(&mut c, storing, 48, 8, seed + 1);
    c.some_steps(30);
    arm(&mut c, waiting, 0, WordArm { page: 0, word: 6, seen });
    c.settle();
    // In mode invalidate, copies are invalid now: their drivers are notified, and their readers must find out.
    match wakes(&c, waiting, 0) {
        0 => Err(format!("mode {mode}: node {storing} has stored, and the reader at {waiting} sleeps")),
        _ => Ok(()),
    }
}

#[test]
fn a_reader_of_a_replicated_page_wakes_wherever_the_store_was() {
    for mode in [admin::OWNER, admin::COUNTERS, admin::INVALIDATE, admin::NAIVE] {
        for net in NETS {
            over_seeds(30, 1000, |seed| replica_waiter_wakes(net, mode, seed));
        }
    }
}

#[test]
fn an_orphans_reader_wakes() {
    let mut c = replicated(Ideal, 3, 1, admin::COUNTERS, None, |_| {});
    arm_now(&mut c, 1, 0, 0);
    assert_eq!(wakes(&c, 1, 0), 0);
    c.event(1, Event::NodeDown { node: 0 });
    c.settle();
    assert_eq!(wakes(&c, 1, 0), 1);
    arm_now(&mut c, 1, 0, 0);
    assert_eq!(wakes(&c, 1, 0), 2, "no store can come");
}
