// SPDX-License-Identifier: MIT OR Apache-2.0
//! A farm: a master on node 0 gives items to workers on all nodes, each asleep until there is something for it. Every
//! worker has a queue for its items; all of them report to the master through one, with one store each and no lock.

mod common;

use common::{Failure, PATIENCE};
use std::process::ExitCode;
use telegraphos::{Node, NodeId, Queue, RemoteQueue};

pub(crate) const USAGE: &str = "\
Work given out by a master, many to one and one to many, through notification queues

Usage: tg-farm NODES [ITEMS]      (on nodes 0 to NODES-1 at once; ITEMS is at most 16777214, or 1000)

Exit codes: 0 done, 1 an item was not done right, 2 usage, 3 the board, the driver or a peer refused.

Example: telegraphos run --nodes 3 -- tg-farm 3
";

/// The message of a worker before its first item, and to it after its last.
const NONE: u64 = 0xff_ffff;
/// Items given to a worker at once, so that it need not wait for the next one.
const AHEAD: u64 = 2;

pub(crate) fn main() -> ExitCode {
    common::main(USAGE, [None, Some(1000)], |[nodes, items]| run(nodes as NodeId, items.min(NONE - 1)))
}

fn run(nodes: NodeId, items: u64) -> Result<(), Failure> {
    let node = Node::open()?;
    if node.id() != 0 {
        return worker(&node);
    }
    // Here is a worker, too.
    std::thread::scope(|scope| {
        let here = scope.spawn(|| worker(&node));
        let result = master(&node, nodes, items);
        match here.join() {
            Ok(worker) => result.and(worker),
            Err(_) => Err(Failure::Wrong("the worker of node 0 has panicked".into())),
        }
    })
}

/// An element of the master's queue: worker, item, result.
fn report(worker: NodeId, item: u64, result: u64) -> u64 {
    u64::from(worker) << 48 | item << 24 | (result & NONE)
}

fn worker(node: &Node) -> Result<(), Failure> {
    let items = Queue::create(node, &format!("farm.{}", node.id())).mode(0o602).words(8).create()?;
    let master = common::patiently(|| Queue::import(node, 0, "farm").open())?;
    master.enqueue(report(node.id(), NONE, 0))?;
    let mut count = 0;
    loop {
        match items.pop_wait(Some(PATIENCE))? {
            Some(NONE) => break,
            Some(item) => master.enqueue(report(node.id(), item, work(item)))?,
            None => return Err(Failure::Wrong(format!("the master has said nothing for {PATIENCE:?}"))),
        }
        count += 1;
    }
    println!("node {}: did {count} items", node.id());
    Ok(())
}

/// The master's record of a worker.
struct Worker {
    items: RemoteQueue,
    /// Items without a result so far.
    busy: u64,
}

fn master(node: &Node, nodes: NodeId, items: u64) -> Result<(), Failure> {
    let reports = Queue::create(node, "farm").mode(0o602).wide().create()?;
    let mut workers: Vec<Option<Worker>> = (0..nodes).map(|_| None).collect();
    let mut done = vec![false; items as usize];
    let (mut given, mut sent_home) = (0, 0);
    while sent_home < nodes {
        let Some(report) = reports.pop_wait(Some(PATIENCE))? else {
            return Err(Failure::Wrong(format!("{sent_home} of {nodes} workers have ended, the others say nothing")));
        };
        let (id, item, result) = ((report >> 48) as NodeId, report >> 24 & NONE, report & NONE);
        let place = workers.get_mut(usize::from(id)).ok_or_else(|| {
            Failure::Wrong(format!("node {id} reports: expected those below {nodes}, which is what NODES says"))
        })?;
        let worker = match place {
            Some(worker) => worker,
            None => {
                let items = common::patiently(|| Queue::import(node, id, &format!("farm.{id}")).open())?;
                place.insert(Worker { items, busy: 0 })
            }
        };
        if item != NONE {
            worker.busy -= 1;
            match done.get_mut(item as usize) {
                Some(done) if !*done && result == work(item) => *done = true,
                _ => {
                    return Err(Failure::Wrong(format!("item {item} comes back from node {id} as {result}, or again")));
                }
            }
        }
        while worker.busy < AHEAD && given < items {
            worker.items.enqueue(given)?;
            (worker.busy, given) = (worker.busy + 1, given + 1);
        }
        if worker.busy == 0 {
            worker.items.enqueue(NONE)?;
            sent_home += 1;
        }
    }
    if !done.iter().all(|done| *done) {
        return Err(Failure::Wrong("all workers have ended, and not all items are done".into()));
    }
    println!("node 0: all {items} results are right");
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
