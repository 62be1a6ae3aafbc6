// SPDX-License-Identifier: MIT OR Apache-2.0
//! A broadcast: node 0 stores each message once, and all others find it in their own memory. Slow consumers hold the
//! producer back, and nothing is lost.

mod common;

use common::{Failure, PATIENCE};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use telegraphos::{Broadcast, Node};

pub(crate) const USAGE: &str = "\
A broadcast from node 0 to all others

Usage: tg-broadcast NODES [MESSAGES] [PAUSE]
       (on nodes 0 to NODES-1 at once; MESSAGES defaults to 10000; consumers pause so many microseconds after every 100, or 0)

Exit codes: 0 done, 1 a message was lost, torn or out of order, 2 usage, 3 the board, the driver or a peer refused.

Example: telegraphos run --nodes 4 -- tg-broadcast 4
";

const NAME: &str = "broadcast";
const LARGEST: usize = 120;

pub(crate) fn main() -> ExitCode {
    common::main(USAGE, [None, Some(10_000), Some(0)], |[nodes, messages, pause]| {
        let node = Node::open()?;
        match node.id() {
            0 => produce(&node, nodes.saturating_sub(1) as usize, messages),
            _ => consume(&node, messages, Duration::from_micros(pause)),
        }
    })
}

/// Messages of all lengths, none like another.
fn message(number: u64) -> Vec<u8> {
    let length = 8 + (number as usize * 7) % (LARGEST - 7);
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend((8..length as u64).map(|at| (number.wrapping_mul(31) + at) as u8));
    bytes
}

fn produce(node: &Node, consumers: usize, messages: u64) -> Result<(), Failure> {
    let mut broadcast = Broadcast::create(node, NAME).message(LARGEST as u32).mode(0o606).create()?;
    broadcast.wait_consumers(consumers, Some(PATIENCE))?;
    let begun = Instant::now();
    let mut full = 0;
    for number in 0..messages {
        let bytes = message(number);
        if !broadcast.try_push(&bytes)? {
            full += 1;
            broadcast.push(&bytes, Some(PATIENCE))?;
        }
    }
    broadcast.drain(Some(PATIENCE))?;
    let took = begun.elapsed();
    println!(
        "node 0: {messages} messages to {consumers} consumers in {took:.1?}, {:.1?} each; the ring was full {full} times",
        took / messages.max(1) as u32
    );
    broadcast.finish(Some(PATIENCE))?;
    Ok(())
}

fn consume(node: &Node, messages: u64, pause: Duration) -> Result<(), Failure> {
    let mut broadcast = common::patiently(|| Broadcast::join(node, 0, NAME).open())?;
    let mut bytes = Vec::new();
    let mut count = 0;
    while broadcast.pop_into(&mut bytes, Some(PATIENCE))? {
        if bytes != message(count) {
            return Err(Failure::Wrong(format!("message {count} is {bytes:?}: expected {:?}", message(count))));
        }
        count += 1;
        if count % 100 == 0 && !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
    println!("node {}: all {count} messages, in order", node.id());
    if count != messages {
        return Err(Failure::Wrong(format!("{count} messages came: expected {messages}")));
    }
    Ok(())
}
