// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages between threads of processes on several nodes.

use crate::deaths::{GONE_OR_GOING, are_told};
use crate::help::{tables, within, without_power};
use anyhow::{Context, Result, ensure};
use std::time::Duration;
use telegraphos_cluster::{Cluster, Guest, Running};

const LIMIT: Duration = Duration::from_secs(120);

/// Starts `tg-msg` with a command that others talk to.
pub(crate) fn serving(node: &Guest, words: &[&str]) -> Result<Running> {
    let mut server = node.argv(&[&["tg-msg"], words].concat()).keep_input_open().spawn()?;
    server.wait_for_line(LIMIT, |line| line == "serving")?;
    Ok(server)
}

/// Waits for the end of a process that others have talked to, which finds nothing wrong.
pub(crate) fn ended_well(process: Running, what: &str) -> Result<()> {
    let output = process.wait_for(LIMIT)?;
    ensure!(output.status.success(), "{what}: {}: {}{}", output.status, output.stdout, output.stderr);
    Ok(())
}

/// Each thread of each node sends all threads of all nodes what goes to slots, what goes there in fragments, and what
/// boards fetch or store; each message comes once, whole, and those of one thread to another in their order.
pub(crate) fn all_to_all(cluster: &Cluster) -> Result<()> {
    let modes = [&["--progress", "blocking"][..], &["--progress", "polling"]];
    for options in [&[][..], &["--way", "put"], &["--paper"]].into_iter().chain(modes) {
        let words = [&["tg-msg", "all", "4", "3", "10"], options].concat();
        let running = cluster.guests().iter().map(|node| Ok(node.argv(&words).spawn()?)).collect::<Result<Vec<_>>>()?;
        for running in running {
            let output = running.wait_for(LIMIT)?;
            ensure!(output.status.success(), "{options:?}: {}: {}{}", output.status, output.stdout, output.stderr);
            println!("  {options:?}: {}", output.stdout.trim());
        }
    }
    Ok(())
}

pub(crate) fn longest_message(cluster: &Cluster) -> Result<()> {
    let said = cluster.node(0).argv(&["tg-msg", "bounds"]).limit(LIMIT).check()?;
    println!("  {}", said.trim());
    ensure!(said.contains("2095872 bytes arrived; one more:"), "{said}");
    Ok(())
}

/// 304 threads of 8 processes on 4 nodes, each process over 8 ports; the longest messages of the paper's profile, and
/// those around its block.
pub(crate) fn threads_over_ports(cluster: &Cluster) -> Result<()> {
    for running in many(cluster, "6")? {
        let output = running.wait_for(LIMIT)?;
        ensure!(output.status.success(), "{}: {}{}", output.status, output.stdout, output.stderr);
        ensure!(output.stdout.starts_with("304 threads over [8, 8] ports"), "{}", output.stdout);
        println!("  {}", output.stdout.trim());
    }
    Ok(())
}

fn many(cluster: &Cluster, count: &str) -> Result<Vec<Running>> {
    let words = ["tg-msg", "many", "4", "38", count, "--processes", "2", "--paper", "--slots", "4"];
    cluster.guests().iter().map(|node| Ok(node.argv(&words).spawn()?)).collect()
}

/// The same, and a node is powered off: all others end.
pub(crate) fn threads_and_power(cluster: &Cluster) -> Result<()> {
    let mut running = many(cluster, "100000")?;
    telegraphos_cluster::sleep(Duration::from_secs(4))?;
    let _last = running.pop();
    without_power(cluster.node(3), |begun| {
        are_told(running.into_iter().map(|one| ("threads over ports".to_owned(), GONE_OR_GOING, one)).collect(), begun)
    })
}

/// A process that does not receive for 10 seconds delays what is for it, loses none of it, and delays nothing else.
pub(crate) fn full_destination(cluster: &Cluster) -> Result<()> {
    let (a, b, c) = (cluster.node(0), cluster.node(1), cluster.node(2));
    let mut full = serving(b, &["serve", "full"])?;
    let other = serving(c, &["echo", "other"])?;
    let mut sender = a.argv(&["tg-msg", "full", "1", "full", "2", "other", "300"]).spawn()?;
    let said = sender.wait_for_line(LIMIT, |line| line.contains("exchanges with another"))?;
    println!("  {said}");
    ensure!(said.ends_with("0 of 300 had been received"), "{said}");
    let exchanges: u64 = said.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0);
    ensure!(exchanges > 100, "{said}: expected more than 100 exchanges in 10 s");
    full.write("300\n")?;
    for tag in 0..300 {
        let line = full.wait_for_line(LIMIT, |_| true)?;
        ensure!(line == format!("4 bytes with tag {tag}"), "{line}: expected tag {tag}");
    }
    let output = sender.wait_for(LIMIT)?;
    ensure!(output.status.success(), "{}: {}{}", output.status, output.stdout, output.stderr);
    ended_well(other, "the other process failed")?;
    Ok(())
}

/// One program of one node.
fn alone(cluster: &Cluster, words: &[&str]) -> Result<()> {
    let said = cluster.node(0).argv(&[&["tg-msg"], words].concat()).limit(LIMIT).check()?;
    println!("  {words:?}: {}", said.trim());
    Ok(())
}

pub(crate) fn rendezvous(cluster: &Cluster) -> Result<()> {
    alone(cluster, &["rendezvous"])?;
    alone(cluster, &["rendezvous", "--way", "put"])
}

pub(crate) fn single_buffer(cluster: &Cluster) -> Result<()> {
    alone(cluster, &["single"])
}

/// Bad input says why.
pub(crate) fn bad_input(cluster: &Cluster) -> Result<()> {
    alone(cluster, &["wrong"])
}

/// A process that lies is given up, or not heard; who talks to the others is not disturbed.
pub(crate) fn hostile(cluster: &Cluster) -> Result<()> {
    let mut server = serving(cluster.node(1), &["serve", "victim"])?;
    alone(cluster, &["lies", "1", "victim"])?;
    let honest = cluster.node(0).argv(&["tg-msg", "send", "1", "victim", "3", "10"]).spawn()?;
    server.write("\n")?;
    server.wait_for_line(LIMIT, |line| line == "10 bytes with tag 3")?;
    ended_well(honest, "an honest sender failed")?;
    let mut liar = cluster.node(0).argv(&["tg-msg", "nowhere", "1", "victim"]).spawn()?;
    liar.wait_for_line(LIMIT, |line| line == "requested")?;
    server.write("\n")?;
    liar.wait_for_line(LIMIT, |line| line == "answered")?;
    let output = server.wait_for(LIMIT)?;
    ensure!(output.stderr.contains("the bytes could not be moved"), "{}: {}", output.status, output.stderr);
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
        ended_well(echo, &format!("{mode}: the echo failed"))?;
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
        ended_well(echo, &format!("{name}: the echo failed"))?;
    }
    Ok(())
}

/// At most one interrupt for each node and message, whether its bytes go to a slot or a board fetches them.
pub(crate) fn interrupts(cluster: &Cluster) -> Result<()> {
    /// Exchanges that `tg-msg pair` makes before those that it is told to.
    const WARMING: u64 = 100;
    /// For connecting, and for what else happens on the nodes.
    const BESIDES: u64 = 150;
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
    for (n, bytes) in ["8", "100000"].into_iter().enumerate() {
        let name = format!("interrupts-{n}");
        let echo = serving(nodes[1], &["echo", &name, "--progress", "blocking"])?;
        let before = count()?;
        alone(cluster, &["pair", "1", &name, "400", bytes, "--progress", "blocking"])?;
        ended_well(echo, "the echo failed")?;
        let messages = 2 * (WARMING + 400);
        let taken: Vec<u64> = count()?.iter().zip(before).map(|(after, before)| after - before).collect();
        println!("  {bytes} bytes: {taken:?} interrupts on the nodes for {messages} messages");
        ensure!(taken.iter().all(|taken| (1..messages + BESIDES).contains(taken)), "{taken:?} for {messages} messages");
    }
    Ok(())
}

/// Processes that have ended, in whatever state, have left no memory that is pinned, no segment, no queue.
pub(crate) fn nothing_is_left(cluster: &Cluster) -> Result<()> {
    nothing_is_left_of(cluster, "msg")
}

/// No object of boards with that in its name is left, and no pinned page of any.
pub(crate) fn nothing_is_left_of(cluster: &Cluster, what: &str) -> Result<()> {
    nothing_is_left_at(cluster.guests(), what)
}

/// The same at some nodes.
pub(crate) fn nothing_is_left_at<'a>(guests: impl IntoIterator<Item = &'a Guest>, what: &str) -> Result<()> {
    for node in guests {
        within(Duration::from_secs(20), || {
            let said = tables(node, &["exports", "imports", "queues", "registrations", "/proc/vmstat"])?;
            let left: Vec<&str> = said.lines().filter(|line| line.contains(what)).collect();
            ensure!(left.is_empty(), "{left:?}");
            let pins = ["nr_foll_pin_acquired ", "nr_foll_pin_released "];
            let pins = pins.map(|name| said.lines().find_map(|line| line.strip_prefix(name)));
            ensure!(pins[0].is_some() && pins[0] == pins[1], "pages pinned and unpinned: {pins:?}");
            // A context closes after its last object, of whatever kind.
            let contexts = tables(node, &["contexts"])?;
            let running = node.sh("ls /proc").check()?;
            let is_running = |line: &&str| {
                let process = line.split(' ').find_map(|word| word.strip_prefix("process="));
                process.is_some_and(|process| running.lines().any(|running| running == process))
            };
            let left: Vec<&str> = contexts.lines().filter(|line| !is_running(line)).collect();
            ensure!(left.is_empty(), "contexts of processes that have ended: {left:?}");
            Ok(())
        })
        .with_context(|| format!("node {}", node.node()))?;
    }
    Ok(())
}
