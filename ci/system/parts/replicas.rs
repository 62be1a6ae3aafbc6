// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replicated pages: chaos on one of them, links that are held at the worst moment, and homes that go away (SPEC items
//! 23 to 28, E19, I2, I4, I5).

use crate::help::{BUS, Held, LIMIT, Start, at_once, plug_anew, register};
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::time::Duration;
use telegraphos_agent::{Chaos, Figure};
use telegraphos_cluster::{Cluster, Guest, Running};
use telegraphos_testkit::Scale;
use telegraphos_wire::regs::Register;

/// `tg-chaos` on these guests; what each said, and whether it ended well.
fn chaos(guests: &[Guest], seconds: u64, options: &[&str]) -> Result<Vec<(Chaos, bool)>> {
    let (nodes, seconds) = (guests.len().to_string(), seconds.to_string());
    let mut argv = vec!["tg-chaos", &nodes, "--seconds", &seconds];
    argv.extend(options);
    at_once(guests, |guest| {
        let output = guest.argv(&argv).limit(Duration::from_secs(240)).run()?;
        let said = output.stdout.lines().find_map(|line| match Figure::parse(line) {
            Some(Figure::Chaos(chaos)) => Some(chaos),
            _ => None,
        });
        let said = said.with_context(|| format!("node {} said {}{}", guest.node(), output.stdout, output.stderr))?;
        println!("  {}", Figure::Chaos(said.clone()).line());
        Ok((said, output.status.success()))
    })
}

fn sum(said: &[(Chaos, bool)], of: impl Fn(&Chaos) -> u64) -> u64 {
    said.iter().map(|(chaos, _)| of(chaos)).sum()
}

fn stalls(guests: &[Guest]) -> Result<u64> {
    guests.iter().map(|guest| register(guest, Register::CountCounterStalls)).sum()
}

/// All nodes store to one page without agreement, and no reader ever sees a value come back (I5) nor an older own one
/// (I4); then all copies are equal and no counter is left (I2).
pub(crate) fn stays_coherent(guests: &[Guest], mode: &str, seconds: u64) -> Result<u64> {
    let before = stalls(guests)?;
    let said = chaos(guests, seconds, &["--mode", mode])?;
    for (chaos, well) in &said {
        let Chaos { again, older, stale, pending, differ, stores, changes, .. } = chaos;
        for (name, count) in [("again", again), ("older", older), ("stale", stale), ("pending", pending)] {
            ensure!(*count == 0, "{name} in {chaos:?}");
        }
        ensure!(*differ == [0, 0], "the copies differ: {chaos:?}");
        ensure!(*well, "tg-chaos failed though all is well: {chaos:?}");
        ensure!(*stores > 100 && *changes > 100, "too little chaos: {chaos:?}");
    }
    let stalls = stalls(guests)? - before;
    println!(
        "  {mode}: {} stores by {} nodes in {seconds} s, {} changes seen by readers in {} looks; {stalls} stores waited for a counter",
        sum(&said, |chaos| chaos.stores),
        guests.len(),
        sum(&said, |chaos| chaos.changes),
        sum(&said, |chaos| chaos.looks)
    );
    Ok(stalls)
}

pub(crate) fn chaotic_stores_to_one_page(cluster: &Cluster, scale: Scale) -> Result<()> {
    stays_coherent(cluster.guests(), "counters", scale.pick(10, 30))?;
    // Where each store makes the copies invalid.
    stays_coherent(cluster.guests(), "invalidate", scale.pick(3, 10))?;
    Ok(())
}

/// One counter of pending writes: stores wait for it, and everything else is as before (SPEC item 26).
pub(crate) fn one_counter_stalls_and_is_right(cluster: &Cluster) -> Result<()> {
    let stalls = stays_coherent(cluster.guests(), "counters", 5)?;
    ensure!(stalls > 100, "only {stalls} stores waited for the one counter");
    Ok(())
}

/// A process of a guest with a copy, used by hand.
struct Copy {
    process: Running,
    node: usize,
}

impl Copy {
    /// The home, or a copy of another node's.
    fn of(guest: &Guest, home: Option<usize>, name: &str, mode: &str) -> Result<Copy> {
        let home = home.map_or("here".into(), |id| id.to_string());
        let process =
            guest.argv(&["tg-replica", &home, name, "--mode", mode]).keep_input_open().until_begins("replicated")?;
        Ok(Copy { process, node: guest.node() })
    }

    fn say(&mut self, command: &str) -> Result<()> {
        Ok(self.process.write(&format!("{command}\n"))?)
    }

    fn receive(&mut self) -> Result<String> {
        Ok(self.process.wait_for_line(LIMIT, |_| true)?)
    }

    fn ask(&mut self, command: &str) -> Result<String> {
        self.say(command)?;
        self.receive()
    }

    fn must(&mut self, command: &str, expected: &str) -> Result<()> {
        let node = self.node;
        let said = self.ask(command).with_context(|| format!("node {node}: {command}"))?;
        ensure!(said == expected, "node {node}: {command}: {said}: expected {expected}");
        Ok(())
    }
}

/// Two nodes store to one word while the network between them is held: each has its own value when the network
/// continues.
///
/// Where they multicast themselves, each then gets the other's, and the copies differ for good; with a home they do not
/// (SPEC item 24).
pub(crate) fn naive_copies_diverge(cluster: &Cluster, scale: Scale) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(1));
    let race = |name: &str, mode: &str| -> Result<[String; 2]> {
        let naive = mode == "naive";
        let home = (!naive).then_some(0);
        let mut one = Copy::of(a, None, name, mode)?;
        let mut two = Copy::of(b, home, name, mode)?;
        if naive {
            one.must("peer 1", "joined")?;
            two.must("peer 0", "joined")?;
        }
        let held = Held::fabric(cluster)?;
        one.must("store 0 0x1111", "stored")?;
        two.must("store 0 0x2222", "stored")?;
        // Both boards have taken them.
        one.must("settle", "settled")?;
        two.must("settle", "settled")?;
        drop(held);
        one.must("quiet 30", "quiet")?;
        two.must("quiet 30", "quiet")?;
        let first = [one.ask("load 0")?, two.ask("load 0")?];
        telegraphos_cluster::sleep(Duration::from_millis(500))?;
        let later = [one.ask("load 0")?, two.ask("load 0")?];
        println!("  {mode}: node 0 has {}, node 1 has {}", later[0], later[1]);
        ensure!(first == later, "{mode}: first {first:?}, half a second later {later:?}");
        Ok(later)
    };
    for round in 0..3 {
        let found = race(&format!("naive-{round}"), "naive")?;
        ensure!(found == ["0x2222", "0x1111"], "naive copies hold {found:?}: expected each the other's value");
        for mode in ["owner", "counters"] {
            let found = race(&format!("{mode}-{round}"), mode)?;
            ensure!(found[0] == found[1], "{mode}: the copies differ: {found:?}");
        }
    }
    // The program that stays coherent otherwise, with a moment in which the network is held.
    let seconds = scale.pick(3, 10);
    for round in 0..5 {
        let name = format!("naive-chaos-{round}");
        let said = std::thread::scope(|scope| {
            let holder = scope.spawn(|| -> Result<()> {
                for _ in 0..4 {
                    telegraphos_cluster::sleep(Duration::from_millis(400))?;
                    let held = Held::fabric(cluster)?;
                    telegraphos_cluster::sleep(Duration::from_millis(50))?;
                    drop(held);
                }
                Ok(())
            });
            let said = chaos(cluster.guests(), seconds, &["--mode", "naive", "--name", &name]);
            holder.join().map_err(|_| anyhow::anyhow!("the thread that holds the network has panicked"))??;
            said
        })?;
        if said.iter().any(|(chaos, _)| chaos.differ != [0, 0]) {
            for (chaos, well) in &said {
                let [now, later] = chaos.differ;
                ensure!(now == later, "what differed has changed by itself: {chaos:?}");
                ensure!(!*well || now == 0, "tg-chaos says nothing of it: {chaos:?}");
            }
            return Ok(());
        }
    }
    anyhow::bail!("naive copies were equal in five rounds of chaos")
}

/// W2, W3, R2: without counters, the reflection of the first store undoes the second in the writer's own copy until
/// that is reflected, too (SPEC item 25, I4). The home is held before it sees the second.
pub(crate) fn owner_without_counters_goes_back(cluster: &Cluster) -> Result<()> {
    let (home, writer) = (cluster.node(0), cluster.node(1));
    let pause = || telegraphos_cluster::sleep(Duration::from_millis(100));
    let round = |mode: &str, name: &str| -> Result<String> {
        let _home = Copy::of(home, None, name, mode)?;
        let mut copy = Copy::of(writer, Some(0), name, mode)?;
        let board = Held::hib(home)?;
        copy.must("store 0 2", "stored")?;
        copy.must("settle", "settled")?;
        // It comes to the home's door.
        pause()?;
        let network = Held::fabric(cluster)?;
        copy.must("store 0 3", "stored")?;
        copy.must("settle", "settled")?;
        copy.must("load 0", "0x3")?;
        drop(board);
        // The home reflects the first.
        pause()?;
        let board = Held::hib(home)?;
        drop(network);
        // That comes back, and the second to the home's door.
        pause()?;
        let seen = copy.ask("load 0")?;
        drop(board);
        copy.must("quiet 30", "quiet")?;
        copy.must("load 0", "0x3")?;
        println!("  {mode}: W2 W3 R{}, and in the end 3", seen.trim_start_matches("0x"));
        Ok(seen)
    };
    let rounds = |mode: &str| (0..3).map(|n| round(mode, &format!("{mode}-back-{n}"))).collect::<Result<Vec<_>>>();
    let (without, with) = (rounds("owner")?, rounds("counters")?);
    ensure!(without.iter().any(|seen| seen == "0x2"), "without counters the writer has seen {without:?}, never 2");
    ensure!(without.iter().all(|seen| seen == "0x2" || seen == "0x3"), "without counters: {without:?}");
    ensure!(with.iter().all(|seen| seen == "0x3"), "with counters the writer has seen {with:?}: expected 3");
    Ok(())
}

/// Data at one home, flag at another, and the data's home is held: without quiet a reader sees the flag and old data;
/// with quiet the flag waits for the data (SPEC E19, I6, I7).
pub(crate) fn flag_overtakes_data_without_quiet(cluster: &Cluster) -> Result<()> {
    let (far, writer, reader) = (cluster.node(0), cluster.node(1), cluster.node(2));
    let _home = Copy::of(far, None, "data", "counters")?;
    let mut flag = Copy::of(writer, None, "flag", "counters")?;
    let mut data = Copy::of(writer, Some(0), "data", "counters")?;
    let mut data_read = Copy::of(reader, Some(0), "data", "counters")?;
    let mut flag_read = Copy::of(reader, Some(1), "flag", "counters")?;
    let held = Held::hib(far)?;
    data.must("store 0 1", "stored")?;
    flag.must("store 0 1", "stored")?;
    flag.must("quiet 30", "quiet")?;
    flag_read.must("load 0", "0x1")?;
    data_read.must("load 0", "0x0")?;
    println!("  without quiet: flag 1, data 0");
    drop(held);
    data.must("quiet 30", "quiet")?;
    data_read.must("load 0", "0x1")?;
    let held = Held::hib(far)?;
    data.must("store 0 2", "stored")?;
    let early = data.ask("quiet 0.3")?;
    ensure!(early.starts_with("error "), "quiet says {early:?} though no other copy has the data");
    data_read.must("load 0", "0x1")?;
    drop(held);
    data.must("quiet 30", "quiet")?;
    flag.must("store 0 2", "stored")?;
    flag.must("quiet 30", "quiet")?;
    flag_read.must("load 0", "0x2")?;
    data_read.must("load 0", "0x2")?;
    Ok(())
}

/// A guest with stopped processors gets the stores regardless, and acknowledges them: no software at the
/// receiver (SPEC item 23).
pub(crate) fn eager_update_needs_no_receiver(cluster: &Cluster) -> Result<()> {
    let (home, writer, stopped) = (cluster.node(0), cluster.node(1), cluster.node(2));
    let mut at_home = Copy::of(home, None, "stopped", "counters")?;
    let mut writes = Copy::of(writer, Some(0), "stopped", "counters")?;
    let mut sleeps = Copy::of(stopped, Some(0), "stopped", "counters")?;
    stopped.qmp("stop", json!({}))?;
    let stored = (|| {
        for n in 1..=100 {
            writes.must(&format!("store {} {n}", 8 * n), "stored")?;
        }
        writes.must("quiet 30", "quiet").context("with a stopped guest among the copies")?;
        at_home.must("load 800", "0x64")
    })();
    stopped.qmp("cont", json!({}))?;
    stored?;
    for n in 1..=100 {
        sleeps.must(&format!("load {}", 8 * n), &format!("{n:#x}"))?;
    }
    Ok(())
}

/// Nothing is lost with a home if its copies have everything. `quiet` reports that, also if the board answers slowly
/// and the driver has marked the segment as an orphan.
pub(crate) fn late_answer_about_an_orphan(cluster: &Cluster) -> Result<()> {
    let (slow, other) = (cluster.node(0), cluster.node(1));
    let mut home = Copy::of(other, None, "slow-answer", "counters")?;
    let mut copy = Copy::of(slow, Some(1), "slow-answer", "counters")?;
    copy.must("store 0 0x1", "stored")?;
    copy.must("quiet 30", "quiet")?;
    home.must("leave", "left")?;
    let answer = copy.ask("orphan 30")?;
    ensure!(!answer.ends_with("none"), "the copy says {answer}: expected an orphan");
    slow.hang_hib(true);
    let sent = copy.say("quiet 30").and_then(|()| Ok(telegraphos_cluster::sleep(Duration::from_secs(1))?));
    slow.hang_hib(false);
    sent?;
    let answer = copy.receive()?;
    ensure!(answer == "quiet", "after 1 s without an answer the copy says {answer}: expected quiet");
    Ok(())
}

/// The home of a segment in use goes away: a store gets SIGBUS, a wait for errors ends; a survivor adopts,
/// another joins it, and nothing that was quiet is lost (SPEC E20).
fn survives(cluster: &Cluster, home: usize, what: &str, accident: impl Fn() -> Result<()>) -> Result<()> {
    let name = format!("survives-{what}");
    let others: Vec<usize> = (0..4).filter(|node| *node != home).collect();
    let [a, b, c] = others[..] else { anyhow::bail!("{others:?} survive: expected three") };
    let of = |node: usize, home: Option<usize>| Copy::of(cluster.node(node), home, &name, "counters");
    let _home = of(home, None)?;
    let (mut adopter, mut joiner) = (of(a, Some(home))?, of(b, Some(home))?);
    let mut storm = of(c, Some(home))?;
    adopter.must("store 64 0x77", "stored")?;
    adopter.must("quiet 30", "quiet")?;
    storm.must("storm 0 100", "storming")?;
    adopter.say("orphan 60")?;
    telegraphos_cluster::sleep(Duration::from_millis(300))?;
    accident()?;
    let answer = adopter.receive()?;
    println!("  {what}: the copy at node {a} says `{answer}`");
    ensure!(answer.starts_with("home ") && !answer.ends_with("none"), "{what}: {answer}: expected an orphan");
    let ended = storm.process.wait_for(LIMIT)?;
    ensure!(
        ended.status.signal() == Some(BUS),
        "{what}: the storing process ended with {}: expected SIGBUS",
        ended.status
    );
    let answer = joiner.ask("orphan 60")?;
    ensure!(!answer.ends_with("none"), "{what}: the copy at node {b} says {answer}: expected an orphan");
    adopter.must("adopt", "adopted")?;
    adopter.must("load 64", "0x77")?;
    adopter.must("store 128 0x88", "stored")?;
    joiner.must(&format!("rejoin {a}"), "joined")?;
    joiner.must("load 64", "0x77")?;
    joiner.must("load 128", "0x88")?;
    joiner.must("store 192 0x99", "stored")?;
    joiner.must("quiet 30", "quiet")?;
    adopter.must("load 192", "0x99")
}

pub(crate) fn home_goes_away(cluster: &Cluster) -> Result<()> {
    survives(cluster, 2, "reset", || Ok(cluster.node(2).reset()?))?;
    let killed = cluster.node(3);
    let survived = survives(cluster, 3, "killed-hib", || {
        killed.kill_hib();
        Ok(())
    });
    // Whatever came of it: QEMU never connects again; only a new plug brings the board back.
    plug_anew(killed)?;
    survived?;
    survives(cluster, 1, "killed-fabric", || {
        cluster.kill_fabric();
        // All nodes are notified of it before there is another.
        telegraphos_cluster::sleep(Duration::from_millis(500))?;
        Ok(cluster.restart_fabric()?)
    })
}

/// The library's examples, which check themselves: drawing, with a home that all take in turns, and with copies that
/// become invalid; messages from one to all; and a copy made when a page is read much.
pub(crate) fn examples(cluster: &Cluster) -> Result<()> {
    let nodes = cluster.guests().len().to_string();
    for argv in [
        &["tg-whiteboard", &nodes, "500", "3", "50"][..],
        &["tg-whiteboard", &nodes, "200", "4"],
        &["tg-broadcast", &nodes, "3000"],
        &["tg-hotpage", &nodes],
    ] {
        println!("  {}", argv.join(" "));
        let said = at_once(cluster.guests(), |guest| Ok(guest.argv(argv).limit(Duration::from_secs(120)).check()?))?;
        for line in said.iter().filter_map(|text| text.lines().find(|line| line.starts_with("node "))) {
            println!("    {line}");
        }
    }
    Ok(())
}
