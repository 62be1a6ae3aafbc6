// SPDX-License-Identifier: MIT OR Apache-2.0
//! Page access counters (SPEC item 22).

use super::context::{Context, LONG, SOON, Verdict, must, same};
use super::control::ioctl;
use std::time::Duration;
use telegraphos::{Count, Error, Node, PageCounter, Remote};
use telegraphos_wire::uapi;

const UNIT: u64 = 65536;

fn left(counter: &PageCounter, what: &str, reads: u64, writes: u64) -> Verdict {
    let Count { reads: r, writes: w, .. } = counter.read()?;
    same(format_args!("reads and writes left {what}"), (r, w), (reads, writes))
}

pub(crate) fn alarm(context: &mut Context<'_>) -> Verdict {
    const N: u64 = 7;
    let (_mine, right) = context.neighbour(3 * UNIT)?;
    context.sync()?;
    let counter = right.arm_counter(1, 0, N)?;
    for n in 1..N {
        right.put64(UNIT + 8 * n, n)?;
    }
    right.quiet()?;
    left(&counter, "after n - 1 stores", 0, 1)?;
    same("an event before access n", counter.wait(Some(LONG))?, false)?;
    right.put8(2 * UNIT - 1, 1)?;
    same("an event at access n", counter.wait(Some(SOON))?, true)?;
    same("whether the writes have fired", counter.read()?, Count { writes_fired: true, ..Count::default() })?;
    for n in 0..3 * N {
        right.put64(UNIT + 8 * n, n)?;
    }
    right.quiet()?;
    same("an event after access n", counter.wait(Some(LONG))?, false)?;
    left(&counter, "after it", 0, 0)?;
    counter.disarm()?;
    context.sync()
}

pub(crate) fn kinds_apart(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = context.neighbour(3 * UNIT)?;
    let local = mine.remote()?;
    context.sync()?;
    let counter = right.arm_counter(0, 4, 6)?;
    let profile = right.arm_counter(0, 1 << 40, 1 << 40)?;
    // Other pages, and our own memory, do not count.
    right.put64(UNIT, 1)?;
    right.get64(UNIT)?;
    local.put64(2 * UNIT, 1)?;
    local.get64(2 * UNIT)?;
    left(&counter, "of another page", 4, 6)?;
    right.get64(0)?;
    right.get8(UNIT - 1)?;
    left(&counter, "after two loads", 2, 6)?;
    right.put64(0, 1)?;
    right.swap::<u64>(8, 1)?;
    right.fetch_inc::<u32>(12)?;
    right.compare_swap::<u64>(8, 77, 1)?;
    left(&counter, "after a store and three atomics", 2, 2)?;
    right.put_block(1, &mine, 0, 100)?;
    left(&counter, "after a block was copied there", 2, 1)?;
    right.get_block(1, &mine, 2 * UNIT, 100)?;
    left(&counter, "after a block was copied from there", 1, 1)?;
    same("an event", counter.wait(Some(LONG))?, false)?;
    right.get16(2)?;
    same("the event of the reads", counter.wait(Some(SOON))?, true)?;
    same("which", counter.read()?, Count { writes: 1, reads_fired: true, ..Count::default() })?;
    right.put8(3, 3)?;
    same("the event of the writes", counter.wait(Some(SOON))?, true)?;
    let both = Count { reads_fired: true, writes_fired: true, ..Count::default() };
    same("both", counter.read()?, both)?;
    left(&profile, "of a profile", (1 << 40) - 4, (1 << 40) - 6)?;
    same("its events", counter_events(&profile)?, 0)?;
    drop(counter);
    // Disarmed, it counts no more, and the other continues.
    right.put8(3, 3)?;
    right.quiet()?;
    left(&profile, "after the other was disarmed", (1 << 40) - 4, (1 << 40) - 7)?;
    context.sync()
}

fn counter_events(counter: &PageCounter) -> Verdict<u64> {
    let mut count = 0;
    while counter.wait(Some(Duration::ZERO))? {
        count += 1;
    }
    Ok(count)
}

/// 0 never fires, in neither kind.
pub(crate) fn zero_never(context: &mut Context<'_>) -> Verdict {
    let (_mine, right) = context.neighbour(UNIT)?;
    let (reads, writes) = (right.arm_counter(0, 1000, 0)?, right.arm_counter(0, 0, 1000)?);
    for n in 0..20 {
        right.put64(8 * n, n)?;
        right.get64(8 * n)?;
    }
    left(&reads, "where no writes are counted", 980, 0)?;
    left(&writes, "where no reads are counted", 0, 980)?;
    same("events", (counter_events(&reads)?, counter_events(&writes)?), (0, 0))?;
    for counter in [reads, writes] {
        let Count { reads_fired, writes_fired, .. } = counter.read()?;
        must(!reads_fired && !writes_fired, || "0 has fired".into())?;
    }
    context.sync()
}

fn armed(node: &Node, remote: &Remote, page: u32, reads: u64) -> Result<u32, i32> {
    let mut counter = uapi::Counter { handle: remote.handle(), page, eventfd: -1, reads, ..Default::default() };
    ioctl(node, 8, &mut counter).map(|()| counter.counter)
}

pub(crate) fn foreign(context: &mut Context<'_>) -> Verdict {
    let (_mine, right) = context.neighbour(3 * UNIT - 100)?;
    let node = context.node();
    let other = Node::open_path(node.path())?;
    must(matches!(right.arm_counter(3, 1, 0), Err(Error::Argument { .. })), || "the library arms page 3 of 3".into())?;
    must(matches!(right.arm_counter(0, 0, 0), Err(Error::Argument { .. })), || "the library arms nothing".into())?;
    same("page 3 of 3", armed(node, &right, 3, 1), Err(libc::EINVAL))?;
    same("page 2^32 - 1", armed(node, &right, u32::MAX, 1), Err(libc::EINVAL))?;
    same("nothing to count", armed(node, &right, 0, 0), Err(libc::EINVAL))?;
    same("a page of another file's import", armed(&other, &right, 0, 1), Err(libc::EBADF))?;
    let number = armed(node, &right, 2, 5).map_err(|e| format!("the last page: errno {e}"))?;
    let mut counter = uapi::Counter { counter: number, ..Default::default() };
    for (what, number) in [("reading", 9), ("disarming", 10)] {
        let found = ioctl(&other, number, &mut counter);
        same(format_args!("{what} another file's counter"), found, Err(libc::EBADF))?;
        let mut wild = uapi::Counter { counter: u32::MAX, ..Default::default() };
        same(format_args!("{what} a wild counter"), ioctl(node, number, &mut wild), Err(libc::EBADF))?;
    }
    same("disarming one's own", ioctl(node, 10, &mut counter), Ok(()))?;
    same("disarming it again", ioctl(node, 10, &mut counter), Err(libc::EBADF))?;
    context.sync()
}

/// All counters of the board, then one more; they are free again when their import is closed.
pub(crate) fn all_of_them(context: &mut Context<'_>) -> Verdict {
    let (_mine, right) = context.neighbour(UNIT)?;
    let count = context.node().info()?.counters;
    must(count > 0, || "the board has no counters".into())?;
    // One file of an ordinary user gets half of them: file_share.
    let count = if telegraphos_guest_tests::user::uid() == 0 { count } else { count / 2 };
    for round in 0..3 {
        let node = context.other_file()?;
        let far = node.import(right.node(), &context.name("data")).open()?;
        for n in 0..count {
            armed(&node, &far, 0, 1 << 40).map_err(|e| format!("counter {n} of {count}, round {round}: errno {e}"))?;
        }
        same("one counter more", armed(&node, &far, 0, 1), Err(libc::ENOSPC))?;
        let more = far.arm_counter(0, 1, 1).err().and_then(|e| e.status());
        same("one more by the library", more, Some(telegraphos::Status::NoSpace))?;
        // They go with the import.
        far.close()?;
    }
    context.sync()
}
