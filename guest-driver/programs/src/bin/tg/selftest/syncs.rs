// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks and barriers between processes of all nodes.

use super::atomics::shared;
use super::context::{Context, SOON, Verdict, YIELD, must, same, until};
use std::time::Duration;
use telegraphos::Error;
use telegraphos::sync::{Barrier, TicketLock};
use telegraphos_guest_tests::child::{Child, End};

/// Offsets in the shared segment: the lock, and what it guards.
pub(crate) const LOCK: u64 = 0;
pub(crate) const GUARDED: u64 = 64;

pub(crate) fn locks(context: &mut Context<'_>) -> Verdict {
    const PROCESSES: u64 = 2;
    const ROUNDS: u64 = 50;
    let segment = shared(context, 4096)?;
    let (node, name, rounds) = (segment.node().to_string(), context.name("shared"), ROUNDS.to_string());
    let start = |_| context.child_saying("ready", &["lock-loop", &node, &name, &rounds]);
    let mut children = (0..PROCESSES).map(start).collect::<Verdict<Vec<_>>>()?;
    context.sync()?;
    children.iter_mut().try_for_each(Child::go)?;
    children.iter_mut().try_for_each(|child| child.must_end_saying("done"))?;
    context.sync()?;
    // Plain loads and stores, never two at a time: each counts.
    let all = PROCESSES * ROUNDS * context.peers.all.len() as u64;
    same("the guarded counter", segment.get64(GUARDED)?, all)?;
    same("its twin", segment.get64(GUARDED + 8)?, all)?;
    same("tickets drawn", segment.get64(LOCK)?, all)?;
    same("tickets served", segment.get64(LOCK + 8)?, all)?;
    context.sync()
}

/// Message passing from before a lock: data to the right neighbour, a flag under the lock to the node of the lock,
/// which the neighbour polls.
pub(crate) fn lock_is_a_fence(context: &mut Context<'_>) -> Verdict {
    const ROUNDS: u64 = 100;
    let (mine, right) = context.neighbour(4096)?;
    let segment = shared(context, 4096)?;
    let lock = TicketLock::new(&segment, LOCK)?;
    let (count, place) = context.place();
    let flag = |place: usize| GUARDED + 64 * place as u64;
    for round in 1..=ROUNDS {
        right.put64(64, round)?;
        let guard = lock.lock()?;
        segment.put64(flag(place), round)?;
        guard.unlock()?;
        let raised = || Ok(segment.get64(flag((place + count - 1) % count))? >= round);
        let late = || format!("round {round}: the left neighbour's flag never comes");
        until(Duration::from_secs(60), YIELD, raised, late)?;
        let found = mine.load::<u64>(64)?;
        must(found >= round, || format!("round {round}: the flag was seen, and the data is {found}"))?;
    }
    context.sync()
}

pub(crate) fn try_lock(context: &mut Context<'_>) -> Verdict {
    let mine = context.export("data", 4096)?;
    let own = mine.remote()?;
    let lock = TicketLock::new(own, 64)?;
    let guard = lock.try_lock()?.ok_or("a free lock is not to be had")?;
    must(lock.try_lock()?.is_none(), || "a lock was taken twice".into())?;
    let early = lock.lock_timeout(Duration::from_millis(5));
    must(matches!(early, Err(Error::Pending { .. })), || format!("waiting for a lock that is held: {early:?}"))?;
    guard.unlock()?;
    let second = lock.lock_timeout(Duration::from_secs(10))?;
    same("the ticket", second.ticket(), 1)?;
    // A waiter in line is not overtaken by a mere try.
    std::thread::scope(|scope| -> Verdict {
        let waiter = scope.spawn(|| lock.lock().map(|guard| guard.ticket()));
        until(SOON, YIELD, || Ok(own.get64(64)? >= 3), || "the waiter draws no ticket".into())?;
        must(lock.try_lock()?.is_none(), || "a waiter was overtaken".into())?;
        second.unlock()?;
        let ticket = waiter.join().map_err(|_| "a thread panicked")??;
        same("the waiter's ticket", ticket, 2)
    })?;
    must(lock.try_lock()?.is_some(), || "a lock that was dropped is not free".into())?;
    must(TicketLock::new(own, 4).is_err(), || "a misaligned lock".into())?;
    must(TicketLock::new(own, 4096 - 8).is_err(), || "a lock beyond the end".into())
}

pub(crate) fn barriers(context: &mut Context<'_>) -> Verdict {
    const PROCESSES: usize = 2;
    const EPOCHS: u64 = 40;
    let count = context.peers.all.len() * PROCESSES;
    // Every participant announces its epoch here, by plain stores.
    let segment = shared(context, 8 * count as u64)?;
    let nodes: Vec<String> = context.peers.all.iter().flat_map(|n| vec![n.to_string(); PROCESSES]).collect();
    let place = context.place().1 * PROCESSES;
    let (home, name, barrier) = (segment.node().to_string(), context.name("shared"), context.name("barrier"));
    let mut children = Vec::new();
    for process in 0..PROCESSES {
        let me = (place + process).to_string();
        let args = ["barrier", &barrier, &nodes.join(","), &me, &EPOCHS.to_string(), &home, &name];
        children.push(context.child(&args)?);
    }
    children.iter_mut().try_for_each(|child| child.expect("done"))?;
    context.sync()?;
    children.iter_mut().try_for_each(|child| child.must_go_to(End::WELL))?;
    for participant in 0..count as u64 {
        same(format_args!("the last epoch of participant {participant}"), segment.get64(8 * participant)?, EPOCHS)?;
    }
    context.sync()
}

pub(crate) fn barrier_timeout(context: &mut Context<'_>) -> Verdict {
    let name = context.name("alone");
    let node = context.other_file()?;
    let me = context.me();
    let join = |number, limit| Barrier::join(&node, &name, &[me, me, me], number, 0o600, limit);
    let absent = join(0, Duration::from_millis(5)).err().map(|e| e.errno());
    same("joining without the others", absent, Some(libc::ENOENT))?;
    must(Barrier::join(&node, &name, &[me], 1, 0o600, Duration::ZERO).is_err(), || "participant 1 of 1".into())?;
    // Three participants in threads of one process; one is delayed.
    std::thread::scope(|scope| -> Verdict {
        let limit = Duration::from_secs(60);
        let others = [1, 2].map(|number| {
            scope.spawn(move || -> Verdict {
                let mut barrier = join(number, limit)?;
                (0..3).try_for_each(|_| Ok(barrier.wait_timeout(limit)?))
            })
        });
        let mut delayed = join(0, limit)?;
        let mut pending = 0;
        for _ in 0..3 {
            let deadline = std::time::Instant::now() + limit;
            loop {
                match delayed.wait_timeout(Duration::ZERO) {
                    Ok(()) => break,
                    Err(Error::Pending { .. }) if std::time::Instant::now() < deadline => pending += 1,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        for other in others {
            other.join().map_err(|_| "a thread panicked")??;
        }
        must(pending < u64::MAX, || "unlikely".into())
    })
}
