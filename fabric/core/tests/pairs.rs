// SPDX-License-Identifier: MIT OR Apache-2.0
//! The counters of pairs: exact while there is room, complete always, and the busy ones stay.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};
use telegraphos_fabric_core::pairs::{Count, MAX_PAIRS, PairStatistics, Pairs, PairsBug, WAYS};
use telegraphos_testkit::{Rng, scale};
use telegraphos_wire::Class;

type Packet = (u16, u16, Class, u64);

fn seed() -> u64 {
    telegraphos_testkit::seed_or(1)
}

/// Runs a property; the failure names the seed.
fn check<S: Strategy>(
    cases: u32,
    strategy: S,
    property: impl Fn(S::Value) -> Result<(), TestCaseError>,
) -> Result<(), String> {
    let cases = scale(cases, cases * 20);
    let config = Config { cases, rng_seed: RngSeed::Fixed(seed()), failure_persistence: None, ..Config::default() };
    TestRunner::new(config).run(&strategy, property).map_err(|e| match e {
        TestError::Fail(why, value) => format!("TELEGRAPHOS_SEED={}: {why}: {value:?}", seed()),
        TestError::Abort(why) => format!("TELEGRAPHOS_SEED={}: {why}", seed()),
    })
}

fn packets(nodes: u16, most: usize) -> impl Strategy<Value = Vec<Packet>> {
    let class = (0..4u8).prop_map(|c| Class::from_u8(c).unwrap());
    proptest::collection::vec((0..nodes, 0..nodes, class, 16..9000u64), 0..most)
}

fn feed(pairs: &mut Pairs, packets: &[Packet]) -> BTreeMap<(u16, u16), PairStatistics> {
    let mut exact: BTreeMap<(u16, u16), PairStatistics> = BTreeMap::new();
    for (source, destination, class, bytes) in packets {
        pairs.count(*source, *destination, *class, *bytes);
        let c = &mut exact.entry((*source, *destination)).or_default().classes[*class as usize];
        c.packets += 1;
        c.bytes += bytes;
    }
    exact
}

fn sum<'a>(all: impl Iterator<Item = &'a PairStatistics>) -> [Count; 4] {
    all.fold([Count::default(); 4], |mut sum, one| {
        for (sum, one) in sum.iter_mut().zip(&one.classes) {
            sum.packets += one.packets;
            sum.bytes += one.bytes;
        }
        sum
    })
}

/// With room for all pairs every counter is that of an unbounded table.
fn exact_with_room(bug: Option<PairsBug>) -> Result<(), String> {
    check(64, packets(16, 600), |packets| {
        let mut pairs = Pairs::new(1 << 14);
        if let Some(bug) = bug {
            pairs = pairs.with_bug(bug);
        }
        let exact = feed(&mut pairs, &packets);
        let kept: BTreeMap<_, _> = pairs.iter().map(|p| ((p.source, p.destination), p.counted)).collect();
        prop_assert_eq!(kept, exact, "the counters of pairs");
        prop_assert_eq!(pairs.evicted(), 0);
        prop_assert_eq!(pairs.rest(), &PairStatistics::default());
        Ok(())
    })
}

/// However many pairs there are, those kept are few, none of them is counted too high, and together with the rest they
/// are all.
fn complete_without_room(bug: Option<PairsBug>) -> Result<(), String> {
    check(64, packets(200, 3000), |packets| {
        let mut pairs = Pairs::new(32);
        if let Some(bug) = bug {
            pairs = pairs.with_bug(bug);
        }
        let exact = feed(&mut pairs, &packets);
        prop_assert!(pairs.iter().count() <= 32);
        for pair in pairs.iter() {
            let all = exact[&(pair.source, pair.destination)];
            let fits = pair
                .counted
                .classes
                .iter()
                .zip(&all.classes)
                .all(|(a, b)| a.packets <= b.packets && a.bytes <= b.bytes);
            prop_assert!(fits, "{:?} of {:?}", pair, all);
        }
        prop_assert_eq!(pairs.total().classes, sum(exact.values()), "the sum of all");
        let kept: Vec<_> = pairs.iter().map(|p| p.counted).collect();
        prop_assert_eq!(sum(kept.iter().chain([pairs.rest()])), sum(exact.values()), "the sum of all");
        Ok(())
    })
}

/// One packet in ten belongs to one of a few pairs, the others to a million: the few are the hottest that are reported.
fn busy_pairs_stay(bug: Option<PairsBug>) -> Result<(), String> {
    let mut pairs = Pairs::new(256);
    if let Some(bug) = bug {
        pairs = pairs.with_bug(bug);
    }
    let mut random = Rng::new(seed());
    let busy = [(1u16, 2u16), (2, 1), (7, 400), (4000, 4001)];
    for n in 0..200_000usize {
        let (source, destination) = match n % 10 {
            0 => busy[n / 10 % busy.len()],
            _ => (1000 + random.below(1000), 1000 + random.below(1000)),
        };
        pairs.count(source, destination, Class::Request, 64);
    }
    let mut found: Vec<_> = pairs.hottest(busy.len()).iter().map(|p| (p.source, p.destination)).collect();
    found.sort_unstable();
    if found == busy { Ok(()) } else { Err(format!("TELEGRAPHOS_SEED={}: hottest are {found:?}", seed())) }
}

#[test]
fn with_room_for_all_every_pair_is_exact() {
    exact_with_room(None).unwrap();
    let found = exact_with_room(Some(PairsBug::IgnoreSource)).unwrap_err();
    assert!(found.contains("the counters of pairs"), "{found}");
}

#[test]
fn without_room_few_are_kept_and_nothing_is_lost() {
    complete_without_room(None).unwrap();
    let found = complete_without_room(Some(PairsBug::ForgetEvicted)).unwrap_err();
    assert!(found.contains("the sum of all"), "{found}");
}

#[test]
fn a_busy_pair_is_not_pushed_out_by_many_idle_ones() {
    busy_pairs_stay(None).unwrap();
    let found = busy_pairs_stay(Some(PairsBug::EvictAnyone)).unwrap_err();
    assert!(found.contains("hottest are"), "{found}");
}

#[test]
fn a_pair_that_became_idle_makes_place() {
    let mut pairs = Pairs::new(WAYS);
    for source in 0..WAYS as u16 {
        (0..100).for_each(|_| pairs.count(source, 1, Class::Request, 64));
    }
    (0..2000).for_each(|_| pairs.count(77, 1, Class::Reply, 64));
    let hottest = pairs.hottest(1)[0];
    assert_eq!((hottest.source, hottest.destination), (77, 1));
    assert_eq!(pairs.evicted(), 1);
}

#[test]
fn sixty_four_nodes_that_all_talk_to_all_have_room_by_default() {
    let mut pairs = Pairs::new(telegraphos_fabric_core::pairs::DEFAULT_PAIRS);
    for source in 0..64 {
        (0..64).for_each(|destination| pairs.count(source, destination, Class::Request, 64));
    }
    assert_eq!((pairs.iter().count(), pairs.evicted()), (64 * 64, 0));
}

#[test]
fn sizes_are_bounded_and_none_counts_nothing() {
    let mut none = Pairs::new(0);
    none.count(1, 2, Class::Request, 64);
    assert_eq!((none.capacity(), none.iter().count(), none.total()), (0, 0, PairStatistics::default()));
    assert_eq!([1, 8, 9, 1000, usize::MAX].map(|n| Pairs::new(n).capacity()), [8, 8, 16, 1024, MAX_PAIRS]);
    // What is no pair at all is counted, and not as a pair.
    let mut pairs = Pairs::new(8);
    pairs.count(u16::MAX, u16::MAX, Class::Request, 64);
    assert_eq!((pairs.iter().count(), pairs.rest().total().packets), (0, 1));
}

#[test]
fn the_hottest_come_first_and_equals_by_id() {
    let mut pairs = Pairs::new(64);
    for (source, destination, bytes) in [(1, 2, 10), (3, 4, 30), (0, 1, 10), (5, 6, 20)] {
        pairs.count(source, destination, Class::Enqueue, bytes);
    }
    let order: Vec<_> = pairs.hottest(3).iter().map(|p| (p.source, p.destination)).collect();
    assert_eq!(order, [(3, 4), (5, 6), (0, 1)]);
    assert_eq!(pairs.hottest(0), []);
}

/// What counting costs, to be read by people:
/// `cargo test --release -p telegraphos-fabric-core pairs:: -- --ignored --nocapture`.
#[test]
#[ignore = "prints a time"]
fn cost() {
    const PACKETS: u32 = 20_000_000;
    for (name, nodes) in
        [("16 nodes, all to all", 16u32), ("64 nodes, all to all", 64), ("4096 nodes, most do not fit", 4096)]
    {
        let mut pairs = Pairs::new(telegraphos_fabric_core::pairs::DEFAULT_PAIRS);
        let begun = std::time::Instant::now();
        let mut at = 1u32;
        for _ in 0..PACKETS {
            at = at.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            pairs.count((at >> 8 & (nodes - 1)) as u16, (at >> 20 & (nodes - 1)) as u16, Class::Request, 64);
        }
        let ns = begun.elapsed().as_nanos() as f64 / f64::from(PACKETS);
        println!("{name}: {ns:.1} ns for one packet, {} kept, {} evicted", pairs.iter().count(), pairs.evicted());
    }
}
