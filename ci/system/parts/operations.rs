// SPDX-License-Identifier: MIT OR Apache-2.0
//! Atomics beside the processor's own instructions, and what page access counters are good for.

use crate::help::{Export, LIMIT, Start, at_once};
use anyhow::{Context, Result, bail, ensure};
use std::time::Duration;
use telegraphos_agent::Figure;
use telegraphos_cluster::Cluster;

/// What `tg-mixed` has lost when the owner uses the processor's instructions or the board's.
fn lost(cluster: &Cluster, with: &str) -> Result<u64> {
    let (owner, other) = (cluster.node(0), cluster.node(1));
    let mut own = owner.argv(&["tg-mixed", "own", "--with", with]).until("ready")?;
    other.argv(&["tg-mixed", "add", "0", "--seconds", "3"]).check()?;
    let line = own.wait_for_line(LIMIT, |line| Figure::parse(line).is_some())?;
    println!("  {line}");
    match Figure::parse(&line) {
        Some(Figure::Mixed { lost, .. }) => Ok(lost),
        other => bail!("tg-mixed prints {other:?}"),
    }
}

/// A word that others change by atomics is changed by the board's only: the processor's are not atomic with them where
/// the emulator makes plain loads and stores of them, which it does with one virtual processor.
pub(crate) fn owners_use_the_boards_atomics(cluster: &Cluster, processors: u32) -> Result<()> {
    println!("  owner with {processors} virtual processors:");
    let by_board = lost(cluster, "board")?;
    ensure!(by_board == 0, "{by_board} of the board's increments are lost");
    let by_lock = lost(cluster, "lock")?;
    if processors == 1 && !cluster.uses_kvm() {
        ensure!(by_lock > 0, "nothing was lost: then the rule would not be needed");
    } else {
        ensure!(by_lock == 0, "{by_lock} increments are lost although the processor's are atomic here");
    }
    Ok(())
}

/// The example of registered memory, which checks itself: nodes in pairs copy from the heap to a mapped file and back.
pub(crate) fn an_example_registers_its_memory(cluster: &Cluster) -> Result<()> {
    let said = at_once(cluster.guests(), |guest| {
        let peer = (guest.node() ^ 1).to_string();
        Ok(guest.argv(&["tg-register", &peer]).limit(Duration::from_secs(60)).check()?)
    })?;
    for line in &said {
        println!("  {}", line.trim_end());
        ensure!(line.contains("2 of 3 copies registered memory"), "the cache has not found what it has: {line}");
    }
    Ok(())
}

/// The profiler view shows the page that is used, and the daemon copies the one that is read and not the one that is
/// written.
pub(crate) fn counters_find_hot_pages(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(1));
    let mut export = Export::of(b, "table", "192K")?;
    export.set_word(65536, 0x1234)?;
    let _writes = a.sh("while :; do tg-store 1 table 131072 7; done").spawn()?;
    let _reads = a.sh("exec tg-load 1 table 65536 --watch").spawn()?;
    let top = a.argv(&["tg-top", "1:table", "--interval", "2", "--count", "1"]).check()?;
    let row = top.lines().nth(1).with_context(|| format!("no row in\n{top}"))?;
    ensure!(row.ends_with("1:table+1"), "the hottest page is not the one that is read all the time:\n{top}");
    let mut daemon = a.argv(&["tg-replicate", "1", "table", "copy", "--reads", "300", "--writes", "1"]).spawn()?;
    let line = daemon.wait_for_line(Duration::from_secs(60), |line| line.starts_with("page "))?;
    ensure!(line.starts_with("page 1:") && line.contains("copied"), "{line}");
    let copy = a.argv(&["tg-load", "0", "copy", "65536"]).check()?;
    ensure!(copy.trim() == "0x0000000000001234", "the copy holds {copy}");
    Ok(())
}
