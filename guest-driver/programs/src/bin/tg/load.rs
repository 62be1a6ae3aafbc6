// SPDX-License-Identifier: MIT OR Apache-2.0
//! One remote load by hand.

use std::time::Duration;
use telegraphos::Node;
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome};

pub(crate) const USAGE: &str = "\
tg-load: loads one word from another node's segment, with one instruction, and prints it

Usage: tg-load NODE NAME OFFSET [options]

  --size 1|2|4|8   bytes [8]
  --watch          load again and again until a signal comes, and print each value that differs from the one before;
                   a load that fails is all ones here

Exit codes: 0 done, 2 usage, 3 board, driver or peer refused.

Example: tg-load 1 box 0x10 --size 4
";

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    let (mut size, mut watch) = (8, false);
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "size" => size = line.number("--size")?,
            "watch" => watch = true,
            _ => return Err(cli::unknown(&option)),
        }
    }
    let [id, name, offset] = line.exactly("NODE NAME OFFSET")?;
    let offset = cli::number("OFFSET", offset)?;
    let node = Node::open()?;
    let remote = node.import(cli::number("NODE", id)?, name).read_only().open()?;
    let load = || -> Outcome<u64> {
        Ok(match size {
            1 => u64::from(remote.get8(offset)?),
            2 => u64::from(remote.get16(offset)?),
            4 => u64::from(remote.get32(offset)?),
            8 => remote.get64(offset)?,
            other => return Err(Failure::Usage(format!("--size is {other}: expected 1, 2, 4 or 8"))),
        })
    };
    let value = load()?;
    let print = |value: u64| println!("{value:#0width$x}", width = 2 + 2 * size);
    if watch {
        print(value);
        let mut last = value;
        loop {
            let value = load()?;
            if value != last {
                print(value);
                last = value;
            }
        }
    }
    // All ones may be a value, or a load that failed; its error then comes within moments.
    let ones = value == u64::MAX >> (64 - 8 * size);
    if ones && node.wait_error(Some(Duration::from_millis(200)))? {
        if let Some(status) = remote.state()?.error {
            return Err(Failure::Refused(format!("the load of {size} bytes at {offset:#x} failed: {status}")));
        }
    }
    print(value);
    Ok(())
}
