// SPDX-License-Identifier: MIT OR Apache-2.0
//! Networks of switches: what holds between nodes at different switches, whatever breaks in between.
//!
//! ```text
//!   schedule   what happens, from a seed; shortened when it fails
//!     world    switches, trunks and links: pipes of frames with room and delay, cut at any moment
//!     node     honest HIBs: what they may do, and the checks of what they get
//!     ledger   what became of each request
//!   deadlock, fairness, silence, hostile    chosen situations
//! ```
//!
//! A failure prints its seed and its smallest schedule: `TELEGRAPHOS_SEED=n cargo test -p switch-core --test network` replays it;
//! `TELEGRAPHOS_SCALE=full` checks more of them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

#[path = "../common/mod.rs"]
mod common;
mod ledger;
mod node;
mod schedule;
mod world;

use std::collections::BTreeMap;

use schedule::{Faults, found, run};
use switch_core::Bug;

/// A number for every day, or one for when there is time.
fn scaled(ci: u64, full: u64) -> u64 {
    if std::env::var("TELEGRAPHOS_SCALE").is_ok_and(|scale| scale == "full") { full } else { ci }
}

/// Runs the seeds, and says how often each thing happened.
fn over_seeds(faults: Faults, ci: u64, full: u64) -> BTreeMap<&'static str, u64> {
    let seed = std::env::var("TELEGRAPHOS_SEED").ok().map(|seed| seed.parse().unwrap());
    let seeds = seed.map_or(0..scaled(ci, full), |seed: u64| seed..seed + 1);
    let mut tally = BTreeMap::new();
    for seed in seeds {
        let network = run(seed, faults, None).unwrap_or_else(|failure| panic!("{failure}"));
        for (what, count) in network.ledger.tally {
            *tally.entry(what).or_default() += count;
        }
    }
    println!("{faults:?}: {tally:?}");
    tally
}

/// While nothing breaks: per-pair order, no loss, every request performed and answered once.
#[test]
fn i8_order_and_losslessness_while_nothing_breaks() {
    let tally = over_seeds(Faults::None, 150, 20_000);
    assert_eq!(tally.get("told down"), None);
}

#[test]
fn i8_lives_of_nodes_are_told_apart_across_trunks() {
    over_seeds(Faults::Nodes, 150, 20_000);
}

#[test]
fn i8_old_packets_never_arrive_after_a_cut() {
    over_seeds(Faults::Trunks, 300, 50_000);
}

#[test]
fn i8_old_packets_never_arrive_whatever_breaks() {
    over_seeds(Faults::All, 300, 50_000);
}
