// SPDX-License-Identifier: MIT OR Apache-2.0
//! Direct segments in guests that trust each other, and in one that they do not trust.

use crate::help::{Export, LIMIT, at_once, hex};
use anyhow::{Context, Result, ensure};
use std::time::Duration;
use telegraphos_cluster::control::{Request, Target};
use telegraphos_cluster::report::{self, Outcome};
use telegraphos_cluster::{Cluster, Guest, Running};

/// The trust group of the cluster.
pub(crate) const GROUP: &str = "lab=0-1:48";
const NAME: &str = "lab";

/// What `tg-selftest` says about direct segments, on the nodes of the group; nothing may be skipped.
pub(crate) fn selftest(cluster: &Cluster) -> Result<()> {
    at_once(&cluster.guests()[..2], |guest| {
        let command = guest.argv(&["tg-selftest", "--nodes", "2", "--only", "direct/"]).as_root();
        let output = command.limit(Duration::from_secs(300)).run()?;
        let said = || format!("node {}:\n{}{}", guest.node(), output.stdout, output.stderr);
        let tests = report::tests(&output.stdout).with_context(said)?;
        let good = tests.iter().filter(|test| test.outcome == Outcome::Passed).count();
        ensure!(output.status.success() && good == tests.len() && good >= 13, "{}", said());
        Ok(())
    })?;
    Ok(())
}

/// The third node uses such a segment as any other, and cannot make one.
pub(crate) fn outside_the_group(cluster: &Cluster) -> Result<()> {
    let outsider = cluster.node(2);
    let mut inside = Export::direct(cluster.node(0), "inside", "128K", NAME)?;
    inside.set_word(0x1_0008, 5)?;
    ensure!(inside.load_from(outsider, 0x1_0008)? == 5, "the outsider does not see the owner's store");
    inside.store_from(outsider, 0x1_0010, 6)?;
    ensure!(inside.word(0x1_0010)? == 6, "the owner does not see the outsider's store");
    ensure!(inside.load_from(cluster.node(1), 0x1_0010)? == 6, "nor does another member");
    let output = outsider.argv(&["tg-export", "outside", "64K", "--direct", NAME]).run()?;
    let refused = output.stderr.contains("trust group \"lab\"") && output.stderr.contains("no trust group");
    ensure!(output.status.code() == 3 && refused, "{:?}: {}", output.status, output.stderr);
    let devices = outsider.argv(&["lspci", "-n", "-d", "7e1e:"]).as_root().check()?;
    ensure!(devices.lines().count() == 1, "the outsider has a memory device: {devices}");
    Ok(())
}

/// A segment of node 0, and a process of node 1 that loads a word of it all the time.
struct Watched<'a> {
    importer: &'a Guest,
    segment: Export,
    watcher: Running,
    next: u64,
}

impl Watched<'_> {
    fn new(cluster: &Cluster) -> Result<Watched<'_>> {
        let importer = cluster.node(1);
        let segment = Export::direct(cluster.node(0), "watched", "64K", NAME)?;
        let watcher = importer.argv(&["tg-load", "0", "watched", "8", "--watch"]).keep_input_open().spawn()?;
        let mut watched = Watched { importer, segment, watcher, next: 0 };
        watched.becomes("direct=1")?;
        watched.sees()?;
        Ok(watched)
    }

    /// What the owner stores is seen.
    fn sees(&mut self) -> Result<()> {
        self.next += 1;
        self.segment.set_word(8, self.next)?;
        let next = self.next;
        self.watcher.wait_for_line(LIMIT, |line| hex(line).ok() == Some(next)).map(drop)?;
        Ok(())
    }

    fn becomes(&self, direct: &str) -> Result<()> {
        let script = format!(
            "mount -t debugfs none /sys/kernel/debug 2>/dev/null; i=0; until grep -q '{direct}' /sys/kernel/debug/telegraphos/*/imports; do \
            i=$((i+1)); [ $i -lt 300 ] || exit 1; sleep 0.1; done"
        );
        self.importer.sh(&script).as_root().limit(Duration::from_secs(60)).check().map(drop)?;
        Ok(())
    }

    /// What the importer's driver counts.
    fn counts(&self) -> Result<[u64; 3]> {
        let text = self.importer.sh("cat /sys/kernel/debug/telegraphos/*/direct").as_root().check()?;
        let count = |name: &str| {
            let mut words = text.split_whitespace();
            let value = words.find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok());
            value.with_context(|| format!("no {name} in {text:?}"))
        };
        Ok([count("observations")?, count("trapped")?, count("untrapped")?])
    }

    /// How often it has done so since then.
    fn counted(&self, before: [u64; 3], expected: [u64; 3]) -> Result<()> {
        let after = self.counts()?;
        let found: [u64; 3] = std::array::from_fn(|n| after[n] - before[n]);
        ensure!(found == expected, "observations, trapped, untrapped: {found:?}, expected {expected:?}");
        Ok(())
    }
}

/// While its link has faults, a member's accesses go through the boards; then they are direct again. Nothing is lost.
/// Nothing but the event of its board makes the driver look, and it changes over exactly as often as the faults do.
pub(crate) fn faults_are_met(cluster: &Cluster) -> Result<()> {
    let mut watched = Watched::new(cluster)?;
    let mut control = cluster.control()?;
    let mut set = |faults: &str| -> Result<()> {
        let faults = faults.parse().map_err(|e| anyhow::anyhow!("{e}"))?;
        control.command(&Request::SetFaults { on: Target::Node(1), faults })?;
        Ok(())
    };
    let before = watched.counts()?;
    for round in 1..=3 {
        set("latency=5ms")?;
        watched.becomes("direct=0")?;
        watched.sees()?;
        watched.counted(before, [2 * round - 1, round, round - 1])?;
        set("latency=0ms")?;
        watched.becomes("direct=1")?;
        watched.sees()?;
        watched.counted(before, [2 * round, round, round])?;
    }
    Ok(())
}

/// A process continues while the memory device of its node is without a driver, and is direct again afterwards.
pub(crate) fn unbound_while_used(cluster: &Cluster) -> Result<()> {
    const DRIVER: &str = "/sys/bus/pci/drivers/telegraphos-memory";
    let mut watched = Watched::new(cluster)?;
    let importer = watched.importer;
    let device = importer.sh(&format!("basename $(ls -d {DRIVER}/*:*)")).as_root().check()?;
    let write = |what: &str| importer.sh(&format!("echo {} > {DRIVER}/{what}", device.trim())).as_root().check();
    let before = watched.counts()?;
    for round in 1..=3 {
        write("unbind")?;
        watched.becomes("direct=0")?;
        watched.sees()?;
        watched.counted(before, [0, round, round - 1])?;
        write("bind")?;
        watched.becomes("direct=1")?;
        watched.sees()?;
        watched.counted(before, [0, round, round])?;
    }
    Ok(())
}

/// A member that is reset has lost its segments and keeps no other's memory; the other one continues.
pub(crate) fn after_a_reset(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(1));
    let mut kept = Export::direct(b, "kept", "64K", NAME)?;
    let lost = Export::direct(a, "lost", "64K", NAME)?;
    kept.store_from(a, 8, 1)?;
    lost.store_from(b, 8, 2)?;
    a.reset()?;
    drop(lost);
    ensure!(kept.load_from(a, 8)? == 1, "what the other member exports is not there after the reset");
    kept.store_from(a, 8, 3)?;
    ensure!(kept.word(8)? == 3, "a store after the reset has not arrived");
    let mut again = Export::direct(a, "lost", "64K", NAME)?;
    ensure!(again.word(8)? == 0, "new memory is not zeroed");
    ensure!(again.load_from(b, 8)? == 0, "the other member sees old memory");
    drop(again);
    // Everything has been given back: the whole slice, but for its tables.
    b.argv(&["tg-export", "whole", "46M", "--direct", NAME]).as_root().check()?;
    Ok(())
}
