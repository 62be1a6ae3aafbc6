// SPDX-License-Identifier: MIT OR Apache-2.0
//! A cluster of daemons in random order: letters are late, nodes die, come back, or are silent for too long; tasks end,
//! ignore SIGTERM, or are slow to start; masters die. Checked: each client is notified of each death once; no task
//! outlives its master by more than the grace; tasks are spawned inside their partition, on the least loaded nodes; a
//! node that was declared dead is dead, and has been silent; clients that send as much as they can leave others their
//! share; in the end all daemons have the same nodes and partitions.

use crate::common::{Counts, World};
use telegraphos_daemon_core::Bug;
use telegraphos_testkit::{Rng, bugs_are_found, over_seeds_on_all_processors};

fn run(seed: u64, bug: Option<Bug>) -> Result<Counts, String> {
    let mut random = Rng::new(seed);
    let mut world = World::new(random.next(), bug);
    for _ in 0..50 + random.below(400_u32) {
        world.step()?;
    }
    world.drain()?;
    Ok(world.counts)
}

#[test]
fn s3_in_any_order_deaths_are_reported_once_and_nothing_outlives_its_master() {
    let (seeds, counts) = over_seeds_on_all_processors(3000, 300_000, Counts::add, |seed| run(seed, None));
    println!("{seeds} seeds: {counts:?}");
    assert!(seeds == 1 || counts.least() > 100, "{counts:?}");
}

bugs_are_found! {
    0..3000, run;
    fn a_registration_that_outlives_the_death_is_found() => Bug::TellAgain, "notified twice";
    fn tasks_that_do_not_die_with_their_node_are_found() => Bug::ForgetTasksOfNode, "never notified";
    fn tasks_that_survive_their_masters_node_are_found() => Bug::KeepOrphans, "master is dead";
    fn tasks_that_start_after_their_master_has_gone_are_found() => Bug::KeepLateStarts, "master is dead";
    fn tasks_that_ignore_the_first_signal_and_get_no_other_are_found() => Bug::NoSecondSignal, "master is dead";
    fn tasks_outside_the_partition_are_found() => Bug::IgnorePartition, "outside its partition";
    fn tasks_on_loaded_nodes_are_found() => Bug::MostLoaded, "not the least loaded";
    fn partitions_that_differ_are_found() => Bug::LastComeWins, "have other partitions";
    fn the_dead_that_still_count_are_found() => Bug::HearTheDead, "declared dead";
    fn nodes_that_are_dead_since_they_take_no_letter_are_found() => Bug::FullIsDead, "was not silent";
    fn users_that_use_up_what_others_may_send_are_found() => Bug::OneUserTakesAll, "refused within its share";
    fn letters_that_count_twice_are_found() => Bug::TakeTwice, "master is dead";
}
