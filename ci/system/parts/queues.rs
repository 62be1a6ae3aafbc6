// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notification queues under siege: senders that do not wait, consumers that are slow, stopped and killed (SPEC I9,
//! I10).

use crate::help::{Start, at_once, with_lab};
use anyhow::{Context, Result, ensure};
use std::time::Duration;
use telegraphos_agent::{Figure, Received};
use telegraphos_cluster::{Cluster, Guest, Running};
use telegraphos_testkit::Scale;

/// One queue, and its senders.
struct Siege<'a> {
    name: &'a str,
    words: u32,
    width: u32,
    quota: u32,
    /// Sending processes, for each of the other nodes.
    processes: &'a [u32],
    /// Elements of each.
    each: u32,
    options: &'a [&'a str],
    limit: Duration,
}

/// Constant overflow, by three nodes: 8 words hold 4 elements.
const SIEGE: Siege<'static> = Siege {
    name: "siege",
    words: 8,
    width: 4,
    quota: 4,
    processes: &[1, 1, 1],
    each: 5000,
    options: &["--slow", "--preempted", "--killed"],
    limit: Duration::from_secs(300),
};

impl Siege<'_> {
    /// What the receiver says at the end, when all went well.
    fn run(&self, to: &Guest, from: &[Guest]) -> Result<Received> {
        let senders: u32 = self.processes.iter().sum();
        let (words, width, quota) = (self.words.to_string(), self.width.to_string(), self.quota.to_string());
        let (senders, each) = (senders.to_string(), self.each.to_string());
        let mut argv = vec!["tg-queue", "receive", self.name, "--words", &words, "--width", &width, "--quota", &quota];
        argv.extend(["--senders", &senders, "--each", &each]);
        argv.extend(self.options);
        let receiver = to.argv(&argv).limit(self.limit).until_begins("queue ")?;
        ensure!(from.len() == self.processes.len(), "{} nodes send", from.len());
        let sent = at_once(from, |guest| self.send(to, guest));
        let received = receiver.wait_for(self.limit)?;
        let output = format!("{}{}", received.stdout, received.stderr);
        ensure!(received.status.success(), "the receiver: {}\n{output}", received.status);
        for line in sent?.into_iter().flatten() {
            println!("  {line}");
        }
        let said = received.stdout.lines().find_map(|line| match Figure::parse(line) {
            Some(Figure::Received(received)) => Some(received),
            _ => None,
        });
        let said = said.with_context(|| format!("the receiver said\n{output}"))?;
        println!("  {}", Figure::Received(said.clone()).line());
        // What the receiver has judged, judged again.
        ensure!(said.received == senders.parse::<u64>()? * u64::from(self.each), "{said:?}");
        ensure!([said.disordered, said.lost, said.doubled, said.foreign] == [0; 4], "{said:?}");
        Ok(said)
    }

    /// All processes of one node, which is not node 0; what they said.
    fn send(&self, to: &Guest, guest: &Guest) -> Result<Vec<String>> {
        let (before, rest) = self.processes.split_at(guest.node() - 1);
        let (first, count) = (before.iter().sum::<u32>(), rest.first().copied().unwrap_or(0));
        let (node, each, width) = (to.node().to_string(), self.each.to_string(), self.width.to_string());
        let start = |process: u32| -> Result<Running> {
            let sender = (first + process).to_string();
            let argv = ["tg-queue", "send", &node, self.name, "--sender", &sender, "--each", &each, "--width", &width];
            Ok(guest.argv(&argv).limit(self.limit).spawn()?)
        };
        let processes = (0..count).map(start).collect::<Result<Vec<_>>>()?;
        let end = |process: Running| -> Result<String> {
            Ok(format!("node {}: {}", guest.node(), process.check(self.limit)?.stdout.trim()))
        };
        processes.into_iter().map(end).collect()
    }
}

/// Node 1 sends so many elements to a queue of node 0 that overflows all the time.
pub(crate) fn one_sender(cluster: &Cluster, name: &str, each: u32) -> Result<()> {
    let (to, from) = (cluster.node(0), &cluster.guests()[1..2]);
    Siege { name, processes: &[1], each, options: &["--slow"], ..SIEGE }.run(to, from).map(drop)
}

pub(crate) fn three_senders_overflow_an_8_word_queue(cluster: &Cluster) -> Result<()> {
    let (to, from) = (cluster.node(0), &cluster.guests()[1..]);
    let said = SIEGE.run(to, from)?;
    ensure!(said.overflows > 500, "it hardly overflowed: {said:?}");
    ensure!(said.kills > 20 && said.stops > 20, "the consumers had a good time: {said:?}");
    ensure!(said.evictions == 0, "no consumer stays inside for long, and yet: {said:?}");
    Ok(())
}

/// Buffers of 64 KiB; full size is 7 senders of 100 000 elements, on the three other nodes.
pub(crate) fn fifty_thousand_through_64_kib_buffers(cluster: &Cluster, scale: Scale) -> Result<()> {
    let (to, from) = (cluster.node(0), &cluster.guests()[1..]);
    let limit = Duration::from_secs(scale.pick(300, 3000));
    let siege = Siege { name: "volume", words: 1 << 14, quota: 2, each: 16_667, limit, ..SIEGE };
    let said = siege.run(to, from)?;
    ensure!(said.kills > 5, "the consumers had a good time: {said:?}");
    if scale == Scale::Full {
        Siege { name: "full", processes: &[3, 2, 2], each: 100_000, quota: 8, ..siege }.run(to, from)?;
    }
    Ok(())
}

/// Wide words, and two virtual processors: handler and consumer may really run at once (SPEC E11).
pub(crate) fn wide_elements_with_two_processors(cluster: &Cluster) -> Result<()> {
    let (to, from) = (cluster.node(0), &cluster.guests()[1..]);
    let said = Siege { name: "wide", width: 8, quota: 3, processes: &[2], each: 1500, ..SIEGE }.run(to, from)?;
    ensure!(said.overflows > 100, "it hardly overflowed: {said:?}");
    ensure!(said.evictions == 0, "no consumer stays inside for long, and yet: {said:?}");
    Ok(())
}

/// Two senders notify one receiver of their messages: by one flag they lose some, in either way of raising it; by flags
/// of each sender's own and by the notification queue they lose none, and `tg-notify` fails otherwise (SPEC section 2).
pub(crate) fn flags_lose_and_queues_do_not(cluster: &Cluster) -> Result<()> {
    let argv = [
        "tg-notify",
        "--nodes",
        "3",
        "--rounds",
        "1",
        "--senders",
        "1,2",
        "--burst",
        "8",
        "--messages",
        "64",
        "--must-lose",
    ];
    let guests = &cluster.guests()[..3];
    let limit = Duration::from_secs(240);
    // One of the ways to take an element is the kernel's.
    let said = with_lab(guests, || at_once(guests, |guest| Ok(guest.argv(&argv).limit(limit).check()?)))?;
    let receiver = said.first().context("no node 0")?;
    for method in ["flag", "flag-look"] {
        let lost = receiver.lines().filter_map(|line| match Figure::parse(line) {
            Some(Figure::Lost { method: of, lost, .. }) if of == method => Some((line, lost)),
            _ => None,
        });
        let lost: Vec<_> = lost.collect();
        lost.iter().for_each(|(line, _)| println!("  {line}"));
        let count: u64 = lost.iter().map(|(_, lost)| lost).sum();
        ensure!(count > 0, "{method} lost nothing:\n{receiver}");
    }
    Ok(())
}
