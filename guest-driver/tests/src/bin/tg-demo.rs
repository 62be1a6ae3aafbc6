// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two guests' processes store into and load from each other's memory; the receiver checks every word.
//!
//! Expected values are random. The sender draws a seed and sends it to the receiver through the window; both derive the
//! values from it, so no other process has them.

use std::process::ExitCode;
use std::time::{Duration, Instant};
use telegraphos::{Node, NodeId, Remote, Segment};
use telegraphos_agent::Figure;
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome, Word};
use telegraphos_guest_tests::peers::{Participants, Peers, import_patiently};
use telegraphos_guest_tests::{random, raw, user};

const USAGE: &str = "\
tg-demo: two guests' processes store into and load from each other's memory

Usage: tg-demo --role A|B --peer NODE [options]      (at the same time on both nodes, one as A, one as B)

  --role A|B            A stores first, B checks; then the other way round
  --peer NODE           the other node's id
  --count N             stores of the long run [100000]
  --loads N             remote loads of each size [500]
  --seed S              makes the data repeatable [random]
  --patience SECONDS    how long to wait for the other [120]
  --inject-corruption   flip one bit of one delivered word before comparing: the check must then fail

Run by root, it becomes user 1000 in the device's group first. It prints one line per check, at the node that compared:
  {\"checked\":{\"from\":0,\"to\":1,\"op\":\"store64\",\"count\":1024,\"ns_per_op\":640,\"ok\":true}}
ns_per_op is what one instruction took the storing or loading process. A wrong word is named with node, offset,
expected and found value.

Exit codes: 0 all right, 1 a word was wrong, 2 usage, 3 board, driver or peer refused.

Example: telegraphos run --nodes 2 -- sh -c 'case $(hostname) in node0) tg-demo --role A --peer 1;; *) tg-demo --role B --peer 0;; esac'
";

/// Bytes of the area of one access size: two pages, so that it has inner and outer page ends.
const AREA: u64 = 8192;
const SIZES: [usize; 4] = [1, 2, 4, 8];
/// After the areas of all sizes: pages for their last words, then the long run.
const PAGES: u64 = 16;
const PAGE: u64 = 4096;
const LAST_WORDS: u64 = 4 * AREA;
const RUN: u64 = LAST_WORDS + PAGES * PAGE;

struct Options {
    first: bool,
    peer: NodeId,
    count: u64,
    loads: u64,
    seed: Option<u64>,
    patience: Duration,
    corrupt: bool,
}

fn options(parser: lexopt::Parser) -> Outcome<Options> {
    let (mut role, mut peer) = (None, None);
    let mut options = Options {
        first: false,
        peer: 0,
        count: 100_000,
        loads: 500,
        seed: None,
        patience: Duration::from_secs(120),
        corrupt: false,
    };
    let mut line = Line::new(parser);
    while let Some(word) = line.next_word()? {
        match word {
            Word::Option(name) => match name.as_str() {
                "role" => role = Some(line.text()?),
                "peer" => peer = Some(line.number("--peer")?),
                "count" => options.count = line.number("--count")?,
                "loads" => options.loads = line.number("--loads")?,
                "seed" => options.seed = Some(line.number("--seed")?),
                "patience" => options.patience = line.seconds("--patience")?,
                "inject-corruption" => options.corrupt = true,
                _ => return Err(cli::unknown(&name)),
            },
            Word::Value(value) => return Err(Failure::Usage(format!("{value:?} is not expected"))),
        }
    }
    options.first = match cli::needed("--role", role)?.as_str() {
        "A" | "a" => true,
        "B" | "b" => false,
        other => return Err(Failure::Usage(format!("--role is {other:?}: expected A or B"))),
    };
    options.peer = cli::needed("--peer", peer)?;
    Ok(options)
}

fn main() -> ExitCode {
    cli::main("tg-demo", USAGE, |parser| Demo::run(options(parser)?))
}

/// One set of stores: at which offset and of which size the one number `index` is.
#[derive(Clone, Copy)]
enum Pattern {
    /// Every aligned offset of an area, in order.
    Size(usize),
    /// The last word of each page, of every size: the larger first, then the smaller over its end.
    LastWords,
    /// The long run: each store to another word.
    Run(u64),
}

impl Pattern {
    fn name(self) -> String {
        match self {
            Pattern::Size(size) => format!("store{}", 8 * size),
            Pattern::LastWords => "store-last-words".into(),
            Pattern::Run(_) => "store-run".into(),
        }
    }

    fn count(self) -> u64 {
        match self {
            Pattern::Size(size) => AREA / size as u64,
            Pattern::LastWords => PAGES * 4,
            Pattern::Run(count) => count,
        }
    }

    /// Offset and size of a store.
    fn at(self, index: u64) -> (u64, usize) {
        match self {
            Pattern::Size(size) => (size.trailing_zeros() as u64 * AREA + index * size as u64, size),
            Pattern::LastWords => {
                let size = SIZES[(index / PAGES % 4) as usize];
                // Sizes have pages of their own, so that no store hides another.
                let page = (index % PAGES) / 4 * 4 + index / PAGES % 4;
                (LAST_WORDS + (page + 1) * PAGE - size as u64 - (index % 4) * 8, size)
            }
            Pattern::Run(_) => (RUN + index * 8, 8),
        }
    }
}

struct Demo {
    options: Options,
    peers: Peers,
    mine: Segment,
    remote: Remote,
    epoch: u64,
    wrong: u64,
}

impl Demo {
    fn run(options: Options) -> Outcome<()> {
        user::leave_root()?;
        let node = Node::open()?;
        if node.id() == options.peer {
            return Err(Failure::Usage(format!("--peer is {}: that is this node; expected the other one", node.id())));
        }
        println!("INFO node={} uid={} pid={}", node.id(), user::uid(), std::process::id());
        let mine = node.export("demo-data", RUN + options.count.max(1) * 8).create()?;
        let peers = Peers::connect(&node, "demo-control", Participants::With(options.peer), options.patience)?;
        let remote = import_patiently(&node, options.peer, "demo-data", options.patience)?;
        if remote.size() != mine.size() {
            return Err(Failure::Refused(format!(
                "node {} has a segment of {} bytes, this one of {}: give both the same --count",
                options.peer,
                remote.size(),
                mine.size()
            )));
        }
        let mut demo = Demo { options, peers, mine, remote, epoch: 0, wrong: 0 };
        for sending in [demo.options.first, !demo.options.first] {
            demo.direction(sending)?;
        }
        demo.step()?;
        cli::check(demo.wrong == 0, || format!("{} words were wrong", demo.wrong))
    }

    fn step(&mut self) -> Outcome<()> {
        self.epoch += 1;
        self.peers.barrier(self.epoch)
    }

    /// One side stores, the other compares what is in its own memory; then the first loads what the other wrote there.
    fn direction(&mut self, sending: bool) -> Outcome<()> {
        let (me, peer) = (self.peers.me(), self.options.peer);
        let fresh = self.options.seed.map_or_else(random::seed, |s| random::derive(s, u64::from(me)));
        self.peers.send(peer, 0, fresh)?;
        self.step()?;
        let seed = if sending { fresh } else { self.peers.received(peer, 0)? };

        let sizes = SIZES.into_iter().map(Pattern::Size);
        for (number, pattern) in sizes.chain([Pattern::LastWords, Pattern::Run(self.options.count)]).enumerate() {
            let seed = random::derive(seed, number as u64);
            if sending {
                let took = self.store(pattern, seed)?;
                self.peers.send(peer, 1, took.as_nanos() as u64)?;
                self.step()?;
            } else {
                self.step()?;
                let took = self.peers.received(peer, 1)?;
                self.compare(pattern, seed, took)?;
            }
            // The sender may go on only when the receiver has looked.
            self.step()?;
        }

        // The owner writes its own memory; the other loads it.
        let seed = random::derive(seed, 100);
        let loads = self.options.loads.min(AREA / 8);
        if !sending {
            for index in 0..AREA / 8 {
                self.mine.store(index * 8, random::word(seed, index))?;
            }
        }
        self.step()?;
        if sending {
            for size in SIZES {
                self.load(size, loads, seed)?;
            }
        }
        self.step()
    }

    /// Stores through a bare pointer; what an instruction took is measured until the last one returned, before any of
    /// them needs to have arrived.
    fn store(&self, pattern: Pattern, seed: u64) -> Outcome<Duration> {
        let window = self.remote.as_ptr();
        let begun = Instant::now();
        for index in 0..pattern.count() {
            let (offset, size) = pattern.at(index);
            // SAFETY: every offset of a pattern lies, aligned, within the segment, whose size both sides have compared.
            unsafe { raw::store_size(window, offset, size, random::word(seed, index)) };
        }
        let took = begun.elapsed();
        self.remote.quiet()?;
        Ok(took)
    }

    /// Compares this node's own memory.
    fn compare(&mut self, pattern: Pattern, seed: u64, took: u64) -> Outcome<()> {
        if self.options.corrupt && matches!(pattern, Pattern::Run(_)) {
            let (offset, _) = pattern.at(random::word(seed, u64::MAX) % pattern.count());
            let word: u64 = self.mine.load(offset)?;
            self.mine.store(offset, word ^ 1)?;
            println!("INFO flipped a bit of the word at offset {offset:#x} of node {}", self.peers.me());
        }
        let mut wrong = 0;
        for index in 0..pattern.count() {
            let (offset, size) = pattern.at(index);
            let expected = raw::masked(random::word(seed, index), size);
            let found = match size {
                1 => u64::from(self.mine.load::<u8>(offset)?),
                2 => u64::from(self.mine.load::<u16>(offset)?),
                4 => u64::from(self.mine.load::<u32>(offset)?),
                _ => self.mine.load::<u64>(offset)?,
            };
            wrong += self.differs(self.peers.me(), offset, size, expected, found, wrong);
        }
        self.result(self.options.peer, self.peers.me(), &pattern.name(), pattern.count(), took, wrong);
        Ok(())
    }

    /// Loads from the other's memory, with the last word of the page among them.
    fn load(&mut self, size: usize, loads: u64, seed: u64) -> Outcome<()> {
        let window = self.remote.as_ptr();
        let (mut wrong, mut took) = (0, Duration::ZERO);
        for number in 0..loads {
            // From the end of the area backwards.
            let offset = AREA - (number + 1) * size as u64;
            let begun = Instant::now();
            // SAFETY: it lies, aligned, in the area, which is within the segment.
            let found = unsafe { raw::load_size(window, offset, size) };
            took += begun.elapsed();
            let word = random::word(seed, offset / 8);
            let expected = raw::masked(word >> (8 * (offset % 8)), size);
            wrong += self.differs(self.options.peer, offset, size, expected, found, wrong);
        }
        let name = format!("load{}", 8 * size);
        self.result(self.options.peer, self.peers.me(), &name, loads, took.as_nanos() as u64, wrong);
        Ok(())
    }

    fn differs(&self, node: NodeId, offset: u64, size: usize, expected: u64, found: u64, before: u64) -> u64 {
        if expected == found {
            return 0;
        }
        // The first few are enough.
        if before < 8 {
            let width = 2 + 2 * size;
            eprintln!("MISMATCH node={node} offset={offset:#x} expected={expected:#0width$x} found={found:#0width$x}");
        }
        1
    }

    fn result(&mut self, from: NodeId, to: NodeId, op: &str, count: u64, took: u64, wrong: u64) {
        let ns_per_op = took.checked_div(count).unwrap_or(0);
        let checked = Figure::Checked { from, to, op: op.into(), count, ns_per_op, ok: wrong == 0 };
        println!("{}", checked.line());
        self.wrong += wrong;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_store_of_a_pattern_hides_another() {
        for pattern in SIZES.map(Pattern::Size).into_iter().chain([Pattern::LastWords, Pattern::Run(1000)]) {
            let mut bytes = std::collections::BTreeSet::new();
            let mut page_ends = [false; 4];
            for index in 0..pattern.count() {
                let (offset, size) = pattern.at(index);
                assert_eq!(offset % size as u64, 0);
                assert!(offset + size as u64 <= RUN + 8000);
                page_ends[size.trailing_zeros() as usize] |= (offset + size as u64) % PAGE == 0;
                for byte in offset..offset + size as u64 {
                    assert!(bytes.insert(byte), "{} {index}: byte {byte:#x}", pattern.name());
                }
            }
            if matches!(pattern, Pattern::LastWords) {
                assert_eq!(page_ends, [true; 4]);
            }
        }
    }
}
