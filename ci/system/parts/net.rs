// SPDX-License-Identifier: MIT OR Apache-2.0
//! The network between the nodes, tg0.

use crate::help::{LIMIT, Start, plug, within};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::time::Duration;
use telegraphos_cluster::{Cluster, Guest, Running};

fn address(node: &Guest) -> String {
    telegraphos_agent::network::address(node.node() as u16).to_string()
}

/// A process that answers the others; its instructions are options.
fn server(guest: &Guest, options: &[&str]) -> Result<Running> {
    guest.argv(&[&["tg-net", "serve"], options].concat()).until("serving")
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

pub(crate) fn reaches(from: &Guest, to: &Guest) -> Result<()> {
    let name = format!("node{}", to.node());
    from.argv(&["ping", "-c", "1", "-w", "5", &name]).as_root().limit(LIMIT).check()?;
    Ok(())
}

/// The same once it does, which may take a while.
pub(crate) fn comes_to_reach(from: &Guest, to: &Guest) -> Result<()> {
    within(|| reaches(from, to))
}

/// Sends so many MiB on each of these ways at once.
fn bulk(ways: &[(&Guest, &Guest)], mib: &str) -> Result<()> {
    let send = |(from, to): &(&Guest, &Guest)| from.argv(&["tg-net", "bulk", &address(to), mib]).limit(LIMIT).spawn();
    for running in ways.iter().map(send).collect::<Vec<_>>() {
        println!("  {}", running?.check(LIMIT)?.stdout.trim());
    }
    Ok(())
}

fn counts_none_of(guest: &Guest, names: &[&str]) -> Result<()> {
    names.iter().try_for_each(|name| {
        ensure!(counter(guest, name)? == 0, "node {}: {:?}", guest.node(), counters(guest)?);
        Ok(())
    })
}

/// Frames to a node go out meanwhile although it does not answer for its address: a learned neighbour entry fails some
/// seconds after it was last confirmed.
fn while_known(from: &Guest, node: &Guest, act: impl FnOnce() -> Result<()>) -> Result<()> {
    let (address, ethernet) = (address(node), telegraphos_agent::network::ethernet(node.node() as u16));
    from.argv(&["arp", "-i", "tg0", "-s", &address, &ethernet]).as_root().limit(LIMIT).check()?;
    let done = act();
    let forgotten = from.argv(&["arp", "-i", "tg0", "-d", &address]).as_root().limit(LIMIT).check();
    done?;
    forgotten?;
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
            comes_to_reach(from, to)?;
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
    bulk(&[(a, b), (b, a), (c, b)], "16")?;
    for guest in [a, b, c] {
        counts_none_of(
            guest,
            &["tx_no_room", "tx_too_long", "tx_lost", "rx_bad_index", "rx_bad_length", "rx_bad_header"],
        )?;
        let retransmitted = guest.sh("awk '/^Tcp: [0-9]/ { print $13 }' /proc/net/snmp").check()?;
        println!("  node {}: {} segments sent again", guest.node(), retransmitted.trim());
    }
    Ok(())
}

/// One node calls, and each other hears all, once; each frame to a group, those of the kernel, too, reaches each other
/// node once. How many frames the switch made the copies of.
fn call(from: &Guest, others: &[&Guest], count: u64) -> Result<u64> {
    let text = count.to_string();
    let hears =
        |guest: &&Guest| -> Result<Running> { guest.argv(&["tg-net", "hear", &text]).as_root().until("hearing") };
    let hearers = others.iter().map(hears).collect::<Result<Vec<_>>>()?;
    let before = counter(from, "tx_multicast")?;
    let said = from.argv(&["tg-net", "call", &text, &others.len().to_string()]).as_root().limit(LIMIT).check()?;
    let stored = counter(from, "tx_multicast")? - before;
    let word = |name: &str| said.split_whitespace().find_map(|word| word.strip_prefix(name)?.parse::<u64>().ok());
    let said = word("others=").zip(word("reached=")).with_context(|| format!("`tg-net call` says {said:?}"))?;
    let (kernels, reached) = said;
    let nodes = others.len() as u64;
    ensure!(
        reached == (count + kernels) * nodes,
        "{count} frames, and {kernels} of the kernel, reached {reached} of {nodes} nodes; {:?}\n{}",
        counters(from)?,
        from.sh("cd /sys/class/net/tg0/statistics && grep . tx_packets tx_dropped tx_errors").check()?
    );
    for hearer in hearers {
        hearer.check(2 * LIMIT)?;
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
    within(copies)?;
    let before = counters(a)?;
    let stored = call(a, &[b, c], 1000)?;
    let after = counters(a)?;
    let more = |name: &str| after[name] - before[name];
    println!("  of 1000 broadcasts {stored} were stored once; {} frames by stores in all", more("tx_stores"));
    // That much a copy has room for, if nothing of it is read meanwhile.
    ensure!(stored >= 100, "{stored} of 1000 broadcasts were stored once: {after:?}");
    ensure!(more("tx_no_room") == 0, "{after:?}");

    remove(b)?;
    insert(b)?;
    comes_to_reach(b, a)?;
    call(a, &[b, c], 100)?;
    within(copies)
}

/// What a kernel exports for the kernels of other nodes, none of its processes and none of others can import, root's
/// neither; nor can a process export anything under such a name.
pub(crate) fn kernels_names_are_the_kernels(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(1));
    let debugfs = "/sys/kernel/debug";
    let mount = format!("grep -q debugfs /proc/mounts || mount -t debugfs none {debugfs}");
    let list =
        format!("{mount}; cat {debugfs}/telegraphos/telegraphos0/exports {debugfs}/telegraphos/telegraphos0/replicas");
    let listed = b.sh(&list).as_root().check()?;
    let names: Vec<&str> = listed.split("name=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let own: Vec<&&str> = names.iter().filter(|name| name.contains("tg0")).collect();
    // For hellos, frames that go by copies, the frames of each other node, and those to all.
    ensure!(own.len() >= 4, "the kernel of node 1 exports {names:?}");
    for name in own {
        for guest in [a, b] {
            let output = guest.argv(&["tg-load", "1", name, "0"]).as_root().limit(LIMIT).run()?;
            ensure!(!output.status.success(), "root of node {} has imported {name}:\n{}", guest.node(), output.stdout);
            let export = guest.argv(&["tg-export", &format!("{name}.mine"), "64K"]).as_root().limit(LIMIT).run()?;
            ensure!(!export.status.success(), "root of node {} has exported {name}.mine", guest.node());
        }
    }
    let accounts = a.sh("grep refused /sys/class/telegraphos/telegraphos0/accounts").check()?;
    let refused = accounts.lines().find_map(|line| line.strip_prefix("names of the kernel's own objects: refused "));
    ensure!(refused.is_some_and(|count| count.trim() != "0"), "no refused name was counted:\n{accounts}");
    Ok(())
}

/// On another kernel: by name and in both directions at once, with what the driver counts.
pub(crate) fn between_two(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(1));
    for (from, to) in [(a, b), (b, a)] {
        comes_to_reach(from, to)?;
    }
    let _servers = [server(a, &[])?, server(b, &[])?];
    bulk(&[(a, b), (b, a)], "8")?;
    [a, b]
        .into_iter()
        .try_for_each(|guest| counts_none_of(guest, &["tx_lost", "rx_bad_index", "rx_bad_length", "rx_bad_header"]))
}

/// A node that speaks as a driver does, and then writes what none would: it is counted, and others notice nothing.
pub(crate) fn hostile_node(cluster: &Cluster) -> Result<()> {
    let (a, b, c) = (cluster.node(0), cluster.node(1), cluster.node(2));
    let _server = server(a, &[])?;
    remove(c)?;
    let connections = counter(a, "connections")?;
    let attack = c.argv(&["tg-net", "hostile", "0"]).as_root().limit(LIMIT).spawn()?;
    b.argv(&["tg-net", "bulk", &address(a), "8"]).limit(LIMIT).check()?;
    attack.check(LIMIT)?;
    for name in ["rx_bad_index", "rx_bad_length", "rx_bad_header", "rx_bad_size"] {
        ensure!(counter(a, name)? > 0, "{name}: {:?}", counters(a)?);
    }
    println!("  {:?}", counters(a)?);
    let more = counter(a, "connections")? - connections;
    ensure!(more == 1, "{more} connections with a node that said hello once and then goodbye");
    insert(c)?;
    comes_to_reach(c, a)?;
    comes_to_reach(a, c)
}

/// A node that ends the watches of another one by stores that change nothing: others are heard nevertheless. Then it
/// reads nothing, and says where it would continue, of which there is none: no process polls for that.
pub(crate) fn deaf_node(cluster: &Cluster) -> Result<()> {
    let (a, c) = (cluster.node(0), cluster.node(2));
    comes_to_reach(a, c)?;
    remove(c)?;
    let met = while_known(a, c, || is_met_by_the_others(cluster, c));
    // The parts that follow have it again, whatever came of this one.
    insert(c)?;
    met?;
    comes_to_reach(c, a)
}

fn is_met_by_the_others(cluster: &Cluster, c: &Guest) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(1));
    let mut deaf = c.argv(&["tg-net", "deaf", "0"]).as_root().keep_input_open().until("connected")?;
    remove(b)?;
    // It has been noticed that it has gone.
    telegraphos_cluster::sleep(Duration::from_secs(1))?;
    deaf.write("\n")?;
    deaf.wait_for_line(LIMIT, |line| line == "rung")?;
    telegraphos_cluster::sleep(Duration::from_millis(100))?;
    insert(b)?;
    comes_to_reach(b, a)?;

    let before = counters(a)?;
    // Behind the next ones, in the memory that they are copied from, there are bytes of this one.
    let long = ["ping", "-c", "2", "-i", "0.1", "-p", "ff", "-s", "8911", "-w", "1", &address(c)];
    a.argv(&long).as_root().limit(LIMIT).run()?;
    let flood = ["ping", "-c", "200", "-i", "0.01", "-s", "8900", "-w", "4", &address(c)];
    a.argv(&flood).as_root().limit(LIMIT).run()?;
    deaf.write("\n")?;
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
    // Nothing is taken for long: the connection is ended, and the queue waits no longer.
    within(|| {
        let stuck = counter(a, "tx_stuck")?;
        ensure!(stuck > before["tx_stuck"], "{stuck} connections were ended for their queues");
        Ok(())
    })
}

/// A node whose board hangs does not answer where another one's driver comes: it is said hello to again.
pub(crate) fn board_hangs(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(1));
    comes_to_reach(a, b)?;
    remove(a)?;
    telegraphos_cluster::sleep(Duration::from_millis(500))?;
    b.hang_hib(true);
    let inserted = insert(a);
    telegraphos_cluster::sleep(Duration::from_secs(5))?;
    b.hang_hib(false);
    inserted?;
    comes_to_reach(a, b)?;
    comes_to_reach(b, a)
}

fn remove(guest: &Guest) -> Result<()> {
    guest.argv(&["rmmod", "telegraphos_net"]).as_root().limit(LIMIT).check()?;
    Ok(())
}

/// Loads the module again: its device gets the address of the node.
pub(crate) fn insert(guest: &Guest) -> Result<()> {
    guest.argv(&["insmod", "/lib/telegraphos/telegraphos_net.ko"]).as_root().limit(LIMIT).check()?;
    Ok(())
}

/// A connection of which something is on its way, and its server.
fn endless(from: &Guest, to: &Guest) -> Result<(Running, Running)> {
    let server = server(to, &[])?;
    let traffic = from.argv(&["tg-net", "bulk", &address(to), "4096"]).spawn()?;
    telegraphos_cluster::sleep(Duration::from_millis(500))?;
    Ok((traffic, server))
}

/// The module goes and comes amid traffic.
pub(crate) fn module_reloaded_amid_traffic(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(1));
    let (traffic, _server) = endless(b, a)?;
    for _ in 0..3 {
        remove(b)?;
        insert(b)?;
        comes_to_reach(b, a)?;
    }
    drop(traffic);
    comes_to_reach(a, b)
}

/// A node is reset amid traffic: the connection ends, and the node can be reached when it is back.
pub(crate) fn node_reset_amid_traffic(cluster: &Cluster) -> Result<()> {
    let (a, b, c) = (cluster.node(0), cluster.node(1), cluster.node(2));
    let (traffic, _server) = endless(a, b)?;
    b.reset()?;
    comes_to_reach(a, b)?;
    // The node that came back does not know the connection.
    let output = traffic.wait_for(LIMIT)?;
    ensure!(!output.status.success(), "the connection to a node that was reset continues:\n{}", output.stdout);
    reaches(c, b)?;
    // The last node but one that is there takes the carrier along.
    let carrier = a.sh("cat /sys/class/net/tg0/carrier").check()?;
    ensure!(carrier.trim() == "1", "carrier is {carrier}");
    Ok(())
}

/// Frames to a node that is gone, whose address is known, are dropped and counted, and nothing else: other nodes are
/// reached.
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
    let (traffic, _server) = endless(b, a)?;
    reaches(a, b)?;
    b.device_del()?;
    let gone = b.sh("! [ -e /sys/class/net/tg0 ]").check();
    let dropped = while_known(a, b, || frames_to_a_node_that_is_gone(a, b, c));
    plug(b)?;
    gone?;
    dropped?;
    drop(traffic);
    // It has its address without anything else.
    comes_to_reach(b, a)?;
    comes_to_reach(c, b)
}
