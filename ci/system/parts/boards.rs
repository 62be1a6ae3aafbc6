// SPDX-License-Identifier: MIT OR Apache-2.0
//! Boards and a fabric as processes, without virtual machines: what can be counted exactly, and the command that
//! measures it.

use crate::command;
use crate::help::{ends, refused};
use anyhow::{Context, Result, ensure};
use telegraphos_cluster::client::{self, ClientError, Guest, MEMORY, Pages};
use telegraphos_cluster::{Boards, LinkCount, PacketKind, ProgressMode, Settings};
use telegraphos_wire::admin::COUNTERS;
use telegraphos_wire::regs::Register;
use telegraphos_wire::{Rights, Status};

const RW: Rights = Rights(Rights::READ.0 | Rights::WRITE.0);

/// Makes page 0 of the first node a home, with a copy at each other.
fn replicate(boards: &mut Boards, nodes: &[usize]) -> Result<()> {
    let mut home: Option<Pages> = None;
    for node in nodes {
        let own = boards.ask(*node, |guest| guest.grant(*node as u16, 0, 1, MEMORY, RW))?;
        let home = *home.get_or_insert(own);
        boards.ask(*node, |guest| {
            guest.replicate(0, COUNTERS, &home)?;
            guest.import(0, &own, RW)
        })?;
    }
    Ok(())
}

/// Stores these to the words of the own copy of page 0, and waits until everybody has them.
fn store(guest: &mut Guest, node: usize, words: u64, values: std::ops::Range<u64>) -> Result<Status, ClientError> {
    for value in values {
        let place = client::window(node as u16, 0, 8 * (value % words));
        guest.client.store(client::WINDOW, place, &value.to_le_bytes())?;
    }
    guest.quiet()
}

fn copies_are_equal(boards: &mut Boards, nodes: &[usize]) -> Result<()> {
    let mut pages = Vec::new();
    for node in nodes {
        let mut page = vec![0; 1 << 16];
        boards.ask(*node, |guest| guest.read(MEMORY, &mut page))?;
        pages.push(page);
    }
    for (node, page) in nodes.iter().zip(&pages) {
        ensure!(*page == pages[0], "the copy of node {node} is not that of node {}", nodes[0]);
    }
    Ok(())
}

/// SPEC item 23: the home and two copies store at the same time to the same words. Of each store one packet crosses the
/// link of the home, and one that of each copy; without the switch's help as many cross the home's as there are copies.
pub(crate) fn one_packet_on_each_link() -> Result<()> {
    const NODES: usize = 9;
    const EACH: u64 = 300;
    const COPIES: u64 = 6;
    for by_switch in [true, false] {
        let option = |_| vec![("fanout-by-switch".to_owned(), by_switch.to_string())];
        let mut boards = Boards::start(&Settings::default(), ProgressMode::Silent, NODES, true, option)?;
        // Two nodes have nothing to do with it.
        let nodes = [3, 0, 1, 4, 5, 7, 8];
        replicate(&mut boards, &nodes)?;
        // Behind it, nothing of the beginning is on its way.
        boards.ask(nodes[0], |guest| store(guest, nodes[0], 1, 1..2))?;
        let before = boards.links();
        let writers = [3, 4, 8];
        let quiet: Vec<_> = std::thread::scope(|scope| {
            let all = boards.guests_mut().iter_mut().enumerate();
            let threads: Vec<_> = all
                .filter(|(node, _)| writers.contains(node))
                .map(|(node, guest)| {
                    let first = 1000 * (node as u64 + 1);
                    scope.spawn(move || store(guest, node, 5, first..first + EACH))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        });
        for status in quiet {
            let status = status.map_err(|_| anyhow::anyhow!("a writer panicked"))??;
            ensure!(status == Status::Ok, "a writer's stores ended with {status}");
        }
        let links: Vec<LinkCount> = boards.links().iter().zip(&before).map(|(now, before)| now.since(before)).collect();
        let all = EACH * writers.len() as u64;
        let from_copies = EACH * (writers.len() as u64 - 1);
        for (node, link) in links.iter().enumerate() {
            let (home, copy) = (node == nodes[0], nodes[1..].contains(&node));
            let writes = if copy && writers.contains(&node) { EACH } else { 0 };
            let of = |of_home: u64, of_copy: u64| {
                if home {
                    of_home
                } else if copy {
                    of_copy
                } else {
                    0
                }
            };
            for (kind, out, back) in [
                (PacketKind::Reflected, of(if by_switch { all } else { all * COPIES }, 0), of(0, all)),
                (PacketKind::CopyAck, of(0, all), of(all * COPIES, 0)),
                (PacketKind::Update, writes, of(from_copies, 0)),
                (PacketKind::WriteAck, of(from_copies, 0), writes),
                (PacketKind::Write, 0, 0),
                (PacketKind::Other, 0, 0),
            ] {
                let found = (link.sent(kind), link.received(kind));
                ensure!(
                    found == (out, back),
                    "fan-out by switch {by_switch}: {kind:?} on the link of node {node}: {found:?}, expected {out} out and \
                     {back} in"
                );
            }
        }
        copies_are_equal(&mut boards, &nodes)?;
    }
    Ok(())
}

/// SPEC item 26: with one counter stores to different words wait for each other; with as many as words they never do;
/// in both cases all of them arrive.
pub(crate) fn counters_stall_and_lose_nothing() -> Result<()> {
    let option = |node| match node {
        1 => vec![("pending-writes".to_owned(), "1".to_owned())],
        _ => Vec::new(),
    };
    let mut boards = Boards::start(&Settings::default(), ProgressMode::Silent, 3, false, option)?;
    let nodes = [0, 1, 2];
    replicate(&mut boards, &nodes)?;
    for (node, first, may_stall) in [(1, 1000, true), (2, 2000, false)] {
        let status = boards.ask(node, |guest| store(guest, node, 32, first..first + 640))?;
        ensure!(status == Status::Ok, "stores of node {node} ended with {status}");
        let stalls = boards.ask(node, |guest| guest.client.register(Register::CountCounterStalls))?;
        ensure!((stalls > 0) == may_stall, "node {node}: {stalls} stalls");
        copies_are_equal(&mut boards, &nodes)?;
        for word in 0..32 {
            let found = boards.ask(0, |guest| guest.load64(MEMORY + 8 * word))?;
            // The last of its 20 stores.
            let expected = (first..first + 640).rev().find(|value| value % 32 == word).context("no such word")?;
            ensure!(found == expected, "word {word} is {found}: expected {expected}");
        }
    }
    Ok(())
}

pub(crate) fn bench_shows_its_tables() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let plot = dir.path().join("costs.svg");
    let mut bench = command(&["bench", "--replicas", "--rounds", "2", "--nodes", "6", "--plot"]);
    let out = ends(bench.arg(&plot), 0)?.out;
    for part in ["until it is quiet", "packets for one update", "stalls of 100 stores", "16 counters", "plotted in"] {
        ensure!(out.contains(part), "{part:?} is not in\n{out}");
    }
    let rows: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
    for row in [["home,", "out", "1", "1", "1"], ["home,", "out", "1", "2", "4"]] {
        ensure!(rows.contains(&row.to_vec()), "{row:?} is not in\n{out}");
    }
    let svg = std::fs::read_to_string(&plot)?;
    ensure!(svg.starts_with("<svg") && svg.contains("\nhome, switch\n"), "no picture: {svg}");
    // Without the switch's help there are more packets than there must be, which it says.
    let bench = command(&["bench", "--replicas", "--rounds", "2", "--nodes", "6", "--hib", "fanout-by-switch=false"]);
    let part = "Reflected packets on the link of node 0 for 64 updates: 256 out and 0 in, expected 64 and 0";
    refused(bench, 1, &[part])?;
    for (arguments, part) in [(["--nodes", "3"], "nodes is 3: expected 6 to 17"), (["--notify", "-q"], "--notify")] {
        refused(command(&[&["bench", "--replicas"], &arguments[..]].concat()), 2, &[part])?;
    }
    Ok(())
}
