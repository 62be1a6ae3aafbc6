// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stores behind a lost one: none is performed, however many are in flight when it is refused (SPEC I8).

use crate::common::replicas::{Ideal, OWN, replicated, store, word};
use crate::common::{
    self, ALL, Cluster, Driver, EXPORTS, atomic_steps, copy_steps, copying, grant_clear, import_ack, import_pages,
    is_remote_store, node_up, operating,
};
use telegraphos_device_core::{Bug, Event};
use telegraphos_wire::admin;
use telegraphos_wire::queue::Shape;
use telegraphos_wire::{Aperture, AtomicOp, Rights, Status, UNIT, event};

const SEEDS: u64 = 100;

/// A check must pass on the real core, and the named one must fail when the receiver forgets refusals.
fn finds_what_is_forgotten(says: &str, check: impl Fn(u64, Option<Bug>) -> Result<(), String>) {
    common::sees(Bug::ForgetRefusal, says, 0..SEEDS, check);
}

/// Three boards with the window of requests that boards have by default.
fn three(seed: u64, bug: Option<Bug>) -> Cluster {
    let mut c = Cluster::new(3, seed, |config| config.bug = bug);
    c.share(2, ALL);
    c
}

fn is_cut(c: &Cluster, id: u16, import: u16) -> bool {
    c.hib(id).import_state(import) & event::IMPORT_CUT != 0
}

/// One of many stores in flight is refused. None of the stores behind it is performed, nor an atomic, nor a block;
/// those before it are, and so are those issued after the acknowledgement, which follows the refusal immediately.
#[test]
fn i8_what_is_on_its_way_behind_a_refused_store_is_refused() {
    finds_what_is_forgotten("passed a lost store", |seed, bug| {
        let mut c = three(seed, bug);
        c.import(0, 1, "seg", 9, 4);
        c.ok(1, grant_clear(0, 1));
        let at = |c: &Cluster, n: u64| c.address(1, 1, 8 * n);
        let before = 1 + seed % 5;
        for n in 0..before {
            c.store(0, at(&c, n), 8, 1 + n);
        }
        c.store(0, c.address(1, 0, 0), 8, 0xbad);
        for n in 0..40 {
            c.store(0, at(&c, 100 + n), 8, 0xbad);
        }
        let (counter, own) = (at(&c, 200), c.address(0, 0, 0));
        c.launch(0, 0, 1, atomic_steps(operating(AtomicOp::Add, 8, 1), 1, 0, counter));
        c.nodes[0].ram[EXPORTS as usize..][..64].fill(0xee);
        c.launch(0, 0, 2, copy_steps(copying(2), at(&c, 300), own, 64));
        // Another import of the same pages is not affected.
        c.store(0, c.address(1, 5, 8 * 400), 8, 77);
        while !is_cut(&c, 0, 1) {
            assert!(c.step(), "the refusal never comes");
        }
        c.ok(0, import_ack(1));
        for n in 0..30 {
            c.store(0, at(&c, 500 + n), 8, 1000 + n);
        }
        c.settle();
        let word = |n: u64| c.ram_u64(1, EXPORTS + UNIT + 8 * n);
        if let Some(n) = (0..before).find(|n| word(*n) != 1 + n) {
            return Err(format!("store {n} before the lost one is missing"));
        }
        let passed = (100..140).filter(|n| word(*n) != 0).count();
        if passed > 0 || word(200) != 0 || word(300) != 0 {
            return Err(format!("{passed} stores, {} atomics, block {:#x} passed a lost store", word(200), word(300)));
        }
        if word(400) != 77 {
            return Err("another import's store is missing".into());
        }
        if let Some(n) = (0..30).find(|n| word(500 + n) != 1000 + n) {
            return Err(format!("store {n} behind the acknowledgement is missing"));
        }
        for (slot, cookie) in [(1, 1), (2, 2)] {
            assert_eq!(c.done(0, 0, slot), (Status::Cut as u16, cookie), "it is reported as refused behind another");
        }
        let quiet = c.quiet(0, 1, 50);
        if quiet != 0 { Err(format!("quiet behind the acknowledgement says {quiet}")) } else { Ok(()) }
    });
}

/// A loss at the importing end does not begin another epoch: stores in flight may still be refused, and stores issued
/// after the acknowledgement follow them.
#[test]
fn i8_an_acknowledged_loss_of_this_end_hides_no_refusal_to_come() {
    finds_what_is_forgotten("a store of", |seed, bug| {
        let mut c = three(seed, bug);
        c.ok(1, grant_clear(0, 1));
        // The boards serialise the requests of a source: this one delays the refusal of the next.
        let (first, bad, good) = (c.address(1, 1, 8), c.address(1, 0, 0), c.address(1, 1, 0));
        c.store(0, first, 8, 1);
        c.hold_next(1, is_remote_store);
        c.store(0, bad, 8, 0xbad);
        // Lost here: the import lacks this right.
        c.store(0, c.aperture(Aperture::Enqueue, 1, 1, 0), 8, 0xbad);
        assert!(is_cut(&c, 0, 1));
        c.ok(0, import_ack(1));
        c.store(0, good, 8, 5);
        c.proceed();
        match c.ram_u64(1, EXPORTS + UNIT) {
            0 => Ok(()),
            word => Err(format!("a store of {word} passed one whose loss is not acknowledged")),
        }
    });
}

/// Elements for a queue are stores of an import, too.
#[test]
fn i8_an_element_behind_a_refused_one_is_refused() {
    finds_what_is_forgotten("passed a lost one", |seed, bug| {
        let mut c = Cluster::new(2, seed, |config| config.bug = bug);
        c.make_queue(1, "queue", 4, Shape::new(64, 8).unwrap());
        c.import(0, 1, "queue", 7, 3);
        for n in 0..20 {
            c.enqueue(0, 1, 3, 8, 1 + n);
        }
        c.some_steps(60);
        // For a moment the owner's board may not access its memory.
        c.event(1, Event::BusMaster(false));
        while c.hib(1).counters().refused == 0 && c.step() {}
        c.event(1, Event::BusMaster(true));
        c.settle();
        let (elements, refused) = (c.hib(1).counters().elements, c.hib(1).counters().refused);
        if refused == 0 {
            return Ok(()); // All of them arrived before.
        }
        if elements + refused > 20 || !is_cut(&c, 0, 7) {
            return Err(format!("{elements} elements taken, {refused} refused"));
        }
        if let Some(n) = (0..elements).find(|n| c.peek(1, 4, 3 + n, 8) != 1 + n) {
            return Err(format!("element {n} of {elements} passed a lost one"));
        }
        // One more follows the acknowledgement, and is the next.
        c.ok(0, import_ack(7));
        c.enqueue(0, 1, 3, 8, 100);
        c.settle();
        assert_eq!(c.hib(1).counters().elements, elements + 1);
        match c.peek(1, 4, 3 + elements, 8) {
            100 => Ok(()),
            found => Err(format!("behind {elements} elements there is {found}")),
        }
    });
}

/// Stores to a copy reach the home as updates, which belong to an import, too.
#[test]
fn i8_an_update_behind_a_refused_one_is_refused_by_the_home() {
    for mode in [admin::OWNER, admin::COUNTERS, admin::INVALIDATE] {
        finds_what_is_forgotten("of 20 stores the home has", |seed, bug| {
            let mut c = replicated(Ideal, 3, seed, mode, bug, |config| config.outstanding = 64);
            for n in 0..20 {
                store(&mut c, 1, 8 * n, 8, 1 + n);
            }
            c.some_steps(80);
            c.event(0, Event::BusMaster(false));
            while c.hib(0).counters().refused == 0 && c.step() {}
            c.event(0, Event::BusMaster(true));
            c.settle();
            if c.hib(0).counters().refused == 0 {
                return Ok(());
            }
            // Invalid copies acknowledge nothing here: no driver unmaps them.
            assert!(mode == admin::INVALIDATE || is_cut(&c, 1, OWN));
            let landed: Vec<u64> = (0..20).filter(|n| word(&c, 0, 8 * n) == 1 + n).collect();
            if landed.iter().copied().ne(0..landed.len() as u64) {
                return Err(format!("mode {mode}: of 20 stores the home has {landed:?}"));
            }
            Ok(())
        });
    }
}

/// The refused epochs that a node can make another store: at most one entry for each import that a board has, whatever
/// imports it names.
#[test]
fn i8_a_node_that_names_any_number_of_imports_takes_no_more_than_its_entries() {
    use telegraphos_wire::{Body, ImportEpoch, RemoteAddr};
    let mut c = Cluster::new(3, 1, |config| config.imports = 16);
    c.export(1, "seg", 0, 1, ALL);
    c.import(0, 1, "seg", 1, 0);
    let at = RemoteAddr { page: 9, offset: 0, generation: 1 };
    for import in 0..1000u16 {
        let body = Body::Write { at, context: 0, epoch: ImportEpoch { import, epoch: 1 }, size: 8, data: 1 };
        c.forge(2, 1, import.into(), body);
    }
    assert_eq!(c.hib(1).refused_epochs(), 16);
    // Another node's refusal is stored nevertheless, and its other stores land.
    let found = c.lookup(0, 1, "seg");
    c.ok(0, import_pages(5, 1, 7, (9, 1), 1, Rights(found.rights as u16)));
    let (bad, good) = (c.address(1, 7, 0), c.address(1, 0, 0));
    c.store(0, bad, 8, 1);
    c.store(0, good, 8, 2);
    c.settle();
    assert_eq!((c.hib(1).refused_epochs(), c.ram_u64(1, EXPORTS)), (17, 2));
    // They are removed with the node's incarnation.
    c.event(1, node_up(2, 0x2000));
    assert_eq!(c.hib(1).refused_epochs(), 1);
    c.event(1, Event::NodeDown { node: 0 });
    assert_eq!(c.hib(1).refused_epochs(), 0);
}
