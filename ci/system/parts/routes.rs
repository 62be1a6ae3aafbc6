// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two clusters that work as one: each has a board for each node and a network, and a node of each has a cable to the
//! other's (SPEC item 42).

use crate::deaths::{GONE, are_notified, arrived, receives};
use crate::help::{LIMIT, Start, without_power};
use crate::processes;
use crate::whole;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::time::Instant;
use telegraphos_cluster::{Cluster, Guest, GuestCommand, Net, Processes, Running, Settings};

/// Where gateways listen.
const LISTEN: [&str; 2] = ["--listen", "0.0.0.0:7000"];
/// The gateway of a cluster, seen from its nodes.
const INSIDE: [&str; 2] = ["--neighbour", "10.84.0.1:7000"];
/// That of the first, seen from the second one's.
const OUTSIDE: [&str; 2] = ["--neighbour", "192.0.2.1:7000"];
const KEY: [&str; 2] = ["--key-file", "/tmp/key"];
/// Of the second cluster.
const FIRST: [&str; 2] = ["--first-node", "1000"];

/// The clusters, and the directory of the cable's ends.
pub(crate) struct Two {
    clusters: [Cluster; 2],
    _cable: tempfile::TempDir,
}

/// Two nodes each.
pub(crate) fn boot() -> Result<Two> {
    let directory = tempfile::tempdir()?;
    let clusters = [0, 1].map(|number: usize| {
        let end = |number: usize| cable_end(directory.path(), number);
        let (own, other) = (end(number), end(1 - number));
        let cable = format!("dgram,id=cable,local.type=unix,local.path={own},remote.type=unix,remote.path={other}");
        let card = format!("virtio-net-pci,netdev=cable,mac=52:54:00:99:00:0{number},romfile=,addr=1e.0");
        // The modules of network cards are there with the network to the outside, whose card is the first one.
        let settings = Settings { processes: Some(Processes::One), net: Some(Net::User), ..Settings::default() };
        let name = format!("routes-{number}");
        let settings = Settings { log_dir: crate::settings(&name).log_dir, ..settings };
        let cluster = Cluster::builder().nodes(2).settings(settings).node(0, |node| {
            node.qemu_options.extend(["-netdev".into(), cable.into(), "-device".into(), card.into()]);
        });
        cluster.boot().with_context(|| format!("cluster {number}"))
    });
    let [a, b] = clusters;
    let two = Two { clusters: [a?, b?], _cable: directory };
    [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().try_for_each(|(cluster, node)| two.prepare(cluster, node))?;
    Ok(two)
}

fn cable_end(directory: &Path, number: usize) -> String {
    directory.join(format!("end{number}")).display().to_string().replace(',', ",,")
}

impl Two {
    /// What a node needs when it has booted.
    fn prepare(&self, cluster: usize, node: usize) -> Result<()> {
        self.node(cluster, node).sh("umask 077; echo 'a key that all of them have' > /tmp/key").check()?;
        if node == 0 {
            let address = format!("192.0.2.{}/24", cluster + 1);
            let up = format!("ip link set eth1 up && ip addr add {address} dev eth1");
            self.node(cluster, node).sh(&up).as_root().check()?;
        }
        Ok(())
    }

    /// `tg-msg` on a node of a cluster, with a key and the numbers of the cluster's nodes.
    fn argv(&self, cluster: usize, node: usize, words: &[&str]) -> GuestCommand {
        let first: &[&str] = if cluster == 1 { &FIRST } else { &[] };
        self.node(cluster, node).argv(&[&["tg-msg"], words, &KEY, first].concat())
    }

    fn node(&self, cluster: usize, node: usize) -> &Guest {
        self.clusters[cluster].node(node)
    }

    /// A process that is reached by its cluster's gateway.
    fn serving(&self, cluster: usize, node: usize, words: &[&str]) -> Result<Running> {
        self.argv(cluster, node, &[words, &INSIDE].concat()).keep_input_open().until("serving")
    }

    fn gateway(&self, cluster: usize) -> Result<Running> {
        let outside: &[&str] = if cluster == 1 { &OUTSIDE } else { &[] };
        self.argv(cluster, 0, &[&["gateway", "gate"], &LISTEN[..], outside].concat()).keep_input_open().until("serving")
    }
}

/// What programs of one cluster do, those of two do.
pub(crate) fn gateways_join_clusters(two: &Two) -> Result<()> {
    let (mut first, second) = (two.gateway(0)?, two.gateway(1)?);
    let known = |line: &str| line.starts_with("+ ") && line.contains("node 1000") && line.ends_with("names gate");
    println!("  {}", first.wait_for_line(LIMIT, known)?);
    for (count, options) in [("10", &[][..]), ("4", &["--way", "put"]), ("4", &["--paper"])] {
        let words = [&["all", "0-1,1000-1001", "2", count], options, &INSIDE].concat();
        let nodes = [(0, 0), (0, 1), (1, 0), (1, 1)];
        let running: Vec<_> = nodes
            .iter()
            .map(|(cluster, node)| Ok(two.argv(*cluster, *node, &words).spawn()?))
            .collect::<Result<_>>()?;
        for running in running {
            println!("  {options:?}: {}", running.check(LIMIT)?.stdout.trim());
        }
    }
    for (bytes, count) in [("8", "20"), ("100000", "5")] {
        let echo = two.serving(1, 1, &["echo", "echo"])?;
        let words = [&["pair", "1001", "echo", count, bytes], &INSIDE[..]].concat();
        println!("  over two gateways: {}", two.argv(0, 1, &words).limit(LIMIT).check()?.trim());
        echo.check(LIMIT)?;
    }
    // One gateway does, too: a process of the second one's is its neighbour.
    drop(second);
    let echo = two.argv(1, 0, &[&["echo", "near"], &OUTSIDE[..]].concat()).until("serving")?;
    println!("  {}", first.wait_for_line(LIMIT, |line| line.starts_with("+ ") && line.ends_with("names near"))?);
    let words = [&["pair", "1000", "near", "20", "8"], &INSIDE[..]].concat();
    println!("  over one gateway: {}", two.argv(0, 1, &words).limit(LIMIT).check()?.trim());
    echo.check(LIMIT)?;
    Ok(())
}

/// Messages under way end when a gateway dies, or its node loses its power; the next ones go by the next one.
pub(crate) fn gateway_dies(two: &Two) -> Result<()> {
    let _first = two.gateway(0)?;
    for how in ["killed", "powered off"] {
        let gateway = two.gateway(1)?;
        let mut server = two.serving(1, 1, &["serve", "slow"])?;
        for bytes in ["8", "100000"] {
            let words = [&["send", "1001", "slow", "3", bytes], &INSIDE[..]].concat();
            let sender = two.argv(0, 1, &words).until("sending")?;
            server.write("\n")?;
            let said = server.wait_for_line(LIMIT, |line| line.ends_with("with tag 3"))?;
            ensure!(said == format!("{bytes} bytes with tag 3"), "{said}");
            sender.check(LIMIT)?;
        }
        // Messages have arrived, and none is received: both wait.
        let mut waiting = Vec::new();
        for state in ["short", "long"] {
            let words = |words: &[&'static str]| [words, &[state], &INSIDE].concat();
            let receiver = two.argv(1, 1, &words(&["receiver", state]));
            let (mut receiver, sender) = arrived(receiver, two.argv(0, 1, &words(&["sender", "1001", state])))?;
            receives(&mut receiver)?;
            waiting.extend([receiver, sender].map(|one| (format!("{state}, a gateway is {how}"), GONE, one)));
        }
        if how == "killed" {
            let begun = Instant::now();
            drop(gateway);
            are_notified(waiting, begun)?;
        } else {
            without_power(two.node(1, 0), |begun| are_notified(waiting, begun))?;
        }
    }
    two.prepare(1, 0)
}

/// Processes without the key, or that say what is wrong, are refused; the gateway continues.
pub(crate) fn bad_neighbours(two: &Two) -> Result<()> {
    let _first = two.gateway(0)?;
    let node = two.node(0, 1);
    let refused = |words: &[&str], says: &str| -> Result<()> {
        let output = node.argv(&[&["tg-msg"], words].concat()).limit(LIMIT).run()?;
        ensure!(!output.status.success() && output.stderr.contains(says), "{words:?}: {output:?}: expected {says:?}");
        println!("  {}", output.stderr.trim());
        Ok(())
    };
    refused(&[&["serve", "x"], &INSIDE[..]].concat(), "a key of 0 bytes: expected at least 16")?;
    refused(&[&["serve", "x", "--first-node", "65535"], &KEY[..]].concat(), "expected at most 65536 -")?;
    refused(&[&["serve", "x", "--neighbour", "nowhere"], &KEY[..]].concat(), "expected HOST:PORT")?;
    refused(&[&["serve", "x", "--listen", "203.0.113.1:7000"], &KEY[..]].concat(), "listening at 203.0.113.1:7000")?;
    refused(&["serve", "x", "--key-file", "/nowhere"], "--key-file /nowhere")?;
    node.sh("umask 077; echo 'a key that no other process has' > /tmp/other").check()?;
    let bad = [
        (&["--neighbour", "10.84.0.1:7000", "--key-file", "/tmp/other"][..], "it has another key"),
        (&["--neighbour", "10.84.0.1:7009", "--key-file", "/tmp/key"], "connecting to it"),
        (&["--neighbour", "no.such.name:1", "--key-file", "/tmp/key"], "finding it"),
        (
            &["--neighbour", "127.0.0.1:7001", "--listen", "127.0.0.1:7001", "--key-file", "/tmp/key"],
            "this process itself",
        ),
    ];
    let begin = |(n, (words, says)): (usize, &(&'static [&str], &'static str))| -> Result<_> {
        let gateway = format!("sleep 3 | tg-msg gateway bad-{n} {}", words.join(" "));
        Ok((*words, *says, node.sh(&gateway).spawn()?))
    };
    let running: Vec<_> = bad.iter().enumerate().map(begin).collect::<Result<_>>()?;
    for (words, says, running) in running {
        let output = running.wait_for(LIMIT)?;
        let warned = output.stderr.matches(says).count();
        ensure!(output.status.success() && warned == 1, "{words:?}: {output:?}: expected {says:?} once");
        println!("  {}", output.stderr.trim());
    }
    println!("  {}", node.argv(&["tg-msg", "keyless", "10.84.0.1:7000"]).limit(LIMIT).check()?.trim());
    // Those who have it are served meanwhile.
    let mut server = two.serving(0, 1, &["serve", "served"])?;
    let words = [&["far", "1", "served"], &OUTSIDE[..]].concat();
    let far = two.argv(1, 0, &words).spawn()?;
    server.write("\n")?;
    let said = server.wait_for_line(LIMIT, |line| line.ends_with("with tag 5"))?;
    ensure!(said == "5 bytes with tag 5", "{said}");
    println!("  {}", far.check(LIMIT)?.stdout.trim());
    Ok(())
}

/// No pinned page, segment or queue, and no kernel has crashed.
pub(crate) fn nothing_is_left(two: &Two) -> Result<()> {
    two.clusters.iter().try_for_each(|cluster| {
        processes::nothing_is_left_of(cluster, "msg")?;
        whole::no_kernel_has_crashed(cluster)
    })
}
