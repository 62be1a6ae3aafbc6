// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receiver of `tg-flood`: sees the stores in program order, and finds every one of the last lap.

use std::time::{Duration, Instant};
use telegraphos::{Node, Segment};
use telegraphos_agent::Figure;
use telegraphos_guest_tests::cli::{self, Line, Outcome};
use telegraphos_guest_tests::flood::{COUNT, Ring};

pub(crate) const USAGE: &str = "\
tg-watch: exports a segment for tg-flood and checks what arrives there

Usage: tg-watch NAME [options]

  --monotonic    check all the time that stores are seen in program order; without it, only at the end
  --size BYTES   of the segment [64K]
  --idle S       fail after S seconds without a new store [120]
  --hold S       keep the segment for S seconds after the end [1]

It ends when tg-flood has sent the number of its stores, and prints one line:
  {\"watched\":{\"stores\":...,\"looks\":...,\"changes\":...}}
Exit codes: 0 all right, 1 an order or a value was wrong, or the stores stopped, 2 usage, 3 board or driver refused.

Example: tg-watch stream --monotonic        (on node 0: tg-flood 1 stream --seconds 30)
";

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    let (mut monotonic, mut size) = (false, 64 << 10);
    let (mut idle, mut hold) = (Duration::from_secs(120), Duration::from_secs(1));
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "monotonic" => monotonic = true,
            "size" => size = line.number("--size")?,
            "idle" => idle = line.seconds("--idle")?,
            "hold" => hold = line.seconds("--hold")?,
            _ => return Err(cli::unknown(&option)),
        }
    }
    let [name] = line.only(["NAME"])?;
    let node = Node::open()?;
    let segment = node.export(name, size).mode(0o606).create()?;
    println!("exported {name:?}: {size} bytes of node {}", node.id());
    let result = watch(&segment, Ring::of(size)?, monotonic, idle);
    // The other side may still be waiting for its last quiet.
    std::thread::sleep(hold);
    result
}

fn watch(segment: &Segment, ring: Ring, monotonic: bool, idle: Duration) -> Outcome<()> {
    let (mut seen, mut looks, mut changes) = (0u64, 0u64, 0u64);
    let mut last_change = Instant::now();
    let count = loop {
        let count: u64 = segment.load(COUNT)?;
        if count != 0 {
            break count;
        }
        looks += 1;
        // The word that would take the next store, or another of the ring: a reader that finds number n there must find
        // at least n - 1 in the word before.
        let probe = seen + 1 + looks % ring.words();
        let n: u64 = segment.load(ring.place(probe))?;
        if n > seen {
            changes += 1;
            if monotonic {
                let before: u64 = segment.load(ring.place(n - 1))?;
                cli::check(n == 1 || before >= n - 1, || {
                    format!(
                        "store {n} is in the word at {:#x}, but {before} in the word before: expected {} or more",
                        ring.place(n),
                        n - 1
                    )
                })?;
                cli::check(ring.place(n) == ring.place(probe), || {
                    format!("the word at {:#x} holds {n}, which belongs to {:#x}", ring.place(probe), ring.place(n))
                })?;
            }
            seen = n;
            last_change = Instant::now();
        } else {
            cli::check(last_change.elapsed() < idle, || {
                format!("no new store for {idle:?} after number {seen}: has tg-flood ended?")
            })?;
            std::thread::yield_now();
        }
    };
    for n in count.saturating_sub(ring.words()) + 1..=count {
        let found: u64 = segment.load(ring.place(n))?;
        cli::check(found == n, || {
            format!("the word at {:#x} holds {found:#x}: expected {n:#x}, a store was lost", ring.place(n))
        })?;
    }
    println!("{}", Figure::Watched { stores: count, looks, changes }.line());
    Ok(())
}
