// SPDX-License-Identifier: MIT OR Apache-2.0
//! The effect of concurrent changes of a word by the owner's processor and by other nodes' atomics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use telegraphos::{FULL, Node};
use telegraphos_agent::Figure;
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome};

pub(crate) const USAGE: &str = "\
tg-mixed: increments one word from its owner and from another node at the same time, and counts what is lost

Usage: tg-mixed own --with lock|board [options]      on the owner
       tg-mixed add NODE [options]                   on another node

  --with lock      the owner uses the processor's own atomic instructions on its memory
  --with board     the owner uses the board's atomics, as everybody else does
  --seconds S      how long [3]

The owner ends when the other has ended, and prints:
  {\"mixed\":{\"with\":\"lock\",\"own\":...,\"other\":...,\"found\":...,\"lost\":...}}
With one virtual processor, QEMU's emulator makes ordinary loads and stores of atomic instructions, which the board's atomics then
fall between: use the board's for words that others change.
Exit codes: 0 done (whatever was lost), 2 usage, 3 board, driver or peer refused.
";

const NAME: &str = "tg-mixed";
/// Offsets: the word; how often the other has added; set by the other when it is done.
const WORD: u64 = 0;
const ADDED: u64 = 8;
const DONE: u64 = 16;

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    let (mut with, mut seconds) = (None, Duration::from_secs(3));
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "with" => with = Some(line.text()?),
            "seconds" => seconds = line.seconds("--seconds")?,
            _ => return Err(cli::unknown(&option)),
        }
    }
    match (&line.words()[..], with.as_deref()) {
        (["own"], Some("lock")) => own(false),
        (["own"], Some("board")) => own(true),
        (["add", id], None) => add(cli::number("NODE", id)?, seconds),
        _ => Err(Failure::Usage("expected own --with lock|board, or add NODE".into())),
    }
}

fn own(by_board: bool) -> Outcome<()> {
    let node = Node::open()?;
    let segment = node.export(NAME, 65536).owner(FULL).others(FULL).create()?;
    let local = segment.remote()?;
    // SAFETY: the word lies in the mapped segment, aligned, for as long as `segment` lives; whatever else changes it,
    // an atomic access is no data race in this program.
    let word = unsafe { AtomicU64::from_ptr(segment.as_ptr().cast()) };
    println!("ready");
    let mut own = 0u64;
    while segment.load::<u64>(ADDED)? == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    while segment.load::<u64>(DONE)? == 0 {
        if by_board {
            local.fetch_inc::<u64>(WORD)?;
            own += 1;
        } else {
            for _ in 0..1000 {
                word.fetch_add(1, Ordering::AcqRel);
            }
            own += 1000;
        }
    }
    let (other, found) = (segment.load::<u64>(ADDED)?, segment.load::<u64>(WORD)?);
    let with = if by_board { "board" } else { "lock" };
    let lost = (own + other).abs_diff(found);
    println!("{}", Figure::Mixed { with: with.into(), own, other, found, lost }.line());
    Ok(())
}

fn add(id: u16, seconds: Duration) -> Outcome<()> {
    let node = Node::open()?;
    let remote = node.import(id, NAME).rights(FULL).open()?;
    let end = Instant::now() + seconds;
    let mut added = 0u64;
    // The owner begins when it sees this, and both continue until the end.
    remote.put64(ADDED, 1)?;
    while Instant::now() < end {
        remote.fetch_inc::<u64>(WORD)?;
        added += 1;
    }
    remote.put64(ADDED, added)?;
    remote.quiet()?;
    remote.put64(DONE, 1)?;
    Ok(remote.quiet()?)
}
