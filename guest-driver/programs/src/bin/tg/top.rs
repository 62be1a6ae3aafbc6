// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hottest remote pages of this node, by the board's page access counters (SPEC item 22: large values make a
//! profile).

use std::io::Write;
use std::time::{Duration, Instant};
use telegraphos::{Node, PageCounter};
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome};

pub(crate) const USAGE: &str = "\
tg-top: shows which remote pages this node's processes use most, without touching those processes

Usage: tg-top NODE:NAME... [options]

  --interval SECONDS   between two tables [1]
  --count N            end after so many tables; 0 continues until a signal comes [0]
  --most N             rows of a table [16]

Every access of this node to a page counts, by any process: a store, a load, an atomic (a write), a block of a copy.

Exit codes: 0 done, 2 usage, 3 board, driver or peer refused.

Example: tg-top 1:box 2:box --interval 2
";

/// Counts down from here; at a million accesses a second it lasts for longer than any run.
const PLENTY: u64 = 1 << 62;

struct Page {
    name: String,
    number: u32,
    counter: PageCounter,
    reads: u64,
    writes: u64,
}

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    let (mut interval, mut count, mut most) = (Duration::from_secs(1), 0u64, 16usize);
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "interval" => interval = line.seconds("--interval")?,
            "count" => count = line.number("--count")?,
            "most" => most = line.number("--most")?,
            _ => return Err(cli::unknown(&option)),
        }
    }
    let segments = line.words();
    cli::must(!segments.is_empty(), Failure::Usage, || "no segment: expected NODE:NAME".into())?;
    let node = Node::open()?;
    let mut remotes = Vec::new();
    let mut pages = Vec::new();
    for segment in &segments {
        let Some((id, name)) = segment.split_once(':') else {
            return Err(Failure::Usage(format!("{segment:?}: expected NODE:NAME")));
        };
        let remote = node.import(cli::number("NODE", id)?, name).read_only().open()?;
        for number in 0..remote.size().div_ceil(node.info()?.unit) as u32 {
            let counter = remote.arm_counter(number, PLENTY, PLENTY)?;
            pages.push(Page { name: (*segment).into(), number, counter, reads: 0, writes: 0 });
        }
        remotes.push(remote);
    }
    let mut tables = 0;
    let mut last = Instant::now();
    loop {
        std::thread::sleep(interval);
        let passed = last.elapsed().as_secs_f64();
        last = Instant::now();
        let mut rows = Vec::new();
        for page in &mut pages {
            let now = page.counter.read()?;
            let (reads, writes) = (PLENTY - now.reads, PLENTY - now.writes);
            rows.push((reads - page.reads, writes - page.writes, page.name.as_str(), page.number));
            (page.reads, page.writes) = (reads, writes);
        }
        rows.sort_by_key(|(reads, writes, ..)| std::cmp::Reverse(reads + writes));
        let mut out = format!("{:>12} {:>12}  page\n", "reads/s", "writes/s");
        for (reads, writes, name, number) in rows.iter().filter(|row| row.0 + row.1 > 0).take(most) {
            out += &format!("{:>12.0} {:>12.0}  {name}+{number}\n", *reads as f64 / passed, *writes as f64 / passed);
        }
        // The pipe may have no reader any more.
        if std::io::stdout().write_all(out.as_bytes()).is_err() {
            return Ok(());
        }
        tables += 1;
        if tables == count {
            return Ok(());
        }
    }
}
