// SPDX-License-Identifier: MIT OR Apache-2.0
//! One remote store by hand.

use telegraphos::{Node, Rights};
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome};

pub(crate) const USAGE: &str = "\
tg-store: stores one word into another node's segment, with one instruction

Usage: tg-store NODE NAME OFFSET VALUE [--size 1|2|4|8]

It returns when the value has arrived.
Exit codes: 0 done, 2 usage, 3 board, driver or peer refused.

Example: tg-store 1 box 0x10 42 --size 4
";

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    let mut size = 8;
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "size" => size = line.number("--size")?,
            _ => return Err(cli::unknown(&option)),
        }
    }
    let [node, name, offset, value] = line.exactly("NODE NAME OFFSET VALUE")?;
    let offset = cli::number("OFFSET", offset)?;
    let remote = Node::open()?.import(cli::number("NODE", node)?, name).rights(Rights::WRITE).open()?;
    match size {
        1 => remote.put8(offset, cli::number("VALUE", value)?)?,
        2 => remote.put16(offset, cli::number("VALUE", value)?)?,
        4 => remote.put32(offset, cli::number("VALUE", value)?)?,
        8 => remote.put64(offset, cli::number("VALUE", value)?)?,
        other => return Err(Failure::Usage(format!("--size is {other}: expected 1, 2, 4 or 8"))),
    }
    Ok(remote.quiet()?)
}
