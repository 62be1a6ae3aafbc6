// SPDX-License-Identifier: MIT OR Apache-2.0
//! One system image (SPEC item 38): a daemon on each node, and tasks anywhere.

use crate::deaths::told;
use crate::help::{KILL, LIMIT, register, within, without_power};
use crate::processes;
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use telegraphos_cluster::{Cluster, Guest, Output, Running, User};
use telegraphos_wire::regs::Register;

fn daemon(node: &Guest) -> Result<Running> {
    // One that a part before has killed may not have gone yet.
    within(|| {
        let left = daemons_of(node)?;
        ensure!(left.is_empty(), "daemons of node {}: {left:?}", node.node());
        Ok(())
    })?;
    Ok(node.sh("exec tgd 2>&1").as_root().spawn_until(LIMIT, |line| line.contains("tgd begins"))?)
}

/// A daemon on each node, and all have heard of each other. They end when this is dropped.
fn daemons(cluster: &Cluster) -> Result<Vec<Running>> {
    let daemons = cluster.guests().iter().map(daemon).collect::<Result<_>>()?;
    all_alive(cluster)?;
    Ok(daemons)
}

fn all_alive(cluster: &Cluster) -> Result<()> {
    let count = cluster.guests().len();
    for node in cluster.guests() {
        within(|| {
            let said = node.argv(&["tg-task", "nodes"]).check()?;
            let alive = said.matches("\talive\t").count();
            ensure!(alive == count, "node {} has {alive} of {count} nodes: {said}", node.node());
            Ok(())
        })?;
    }
    Ok(())
}

fn run(node: &Guest, words: &[&str]) -> Result<Output> {
    Ok(node.argv(words).limit(LIMIT).run()?)
}

/// Runs a command, which ends with this code and says this.
fn says(node: &Guest, words: &[&str], code: u8, expected: &[&str]) -> Result<String> {
    says_as(User::Tg, node, words, code, expected)
}

fn says_as(user: User, node: &Guest, words: &[&str], code: u8, expected: &[&str]) -> Result<String> {
    let process = node.argv(words).user(user).spawn()?;
    ends(process, code, expected).with_context(|| format!("{words:?}"))
}

/// Waits for the end of a process, with this code, having said this.
fn ends(process: Running, code: u8, expected: &[&str]) -> Result<String> {
    let output = process.wait_for(LIMIT)?;
    let said = format!("{}{}", output.stdout, output.stderr);
    let right = output.status.code() == code && expected.iter().all(|words| said.contains(words));
    ensure!(right, "{}: {said}: expected code {code} and {expected:?}", output.status);
    Ok(said)
}

/// A command says this after a while, and returns 0.
fn comes_to_say(node: &Guest, words: &[&str], expected: &[&str]) -> Result<()> {
    within(|| says(node, words, 0, expected).map(drop))
}

/// Waits until so many tasks are listed.
fn tasks_come_to(node: &Guest, count: usize) -> Result<()> {
    within(|| {
        let listed = says(node, &["tg-task", "list"], 0, &[])?;
        ensure!(listed.lines().count() == count, "{listed}");
        Ok(())
    })
}

/// A task that runs until it is ended, of a master that waits for it: the master, and the task.
fn sleeper(node: &Guest, on: &str, script: &str) -> Result<(Running, String)> {
    let command = format!("tg-spawn -v -N {on} -- sh -c '{script}' 2>&1");
    let mut master = node.sh(&command).spawn()?;
    let line = master.wait_for_line(LIMIT, |line| line.contains("task 0 is "))?;
    let task = line.rsplit(' ').next().unwrap_or_default().to_owned();
    Ok((master, task))
}

/// What a script finds; nothing is right, too.
fn found(node: &Guest, script: &str) -> Result<Vec<String>> {
    let output = node.sh(script).as_root().run()?;
    ensure!(output.status.code() <= 1 && output.stderr.is_empty(), "{}: {}", output.status, output.stderr);
    Ok(output.stdout.lines().map(str::to_owned).collect())
}

/// The daemons of a node: there is one at most.
fn daemons_of(node: &Guest) -> Result<Vec<String>> {
    let found = found(node, "grep -lxs tgd /proc/[0-9]*/comm")?;
    Ok(found.iter().filter_map(|path| path.split('/').nth(2)).map(str::to_owned).collect())
}

/// Sends the daemon of a node a signal.
fn signal_daemon(node: &Guest, signal: &str) -> Result<()> {
    let daemons = daemons_of(node)?;
    ensure!(daemons.len() == 1, "daemons of node {}: {daemons:?}", node.node());
    node.argv(&["kill", signal, &daemons[0]]).as_root().check()?;
    Ok(())
}

/// The tasks of a node that sleep for so long, and their masters.
fn sleepers(node: &Guest) -> Result<Vec<String>> {
    // Processes may end while they are looked at.
    found(node, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep '^98[0-9]$\\|sleep 98[0-9]'")
}

fn no_sleeper_is_left(cluster: &Cluster) -> Result<()> {
    cluster.guests().iter().try_for_each(no_sleeper_is_left_at)
}

fn no_sleeper_is_left_at(node: &Guest) -> Result<()> {
    within(|| {
        let left = sleepers(node)?;
        ensure!(left.is_empty(), "node {}: {left:?}", node.node());
        Ok(())
    })
}

/// Tasks run as their user, in the master's directory and environment; all that they write comes, by whole lines; their
/// ends are the master's.
pub(crate) fn spawn_and_output(cluster: &Cluster) -> Result<()> {
    let _daemons = daemons(cluster)?;
    let node = cluster.node(0);
    let said = says(node, &["tg-spawn", "-n", "6", "hostname"], 0, &[])?;
    for guest in cluster.guests() {
        let name = format!("node{}\n", guest.node());
        ensure!(said.matches(&name).count() == 2, "6 tasks on 3 nodes: {said}");
    }
    // Root's daemon has made it an ordinary user's, with that user's groups.
    says(node, &["tg-spawn", "-N", "1", "id"], 0, &["uid=1000", "990"])?;
    let words = ["tg-spawn", "-N", "2", "-d", "/tmp", "-e", "COLOUR=red", "--", "sh", "-c", "echo $COLOUR in $PWD"];
    says(node, &words, 0, &["red in /tmp"])?;

    // 60 000 lines at once: each is whole, and those of a task are in order.
    let output = run(node, &["tg-spawn", "-n", "3", "-l", "seq", "1", "20000"])?;
    let mut last: BTreeMap<&str, u32> = BTreeMap::new();
    for line in output.stdout.lines() {
        let (task, number) = line.split_once(' ').with_context(|| format!("{line:?}"))?;
        let last = last.entry(task).or_default();
        ensure!(number.parse() == Ok(*last + 1), "{line:?} after {last}");
        *last += 1;
    }
    ensure!(last.len() == 3 && last.values().all(|last| *last == 20000), "{last:?}: {}", output.stderr);

    let output = run(node, &["tg-spawn", "-N", "1", "--", "sh", "-c", "echo out; echo err >&2; exit 9"])?;
    let apart = output.stdout == "out\n" && output.stderr == "err\n" && output.status.code() == 9;
    ensure!(apart, "{}: {:?} {:?}", output.status, output.stdout, output.stderr);
    says(node, &["tg-spawn", "-N", "1", "--", "sh", "-c", "kill -15 $$"], 143, &[])?;
    says(
        node,
        &["tg-spawn", "-N", "2", "no-such-program"],
        127,
        &["node 2: cannot run no-such-program", "No such file"],
    )?;
    says(node, &["tg-spawn", "-N", "2", "/etc/passwd"], 126, &["Permission denied"])?;
    says(node, &["tg-spawn", "-N", "2", "-d", "/none", "true"], 127, &["in /none"])?;
    // One that does not end well decides; and what a task leaves behind does not stay.
    says(node, &["tg-spawn", "-n", "3", "--", "sh", "-c", "[ $(hostname) != node1 ]"], 1, &[])?;
    says(node, &["tg-spawn", "-n", "3", "--", "sh", "-c", "sleep 981 & echo left"], 0, &["left"])?;
    no_sleeper_is_left(cluster)
}

/// Signals reach tasks anywhere, with the errors of kill(2).
pub(crate) fn signals(cluster: &Cluster) -> Result<()> {
    let _daemons = daemons(cluster)?;
    let (near, far) = (cluster.node(0), cluster.node(2));
    let (master, task) = sleeper(near, "1", "trap \"echo caught; exit 3\" USR1; while :; do sleep 0.1; done")?;
    let kill = |signal: &str, code: u8, expected: &str| {
        says(far, &["tg-task", "kill", "-s", signal, &task], code, &[expected])
    };
    kill("0", 0, "")?;
    kill("65", 1, "the signal 65: expected 0 to 64")?;
    let waits = far.argv(&["tg-task", "wait", &task]).spawn()?;
    let listed = says(far, &["tg-task", "list"], 0, &[&task, "user 1000", "master 0."])?;
    ensure!(listed.lines().count() == 1, "{listed}");
    // The shell has its trap by now, or is ended by the signal: both are ends, only one is right.
    telegraphos_cluster::sleep(Duration::from_millis(500))?;
    kill("USR1", 0, "")?;
    ends(master, 3, &[])?;
    ends(waits, 3, &["exit code 3"])?;
    kill("TERM", 1, "No such process")?;
    says(far, &["tg-task", "wait", &task], 3, &["exit code 3"])?;
    // The kernel of that node decides, as for all callers.
    says(far, &["tg-task", "kill", "1.1"], 1, &["Operation not permitted", "as user 1000"])?;
    says(far, &["tg-task", "kill", "1.999999"], 1, &["No such process"])?;
    // Also before a process that is stopped.
    let (master, task) = sleeper(near, "1", "sleep 982")?;
    says(far, &["tg-task", "kill", "-s", "STOP", &task], 0, &[])?;
    says(far, &["tg-task", "kill", "-s", "SIGKILL", &task], 0, &[])?;
    ends(master, 137, &[])?;
    no_sleeper_is_left(cluster)
}

/// Tasks go where the load is least, and never out of a partition.
pub(crate) fn least_loaded_and_partitions(cluster: &Cluster) -> Result<()> {
    let mut daemons = daemons(cluster)?;
    let node = cluster.node(0);
    let masters = ["0", "2"].map(|on| node.argv(&["tg-spawn", "-N", on, "-n", "12", "sleep", "983"]).spawn());
    tasks_come_to(node, 24)?;
    for from in cluster.guests() {
        // Of the other nodes' load it learns by their alive messages.
        comes_to_say(from, &["tg-spawn", "hostname"], &["node1"])?;
    }
    let said = says(node, &["tg-spawn", "-n", "4", "hostname"], 0, &["node0", "node2"])?;
    ensure!(said.matches("node1").count() == 2, "one after the other, the least loaded first: {said}");
    for master in masters {
        drop(master?);
    }
    no_sleeper_is_left(cluster)?;

    let partition = |words: &[&str], code: u8, expected: &[&str]| -> Result<()> {
        says_as(User::Root, node, &[&["tg-task", "partition"], words].concat(), code, expected).map(drop)
    };
    partition(&["create", "batch", "0", "1"], 0, &[])?;
    says(node, &["tg-task", "partition", "create", "own", "1"], 1, &["changed by root, not by user 1000"])?;
    partition(&["create", "none"], 1, &["the partition \"none\" has no nodes: expected one at least"])?;
    partition(&["create", "far", "1", "60"], 1, &["node 60 has never been heard of"])?;
    partition(&["create", "a/b", "1"], 1, &["expected 1 to 32 letters"])?;
    partition(&["delete", "none"], 1, &["there is no partition \"none\""])?;
    for guest in cluster.guests() {
        comes_to_say(guest, &["tg-task", "partition", "list"], &["batch\t0 1"])?;
    }
    let said = says(cluster.node(2), &["tg-spawn", "-P", "batch", "-n", "8", "hostname"], 0, &["node0", "node1"])?;
    ensure!(!said.contains("node2"), "outside of the partition: {said}");
    says(node, &["tg-spawn", "-P", "batch", "-N", "2", "true"], 125, &["node 2 is not in the partition \"batch\""])?;
    says(node, &["tg-spawn", "-P", "other", "true"], 125, &["there is no partition \"other\""])?;
    // Whatever a task spawns stays inside.
    let said = says(node, &["tg-spawn", "-P", "batch", "-N", "1", "tg-spawn", "-n", "6", "hostname"], 0, &["node0"])?;
    ensure!(!said.contains("node2"), "the children of a task are outside of its partition: {said}");
    // A daemon that comes later is notified.
    drop(daemons.pop());
    let _again = daemon(cluster.node(2))?;
    comes_to_say(cluster.node(2), &["tg-task", "partition", "list"], &["batch\t0 1"])?;
    partition(&["delete", "batch"], 0, &[])?;
    within(|| {
        let said = says(cluster.node(2), &["tg-task", "partition", "list"], 0, &[])?;
        ensure!(said.is_empty(), "{said}");
        Ok(())
    })
}

/// An alive message is one store, however many receive it: of N nodes there are N a period, and each reaches N - 1
/// others.
pub(crate) fn alive_messages_are_n(cluster: &Cluster) -> Result<()> {
    let _daemons = daemons(cluster)?;
    let nodes = cluster.guests();
    let count = |which| nodes.iter().map(|node| register(node, which)).sum::<Result<u64>>();
    let counts = || Ok::<_, anyhow::Error>((count(Register::CountStores)?, count(Register::CountReflected)?));
    // Frames that the network sends to all nodes are such stores, too, of some words each. They are rare: there is a
    // while without. A message to each other node would be too many in all.
    within(|| {
        let (begun, before) = (Instant::now(), counts()?);
        telegraphos_cluster::sleep(Duration::from_secs(3))?;
        let after = counts()?;
        let periods = begun.elapsed().as_secs_f64() / 0.25;
        let (stores, copies) = (after.0 - before.0, after.1 - before.1);
        println!("  {} nodes, {periods:.1} periods: {stores} stores, {copies} copies", nodes.len());
        // Copies of the last ones may not have been counted yet.
        let others = nodes.len() as u64 - 1;
        ensure!(
            copies.abs_diff(stores * others) <= 2 * others * nodes.len() as u64,
            "{stores} stores, {copies} copies"
        );
        // Never more than one a node and period; daemons that do not get a processor miss some.
        let most = (periods + 2.0) * nodes.len() as f64;
        ensure!(stores as f64 <= most, "{stores} stores in {periods:.1} periods: expected {most:.0} at most");
        ensure!(stores > nodes.len() as u64, "{stores} stores in {periods:.1} periods");
        Ok(())
    })
}

/// Masters die, and daemons: no task of theirs continues.
pub(crate) fn master_dies(cluster: &Cluster) -> Result<()> {
    let mut daemons = daemons(cluster)?;
    let node = cluster.node(0);
    // One ends when it is asked to, one does not.
    let scripts = [("1", "sleep 984"), ("2", "trap \"\" TERM; while :; do sleep 985; done")];
    let masters = scripts.map(|(on, script)| sleeper(node, on, script));
    for master in masters {
        master?.0.signal(KILL)?;
    }
    no_sleeper_is_left(cluster)?;
    tasks_come_to(node, 0)?;

    // A daemon is killed: its tasks end with it, and its clients are notified.
    let (master, _) = sleeper(node, "1", "sleep 986")?;
    let own = cluster.node(1).sh("exec tg-spawn -N 2 sleep 987 2>&1").spawn()?;
    tasks_come_to(node, 2)?;
    // What looks for them finds them.
    ensure!(!sleepers(cluster.node(1))?.is_empty(), "the task of node 1 is not found");
    signal_daemon(cluster.node(1), "-9")?;
    ends(master, 125, &["node lost"])?;
    let output = own.wait_for(LIMIT)?;
    ensure!(output.stdout.contains("closed the connection"), "{}: {}", output.status, output.stdout);
    no_sleeper_is_left(cluster)?;
    daemons.remove(1);
    let again = daemon(cluster.node(1))?;
    all_alive(cluster)?;
    says(node, &["tg-spawn", "-N", "1", "hostname"], 0, &["node1"])?;
    // They end, and nothing is left.
    let (_master, _) = sleeper(node, "1", "sleep 988")?;
    for guest in cluster.guests() {
        signal_daemon(guest, "-15")?;
    }
    for daemon in daemons.into_iter().chain([again]) {
        daemon.check(LIMIT)?;
    }
    no_sleeper_is_left(cluster)?;
    processes::nothing_is_left_of(cluster, "tgd")
}

/// A node does not run for a while, and the others declare it dead: it learns that, ends its tasks, and joins again.
pub(crate) fn node_declared_dead_by_mistake(cluster: &Cluster) -> Result<()> {
    let _daemons = daemons(cluster)?;
    let (node, other, target) = (cluster.node(0), cluster.node(2), cluster.node(1));
    let (master, task) = sleeper(node, "1", "sleep 989")?;
    // One whose master is on the node that does not run.
    let orphan = target.sh("exec tg-spawn -v -N 2 sleep 980 2>&1").spawn()?;
    tasks_come_to(node, 2)?;
    let wait = node.argv(&["tg-task", "wait-node", "1"]).spawn()?;
    comes_to_say(other, &["tg-task", "kill", "-s", "0", &task], &[])?;
    let begun = Instant::now();
    target.qmp("stop", json!({}))?;
    let declared = master.wait_for(LIMIT).and_then(|master| Ok((master, wait.wait_for(LIMIT)?)));
    let took = begun.elapsed();
    // Each daemon finds out by itself.
    let dead = comes_to_say(other, &["tg-task", "nodes"], &["1\tdead"]);
    // Whatever came of it: the parts after this one need the node.
    target.qmp("cont", json!({}))?;
    let (master, wait) = declared?;
    println!("  declared dead after {:.1} s", took.as_secs_f64());
    ensure!(master.status.code() == 125 && master.stdout.contains("node lost"), "{}", master.stdout);
    ensure!(wait.status.success() && wait.stdout.matches("node lost").count() == 1, "{}", wait.stdout);
    dead?;
    // Its own task is ended, and its master's is, too.
    no_sleeper_is_left(cluster)?;
    let orphan = orphan.wait_for(LIMIT)?;
    println!("  its master says, with {}: {}", orphan.status, orphan.stdout.trim().replace('\n', "; "));
    ensure!(!orphan.status.success(), "{}: {}", orphan.status, orphan.stdout);
    all_alive(cluster)?;
    // No node sees the dead again: their daemon has ended them.
    says(other, &["tg-task", "wait", &task], 137, &["signal 9"])?;
    says(node, &["tg-task", "kill", &task], 1, &["No such process"])?;
    says(node, &["tg-spawn", "-N", "1", "hostname"], 0, &["node1"])?;
    says(target, &["tg-spawn", "-N", "2", "hostname"], 0, &["node2"]).map(drop)
}

/// A node loses its power: its tasks are dead for all, once each; and it may come back.
pub(crate) fn node_dies(cluster: &Cluster) -> Result<()> {
    let _daemons = daemons(cluster)?;
    let (node, other, target) = (cluster.node(0), cluster.node(2), cluster.node(1));
    let (master, task) = sleeper(node, "1", "sleep 989")?;
    // One whose master is there.
    let _orphan = target.argv(&["tg-spawn", "-N", "2", "sleep", "980"]).spawn()?;
    tasks_come_to(node, 2)?;
    let waits = [
        ("a wait", 1, other.argv(&["tg-task", "wait", &task]).spawn()?),
        ("a wait for it twice", 2, other.argv(&["tg-task", "wait", &task, &task]).spawn()?),
        ("a wait for the node", 1, node.argv(&["tg-task", "wait-node", "1"]).spawn()?),
        ("the master", 1, master),
    ];
    comes_to_say(other, &["tg-task", "kill", "-s", "0", &task], &[])?;
    without_power(target, |begun| {
        for (what, times, wait) in waits {
            let output = told(what, wait, begun)?;
            let told = output.stdout.matches("node lost").count();
            let code = if what == "a wait for the node" { 0 } else { 125 };
            ensure!(output.status.code() == code && told == times, "{what}: {}: {}", output.status, output.stdout);
        }
        says(node, &["tg-task", "nodes"], 0, &["1\tdead"])?;
        says(node, &["tg-spawn", "-N", "1", "true"], 125, &["node 1 is dead"])?;
        says(other, &["tg-task", "wait", &task], 125, &["node lost"])?;
        [node, other].into_iter().try_for_each(no_sleeper_is_left_at)
    })?;
    let _again = daemon(target)?;
    all_alive(cluster)?;
    says(node, &["tg-spawn", "-N", "1", "hostname"], 0, &["node1"]).map(drop)
}

/// Each ends with an error that says what it is.
pub(crate) fn bad_input(cluster: &Cluster) -> Result<()> {
    let node = cluster.node(0);
    says(node, &["tg-spawn", "true"], 125, &["no daemon at /run/telegraphos/tgd.sock", "is tgd running"])?;
    says(node, &["tg-task", "nodes"], 3, &["no daemon at"])?;
    says(node, &["tgd"], 1, &["must be started by root"])?;
    says(node, &["tgd", "--silence", "1"], 2, &["--silence is 1: expected 2 to 1000"])?;
    says(node, &["tgd", "--fast"], 2, &["--fast", "tgd --help"])?;
    let _daemons = daemons(cluster)?;
    let twice = node.argv(&["tgd"]).as_root().limit(LIMIT).run()?;
    ensure!(
        twice.status.code() == 1 && twice.stderr.contains("runs on this node already, as process"),
        "{}",
        twice.stderr
    );
    says(node, &["tg-spawn"], 2, &["no program is named"])?;
    says(node, &["tg-spawn", "-n", "257", "true"], 2, &["--count is 257: expected 1 to 256"])?;
    says(node, &["tg-spawn", "-e", "X", "true"], 2, &["expected NAME=VALUE"])?;
    says(node, &["tg-spawn", "-N", "60", "true"], 125, &["node 60 has never been heard of: expected one of 0, 1, 2"])?;
    says(node, &["tg-spawn", "-d", "tmp", "true"], 125, &["the directory \"tmp\": expected an absolute path"])?;
    let long = "x".repeat(10_000);
    says(node, &["tg-spawn", "-N", "1", &long], 126, &["node 1: cannot run xxx", "File name too long"])?;
    says(node, &["tg-spawn", "-N", "1", "hostname"], 0, &["node1"])?;
    says(node, &["tg-task", "kill", "345"], 2, &["the task \"345\": expected NODE.PID"])?;
    says(node, &["tg-task", "kill", "0.0"], 2, &["expected NODE.PID"])?;
    says(node, &["tg-task", "kill", "-s", "NONE", "0.1"], 2, &["the signal \"NONE\""])?;
    says(node, &["tg-task", "kill", "60.1"], 1, &["node 60 has never been heard of"])?;
    says(node, &["tg-task", "wait", "1.999999"], 125, &["gone, exit code unknown"])?;
    says(node, &["tg-task", "dance"], 2, &["\"dance\" is not one of tg-task's"])?;
    // More clients than there may be are refused; others are served after that.
    let holder = node
        .argv(&["tg-hostile-tgd", "places"])
        .keep_input_open()
        .spawn_until(LIMIT, |line| line.contains(" held: "))?;
    let refusal = "expected at most 48 of that user now, and 48 of one user ever";
    says(node, &["tg-task", "nodes"], 1, &[refusal])?;
    holder.signal(KILL)?;
    comes_to_say(node, &["tg-task", "nodes"], &["alive"])?;
    comes_to_say(node, &["tg-spawn", "-n", "3", "true"], &[])
}

/// What users do to a daemon, all at once and as much as they can, is refused to them alone: no node dies of it, no
/// task ends, root and other users are served, and nothing is read or ended with the rights of root.
pub(crate) fn hostile_users(cluster: &Cluster) -> Result<()> {
    let daemons = daemons(cluster)?;
    let node = cluster.node(0);
    let mut master = node.sh("exec tg-spawn -v -N 1 -- sleep 984 2>&1").as_root().spawn()?;
    let line = master.wait_for_line(LIMIT, |line| line.contains("task 0 is "))?;
    let task = line.rsplit(' ').next().unwrap_or_default().to_owned();
    let nodes = || says(node, &["tg-task", "nodes"], 0, &["0\talive", "1\talive", "2\talive"]);
    let incarnations = |said: &str| -> Vec<String> {
        said.lines().filter_map(|line| line.rsplit(' ').next()).map(str::to_owned).collect()
    };
    let before = incarnations(&nodes()?);

    // Three users hold all places that they get.
    let hold = |uid: &str| -> Result<Running> {
        let words = ["tg-hostile-tgd", "--user", uid, "places"];
        Ok(node.argv(&words).as_root().keep_input_open().spawn_until(LIMIT, |line| line.contains(" held: "))?)
    };
    let holders = ["2001", "2002", "2003"].map(hold);
    let holders = holders.into_iter().collect::<Result<Vec<_>>>()?;
    says_as(User::Root, node, &["tg-spawn", "-n", "3", "true"], 0, &[])?;
    nodes()?;
    for holder in &holders {
        holder.signal(KILL)?;
    }
    comes_to_say(node, &["tg-hostile-tgd", "frames"], &["8 kinds of frames"])?;

    // More letters than may be on their way, of two users at once.
    let other = node.argv(&["tg-hostile-tgd", "--user", "2001", "letters", "1"]).as_root().spawn()?;
    println!("  {}", says(node, &["tg-hostile-tgd", "letters", "1"], 0, &[" done, "])?.trim());
    other.check(LIMIT)?;
    says_as(User::Root, node, &["tg-task", "kill", "-s", "0", &task], 0, &[])?;

    let pid = daemons_of(node)?.pop().context("no daemon")?;
    println!("  {}", says(node, &["tg-hostile-tgd", "threads", &pid], 0, &["0 of "])?.trim());

    // A directory that its user may not enter.
    let script = "mkdir -p -m 700 /tmp/closed && mkdir -p /tmp/closed/in && echo secret >/tmp/closed/in/file";
    node.sh(script).as_root().check()?;
    let said =
        says(node, &["tg-spawn", "-N", "0", "-d", "/tmp/closed/in", "cat", "file"], 126, &["Permission denied"])?;
    ensure!(!said.contains("secret"), "{said}");
    node.sh("rm -r /tmp/closed").as_root().check()?;

    let after = incarnations(&nodes()?);
    ensure!(after == before, "incarnations {after:?} after {before:?}");
    says_as(User::Root, node, &["tg-task", "kill", &task], 0, &[])?;
    ends(master, 143, &[])?;
    drop(daemons);
    Ok(())
}
