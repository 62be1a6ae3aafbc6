// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stores that are posted one after the other, as one burst: they differ from the same stores one by one in nothing but
//! their cost (SPEC I7, I8).

use crate::common::replicas::{FanOut, replicated};
use crate::common::{
    self, ALL, Cluster, Driver, EXPORTS, Rng, grant_clear, grant_set, import_ack, import_set, over_seeds, publish,
};
use telegraphos_device_core::{Bar, Bug, Event, Notice, WindowStore};
use telegraphos_wire::admin::{self, Command};
use telegraphos_wire::regs::Register;
use telegraphos_wire::{Aperture, MAX_BURST, Status, UNIT};

const SEEDS: u64 = 100;
/// The end of this segment's last page is not granted.
const SHORT: u64 = UNIT + 0x104;

/// Two boards, or more, over an ideal network. Each exports two pages, and has imported those of each node as import =
/// node.
fn boards(n: u16, seed: u64, bug: Option<Bug>) -> Cluster {
    let mut c = Cluster::new(n, seed, |config| config.bug = bug);
    c.share(2, ALL);
    c.settle();
    c
}

/// Words of a node's first slot, and their data.
fn words(c: &Cluster, node: u16, words: impl IntoIterator<Item = u64>) -> Vec<WindowStore> {
    let store = |word| WindowStore { offset: c.address(node, 0, 8 * word), size: 8, data: word + 1 };
    words.into_iter().map(store).collect()
}

#[test]
fn stores_to_one_page_are_a_packet_a_step_and_an_acknowledgement() {
    let mut c = boards(2, 0, None);
    for count in [2, MAX_BURST as u64] {
        let (before, performed) = (c.packets, c.nodes[1].performed.len());
        let stores = words(&c, 1, 0..count);
        c.store_all(0, &stores);
        assert_eq!(c.packets - before, 1);
        assert_eq!((c.one_turn(1), c.one_turn(0)), (1, 0), "one acknowledgement");
        assert_eq!(c.nodes[1].performed.len() - performed, count as usize);
        let (issued, finished) = c.hib(0).import_progress(1).unwrap();
        assert_eq!(issued, finished);
    }
    // One more takes another packet, another page as well.
    let mut stores = words(&c, 1, 0..MAX_BURST as u64 + 1);
    stores.extend((0..2).map(|n| WindowStore { offset: c.address(1, 1, 8 * n), size: 8, data: 1 }));
    let before = c.packets;
    c.store_all(0, &stores);
    assert_eq!(c.packets - before, 3);
    c.settle();
}

/// A processor finds the words in the order in which they were stored, and may find some without the others.
#[test]
fn i8_the_stores_of_a_burst_are_performed_in_order_and_one_at_a_time() {
    for seed in 0..SEEDS {
        let mut c = boards(2, seed, None);
        let stores = words(&c, 1, (0..8).rev());
        c.store_all(0, &stores);
        let mut seen = 0;
        while c.step() {
            let there: Vec<bool> = (0..8).map(|n| c.ram_u64(1, EXPORTS + 8 * n) == n + 1).collect();
            let count = there.iter().filter(|there| **there).count();
            assert!(there[8 - count..].iter().all(|there| *there), "seed {seed}: {there:?}");
            assert!(count <= seen + 1, "seed {seed}: {count} after {seen}");
            seen = count;
        }
        assert_eq!(seen, 8, "seed {seed}");
    }
}

/// Memory behind the first words of the page is not there.
#[test]
fn i8_of_a_burst_that_memory_ends_in_the_first_stores_are_performed_and_no_later_one() {
    let mut c = boards(2, 0, None);
    let end = c.nodes[1].ram.len() as u64 - 4096;
    let generation = c.ok(1, grant_set(4, 1, end, ALL)).generation;
    c.ok(1, publish("end", 4, UNIT, generation, ALL));
    c.import(0, 1, "end", 5, 5);
    let address = |c: &Cluster, n: u64| c.address(1, 5, 8 * n);
    let counters = c.hib(1).counters();
    // The third word is the first behind the memory.
    let stores: Vec<_> =
        [510, 511, 512, 3, 4].map(|n| WindowStore { offset: address(&c, n), size: 8, data: n }).into_iter().collect();
    c.store_all(0, &stores);
    c.settle();
    assert_eq!([510, 511, 3, 4].map(|n| c.ram_u64(1, end + 8 * n)), [510, 511, 0, 0]);
    assert_eq!(c.hib(0).import_progress(5), Some((5, 5)));
    let (now, lost) = (c.hib(1).counters(), c.hib(0).counters());
    assert_eq!((now.served - counters.served, now.refused - counters.refused, lost.dropped), (2, 3, 3));
    assert_eq!(c.hib(0).import_state(5) >> 16, Status::MemoryFault as u64);
    // A store of the same epoch is refused, too; one of the next is not.
    c.store(0, address(&c, 0), 8, 7);
    c.settle();
    assert_eq!(c.ram_u64(1, end), 0);
    c.ok(0, import_ack(5));
    c.store(0, address(&c, 0), 8, 7);
    c.settle();
    assert_eq!(c.ram_u64(1, end), 7);
}

/// Eight stores of another node to the home of a replicated page, as a burst: they are performed one by one.
fn reflected(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut c = replicated(FanOut(None), 3, seed, admin::COUNTERS, bug, |_| {});
    for id in [1, 2] {
        c.import(id, 0, "page", 0, 0);
        let stores: Vec<_> = (0..8)
            .map(|n| WindowStore { offset: c.address(0, 0, 8 * n), size: 8, data: 100 * u64::from(id) + n })
            .collect();
        c.store_all(id, &stores);
        let quiet = c.quiet(id, 0, 7);
        assert_eq!(quiet, 0);
        for (copy, n) in (0..3).flat_map(|copy| (0..8).map(move |n| (copy, n))) {
            let found = c.ram_u64(copy, EXPORTS + 8 * n);
            if found != 100 * u64::from(id) + n {
                return Err(format!("I7: quiet is done, and of 8 stores of {id} copy {copy} has not {n}: {found}"));
            }
        }
    }
    Ok(())
}

#[test]
fn i7_a_burst_to_a_replicated_page_is_answered_when_all_copies_have_all_of_it() {
    common::sees(Bug::AnswerBurstEarly, "I7: quiet is done, and of 8 stores", 0..SEEDS, reflected);
}

/// Boards with everything that a store can meet: pages of nodes, a segment that ends in a page and an import that
/// names more, a page that is not granted any more, a replicated page, imports in error.
fn place(seed: u64) -> Cluster {
    let mut c = Cluster::new(3, seed, |config| {
        // No store waits: how many do when another one is lost, and are dropped with it, is a question of time.
        config.outstanding = 4096;
        config.credits = [8192; 4];
    });
    c.share(2, ALL);
    for id in 0..3 {
        let generation = c.ok(id, grant_set(4, 2, EXPORTS + 4 * UNIT, ALL)).generation;
        c.ok(id, publish("whole", 4, 2 * UNIT, generation, ALL));
        c.ok(id, Command { length: SHORT, ..grant_set(6, 2, EXPORTS + 6 * UNIT, ALL) });
        c.ok(id, publish("short", 6, SHORT, generation + 1, ALL));
    }
    for (id, other) in (0..3).flat_map(|id| (0..3).map(move |other| (id, other))) {
        c.import(id, other, "whole", 10 + other, 4);
        let found = c.lookup(id, other, "short");
        let rights = found.rights as u16;
        c.ok(id, Command { rights, length: 2 * UNIT, ..import_set(20 + other, other, 6, &found) });
    }
    c.settle();
    c
}

/// Stores as programs make them, and as none should: to adjacent words, to the same one, to several pages, imports,
/// nodes and apertures, misaligned, of any size, behind the end.
fn stores(c: &Cluster, rng: &mut Rng) -> Vec<WindowStore> {
    let mut all = Vec::new();
    for _ in 0..1 + rng.below(6) {
        let (node, slot) = (rng.below(4) as u16, [0, 0, 1, 4, 5, 6, 7, 8, 12][rng.below(9)]);
        let aperture = match rng.below(20) {
            0 => Aperture::Enqueue,
            1 => Aperture::Argument,
            _ => Aperture::Plain,
        };
        let (start, size) = (rng.below(0x400) as u64 * 8 % 0x200, [8, 8, 8, 4, 2, 1][rng.below(6)]);
        let near_end = rng.below(4) == 0;
        for n in 0..[1, 2, 7, 32, 100][rng.below(5)] {
            let within = if near_end { UNIT - 64 + n * size } else { start + n * size };
            let within = if rng.below(40) == 0 { rng.below(UNIT as usize) as u64 } else { within };
            let size = if rng.below(60) == 0 { [0, 3, 16, 8][rng.below(4)] } else { size };
            let offset = c.aperture(aperture, node, slot, 0) + within;
            all.push(WindowStore { offset, size: size as u32, data: rng.next() });
        }
    }
    all
}

/// What shows of a board: counts, errors, and what its log would say.
fn seen(c: &mut Cluster, id: u16) -> String {
    let hib = c.hib(id);
    let imports: Vec<u16> = [0, 10, 20].iter().flat_map(|first| (0..3).map(move |other| first + other)).collect();
    let progress: Vec<_> = imports.iter().map(|n| (*n, hib.import_progress(*n), hib.import_state(*n))).collect();
    // What waits at a time, and what is reported because of it, is not the same.
    let counters = telegraphos_device_core::Counters { congested: 0, events: 0, ..hib.counters() };
    let waiting = (hib.waiting(), hib.refused_epochs(), hib.is_quiescent());
    let mut notices: Vec<String> =
        c.nodes[usize::from(id)].notices.iter().map(|notice| format!("{notice:?}")).collect();
    notices.sort();
    let latched: Vec<u64> = [Register::Error, Register::ErrorAddress]
        .iter()
        .map(|register| {
            let token = 1000 + register.offset();
            c.event(id, Event::Read { token, bar: Bar::Control, offset: register.offset(), size: 8 });
            c.answer(id, token).unwrap()
        })
        .collect();
    format!("{progress:x?}\n{counters:?}\n{waiting:?}\n{latched:x?}\n{notices:#?}")
}

/// The same stores, posted together and one by one, and the same commands of the drivers between them.
fn differs(seed: u64) -> Result<(), String> {
    let (mut together, mut single, mut rng) = (place(seed), place(seed), Rng::new(seed));
    for _ in 0..12 {
        for id in 0..3 {
            let posted = stores(&together, &mut rng);
            together.store_all(id, &posted);
            posted.iter().for_each(|store| single.event(id, Event::from(*store)));
            // The stores of several nodes are in no order.
            _ = [&mut together, &mut single].map(|c| c.settle());
        }
        for id in 0..3 {
            let [a, b] = [&mut together, &mut single].map(|c| seen(c, id));
            if let Some((a, b)) = a.lines().zip(b.lines()).find(|(a, b)| a != b) {
                return Err(format!("node {id}, together:\n{a}\none by one:\n{b}"));
            }
            let [a, b] = [&together, &single].map(|c| &c.nodes[usize::from(id)].ram[EXPORTS as usize..]);
            if let Some(at) = a.iter().zip(b).position(|(a, b)| a != b) {
                return Err(format!("node {id}, {at:#x}: {:x} together, {:x} one by one", a[at], b[at]));
            }
        }
        let (id, import, page) = (rng.below(3) as u16, [0, 10, 20][rng.below(3)] + rng.below(3) as u16, 4);
        match rng.below(8) {
            0 => _ = [&mut together, &mut single].map(|c| c.admin(id, grant_clear(page, 1))),
            _ => _ = [&mut together, &mut single].map(|c| c.admin(id, import_ack(import))),
        }
    }
    Ok(())
}

#[test]
fn i8_posted_together_or_one_by_one_stores_have_the_same_effects_errors_and_counts() {
    let Some(seeds) = over_seeds(SEEDS, 5000, differs) else { return };
    println!("{seeds} seeds");
}

/// The stores that the test above compares are accepted, lost and refused, and leave as bursts.
#[test]
fn the_stores_that_are_compared_meet_everything() {
    let (mut c, mut rng) = (place(1), Rng::new(1));
    for round in 0..60 {
        let posted = stores(&c, &mut rng);
        c.store_all(round % 3, &posted);
        c.settle();
        let import = [0, 10, 20][rng.below(3)] + rng.below(3) as u16;
        c.admin(round % 3, import_ack(import));
    }
    let lost = |status| {
        let is = |notice: &Notice| matches!(notice, Notice::LostStore(lost) if lost.status == status);
        c.nodes.iter().flat_map(|node| &node.notices).filter(|notice| is(notice)).count()
    };
    for status in [Status::Bounds, Status::Cut, Status::BadSize, Status::Unmapped] {
        println!("{status:?}: {}", lost(status));
    }
    assert!(lost(Status::Bounds) > 0 && lost(Status::Cut) > 0);
    let bursts = c.nodes.iter().map(|node| node.performed.len() as u64).sum::<u64>();
    assert!(bursts > 0 && c.packets < bursts, "{} packets for {bursts} stores", c.packets);
}
