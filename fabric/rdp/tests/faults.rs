// SPDX-License-Identifier: MIT OR Apache-2.0
//! SPEC I16 and item 35: exactly once and in order under any mix of faults, the window, restarts; and for each check a
//! deliberate bug that it finds.
//!
//! A failure prints its seed; `TELEGRAPHOS_SEED=n cargo test -p telegraphos-rdp-core faults::` replays it alone.
//! `TELEGRAPHOS_SCALE=full` runs twenty thousand seeds.

use crate::world::{self, Failure, Plan, Side, Tally, World};
use telegraphos_rdp_core::Bug;
use telegraphos_testkit::{Rng, over_seeds as over_all};

/// Checks so many seeds, or all at full scale, and adds up what happened.
fn over_seeds(ci: u64, check: impl Fn(u64) -> Result<Tally, Failure>) -> (bool, Tally) {
    let mut tally = Tally::default();
    let seeds = over_all(ci, 20_000, |seed| check(seed).map(|counted| tally.add(counted)));
    println!("{seeds:?} seeds: {tally:?}");
    (seeds.is_some(), tally)
}

fn any_mix(seed: u64, bug: Option<Bug>) -> Result<Tally, Failure> {
    let mut rng = Rng::new(seed);
    let plan = Plan::random(&mut rng, bug);
    World::new(plan, rng).run()
}

#[test]
fn i16_exactly_once_in_order_under_any_mix_of_faults() {
    let (whole, tally) = over_seeds(500, |seed| any_mix(seed, None));
    if whole {
        for what in [
            "connections completed",
            "restarts",
            "connections notified of a restart",
            "connections ended by silence",
            "retransmissions",
            "timeouts",
            "sequence NACKs",
            "capacity NACKs",
            "checksum errors",
            "length errors",
            "duplicates",
            "full windows",
            "wraps",
        ] {
            assert!(tally.of(what) > 0, "no {what} in all seeds");
        }
    }
}

/// Faults without end, in full streams both ways, with windows of all sizes that differ between the two sides.
fn windows(seed: u64, bug: Option<Bug>) -> Result<Tally, Failure> {
    let mut rng = Rng::new(seed);
    let mut plan = Plan::random(&mut rng, bug);
    plan.config.window = 1 + rng.below(64) as u16;
    plan.config.receive_buffer = 20_000;
    plan.bytes = [20_000, 20_000];
    plan.eager = 100;
    plan.restarts.clear();
    plan.partitions.clear();
    World::new(plan, rng).run()
}

#[test]
fn i16_window_never_exceeded() {
    let (whole, tally) = over_seeds(60, |seed| windows(seed, None));
    assert!(!whole || tally.of("full windows") > 1000, "{tally:?}");
}

/// One side is restarted once, at any moment; the only other faults are a few losses and delayed copies.
fn restart(seed: u64, bug: Option<Bug>) -> Result<Tally, Failure> {
    let mut rng = Rng::new(seed);
    let mut plan = Plan::random(&mut rng, bug);
    let side = if seed % 2 == 0 { Side::Client } else { Side::Server };
    plan.restarts = vec![(rng.below(plan.calm), side)];
    plan.partitions.clear();
    plan.faults.loss = plan.faults.loss.min(100);
    plan.faults.ghosts = 50;
    World::new(plan, rng).run()
}

#[test]
fn i16_one_sided_restart_is_detected() {
    let (whole, tally) = over_seeds(200, |seed| restart(seed, None));
    assert!(!whole || tally.of("connections notified of a restart") * 2 > tally.of("restarts"), "{tally:?}");
    assert!(!whole || tally.of("connections ended by silence") == 0, "silence is not needed to find out: {tally:?}");
}

/// Without restarts and partitions, one connection does it all, and once it is calm, all arrives.
#[test]
fn i16_everything_arrives_when_faults_stop() {
    let check = |seed| {
        let mut rng = Rng::new(seed);
        let mut plan = Plan::random(&mut rng, None);
        plan.restarts.clear();
        plan.eager = plan.eager.max(50);
        // Nothing passes in the beginning, as long as a silence is not full.
        plan.partitions = vec![(rng.below(50_000), plan.config.silence - 200_000)];
        plan.calm = plan.config.silence - 200_000;
        let mut world = World::new(plan, rng);
        world.run_through()?;
        match world.now {
            0..20_000_000 => Ok(world.tally),
            time => world::fail("liveness", format!("only after {time} us")),
        }
    };
    let (whole, tally) = over_seeds(60, check);
    // That the client's connection ended without cause is found by the simulation. (A server whose last acknowledgement
    // was lost ends its connection when the client, which has everything, opens another.)
    assert!(!whole || tally.of("connections ended by silence") == 0, "{tally:?}");
}

/// Of each deliberate bug: the check that must find it, in which simulation.
#[test]
fn deliberate_bugs_are_found() {
    type Simulation = fn(u64, Option<Bug>) -> Result<Tally, Failure>;
    let bugs: [(Bug, Simulation, &[&str]); 13] = [
        (Bug::NoChecksum, any_mix, &["stream"]),
        (Bug::AcceptOutOfOrder, any_mix, &["stream"]),
        (Bug::AcknowledgeUndelivered, any_mix, &["stream"]),
        (Bug::DeliverDuplicates, any_mix, &["stream"]),
        (Bug::NoWrap, any_mix, &["liveness"]),
        (Bug::IgnoreWindow, windows, &["window"]),
        (Bug::NoCapacityCheck, any_mix, &["room"]),
        (Bug::IgnoreConnectionId, restart, &["stream"]),
        (Bug::KeepReplaced, restart, &["notified"]),
        (Bug::ReplaceUnconfirmed, restart, &["cause"]),
        (Bug::NoReset, restart, &["notified"]),
        (Bug::NoTimer, any_mix, &["liveness"]),
        (Bug::FinishOvertakes, any_mix, &["end"]),
    ];
    for (bug, simulation, checks) in bugs {
        let mut others = Vec::new();
        let found = (0..300).find_map(|seed| {
            let failure = simulation(seed, Some(bug)).err()?;
            let expected = checks.contains(&failure.check);
            if expected {
                return Some((seed, failure));
            }
            others.push(failure);
            None
        });
        let Some((seed, failure)) = found else { panic!("{bug:?} is not found by {checks:?}, only by {others:?}") };
        println!("{bug:?}: seed {seed}: {failure}");
    }
}
