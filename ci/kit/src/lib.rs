// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests of all crates share. A dev-dependency everywhere: nothing shipped links it.
//!
//! - [`Rng`]: every random choice of a test, replayable from a seed.
//! - [`seed`], [`Scale`], [`turn`], [`over_seeds`]: `TELEGRAPHOS_SEED`, `TELEGRAPHOS_SCALE` and `TELEGRAPHOS_TURN`.
//! - [`finds`], [`bugs_are_found!`], [`bug_table!`]: each deliberate bug is found by the check that names it.
//! - [`models!`]: tests of models, some of which have a mistake that is found.
//! - [`counts!`]: what a test counts over its seeds.
//! - [`eventually`]: waits with a deadline.
//! - [`CLibrary`]: a library for C, its header, and programs that are linked with it.
//! - [`Served`]: a server's loop in a thread that ends with its test.
//! - [`Daemon`]: a process that ends with its test; [`Ended`]: what a program returned and wrote.
//! - `world` (a feature): boards, the switch, guests' memory and what drivers and processes do.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::expect_used, reason = "a failure here is the failure of a test")]

mod bugs;
mod c;
mod daemon;
mod random;
mod seeds;
mod served;
mod waits;
#[cfg(feature = "world")]
pub mod world;

pub use bugs::{finds, has_check, sees};
pub use c::CLibrary;
pub use daemon::{Daemon, Ended};
pub use random::{Number, Rng};
pub use seeds::{
    Rounds, Scale, over_seeds, over_seeds_on_all_processors, panic_message, rounds, scale, seed, seed_or, seeds, turn,
};
pub use served::Served;
pub use waits::{PATIENCE, eventually};
