// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits that take long are slept through, whatever is waited for. Counted are the sleeps of the waiting thread, not
//! times: one that looked every millisecond would sleep a thousand times in a second.

use super::context::{Context, Stop, Verdict, must, same};
use telegraphos::sync::{Barrier, TicketLock};
use telegraphos::{Broadcast, BroadcastConsumer, Replicated};
use telegraphos_guest_tests::replica;

/// Sleeps of a wait of a few seconds: some 60 while it still polls, the second's looks at the board, and wake-ups.
const SLEEPS: u64 = 250;

/// How often a thread has slept so far, by its status.
pub(crate) fn sleeps_of(thread: &str, status: &str) -> Verdict<u64> {
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    let count = count.and_then(|count| count.trim().parse().ok());
    count.ok_or_else(|| Stop::Fail(format!("the status of {thread} is {status:?}")))
}

fn sleeps() -> Verdict<u64> {
    sleeps_of("this thread", &std::fs::read_to_string("/proc/thread-self/status")?)
}

/// What `wait` returns, which must not have slept often.
fn idle<T>(what: &str, wait: impl FnOnce() -> Verdict<T>) -> Verdict<T> {
    let before = sleeps()?;
    let result = wait()?;
    let slept = sleeps()? - before;
    must(slept <= SLEEPS, || format!("waiting for {what}, the thread slept {slept} times: expected {SLEEPS} at most"))?;
    Ok(result)
}

/// Each node is late once, and all others wait for it.
pub(crate) fn barriers(context: &mut Context<'_>) -> Verdict {
    let (nodes, me) = context.place();
    let participants = context.peers.all.clone();
    // Threads of files whose events have other readers cannot sleep until events come.
    let (node, name) = (context.other_file()?, context.name("late"));
    let mut barrier = Barrier::join(&node, &name, &participants, me, 0o606, context.patience)?;
    barrier.wait_timeout(context.patience)?;
    for late in 0..nodes {
        if late == me {
            std::thread::sleep(context.seconds);
            barrier.wait_timeout(context.patience)?;
        } else {
            idle("a barrier", || Ok(barrier.wait_timeout(context.patience)?))?;
        }
        context.sync()?;
    }
    Ok(())
}

/// Each node holds a lock for long, in a segment that all have copies of.
pub(crate) fn locks(context: &mut Context<'_>) -> Verdict {
    let (nodes, me) = context.place();
    let (node, name, home) = (context.other_file()?, context.name("locked"), context.peers.all[0]);
    let board = match me {
        0 => Replicated::create(&node, &name, 4096).mode(0o606).create()?,
        _ => replica::join_patiently(Replicated::join(&node, home, &name).mode(0o606), context.patience)?,
    };
    context.sync()?;
    for late in 0..nodes {
        let lock = TicketLock::new(&board, 0)?;
        if late == me {
            let guard = lock.lock()?;
            context.sync()?;
            std::thread::sleep(context.seconds);
            guard.unlock()?;
        } else {
            context.sync()?;
            let (limit, in_line) = (context.patience, me % 2 == 0);
            let lock = || Ok(if in_line { lock.lock()? } else { lock.lock_timeout(limit)? });
            let guard = idle("a lock", lock)?;
            guard.unlock()?;
        }
        context.sync()?;
    }
    Ok(())
}

/// Consumers wait for the producer, and then the producer for its consumers.
pub(crate) fn broadcasts(context: &mut Context<'_>) -> Verdict {
    let (nodes, me) = context.place();
    let (name, patience) = (context.name("news"), context.patience);
    let limit = Some(patience);
    let (node, home) = (context.other_file()?, context.peers.all[0]);
    if me == 0 {
        let mut news = Broadcast::create(&node, &name).slots(4).mode(0o606).create()?;
        context.sync()?;
        news.wait_consumers(nodes - 1, limit)?;
        context.sync()?;
        std::thread::sleep(context.seconds);
        for message in 0..4u64 {
            news.push(&message.to_le_bytes(), limit)?;
        }
        context.sync()?;
        // The ring is full until the consumers wake.
        idle("room in a broadcast", || Ok(news.push(&4u64.to_le_bytes(), limit)?))?;
        idle("the consumers of a broadcast", || Ok(news.finish(limit)?))?;
        return context.sync();
    }
    context.sync()?;
    let mut news: BroadcastConsumer = Broadcast::join(&node, home, &name).open()?;
    let mut message = Vec::new();
    // The producer assigns the place when it looks.
    context.sync()?;
    idle("a message", || Ok(news.pop_into(&mut message, limit)?))?;
    same("the first message", &message[..], &0u64.to_le_bytes()[..])?;
    context.sync()?;
    std::thread::sleep(context.seconds);
    for expected in 1..5u64 {
        must(news.pop_into(&mut message, limit)?, || format!("the broadcast ends before message {expected}"))?;
        same("a message", &message[..], &expected.to_le_bytes()[..])?;
    }
    std::thread::sleep(context.seconds);
    must(!news.pop_into(&mut message, limit)?, || "a message after the last".into())?;
    drop(news);
    context.sync()
}
