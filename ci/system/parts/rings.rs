// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rings between the boards of separate processes, with real guests: what they carry the fabric does not see, and what
//! is to be seen they do not carry (`docs/fabric.md`, "Rings between boards of one host").

use crate::help::{Export, Start, both_ways, stores_of, within};
use anyhow::{Result, ensure};
use std::time::Duration;
use telegraphos_cluster::Cluster;
use telegraphos_cluster::control::snapshot::Snapshot;
use telegraphos_cluster::control::{ControlClient, Request, Response, Target};

/// The nodes that are looked at during a flood between the two others.
const BOTH: [usize; 2] = [0, 3];

/// All that a fabric counts.
pub(crate) fn snapshot(control: &mut ControlClient) -> Result<Snapshot> {
    match control.request(&Request::Statistics {})? {
        Response::Statistics(snapshot) => Ok(snapshot),
        other => anyhow::bail!("statistics are {other:?}"),
    }
}

/// Waits until so many rings are in use.
pub(crate) fn come_to(cluster: &Cluster, rings: u64) -> Result<()> {
    within(|| {
        let found = snapshot(&mut cluster.control()?)?.totals.rings;
        ensure!(found == rings, "{found} rings are in use: expected {rings}");
        Ok(())
    })
}

/// Rings of a cluster of which each two nodes have one.
pub(crate) fn of_all(cluster: &Cluster) -> u64 {
    let nodes = cluster.guests().len() as u64;
    nodes * (nodes - 1) / 2
}

/// Requests and replies of these two nodes that the switch has received while they store into each other's memory and
/// load from it, again and again.
fn seen(cluster: &Cluster, nodes: [usize; 2]) -> Result<u64> {
    let received = || -> Result<u64> {
        let ports = snapshot(&mut cluster.control()?)?.ports;
        let of_both = ports.iter().filter(|port| nodes.contains(&usize::from(port.node)));
        Ok(of_both.map(|port| port.classes.request.received.packets + port.classes.reply.received.packets).sum())
    };
    let before = received()?;
    for _ in 0..3 {
        both_ways(cluster.node(nodes[0]), cluster.node(nodes[1]))?;
    }
    Ok(received()? - before)
}

/// There is a flood of stores meanwhile, between two other nodes: none is lost, doubled or out of order when its path
/// changes.
pub(crate) fn carry_what_nothing_observes(cluster: &Cluster) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (from, to) = (cluster.node(2), cluster.node(1));
    let all = of_all(cluster);
    let watch = to.argv(&["tg-watch", "by-ring", "--monotonic"]).until_begins("exported")?;
    come_to(cluster, all)?;
    let flood = from.argv(&["tg-flood", "1", "by-ring", "--seconds", "20"]).spawn()?;
    for round in 0..2 {
        ensure!(seen(cluster, BOTH)? == 0, "round {round}: requests pass the fabric although there are rings");

        let file = directory.path().join(format!("{round}.pcapng")).display().to_string();
        cluster.control()?.command(&Request::CaptureStart { file, on: Target::All })?;
        come_to(cluster, 0)?;
        let captured = seen(cluster, BOTH)?;
        ensure!(captured > 0, "round {round}: nothing passes the fabric while it captures");
        cluster.control()?.command(&Request::CaptureStop {})?;
        come_to(cluster, all)?;
        ensure!(seen(cluster, BOTH)? == 0, "round {round}: requests pass the fabric although the capture has ended");

        let slow = "latency=1ms".parse().map_err(|e| anyhow::anyhow!("{e}"))?;
        cluster.control()?.command(&Request::SetFaults { on: Target::Node(3), faults: slow })?;
        // Node 3 has one to each of the others.
        come_to(cluster, all - (cluster.guests().len() as u64 - 1))?;
        let slowed = seen(cluster, BOTH)?;
        ensure!(slowed > 0, "round {round}: nothing meets the faults of node 3");
        cluster.control()?.command(&Request::ClearFaults { on: Target::Node(3) })?;
        come_to(cluster, all)?;
        println!("  round {round}: {captured} requests and replies beside rings, {slowed} while there are faults");
    }
    let flood = flood.check(Duration::from_secs(120))?;
    let watched = watch.check(Duration::from_secs(60))?;
    let (sent, arrived) = (stores_of(&flood.stdout), stores_of(&watched.stdout));
    ensure!(sent > Some(0) && sent == arrived, "{sent:?} stores were issued, {arrived:?} counted");
    ensure!(snapshot(&mut cluster.control()?)?.totals.rings_lost == 0, "a ring was lost");
    Ok(())
}

/// A node that is reset, with its guest, gets a new ring, and its peer continues. Neither link has had faults: it would
/// carry no descriptors.
pub(crate) fn are_new_after_a_reset(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(2));
    let export = Export::of(a, "stays", "64K")?;
    export.store_from(cluster.node(1), 0, 1)?;
    b.reset()?;
    within(|| {
        ensure!(seen(cluster, [0, 2])? == 0, "requests pass the fabric after a reset");
        Ok(())
    })?;
    ensure!(export.load_from(b, 0)? == 1, "the reset node does not see what another one exports");
    Ok(())
}
