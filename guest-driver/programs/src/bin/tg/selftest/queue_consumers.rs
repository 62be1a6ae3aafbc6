// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notification queues: consumers that wait, are many, and die (SPEC items 10 to 12, E9 to E13).

use super::context::{Context, LONG, MILLISECOND, SOON, Verdict, YIELD, becomes, both, in_threads, must, same, until};
use super::control::needs_lab;
use super::queues::{WIDTHS, is_readable, not_quiet, queue_becomes, send_range, take, take_range};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use telegraphos::{Queue, QueueState};
use telegraphos_guest_tests::child::End;
use telegraphos_guest_tests::queue::{self, Forked, Log, element, shaped};
use telegraphos_guest_tests::random;

/// Now at once, now after a while: so that the other side is asleep, about to, or awake.
fn dither(seed: u64, round: u64) {
    match random::word(seed, round) % 4 {
        0 => {}
        1 => std::thread::yield_now(),
        n => std::thread::sleep(Duration::from_micros(random::word(seed, round + (n << 32)) % 1500)),
    }
}

/// Round and round: each sends its element and sleeps until the other's comes. One lost wake-up ends it.
pub(crate) fn wait_wakes(context: &mut Context<'_>) -> Verdict {
    const ROUNDS: u32 = 250;
    let (seed, _) = context.seeds()?;
    let (mine, right) = context.queue_pair("turn", |q| q.words(8))?;
    context.sync()?;
    for round in 0..ROUNDS {
        dither(seed, round.into());
        send_range(&right, 1, round, round + 1)?;
        take_range(&mine, 1, round, round + 1)?;
    }
    context.sync()?;
    same("one element more", mine.try_pop()?, None)
}

pub(crate) fn wait_threads(context: &mut Context<'_>) -> Verdict {
    const THREADS: u32 = 4;
    const COUNT: u32 = 200;
    let (seed, _) = context.seeds()?;
    let (mine, right) = context.queue_pair("many", |q| q.words(8))?;
    let take_all = |_| {
        let mut taken = Vec::new();
        loop {
            let value = take(&mine)?;
            let (_, number) = queue::parse(4, value).ok_or_else(|| format!("{value:#x} came"))?;
            if number >= COUNT {
                return Ok(taken);
            }
            must(taken.last().is_none_or(|last| *last < number), || {
                format!("a thread took element {number} after {taken:?}")
            })?;
            taken.push(number);
        }
    };
    let mut taken = Vec::new();
    let waiters = || {
        taken = in_threads(THREADS.into(), take_all)?.concat();
        Ok(())
    };
    // The last ones send the threads home, one each.
    let send = || {
        (0..COUNT + THREADS).try_for_each(|number| {
            dither(seed, number.into());
            send_range(&right, 1, number, number + 1)
        })
    };
    both(waiters, send)?;
    taken.sort_unstable();
    same("what all threads took", taken, (0..COUNT).collect())?;
    context.sync()?;
    same("one element more", mine.try_pop()?, None)
}

pub(crate) fn wait_times_out(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = context.queue_pair("empty", |q| q.words(8))?;
    for time in [Duration::ZERO, Duration::from_millis(3), LONG] {
        let begun = Instant::now();
        same(format_args!("what came within {time:?}"), mine.pop_wait(Some(time))?, None)?;
        must(begun.elapsed() >= time, || format!("waiting for {time:?} ended after {:?}", begun.elapsed()))?;
    }
    context.sync()?;
    // An abandoned wait leaves no state.
    send_range(&right, 1, 0, 6)?;
    take_range(&mine, 1, 0, 6)?;
    context.sync()
}

/// A program's own poll: pop until there is nothing, arm, poll.
pub(crate) fn poll_wakes(context: &mut Context<'_>) -> Verdict {
    const COUNT: u32 = 100;
    let (seed, _) = context.seeds()?;
    // Its eventfd must have no other reader.
    let node = context.other_file()?;
    let name = context.name("polled");
    let mine = context.keep(Queue::create(&node, &name).mode(0o602).words(8).create()?);
    let right = context.enqueuer(context.peers.right(), "polled")?;
    let events = node.completions()?;
    context.sync()?;
    let mut next = 0;
    for round in 0..COUNT {
        dither(seed, round.into());
        send_range(&right, 1, round, round + 1)?;
        // In step with the left neighbour, more or less.
        while next <= round {
            if let Some(value) = mine.try_pop()? {
                same("the element", value, element(4, 1, next))?;
                next += 1;
                continue;
            }
            mine.arm()?;
            must(is_readable(events, SOON)?, || format!("element {next} did not end the poll within {SOON:?}"))?;
            rustix::io::read(events, &mut [0; 8]).map_err(|e| e.to_string())?;
        }
    }
    context.sync()
}

/// One by one, many at once, and by the kernel's dequeue: one sequence, over linked buffers as well.
pub(crate) fn ways_agree(context: &mut Context<'_>) -> Verdict {
    needs_lab(context)?;
    const COUNT: u32 = 800;
    let (seed, _) = context.seeds()?;
    for (width, part) in WIDTHS {
        let (mine, right) = context.queue_pair(part, |q| shaped(q, 16, width).quota(5))?;
        let (mut next, mut looks) = (0, 0u64);
        let look = || {
            let mut values = [0; 24];
            looks += 1;
            let lot = random::word(seed, looks);
            let room = 1 + (lot >> 8) as usize % values.len();
            let count = match lot % 4 {
                0 => mine.pop_batch(&mut values[..room])?,
                way => {
                    let one = match way {
                        1 => mine.try_pop()?,
                        2 => mine.pop_in_kernel()?,
                        _ => mine.pop_wait(Some(LONG))?,
                    };
                    values[0] = one.unwrap_or_default();
                    usize::from(one.is_some())
                }
            };
            for value in &values[..count] {
                same(format_args!("{part} element {next}"), *value, element(width, 3, next))?;
                next += 1;
            }
            Ok(next)
        };
        let late = |next: &u32| format!("{next} of {COUNT} elements came");
        let receive = || becomes(SOON, YIELD, look, |next| *next == COUNT, late).map(drop);
        both(|| send_range(&right, 3, 0, COUNT), receive)?;
        context.sync_behind(&right)?;
        same("one element more", (mine.try_pop()?, mine.pop_in_kernel()?), (None, None))?;
        context.note(format!("{COUNT} {part} elements, {} overflows", mine.state()?.overflows));
    }
    Ok(())
}

pub(crate) fn threads(context: &mut Context<'_>) -> Verdict {
    const THREADS: u64 = 4;
    const COUNT: u32 = 1000;
    let (mine, right) = context.queue_pair("shared", |q| q.words(8).quota(8))?;
    let log = Log::new(COUNT as usize + 100)?;
    let consume = |thread| {
        let look = || {
            mine.try_pop_with(|value| log.push(value, thread))?;
            Ok(log.different() >= COUNT.into())
        };
        until(SOON, YIELD, look, || format!("{} of {COUNT} elements came", log.count()))
    };
    both(|| send_range(&right, 0, 0, COUNT), || in_threads(THREADS, consume).map(drop))?;
    let tally = log.tally(4, 1, COUNT, |_| false);
    must(tally.is_right() && tally.again == 0, || format!("not every element was taken once, in order: {tally:?}"))?;
    context.sync()?;
    same("one element more", mine.try_pop()?, None)
}

/// Takes elements until killed.
fn consume(file: &std::os::fd::OwnedFd, handle: u32, log: &Log, consumer: u64) -> Result<(), String> {
    let queue = queue::attach(file, handle).map_err(|e| e.to_string())?;
    loop {
        let took = queue.try_pop_with(|value| {
            log.push(value, consumer);
            // So that one in some is killed in here.
            for _ in 0..random::word(value, consumer) % 2000 {
                std::hint::spin_loop();
            }
        });
        if took.map_err(|e| e.to_string())?.is_none() {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Consumers that are killed at any time, hundreds of them: each element is handed over once, or again if it was in the
/// hands of the one killed (SPEC I10).
pub(crate) fn killed_at_random(context: &mut Context<'_>) -> Verdict {
    const CONSUMERS: u32 = 150;
    const LUMP: u32 = 6;
    // Fewer than the receive credits, so that no sender blocks.
    const COUNT: u32 = CONSUMERS / 2 * LUMP;
    let (seed, _) = context.seeds()?;
    let (mine, right) = context.queue_pair("deadly", |q| q.words(8).quota(4))?;
    let file = queue::file_of(context.node())?;
    let log = Log::new(2 * COUNT as usize + CONSUMERS as usize)?;
    context.sync()?;
    for number in 0..CONSUMERS {
        let mut consumer = Forked::run(|| consume(&file, mine.handle(), &log, number.into()))?;
        if number % 2 == 0 {
            let first = number / 2 * LUMP;
            send_range(&right, 0, first, first + LUMP)?;
        }
        std::thread::sleep(Duration::from_micros(random::word(seed, number.into()) % 4000));
        consumer.kill();
        same("how a consumer ended", consumer.wait(), End::KILLED)?;
    }
    let before = log.different();
    let mut last = Forked::run(|| consume(&file, mine.handle(), &log, CONSUMERS.into()))?;
    let deadline = Instant::now() + SOON;
    while log.different() < COUNT.into() && last.ended().is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    last.kill();
    last.wait();
    let tally = log.tally(4, 1, COUNT, |_| true);
    must(tally.is_right(), || format!("not every element came once and in order: {tally:?}"))?;
    context.sync_behind(&right)?;
    same("one element more", mine.try_pop()?.filter(|value| *value != log.entry(log.count() as usize - 1).0), None)?;
    let QueueState { overflows, evictions, .. } = mine.state()?;
    context.note(format!(
        "{CONSUMERS} consumers killed while {before} of {COUNT} elements came, {} in their hands; {overflows} overflows",
        tally.again
    ));
    same("evictions", evictions, 0)
}

/// A consumer that has taken its element's value and stays inside; returns when it is there.
fn stay_inside(context: &Context<'_>, queue: &Queue, log: &Log, stop: bool) -> Verdict<Forked> {
    let file = queue::file_of(context.node())?;
    let consumer = Forked::run(|| {
        let queue = queue::attach(&file, queue.handle()).map_err(|e| e.to_string())?;
        let took = queue.try_pop_with(|value| {
            log.push(value, 0);
            log.note(0).store(1, Ordering::Release);
            if stop {
                // SAFETY: takes a number only.
                unsafe { libc::raise(libc::SIGSTOP) };
            } else {
                std::thread::sleep(Duration::from_secs(3600));
            }
        });
        // After the stop: its mapping is gone, so it does not come here.
        Err(format!("took {took:?}"))
    })?;
    noted(log, 0, "a consumer does not come to its element")?;
    Ok(consumer)
}

/// Waits for a note.
fn noted(log: &Log, number: usize, late: &str) -> Verdict {
    until(SOON, MILLISECOND, || Ok(log.note(number).load(Ordering::Acquire) != 0), || late.into())
}

/// The kernel clears a BUSY of an exited process: the next consumer continues at once.
pub(crate) fn killed_while_busy(context: &mut Context<'_>) -> Verdict {
    for part in ["with room", "with an overflow"] {
        let (mine, right) = context.queue_pair(part, |q| q.words(8))?;
        let log = Log::new(8)?;
        send_range(&right, 1, 0, 3)?;
        context.sync_behind(&right)?;
        let mut consumer = stay_inside(context, &mine, &log, false)?;
        same("what it was handed", log.entry(0).0, element(4, 1, 0))?;
        context.sync()?;
        let mut count = 3;
        if part == "with an overflow" {
            send_range(&right, 1, 3, 8)?;
            not_quiet(&right)?;
            queue_becomes(&mine, "full", |state| state.full)?;
            context.sync()?;
            count = 8;
        }
        consumer.kill();
        consumer.wait();
        // Without the kernel the word would stay BUSY for ever.
        take_range(&mine, 1, 0, count)?;
        right.quiet_timeout(SOON)?;
        let QueueState { evictions, full, held, .. } = mine.state()?;
        same(format_args!("evictions, FULL and HELD {part}"), (evictions, full, held), (0, false, false))?;
        context.sync()?;
    }
    Ok(())
}

/// The driver's bound on BUSY, if this process may change it; as it was before on drop.
struct HoldTime {
    before: Option<String>,
}

const HOLD_MS: &str = "/sys/module/telegraphos/parameters/queue_hold_ms";

impl HoldTime {
    fn of(milliseconds: u32) -> HoldTime {
        let before = std::fs::read_to_string(HOLD_MS).ok();
        let changed = std::fs::write(HOLD_MS, milliseconds.to_string()).is_ok();
        HoldTime { before: before.filter(|_| changed) }
    }
}

impl Drop for HoldTime {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = std::fs::write(HOLD_MS, before);
        }
    }
}

/// A consumer that stays BUSY too long loses its mapping, and all others continue (SPEC E13).
pub(crate) fn evicted(context: &mut Context<'_>) -> Verdict {
    let time = HoldTime::of(150);
    let (mine, right) = context.queue_pair("held", |q| q.words(8))?;
    let (other, to_other) = context.queue_pair("other", |q| q.words(8))?;
    let log = Log::new(8)?;
    let file = queue::file_of(context.node())?;
    // One that has it mapped, and does not touch it until it gets the line to.
    let mut bystander = Forked::run(|| {
        let queue = queue::attach(&file, mine.handle()).map_err(|e| e.to_string())?;
        log.note(1).store(1, Ordering::Release);
        while log.note(2).load(Ordering::Acquire) == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        Err(format!("took {:?}", queue.try_pop()))
    })?;
    send_range(&right, 1, 0, 3)?;
    context.sync_behind(&right)?;
    let mut stopped = stay_inside(context, &mine, &log, true)?;
    noted(&log, 1, "the bystander does not attach")?;
    context.sync()?;
    let begun = Instant::now();
    send_range(&right, 1, 3, 8)?;
    // Meanwhile other queues continue.
    send_range(&to_other, 2, 0, 6)?;
    take_range(&other, 2, 0, 6)?;
    queue_becomes(&mine, "without its holder and not full", |state| state.evictions == 1 && !state.full)?;
    let took = begun.elapsed();
    right.quiet_timeout(SOON)?;
    // Its own mapping has gone, too.
    let again = Queue::attach(context.node(), mine.handle())?;
    take_range(&again, 1, 0, 8)?;
    stopped.resume();
    same("how the one that stayed inside ended", stopped.wait(), End::BUS)?;
    log.note(2).store(1, Ordering::Release);
    same("how another one that had it mapped ended", bystander.wait(), End::BUS)?;
    context.sync()?;
    // As if nothing had been.
    send_range(&right, 1, 8, 20)?;
    take_range(&again, 1, 8, 20)?;
    right.quiet_timeout(SOON)?;
    same("evictions", again.state()?.evictions, 1)?;
    context.note(format!("evicted after {took:.1?}"));
    drop(time);
    context.sync()
}
