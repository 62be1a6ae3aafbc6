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
    if !(1..PAGE / 8).contains(&options.words) {
        return Err(Failure::Usage(format!("--words is {}: expected 1 to {}", options.words, PAGE / 8 - 1)));
    }
    Chaos::begin(&options)?.run()
}

/// What the threads of a node have counted.
#[derive(Default)]
struct Counts {
    stores: AtomicU64,
    stale: AtomicU64,
    looks: AtomicU64,
    changes: AtomicU64,
    again: AtomicU64,
    older: AtomicU64,
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

fn read(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

struct Chaos<'a> {
    options: &'a Options,
    peers: Peers,
    page: Replicated,
    counts: Counts,
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
        let chaos = Chaos { options, peers, page, counts: Counts::default(), step: 0.into() };
        chaos.barrier()?;
        if naive {
            let others = chaos.peers.all.iter().filter(|id| **id != chaos.me());
            others.copied().try_for_each(|id| chaos.page.join_peer(id))?;
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
        self.storm()?;
        let took = begun.elapsed();
        self.barrier()?;
        // Every copy has the stores of everybody.
        let (sum, differ) = self.compare()?;
        let again = match self.options.mode {
            ReplicaMode::Naive => {
                std::thread::sleep(Duration::from_secs(1));
                self.compare()?.1
            }
            _ => differ,
        };
        let pending = match self.options.mode {
            ReplicaMode::Naive => 0,
            _ => self.sweep()?,
        };
        let Counts { stores, stale, looks, changes, again: returned, older } = &self.counts;
        let chaos = Figure::Chaos(telegraphos_agent::Chaos {
            node: self.me(),
            mode: format!("{:?}", self.options.mode).to_lowercase(),
            seconds: rounded(took.as_secs_f64()),
            stores: read(stores),
            looks: read(looks),
            changes: read(changes),
            again: read(returned),
            older: read(older),
            stale: read(stale),
            differ: [differ, again],
            pending,
            sum: format!("{sum:#018x}"),
        });
        println!("{}", chaos.line());
        // The home stays while others still read.
        self.barrier()?;
        cli::check(differ == 0, || format!("the copies of {differ} other nodes are not like this one"))?;
        cli::check(pending == 0, || format!("{pending} words of this copy do not take others' stores"))?;
        let back = read(older) + read(stale);
        let may = matches!(self.options.mode, ReplicaMode::Owner | ReplicaMode::Naive);
        cli::check(back == 0 || may, || {
            format!("{} values came back, {} own loads were stale", read(older), read(stale))
        })
    }

    /// Stores and looks, until the time is over and all copies have the stores.
    fn storm(&self) -> Outcome<()> {
        let (end, over) = (Instant::now() + self.options.seconds, AtomicBool::new(false));
        std::thread::scope(|scope| {
            let over = &over;
            // One reads as the library does, behind the own stores; the others look at memory itself.
            let readers: Vec<_> = (0..self.options.readers)
                .map(|number| {
                    let page: &Replicated = &self.page;
                    let (options, counts) = (self.options, &self.counts);
                    scope.spawn(move || watch(page, options, counts, number == 0, over))
                })
                .collect();
            let stored = self.store(end);
            over.store(true, Ordering::Relaxed);
            let seen = readers.into_iter().try_for_each(|reader| {
                reader.join().unwrap_or_else(|_| Err(Failure::Check("a reader has panicked".into())))
            });
            stored.and(seen)
        })
    }

    fn store(&self, end: Instant) -> Outcome<()> {
        let (me, words) = (u64::from(self.me()), self.options.words);
        let seed = random::seed();
        let mut numbers = vec![0u64; words as usize];
        let mut draw = 0u64;
        while Instant::now() < end {
            for _ in 0..64 {
                draw += 1;
                let dice = random::word(seed, draw);
                add(&self.counts.stores, 1);
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
                    if replica::parse(found).is_none_or(|(writer, n)| writer == me && n < *number) {
                        add(&self.counts.stale, 1);
                    }
                }
            }
        }
        Ok(self.page.quiet_timeout(self.options.patience)?)
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
fn watch(page: &Replicated, options: &Options, counts: &Counts, ordered: bool, over: &AtomicBool) -> Outcome<()> {
    let mut histories = vec![History::new(options.nodes.into()); options.words as usize];
    let mut looks = 0u64;
    let mut seen = || -> Outcome<()> {
        while !over.load(Ordering::Relaxed) {
            for (word, history) in histories.iter_mut().enumerate() {
                for _ in 0..8 {
                    let value = match ordered {
                        true => page.load::<u64>(8 * word as u64)?,
                        // SAFETY: a word of the page, aligned; board and processors store to it word by word,
                        // atomically.
                        false => unsafe { AtomicU64::from_ptr(page.as_ptr().cast_mut().cast::<u64>().add(word)) }
                            .load(Ordering::Acquire),
                    };
                    history.look(value).map_err(Failure::Check)?;
                    looks += 1;
                }
            }
        }
        Ok(())
    };
    let result = seen();
    add(&counts.looks, looks);
    for history in &histories {
        add(&counts.changes, history.changes);
        add(&counts.again, history.again);
        add(&counts.older, history.older);
    }
    result
}
