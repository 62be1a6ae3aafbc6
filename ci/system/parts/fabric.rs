// SPDX-License-Identifier: MIT OR Apache-2.0
//! Boards without virtual machines at three fabric processes, each in a separate network, over trunks that lose and
//! corrupt: nothing is lost, nothing comes twice, order is kept (I8, I16); and what is reported of a partition that is
//! longer than the silence.

mod load;

use crate::rings::snapshot;
use anyhow::{Context, Result, ensure};
use load::{Counts, Load, NODES};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use telegraphos_cluster::client::{self, ClientError, Guest, MEMORY};
use telegraphos_cluster::control::snapshot::TrunkEnd;
use telegraphos_cluster::control::{ControlClient, Request, Target};
use telegraphos_cluster::{Boards, ProgressMode, Row, Settings};
use telegraphos_testkit::Scale;
use telegraphos_wire::{NodeId, Rights, Status, event};

/// What carries the trunks.
const TRANSPORT: &str = "udp";
const FAULTS: &str = "loss=5% corrupt=1%";
/// Of pages for stores and atomics.
const ALL: Rights = Rights(Rights::READ.0 | Rights::WRITE.0 | Rights::ATOMIC.0);
const LEFT_MIDDLE: &str = "left-middle";

fn options(silence_ms: u64) -> Settings {
    let seed = std::env::var("TELEGRAPHOS_SEED").unwrap_or_else(|_| "1".into());
    // No other process is in these networks.
    let insecure = ("insecure-trunks".into(), "true".into());
    let fabric = vec![("silence-ms".into(), silence_ms.to_string()), ("seed".into(), seed), insecure];
    Settings { fabric, ..crate::settings("three-fabrics") }
}

fn set_faults(control: &mut ControlClient, trunk: &str, faults: &str) -> Result<()> {
    let on = Target::Trunk(trunk.to_owned());
    control.request(&Request::SetFaults { on, faults: faults.parse()? })?;
    Ok(())
}

fn trunk(control: &mut ControlClient, name: &str) -> Result<TrunkEnd> {
    let found = snapshot(control)?.trunks.into_iter().find(|end| end.name == name);
    found.with_context(|| format!("no trunk {name}"))
}

/// Packets that have come out of the end of a trunk, and have gone into it.
fn crossed(end: &TrunkEnd) -> (u64, u64) {
    let flows = end.classes.iter().map(|(_, flows)| (flows.received.packets, flows.sent.packets));
    flows.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

struct Partition {
    /// Operations done before it.
    before: u64,
    silent: Duration,
}

/// Cuts the trunk between left and middle once a third of the operations is done, and joins it again 5 s later.
fn partition(controls: &mut [ControlClient], load: &Load, stop: &AtomicBool) -> Result<Partition> {
    while load.done() < load.total() / 3 {
        if stop.load(Ordering::Relaxed) {
            anyhow::bail!("the boards stopped before the partition");
        }
        telegraphos_cluster::sleep(Duration::from_millis(5))?;
    }
    let begun = Instant::now();
    let left = &mut controls[0];
    set_faults(left, LEFT_MIDDLE, &format!("{FAULTS} down"))?;
    // What had come out of the trunk's transport before may still be counted.
    let mut last = crossed(&trunk(left, LEFT_MIDDLE)?).0;
    loop {
        telegraphos_cluster::sleep(Duration::from_millis(500))?;
        let now = crossed(&trunk(left, LEFT_MIDDLE)?).0;
        if now == last {
            break;
        }
        last = now;
    }
    let (before, still) = (load.done(), Instant::now());
    telegraphos_cluster::sleep(Duration::from_secs(5).saturating_sub(begun.elapsed()))?;
    let end = trunk(left, LEFT_MIDDLE)?;
    ensure!(crossed(&end).0 == last, "{} packets crossed a trunk that is down", crossed(&end).0 - last);
    ensure!(end.up && end.resets == 0, "a partition shorter than the silence was reported: {end:?}");
    ensure!(load.done() < load.total(), "all was done before the partition ended");
    let found = Partition { before, silent: still.elapsed() };
    set_faults(left, LEFT_MIDDLE, &format!("{FAULTS} only=send"))?;
    Ok(found)
}

/// SPEC I16 on real sockets: 16 boards at three fabric processes in network namespaces, trunks that lose 5 % and
/// corrupt 1 % each way, and a partition of 5 s: each operation is performed once, and in order.
pub(crate) fn sixteen_boards_over_three_fabrics_lose_nothing(scale: Scale) -> Result<()> {
    let load = Load::new(scale.pick(50_000, 1_000_000));
    let row = Row {
        switches: vec![("left", 0..5), ("middle", 5..11), ("right", 11..NODES)],
        transport: TRANSPORT,
        faults: FAULTS,
    };
    let mut boards = Boards::start_in_a_row(&options(30_000), ProgressMode::Silent, &row, |_| Vec::new())?;
    let mut controls: Vec<ControlClient> = (0..3).map(|place| boards.control(place)).collect::<Result<_, _>>()?;
    let mut nodes = load::prepare(boards.guests_mut())?;
    let sessions = |controls: &mut [ControlClient]| -> Result<Vec<u64>> {
        let ends = controls.iter_mut().map(|control| Ok(snapshot(control)?.trunks));
        Ok(ends.collect::<Result<Vec<_>>>()?.iter().flatten().map(|end| end.session).collect())
    };
    let before = sessions(&mut controls)?;
    let begun = Instant::now();
    let stop = AtomicBool::new(false);
    let partition = std::thread::scope(|scope| {
        let threads: Vec<_> = boards
            .guests_mut()
            .iter_mut()
            .zip(&mut nodes)
            .map(|(guest, node)| {
                let (load, stop) = (&load, &stop);
                scope.spawn(move || {
                    let ended = node.run(guest, load, stop);
                    stop.fetch_or(ended.is_err(), Ordering::Relaxed);
                    ended.with_context(|| format!("node {}", node.node))
                })
            })
            .collect();
        let partition = partition(&mut controls, &load, &stop);
        stop.fetch_or(partition.is_err(), Ordering::Relaxed);
        let ended: Vec<Result<()>> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked"))))
            .collect();
        // Those that stopped because of another say nothing new.
        let mut failures: Vec<String> =
            ended.iter().filter_map(|e| e.as_ref().err()).map(|e| format!("{e:#}")).collect();
        failures.sort_by_key(|failure| failure.contains(load::STOPPED));
        match (partition, failures.first()) {
            (Err(e), Some(failure)) => Err(e.context(failure.clone())),
            (Err(e), None) => Err(e),
            (_, Some(failure)) => anyhow::bail!("{failure}"),
            (Ok(partition), None) => Ok(partition),
        }
    })?;
    let took = begun.elapsed();
    let Counts { enqueues, adds, stores, overflows } = load::check(boards.guests_mut(), &mut nodes, &load)?;
    ensure!(enqueues + adds + stores == load.total(), "{enqueues}, {adds} and {stores} are not {}", load.total());
    ensure!(sessions(&mut controls)? == before, "a trunk was joined anew");
    println!(
        "  {} operations in {:.1} s ({:.0} a second): {enqueues} elements, {adds} fetch-and-adds, {stores} stores; {overflows} overflows",
        load.total(),
        took.as_secs_f64(),
        load.total() as f64 / took.as_secs_f64()
    );
    println!(
        "  left cut off from middle and right after {} operations: for {:.1} s nothing crossed",
        partition.before,
        partition.silent.as_secs_f64(),
    );
    for (control, (name, _)) in controls.iter_mut().zip(&row.switches) {
        for end in snapshot(control)?.trunks {
            let (received, sent) = crossed(&end);
            println!(
                "  {name}'s end of {} ({}): {sent} packets out, {received} in, {} faults, {} datagrams sent again",
                end.name, end.transport, end.faulted, end.retransmissions,
            );
            ensure!(end.up && end.resets == 0, "{name}'s end of {}: {end:?}", end.name);
            ensure!(end.faulted > 0 && end.retransmissions > 0, "nothing went wrong with {name}'s end of {}", end.name);
        }
    }
    Ok(())
}

/// Waits until all of these nodes have come or gone; no other may.
fn notified(guest: &mut Guest, nodes: &[NodeId], up: bool) -> Result<()> {
    let mut missing: BTreeSet<NodeId> = nodes.iter().copied().collect();
    let found = client::wait_for("news of nodes", || {
        let events = match guest.events() {
            Ok(events) => events,
            Err(e) => return Some(Err(e.into())),
        };
        for news in events.iter().filter(|e| e.kind == event::NODE_STATE) {
            if (news.value != 0) != up || !nodes.contains(&news.index) {
                return Some(Err(anyhow::anyhow!("node {} has state {:#x}", news.index, news.value)));
            }
            missing.remove(&news.index);
        }
        missing.is_empty().then_some(Ok(()))
    });
    found.with_context(|| format!("nodes {nodes:?} up: {up}"))?
}

/// A partition longer than the silence: both sides are notified of the lost nodes, what was outstanding ends with an
/// error and never arrives, the others continue; after it they import again.
pub(crate) fn a_long_partition_is_reported_and_heals() -> Result<()> {
    let row =
        Row { switches: vec![("left", 0..2), ("middle", 2..3), ("right", 3..4)], transport: TRANSPORT, faults: "" };
    let mut boards = Boards::start_in_a_row(&options(3000), ProgressMode::Silent, &row, |_| Vec::new())?;
    let mut control = boards.control(1)?;
    let all: [NodeId; 4] = [0, 1, 2, 3];
    let mut pages = Vec::new();
    for node in all {
        pages.push(boards.ask(node.into(), |guest| guest.grant(node, 0, 1, MEMORY, ALL))?);
    }
    for node in all {
        let peers: Vec<NodeId> = all.into_iter().filter(|peer| *peer != node).collect();
        notified(&mut boards.guests_mut()[usize::from(node)], &peers, true)?;
        for peer in peers {
            boards.ask(node.into(), |guest| guest.import(peer, &pages[usize::from(peer)], ALL))?;
        }
    }
    // Word `word` of each peer's page, one for each sender.
    let place = |from: NodeId, to: NodeId, word: u64| client::window(to, to, 8 * (16 * u64::from(from) + word));
    let store = |boards: &mut Boards, from: NodeId, to: &[NodeId], word: u64, value: u64| {
        boards.ask(from.into(), |guest| {
            for to in to {
                guest.client.store(client::WINDOW, place(from, *to, word), &value.to_le_bytes())?;
            }
            guest.quiet()
        })
    };
    let others = |node: NodeId| -> Vec<NodeId> { all.into_iter().filter(|peer| *peer != node).collect() };
    for node in all {
        let status = store(&mut boards, node, &others(node), 0, 7)?;
        ensure!(status == Status::Ok, "node {node}: {status} before the partition");
    }

    set_faults(&mut control, "middle-right", "down")?;
    let (here, there): (&[NodeId], &[NodeId]) = (&[0, 1, 2], &[3]);
    let lost = |node| if there.contains(&node) { here } else { there };
    // In flight before the partition is detected: stores and an atomic.
    let mut launched = Vec::new();
    for node in all {
        let lost = lost(node);
        launched.push(boards.ask(node.into(), |guest| {
            guest.client.store(client::WINDOW, place(node, lost[0], 1), &8u64.to_le_bytes())?;
            guest.begin_add(1, lost[0], lost[0], 8 * (16 * u64::from(node) + 2), 1)
        })?);
    }
    for node in all {
        let lost = lost(node);
        notified(&mut boards.guests_mut()[usize::from(node)], lost, false).with_context(|| format!("node {node}"))?;
        let cookie = launched[usize::from(node)];
        boards.ask(node.into(), |guest| {
            let ended = client::wait_for("the end of an atomic", || guest.done(1, cookie).transpose())??;
            let stored = guest.quiet()?;
            if (ended, stored) != (Status::NodeDown, Status::NodeDown) {
                return Err(ClientError::Store { status: if ended == Status::NodeDown { stored } else { ended } });
            }
            Ok(())
        })?;
    }
    // Dead imports are closed; the others are as good as before.
    for node in all {
        let lost = lost(node);
        for peer in lost {
            boards.ask(node.into(), |guest| guest.close_import(*peer))?;
        }
        let left: Vec<NodeId> = others(node).into_iter().filter(|peer| !lost.contains(peer)).collect();
        let status = store(&mut boards, node, &left, 3, 9)?;
        ensure!(status == Status::Ok, "node {node}: {status} on its own side of the partition");
    }

    set_faults(&mut control, "middle-right", "")?;
    for node in all {
        let lost = lost(node);
        notified(&mut boards.guests_mut()[usize::from(node)], lost, true).with_context(|| format!("node {node}"))?;
        for peer in lost {
            boards.ask(node.into(), |guest| guest.import(*peer, &pages[usize::from(*peer)], ALL))?;
        }
    }
    for node in all {
        let status = store(&mut boards, node, &others(node), 4, 10)?;
        ensure!(status == Status::Ok, "node {node}: {status} after the partition");
    }
    for owner in all {
        for from in others(owner) {
            for (word, expected) in [(0, 7), (1, 0), (2, 0), (4, 10)] {
                let at = MEMORY + 8 * (16 * u64::from(from) + word);
                let found = boards.ask(owner.into(), |guest| guest.load64(at))?;
                ensure!(
                    found == expected,
                    "word {word} of node {from} at node {owner} is {found}: expected {expected}"
                );
            }
        }
    }
    let end = trunk(&mut control, "middle-right")?;
    ensure!(end.up && end.resets == 1, "the trunk: {end:?}");
    println!("  session {} of the trunk after the partition", end.session);
    Ok(())
}

/// A board that hangs is disconnected after the silence; requests to it end with an error, the others continue,
/// and when it wakes up it comes back as a new life.
pub(crate) fn a_hung_board_is_disconnected_and_comes_back() -> Result<()> {
    const HUNG: usize = 1;
    let mut boards = Boards::start(&options(2000), ProgressMode::Silent, 3, false, |_| Vec::new())?;
    let mut pages = Vec::new();
    for node in 0..3 {
        pages.push(boards.ask(node, |guest| guest.grant(node as NodeId, 0, 1, MEMORY, ALL))?);
    }
    notified(&mut boards.guests_mut()[0], &[1, 2], true)?;
    let import = |boards: &mut Boards, peer: usize| {
        boards.ask(0, |guest| guest.import(peer as NodeId, &pages[peer], ALL)).map(drop)
    };
    import(&mut boards, 1)?;
    import(&mut boards, 2)?;
    let store = |boards: &mut Boards, to: NodeId, word: u64, value: u64| {
        boards.ask(0, |guest| {
            guest.client.store(client::WINDOW, client::window(to, to, 8 * word), &value.to_le_bytes())?;
            guest.quiet()
        })
    };
    ensure!(store(&mut boards, 1, 0, 7)? == Status::Ok, "before it hangs");

    boards.hang(HUNG, true);
    // Waits until the board is disconnected: nothing else ends it.
    let status = store(&mut boards, 1, 1, 8)?;
    ensure!(status == Status::NodeDown, "{status}: a store to a board that hangs");
    notified(&mut boards.guests_mut()[0], &[1], false)?;
    boards.ask(0, |guest| guest.close_import(1))?;
    let status = store(&mut boards, 2, 0, 9)?;
    ensure!(status == Status::Ok, "{status}: a store to another board meanwhile");

    boards.hang(HUNG, false);
    notified(&mut boards.guests_mut()[0], &[1], true)?;
    import(&mut boards, 1)?;
    let status = store(&mut boards, 1, 2, 10)?;
    ensure!(status == Status::Ok, "{status}: a store to the board that has come back");
    for (node, word, expected) in [(1, 0, 7), (2, 0, 9), (1, 2, 10)] {
        let found = boards.ask(node, |guest| guest.load64(MEMORY + 8 * word))?;
        ensure!(found == expected, "word {word} of node {node} is {found}: expected {expected}");
    }
    let snapshot = snapshot(&mut boards.control(0)?)?;
    ensure!(snapshot.totals.violations == 1 && snapshot.totals.joined == 4, "{:?}", snapshot.totals);
    Ok(())
}

/// A port or socket in use, a process that is none, a board at the wrong process: each is named with what to do.
pub(crate) fn what_does_not_fit_is_named() -> Result<()> {
    let dir = tempfile::tempdir()?;
    // This port is in use.
    let taken = std::net::UdpSocket::bind(("127.0.0.1", 0))?;
    let port = taken.local_addr()?.port();
    let file = dir.path().join("topology.toml");
    let process =
        |name: &str, nodes: &str| format!("[[switch]]\nname = '{name}'\nnodes = '{nodes}'\nprocess = '{name}'\n");
    let trunk = format!("[[trunk]]\nbetween = ['right', 'left']\nat = '{TRANSPORT}:127.0.0.1:{port}'\n");
    std::fs::write(&file, process("left", "0-1") + &process("right", "2-3") + &trunk)?;
    let role = |role: &str, args: &[&str]| {
        let mut command = std::process::Command::new("/proc/self/exe");
        command.arg(role).args(args).current_dir(dir.path());
        command
    };
    let fabric =
        |name: &str| role("__fabric", &["--listen", "left.socket", "--topology", "topology.toml", "--process", name]);
    let refused = |command, parts: &[&str]| crate::help::refused(command, 1, parts);
    let at = format!("{TRANSPORT}:127.0.0.1:{port}");
    refused(fabric("right"), &["trunk left-right", &at, "another process has this port", "choose another"])?;
    refused(fabric("centre"), &["--process is centre", "expected one of left, right"])?;
    let mut left = fabric("left").stderr(std::process::Stdio::null()).spawn()?;
    let socket = dir.path().join("left.socket");
    let checked =
        client::wait_for("the fabric's socket", || socket.exists().then_some(())).map_err(Into::into).and_then(|()| {
            refused(fabric("left"), &["another process is listening at left.socket", "choose another --listen"])?;
            let board = role("__hib", &["--socket", "hib.socket", "--node", "2", "--fabric", "left.socket"]);
            refused(board, &["node 2", "switch 1 of the topology", "serves switch 0", "connect this board to"])
        });
    left.kill()?;
    left.wait()?;
    checked
}
