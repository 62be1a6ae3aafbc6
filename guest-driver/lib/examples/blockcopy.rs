// SPDX-License-Identifier: MIT OR Apache-2.0
//! Block copies: a message to another node and back by user-level DMA, with several pieces under way at once.

mod common;
mod word;

use common::{Failure, PATIENCE};
use std::process::ExitCode;
use std::time::Instant;
use telegraphos::{Node, NodeId, Operation};
use word::wait_for;

pub(crate) const USAGE: &str = "\
Block copies to another node and back

Usage: tg-copy PEER [KIB]      (on both nodes at once; KIB is 1 to 16384, or 1024)

Exit codes: 0 done, 1 a byte came back wrong, 2 usage, 3 the board, the driver or the peer refused.

Example: telegraphos run --nodes 2 -- sh -c 'tg-copy $((1 - $(hostname | tr -cd 0-9)))'
";

/// Pieces under way at once.
const PIECES: u64 = 4;

pub(crate) fn main() -> ExitCode {
    common::main(USAGE, [None, Some(1024)], |[peer, kib]| run(peer as NodeId, kib.clamp(1, 16 << 10) << 10))
}

fn run(peer: NodeId, length: u64) -> Result<(), Failure> {
    let node = Node::open()?;
    // A third for the message, a third for what comes back, a third for what the peer puts here.
    let (message, back, inbox) = (0, length, 2 * length);
    let mine = node.export("copy", 3 * length + 64).mode(0o606).create()?;
    let remote = common::patiently(|| node.import(peer, "copy").open())?;
    for at in (0..length).step_by(8) {
        mine.store(message + at, at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(node.id()))?;
    }

    let begun = Instant::now();
    let piece = length.div_ceil(PIECES);
    let ranges = || (0..length).step_by(piece as usize).map(|at| (at, piece.min(length - at)));
    // Each returns at once; the data is on its way.
    let there = ranges().map(|(at, bytes)| remote.put_nbi(inbox + at, &mine, message + at, bytes));
    for mut operation in there.collect::<Result<Vec<Operation<()>>, _>>()? {
        operation.wait(Some(PATIENCE))?;
    }
    let put = begun.elapsed();
    let begun = Instant::now();
    let home = ranges().map(|(at, bytes)| remote.get_nbi(inbox + at, &mine, back + at, bytes));
    for mut operation in home.collect::<Result<Vec<Operation<()>>, _>>()? {
        // For long ones: asleep until the board's interrupt.
        operation.wait_event(Some(PATIENCE))?;
    }
    println!("node {}: {} KiB there in {put:.1?}, back in {:.1?}", node.id(), length >> 10, begun.elapsed());

    for at in (0..length).step_by(8) {
        let [sent, came]: [u64; 2] = [mine.load(message + at)?, mine.load(back + at)?];
        if sent != came {
            return Err(Failure::Wrong(format!("word {at:#x} came back as {came:#x}: expected {sent:#x}")));
        }
    }
    // Neither leaves while the other still copies.
    remote.put64(3 * length, 1)?;
    remote.quiet()?;
    wait_for(&mine, 3 * length, 1)
}
