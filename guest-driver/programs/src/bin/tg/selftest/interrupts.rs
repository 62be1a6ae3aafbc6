// SPDX-License-Identifier: MIT OR Apache-2.0
//! The way from the board's interrupt to a sleeper: through the interrupt thread only where the kernel wants it so.

use super::context::{Context, MILLISECOND, Verdict, becomes, must, same};
use super::idle::sleeps_of;
use super::queues::{send_range, take_range};
use std::fs;
use telegraphos::Queue;

/// How often the threads of the board's interrupt have slept so far, and how many there are.
fn thread_sleeps() -> Verdict<(u64, u32)> {
    let (mut sleeps, mut threads) = (0, 0);
    for entry in fs::read_dir("/proc")?.flatten() {
        let path = entry.path();
        // A process may end meanwhile.
        let Ok(name) = fs::read_to_string(path.join("comm")) else { continue };
        if !(name.starts_with("irq/") && name.contains("tele")) {
            continue;
        }
        sleeps += sleeps_of(name.trim(), &fs::read_to_string(path.join("status"))?)?;
        threads += 1;
    }
    Ok((sleeps, threads))
}

/// Sleepers of both nodes wake each other. Each event is the hard handler's alone, or with `threadirqs` the threads'.
pub(crate) fn way_to_a_sleeper(context: &mut Context<'_>) -> Verdict {
    const ROUNDS: u32 = 200;
    let (mine, right) = context.queue_pair("awake", |q| q.words(8))?;
    context.sync()?;
    let (before, threads) = thread_sleeps()?;
    must(threads > 0, || "the board's interrupt has no thread".into())?;
    for round in 0..ROUNDS {
        send_range(&right, 1, round, round + 1)?;
        take_range(&mine, 1, round, round + 1)?;
    }
    let slept = thread_sleeps()?.0 - before;
    let threaded = fs::read_to_string("/proc/cmdline")?.split_whitespace().any(|word| word == "threadirqs");
    // Other events (of imports and nodes that come and go, of commands) are few.
    let expected = if threaded { u64::from(ROUNDS) / 4..u64::MAX } else { 0..u64::from(ROUNDS) / 4 };
    must(expected.contains(&slept), || {
        format!("{ROUNDS} wake-ups, and the interrupt's threads slept {slept} times; threadirqs: {threaded}")
    })?;
    context.sync()?;
    same("one element more", mine.try_pop()?, None)
}

/// A load traps behind stores that each cause an event: when it returns, all of them are there, and one interrupt finds
/// more than its handler takes by itself.
pub(crate) fn more_than_one_interrupt_handles(context: &mut Context<'_>) -> Verdict {
    const ROUNDS: u64 = 20;
    const ARMS: u64 = 100;
    // An open file of its own, whose events have no other reader.
    let node = context.other_file()?;
    let mine = Queue::create(&node, &context.name("many")).words(8).mode(0o602).create()?;
    let right = context.enqueuer(context.peers.right(), "many")?;
    let segment = node.export(&context.name("trap"), 4096).create()?;
    let trap = segment.remote()?;
    same("the first look", mine.try_pop()?, None)?;
    context.sync()?;
    send_range(&right, 1, 0, 1)?;
    context.sync_behind(&right)?;
    // Whatever has come before.
    let events = node.completions()?;
    let mut count = [0; 8];
    _ = rustix::io::read(events, &mut count);
    let before = thread_sleeps()?.0;
    for round in 0..ROUNDS {
        // The element is there, and was not when the queue was last seen: each arm is an event at once.
        for _ in 0..ARMS {
            mine.arm()?;
        }
        trap.get64(0)?;
        let mut all = 0;
        let look = || match rustix::io::read(events, &mut count) {
            Ok(_) => {
                all += u64::from_ne_bytes(count);
                Ok(all)
            }
            Err(rustix::io::Errno::AGAIN) => Ok(all),
            Err(errno) => Err(format!("reading the events: {errno}").into()),
        };
        let late = |all: &u64| format!("round {round}: {all} events come after {ARMS} arms");
        let all = becomes(context.patience, MILLISECOND, look, |all| *all >= ARMS, late)?;
        same(format_args!("events of round {round}"), all, ARMS)?;
    }
    let slept = thread_sleeps()?.0 - before;
    must(slept > 0, || format!("{ROUNDS} times {ARMS} events, and the interrupt's thread never had to help"))?;
    take_range(&mine, 1, 0, 1)?;
    context.sync()
}
