// SPDX-License-Identifier: MIT OR Apache-2.0
//! More than the network can carry.

use crate::help::{Export, LIMIT, Start, at_once, both_ways, hex, stores_of, within};
use anyhow::{Context, Result, ensure};
use std::time::Duration;
use telegraphos_cluster::{Cluster, Guest};
use telegraphos_testkit::Scale;

/// In KiB, as memory is counted.
const MIB: u64 = 1024;

/// What a process with HIBs of this cluster may hold beyond guest memory, in KiB.
fn limit(cluster: &Cluster) -> u64 {
    let hibs_of_each = cluster.guests().len() / cluster.servers().len().max(1);
    32 * MIB * hibs_of_each as u64
}

/// A raw store loop that outruns the network: it stalls, loses nothing, arrives in program order (I8), and neither QEMU
/// nor the HIBs grow.
pub(crate) fn i8_flood_stalls_and_loses_nothing(cluster: &Cluster, scale: Scale) -> Result<()> {
    let (from, to) = (cluster.node(0), cluster.node(1));
    let seconds = scale.pick(10, 30);
    let memory = |guest: &Guest| -> Result<(u64, u64)> {
        let qemu = guest.qemu_memory().context("no QEMU")?.own();
        // Of the process that has the HIB.
        let shared = || cluster.servers().first().map(|(.., memory)| *memory);
        Ok((qemu, guest.hib_memory().or_else(shared).context("no HIB")?.own()))
    };
    let before = [memory(from)?, memory(to)?];
    let watch = to.argv(&["tg-watch", "flood", "--monotonic"]).until_begins("exported")?;
    let mut flood = from.argv(&["tg-flood", "1", "flood", "--seconds", &seconds.to_string()]).spawn()?;
    let mut most = before;
    let mut line = None;
    // At most this long beyond the flood itself.
    let end = std::time::Instant::now() + Duration::from_secs(seconds + 120);
    while flood.ended().is_none() {
        ensure!(std::time::Instant::now() < end, "the flood did not end");
        if let Some(said) = flood.next_line(Duration::from_millis(100))? {
            line = Some(said.text().to_owned());
        }
        for (most, guest) in most.iter_mut().zip([from, to]) {
            let (qemu, hib) = memory(guest)?;
            *most = (most.0.max(qemu), most.1.max(hib));
        }
    }
    let line = line.unwrap_or_default();
    ensure!(flood.ended().is_some_and(|s| s.success()), "the flood failed: {line}");
    let watched = watch.check(Duration::from_secs(60))?;
    let (sent, seen) = (stores_of(&line), stores_of(&watched.stdout));
    ensure!(seen == sent && sent > Some(0), "{line:?}: {seen:?} stores were counted: {}", watched.stdout);
    println!("  {line}");
    for (guest, (most, before)) in [from, to].iter().zip(most.iter().zip(before)) {
        let node = guest.node();
        println!(
            "  node {node}: QEMU {} MiB, at most {} MiB; HIB {} MiB, at most {} MiB",
            before.0 / MIB,
            most.0 / MIB,
            before.1 / MIB,
            most.1 / MIB
        );
        let grown = most.0.saturating_sub(before.0) / MIB;
        ensure!(grown < 96, "node {node}'s QEMU grew by {grown} MiB: expected less than 96");
        let (hib, limit) = (most.1 / MIB, limit(cluster) / MIB);
        ensure!(hib < limit, "node {node}'s HIB took {hib} MiB beyond guest memory: expected less than {limit}");
    }
    ensure!(from.hib_log().contains("is congested"), "the flood did not outrun the network, so nothing was shown");
    Ok(())
}

/// A board is not scheduled for 2 s, again and again, under a queue's sender and a replicated page's writer: both stall
/// with it, none of their imports comes into error, and nothing is lost.
pub(crate) fn i8_unscheduled_board_loses_nothing(cluster: &Cluster, scale: Scale) -> Result<()> {
    let guests = &cluster.guests()[..2];
    let rounds = scale.pick(2, 6);
    let hung = cluster.node(1);
    let lost = || guests.iter().map(|guest| guest.hib_log().matches("waiting stores was full").count()).sum::<usize>();
    let before = lost();
    std::thread::scope(|scope| {
        let writers = scope.spawn(|| crate::replicas::stays_coherent(guests, "counters", 6 + 4 * rounds));
        let sender = scope.spawn(|| crate::queues::one_sender(cluster, "unscheduled", 4000));
        // Both are at work when it begins; what is being opened has its own time limits.
        let paused = telegraphos_cluster::sleep(Duration::from_secs(4)).and_then(|()| {
            (0..rounds).try_for_each(|_| {
                hung.hang_hib(true);
                let slept = telegraphos_cluster::sleep(Duration::from_secs(2));
                hung.hang_hib(false);
                slept.and_then(|()| telegraphos_cluster::sleep(Duration::from_secs(2)))
            })
        });
        let ended = [writers.join().map(|done| done.map(drop)), sender.join()];
        paused?;
        for done in ended {
            done.map_err(|_| anyhow::anyhow!("a part panicked"))??;
        }
        Ok::<(), anyhow::Error>(())
    })?;
    ensure!(lost() == before, "boards have lost stores");
    Ok(())
}

/// Two nodes load from each other in tight loops: both progress and no load fails.
pub(crate) fn loads_from_each_other(cluster: &Cluster, scale: Scale) -> Result<()> {
    let guests = &cluster.guests()[..2];
    let seconds = scale.pick(3, 10);
    let mut exports = [Export::of(&guests[0], "mutual", "64K")?, Export::of(&guests[1], "mutual", "64K")?];
    for (export, word) in exports.iter_mut().zip([1000, 1001]) {
        export.set_word(0, word)?;
    }
    let timeouts =
        || guests.iter().map(|guest| guest.hib_log().matches("answered all-ones").count()).collect::<Vec<_>>();
    let before = timeouts();
    // A value that differs from the first would be printed.
    let looping = at_once(guests, |guest| {
        let other = (1 - guest.node()).to_string();
        let mut load = guest.argv(&["tg-load", &other, "mutual", "0", "--watch"]).spawn()?;
        let first = hex(&load.wait_for_line(LIMIT, |_| true)?)?;
        ensure!(first == 1001 - guest.node() as u64, "node {} loaded {first:#x}", guest.node());
        Ok(load)
    })?;
    telegraphos_cluster::sleep(Duration::from_secs(seconds))?;
    // They see a new value at once, so they have not stopped.
    for (export, word) in exports.iter_mut().zip([2000, 2001]) {
        export.set_word(0, word)?;
    }
    for (mut load, (guest, expected)) in looping.into_iter().zip(guests.iter().zip([2001, 2000])) {
        let found = hex(&load.wait_for_line(LIMIT, |_| true)?)?;
        ensure!(found == expected, "node {} loaded {found:#x}: expected {expected:#x}", guest.node());
        let more = load.next_line(Duration::from_millis(300))?;
        ensure!(more.is_none(), "node {} then loaded {more:?}", guest.node());
    }
    let after = timeouts();
    ensure!(before == after, "loads were answered all-ones: {before:?} before, {after:?} after");
    Ok(())
}

/// An event queue of 4 entries with far more causes than that at once: none is lost. Loads the driver anew, so it also
/// shows that it refuses to go while it is in use.
pub(crate) fn event_queue_of_four(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(2), cluster.node(1));
    let export = Export::of(a, "in-use", "64K")?;
    let refused = a.argv(&["rmmod", "telegraphos"]).as_root().run()?;
    ensure!(!refused.status.success(), "the driver was unloaded while a process had the board open");
    drop(export);
    let load = |parameters: &str| -> Result<()> {
        let script = format!("rmmod telegraphos && insmod /lib/telegraphos/telegraphos.ko {parameters}");
        crate::help::within(|| {
            a.sh(&script).as_root().check()?;
            Ok(())
        })?;
        Ok(a.wait_for_device()?)
    };
    load("event_entries=4")?;
    let mut target = Export::of(b, "events", "64K")?;
    // Each process opens a context, imports, stores, waits, and closes both: at least four completions, 40 at a time.
    let storing = "seq 1 256 | xargs -P 40 -n 1 sh -c 'tg-store 1 events $(($0 * 8)) $(($0 + 7000))'";
    a.sh(storing).limit(Duration::from_secs(300)).check()?;
    for number in 1..=256 {
        let found = target.word(number * 8)?;
        ensure!(found == number + 7000, "word {number} is {found}: expected {}", number + 7000);
    }
    drop(target);
    both_ways(a, b)?;
    load("")?;
    both_ways(a, b)
}

/// The driver goes while an invalidated copy's answers to the board are due, again and again: nothing of it runs
/// afterwards. Then it is loaded on a board that looks as a crashed driver leaves it.
pub(crate) fn driver_reloaded_amid_activity(cluster: &Cluster) -> Result<()> {
    const ROUNDS: usize = 12;
    let (a, b) = (cluster.node(3), cluster.node(1));
    let home = b.argv(&["tg-replica", "here", "reload", "--mode", "invalidate"]);
    let home = home.input("storm 0 100000\n").keep_input_open().spawn()?;
    let copy = "(while :; do echo load 0; done) | tg-replica 1 reload --mode invalidate >/tmp/reload & p=$!; \
                until [ $(wc -l </tmp/reload) -gt 20 ]; do :; done; kill -9 $p; until rmmod telegraphos 2>/dev/null; do :; done";
    let reload = |before: &str| -> Result<()> {
        let script = format!("{before}; sleep 0.1; insmod /lib/telegraphos/telegraphos.ko");
        a.sh(&script).as_root().limit(Duration::from_secs(60)).check()?;
        Ok(a.wait_for_device()?)
    };
    for round in 0..ROUNDS {
        reload(copy).with_context(|| format!("round {round}"))?;
    }
    drop(home);
    let taken_over = || Ok::<_, anyhow::Error>(a.dmesg()?.matches("has left the board in use: reset").count());
    ensure!(taken_over()? == 0, "a driver that left in order was taken for one that crashed");
    // The register that the next driver looks at: ADMIN_BASE.
    reload(
        "d=$(readlink -f /sys/bus/pci/drivers/telegraphos/0*); rmmod telegraphos; \
         r=$(head -1 $d/resource | cut -d' ' -f1); devmem $((r + 0x70)) 64 0x100000",
    )?;
    ensure!(taken_over()? == 1, "the driver did not reset a board that one before it has left in use:\n{}", a.dmesg()?);
    both_ways(a, b)
}

/// An idle HIB takes no processor time, and less than 32 MiB beyond guest memory.
pub(crate) fn an_idle_board_costs_nothing(cluster: &Cluster) -> Result<()> {
    const PAUSE: Duration = Duration::from_secs(1);
    // A loop that looks for work would take all of each pause, however slow the machine is.
    within(|| {
        let before = cluster.servers();
        telegraphos_cluster::sleep(PAUSE)?;
        let after = cluster.servers();
        ensure!(!before.is_empty() && before.len() == after.len(), "a HIB has ended");
        for ((name, before, _), (_, after, _)) in before.into_iter().zip(after) {
            let spent = after.saturating_sub(before);
            println!("  {name}: {} ms of processor in {PAUSE:?}", spent.as_millis());
            ensure!(spent < PAUSE / 2, "{name}, idle, took {spent:?} of {PAUSE:?}");
        }
        Ok(())
    })?;
    let limit = limit(cluster);
    for (name, _, memory) in cluster.servers() {
        let own = memory.own();
        println!("  {name}: {own} KiB beyond guest memory");
        ensure!(own < limit, "{name}: {own} KiB beyond guest memory: expected less than {limit} KiB");
    }
    Ok(())
}
