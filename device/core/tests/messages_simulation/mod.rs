// SPDX-License-Identifier: MIT OR Apache-2.0
//! A seeded simulation of messages over real boards and the real switch: three nodes, four processes with the engine of
//! `telegraphos-msg-core` each, two threads in each process, tiny queues, slow receivers, congestion, and faults.
//!
//! ```text
//!   programs: sends, receives ─► Engine ─► actions ─► Link: stores, an element ─► board ─► switch ─► board
//!                                  ▲                                                                   │
//!                                  ├── packet, read from the inbox ◄── element ◄── queue ◄─────────────┤
//!                                  └── transferred ◄── status word ◄── copy from buffer to buffer ◄────┘
//! ```
//!
//! Every store, element, launch step and step of a board is its own event, so anything comes between any two. Packets
//! are encoded as `guest-driver/msg` does it (`telegraphos_msg_core::layout`). Processes that have lost each other by a
//! broken link connect again.
//!
//! The checks, for every schedule and all faults:
//!
//! - I17: the bytes of a matched request are moved by exactly one transfer, of which the board stores each byte once.
//! - I18: a message has exactly its bytes; nothing is left at the end: no send, receive, message, slot, or element.
//! - Packets are what was posted, once and in order; slots are not written to while they are in use.
//! - Each receive gets what a plain list of messages and receives gives it, and messages of one thread to another
//!   arrive in the order of their sends.
//! - A send that ends without a failure is with its thread; each failure has its cause.
//! - When a process or node leaves, everything with it ends at the others, in bounded time.
//!
//! | File | What it has |
//! |---|---|
//! | `world` | processes, what they export and import, and the choice of what happens next |
//! | `moves` | actions of engines as stores, elements and copies, and what comes of these |
//! | `record` | what was asked of the engines, the plain list, and the checks |
//! | `faults` | processes that end, resets, crashes, broken links |
//! | `rest` | the end: everything is received, and nothing is left |
//!
//! A failure prints its seed: `TELEGRAPHOS_SEED=n cargo test -p telegraphos-device-core messages_simulation::`
//! replays it.

mod faults;
mod moves;
mod pending;
mod record;
mod rest;
mod world;

use crate::common::{self, over_seeds_on_all_processors};
use telegraphos_device_core::Bug as BoardBug;
use telegraphos_msg_core::Bug;
use world::{Tally, World};

/// Events that a run must include.
const WHAT: [&str; 26] = [
    "crashes",
    "ends of processes",
    "fetches",
    "fragments",
    "links that break",
    "links that break for good",
    "messages in slots that might have been requests",
    "messages received",
    "overflows of queues",
    "pieces",
    "processes that connect again",
    "receives that are withdrawn",
    "receives whose sender has gone",
    "requests",
    "requests that might have gone to slots",
    "resets",
    "sends that are withdrawn",
    "sends to no thread",
    "sends whose receiver has gone",
    "stores",
    "takes",
    "threads that are closed",
    "transfers that fail",
    "transfers of several blocks",
    "truncated messages",
    "waits for congestion",
];
/// Sends, receives and the like of a schedule.
const OPERATIONS: usize = 150;

fn run(seed: u64, bug: Option<Bug>, board: Option<BoardBug>, faults: bool) -> Result<Tally, String> {
    let mut world = World::new(seed, bug, board);
    let fault_at = faults.then(|| 1 + world.below(OPERATIONS));
    let mut operations = 0;
    while operations < OPERATIONS {
        let acted = world.turn()?;
        operations += usize::from(acted);
        if acted && fault_at == Some(operations) {
            world.fault()?;
        }
    }
    world.rest()?;
    let moment = world.cluster.moment;
    world.count("events of boards and switch", moment);
    Ok(world.tally)
}

#[test]
fn i17_i18_messages_over_boards() {
    let begun = std::time::Instant::now();
    let add =
        |total: &mut Tally, one: Tally| one.into_iter().for_each(|(what, n)| *total.entry(what).or_default() += n);
    // Half of the schedules are without faults, to check what must succeed without them.
    let (seeds, tally) = over_seeds_on_all_processors(2_000, 100_000, add, |seed| run(seed, None, None, seed % 4 >= 2));
    println!("{seeds} schedules of {OPERATIONS} operations in {:.0} s:", begun.elapsed().as_secs_f32());
    for (what, count) in &tally {
        println!("  {what}: {count}");
    }
    // A single seed may lack some of them.
    let never = WHAT.iter().find(|what| seeds > 1 && tally.get(*what).is_none_or(|count| *count == 0));
    assert!(never.is_none(), "{never:?} was never simulated");
}

#[test]
fn i17_i18_each_deliberate_bug_is_seen() {
    for (bug, check) in [
        (Bug::TransferTwice, "once: a second transfer"),
        (Bug::WithdrawMatched, "ended with Withdrawn"),
        (Bug::ForgetOffset, "reassembly"),
        (Bug::ReturnEarly, "end: send"),
        (Bug::KeepRefused, "freed"),
        (Bug::NewestFirst, "order"),
        (Bug::ExactFirst, "order"),
        (Bug::IgnoreSlots, "slots"),
    ] {
        common::finds(bug, check, 0..400, |seed| run(seed, Some(bug), None, false).map(drop));
    }
    let bug = Bug::ForgetSends;
    common::finds(bug, "freed", 0..400, |seed| run(seed, Some(bug), None, true).map(drop));
}

#[test]
fn i18_bugs_of_boards_that_lose_or_reorder_are_seen() {
    for (bug, check) in [
        (BoardBug::DropWhenFull, "slots"),
        (BoardBug::NeverStop, "slots"),
        (BoardBug::ForgetPending, "slots"),
        (BoardBug::EnqueuePassesRequests, "slots"),
    ] {
        common::finds(bug, check, 0..400, |seed| run(seed, None, Some(bug), false).map(drop));
    }
}
