// SPDX-License-Identifier: MIT OR Apache-2.0
//! A board goes and comes in every way, again and again, under traffic of every layer: nothing is left, nothing hangs.

use crate::help::{LIMIT, Start, nothing_is_pinned, tables, within};
use crate::{c, whole};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::time::Instant;
use telegraphos_cluster::{Cluster, Guest, Running};
use telegraphos_testkit::Scale;

/// The layers, each of which counts its rounds in a file of its name.
const LAYERS: [&str; 8] = ["windows", "copies", "registrations", "queues", "replicas", "messages", "tg0", "sockets"];

/// How a board goes and comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cycle {
    UnbindAndBind,
    Reset,
    Reload,
    UnplugAndPlug,
}

const ALL: [Cycle; 4] = [Cycle::UnbindAndBind, Cycle::Reset, Cycle::Reload, Cycle::UnplugAndPlug];

/// Words that were not those that were stored.
const WRONG: &str = "/tmp/traffic.wrong";

/// What runs in a node until its session is killed; where a board goes under a program it is started again.
fn traffic(guest: &Guest, peer: &Guest, program: &str) -> String {
    let (own, other, address) = (guest.node(), peer.node(), telegraphos_agent::network::address(peer.node() as u16));
    // A connection whose other end has lost its board is ended by time: the kernel's, which else tries for a quarter of
    // an hour, or its program's.
    format!(
        "exec >/dev/null 2>&1
        echo 3 >/proc/sys/net/ipv4/tcp_retries2
        echo $$ >/tmp/traffic.session
        again() {{ while :; do \"$@\"; sleep 0.2; done; }}
        brief() {{ timeout --foreground 20 \"$@\"; }}
        errors() {{
            why=/tmp/traffic.$1.why; shift
            \"$@\" 2>$why.new; code=$?
            # What these programs say of bytes that are not those that were sent.
            grep -e 'came back' -e 'arrived changed' $why.new >>{WRONG}
            [ ! -s $why.new ] || mv $why.new $why
            return $code
        }}
        count() {{ file=/tmp/traffic.$1; errors \"$@\" && printf . >>$file; }}
        right() {{ said=$(\"$@\" 2>&1); [ $? != 1 ] || echo \"$said\" >>{WRONG}; }}
        for layer in windows copies registrations queues replicas; do
            again right tg-traffic {other} $layer /tmp/traffic.$layer &
        done
        again tg-msg echo cycles-{own} &
        again count messages brief tg-msg pair {other} cycles-{other} 5 5000 &
        again tg-net serve &
        again count tg0 brief tg-net bulk {address} 1 &
        # A server that has lost its client waits for some time: the next client asks another one. A line is a round of
        # a connection, and what is said for it counts the round.
        for port in 7011 7012 7013; do again brief tg-sockets -a 20000 {program} serve $port & done
        lines() {{ for n in $(seq 20); do echo '50000 1 2'; sleep 0.5; done; }}
        ask() {{
            port=$((7011 + (port + 1) % 3))
            lines | brief tg-sockets -a 20000 {program} connect {address} $port |
                while read -r _; do printf . >>/tmp/traffic.sockets; done
        }}
        again errors sockets ask &
        wait"
    )
}

/// Ends all of a session; what has mapped the board goes with its process.
const STOP: &str = "session=$(cat /tmp/traffic.session)
    all() { for stat in /proc/[0-9]*/stat; do
        read -r line <$stat 2>/dev/null || continue
        set -- ${line##*) }
        [ \"$4\" = $session ] && [ \"$1\" != Z ] && line=${stat#/proc/} && echo ${line%/stat}
    done; }
    while pids=$(all); [ -n \"$pids\" ]; do kill -9 $pids 2>/dev/null; sleep 0.1; done";

struct Traffic<'a> {
    guest: &'a Guest,
    script: String,
    running: Option<Running>,
}

impl<'a> Traffic<'a> {
    fn begin(guest: &'a Guest, peer: &'a Guest, program: &str) -> Result<Traffic<'a>> {
        let mut traffic = Traffic { guest, script: traffic(guest, peer, program), running: None };
        traffic.continues()?;
        Ok(traffic)
    }

    fn continues(&mut self) -> Result<()> {
        let session = ["setsid", "sh", "-c", &self.script];
        self.running = Some(self.guest.argv(&session).as_root().spawn()?);
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        self.guest.sh(STOP).as_root().limit(LIMIT).check()?;
        self.running = None;
        Ok(())
    }

    /// No round has found wrong words.
    fn is_right(&self) -> Result<()> {
        let wrong = self.guest.sh(&format!("[ ! -e {WRONG} ] || cat {WRONG}")).as_root().check()?;
        ensure!(wrong.is_empty(), "node {}: {wrong}", self.guest.node());
        Ok(())
    }

    /// Rounds of each layer up to now.
    fn rounds(&self) -> Result<BTreeMap<&'static str, u64>> {
        let files = LAYERS.map(|layer| format!("/tmp/traffic.{layer}")).join(" ");
        let said = self.guest.sh(&format!("touch {files}; wc -c {files}")).as_root().check()?;
        let counts = said.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok());
        Ok(LAYERS.into_iter().zip(counts).collect())
    }
}

/// Which layer was the last one to continue, how often.
type Last = BTreeMap<&'static str, u64>;

/// Each layer of both nodes continues.
fn all_continue(traffic: [&Traffic<'_>; 2], last: &mut Last) -> Result<()> {
    let before = [traffic[0].rounds()?, traffic[1].rounds()?];
    let mut waits = None;
    within(|| {
        for (traffic, before) in traffic.iter().zip(&before) {
            let now = traffic.rounds()?;
            let silent: Vec<_> = LAYERS.into_iter().filter(|layer| now[layer] <= before[layer]).collect();
            if let Some(layer) = silent.first() {
                waits = Some(*layer);
                let files: String = silent.iter().map(|layer| format!(" /tmp/traffic.{layer}.why")).collect();
                let why = traffic.guest.sh(&format!("tail{files} 2>/dev/null; true")).as_root().check()?;
                anyhow::bail!("node {}: no round of {silent:?} more: {why}", traffic.guest.node());
            }
        }
        Ok(())
    })?;
    *last.entry(waits.unwrap_or("none")).or_default() += 1;
    Ok(())
}

const DEVICE: &str = "d=$(basename $(readlink -f /sys/bus/pci/drivers/telegraphos/0000:*)) && ";

/// The board goes and comes.
fn cycle(how: Cycle, guest: &Guest, traffic: &mut Traffic<'_>) -> Result<()> {
    let run = |script: String| guest.sh(&script).as_root().limit(LIMIT).check();
    match how {
        Cycle::UnbindAndBind => {
            let at = "/sys/bus/pci/drivers/telegraphos";
            run(format!("{DEVICE} echo $d >{at}/unbind && echo $d >{at}/bind"))?;
        }
        Cycle::Reset => {
            run(format!("{DEVICE} echo 1 >/sys/bus/pci/devices/$d/reset"))?;
        }
        Cycle::Reload => {
            // Processes that have the board open hold the module: they are killed in the middle of what they do.
            traffic.stop()?;
            run("for module in telegraphos_net telegraphos; do
                    n=0
                    until rmmod $module 2>/dev/null; do
                        n=$((n + 1)); [ $n -lt 600 ] || { rmmod $module; lsmod; exit 1; }; sleep 0.1
                    done
                done
                at=/lib/telegraphos
                # Behind a root of the user's choice the boot root has them.
                [ -e $at ] || at=/run/telegraphos-image$at
                insmod $at/telegraphos.ko && insmod $at/telegraphos_net.ko"
                .into())?;
            traffic.continues()?;
        }
        Cycle::UnplugAndPlug => {
            guest.device_del()?;
            guest.device_add()?;
        }
    }
    Ok(guest.wait_for_device()?)
}

/// What may not grow: what the driver has in its tables for processes. What it has for itself, for `tg0`, comes and
/// goes with the connections to other nodes.
fn has(guest: &Guest) -> Result<Vec<(&'static str, usize)>> {
    const TABLES: [&str; 6] = ["exports", "imports", "queues", "replicas", "registrations", "page_counters"];
    let word = |line: &str, name: &str| -> Option<String> {
        line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
    };
    let contexts = tables(guest, &["contexts"])?;
    let (others, of_processes): (Vec<_>, Vec<_>) = contexts
        .lines()
        .filter_map(|line| Some((word(line, "context")?, line)))
        .filter(|(_, line)| !line.ends_with(" closing"))
        .partition(|(_, line)| line.ends_with(" kernel"));
    let own: Vec<String> = others.into_iter().map(|(context, _)| context).collect();
    let mut all = vec![("contexts of processes", of_processes.len()), ("contexts of the driver", own.len())];
    all.push(("contexts that close", contexts.lines().filter(|line| line.ends_with("closing")).count()));
    for table in TABLES {
        let lines = tables(guest, &[table])?;
        let of_others =
            lines.lines().filter(|line| word(line, "context").is_some_and(|context| !own.contains(&context)));
        all.push((table, of_others.count()));
    }
    Ok(all)
}

fn nothing_is_left(guest: &Guest, before: &[(&str, usize)]) -> Result<()> {
    within(|| {
        let now = has(guest)?;
        ensure!(now == before, "the driver has {now:?}: expected {before:?}");
        let commands = tables(guest, &["commands"])?;
        ensure!(commands.is_empty(), "commands under way: {commands}");
        nothing_is_pinned(&tables(guest, &["/proc/vmstat"])?)?;
        Ok(())
    })
    .with_context(|| format!("node {}", guest.node()))
}

/// Tasks that do not come to an end, with their stacks.
fn hung(guest: &Guest) -> Result<String> {
    let look = "for t in /proc/[0-9]*; do
            case $(grep ^State: $t/status 2>/dev/null) in *D*) echo $t $(cat $t/comm) $(cat $t/stack);; esac
        done";
    Ok(guest.sh(look).as_root().check()?)
}

fn nothing_hangs(guest: &Guest) -> Result<()> {
    within(|| {
        let hung = hung(guest)?;
        ensure!(hung.is_empty(), "node {}: tasks that wait: {hung}", guest.node());
        Ok(())
    })
}

/// In kB, where nothing is cached for others.
fn available(guest: &Guest) -> Result<u64> {
    let said = guest.sh("sync; echo 3 >/proc/sys/vm/drop_caches; cat /proc/meminfo").as_root().check()?;
    let line = said.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).context("no MemAvailable")
}

/// Open descriptors of the process of each board.
fn descriptors(guests: [&Guest; 2]) -> Result<[usize; 2]> {
    let mut counts = [0; 2];
    for (guest, count) in guests.into_iter().zip(&mut counts) {
        // The last of them.
        let board = guest.pids().pop().context("no HIB runs")?;
        *count = std::fs::read_dir(format!("/proc/{board}/fd"))?.count();
    }
    Ok(counts)
}

/// What the kernel's leak detector finds of the driver, on a kernel that has one.
fn leaks(guest: &Guest) -> Result<()> {
    let look = "at=/sys/kernel/debug/kmemleak
        [ -e $at ] || exit 0
        for n in 1 2; do echo scan >$at; sleep 6; done
        ! grep -q '\\[telegraphos' $at || cat $at";
    let found = guest.sh(look).as_root().limit(4 * LIMIT).check()?;
    ensure!(found.is_empty(), "node {}: {found}", guest.node());
    Ok(())
}

/// One board goes and comes, with and without its driver, while all layers of both nodes are at work.
pub(crate) fn under_all_traffic(cluster: &Cluster, scale: Scale) -> Result<()> {
    let (guest, peer) = (cluster.node(0), cluster.node(1));
    let program = c::ordinary("sockets/tests/stream.c", "stream")?;
    let cycles = match std::env::var("TELEGRAPHOS_CYCLES") {
        Ok(text) => text.parse().context("TELEGRAPHOS_CYCLES")?,
        Err(_) => scale.pick(1, 100),
    };
    let ends = telegraphos_testkit::turn().map(|turn| Instant::now() + 10 * turn);
    let before = [has(guest)?, has(peer)?];
    let (memory, open) = ([available(guest)?, available(peer)?], descriptors([guest, peer])?);
    let mut own = Traffic::begin(guest, peer, &program)?;
    let mut other = Traffic::begin(peer, guest, &program)?;
    let mut last = Last::new();
    all_continue([&own, &other], &mut last).context("before the first")?;
    let begun = Instant::now();
    // One, however short that is.
    for number in (0..cycles).take_while(|number| *number == 0 || ends.is_none_or(|ends| Instant::now() < ends)) {
        for how in ALL {
            let mut one = || -> Result<()> {
                // A process that sends every ioctl once more when the board has gone; a module that goes has no users.
                let witness = if how == Cycle::Reload { None } else { Some(witness(guest)?) };
                cycle(how, guest, &mut own)?;
                if let Some(witness) = witness {
                    witness.check(LIMIT)?;
                }
                all_continue([&own, &other], &mut last)
            };
            one().with_context(|| format!("{how:?}, number {number}"))?;
        }
        if number % 10 == 9 {
            let (seconds, rounds) = (begun.elapsed().as_secs(), own.rounds()?);
            println!("  {} cycles of each kind in {seconds} s: {rounds:?}", number + 1);
        }
    }
    println!("  rounds of node 0: {:?}\n  rounds of node 1: {:?}", own.rounds()?, other.rounds()?);
    println!("  {} s; the layer that was the last one to continue: {last:?}", begun.elapsed().as_secs());
    own.is_right()?;
    other.is_right()?;
    own.stop()?;
    other.stop()?;
    for ((guest, before), memory) in [guest, peer].into_iter().zip(before).zip(memory) {
        nothing_is_left(guest, &before)?;
        nothing_hangs(guest)?;
        leaks(guest)?;
        let now = available(guest)?;
        println!("  node {}: {memory} kB available before, {now} kB after", guest.node());
        // One lost segment of each kind a cycle would be 400 KiB.
        let most = 32 << 10;
        ensure!(now + most > memory, "node {}: {} kB are gone", guest.node(), memory.saturating_sub(now));
    }
    within(|| {
        let now = descriptors([guest, peer])?;
        ensure!(now == open, "descriptors of each board's process: {now:?}: expected {open:?}");
        Ok(())
    })?;
    whole::no_kernel_has_crashed(cluster)
}

fn witness(guest: &Guest) -> Result<Running> {
    guest.argv(&["tg-hostile", "gone"]).as_root().until("ready")
}

/// A hostile user of the driver, beside the cluster's others.
pub(crate) fn hostile_user(cluster: &Cluster) -> Result<()> {
    let guest = cluster.node(0);
    let before = has(guest)?;
    print!("{}", guest.argv(&["tg-hostile"]).as_root().limit(20 * LIMIT).check()?);
    nothing_is_left(guest, &before)
}
