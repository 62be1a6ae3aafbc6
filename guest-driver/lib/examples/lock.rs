// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lock between nodes: all add to two plain words in turns, which without the lock would lose some and tear them
//! apart.

mod common;

use common::{Failure, PATIENCE};
use std::process::ExitCode;
use std::time::Instant;
use telegraphos::sync::{Barrier, TicketLock};
use telegraphos::{Node, NodeId};

pub(crate) const USAGE: &str = "\
A lock between nodes, around two plain words

Usage: tg-lock NODES [ROUNDS]      (on nodes 0 to NODES-1 at once; ROUNDS defaults to 200)

Exit codes: 0 done, 1 the lock did not exclude, 2 usage, 3 the board, the driver or a peer refused.

Example: telegraphos run --nodes 3 -- tg-lock 3
";

/// Offsets in the segment of node 0.
const LOCK: u64 = 0;
const WORDS: [u64; 2] = [64, 72];

pub(crate) fn main() -> ExitCode {
    common::main(USAGE, [None, Some(200)], |[nodes, rounds]| run(nodes as NodeId, rounds))
}

fn run(nodes: NodeId, rounds: u64) -> Result<(), Failure> {
    let node = Node::open()?;
    let everybody: Vec<NodeId> = (0..nodes).collect();
    let _segment = match node.id() {
        0 => Some(node.export("lock", 4096).mode(0o606).create()?),
        _ => None,
    };
    let shared = common::patiently(|| node.import(0, "lock").open())?;
    let lock = TicketLock::new(&shared, LOCK)?;
    let mut barrier = Barrier::join(&node, "lock-barrier", &everybody, node.id().into(), 0o606, PATIENCE)?;
    barrier.wait_timeout(PATIENCE)?;

    let begun = Instant::now();
    for _ in 0..rounds {
        let guard = lock.lock()?;
        let [one, two] = [shared.get64(WORDS[0])?, shared.get64(WORDS[1])?];
        if one != two {
            return Err(Failure::Wrong(format!("under the lock the words are {one} and {two}: expected the same")));
        }
        shared.put64(WORDS[0], one + 1)?;
        shared.put64(WORDS[1], one + 1)?;
        guard.unlock()?;
    }
    println!("node {}: held the lock {rounds} times, {:.1?} each", node.id(), begun.elapsed() / rounds.max(1) as u32);

    barrier.wait_timeout(PATIENCE)?;
    let (found, expected) = (shared.get64(WORDS[0])?, rounds * u64::from(nodes));
    barrier.wait_timeout(PATIENCE)?;
    if found != expected {
        return Err(Failure::Wrong(format!("the word is {found} after all: expected {expected}")));
    }
    Ok(())
}
