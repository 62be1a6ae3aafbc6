// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work shared by all nodes: each draws the number of the next item by fetch-and-increment, so that every item is done
//! once and fast nodes do more of them. Results go where the counter is, by plain stores.

mod common;

use common::{Failure, PATIENCE};
use std::process::ExitCode;
use telegraphos::sync::Barrier;
use telegraphos::{Node, NodeId};

pub(crate) const USAGE: &str = "\
Work shared by all nodes through a counter and fetch-and-increment

Usage: tg-work NODES [ITEMS]      (on nodes 0 to NODES-1 at once; ITEMS defaults to 1000)

Exit codes: 0 done, 1 an item was not done right, 2 usage, 3 the board, the driver or a peer refused.

Example: telegraphos run --nodes 3 -- tg-work 3
";

/// Offsets in the segment of node 0.
const NEXT: u64 = 0;
const RESULTS: u64 = 64;

pub(crate) fn main() -> ExitCode {
    common::main(USAGE, [None, Some(1000)], |[nodes, items]| run(nodes as NodeId, items))
}

fn run(nodes: NodeId, items: u64) -> Result<(), Failure> {
    let node = Node::open()?;
    let everybody: Vec<NodeId> = (0..nodes).collect();
    let segment = match node.id() {
        0 => Some(node.export("work", RESULTS + 8 * items).mode(0o606).create()?),
        _ => None,
    };
    // Node 0 goes through the board as the others do: its processor's own atomics would not be atomic with remote.
    let shared = common::patiently(|| node.import(0, "work").open())?;
    let mut barrier = Barrier::join(&node, "work-barrier", &everybody, node.id().into(), 0o606, PATIENCE)?;
    barrier.wait_timeout(PATIENCE)?;

    let mut count = 0;
    loop {
        let item: u64 = shared.fetch_inc(NEXT)?;
        if item >= items {
            break;
        }
        shared.put64(RESULTS + 8 * item, work(item))?;
        count += 1;
    }
    println!("node {}: did {count} of {items} items", node.id());

    // Behind it every result of every node is there: a barrier waits for quiet first.
    barrier.wait_timeout(PATIENCE)?;
    if let Some(segment) = segment {
        for item in 0..items {
            let result: u64 = segment.load(RESULTS + 8 * item)?;
            if result != work(item) {
                return Err(Failure::Wrong(format!("the result of item {item} is {result}: expected {}", work(item))));
            }
        }
        println!("node 0: all {items} results are right");
    }
    barrier.wait_timeout(PATIENCE)?;
    Ok(())
}

/// Steps of the Collatz sequence, more or less of them.
fn work(item: u64) -> u64 {
    let (mut n, mut steps) = (item + 1, 1);
    while n != 1 {
        n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
        steps += 1;
    }
    steps
}
