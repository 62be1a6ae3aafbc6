// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ends: revocation, death, fork, and that nothing is left behind.

use super::context::{Context, MILLISECOND, Stop, Verdict, must, refused, same, until};
use std::time::{Duration, Instant};
use telegraphos::{Node, Queue, Remote, Status};
use telegraphos_guest_tests::child::{Child, End};

/// Children that import the right neighbour's segment and touch it until they die, one by loads, one by stores.
fn victims(context: &Context<'_>, part: &str) -> Verdict<Vec<Child>> {
    let right = context.peers.right().to_string();
    let start = |what| context.child_saying("ready", &["until-sigbus", &right, &context.name(part), what]);
    ["load", "store"].into_iter().map(start).collect()
}

fn all_die(mut children: Vec<Child>) -> Verdict {
    children.iter_mut().try_for_each(Child::go)?;
    Ok(children.iter_mut().try_for_each(|child| child.must_end(End::BUS))?)
}

/// An import whose owner has withdrawn it: one refused load reports it, then it is dead.
fn is_dead(context: &Context<'_>, remote: &Remote) -> Verdict {
    same("a load from a revoked segment", remote.get64(8)?, u64::MAX)?;
    let fatal = |status| matches!(status, Some(Status::Stale | Status::NotGranted));
    context.state_becomes(remote, "dead with Stale or NotGranted", |s| s.dead && fatal(s.error))?;
    let error = remote.quiet_timeout(Duration::from_secs(20)).err().and_then(|e| e.status());
    must(fatal(error), || format!("quiet says {error:?}: expected Stale or NotGranted"))?;
    refused("importing it again", context.node().import(remote.node(), remote.name()).open(), libc::ENOENT)
}

pub(crate) fn unexport(context: &mut Context<'_>) -> Verdict {
    let name = context.name("data");
    let mine = context.node().export(&name, 4096).mode(0o606).create()?;
    let right = context.import(context.peers.right(), "data")?;
    right.put64(8, 1)?;
    right.quiet()?;
    let children = victims(context, "data")?;
    context.sync()?;
    same("the word", mine.load::<u64>(8)?, 1)?;
    mine.close()?;
    context.sync()?;
    is_dead(context, &right)?;
    all_die(children)?;
    // Closing what is dead is no error.
    right.close()?;
    Ok(())
}

pub(crate) fn exporter_dies(context: &mut Context<'_>) -> Verdict {
    let name = context.name("data");
    let mut exporter = context.child_saying("exported", &["export", &name, "4096", "606"])?;
    let right = context.import(context.peers.right(), "data")?;
    right.put64(8, 1)?;
    right.quiet()?;
    // One that is storing at that very moment.
    let mut storing = context.child_saying("ready", &["store-loop", &right.node().to_string(), &name])?;
    let children = victims(context, "data")?;
    context.sync()?;
    exporter.must_be_killed()?;
    // The driver tidies up after it in its own time.
    let gone = || Ok(context.node().import(context.me(), &name).open().is_err());
    until(context.patience, 5 * MILLISECOND, gone, || format!("{name:?} of a dead process is still exported"))?;
    context.sync()?;
    is_dead(context, &right)?;
    storing.must_end(End::BUS)?;
    all_die(children)
}

/// Soft imports of memory and of a queue that have gone: whatever is done by them, this process continues.
pub(crate) fn soft(context: &mut Context<'_>) -> Verdict {
    let (name, queue_name) = (context.name("data"), context.name("queue"));
    let node = context.node();
    let mine = node.export(&name, 128 << 10).mode(0o606).create()?;
    let queue = Queue::create(node, &queue_name).wide().mode(0o602).create()?;
    context.sync()?;
    let right = node.import(context.peers.right(), &name).soft().open()?;
    let elements = Queue::import(node, context.peers.right(), &queue_name).soft().open()?;
    let own = node.export(&context.name("own"), 4096).mode(0o600).create()?;
    right.put64(8, 1)?;
    // So that the argument aperture is mapped.
    same("an atomic", right.fetch_add::<u64>(8, 1)?, 1)?;
    elements.enqueue(7)?;
    right.quiet()?;
    context.sync_behind(&elements)?;
    same("the word", mine.load::<u64>(8)?, 2)?;
    same("the element", queue.try_pop()?, Some(7))?;
    mine.close()?;
    queue.close()?;
    context.sync()?;
    is_dead(context, &right)?;
    elements.enqueue(8)?;
    must(elements.quiet_timeout(Duration::from_secs(20)).is_err(), || {
        "an element reached a queue that has gone".into()
    })?;
    for n in 0..1000 {
        right.put64(n % 4096 * 8, n)?;
        right.get64((64 << 10) + n % 4096 * 8)?;
        elements.enqueue(n)?;
    }
    must(right.fetch_add::<u64>(8, 1).is_err(), || "an atomic on what has gone succeeded".into())?;
    must(right.get_block(0, &own, 0, 4096).is_err(), || "a copy of what has gone succeeded".into())?;
    must(right.put_block(0, &own, 0, 4096).is_err(), || "a copy to what has gone succeeded".into())?;
    same("own memory", own.load::<u64>(0)?, 0)?;
    right.close()?;
    Ok(elements.close()?)
}

/// A soft import of a queue that no process empties: the sender waits for a while, and is not held for ever.
pub(crate) fn soft_and_full(context: &mut Context<'_>) -> Verdict {
    let name = context.name("queue");
    let queue = Queue::create(context.node(), &name).wide().words(8).quota(1).mode(0o602).create()?;
    context.sync()?;
    let elements = Queue::import(context.node(), context.peers.right(), &name).soft().open()?;
    // More than the queue takes, and the boards on the way: how much that is depends on how soon a node hears that its
    // import is congested.
    let begun = Instant::now();
    let state = loop {
        for n in 0..1000 {
            elements.enqueue(n)?;
        }
        let state = elements.state()?;
        if state.dead || begun.elapsed() > Duration::from_secs(60) {
            break state;
        }
    };
    must(state.dead && state.error == Some(Status::Timeout), || format!("the import of a full queue is {state:?}"))?;
    elements.close()?;
    context.sync()?;
    Ok(queue.close()?)
}

pub(crate) fn old_generation(context: &mut Context<'_>) -> Verdict {
    let name = context.name("data");
    let node = context.node();
    let export = || node.export(&name, 4096).mode(0o606).create();
    let mine = export()?;
    let old = context.import(context.peers.right(), "data")?;
    old.put64(0, 1)?;
    old.quiet()?;
    let children = victims(context, "data")?;
    context.sync()?;
    // The same name, size, and most likely the same pages of the board and of memory.
    mine.close()?;
    let mine = export()?;
    context.sync()?;
    // The first store is refused by the owner; later ones do not leave this node.
    old.put64(0, 2)?;
    let error = old.quiet_timeout(Duration::from_secs(20)).err().and_then(|e| e.status());
    same("the error of a store through the old import", error, Some(Status::Stale))?;
    all_die(children)?;
    context.sync()?;
    for at in [0, 8] {
        same(format_args!("word {at} of the new segment"), mine.load::<u64>(at)?, 0)?;
    }
    context.sync()?;
    let new = context.import(context.peers.right(), "data")?;
    new.put64(0, 3)?;
    context.sync_behind(&new)?;
    same("the word stored through a new import", mine.load::<u64>(0)?, 3)?;
    context.sync()
}

pub(crate) fn error_wakes_poll(context: &mut Context<'_>) -> Verdict {
    // Another file, so that only this import can report.
    let node = context.other_file()?;
    let name = context.name("data");
    let mine = context.node().export(&name, 4096).mode(0o606).create()?;
    context.sync()?;
    let right = node.import(context.peers.right(), &name).open()?;
    same("an error before there is one", node.wait_error(Some(Duration::from_millis(20)))?, false)?;
    context.sync()?;
    mine.close()?;
    context.sync()?;
    right.put64(0, 1)?;
    same("an error within a minute", node.wait_error(Some(Duration::from_secs(60)))?, true)?;
    context.state_becomes(&right, "dead", |s| s.dead)?;
    drop(right);
    same("an error after the import is closed", node.wait_error(Some(Duration::ZERO))?, false)
}

pub(crate) fn fork_child(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = context.neighbour(4096)?;
    let mut child = context.child_saying(
        &format!("signal {}", libc::SIGSEGV),
        &["fork", &right.node().to_string(), &context.name("data")],
    )?;
    child.must_end(End::WELL)?;
    context.sync()?;
    same("the word of the forking process", mine.load::<u64>(0)?, 3)?;
    context.sync()
}

pub(crate) fn two_processes(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = context.neighbour(4096)?;
    let (here, far, data) = (context.me().to_string(), right.node().to_string(), context.name("data"));
    let names = [context.name("one"), context.name("two")];
    let mut children = Vec::new();
    for process in 0..2usize {
        let word = process.to_string();
        children.push(context.child(&["exchange", &names[process], &names[1 - process], &here, &far, &data, &word])?);
    }
    children.iter_mut().try_for_each(|child| child.expect("done"))?;
    children.iter_mut().try_for_each(|child| child.must_go_to(End::WELL))?;
    context.sync()?;
    for word in 0..2u64 {
        same(format_args!("the last word of process {word}"), mine.load::<u64>(word * 8)?, 200)?;
    }
    context.sync()
}

pub(crate) fn zeroed(context: &mut Context<'_>) -> Verdict {
    let (node, name) = (context.node(), context.name("data"));
    for round in 0..5 {
        let segment = node.export(&name, 256 << 10).create()?;
        for at in (0..segment.size()).step_by(8) {
            let found: u64 = segment.load(at)?;
            must(found == 0, || format!("round {round}: word {at:#x} of a new segment is {found:#x}: expected 0"))?;
            segment.store(at, u64::MAX)?;
        }
    }
    Ok(())
}

/// Memory, in kB.
pub(crate) fn available() -> Verdict<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.ok_or_else(|| Stop::Fail("/proc/meminfo has no MemAvailable".into()))
}

/// Runs cycles, each of which uses so many KiB and ends that. A `part`th of it all may be gone then, which allows for
/// other things the guest does. The first ones, which do not count, fill the kernel's caches.
pub(crate) fn leave_nothing(
    context: &mut Context<'_>,
    (first, cycles): (u64, u64),
    (kib, part): (u64, u64),
    mut cycle: impl FnMut(u64) -> Verdict,
) -> Verdict {
    (0..first).try_for_each(&mut cycle)?;
    let before = available()?;
    (0..cycles).try_for_each(cycle)?;
    let after = available()?;
    context.note(format!("{cycles} cycles of {kib} KiB: {before} kB available before, {after} kB after"));
    must(after + cycles * kib / part > before, || {
        format!("{} kB are gone after {cycles} cycles: expected about 0", before.saturating_sub(after))
    })
}

pub(crate) fn cycles(context: &mut Context<'_>) -> Verdict {
    // More than the board has contexts (256), and in sum more than it has export pages (4096) and window slots (1024),
    // than a process may lock, and than fits into a small guest's memory.
    const CYCLES: u64 = 300;
    const SIZE: u64 = 16 << 16;
    let (_mine, right) = context.neighbour(4 << 16)?;
    let (board, data, name) = (context.node(), context.name("data"), context.name("cycle"));
    let cycle = |number: u64| -> Verdict {
        let node = Node::open_path(board.path())?;
        let segment = node.export(&name, SIZE).mode(0o606).create()?;
        let far = node.import(right.node(), &data).open()?;
        let own = node.import(node.id(), &name).open()?;
        far.put64(number % 512 * 8, number)?;
        own.put64(SIZE - 8, number)?;
        own.quiet()?;
        same("the last word", segment.load::<u64>(SIZE - 8)?, number)?;
        if number % 2 == 0 {
            node.quiet()?;
            return Ok(());
        }
        // Half of them in the other order, with stores still on their way.
        drop(segment);
        drop(node);
        Ok(())
    };
    // One lost segment per cycle would be 300 MiB.
    leave_nothing(context, (20, CYCLES), (SIZE >> 10, 20), cycle)?;
    context.sync()
}
