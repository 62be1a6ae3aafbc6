// SPDX-License-Identifier: MIT OR Apache-2.0
//! All nodes store to one replicated page at once, without any agreement, while readers on every node watch it. Then it
//! is still, and the copies are compared (SPEC I1, I2, I4, I5).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use telegraphos::{Node, NodeId, ReplicaMode, Replicated};
use telegraphos_agent::{Figure, rounded};
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome};
use telegraphos_guest_tests::peers::{Participants, Peers};
use telegraphos_guest_tests::random;
use telegraphos_guest_tests::replica::{self, History, PAGE};

pub(crate) const USAGE: &str = "\
tg-chaos: all nodes store to one replicated page at once, and every node watches it

Usage: tg-chaos NODES [options]      (on nodes 0 to NODES-1 at the same time; node 0 is the home)

  --seconds S      how long [10]
  --mode MODE      counters, invalidate, owner or naive [counters]
  --readers N      threads that watch, on each node [2]
  --words N        words that are watched, and stored to by 8 bytes with values that are never stored twice [32]
  --name NAME      of the segment [chaos]
  --patience S     how long to wait for the others [60]

Behind the watched words the page is stored to by 1, 2, 4 and 8 bytes at random. In the end each node in turn stores to every
word: a copy that did not take all of it still waited for an own store (SPEC item 25). It prints one line:
  {\"chaos\":{\"node\":...,\"mode\":...,\"seconds\":...,\"stores\":...,\"looks\":...,\"changes\":..., and so on:
  again    values that a reader saw come back after others     older   values older than one of the same writer seen before
  stale    loads that gave an older store of this node than its last one
  differ   nodes whose copies are not like this one, when all is quiet and once more a second later
  pending  words of this copy that did not take another node's last store
Exit codes: 0 all right, 1 copies differ, or something came back in a mode in which nothing does, 2 usage, 3 board, driver or peer refused.

Example: telegraphos run --nodes 4 -- tg-chaos 4 --seconds 30
";

struct Options {
    nodes: u32,
    seconds: Duration,
    mode: ReplicaMode,
    readers: usize,
    words: u64,
    name: String,
    patience: Duration,
}

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    let mut options = Options {
        nodes: 0,
        seconds: Duration::from_secs(10),
        mode: ReplicaMode::Counters,
        readers: 2,
        words: 32,
        name: "chaos".into(),
        patience: Duration::from_secs(60),
    };
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "seconds" => options.seconds = line.seconds("--seconds")?,
            "mode" => options.mode = replica::mode(&line.text()?).map_err(Failure::Usage)?,
            "readers" => options.readers = line.number::<u8>("--readers")?.into(),
            "words" => options.words = line.number("--words")?,
            "name" => options.name = line.text()?,
            "patience" => options.patience = line.seconds("--patience")?,
            _ => return Err(cli::unknown(&option)),
        }
    }
    let [nodes] = line.only(["NODES"])?;
    options.nodes = cli::number("NODES", nodes)?;
    cli::must((1..PAGE / 8).contains(&options.words), Failure::Usage, || {
        format!("--words is {}: expected 1 to {}", options.words, PAGE / 8 - 1)
    })?;
    Chaos::begin(&options)?.run()
}

/// What the threads of a node have counted.
#[derive(Default)]
struct Counts {
    stores: u64,
    stale: u64,
    looks: u64,
    changes: u64,
    again: u64,
    older: u64,
}

struct Chaos<'a> {
    options: &'a Options,
    peers: Peers,
    page: Replicated,
    step: std::cell::Cell<u64>,
}

impl Chaos<'_> {
    /// Everybody has a copy.
    fn begin(options: &Options) -> Outcome<Chaos<'_>> {
        let node = Node::open()?;
        let control = format!("{}-control", options.name);
        let peers = Peers::connect(&node, &control, Participants::Count(options.nodes), options.patience)?;
        let name = options.name.as_str();
        let naive = options.mode == ReplicaMode::Naive;
        let page = match node.id() {
            id if naive || id == 0 => {
                Replicated::create(&node, name, PAGE).replica_mode(options.mode).mode(0o606).create()?
            }
            _ => {
                let join = Replicated::join(&node, 0, name).replica_mode(options.mode);
                replica::join_patiently(join, options.patience)?
            }
        };
        let chaos = Chaos { options, peers, page, step: 0.into() };
        chaos.barrier()?;
        if naive {
            chaos.peers.others().try_for_each(|id| chaos.page.join_peer(id))?;
        }
        chaos.barrier()?;
        Ok(chaos)
    }

    fn me(&self) -> NodeId {
        self.peers.me()
    }

    fn barrier(&self) -> Outcome<()> {
        self.step.set(self.step.get() + 1);
        self.peers.barrier(self.step.get())
    }

    fn run(self) -> Outcome<()> {
        let begun = Instant::now();
        let Counts { stores, stale, looks, changes, again: returned, older } = self.storm()?;
        let took = begun.elapsed();
        self.barrier()?;
        // Every copy has the stores of everybody.
        let (sum, differ) = self.compare()?;
        let (again, pending) = match self.options.mode {
            ReplicaMode::Naive => {
                std::thread::sleep(Duration::from_secs(1));
                (self.compare()?.1, 0)
            }
            _ => (differ, self.sweep()?),
        };
        let chaos = Figure::Chaos(telegraphos_agent::Chaos {
            node: self.me(),
            mode: format!("{:?}", self.options.mode).to_lowercase(),
            seconds: rounded(took.as_secs_f64()),
            stores,
            looks,
            changes,
            again: returned,
            older,
            stale,
            differ: [differ, again],
            pending,
            sum: format!("{sum:#018x}"),
        });
        println!("{}", chaos.line());
        // The home stays while others still read.
        self.barrier()?;
        cli::check(differ == 0, || format!("the copies of {differ} other nodes are not like this one"))?;
        cli::check(pending == 0, || format!("{pending} words of this copy do not take others' stores"))?;
        let may = matches!(self.options.mode, ReplicaMode::Owner | ReplicaMode::Naive);
        let wrong = || format!("{older} values came back, {stale} own loads were stale");
        cli::check(older + stale == 0 || may, wrong)
    }

    /// Stores and looks, until the time is over and all copies have the stores.
    fn storm(&self) -> Outcome<Counts> {
        let (end, over) = (Instant::now() + self.options.seconds, AtomicBool::new(false));
        std::thread::scope(|scope| {
            let over = &over;
            // One reads as the library does, behind the own stores; the others look at memory itself.
            let readers: Vec<_> = (0..self.options.readers)
                .map(|number| {
                    let page: &Replicated = &self.page;
                    let options = self.options;
                    scope.spawn(move || watch(page, options, number == 0, over))
                })
                .collect();
            let stored = self.store(end);
            over.store(true, Ordering::Relaxed);
            let panicked = |_| Err(Failure::Check("a reader has panicked".into()));
            let seen: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap_or_else(panicked)).collect();
            seen.into_iter().try_fold(stored?, |all, seen| {
                let Counts { looks, changes, again, older, .. } = seen?;
                let (looks, changes) = (all.looks + looks, all.changes + changes);
                Ok(Counts { looks, changes, again: all.again + again, older: all.older + older, ..all })
            })
        })
    }

    /// How many stores were made, and how many loads behind them were stale.
    fn store(&self, end: Instant) -> Outcome<Counts> {
        let (mut stores, mut stale) = (0, 0);
        let (me, words) = (u64::from(self.me()), self.options.words);
        let seed = random::seed();
        let mut numbers = vec![0u64; words as usize];
        let mut draw = 0u64;
        while Instant::now() < end {
            for _ in 0..64 {
                draw += 1;
                let dice = random::word(seed, draw);
                stores += 1;
                if dice % 4 == 0 {
                    let size = 1 << (dice >> 8 & 3);
                    // Half of them to shared words.
                    let span = if dice & 4 == 0 { 64 } else { PAGE - 8 * words };
                    let at = 8 * words + (dice >> 16) % span / size * size;
                    replica::store(&self.page, at, size as usize, dice >> 3)?;
                    continue;
                }
                let word = (dice >> 16) % words;
                let Some(number) = numbers.get_mut(word as usize) else { continue };
                *number += 1;
                self.page.store(8 * word, replica::value(me, *number))?;
                // The own last store, or a later one of another node (SPEC I4).
                if dice % 16 == 1 {
                    let found: u64 = self.page.load(8 * word)?;
                    let old = replica::parse(found).is_none_or(|(writer, n)| writer == me && n < *number);
                    stale += u64::from(old);
                }
            }
        }
        self.page.quiet_timeout(self.options.patience)?;
        Ok(Counts { stores, stale, ..Counts::default() })
    }

    /// This copy's checksum, and how many others have another.
    fn compare(&self) -> Outcome<(u64, usize)> {
        let sum = replica::digest(&self.page)?;
        self.peers.all.iter().try_for_each(|id| self.peers.send(*id, 0, sum))?;
        self.barrier()?;
        let mut differ = 0;
        for id in &self.peers.all {
            differ += usize::from(self.peers.received(*id, 0)? != sum);
        }
        // What was heard is not to be overwritten before.
        self.barrier()?;
        Ok((sum, differ))
    }

    /// Every node in turn stores to all words; how many of them do not come to this copy, since it waits for an own
    /// store that is never reflected.
    fn sweep(&self) -> Outcome<u64> {
        let mut missing = 0;
        for (turn, id) in self.peers.all.iter().enumerate() {
            let expected = |word: u64| random::word(turn as u64 + 1, word);
            if *id == self.me() {
                (0..PAGE / 8).try_for_each(|word| self.page.store(8 * word, expected(word)))?;
                self.page.quiet_timeout(self.options.patience)?;
            }
            self.barrier()?;
            for word in 0..PAGE / 8 {
                missing += u64::from(self.page.load::<u64>(8 * word)? != expected(word));
            }
            self.barrier()?;
        }
        Ok(missing)
    }
}

/// Watches the words, one after the other, some looks at each.
fn watch(page: &Replicated, options: &Options, ordered: bool, over: &AtomicBool) -> Outcome<Counts> {
    let mut histories = vec![History::new(options.nodes.into()); options.words as usize];
    let mut counts = Counts::default();
    while !over.load(Ordering::Relaxed) {
        for (word, history) in histories.iter_mut().enumerate() {
            for _ in 0..8 {
                let value = match ordered {
                    true => page.load::<u64>(8 * word as u64)?,
                    // SAFETY: a word of the page, aligned; board and processors store to it word by word, atomically.
                    false => unsafe { AtomicU64::from_ptr(page.as_ptr().cast_mut().cast::<u64>().add(word)) }
                        .load(Ordering::Acquire),
                };
                history.look(value)?;
                counts.looks += 1;
            }
        }
    }
    for history in &histories {
        counts.changes += history.changes;
        counts.again += history.again;
        counts.older += history.older;
    }
    Ok(counts)
}
