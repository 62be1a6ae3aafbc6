// SPDX-License-Identifier: MIT OR Apache-2.0
//! A replicated segment by hand: one command a line, one answer a line.

use std::time::{Duration, Instant};
use telegraphos::{Error, Node, NodeId, ReplicaMode, Replicated};
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome};
use telegraphos_guest_tests::replica;

pub(crate) const USAGE: &str = "\
tg-replica: a copy of a replicated segment, used by hand

Usage: tg-replica here NAME [options]     (makes it, with this node as its home)
       tg-replica HOME NAME [options]     (joins it)

  --size BYTES     of a new segment [64K]
  --mode MODE      counters, invalidate, owner or naive; all members have the same [counters]
  --patience S     how long to wait for the home [30]

Then it reads commands, one a line:
  store OFFSET VALUE     8 bytes
  repeat OFFSET COUNT    stores 1, 2, ... COUNT to one word
  load OFFSET            from the copy     trapped OFFSET            through the window
  settle                 until the board has taken all stores
  quiet S                until all copies have them, or S seconds have passed
  watch OFFSET S         every value that the word has within S seconds
  storm OFFSET S         stores without pause for S seconds
  orphan S               waits until the home has gone
  state                  home, and why it has gone
  adopt, take            becomes the home: of an orphan, or while the others continue
  rejoin HOME            leaves, and joins there
  peer NODE              joins a naive segment to that node's
  sum                    checksum of the copy
  leave                  leaves, and ends
What is refused is answered by `error ERRNO TEXT`. Without input it ends.
Exit codes: 0 done, 2 usage, 3 board, driver or peer refused. A copy whose home has gone gives SIGBUS when it is touched.

Example: tg-replica here board --mode owner
";

/// What it was started with.
struct Setting {
    node: Node,
    name: String,
    mode: ReplicaMode,
    patience: Duration,
}

impl Setting {
    fn join(&self, home: NodeId) -> Result<Replicated, Error> {
        let join = Replicated::join(&self.node, home, &self.name).replica_mode(self.mode).mode(0o606);
        replica::join_patiently(join, self.patience)
    }
}

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    let mut size = replica::PAGE;
    let (mut mode, mut patience) = (ReplicaMode::Counters, Duration::from_secs(30));
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "size" => size = line.number("--size")?,
            "mode" => mode = replica::mode(&line.text()?).map_err(Failure::Usage)?,
            "patience" => patience = line.seconds("--patience")?,
            _ => return Err(cli::unknown(&option)),
        }
    }
    let [home, name] = line.exactly("HOME NAME")?;
    let setting = Setting { node: Node::open()?, name: name.into(), mode, patience };
    let mut segment = match home {
        "here" => Replicated::create(&setting.node, name, size).replica_mode(mode).mode(0o606).create()?,
        id => setting.join(cli::number("HOME", id)?)?,
    };
    println!("replicated {name:?}: {} bytes", segment.size());
    for line in cli::lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["leave"] => {
                segment.leave()?;
                println!("left");
                return Ok(());
            }
            ["rejoin", home] => {
                let home = cli::number("HOME", home)?;
                segment.leave()?;
                segment = setting.join(home)?;
                println!("joined");
            }
            words => match act(&setting, &segment, words) {
                Ok(answer) => println!("{answer}"),
                Err(Failure::Refused(text)) => println!("error {text}"),
                Err(failure) => return Err(failure),
            },
        }
    }
    Ok(())
}

fn act(setting: &Setting, segment: &Replicated, words: &[&str]) -> Outcome<String> {
    let number = |text: &str| cli::number::<u64>("a number", text);
    let seconds = |text: &str| {
        let seconds = text.parse::<f64>().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
        seconds.ok_or_else(|| Failure::Usage(format!("{text:?} seconds: expected a number")))
    };
    Ok(match *words {
        ["store", offset, value] => {
            segment.store(number(offset)?, number(value)?)?;
            "stored".into()
        }
        ["repeat", offset, count] => {
            let offset = number(offset)?;
            (1..=number(count)?).try_for_each(|n| segment.store(offset, n))?;
            "stored".into()
        }
        ["load", offset] => format!("{:#x}", segment.load::<u64>(number(offset)?)?),
        ["trapped", offset] => format!("{:#x}", segment.load_trapped::<u64>(number(offset)?)?),
        ["settle"] => {
            segment.settle(Some(Duration::from_secs(10)))?;
            "settled".into()
        }
        ["quiet", limit] => {
            segment.quiet_timeout(seconds(limit)?)?;
            "quiet".into()
        }
        ["watch", offset, limit] => watch(segment, number(offset)?, seconds(limit)?)?,
        ["storm", offset, limit] => {
            println!("storming");
            let (offset, end) = (number(offset)?, Instant::now() + seconds(limit)?);
            let mut count = 0u64;
            while Instant::now() < end {
                count += 1;
                segment.store(offset, count)?;
            }
            format!("stored {count}")
        }
        ["orphan", limit] => {
            setting.node.wait_error(Some(seconds(limit)?))?;
            state(segment)?
        }
        ["state"] => state(segment)?,
        ["adopt"] => {
            segment.adopt()?;
            "adopted".into()
        }
        ["take"] => {
            segment.take_home()?;
            "taken".into()
        }
        ["peer", node] => {
            segment.join_peer(cli::number("NODE", node)?)?;
            "joined".into()
        }
        ["sum"] => format!("{:#018x}", replica::digest(segment)?),
        _ => return Err(Failure::Usage(format!("{words:?} is no command"))),
    })
}

fn state(segment: &Replicated) -> Outcome<String> {
    let state = segment.state()?;
    let orphan = state.orphan.map_or("none".into(), |status| format!("{status:?}"));
    Ok(format!("home {} orphan {orphan}", state.home))
}

/// Prints that it watches, then what it has seen.
fn watch(segment: &Replicated, offset: u64, limit: Duration) -> Outcome<String> {
    let mut seen: Vec<u64> = vec![segment.load(offset)?];
    println!("watching");
    let end = Instant::now() + limit;
    while Instant::now() < end {
        for _ in 0..1000 {
            let value = segment.load(offset)?;
            if seen.last() != Some(&value) {
                seen.push(value);
            }
        }
    }
    Ok(seen.iter().fold("seen".into(), |text, value| format!("{text} {value:#x}")))
}
