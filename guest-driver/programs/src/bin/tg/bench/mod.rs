// SPDX-License-Identifier: MIT OR Apache-2.0
//! What operations of the board cost, and what others offer in the same guests.

mod bare;
mod copies;
mod doorbell;
mod modules;
mod network;
mod notifying;
mod own;
mod pair;
mod partner;
mod shared;
mod wires;

use bare::Bare;
use pair::Lead;
use partner::partner;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use telegraphos::{FULL, Node};
use telegraphos_agent::{Figure, bench::slot, rounded};
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome};
use telegraphos_guest_tests::peers::{Participants, Peers};

pub(crate) const USAGE: &str = "\
tg-bench: measures operations of the board, and other devices of the same guest where QEMU has them

Usage: tg-bench [options]      (on every node at the same time; the lowest measures, the second answers, others wait)

  --nodes N            wait for nodes 0 to N-1 [every node that is in the cluster now]
  --rounds N           rounds; in each, everything is measured in turn [40]
  --stream N           stores in a stream [10000]
  --singles N          repetitions of what is measured one by one [20]
  --pings N            round trips of each kind [20]
  --no-baseline        without pci-testdev
  --few-copies         block copies of 4 KiB, 1 MiB and 16 MiB only, not of 64 bytes to 16 MiB
  --patience SECONDS   how long to wait for the others [180]

Needs root (resource files of devices) and QEMU's `-device pci-testdev`. It prints after each round
  {\"round\":{\"round\":1,\"ns\":{\"load_remote\":...,...}}}     nanoseconds, by operation
and for what cannot be measured, or not as it should be,
  {\"mark\":{\"op\":\"udp_roundtrip\",\"why\":...}}
Exit codes: 0 done, 2 usage, 3 board, driver or peer refused.

Example: telegraphos bench
";

struct Options {
    participants: Participants,
    rounds: u32,
    stream: u64,
    singles: u64,
    pings: u64,
    few_copies: bool,
    baseline: bool,
    patience: Duration,
}

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    let mut options = Options {
        participants: Participants::Present,
        rounds: 40,
        stream: 10_000,
        singles: 20,
        pings: 20,
        few_copies: false,
        baseline: true,
        patience: Duration::from_secs(180),
    };
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "nodes" => options.participants = Participants::Count(line.number("--nodes")?),
            "rounds" => options.rounds = line.number("--rounds")?,
            "stream" => options.stream = line.number("--stream")?,
            "singles" => options.singles = line.number("--singles")?,
            "pings" => options.pings = line.number("--pings")?,
            "few-copies" => options.few_copies = true,
            "no-baseline" => options.baseline = false,
            "patience" => options.patience = line.seconds("--patience")?,
            _ => return Err(cli::unknown(&option)),
        }
    }
    line.only([])?;
    for (what, value) in [("stream", options.stream), ("singles", options.singles), ("pings", options.pings)] {
        cli::must(value != 0, Failure::Usage, || format!("--{what} is 0: expected 1 or more"))?;
    }
    let node = Node::open()?;
    pin();
    let data = node.export("bench-data", copies::DATA).owner(FULL).others(FULL).create()?;
    let peers = Peers::connect(&node, "bench-control", options.participants, options.patience)?;
    let (lead, second) = (peers.all[0], peers.all.get(1).copied());
    let second = second.ok_or_else(|| Failure::Refused("this is the only node: expected another one".into()))?;
    let place = peers.all.iter().position(|id| *id == peers.me()).filter(|place| *place < 2);
    let Some(place) = place else {
        peers.barrier(1)?;
        return pair::wait_for(&peers, lead, pair::END);
    };
    let exports = wires::Exports::new(&node)?;
    let queues = notifying::Exports::new(&node)?;
    let other = if place == 0 { second } else { lead };
    let prepared = wires::prepare(peers.me(), other, place);
    peers.barrier(1)?;
    let mut wires = wires::all(&exports, &node, other, place, prepared, options.patience)?;
    if place == 1 {
        return partner(&peers, lead, &mut wires, &queues);
    }
    let mut lead = Lead::new(&peers, second);
    let result = measure(&options, &mut lead, &mut wires, &data);
    // Whatever has happened: the others end.
    let ended = lead.end();
    result.and(ended)
}

/// Keeps to one processor, if the guest has several.
fn pin() {
    let mut set = rustix::thread::CpuSet::new();
    set.set(0);
    if let Err(e) = rustix::thread::sched_setaffinity(None, &set) {
        mark("", &format!("not pinned to a processor of the guest: {e}"));
    }
}

fn mark(op: &str, why: &str) {
    println!("{}", Figure::Mark { op: op.into(), why: why.into() }.line());
}

/// The values of a round, and what is not tried any more.
struct Round<'a> {
    ns: BTreeMap<String, f64>,
    excluded: &'a mut BTreeSet<&'static str>,
}

impl Round<'_> {
    /// Measures something that has a name; if it fails it is marked, and left out from then on.
    fn part(&mut self, name: &'static str, f: impl FnOnce(&mut BTreeMap<String, f64>) -> Outcome<()>) {
        if self.excluded.contains(name) {
            return;
        }
        if let Err(why) = f(&mut self.ns) {
            self.exclude(name, &why.to_string());
        }
    }

    /// What something is measured with; none if it is left out.
    fn usable<T>(&mut self, name: &'static str, with: Outcome<T>) -> Option<T> {
        if self.excluded.contains(name) {
            return None;
        }
        with.inspect_err(|why| self.exclude(name, &why.to_string())).ok()
    }

    fn exclude(&mut self, name: &'static str, why: &str) {
        if self.excluded.insert(name) {
            mark(name, why);
        }
    }
}

fn measure(
    options: &Options,
    lead: &mut Lead<'_>,
    wires: &mut wires::Wires<'_>,
    data: &telegraphos::Segment,
) -> Outcome<()> {
    let mut own = own::Own::open(options, lead.node(), lead.partner())?;
    let mut notifying = notifying::Lead::open(lead.node(), lead.partner(), options.patience)?;
    let mut bare = Bare::open(slot::BARE, wires.shared());
    let mut by_crate = Bare::open(slot::CRATE, None);
    let sources = copies::Sources::new(lead.node(), data)?;
    eprintln!("tg-bench: 16 MiB of registered memory in {}", sources.runs());
    let mut excluded = BTreeSet::new();
    // The first round pays for page faults and caches.
    for round in 0..=options.rounds {
        let mut values = Round { ns: BTreeMap::new(), excluded: &mut excluded };
        own.round(options, &mut values.ns)?;
        bare.round(&mut values, options);
        by_crate.crate_round(&mut values, options);
        wires.local_round(&own.direct, &mut values);
        copies::round(options, &own.remote, &sources, &mut bare, &mut values)?;
        notifying.round(lead, &mut values)?;
        wires.round(lead, options.pings, &mut values)?;
        let ns = values.ns.into_iter().filter(|(_, ns)| ns.is_finite()).map(|(op, ns)| (op, rounded(ns))).collect();
        if round > 0 {
            println!("{}", Figure::Round { round, ns }.line());
        }
    }
    Ok(())
}

/// Nanoseconds of each of `count` since `begun`.
fn nanoseconds(begun: Instant, count: u64) -> f64 {
    begun.elapsed().as_nanos() as f64 / count as f64
}

/// The same of so many calls in a row that may fail.
fn timed(count: u64, mut call: impl FnMut() -> telegraphos::Result<()>) -> Outcome<f64> {
    let begun = Instant::now();
    for _ in 0..count {
        call()?;
    }
    Ok(nanoseconds(begun, count))
}

/// Nanoseconds of each of `count` calls in a row.
fn batch(count: u64, access: impl FnMut(u64)) -> f64 {
    let begun = Instant::now();
    (0..count).for_each(access);
    nanoseconds(begun, count)
}
