// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notification queues: what arrives, in which order, and what a full one does (SPEC items 2 to 9).

use super::context::{
    Context, LONG, MILLISECOND, SOON, Stop, Verdict, becomes, both, in_threads, joined, must, same, until,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use telegraphos::{Error, Queue, QueueState, RemoteQueue};
use telegraphos_guest_tests::child::{Child, End};
use telegraphos_guest_tests::queue::{self, Memory, element, shaped};
use telegraphos_guest_tests::{random, raw};

/// The oldest element, which is there or on its way.
pub(crate) fn take(queue: &Queue) -> Verdict<u64> {
    let found = queue.pop_wait(Some(SOON))?;
    found.ok_or_else(|| Stop::Fail(format!("no element came to {:?} within {SOON:?}", queue.name())))
}

/// Elements of a sender from number `first` to `end`, and no others.
pub(crate) fn take_range(queue: &Queue, sender: u32, first: u32, end: u32) -> Verdict {
    let width = queue.shape().width().into();
    for number in first..end {
        same(format_args!("element {number} of {:?}", queue.name()), take(queue)?, element(width, sender, number))?;
    }
    Ok(())
}

pub(crate) fn send_range(queue: &RemoteQueue, sender: u32, first: u32, end: u32) -> Verdict {
    (first..end).try_for_each(|number| Ok(queue.enqueue(element(queue.width(), sender, number))?))
}

/// An element that waits for room keeps quiet from completing.
pub(crate) fn not_quiet(queue: &RemoteQueue) -> Verdict {
    match queue.quiet_timeout(LONG) {
        Err(Error::Pending { .. }) => Ok(()),
        other => Err(Stop::Fail(format!("quiet of {:?} says {other:?}: expected that it waits", queue.name()))),
    }
}

/// Waits until the state of a queue of this node is as wanted.
pub(crate) fn queue_becomes(queue: &Queue, what: &str, wanted: impl Fn(&QueueState) -> bool) -> Verdict<QueueState> {
    becomes(
        SOON,
        MILLISECOND,
        || Ok(queue.state()?),
        wanted,
        |state| format!("{:?} stays {state:?}: expected {what}", queue.name()),
    )
}

/// Both word widths, and what they are called in names.
pub(crate) const WIDTHS: [(u32, &str); 2] = [(4, "narrow"), (8, "wide")];

pub(crate) fn one_store(context: &mut Context<'_>) -> Verdict {
    const COUNT: u64 = 50;
    let (own_seed, peer_seed) = context.seeds()?;
    for (width, part) in WIDTHS {
        let (mine, right) = context.queue_pair(part, |q| shaped(q, 64, width))?;
        let expected = |seed, n| raw::masked(random::word(seed, n), width as usize);
        for n in 0..COUNT {
            // SAFETY: the queue's first word, in its width.
            unsafe { raw::store_size(right.as_ptr(), 0, width as usize, random::word(own_seed, n)) };
        }
        context.sync_behind(&right)?;
        for n in 0..COUNT {
            same(format_args!("{part} element {n}"), mine.try_pop()?, Some(expected(peer_seed, n)))?;
        }
        same("one element more", mine.try_pop()?, None)?;
        same("overflows of a queue with room", mine.state()?.overflows, 0)?;
    }
    context.sync()
}

pub(crate) fn layout(context: &mut Context<'_>) -> Verdict {
    const WORDS: u64 = 8;
    let pairs = WIDTHS.map(|(width, part)| context.queue_pair(part, |q| shaped(q, WORDS as u32, width)));
    let mut sides = Vec::new();
    for ((width, part), pair) in WIDTHS.into_iter().zip(pairs) {
        let (mine, right) = pair?;
        let memory = Memory::of(context.node(), &mine)?;
        sides.push((width, part, mine, right, memory));
    }
    // Elements sent, elements taken then, and the tail and head that this leads to.
    let steps: [(u32, u32, u64, u64); 7] =
        [(0, 0, 3, 3), (1, 0, 4, 3), (3, 0, 7, 3), (0, 4, 7, 7), (2, 0, 4, 7), (2, 1, 6, 3), (0, 3, 6, 6)];
    let (mut sent, mut taken) = (0, 0);
    for (send, take, tail, head) in steps {
        for (_, _, _, right, _) in &sides {
            send_range(right, 1, sent, sent + send)?;
            right.quiet_timeout(SOON)?;
        }
        context.sync()?;
        for (width, part, mine, _, memory) in &sides {
            take_range(mine, 1, taken, taken + take)?;
            let what = format!("of the {part} buffer after {} elements, {} taken", sent + send, taken + take);
            same(format_args!("size and tail {what}"), memory.word(0), WORDS << 16 | tail)?;
            same(format_args!("size and head {what}"), memory.word(1), WORDS << 16 | head)?;
            same(format_args!("next {what}"), memory.word(2), 0)?;
            // Numbers count on through the indices 3 to 7.
            for number in (sent + send).saturating_sub(4)..sent + send {
                let found = memory.word(3 + u64::from(number) % (WORDS - 3));
                same(format_args!("the word of element {number} {what}"), found, element(*width, 1, number))?;
            }
        }
        context.sync()?;
        (sent, taken) = (sent + send, taken + take);
    }
    Ok(())
}

pub(crate) fn one_sender(context: &mut Context<'_>) -> Verdict {
    const COUNT: u32 = 3000;
    for (width, part) in WIDTHS {
        let (mine, right) = context.queue_pair(part, |q| shaped(q, 256, width))?;
        both(|| send_range(&right, 3, 0, COUNT), || take_range(&mine, 3, 0, COUNT))?;
        context.sync_behind(&right)?;
        same("one element more", mine.try_pop()?, None)?;
    }
    Ok(())
}

pub(crate) fn many_senders(context: &mut Context<'_>) -> Verdict {
    const COUNT: u32 = 400;
    const THREADS: u32 = 2;
    let mine = context.queue("all", |q| q.words(64))?;
    let all = context.peers.all.clone();
    // Each thread has a separate import: between imports there is no order.
    let mut targets = Vec::new();
    for node in &all {
        for thread in 0..THREADS {
            targets.push((thread, context.enqueuer(*node, "all")?));
        }
    }
    let (me, senders) = (u32::from(context.me()), all.len() * THREADS as usize);
    let mut next = std::collections::BTreeMap::new();
    let send = |target: u64| {
        let (thread, queue) = &targets[target as usize];
        send_range(queue, me * THREADS + thread, 0, COUNT)?;
        Ok(queue.quiet_timeout(SOON)?)
    };
    let receive = || -> Verdict {
        for _ in 0..senders * COUNT as usize {
            let value = take(&mine)?;
            let Some((sender, number)) = queue::parse(4, value) else {
                return Err(format!("{value:#x} came, which no thread sent").into());
            };
            let expected = next.entry(sender).or_insert(0);
            same(format_args!("the number of sender {sender}"), number, *expected)?;
            *expected += 1;
        }
        Ok(())
    };
    both(|| in_threads(targets.len() as u64, send).map(drop), receive)?;
    same("the number of senders", next.len(), senders)?;
    context.note(format!("{senders} senders, {} overflows", mine.state()?.overflows));
    context.sync()?;
    same("one element more", mine.try_pop()?, None)
}

/// A popped pointer implies the whole message (SPEC item 14, I8).
pub(crate) fn put_notify(context: &mut Context<'_>) -> Verdict {
    const WORDS: u64 = 1024;
    const ROUNDS: u64 = 24;
    let (arena, far) = context.neighbour(8 * WORDS * ROUNDS)?;
    let (mine, right) = context.queue_pair("news", |q| q.wide().words(16))?;
    let (own_seed, peer_seed) = context.seeds()?;
    let send = || {
        (0..ROUNDS).try_for_each(|round| {
            let message: Vec<u64> = (0..WORDS).map(|n| random::word(own_seed, round * WORDS + n)).collect();
            Ok(right.put_notify(&far, 8 * round * WORDS, &message, 8 * round * WORDS)?)
        })
    };
    let receive = || -> Verdict {
        for round in 0..ROUNDS {
            let offset = take(&mine)?;
            same("the pointer", offset, 8 * round * WORDS)?;
            // The last word first: it was stored last.
            for n in (0..WORDS).rev() {
                let found: u64 = arena.load(offset + 8 * n)?;
                let expected = random::word(peer_seed, round * WORDS + n);
                let wrong = || format!("word {n} of message {round} is {found:#x}: expected {expected:#x}");
                must(found == expected, wrong)?;
            }
        }
        Ok(())
    };
    both(send, receive)?;
    context.sync()
}

/// Sends and receives through queues of 8 words with a slow consumer.
pub(crate) fn overflow(context: &mut Context<'_>) -> Verdict {
    // Fewer than the receive credits: none blocks if another fails.
    const COUNT: u32 = 1000;
    for (width, part) in WIDTHS {
        let (mine, right) = context.queue_pair(part, |q| shaped(q, 8, width).quota(3))?;
        let receive = || -> Verdict {
            for number in 0..COUNT {
                same(format_args!("{part} element {number}"), take(&mine)?, element(width, 5, number))?;
                if random::word(7, number.into()) % 64 == 0 {
                    std::thread::sleep(MILLISECOND);
                }
            }
            Ok(())
        };
        both(|| send_range(&right, 5, 0, COUNT), receive)?;
        context.sync_behind(&right)?;
        same("one element more", mine.try_pop()?, None)?;
        let QueueState { overflows, evictions, .. } = mine.state()?;
        context.note(format!("{COUNT} {part} elements, {overflows} overflows"));
        must(overflows > 20, || format!("{overflows} overflows: nothing was shown"))?;
        same("evictions", evictions, 0)?;
    }
    Ok(())
}

/// Element size - 3 into an undrained buffer overflows: 16381 for 64 KiB of narrow words.
pub(crate) fn overflow_point(context: &mut Context<'_>) -> Verdict {
    // Words, width, and elements that have passed through before.
    for (index, (words, width, before)) in
        [(1 << 14, 4, 0), (1 << 10, 8, 0), (8, 4, 0), (8, 8, 0), (8, 4, 2), (64, 8, 61)].into_iter().enumerate()
    {
        let (mine, right) = context.queue_pair(&index.to_string(), |q| shaped(q, words, width).quota(2))?;
        let memory = Memory::of(context.node(), &mine)?;
        let last = before + words - 4;
        for first in (0..before).step_by(words as usize - 4) {
            let end = before.min(first + words - 4);
            send_range(&right, 9, first, end)?;
            context.sync_behind(&right)?;
            take_range(&mine, 9, first, end)?;
            context.sync()?;
        }
        send_range(&right, 9, before, last)?;
        context.sync_behind(&right)?;
        let what = format!("of {words} words, {before} elements having passed,");
        let QueueState { overflows, full, held, linked, .. } = mine.state()?;
        same(format_args!("overflows {what} at element {}", words - 4), overflows, 0)?;
        same("its control page", memory.overflows(), 0)?;
        same("FULL, HELD and linked buffers", (full, held, linked), (false, false, 0))?;
        context.sync()?;
        send_range(&right, 9, last, last + 1)?;
        context.sync_behind(&right)?;
        let QueueState { overflows, full, held, linked, .. } = mine.state()?;
        same(format_args!("overflows {what} at element {}", words - 3), overflows, 1)?;
        same("its control page", memory.overflows(), 1)?;
        same("FULL, HELD and linked buffers", (full, held, linked), (false, false, 1))?;
        take_range(&mine, 9, before, last + 1)?;
        same("one element more", mine.try_pop()?, None)?;
    }
    Ok(())
}

/// Whether an eventfd becomes readable.
pub(crate) fn is_readable(fd: impl std::os::fd::AsFd, time: Duration) -> Verdict<bool> {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&time)).map(|n| n > 0).map_err(|e| Stop::Fail(e.to_string()))
}

/// The receiver gets a limit event before its senders are held back.
pub(crate) fn limit_event(context: &mut Context<'_>) -> Verdict {
    // Another file, so that only this queue signals it.
    let node = context.other_file()?;
    let name = context.name("slow");
    let mine = context.keep(Queue::create(&node, &name).mode(0o602).words(8).quota(4).limit(2).create()?);
    let events = node.completions()?;
    let right = context.enqueuer(context.peers.right(), "slow")?;
    context.sync()?;
    // 4 elements a buffer: the second overflow comes with element 9.
    send_range(&right, 2, 0, 8)?;
    context.sync_behind(&right)?;
    same("limit events before the limit", (mine.limits(), is_readable(events, LONG)?), (0, false))?;
    context.sync()?;
    send_range(&right, 2, 8, 9)?;
    context.sync_behind(&right)?;
    // The sender's quiet does not wait for it, so it may still be under way.
    same("an event at the limit", is_readable(events, SOON)?, true)?;
    same("limit events at the limit", mine.limits(), 1)?;
    let QueueState { held, linked, .. } = mine.state()?;
    same("whether senders are held then, and linked buffers", (held, linked), (false, 2))?;
    context.sync()?;
    // To the brim: four linked buffers and the first one.
    send_range(&right, 2, 9, 20)?;
    context.sync_behind(&right)?;
    let QueueState { held, linked, .. } = mine.state()?;
    same("whether senders are held with 20 elements, and linked buffers", (held, linked), (false, 4))?;
    context.sync()?;
    send_range(&right, 2, 20, 21)?;
    not_quiet(&right)?;
    queue_becomes(&mine, "held with 21 elements", |state| state.held)?;
    same("limit events in all", mine.limits(), 1)?;
    context.sync()?;
    take_range(&mine, 2, 0, 21)?;
    context.sync_behind(&right)?;
    // Another event when the limit is reached again.
    send_range(&right, 2, 21, 21 + 9)?;
    context.sync_behind(&right)?;
    let linked = mine.state()?.linked;
    same("linked and limit events after it had been drained", (linked, mine.limits()), (2, 2))?;
    take_range(&mine, 2, 21, 21 + 9)?;
    context.sync()
}

/// Waits until a child has come to rest: it is in a store that does not return.
pub(crate) fn blocks(child: &mut Child) -> Verdict {
    let path = format!("/proc/{}/stat", child.id());
    let mut at_rest = 0;
    let look = || {
        let stat = std::fs::read_to_string(&path)?;
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
        at_rest = if matches!(state, Some('S' | 'D')) { at_rest + 1 } else { 0 };
        Ok((at_rest, state))
    };
    becomes(
        SOON,
        2 * MILLISECOND,
        look,
        |(at_rest, _)| *at_rest == 20,
        |(_, state)| format!("a sender to a full queue does not block: its state is {state:?}"),
    )
    .map(drop)
}

/// Waits until a process that was killed has let go of its memory: it has left the store.
pub(crate) fn leaves(child: &Child) -> Verdict {
    let path = format!("/proc/{}/statm", child.id());
    let has_left = || Ok(!std::fs::read_to_string(&path).is_ok_and(|statm| !statm.starts_with("0 ")));
    until(SOON, 2 * MILLISECOND, has_left, || "a sender that blocks in its store does not die".into())
}

/// With its quota used up a queue holds its senders back, without loss.
pub(crate) fn held(context: &mut Context<'_>) -> Verdict {
    const FITS: u32 = 12;
    let (mine, right) = context.queue_pair("full", |q| q.words(8).quota(2))?;
    send_range(&right, 1, 0, FITS)?;
    context.sync_behind(&right)?;
    send_range(&right, 1, FITS, FITS + 1)?;
    not_quiet(&right)?;
    queue_becomes(&mine, "held", |state| state.held)?;
    // A sender that continues blocks in its store, where it can be killed.
    let mut child =
        context.child_saying("ready", &["queue-send-loop", &right.node().to_string(), &context.name("full"), "2"])?;
    blocks(&mut child)?;
    let mut said = 0;
    while let Some(line) = child.line_now()? {
        said = line.parse().map_err(|_| format!("the child said {line:?}"))?;
    }
    child.kill()?;
    leaves(&child)?;
    must(said > 100, || format!("the child blocked after {said} elements"))?;
    // Its end waits for no receiver; what it had sent still comes.
    child.must_end(End::KILLED)?;
    context.mail(right.node(), 1, said)?;
    context.sync()?;
    let expected = context.mail_of(context.peers.left(), 1)? as u32;
    let mut next = [0, 0, 0];
    loop {
        // It may have sent a few more than it had said.
        let patience = if next[1] > FITS && next[2] >= expected { LONG } else { SOON };
        let Some(value) = mine.pop_wait(Some(patience))? else { break };
        let (sender, number) = queue::parse(4, value).unwrap_or((0, 0));
        must((1..3).contains(&sender) && next[sender as usize] == number, || {
            format!("element {number} of sender {sender} came after {next:?}")
        })?;
        next[sender as usize] += 1;
    }
    right.quiet_timeout(SOON)?;
    same("elements of the parent", next[1], FITS + 1)?;
    must(next[2] >= expected, || format!("{} elements of the child came: it had sent {expected}", next[2]))?;
    context.note(format!("a sender to a full queue blocked after {} elements; all of them came", next[2]));
    queue_becomes(&mine, "neither full nor held", |state| !state.full && !state.held)?;
    context.sync()
}

/// While one queue is stopped for good, everything else between the same nodes continues (SPEC E12).
pub(crate) fn others_continue(context: &mut Context<'_>) -> Verdict {
    let span = Duration::from_millis(250);
    let (_segment, far) = context.neighbour(4096)?;
    let (stopped, full) = context.queue_pair("stopped", |q| q.words(8).quota(1))?;
    let (open, right) = context.queue_pair("open", |q| q.words(64))?;
    context.sync()?;
    let mut rates = Vec::new();
    let mut sent = 0;
    for phase in ["with both queues open", "while one is stopped"] {
        if !rates.is_empty() {
            send_range(&full, 6, 0, 9)?;
            not_quiet(&full)?;
            queue_becomes(&stopped, "held", |state| state.held)?;
            context.sync()?;
        }
        let (begun, mut rounds) = (Instant::now(), 0u64);
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| -> Verdict {
            // Takes what the left neighbour sends, until it has sent all.
            let consumer = scope.spawn(|| take_until(&open, 4, &ended));
            let mut work = || -> Verdict {
                while begun.elapsed() < span {
                    rounds += 1;
                    far.put64(8, rounds)?;
                    same("a load behind a store", far.get64(8)?, rounds)?;
                    far.fetch_inc::<u64>(16)?;
                    send_range(&right, 4, sent, sent + 1)?;
                    sent += 1;
                }
                far.quiet_timeout(SOON)?;
                Ok(right.quiet_timeout(SOON)?)
            };
            let worked = work();
            rates.push(rounds as f64 / begun.elapsed().as_secs_f64().max(1e-9));
            let synced = context.sync();
            ended.store(true, Ordering::Release);
            let taken = joined(consumer)?;
            worked.and(synced)?;
            must(rounds > 0 && taken > 0, || format!("{phase}, {rounds} rounds ran, and {taken} elements came"))
        })?;
    }
    must(stopped.state()?.held, || "the full queue was not stopped all the time".into())?;
    context.note(format!(
        "a store, a load, an atomic and an element each: {:.0} times a second with both queues open, {:.0} while one is stopped",
        rates[0], rates[1]
    ));
    context.sync()?;
    take_range(&stopped, 6, 0, 9)?;
    context.sync_behind(&full)
}

/// Takes elements of a sender until `ended` and there are no more: how many.
fn take_until(queue: &Queue, sender: u32, ended: &AtomicBool) -> Verdict<u64> {
    let (mut taken, mut before) = (0, None);
    loop {
        let over = ended.load(Ordering::Acquire);
        match queue.try_pop()? {
            Some(value) => {
                let found = queue::parse(queue.shape().width().into(), value);
                let follows = |number| before.is_none_or(|before: u32| number == before + 1);
                let Some((_, number)) = found.filter(|(from, number)| *from == sender && follows(*number)) else {
                    return Err(format!("{value:#x} came after number {before:?} of sender {sender}").into());
                };
                (taken, before) = (taken + 1, Some(number));
            }
            None if over => return Ok(taken),
            None => std::thread::sleep(Duration::from_micros(200)),
        }
    }
}

/// FENCE covers REQ (SPEC E20): notified by other means, the receiver finds the elements.
pub(crate) fn quiet_covers(context: &mut Context<'_>) -> Verdict {
    const COUNT: u32 = 200;
    let (mine, right) = context.queue_pair("news", |q| q.words(16).quota(64))?;
    for round in 0..3 {
        let first = round * COUNT;
        send_range(&right, 8, first, first + COUNT)?;
        match round {
            0 => right.quiet_timeout(SOON)?,
            1 => context.node().quiet_timeout(SOON)?,
            // Towards one queue order is free, towards a segment it is not.
            _ => context.node().fence()?,
        }
        context.sync()?;
        for number in first..first + COUNT {
            same(format_args!("element {number} after quiet"), mine.try_pop()?, Some(element(4, 8, number)))?;
        }
        context.sync()?;
    }
    Ok(())
}
