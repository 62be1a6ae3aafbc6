// SPDX-License-Identifier: MIT OR Apache-2.0
//! A daemon that makes local copies of remote pages that are read much and written little (SPEC item 22: small values
//! are an alarm for replication). The copies are a snapshot: nothing keeps them coherent.

use std::time::{Duration, Instant};
use telegraphos::{Node, PageCounter};
use telegraphos_guest_tests::cli::{self, Line, Outcome};

pub(crate) const USAGE: &str = "\
tg-replicate: copies the pages of a remote segment that this node reads often into a local segment

Usage: tg-replicate NODE NAME COPY [options]

  --reads N            loads of a page after which it is copied [1000]
  --writes N           stores after which it counts as written, and is not copied again until it cools [16]
  --seconds S          how long to run [until a signal comes]

COPY is the name of the local segment, as large as the remote one. It prints one line for each page copied.
Exit codes: 0 done, 2 usage, 3 board, driver or peer refused.

Example: tg-replicate 1 table table-copy --reads 500
";

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    let (mut reads, mut writes, mut seconds) = (1000u64, 16u64, None);
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "reads" => reads = line.number("--reads")?,
            "writes" => writes = line.number("--writes")?,
            "seconds" => seconds = Some(line.seconds("--seconds")?),
            _ => return Err(cli::unknown(&option)),
        }
    }
    let [id, name, copy] = line.exactly("NODE NAME COPY")?;
    let node = Node::open()?;
    let remote = node.import(cli::number("NODE", id)?, name).rights(telegraphos::Rights(17)).open()?;
    let local = node.export(copy, remote.size()).create()?;
    let unit = node.info()?.unit;
    let arm = |page: u32| remote.arm_counter(page, reads, writes);
    let mut armed: Vec<PageCounter> = Vec::new();
    for page in 0..remote.size().div_ceil(unit) as u32 {
        armed.push(arm(page)?);
    }
    println!("watching {} pages of {name} of node {id}", armed.len());
    let end = seconds.map(|seconds| Instant::now() + seconds);
    while end.is_none_or(|end| Instant::now() < end) {
        let mut any = false;
        for (page, counter) in armed.iter_mut().enumerate() {
            // The event of a counter is an eventfd: a daemon with more to do would poll them all at once.
            if !counter.wait(Some(Duration::ZERO))? {
                continue;
            }
            any = true;
            let count = counter.read()?;
            if count.reads_fired && !count.writes_fired {
                let at = page as u64 * unit;
                remote.get_block(at, &local, at, unit.min(remote.size() - at))?;
                println!("page {page}: read {reads} times, written {} times: copied", writes - count.writes);
            }
            *counter = arm(page as u32)?;
        }
        if !any {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(())
}
