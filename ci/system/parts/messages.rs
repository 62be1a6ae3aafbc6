// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages between threads of processes on several nodes.

use crate::deaths::{GONE_OR_GOING, are_notified};
use crate::help::{LIMIT, Start, without_power};
use crate::processes::serving;
use anyhow::{Context, Result, ensure};
use std::time::Duration;
use telegraphos_cluster::{Cluster, Guest, Running};

/// Each thread of each node sends all threads of all nodes what goes to slots, what goes there in fragments, and what
/// boards fetch or store; each message comes once, whole, and those of one thread to another in their order.
pub(crate) fn all_to_all(cluster: &Cluster) -> Result<()> {
    let modes = [&["--progress", "blocking"][..], &["--progress", "polling"]];
    for options in [&[][..], &["--way", "put"], &["--paper"]].into_iter().chain(modes) {
        let words = [&["tg-msg", "all", "4", "3", "10"], options].concat();
        let running = cluster.guests().iter().map(|node| Ok(node.argv(&words).spawn()?)).collect::<Result<Vec<_>>>()?;
        for running in running {
            println!("  {options:?}: {}", running.check(LIMIT)?.stdout.trim());
        }
    }
    Ok(())
}

pub(crate) fn longest_message(cluster: &Cluster) -> Result<()> {
    let said = cluster.node(0).argv(&["tg-msg", "bounds"]).limit(LIMIT).check()?;
    println!("  {}", said.trim());
    ensure!(said.contains("2095872 bytes arrived; one more:"), "{said}");
    ensure!(said.contains("a child has no messages of its parent's"), "{said}");
    Ok(())
}

/// 304 threads on 4 nodes, each of which has one process with two `Messages` over 8 ports each; the longest messages of
/// the paper's profile, and those around its block. And fewer threads, whose `Messages` are more than their ports.
pub(crate) fn threads_over_ports(cluster: &Cluster) -> Result<()> {
    let runs = [
        ("38", "6", "8", "304 threads over [8, 8] ports: 1824 messages"),
        ("8", "4", "2", "64 threads over [2, 2] ports: 256 messages"),
    ];
    for (threads, count, ports, expected) in runs {
        for running in many(cluster, threads, count, ports)? {
            let output = running.check(LIMIT)?;
            ensure!(output.stdout.starts_with(expected), "{}: expected {expected}", output.stdout);
            println!("  {}", output.stdout.trim());
        }
    }
    Ok(())
}

fn many(cluster: &Cluster, threads: &str, count: &str, ports: &str) -> Result<Vec<Running>> {
    let options = ["--processes", "2", "--paper", "--slots", "4", "--ports", ports];
    let words = [&["tg-msg", "many", "4", threads, count][..], &options].concat();
    cluster.guests().iter().map(|node| Ok(node.argv(&words).spawn()?)).collect()
}

/// The same, and a node is powered off: all others end.
pub(crate) fn threads_and_power(cluster: &Cluster) -> Result<()> {
    let mut running = many(cluster, "38", "100000", "8")?;
    telegraphos_cluster::sleep(Duration::from_secs(4))?;
    let _last = running.pop();
    without_power(cluster.node(3), |begun| {
        are_notified(
            running.into_iter().map(|one| ("threads over ports".to_owned(), GONE_OR_GOING, one)).collect(),
            begun,
        )
    })
}

/// A process that does not receive delays what is for it, loses none of it, and delays nothing else: exchanges with
/// another process pass it.
pub(crate) fn full_destination(cluster: &Cluster) -> Result<()> {
    let (a, b, c) = (cluster.node(0), cluster.node(1), cluster.node(2));
    let mut full = serving(b, &["serve", "full"])?;
    let other = serving(c, &["echo", "other"])?;
    let mut sender = a.argv(&["tg-msg", "full", "1", "full", "2", "other", "300"]).spawn()?;
    let said = sender.wait_for_line(LIMIT, |line| line.contains("exchanges with another"))?;
    println!("  {said}");
    ensure!(said.ends_with("0 of 300 had been received"), "{said}");
    full.write("300\n")?;
    for tag in 0..300 {
        let line = full.wait_for_line(LIMIT, |_| true)?;
        ensure!(line == format!("4 bytes with tag {tag}"), "{line}: expected tag {tag}");
    }
    sender.check(LIMIT)?;
    other.check(LIMIT)?;
    Ok(())
}

/// One program of one node.
pub(crate) fn alone(cluster: &Cluster, words: &[&str]) -> Result<()> {
    let said = cluster.node(0).argv(&[&["tg-msg"], words].concat()).limit(LIMIT).check()?;
    println!("  {words:?}: {}", said.trim());
    Ok(())
}

/// Two programs, the second of which, of another node, takes messages as the first one tells it.
pub(crate) fn with_taker(cluster: &Cluster, what: &str, options: &[&str]) -> Result<()> {
    let taker = serving(cluster.node(1), &[&["taker", what], options].concat())?;
    let done = alone(cluster, &[&[what, "1", what], options].concat());
    let taker = taker.wait_for(if done.is_ok() { LIMIT } else { Duration::from_secs(10) })?;
    done.and_then(|()| {
        ensure!(taker.status.success(), "{}", taker.status);
        Ok(())
    })
    .with_context(|| format!("the other one: {}: {}{}", taker.status, taker.stdout, taker.stderr))
}

/// Messages that are longer than the memory which their users may lock (8 MiB) come whole: in pieces, whichever side
/// has too little, or both.
pub(crate) fn beyond_the_limit(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(1));
    let bytes = 20 << 20;
    for (name, way, limited) in [
        ("both", "get", [true, true]),
        ("both-put", "put", [true, true]),
        ("sender", "get", [true, false]),
        ("receiver", "get", [false, true]),
    ] {
        let [gives, takes] = limited.map(|limited| {
            move |guest: &Guest, words: &str| match limited {
                true => guest.sh(&format!("exec {words}")),
                false => guest.sh(&format!("ulimit -l unlimited; exec su tg -c 'exec {words}'")).as_root(),
            }
        });
        let taker = takes(b, &format!("tg-msg takes {name} 4 {bytes} --way {way}")).until("serving")?;
        let said = gives(a, &format!("tg-msg gives 1 {name} 4 {bytes} --way {way}")).limit(LIMIT).check();
        let taken = taker.wait_for(if said.is_ok() { LIMIT } else { Duration::from_secs(10) })?;
        ensure!(taken.status.success(), "{name}: {}: {}", taken.status, taken.stderr);
        println!("  {name}, {way}: {}", said?.trim());
    }
    Ok(())
}

pub(crate) fn rendezvous(cluster: &Cluster) -> Result<()> {
    with_taker(cluster, "rendezvous", &[])?;
    with_taker(cluster, "rendezvous", &["--way", "put"])
}

/// A process that lies is disconnected, or ignored; processes that talk to the others are not disturbed.
pub(crate) fn hostile(cluster: &Cluster) -> Result<()> {
    let mut server = serving(cluster.node(1), &["serve", "victim"])?;
    alone(cluster, &["lies", "1", "victim"])?;
    let honest = cluster.node(0).argv(&["tg-msg", "send", "1", "victim", "3", "10"]).spawn()?;
    server.write("\n")?;
    server.wait_for_line(LIMIT, |line| line == "10 bytes with tag 3")?;
    honest.check(LIMIT)?;
    let mut liar = cluster.node(0).argv(&["tg-msg", "nowhere", "1", "victim"]).until("requested")?;
    server.write("\n")?;
    liar.wait_for_line(LIMIT, |line| line == "answered")?;
    let output = server.wait_for(LIMIT)?;
    ensure!(output.stderr.contains("the bytes could not be moved"), "{}: {}", output.status, output.stderr);
    Ok(())
}

/// Memory of a message is reached by its receiver's node while that is under way, and by nothing else or later,
/// although it stays pinned for the next one.
pub(crate) fn grants_end(cluster: &Cluster) -> Result<()> {
    for way in ["get", "put"] {
        let server = serving(cluster.node(1), &["lends", "lender", "--way", way])?;
        let words = ["tg-msg", "lingers", "1", "lender", "--way", way];
        let mut liar = cluster.node(0).argv(&words).keep_input_open().spawn()?;
        for moment in ["under way ", "ended "] {
            let line = liar.wait_for_line(LIMIT, |line| line.starts_with(moment))?;
            let memory = line.trim_start_matches(moment);
            cluster.node(2).argv(&["tg-msg", "intrudes", "1", memory]).limit(LIMIT).check()?;
            liar.write("\n")?;
        }
        liar.check(LIMIT)?;
        server.check(LIMIT)?;
    }
    Ok(())
}

/// A process keeps imports of memory that it was sent messages from, which leave no room for the next one's.
pub(crate) fn kept_imports_give_way(cluster: &Cluster) -> Result<()> {
    let serve = cluster.node(1).argv(&["tg-msg", "serve", "small"]).as_root().keep_input_open();
    let mut server = serve.until("serving")?;
    server.write("8\n")?;
    let said = cluster.node(0).argv(&["tg-msg", "wide", "1", "small"]).as_root().limit(LIMIT).check()?;
    println!("  {}", said.trim());
    server.wait_for_line(LIMIT, |line| line.ends_with("with tag 7"))?;
    Ok(())
}

/// The paper's reason for a second port, which our processes do not need: any thread may use a port of theirs.
pub(crate) fn two_ports(cluster: &Cluster) -> Result<()> {
    alone(cluster, &["ports"])
}

/// Exchanges in each mode of the ports.
pub(crate) fn progress_modes(cluster: &Cluster) -> Result<()> {
    for mode in ["polling", "blocking", "adaptive"] {
        let echo = serving(cluster.node(1), &["echo", mode, "--progress", mode])?;
        alone(cluster, &["pair", "1", mode, "300", "8", "--progress", mode])?;
        echo.check(LIMIT)?;
    }
    Ok(())
}

/// Two processes of one node, which has one processor, look for each other's messages: with the hint for coscheduling
/// and without, in turn.
pub(crate) fn pairs_on_a_processor(cluster: &Cluster) -> Result<()> {
    for (turn, hint) in [true, false].into_iter().cycle().take(4).enumerate() {
        let name = format!("pair-{turn}");
        let mut options = vec!["--progress", "polling"];
        options.extend((!hint).then_some("--no-yield"));
        let echo = serving(cluster.node(0), &[&["echo", &name][..], &options].concat())?;
        alone(cluster, &[&["pair", "0", &name, "100", "8"][..], &options].concat())?;
        echo.check(LIMIT)?;
    }
    Ok(())
}

/// At most one interrupt for each node and message, whether its bytes go to a slot or the receiver's board fetches them
/// from memory that both know, and whether the receive or the send comes first. If the sender's board stores them, the
/// receiver has two: one says what there is, and the other that it is there. Memory is registered for each of these,
/// and imported, since no process is to store there later; each command for that ends with an interrupt, too.
pub(crate) fn interrupts(cluster: &Cluster) -> Result<()> {
    /// Batches of so many messages each, and interrupts for a batch itself, at either node.
    const BATCHES: u64 = 30;
    const BATCH: u64 = 8;
    const FOR_A_BATCH: u64 = 2;
    /// For what else happens on the nodes.
    const BESIDES: u64 = 120;
    /// Commands that end with an interrupt, of an import that is opened and closed, and of memory that is registered
    /// under a name.
    const IMPORT: u64 = 3;
    const REGISTER: u64 = 5;
    let nodes = [cluster.node(0), cluster.node(1)];
    let count = || -> Result<[u64; 2]> {
        let mut counts = [0; 2];
        for (node, count) in nodes.iter().zip(&mut counts) {
            let lines = node.argv(&["cat", "/proc/interrupts"]).check()?;
            let of_board = lines.lines().filter(|line| line.contains("telegraphos"));
            // A count for each processor, behind the number.
            let words = of_board.flat_map(|line| line.split_whitespace().skip(1));
            *count = words.map_while(|word| word.parse::<u64>().ok()).sum();
        }
        Ok(counts)
    };
    let batches = BATCHES.to_string();
    // At most so many for a message, at the sender and at the receiver.
    for (way, bytes, most) in
        [("get", "8", [1, 1]), ("get", "100000", [1, 1]), ("put", "100000", [1 + IMPORT, 2 + REGISTER])]
    {
        for first in ["receives-first", "sends-first"] {
            let name = format!("interrupts-{way}-{bytes}-{first}");
            let sink = serving(nodes[1], &["sink", &name, bytes, first, "--way", way])?;
            let words = ["tg-msg", "batches", "1", &name, &batches, bytes, first, "--way", way];
            let mut sender = nodes[0].argv(&words).keep_input_open().until("ready")?;
            let before = count()?;
            sender.write("\n")?;
            sender.wait_for_line(LIMIT, |line| line == format!("{} messages", BATCHES * BATCH))?;
            let after = count()?;
            sender.write("\n")?;
            sender.check(LIMIT)?;
            sink.check(LIMIT)?;
            let taken = [after[0] - before[0], after[1] - before[1]];
            println!("  {way}, {bytes} bytes, {first}: {taken:?} interrupts for {} messages", BATCHES * BATCH);
            for (taken, most) in taken.into_iter().zip(most) {
                let most = most * BATCHES * BATCH + FOR_A_BATCH * BATCHES + BESIDES;
                ensure!((1..=most).contains(&taken), "{name}: {taken} interrupts on a node: expected at most {most}");
            }
        }
    }
    Ok(())
}

/// Which messages go to slots follows what is faster, within its bounds, and both ways are tried; where no memory can
/// be locked, at either process, messages that fit go to slots, or are loaded from there, and none is lost.
pub(crate) fn threshold(cluster: &Cluster) -> Result<()> {
    let run = |name: &str, count: &str, options: &[&str]| -> Result<Vec<[u64; 3]>> {
        let echo = serving(cluster.node(1), &[&["echo", name], options].concat())?;
        let words = [&["tg-msg", "threshold", "1", name, count], options].concat();
        let said = cluster.node(0).argv(&words).limit(LIMIT).check()?;
        echo.check(LIMIT)?;
        println!("{said}");
        let numbers = |line: &str| -> Option<[u64; 3]> {
            let words = line.split([' ', ';']).filter_map(|word| word.parse().ok());
            words.collect::<Vec<_>>().try_into().ok()
        };
        let all: Vec<_> = said.lines().filter_map(numbers).collect();
        ensure!(all.len() == 3, "{said}: expected three lines");
        Ok(all)
    };
    let adapts = run("adapts", "80", &[])?;
    for [threshold, slots, requests] in &adapts {
        ensure!((128..=4096).contains(threshold), "{threshold}: expected 128 to 4096");
        ensure!(*slots > 0 && *requests > 0, "{slots} to slots, {requests} as requests: expected some of both");
    }
    ensure!(adapts[2][0] == 4096, "requests that cannot be made: {} bytes at most go to slots", adapts[2][0]);
    let fixed = run("fixed", "10", &["--eager", "1024"])?;
    ensure!(fixed.iter().all(|said| *said == [1024, 0, 0]), "{fixed:?}: expected nothing measured");
    Ok(())
}
