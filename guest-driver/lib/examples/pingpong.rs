// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ping-pong: two nodes store a number into each other's memory in turns. No system call, no interrupt: a store on one
//! side, a load of one's own memory on the other.

mod common;
mod word;

use common::Failure;
use std::process::ExitCode;
use std::time::Instant;
use telegraphos::{Node, NodeId};
use word::wait_for;

pub(crate) const USAGE: &str = "\
Ping-pong between two nodes by single stores

Usage: tg-pingpong PEER [ROUNDS]      (on both nodes at once; ROUNDS defaults to 1000)

Exit codes: 0 done, 2 usage, 3 the board, the driver or the peer refused.

Example: telegraphos run --nodes 2 -- sh -c 'tg-pingpong $((1 - $(hostname | tr -cd 0-9)))'
";

pub(crate) fn main() -> ExitCode {
    common::main(USAGE, [None, Some(1000)], |[peer, rounds]| play(peer as NodeId, rounds))
}

fn play(peer: NodeId, rounds: u64) -> Result<(), Failure> {
    let node = Node::open()?;
    let mine = node.export("pingpong", 64).mode(0o606).create()?;
    let remote = common::patiently(|| node.import(peer, "pingpong").open())?;
    // Both have started once each has stored here at the other.
    remote.put64(8, 1)?;
    wait_for(&mine, 8, 1)?;

    let first = node.id() < peer;
    let begun = Instant::now();
    for round in 1..=rounds {
        if first {
            remote.put64(0, round)?;
            wait_for(&mine, 0, round)?;
        } else {
            wait_for(&mine, 0, round)?;
            remote.put64(0, round)?;
        }
    }
    println!("node {}: {rounds} round trips, {:.1?} each", node.id(), begun.elapsed() / rounds.max(1) as u32);

    // Neither leaves while the other still waits for its last word.
    remote.put64(16, 1)?;
    wait_for(&mine, 16, 1)?;
    remote.quiet()?;
    Ok(())
}
