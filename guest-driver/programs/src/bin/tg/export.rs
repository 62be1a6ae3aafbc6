// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exports a segment by hand.

use telegraphos::Node;
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome};

pub(crate) const USAGE: &str = "\
tg-export: exports zeroed memory under a name

Usage: tg-export NAME SIZE [options]

  --mode MODE   access rights, as for a file [606: all load and store]
  --direct GROUP
                in the memory of a trust group, which its nodes access directly
  --hold        stay until a signal comes, even without a standard input

It reads lines from standard input: `OFFSET` prints the 8-byte word there as this process sees it, `OFFSET VALUE` stores
one. When the input ends, the segment is withdrawn, unless --hold is given.
Exit codes: 0 done, 2 usage, 3 board or driver refused.

Example: tg-export box 64K        (then, on another node: tg-store 0 box 8 42)
";

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    let (mut mode, mut group, mut hold) = (0o606, None, false);
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "mode" => {
                let text = line.text()?;
                mode = u32::from_str_radix(&text, 8)
                    .map_err(|_| Failure::Usage(format!("--mode is {text:?}: expected three octal digits, as 604")))?;
            }
            "direct" => group = Some(line.text()?),
            "hold" => hold = true,
            _ => return Err(cli::unknown(&option)),
        }
    }
    let [name, size] = line.only(["NAME", "SIZE"])?;
    let size = cli::number("SIZE", size)?;
    let node = Node::open()?;
    let mut export = node.export(name, size).mode(mode);
    if let Some(group) = group {
        export = export.direct(&group);
    }
    let segment = export.create()?;
    println!("exported {name:?}: {size} bytes of node {}", node.id());
    for line in cli::lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        // A slip of the finger must not pull the memory from under the others.
        let done = match *words.as_slice() {
            [] => Ok(()),
            [offset] => cli::number("OFFSET", offset)
                .and_then(|offset| Ok(segment.load::<u64>(offset)?))
                .map(|word| println!("{word:#018x}")),
            [offset, value] => cli::number("OFFSET", offset)
                .and_then(|offset| Ok(segment.store::<u64>(offset, cli::number("VALUE", value)?)?)),
            _ => Err(Failure::Usage(format!("{line:?}: expected OFFSET or OFFSET VALUE"))),
        };
        if let Err(failure) = done {
            eprintln!("tg-export: {failure}");
        }
    }
    if hold {
        loop {
            std::thread::park();
        }
    }
    segment.close()?;
    Ok(())
}
