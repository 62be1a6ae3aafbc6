// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replication by alarm: node 0 has a table, the others load from it and store to it over the network, until their
//! boards' page access counters say that they do so often. Then each makes a copy, and its loads are loads of memory
//! (SPEC items 22 and 28).

mod common;

use common::{Failure, PATIENCE};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use telegraphos::sync::Barrier;
use telegraphos::{Adaptive, Node, NodeId, Replicated};

pub(crate) const USAGE: &str = "\
A page that is copied once it is used much

Usage: tg-hotpage NODES [READS] [LOADS]
       (on nodes 0 to NODES-1 at once; the counters expire at READS loads, 64 by default; LOADS of each node in all, or 20000)

Exit codes: 0 done, 1 no copy was made, too early or too late, or a value was wrong, 2 usage, 3 the board, the driver or a peer refused.

Example: telegraphos run --nodes 3 -- tg-hotpage 3
";

const NAME: &str = "hotpage";
/// A word for each node to store to, then the words that all load.
const WORDS: u64 = 8 * 256;
const COUNT: u64 = 256;
const SIZE: u64 = WORDS + 8 * COUNT;
/// A store between so many loads.
const STORE_EVERY: u64 = 16;
/// From the counter's last step to the copy an interrupt passes, during which a node continues.
const LATEST: u64 = 5000;

pub(crate) fn main() -> ExitCode {
    common::main(USAGE, [None, Some(64), Some(20_000)], |[nodes, reads, loads]| {
        run(nodes.clamp(1, 256) as NodeId, reads.max(1), loads)
    })
}

fn content(word: u64) -> u64 {
    (word + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn run(nodes: NodeId, reads: u64, loads: u64) -> Result<(), Failure> {
    let node = Node::open()?;
    let me = node.id();
    let everybody: Vec<NodeId> = (0..nodes).collect();
    let barrier = || Barrier::join(&node, "hotpage-barrier", &everybody, me.into(), 0o606, PATIENCE);
    if me == 0 {
        let table = Replicated::create(&node, NAME, SIZE).mode(0o606).create()?;
        for word in 0..COUNT {
            table.store(WORDS + 8 * word, content(word))?;
        }
        let mut barrier = barrier()?;
        barrier.wait_timeout(PATIENCE)?;
        // The others work meanwhile.
        barrier.wait_timeout(PATIENCE)?;
        for id in everybody.iter().filter(|id| **id != 0) {
            let (found, expected) = (table.load::<u64>(8 * u64::from(*id))?, loads / STORE_EVERY);
            if found != expected {
                return Err(Failure::Wrong(format!("node {id} has stored {found} last: expected {expected}")));
            }
        }
        barrier.wait_timeout(PATIENCE)?;
        return Ok(());
    }
    let mut barrier = barrier()?;
    barrier.wait_timeout(PATIENCE)?;
    let table = common::patiently(|| Replicated::join(&node, 0, NAME).mode(0o606).when_used(reads, 0))?;
    let result = work(&table, me, reads, loads);
    table.quiet()?;
    barrier.wait_timeout(PATIENCE)?;
    // No node takes the home while another still reads.
    barrier.wait_timeout(PATIENCE)?;
    result
}

/// Loads, counted and timed.
struct Loads<'a> {
    table: &'a Adaptive,
    remote: (u64, Duration),
    local: (u64, Duration),
    /// The one that found the counter gone off, and made the copy.
    copying: Duration,
}

impl Loads<'_> {
    fn load(&mut self, offset: u64, expected: u64) -> Result<(), Failure> {
        let before = self.table.copy().is_some();
        let begun = Instant::now();
        let found = self.table.load::<u64>(offset)?;
        let took = begun.elapsed();
        match (before, self.table.copy().is_some()) {
            (true, _) => self.local = (self.local.0 + 1, self.local.1 + took),
            (false, false) => self.remote = (self.remote.0 + 1, self.remote.1 + took),
            (false, true) => (self.remote.0, self.copying) = (self.remote.0 + 1, took),
        }
        match found == expected {
            true => Ok(()),
            false => Err(Failure::Wrong(format!("the word at {offset} is {found:#x}: expected {expected:#x}"))),
        }
    }
}

fn each((count, time): (u64, Duration)) -> Duration {
    time / u32::try_from(count.max(1)).unwrap_or(u32::MAX)
}

fn work(table: &Adaptive, me: NodeId, reads: u64, loads: u64) -> Result<(), Failure> {
    let own = 8 * u64::from(me);
    let none = (0, Duration::ZERO);
    let mut done = Loads { table, remote: none, local: none, copying: Duration::ZERO };
    for count in 1..=loads {
        let word = count % COUNT;
        done.load(WORDS + 8 * word, content(word))?;
        if count % STORE_EVERY == 0 {
            table.store(own, count / STORE_EVERY)?;
            // One's own store is seen, on whichever way it went (I4).
            done.load(own, count / STORE_EVERY)?;
        }
    }
    let Loads { remote, local, copying, .. } = done;
    println!(
        "node {me}: {} remote loads, {:.1?} each, until the counter of {reads} had gone off",
        remote.0,
        each(remote)
    );
    if table.copy().is_some() {
        println!("node {me}: the copy took {copying:.1?}; then {} loads of memory, {:.1?} each", local.0, each(local));
    }
    if table.copy().is_some() && remote.0 < reads {
        return Err(Failure::Wrong(format!(
            "the copy came after {} remote loads: expected {reads} at least",
            remote.0
        )));
    }
    if table.copy().is_none() && loads > reads + LATEST {
        return Err(Failure::Wrong(format!("there is no copy after {loads} loads: expected one after {reads}")));
    }
    Ok(())
}
