// SPDX-License-Identifier: MIT OR Apache-2.0
//! Channels between processes: of two nodes with memory in common, of a third one beside them, and of one node.

use crate::help::{LIMIT, Start, without_power};
use anyhow::{Context, Result, ensure};
use std::time::{Duration, Instant};
use telegraphos_cluster::control::{Request, Target};
use telegraphos_cluster::{Cluster, Guest, Running};

fn serving(node: &Guest, name: &str, options: &[&str]) -> Result<Running> {
    node.argv(&[&["tg-channel", "serve", name], options].concat()).keep_input_open().until("serving")
}

/// Records of all lengths, both ways, between ends that look and ends that sleep.
pub(crate) fn all_lengths(cluster: &Cluster) -> Result<()> {
    let ends = [(0, "(Direct, Direct)"), (1, "(Direct, Direct)"), (2, "(Boards, Boards)")];
    for (look, count) in [("100000", "300"), ("0", "100")] {
        let _server = serving(cluster.node(1), &format!("all{look}"), &["--look", look])?;
        for (node, carriers) in ends {
            let words = ["tg-channel", "check", "1", &format!("all{look}"), count, "--look", look];
            // Stores through boards trap, each of them.
            let few = if node == 2 { "40" } else { count };
            let words = words.map(|word| if word == count { few } else { word });
            let said = cluster.node(node).argv(&words).limit(LIMIT).check()?;
            println!("  node {node}, look {look}: {}", said.trim().replace('\n', "; "));
            ensure!(said.contains(carriers), "{said}: expected {carriers}");
        }
    }
    Ok(())
}

/// What a program says at last, and how long after that moment.
fn says(program: &mut Running, begins: &str, since: Instant) -> Result<()> {
    let line = program.wait_for_line(LIMIT, |line| line.starts_with(begins))?;
    println!("  after {:?}: {line}", since.elapsed());
    Ok(())
}

/// A process that ends without closing: the other end is notified, asleep, with nothing to receive, or for room.
pub(crate) fn process_dies(cluster: &Cluster) -> Result<()> {
    let mut server = serving(cluster.node(1), "dies", &[])?;
    for node in [0, 2] {
        let client = cluster.node(node).argv(&["tg-channel", "hold", "1", "dies"]).keep_input_open();
        let client = client.until("holding")?;
        let killed = Instant::now();
        drop(client);
        says(&mut server, "ended: the other end, on node", killed)?;
    }
    drop(server);
    for (node, what, ready) in [(0, "hold", "holding"), (2, "hold", "holding"), (0, "fill", "full after")] {
        let server = serving(cluster.node(1), &format!("dies{node}{what}"), &[])?;
        let words = ["tg-channel", what, "1", &format!("dies{node}{what}")];
        let mut client = cluster.node(node).argv(&words).keep_input_open().until_begins(ready)?;
        let killed = Instant::now();
        drop(server);
        says(&mut client, "ended: the other end, on node 1", killed)?;
    }
    Ok(())
}

/// A node that loses its power, and stays without.
pub(crate) fn node_loses_its_power(cluster: &Cluster) -> Result<()> {
    let _server = serving(cluster.node(1), "power", &[])?;
    let _other = serving(cluster.node(1), "power2", &[])?;
    let hold = |node: usize, name: &str| {
        cluster.node(node).argv(&["tg-channel", "hold", "1", name]).keep_input_open().until("holding")
    };
    let mut clients = [hold(0, "power")?, hold(2, "power2")?];
    without_power(cluster.node(1), |begun| {
        clients.iter_mut().try_for_each(|client| says(client, "ended: the other end, on node 1", begun))
    })
}

/// A process that stores anything into the memory of the other end, in common or through the boards: its channel ends,
/// with the reason, and nothing else does.
pub(crate) fn hostile_process(cluster: &Cluster) -> Result<()> {
    let mut server = serving(cluster.node(1), "victim", &["--ring", "4096"])?;
    for node in [0, 2] {
        let mut liar = cluster.node(node).argv(&["tg-channel", "lies", "1", "victim", "77"]).spawn()?;
        for lie in ["Length", "Sequence", "Credit", "End", "Anything"] {
            let line = server.wait_for_line(LIMIT, |line| line.starts_with("ended: "));
            let line = line.with_context(|| format!("{lie} of node {node}"))?;
            println!("  {lie}: {line}");
            let is_named = line.contains("does not keep to the rules") || lie == "Anything";
            ensure!(is_named, "{lie}: {line}");
            liar.wait_for_line(LIMIT, |line| line == format!("{lie} told"))?;
        }
        liar.check(LIMIT)?;
        cluster
            .node(node)
            .argv(&["tg-channel", "check", "1", "victim", "20", "--ring", "4096"])
            .limit(LIMIT)
            .check()?;
    }
    Ok(())
}

/// While a link has faults, memory in common is reached through the boards: nothing is lost, twice or for ever late.
pub(crate) fn faults_amid_a_stream(cluster: &Cluster) -> Result<()> {
    let _server = serving(cluster.node(1), "faults", &["--look", "0"])?;
    let mut control = cluster.control()?;
    let mut set = |faults: &str| -> Result<()> {
        let faults = faults.parse().map_err(|e| anyhow::anyhow!("{e}"))?;
        control.command(&Request::SetFaults { on: Target::Node(1), faults })?;
        Ok(())
    };
    let client = cluster.node(0).argv(&["tg-channel", "check", "1", "faults", "1500", "--look", "0"]).spawn()?;
    for _ in 0..4 {
        set("latency=1ms")?;
        telegraphos_cluster::sleep(Duration::from_millis(700))?;
        set("latency=0ms")?;
        telegraphos_cluster::sleep(Duration::from_millis(700))?;
    }
    let said = client.check(LIMIT)?.stdout;
    println!("  {}", said.trim().replace('\n', "; "));
    Ok(())
}

/// What bytes there and back take, beside a bare ring in the same memory; and through the boards.
pub(crate) fn roundtrips(cluster: &Cluster) -> Result<()> {
    for (node, rounds) in [(0, "5"), (2, "2")] {
        let name = format!("bench{node}");
        let partner = cluster.node(1).argv(&["tg-channel", "partner", &name]).until("serving")?;
        let words = ["tg-channel", "bench", "1", &name, rounds];
        let said = cluster.node(node).argv(&words).limit(Duration::from_secs(300)).check()?;
        said.lines().for_each(|line| println!("  node {node}: {line}"));
        partner.check(LIMIT)?;
    }
    Ok(())
}
