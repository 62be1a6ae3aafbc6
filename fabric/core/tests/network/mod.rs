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
//! A failure prints its seed and its smallest schedule: `TELEGRAPHOS_SEED=n cargo test -p telegraphos-fabric-core
//! network::` replays it; `TELEGRAPHOS_SCALE=full` checks more of them.

mod cuts;
mod hostile;
mod ledger;
mod node;
mod nodes;
mod schedule;
mod silence;
mod traffic;
mod world;

use std::collections::BTreeMap;

use schedule::{Faults, found, run};
use telegraphos_fabric_core::Bug;
use telegraphos_testkit::seeds;

/// Runs the seeds, and says how often each thing happened.
fn over_seeds(faults: Faults, ci: u64, full: u64) -> BTreeMap<&'static str, u64> {
    let mut tally = BTreeMap::new();
    for seed in seeds(ci, full) {
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
    assert_eq!(tally.get("notified down"), None);
}

#[test]
fn i8_lives_of_nodes_are_distinguished_across_trunks() {
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

/// Each by this very check; where another would be first, without that.
#[test]
fn random_schedules_find_each_bug() {
    for (bug, faults, check, without) in [
        (Bug::LifoLane, Faults::None, "i8_per_pair_fifo", None),
        (Bug::MulticastOvertakes, Faults::None, "i8_per_pair_fifo", None),
        (Bug::DropWhenBlocked, Faults::None, "none_passes_a_lost_one", None),
        (Bug::DropWhenBlocked, Faults::None, "no_request_hangs", None),
        (Bug::IgnoreReceiverCredit, Faults::None, "credits_never_negative", None),
        (Bug::StrandCredit, Faults::None, "credits_conserved", None),
        (Bug::IgnoreRoom, Faults::None, "room_respected", None),
        (Bug::DuplicateMulticast, Faults::None, "exactly_once", None),
        (Bug::SkipMember, Faults::None, "no_request_hangs", None),
        (Bug::SendAllToEach, Faults::None, "one_packet_per_trunk", None),
        (Bug::LeakCredit, Faults::Nodes, "credits_conserved", None),
        (Bug::ReuseIncarnation, Faults::Nodes, "incarnation_grows", None),
        (Bug::DeliverAfterDown, Faults::Nodes, "life_order", None),
        (Bug::ForgetDown, Faults::Nodes, "presence_told", None),
        (Bug::ForgetDown, Faults::Nodes, "no_request_hangs", None),
        (Bug::ReachOvertakes, Faults::Nodes, "life_order", Some("room_respected")),
        (Bug::KeepDownLocal, Faults::Nodes, "presence_told", None),
        (Bug::KeepDownLocal, Faults::Nodes, "no_request_hangs", None),
        (Bug::ForgetSession, Faults::Trunks, "incarnation_is_new", None),
        (Bug::ForgetSession, Faults::Trunks, "old_packets_never_reach", Some("incarnation_is_new")),
    ] {
        assert!(found(bug, faults, check, without, 1000), "{bug:?} is not found by {check}");
    }
}
