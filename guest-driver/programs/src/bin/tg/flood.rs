// SPDX-License-Identifier: MIT OR Apache-2.0
//! A raw store loop that outruns the network.

use std::time::{Duration, Instant};
use telegraphos::Node;
use telegraphos_agent::{Figure, rounded};
use telegraphos_guest_tests::cli::{self, Line, Outcome};
use telegraphos_guest_tests::peers::import_patiently;
use telegraphos_guest_tests::{flood, raw};

pub(crate) const USAGE: &str = "\
tg-flood: stores as fast as the processor can; tg-watch on the other node checks

Usage: tg-flood NODE NAME [options]

  --seconds S    how long [30]
  --count N      end after N stores
  --stall MS     a batch of 64 stores that takes longer counts as a stall [10]
  --patience S   how long to wait for the segment [60]

Store number n goes to the word n modulo the segment's words. At the end it waits for quiet, then stores the number of
stores into the first word. It prints one line:
  {\"flood\":{\"stores\":...,\"seconds\":...,\"per_second\":...,\"stalls\":...,\"longest_ms\":...,\"stalled_seconds\":...,\"quiet_ms\":...}}
Exit codes: 0 done and nothing lost, 2 usage, 3 board, driver or peer refused, or stores were lost.

Example: tg-flood 1 stream --seconds 30        (on node 1: tg-watch stream --monotonic)
";

/// Stores between two looks at the clock.
const BATCH: u64 = 64;

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    let (mut seconds, mut patience) = (Duration::from_secs(30), Duration::from_secs(60));
    let (mut count, mut stall) = (u64::MAX, 10);
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "seconds" => seconds = line.seconds("--seconds")?,
            "count" => count = line.number("--count")?,
            "stall" => stall = line.number("--stall")?,
            "patience" => patience = line.seconds("--patience")?,
            _ => return Err(cli::unknown(&option)),
        }
    }
    let [id, name] = line.exactly("NODE NAME")?;
    let node = Node::open()?;
    let remote = import_patiently(&node, cli::number("NODE", id)?, name, patience)?;
    let ring = flood::Ring::of(remote.size())?;
    let window = remote.as_ptr();
    let stall = Duration::from_millis(stall);
    let (mut stalls, mut stalled, mut longest) = (0u64, Duration::ZERO, Duration::ZERO);
    let mut number = 0;
    let begun = Instant::now();
    let mut last = begun;
    while last - begun < seconds && number < count {
        for _ in 0..BATCH.min(count - number) {
            number += 1;
            // SAFETY: the ring's places are aligned and lie within the segment.
            unsafe { raw::store::<u64>(window, ring.place(number), number) };
        }
        let now = Instant::now();
        let took = now - last;
        last = now;
        longest = longest.max(took);
        if took >= stall {
            stalls += 1;
            stalled += took;
        }
    }
    let took = begun.elapsed();
    let before_quiet = Instant::now();
    remote.quiet()?;
    let quiet = before_quiet.elapsed();
    remote.put64(flood::COUNT, number)?;
    remote.quiet()?;
    let flood = Figure::Flood {
        stores: number,
        seconds: rounded(took.as_secs_f64()),
        per_second: rounded(number as f64 / took.as_secs_f64().max(1e-9)),
        stalls,
        longest_ms: rounded(longest.as_secs_f64() * 1e3),
        stalled_seconds: rounded(stalled.as_secs_f64()),
        quiet_ms: rounded(quiet.as_secs_f64() * 1e3),
    };
    println!("{}", flood.line());
    Ok(())
}
