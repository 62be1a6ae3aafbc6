// SPDX-License-Identifier: MIT OR Apache-2.0
//! SPEC I16 and item 35: exactly once and in order under any mix of faults, the window, restarts; and for each check a
//! deliberate bug that it finds.
//!
//! A failure prints its seed; `TELEGRAPHOS_SEED=n cargo test -p rdp-core --test faults` replays it alone.
//! `TELEGRAPHOS_SCALE=full` runs twenty thousand seeds.

mod world;

use rdp_core::Bug;
use world::{Failure, Plan, Rng, Tally, World};

/// Checks so many seeds, or all at full scale, and adds up what happened.
fn over_seeds(ci: u64, check: impl Fn(u64) -> Result<Tally, Failure>) -> (bool, Tally) {
    let mut tally = Tally::default();
    if let Ok(seed) = std::env::var("TELEGRAPHOS_SEED") {
        tally.add(check(seed.parse().unwrap()).unwrap_or_else(|e| panic!("seed {seed}: {e}")));
        return (false, tally);
    }
    let full = std::env::var("TELEGRAPHOS_SCALE").is_ok_and(|s| s == "full");
    let seeds = if full { 20_000 } else { ci };
    for seed in 0..seeds {
        tally.add(check(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}")));
    }
    println!("{seeds} seeds: {tally:?}");
    (true, tally)
}

fn any_mix(seed: u64, bug: Option<Bug>) -> Result<Tally, Failure> {
    let mut rng = Rng::new(seed);
    let plan = Plan::random(&mut rng, bug);
    let mut world = World::new(plan, rng);
    world.run()?;
    Ok(world.tally)
}

#[test]
fn i16_exactly_once_in_order_under_any_mix_of_faults() {
    let (whole, tally) = over_seeds(500, |seed| any_mix(seed, None));
    if whole {
        let happened = [
            ("connections completed", tally.completed),
            ("restarts", tally.restarts),
            ("connections told of a restart", tally.told_restarted),
            ("connections ended by silence", tally.silent),
            ("retransmissions", tally.retransmissions),
            ("timeouts", tally.timeouts),
            ("sequence NACKs", tally.sequence_nacks),
            ("capacity NACKs", tally.capacity_nacks),
            ("checksum errors", tally.checksum_errors),
            ("length errors", tally.length_errors),
            ("duplicates", tally.duplicates),
            ("full windows", tally.full_windows),
            ("wraps", tally.wraps),
        ];
        for (what, count) in happened {
            assert!(count > 0, "no {what} in all seeds");
        }
    }
}
