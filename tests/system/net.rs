// SPDX-License-Identifier: MIT OR Apache-2.0
//! The network between the nodes, tg0.

use crate::help::within;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::time::Duration;
use telegraphos_cluster::{Cluster, Guest, Running};

const LIMIT: Duration = Duration::from_secs(60);

fn address(node: &Guest) -> String {
    telegraphos_agent::network::address(node.node() as u16).to_string()
}

/// A process that answers the others; what it is told, it is told as options.
fn server(guest: &Guest, options: &[&str]) -> Result<Running> {
    let mut server = guest.argv(&[&["tg-net", "serve"], options].concat()).spawn()?;
    server.wait_for_line(LIMIT, |line| line == "serving")?;
    Ok(server)
}

/// What the driver counts, by name.
fn counters(guest: &Guest) -> Result<BTreeMap<String, u64>> {
    let text = guest.argv(&["tg-net", "counters"]).check()?;
    let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| Ok((name.to_owned(), value.parse()?))).collect()
}

fn counter(guest: &Guest, name: &str) -> Result<u64> {
    counters(guest)?.remove(name).with_context(|| format!("there is no counter {name}"))
}

fn reaches(from: &Guest, to: &Guest) -> Result<()> {
    let name = format!("node{}", to.node());
    from.argv(&["ping", "-c", "1", "-w", "5", &name]).as_root().limit(LIMIT).check()?;
    Ok(())
}

fn set_mtu(guests: &[&Guest], mtu: u32) -> Result<()> {
    guests.iter().try_for_each(|guest| {
        guest.sh(&format!("ip link set tg0 mtu {mtu}")).as_root().check()?;
        Ok(())
    })
}

fn sizes_of_all_kinds(a: &Guest, b: &Guest) -> Result<()> {
    // With an MTU of 68 Linux itself answers no ping of 20 000 bytes (docs/net.md).
    const SIZES: [u32; 7] = [20, 200, 241, 1472, 8972, 20_000, 65_000];
    for (mtu, most) in [(9000, 65_000), (68, 1472), (1500, 20_000), (65_500, 65_000)] {
        set_mtu(&[a, b], mtu)?;
        for size in SIZES.iter().filter(|size| **size <= most) {
            let size = size.to_string();
            let ping = a.argv(&["ping", "-c", "2", "-i", "0.1", "-w", "10", "-s", &size, &address(b)]);
            let said = ping.as_root().limit(LIMIT).run()?;
            ensure!(said.stdout.contains(" 0% packet loss"), "MTU {mtu}, {size} bytes:\n{}", said.stdout);
        }
    }
    Ok(())
}

/// By name, with frames of every kind of size: by stores, by copies, and in fragments.
pub(crate) fn all_pairs(cluster: &Cluster) -> Result<()> {
    for from in cluster.guests() {
        for to in cluster.guests() {
            within(Duration::from_secs(10), || reaches(from, to))?;
        }
    }
    let (a, b) = (cluster.node(0), cluster.node(2));
    let sizes = sizes_of_all_kinds(a, b);
    set_mtu(&[a, b], 9000)?;
    sizes?;
    let (before, other) = (counter(a, "tx_fanout")?, cluster.guests().len() as u64 - 1);
    let flush = format!("ip neigh flush dev tg0; arping -c 3 -w 5 -I tg0 {}", address(b));
    a.sh(&flush).as_root().limit(LIMIT).check()?;
    let fanout = counter(a, "tx_fanout")? - before;
    ensure!(fanout >= other, "a broadcast went to {fanout} nodes: expected {other} at least");
    Ok(())
}

/// Both ways at once, and from two to one, with a reader that stops: no byte is lost, and none is sent twice for it.
pub(crate) fn bulk_is_whole(cluster: &Cluster) -> Result<()> {
    let (a, b, c) = (cluster.node(0), cluster.node(1), cluster.node(2));
    let _servers = [server(a, &[])?, server(b, &["--pause", "2000"])?];
    let send = |from: &Guest, to: &Guest| -> Result<Running> {
        Ok(from.argv(&["tg-net", "bulk", &address(to), "16"]).limit(LIMIT).spawn()?)
    };
    for running in [send(a, b)?, send(b, a)?, send(c, b)?] {
        let output = running.wait_for(LIMIT)?;
        ensure!(output.status.success(), "{}: {}{}", output.status, output.stdout, output.stderr);
        println!("  {}", output.stdout.trim());
    }
    for guest in [a, b, c] {
        for name in ["tx_no_room", "tx_too_long", "tx_lost", "rx_bad_index", "rx_bad_length", "rx_bad_header"] {
            ensure!(counter(guest, name)? == 0, "node {}: {:?}", guest.node(), counters(guest)?);
        }
        let retransmitted = guest.sh("awk '/^Tcp: [0-9]/ { print $13 }' /proc/net/snmp").check()?;
        println!("  node {}: {} segments sent again", guest.node(), retransmitted.trim());
    }
    Ok(())
}

/// One node calls, and each other hears all, once; how many frames the switch made the copies of.
fn call(from: &Guest, others: &[&Guest], count: u64) -> Result<u64> {
    let text = count.to_string();
    let hears = |guest: &&Guest| -> Result<Running> {
        let mut hearer = guest.argv(&["tg-net", "hear", &text]).as_root().spawn()?;
        hearer.wait_for_line(LIMIT, |line| line == "hearing")?;
        Ok(hearer)
    };
    let hearers = others.iter().map(hears).collect::<Result<Vec<_>>>()?;
    let before = counter(from, "tx_multicast")?;
    from.argv(&["tg-net", "call", &text]).limit(LIMIT).check()?;
    let stored = counter(from, "tx_multicast")? - before;
    for hearer in hearers {
        let output = hearer.wait_for(2 * LIMIT)?;
        ensure!(output.status.success(), "{}: {}{}", output.status, output.stdout, output.stderr);
    }
    Ok(stored)
}

/// Broadcasts of up to 256 bytes are stored once, and the switch makes the copies; each node gets each frame once, also
/// when the driver of one of them has just come, and whatever a copy has no room for.
pub(crate) fn multicast_by_the_switch(cluster: &Cluster) -> Result<()> {
    let (a, b, c) = (cluster.node(0), cluster.node(1), cluster.node(2));
    // A copy begins with the next frame to all.
    let copies = || -> Result<()> {
        let stored = call(a, &[b, c], 4)?;
        ensure!(stored > 0, "no broadcast has been stored once: {:?}", counters(a)?);
        Ok(())
    };
    within(LIMIT, copies)?;
    let before = counters(a)?;
    let stored = call(a, &[b, c], 1000)?;
    let after = counters(a)?;
    let more = |name: &str| after[name] - before[name];
    println!("  of 1000 broadcasts {stored} were stored once; {} frames by stores in all", more("tx_stores"));
    // That much a copy has room for, if nothing of it is read meanwhile.
    ensure!(stored >= 100, "{stored} of 1000 broadcasts were stored once: {after:?}");
    ensure!(more("tx_fanout") == 2000, "{} frames reached two nodes", more("tx_fanout"));
    ensure!(more("tx_no_room") == 0, "{after:?}");

    b.argv(&["rmmod", "telegraphos_net"]).as_root().limit(LIMIT).check()?;
    insert(b)?;
    within(LIMIT, || reaches(b, a))?;
    call(a, &[b, c], 100)?;
    within(LIMIT, copies)
}

/// On another kernel: by name and in both directions at once, with what the driver counts.
pub(crate) fn between_two(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(1));
    for (from, to) in [(a, b), (b, a)] {
        within(Duration::from_secs(20), || reaches(from, to))?;
    }
    let _servers = [server(a, &[])?, server(b, &[])?];
    let send = |from: &Guest, to: &Guest| from.argv(&["tg-net", "bulk", &address(to), "8"]).limit(LIMIT).spawn();
    for running in [send(a, b)?, send(b, a)?] {
        let output = running.wait_for(LIMIT)?;
        ensure!(output.status.success(), "{}: {}{}", output.status, output.stdout, output.stderr);
        println!("  {}", output.stdout.trim());
    }
    for guest in [a, b] {
        for name in ["tx_lost", "rx_bad_index", "rx_bad_length", "rx_bad_header"] {
            ensure!(counter(guest, name)? == 0, "node {}: {:?}", guest.node(), counters(guest)?);
        }
    }
    Ok(())
}

/// A node that speaks as a driver does, and then writes what none would: it is counted, and others notice nothing.
pub(crate) fn hostile_node(cluster: &Cluster) -> Result<()> {
    let (a, b, c) = (cluster.node(0), cluster.node(1), cluster.node(2));
    let _server = server(a, &[])?;
    c.argv(&["rmmod", "telegraphos_net"]).as_root().check()?;
    let connections = counter(a, "connections")?;
    let attack = c.argv(&["tg-net", "hostile", "0"]).as_root().limit(LIMIT).spawn()?;
    b.argv(&["tg-net", "bulk", &address(a), "8"]).limit(LIMIT).check()?;
    let output = attack.wait_for(LIMIT)?;
    ensure!(output.status.success(), "{}: {}{}", output.status, output.stdout, output.stderr);
    for name in ["rx_bad_index", "rx_bad_length", "rx_bad_header"] {
        ensure!(counter(a, name)? > 0, "{name}: {:?}", counters(a)?);
    }
    println!("  {:?}", counters(a)?);
    let more = counter(a, "connections")? - connections;
    ensure!(more == 1, "{more} connections with a node that said hello once and then goodbye");
    insert(c)?;
    within(Duration::from_secs(20), || reaches(c, a))?;
    within(Duration::from_secs(20), || reaches(a, c))
}

/// A node that ends the watches of another one by stores that change nothing: others are heard nevertheless. Then it
/// reads nothing, and says where it would continue, of which there is none: nobody polls for that.
pub(crate) fn deaf_node(cluster: &Cluster) -> Result<()> {
    let (a, b, c) = (cluster.node(0), cluster.node(1), cluster.node(2));
    // Its address is known: nobody will answer for it.
    within(Duration::from_secs(20), || reaches(a, c))?;
    c.argv(&["rmmod", "telegraphos_net"]).as_root().limit(LIMIT).check()?;
    let mut deaf = c.argv(&["tg-net", "deaf", "0"]).as_root().keep_input_open().spawn()?;
    deaf.wait_for_line(LIMIT, |line| line == "connected")?;
    b.argv(&["rmmod", "telegraphos_net"]).as_root().limit(LIMIT).check()?;
    // It has been noticed that it has gone.
    telegraphos_cluster::sleep(Duration::from_secs(1))?;
    deaf.write("\n")?;
    deaf.wait_for_line(LIMIT, |line| line == "rung")?;
    telegraphos_cluster::sleep(Duration::from_millis(100))?;
    insert(b)?;
    within(Duration::from_secs(20), || reaches(b, a))?;

    let before = counters(a)?;
    let flood = ["ping", "-c", "200", "-i", "0.01", "-s", "8900", "-w", "4", &address(c)];
    a.argv(&flood).as_root().limit(LIMIT).run()?;
    deaf.wait_for_line(LIMIT, |line| line == "full")?;
    telegraphos_cluster::sleep(Duration::from_millis(500))?;
    let full = counters(a)?;
    ensure!(full["tx_stops"] > before["tx_stops"], "the queue to node 2 does not wait: {full:?}");
    ensure!(full["rx_bad_index"] > before["rx_bad_index"], "the head has not been seen: {full:?}");
    telegraphos_cluster::sleep(Duration::from_secs(4))?;
    let polls = counter(a, "rx_polls")? - full["rx_polls"];
    println!("  {polls} polls in 4 s without anything to read");
    // Some follow what was there before, at intervals of seconds.
    ensure!(polls < 50, "{polls} polls in 4 s without anything to read");

    drop(deaf);
    insert(c)?;
    within(Duration::from_secs(20), || reaches(c, a))
}

/// A node whose board hangs does not answer where another one's driver comes: it is said hello to again.
pub(crate) fn board_hangs(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(1));
    within(Duration::from_secs(20), || reaches(a, b))?;
    a.argv(&["rmmod", "telegraphos_net"]).as_root().limit(LIMIT).check()?;
    telegraphos_cluster::sleep(Duration::from_millis(500))?;
    b.hang_hib(true);
    let inserted = insert(a);
    telegraphos_cluster::sleep(Duration::from_secs(5))?;
    b.hang_hib(false);
    inserted?;
    within(Duration::from_secs(20), || reaches(a, b))?;
    within(Duration::from_secs(20), || reaches(b, a))
}

/// Loads the module again: its device gets the address of the node.
fn insert(guest: &Guest) -> Result<()> {
    guest.argv(&["insmod", "/lib/telegraphos/telegraphos_net.ko"]).as_root().limit(LIMIT).check()?;
    Ok(())
}

/// A connection of which something is on its way.
fn endless(from: &Guest, to: &Guest) -> Result<Running> {
    Ok(from.argv(&["tg-net", "bulk", &address(to), "4096"]).spawn()?)
}

/// The module goes and comes amid traffic.
pub(crate) fn module_reloaded_amid_traffic(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(1));
    let _server = server(a, &[])?;
    let traffic = endless(b, a)?;
    telegraphos_cluster::sleep(Duration::from_millis(500))?;
    for _ in 0..3 {
        b.argv(&["rmmod", "telegraphos_net"]).as_root().limit(LIMIT).check()?;
        insert(b)?;
        within(Duration::from_secs(20), || reaches(b, a))?;
    }
    drop(traffic);
    within(Duration::from_secs(20), || reaches(a, b))
}

/// A node is reset amid traffic: the connection ends, and the node can be reached when it is back.
pub(crate) fn node_reset_amid_traffic(cluster: &Cluster) -> Result<()> {
    let (a, b, c) = (cluster.node(0), cluster.node(1), cluster.node(2));
    let _server = server(b, &[])?;
    let traffic = endless(a, b)?;
    telegraphos_cluster::sleep(Duration::from_millis(500))?;
    b.reset()?;
    within(Duration::from_secs(30), || reaches(a, b))?;
    // The node that came back does not know the connection.
    let output = traffic.wait_for(LIMIT)?;
    ensure!(!output.status.success(), "the connection to a node that was reset goes on:\n{}", output.stdout);
    reaches(c, b)?;
    // The last node but one that is there takes the carrier along.
    let carrier = a.sh("cat /sys/class/net/tg0/carrier").check()?;
    ensure!(carrier.trim() == "1", "carrier is {carrier}");
    Ok(())
}

/// Frames to a node that has just gone, whose neighbour entry stays, are dropped and counted, and nothing else: other
/// nodes are reached.
fn frames_to_a_node_that_is_gone(from: &Guest, gone: &Guest, other: &Guest) -> Result<()> {
    let before = counter(from, "tx_no_node")?;
    let ping = format!("ping -c 5 -i 0.1 -w 3 {}", address(gone));
    let output = from.sh(&ping).as_root().limit(LIMIT).run()?;
    ensure!(!output.status.success(), "a node without a board answers:\n{}", output.stdout);
    let after = counters(from)?;
    ensure!(after["tx_no_node"] >= before + 5, "5 frames to no node, and {before} before: {after:?}");
    reaches(from, other)
}

/// The board is unplugged amid traffic; the guest lives on, and so do the others.
pub(crate) fn unplugged_amid_traffic(cluster: &Cluster) -> Result<()> {
    let (a, b, c) = (cluster.node(0), cluster.node(1), cluster.node(2));
    let _server = server(a, &[])?;
    let traffic = endless(b, a)?;
    telegraphos_cluster::sleep(Duration::from_millis(500))?;
    reaches(a, b)?;
    b.device_del()?;
    let gone = b.sh("! [ -e /sys/class/net/tg0 ]").check();
    let dropped = frames_to_a_node_that_is_gone(a, b, c);
    b.device_add()?;
    b.wait_for_device()?;
    gone?;
    dropped?;
    drop(traffic);
    // It has its address without anything else.
    within(Duration::from_secs(20), || reaches(b, a))?;
    within(Duration::from_secs(20), || reaches(c, b))
}
