// SPDX-License-Identifier: MIT OR Apache-2.0
//! The world of boards (`ci/kit`), and the boards that many of these tests have.

pub(crate) mod replicas;

use telegraphos_device_core::{Bug, HibConfig, Step};
pub(crate) use telegraphos_testkit::world::commands::*;
pub(crate) use telegraphos_testkit::world::*;
pub(crate) use telegraphos_testkit::{Rng, finds, over_seeds, over_seeds_on_all_processors, sees};
use telegraphos_wire::Rights;

/// Boards with small windows and a deliberate bug.
pub(crate) fn small(bug: Option<Bug>) -> impl Fn(&mut HibConfig) {
    move |config| {
        config.bug = bug;
        config.outstanding = 4;
        config.credits = [8; 4];
    }
}

/// Three boards with small windows over an ideal network. Each exports two pages as "seg" with these rights and has
/// imported those of all, its own included, as import = node.
pub(crate) fn of_three(seed: u64, rights: Rights, bug: Option<Bug>) -> Cluster {
    let mut cluster = Cluster::new(3, seed, small(bug));
    cluster.share(2, rights);
    cluster
}

/// A store into exported memory.
pub(crate) fn is_remote_store(step: &Step) -> bool {
    matches!(step, Step::Store { address, .. } if *address >= EXPORTS)
}
