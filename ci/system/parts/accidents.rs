// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guests, QEMUs, HIBs and the fabric go away and come back.

use crate::help::{BUS, Export, LIMIT, Start, both_ways, hex, plug, plug_anew, register, within};
use crate::rings;
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::time::Duration;
use telegraphos_cluster::{Cluster, Guest, Output, Running};
use telegraphos_testkit::Scale;
use telegraphos_wire::regs::Register;

/// What loads without an answer return.
const ALL_ONES: u64 = u64::MAX;

/// Waits until the board of a guest has taken so many stores more than it had.
fn stores_continue(guest: &Guest, more: u64) -> Result<()> {
    let before = register(guest, Register::CountStores)?;
    within(|| {
        let count = register(guest, Register::CountStores)?;
        ensure!(count >= before + more, "node {} took {} stores more: expected {more}", guest.node(), count - before);
        Ok(())
    })
}

/// A process on `from` that stores without end into a segment that `to` exports and checks; it has begun.
fn flood(from: &Guest, to: &Guest) -> Result<(Running, Running)> {
    let watch = to.argv(&["tg-watch", "stream", "--monotonic"]).until_begins("exported")?;
    let flood = from.argv(&["tg-flood", &to.node().to_string(), "stream", "--seconds", "600"]).spawn()?;
    stores_continue(from, 1000)?;
    Ok((flood, watch))
}

/// A process on `from` that has mapped a segment that `to` exports, and loads of it again and again.
fn watched(from: &Guest, to: &Guest, name: &str) -> Result<(Running, Export)> {
    let export = Export::of(to, name, "64K")?;
    let load = from.argv(&["tg-load", &to.node().to_string(), name, "0", "--watch"]);
    Ok((load.spawn_until(LIMIT, |_| true)?, export))
}

/// The window is taken away under a running process: it must get SIGBUS.
fn gets_sigbus(process: Running, what: &str) -> Result<()> {
    let Output { status, stdout, stderr } = process.wait_for(Duration::from_secs(60))?;
    ensure!(
        status.signal() == Some(BUS),
        "{what} ended with {status}: expected signal {BUS} (SIGBUS); it wrote:\n{stdout}{stderr}"
    );
    Ok(())
}

pub(crate) fn reset_button(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(1));
    let (flood, _watch) = flood(a, b)?;
    b.reset()?;
    gets_sigbus(flood, "the process with the reset peer")?;
    both_ways(a, b)
}

/// The command by which a guest resets its board's function, without its driver's help.
const FUNCTION_RESET: &str = "echo 1 > $(echo /sys/bus/pci/drivers/telegraphos/0000:*)/reset";

/// As an administrator resets a function: stores go both ways, a queue waits, and all of it ends in order. The board is
/// then usable under its old name, although processes still have the old one open.
pub(crate) fn function_reset_while_in_use(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(1));
    let (outgoing, _watch) = flood(a, b)?;
    let (load, export) = watched(b, a, "ends")?;
    let holder = a.sh("exec 3< /dev/telegraphos0; read line").keep_input_open().spawn()?;
    within(|| {
        let open = a.sh("ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c /dev/telegraphos0").as_root().check()?;
        ensure!(open.trim().parse::<u32>()? >= 3, "{} processes have the board open: expected 3", open.trim());
        Ok(())
    })?;
    a.sh(FUNCTION_RESET).as_root().check()?;
    gets_sigbus(outgoing, "the process at the board that was reset")?;
    gets_sigbus(load, "the peer of the process at the board that was reset")?;
    a.wait_for_device()?;
    both_ways(a, b)?;
    drop((holder, export));
    // By the port, too, as a system without the function's own reset does it.
    a.sh("echo bus > $(echo /sys/bus/pci/drivers/telegraphos/0000:*)/reset_method").as_root().check()?;
    a.sh(FUNCTION_RESET).as_root().check()?;
    a.sh("echo af_flr > $(echo /sys/bus/pci/drivers/telegraphos/0000:*)/reset_method").as_root().check()?;
    a.wait_for_device()?;
    both_ways(a, b)?;
    let names = a.sh("ls /dev/telegraphos*").check()?;
    ensure!(names.trim() == "/dev/telegraphos0", "after the resets there are {names:?}");
    Ok(())
}

/// Memory is registered while the board is reset, has its driver taken away, or leaves the bus, also while a page fault
/// of it is held; nothing stays pinned.
pub(crate) fn registrations_while_the_board_goes(cluster: &Cluster, scale: Scale) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(1));
    let storms = scale.pick(6, 1000).to_string();
    let most = telegraphos_testkit::turn().map_or(6000, |turn| 10 * turn.as_secs()).to_string();
    let limit = Duration::from_secs(scale.pick(300, 7200));
    let text = a.argv(&["tg-race", "--storms", &storms, "--seconds", &most]).as_root().limit(limit).check()?;
    text.lines().for_each(|line| println!("  {line}"));
    ensure!(text.lines().count() == 7, "not all ways to go were tried:\n{text}");
    a.wait_for_device()?;
    both_ways(a, b)
}

/// The guest goes to sleep with everything in use: all of it is frozen for a hibernation, whose image has no place, and
/// wakes up. Nothing of the board outlives that, and all of it works again. Nothing wakes these guests from a
/// suspension.
pub(crate) fn the_guest_sleeps(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(1));
    let slept = || -> Result<usize> { Ok(a.dmesg()?.matches("the system goes to sleep").count()) };
    let before = slept()?;
    for number in 1..=2 {
        let (outgoing, watch) = flood(a, b)?;
        let holder = a.sh("exec 3< /dev/telegraphos0; read line").keep_input_open().spawn()?;
        let sleep = "echo disk > /sys/power/state; dmesg | grep -c 'hibernation: Image created'";
        let images = a.sh(sleep).as_root().limit(Duration::from_secs(120)).check()?;
        ensure!(
            images.trim().parse::<usize>().is_ok_and(|images| images >= number),
            "{images:?} images: expected {number}"
        );
        gets_sigbus(outgoing, "the process at the board of a guest that was about to sleep")?;
        a.wait_for_device()?;
        both_ways(a, b)?;
        drop((holder, watch));
        let ended = slept()? - before;
        ensure!(ended >= number, "the driver has ended its use of boards {ended} times for sleep: expected {number}");
    }
    Ok(())
}

pub(crate) fn unplugged_and_plugged_while_in_use(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(1));
    let (flood, _watch) = flood(a, b)?;
    let (load, export) = watched(b, a, "goes-away")?;
    a.device_del()?;
    let unplugged = gets_sigbus(flood, "the process at the unplugged board")
        .and_then(|()| gets_sigbus(load, "the peer of the unplugged board's process"))
        .and_then(|()| {
            ensure!(!a.sh("ls /dev/telegraphos*").run()?.status.success(), "the device file is still there");
            Ok(())
        });
    drop(export);
    // Whatever came of it: the parts after this one need the board.
    plug(a)?;
    unplugged?;
    both_ways(a, b)
}

pub(crate) fn qemu_killed_and_started_on_the_same_hib(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(2), cluster.node(1));
    let (flood, _watch) = flood(b, a)?;
    a.kill_qemu();
    gets_sigbus(flood, "the peer of the killed QEMU's process")?;
    a.restart_qemu()?;
    both_ways(a, b)
}

/// A process of `a` loads a word of node 1, `b`, again and again: after `kill` it loads all-ones.
fn loads_ones_after(a: &Guest, b: &Guest, kill: impl FnOnce()) -> Result<()> {
    let mut export = Export::of(b, "outlives", "64K")?;
    export.set_word(0, 5)?;
    let mut load = a.argv(&["tg-load", "1", "outlives", "0", "--watch"]).spawn()?;
    let first = hex(&load.wait_for_line(LIMIT, |_| true)?)?;
    ensure!(first == 5, "loaded {first:#x}: expected 5");
    kill();
    let after = hex(&load.wait_for_line(LIMIT, |_| true)?)?;
    ensure!(after == ALL_ONES, "without its HIB {after:#x} was loaded: expected all-ones");
    Ok(())
}

pub(crate) fn hib_killed(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(3), cluster.node(1));
    loads_ones_after(a, b, || a.kill_hib())?;
    let others = a.sh("true").check().context("the guest must live on without its HIB").and_then(|_| {
        a.qmp("query-status", json!({})).context("and so must its QEMU")?;
        both_ways(b, cluster.node(0)).context("the other nodes must continue")?;
        rings::come_to(cluster, rings::of_all(cluster) - 3).context("its rings end with it, and no others")
    });
    // QEMU never connects again: only a new plug brings the board back.
    plug_anew(a)?;
    others?;
    both_ways(a, b)?;
    rings::come_to(cluster, rings::of_all(cluster))
}

/// The one process with fabric and boards is killed: the guests and their QEMUs live on, without boards.
pub(crate) fn host_process_killed(cluster: &Cluster) -> Result<()> {
    for guest in cluster.guests() {
        let (own, log) = (format!("node {}: QEMU has connected", guest.node()), guest.hib_log());
        ensure!(
            log.contains(&own) && log.lines().all(|line| line.contains(&own[..7])),
            "the log is not its own:\n{log}"
        );
    }
    loads_ones_after(cluster.node(0), cluster.node(1), || cluster.kill_fabric())?;
    for guest in cluster.guests() {
        guest.sh("true").check().context("a guest must live on without its board")?;
        guest.qmp("query-status", json!({})).context("and so must its QEMU")?;
    }
    Ok(())
}

pub(crate) fn fabric_killed(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(1));
    let (flood, _watch) = flood(a, b)?;
    let export = Export::of(b, "unreachable", "64K")?;
    cluster.kill_fabric();
    let without = gets_sigbus(flood, "the process without a fabric").and_then(|()| {
        // What needs the fabric is refused in bounded time and says so.
        let refused = a.argv(&["tg-load", "1", "unreachable", "0"]).run()?;
        ensure!(refused.status.code() == 3, "without a fabric: {}: {}", refused.status, refused.stderr);
        ensure!(
            refused.stderr.contains("link") || refused.stderr.contains("fabric"),
            "the message names neither link nor fabric: {}",
            refused.stderr
        );
        Ok(())
    });
    drop(export);
    cluster.restart_fabric()?;
    without?;
    // HIBs join again by themselves.
    within(|| both_ways(a, b))
}

/// Three nodes store without pause into the fourth, before, while and after it reboots. Whatever is still on its way
/// then must not reach the memory of the new boot, in which those pages have another use.
pub(crate) fn stores_do_not_reach_a_rebooted_guest(cluster: &Cluster) -> Result<()> {
    /// Prints size and checksum of each fourth program or module of the guest, which lie in its memory.
    const PROGRAMS: &str = "some=$(find / -xdev -type f -perm -100 -o -type f -name '*.ko' | sort | awk 'NR % 4 == 0'); \
                            cat $some | wc -c; cat $some | sha256sum";
    /// Fills nearly all free memory with zeros.
    const FILL: &str = "mount -t tmpfs -o size=100% none /mnt 2>/dev/null || { mkdir -p /mnt && mount -t tmpfs -o size=100% none \
                        /mnt; }; free=$(awk '/MemAvailable/ {print int($2 / 1024) - 40}' /proc/meminfo); dd if=/dev/zero \
                        of=/mnt/zeros bs=1M count=$free 2>/dev/null && echo $free";
    /// Counts bytes of it that are not zero.
    const CHANGED: &str = "tr -d '\\0' < /mnt/zeros | wc -c";

    let target = cluster.node(1);
    let programs = target.sh(PROGRAMS).as_root().check()?;
    let size = programs.split_whitespace().next().and_then(|n| n.parse::<u64>().ok());
    ensure!(size.is_some_and(|n| n > 1 << 20), "the checksum of the guest's programs is {programs:?}");
    // Each of them comes back as soon as there is something to store into.
    let script = "while :; do tg-flood 1 target --seconds 600 --patience 600; done 2>/dev/null";
    let exports = "tg-export target 4M --hold";
    let attackers: Vec<Running> =
        [0, 2, 3].into_iter().map(|node| cluster.node(node).sh(script).spawn()).collect::<Result<_, _>>()?;
    let sources = [0, 2, 3].map(|node| cluster.node(node));
    let stores = || sources.iter().map(|guest| register(guest, Register::CountStores)).sum::<Result<u64>>();
    for by in ["the button", "itself"] {
        let _export = target.sh(exports).spawn()?;
        // Each of the three stores into it, and it takes what they store.
        for source in sources {
            stores_continue(source, 1000).with_context(|| format!("before a reboot by {by}"))?;
        }
        within(|| {
            let served = register(target, Register::CountServed)?;
            ensure!(
                served >= 3000,
                "the target served {served} requests before it reboots by {by}: expected 3000 or more"
            );
            Ok(())
        })?;
        let refused_before = target.hib_log().matches("was refused").count();
        let before = stores()?;
        if by == "itself" {
            target.reboot()?
        } else {
            target.reset()?
        }
        // Not only before: between the look at their counters and the end of the target's life they stored on.
        let after = stores()?;
        ensure!(after > before, "no store was under way when the guest was rebooted by {by}");
        let check = || -> Result<()> {
            let filled: u64 = target.sh(FILL).as_root().check()?.trim().parse()?;
            ensure!(filled >= 60, "only {filled} MiB could be filled");
            telegraphos_cluster::sleep(Duration::from_secs(1))?;
            let changed: u64 = target.sh(CHANGED).as_root().check()?.trim().parse()?;
            ensure!(changed == 0, "{changed} bytes of {filled} MiB have changed");
            let now = target.sh(PROGRAMS).as_root().check()?;
            ensure!(now == programs, "the guest's programs have changed in its memory");
            target.sh("rm /mnt/zeros; umount /mnt").as_root().check()?;
            Ok(())
        };
        check().with_context(|| format!("after a reboot by {by}"))?;
        let refused = target.hib_log().matches("was refused").count() - refused_before;
        println!(
            "  reboot by {by}: {} stores from the last look before it until the guest was back; memory is clean; the HIB logged \
             {refused} stale requests as refused",
            after - before
        );
    }
    drop(attackers);
    both_ways(target, cluster.node(0))
}
