// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages between threads of processes on several nodes.

use crate::help::within;
use anyhow::{Result, ensure};
use std::time::Duration;
use telegraphos_cluster::{Cluster, Guest, Running};

const LIMIT: Duration = Duration::from_secs(120);

/// Each thread of each node sends all threads of all nodes what goes to slots, what goes there in fragments, and what
/// boards fetch or store; each message comes once, whole, and those of one thread to another in their order.
pub(crate) fn all_to_all(cluster: &Cluster) -> Result<()> {
    for options in [&[][..], &["--way", "put"], &["--paper"]] {
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

/// A process whose thread receives nothing, and one that sends it a message and waits.
fn waiting(from: &Guest, to: &Guest, name: &str, bytes: &str) -> Result<(Running, Running)> {
    let mut server = to.argv(&["tg-msg", "serve", name]).keep_input_open().spawn()?;
    server.wait_for_line(LIMIT, |line| line == "serving")?;
    let node = to.node().to_string();
    let mut sender = from.argv(&["tg-msg", "send", &node, name, "3", bytes]).spawn()?;
    sender.wait_for_line(LIMIT, |line| line == "sending")?;
    telegraphos_cluster::sleep(Duration::from_millis(300))?;
    Ok((server, sender))
}

/// It does not wait for ever, gets no signal, and says what has happened.
fn is_told(sender: Running, what: &str) -> Result<()> {
    let output = sender.wait_for(Duration::from_secs(20))?;
    let told = output.status.code() == 1 && output.stderr.contains("the other process has gone");
    ensure!(told, "{what}: {}: {}{}", output.status, output.stdout, output.stderr);
    Ok(())
}

/// A process dies that has a message, or a request for one, which its thread has not received.
pub(crate) fn process_dies(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(1));
    for bytes in ["10", "100000"] {
        let (server, sender) = waiting(a, b, &format!("victim-{bytes}"), bytes)?;
        // Killed.
        drop(server);
        is_told(sender, bytes)?;
    }
    // One that lives receives it.
    let (mut server, sender) = waiting(a, b, "alive", "100000")?;
    server.write("\n")?;
    server.wait_for_line(LIMIT, |line| line == "100000 bytes with tag 3")?;
    let output = sender.wait_for(LIMIT)?;
    ensure!(output.status.success(), "{}: {}{}", output.status, output.stdout, output.stderr);
    Ok(())
}

/// Its node is reset.
pub(crate) fn node_is_reset(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(1));
    let (_server, sender) = waiting(a, b, "reset", "100000")?;
    b.reset()?;
    is_told(sender, "a node was reset")?;
    // Processes there are others, under the same name.
    within(LIMIT, || {
        let (mut server, sender) = waiting(a, b, "reset", "10")?;
        server.write("\n")?;
        server.wait_for_line(LIMIT, |line| line == "10 bytes with tag 3")?;
        ensure!(sender.wait_for(LIMIT)?.status.success(), "the sender failed");
        Ok(())
    })
}
