// SPDX-License-Identifier: MIT OR Apache-2.0
//! What protects launches from each other (SPEC items 19 and 20, I14): keys, contexts, interruption at any step, death.

use super::context::{Context, Stop, Verdict, both, in_threads, must, same};
use super::control::{LAUNCH, ioctl, needs_lab};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use telegraphos::{LaunchStyle, Node, Remote, Status};
use telegraphos_guest_tests::child::{Child, End};
use telegraphos_guest_tests::launch::{Argument, Arguments, AtomicOp, Launcher, Operation};
use telegraphos_wire::{context, uapi};

const ADD: Operation = Operation::Atomic { op: AtomicOp::Add, size: 8 };

/// Another file, its launcher, and an import of the right neighbour's segment with its argument aperture.
struct Own {
    launcher: Launcher,
    remote: Remote,
    arguments: Arguments,
}

fn own(context: &Context<'_>, part: &str) -> Verdict<Own> {
    let node = context.other_file()?;
    let remote = node.import(context.peers.right(), &context.name(part)).open()?;
    let arguments = Arguments::of(&node, &remote)?;
    Ok(Own { launcher: Launcher::of(&node)?, remote, arguments })
}

impl Own {
    /// Launches fetch-and-add of 1 with the arguments that are there.
    fn launch(&self, slot: u8, cookie: u64) -> Verdict<Status> {
        self.launcher.set(slot, context::OPERAND, 1);
        self.launcher.set(slot, context::LENGTH, 0);
        self.launcher.launch(slot, ADD, cookie);
        Ok(self.launcher.wait(slot, cookie)?.0)
    }
}

pub(crate) fn wrong_keys(context: &mut Context<'_>) -> Verdict {
    const LIMIT: u64 = 16;
    let (mine, right) = context.neighbour(4096)?;
    let it = own(context, "data")?;
    let good = it.launcher.argument(5, 0);
    for attempt in 1..LIMIT {
        // Wrong in one bit, each time another one; the last one in many.
        let key = if attempt == LIMIT - 1 { !good.key } else { good.key ^ 1 << (3 * attempt) };
        it.arguments.pass(64, Argument { key, ..good });
        same(format_args!("a launch after wrong key {attempt}"), it.launch(5, attempt)?, Status::Argument)?;
        must(!it.remote.state()?.dead, || format!("the import is dead after {attempt} wrong keys: expected {LIMIT}"))?;
    }
    // The right one still works, and does not wipe out the count.
    it.arguments.pass(64, good);
    same("a launch with the right key", it.launch(5, 99)?, Status::Ok)?;
    it.arguments.pass(64, Argument { key: 0, ..good });
    context.state_becomes(&it.remote, "dead with BadKey", |s| s.dead && s.error == Some(Status::BadKey))?;
    // Other contexts are not affected.
    same("another import's error", right.state()?.error, None)?;
    same("what the good one found", right.fetch_inc::<u64>(64)?, 1)?;
    context.sync()?;
    same("the word that wrong keys were to change", mine.load::<u64>(64)?, 2)?;
    context.sync()
}

pub(crate) fn foreign_context(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = context.neighbour(4096)?;
    let (one, other) = (own(context, "data")?, own(context, "data")?);
    must(one.launcher.context != other.launcher.context, || "two files have one context".into())?;
    must(one.launcher.key != other.launcher.key, || "two contexts have one key".into())?;
    // The other's context with its correct key, through this one's import: the board checks the import's context.
    one.arguments.pass(64, other.launcher.argument(5, 0));
    same("a launch by the context that it was passed to", other.launch(5, 1)?, Status::Argument)?;
    // Each context with the other's key.
    one.arguments.pass(64, Argument { key: one.launcher.key, ..other.launcher.argument(5, 0) });
    same("a launch by the other", other.launch(5, 2)?, Status::Argument)?;
    one.arguments.pass(64, Argument { key: other.launcher.key, ..one.launcher.argument(5, 0) });
    same("a launch by us", one.launch(5, 3)?, Status::Argument)?;
    // Contexts that are not open.
    for number in (0..=255).filter(|n| ![one.launcher.context, other.launcher.context].contains(n)).take(3) {
        one.arguments.pass(64, Argument { context: number, ..one.launcher.argument(5, 0) });
    }
    // An argument that there is not, and a load, are refused too.
    one.arguments.pass(64, one.launcher.argument(5, 2));
    same("a launch with argument 2", one.launch(5, 4)?, Status::Argument)?;
    if cfg!(target_arch = "x86_64") {
        same("a load from the argument aperture", one.arguments.peek(64), u64::MAX)?;
    }
    // Both still work; a foreign word has not overwritten what was passed before it.
    one.arguments.pass(64, one.launcher.argument(6, 0));
    other.arguments.pass(72, Argument { key: other.launcher.key, ..one.launcher.argument(6, 0) });
    same("a launch whose argument another has aimed at", one.launch(6, 5)?, Status::Ok)?;
    context.sync()?;
    same("the word meant", mine.load::<u64>(64)?, 1)?;
    same("the other's word", mine.load::<u64>(72)?, 0)?;
    drop(right);
    context.sync()
}

/// An argument is good for the opening of the import that it was passed through, and for one launch.
pub(crate) fn stale_arguments(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = context.neighbour(4096)?;
    let it = own(context, "data")?;
    it.arguments.pass(64, it.launcher.argument(5, 0));
    same("the first launch", it.launch(5, 1)?, Status::Ok)?;
    same("a second one with its argument", it.launch(5, 2)?, Status::Argument)?;
    it.arguments.pass(64, it.launcher.argument(5, 0));
    let Own { launcher, remote, arguments } = it;
    let handle = remote.handle();
    drop(arguments);
    remote.close()?;
    // Most likely the same number of the board.
    let again = launcher.node.import(right.node(), &context.name("data")).open()?;
    context.note(format!("import {handle} was opened again as {}", again.handle()));
    launcher.set(5, context::OPERAND, 1);
    launcher.launch(5, ADD, 3);
    same("a launch with an argument of a closed import", launcher.wait(5, 3)?.0, Status::Argument)?;
    context.sync()?;
    same("the word", mine.load::<u64>(64)?, 1)?;
    context.sync()
}

/// Steps of one child's compare-and-swap; it says a line after each.
const STEPS: usize = 5;

/// Two processes launch at the same time, through the same slot number of their contexts, interrupted between any two
/// steps.
pub(crate) fn interleaved(context: &mut Context<'_>) -> Verdict {
    let (_mine, right) = context.neighbour(4096)?;
    let (far, name) = (right.node().to_string(), context.name("data"));
    // All of B's steps between two of A's, at every place; then in turns, and B ahead by two.
    let mut orders: Vec<Vec<usize>> =
        (0..=STEPS).map(|at| [vec![0; at], vec![1; STEPS], vec![0; STEPS - at]].concat()).collect();
    orders.push([0, 1].repeat(STEPS));
    orders.push([vec![1, 1], [0, 1].repeat(STEPS - 2), vec![0, 0]].concat());
    let mut children = Vec::new();
    for process in 0..2u64 {
        let offset = (64 + 8 * process).to_string();
        children
            .push(context.child_saying("ready", &["launch-steps", &far, &name, &offset, &orders.len().to_string()])?);
    }
    for (round, order) in orders.iter().enumerate() {
        let round = round as u64;
        for process in 0..2u64 {
            // What each is to find, and no other's compare-and-swap would.
            right.put64(64 + 8 * process, 1000 * (process + 1) + round)?;
        }
        right.quiet()?;
        for process in order {
            let child: &mut Child = children.get_mut(*process).ok_or("no such child")?;
            child.go()?;
            child.expect("step")?;
        }
        for (process, child) in children.iter_mut().enumerate() {
            let expected = 1000 * (process as u64 + 1) + round;
            child.go()?;
            child.expect(&format!("found {expected}"))?;
            let found = right.get64(64 + 8 * process as u64)?;
            same(format_args!("the word of process {process} in order {order:?}"), found, expected + 500_000)?;
        }
    }
    children.iter_mut().try_for_each(|child| child.must_end(End::WELL))?;
    context.sync()
}

/// Threads launch through one node at once, more than there are slots.
pub(crate) fn threads(context: &mut Context<'_>) -> Verdict {
    const THREADS: u64 = 80;
    const ROUNDS: u64 = 20;
    let (mine, right) = context.neighbour(4096)?;
    context.sync()?;
    in_threads(THREADS, |thread| {
        (0..ROUNDS).try_for_each(|round| {
            let mut one = right.fetch_add_nbi(thread * 8, 1u32)?;
            let mut two = right.fetch_add_nbi(thread * 8 + 4, 2u32)?;
            if round % 4 == 0 {
                right.quiet()?;
            }
            same(format_args!("what thread {thread} found"), one.wait(None)?, round as u32)?;
            same(format_args!("what thread {thread} found above"), two.wait(None)?, 2 * round as u32)
        })
    })?;
    context.sync()?;
    for thread in 0..THREADS {
        let expected = ROUNDS | (2 * ROUNDS) << 32;
        same(format_args!("the words of thread {thread}"), mine.load::<u64>(thread * 8)?, expected)?;
    }
    context.sync()
}

/// How many contexts can be opened at once.
fn contexts(context: &Context<'_>) -> Verdict<usize> {
    let mut nodes = Vec::new();
    loop {
        match Node::open_path(context.node().path()) {
            Ok(node) => nodes.push(node),
            Err(error) if matches!(error.errno(), libc::EBUSY | libc::ENOSPC) => return Ok(nodes.len()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Processes killed in the middle of launching, in every style, and files closed with operations under way.
pub(crate) fn killed(context: &mut Context<'_>) -> Verdict {
    needs_lab(context)?;
    const SIZE: u64 = 8 << 16;
    let (mine, right) = context.neighbour(SIZE)?;
    context.sync()?;
    let before = contexts(context)?;
    let (far, name) = (right.node().to_string(), context.name("data"));
    for round in 0..3u64 {
        let start = |style| context.child_saying("ready", &["launch-loop", &far, &name, &(style as u8).to_string()]);
        let mut children = LaunchStyle::ALL.into_iter().map(start).collect::<Verdict<Vec<_>>>()?;
        std::thread::sleep(std::time::Duration::from_millis(20 + 7 * round));
        children.iter_mut().try_for_each(Child::must_be_killed)?;
    }
    // Not killed, but closed: half a launch, and copies and atomics under way, all at once.
    for round in 0..30u64 {
        let it = own(context, "data")?;
        let local = it.launcher.node.import(context.me(), &context.name("data")).open()?;
        it.arguments.pass(64, it.launcher.argument(63, 0));
        it.launcher.set(63, context::OPERAND, round);
        for n in 0..4 {
            drop(telegraphos::copy_nbi(&it.remote, SIZE / 2 + n, &local, 4096, SIZE / 4)?);
            drop(it.remote.fetch_inc_nbi::<u64>(128)?);
        }
        if round % 2 == 0 {
            // In another order: the near end of the copies first.
            drop(local);
        }
    }
    same("the contexts that can be opened at once", contexts(context)?, before)?;
    // The board is as it was.
    right.put64(8, 4711)?;
    same("a word stored after all that", right.get64(8)?, 4711)?;
    right.fetch_inc::<u64>(16)?;
    context.sync()?;
    same("the word that no launch was to change", mine.load::<u64>(64)?, 0)?;
    context.sync()
}

/// The launch of s1 whose last access is a read that returns the result: the library's, and by hand what the library
/// never does.
pub(crate) fn by_load(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = context.neighbour(4096)?;
    let it = own(context, "data")?;
    it.launcher.node.set_launch_style(LaunchStyle::Load);
    same("the first of two", it.remote.fetch_add::<u64>(64, 5)?, 0)?;
    same("the second", it.remote.fetch_add::<u64>(64, u64::MAX)?, 5)?;
    same("a swap for all ones", it.remote.swap::<u32>(68, u32::MAX)?, 0)?;
    same("all ones, which are a value", it.remote.compare_swap::<u32>(68, u32::MAX, 7)?, u32::MAX)?;
    same("operations under way", it.launcher.node.unfinished(), 0)?;
    let errors = right.state()?.error;
    same("an error of it all", errors, None)?;
    let prepare = |operation: u64| {
        it.launcher.set(9, context::OPERAND, 1);
        it.launcher.set(9, context::LENGTH, operation << 56);
    };
    let add = AtomicOp::Add as u64;
    // Nothing was passed.
    prepare(add);
    same("a load without an argument", it.launcher.fetch(9, true), u64::MAX)?;
    // With a wrong key nothing was passed either.
    let good = it.launcher.argument(9, 0);
    it.arguments.pass(72, Argument { key: good.key ^ 1, ..good });
    prepare(add);
    same("a load behind a wrong key", it.launcher.fetch(9, false), u64::from(u32::MAX))?;
    same("the import's error", it.remote.state()?.error, None)?;
    // A copy has no result: refused, and latched on the import that was passed.
    it.arguments.pass(72, good);
    prepare(u64::from(context::COPY));
    same("a load for a copy", it.launcher.fetch(9, true), u64::MAX)?;
    context.state_becomes(&it.remote, "Invalid", |s| s.error == Some(Status::Invalid))?;
    let refused = it.remote.fetch_inc::<u64>(72).err().and_then(|refused| refused.status());
    same("a launch by load with an error latched", refused, Some(Status::Invalid))?;
    it.remote.acknowledge()?;
    // The arguments of a refused one are gone; with new ones all is well.
    it.arguments.pass(72, good);
    prepare(add);
    same("a launch by hand", it.launcher.fetch(9, true), 0)?;
    prepare(add);
    same("a second one with its argument", it.launcher.fetch(9, true), u64::MAX)?;
    context.sync()?;
    same("the word changed by hand", mine.load::<u64>(72)?, 1)?;
    same("the words changed by the library", mine.load::<u64>(64)?, 7 << 32 | 4)?;
    context.sync()
}

/// Processes launch copies as fast as they can and look at nothing; others' loads and launches are served meanwhile.
pub(crate) fn flood(context: &mut Context<'_>) -> Verdict {
    const LOADS: u64 = 300;
    let (mine, right) = context.neighbour(8 << 16)?;
    mine.store::<u64>(8, 0)?;
    context.sync()?;
    // How long a load takes beside two processes.
    let beside = |context: &mut Context<'_>, action: &[&str]| -> Verdict<(Vec<Child>, Duration)> {
        let start = |_| context.child_saying("ready", action);
        let children = (0..2).map(start).collect::<Verdict<Vec<_>>>()?;
        let mut times = Vec::new();
        for _ in 0..LOADS {
            let begun = Instant::now();
            right.get64(8)?;
            times.push(begun.elapsed());
        }
        times.sort_unstable();
        Ok((children, times[times.len() / 2]))
    };
    let (mut spinning, usual) = beside(context, &["spin"])?;
    spinning.iter_mut().try_for_each(Child::must_be_killed)?;
    let name = context.name("data");
    let (mut children, attacked) = beside(context, &["launch-flood", &name])?;
    context.note(format!("a load takes {usual:?} beside two processes that spin, {attacked:?} beside two that launch"));
    for n in 0..LOADS {
        right.put64(8 + 8 * (n % 100), n)?;
        same("a word loaded behind a flood", right.get64(8 + 8 * (n % 100))?, n)?;
        if n % 50 == 0 {
            right.quiet()?;
            right.fetch_inc::<u64>(1000)?;
        }
    }
    // Also one that waits for the end of its context's congestion can be killed.
    children.iter_mut().try_for_each(Child::must_be_killed)?;
    same("the error of an import that did nothing wrong", right.state()?.error, None)?;
    right.put64(8, 4711)?;
    same("a word stored after all that", right.get64(8)?, 4711)?;
    context.sync()?;
    same("the word that was counted in", mine.load::<u64>(1000)?, LOADS / 50)?;
    context.sync()
}

/// Special mode fails in every way there is, while another thread stores: none of its stores is swallowed, and
/// afterwards the window is the window.
pub(crate) fn special_is_clean(context: &mut Context<'_>) -> Verdict {
    needs_lab(context)?;
    const STORES: u64 = 20_000;
    const WORDS: u64 = 1024;
    let (mine, right) = context.neighbour(2 * 65536)?;
    let node = context.other_file()?;
    node.set_launch_style(LaunchStyle::Special);
    let far = node.import(right.node(), &context.name("data")).open()?;
    let reader = node.import(right.node(), &context.name("data")).read_only().open()?;
    context.sync()?;
    let stop = AtomicBool::new(false);
    let bad = |what: &str, address: u64, operation: u32, slot: u32, errnos: &[i32]| -> Verdict {
        let mut launch = uapi::Launch {
            style: LaunchStyle::Special as u32,
            operation,
            target_address: address,
            operand: 1,
            slot,
            ..Default::default()
        };
        match ioctl(&node, LAUNCH, &mut launch) {
            Err(errno) if errnos.contains(&errno) => Ok(()),
            other => Err(Stop::Fail(format!("special mode with {what}: {other:?}: expected an errno of {errnos:?}"))),
        }
    };
    let add = context::ADD as u32 | u32::from(context::WIDE) << 8;
    let mut launches = 0u64;
    let storing = || {
        // Each word is stored once in a lap: one that is swallowed is missed at the end.
        let stored = (0..STORES).try_for_each(|n| {
            right.put64(8 * (n % WORDS), n + 1)?;
            match n % 64 {
                0 => same("a word loaded back at once", right.get64(8 * (n % WORDS))?, n + 1),
                _ => Ok(()),
            }
        });
        stop.store(true, Ordering::Relaxed);
        stored
    };
    let special = || -> Verdict {
        let (base, stack) = (far.as_ptr() as u64, 0u64);
        while !stop.load(Ordering::Relaxed) {
            same("what special mode found", far.fetch_inc::<u64>(65536)?, launches)?;
            launches += 1;
            if launches % 8 == 0 {
                let (own, readable) = (std::ptr::from_ref(&stack) as u64, reader.as_ptr() as u64);
                bad("an address that is not mapped", 8, add, 3, &[libc::EFAULT])?;
                bad("an address in the kernel", 1 << 63, add, 3, &[libc::EFAULT])?;
                bad("an address of ordinary memory", own, add, 3, &[libc::EINVAL, libc::EFAULT])?;
                bad("a window that may not be stored to", readable, add, 3, &[libc::EFAULT, libc::EACCES])?;
                bad("a misaligned address", base + 65537, add, 3, &[libc::EINVAL, libc::EREMOTEIO])?;
                bad("an unknown operation", base, 77, 3, &[libc::EINVAL])?;
                bad("a slot that there is not", base, add, 64, &[libc::EINVAL])?;
            }
        }
        Ok(())
    };
    both(storing, special)?;
    right.quiet()?;
    context.note(format!("{launches} launches in special mode beside {STORES} stores"));
    same("the latched error", far.state()?.error, None)?;
    context.sync()?;
    for word in 0..WORDS {
        let last = (STORES - 1 - word) / WORDS * WORDS + word + 1;
        same(format_args!("word {word}, stored beside special mode"), mine.load::<u64>(8 * word)?, last)?;
    }
    context.sync()
}

/// Invalid requests to the driver are refused.
pub(crate) fn nonsense(context: &mut Context<'_>) -> Verdict {
    needs_lab(context)?;
    let (_mine, right) = context.neighbour(4096)?;
    let node = context.node();
    let other = Node::open_path(node.path())?;
    let add = context::ADD as u32;
    let good = uapi::Launch { operation: add, target: right.handle(), ..Default::default() };
    let attempt = |node: &Node, launch: uapi::Launch| ioctl(node, LAUNCH, &mut { launch });
    same("a good one", attempt(node, good), Ok(()))?;
    for (what, launch, errno) in [
        ("a style that there is not", uapi::Launch { style: 2, ..good }, libc::EINVAL),
        ("operation 0", uapi::Launch { operation: 0, ..good }, libc::EINVAL),
        ("operation 5", uapi::Launch { operation: 5, ..good }, libc::EINVAL),
        ("an unknown flag", uapi::Launch { operation: add | 0x8000, ..good }, libc::EINVAL),
        ("flags far up", uapi::Launch { operation: add | 1 << 31, ..good }, libc::EINVAL),
        ("a wide copy", uapi::Launch { operation: u32::from(context::COPY) | 0x100, ..good }, libc::EINVAL),
        ("a wild handle", uapi::Launch { target: 0xffff_ffff, ..good }, libc::EBADF),
        ("no source", uapi::Launch { operation: context::COPY.into(), source: 0xffff, length: 8, ..good }, libc::EBADF),
    ] {
        same(format_args!("TG_IOCTL_LAUNCH with {what}"), attempt(node, launch), Err(errno))?;
    }
    same("another file's import", attempt(&other, good), Err(libc::EBADF))?;
    let mut notify = uapi::Notify { eventfd: -1, flags: 1, ..Default::default() };
    same("a flag of notify", ioctl(&other, 11, &mut notify), Err(libc::EINVAL))?;
    let mut notify = uapi::Notify { eventfd: 1 << 20, ..Default::default() };
    same("no eventfd", ioctl(&other, 11, &mut notify), Err(libc::EBADF))?;
    // Words for the context page that mean nothing: they have no effect but being counted as errors of the board.
    let launcher = Launcher::of(&other)?;
    for word in [0, 1 << 56 | 4 << 48, 6 << 56, u64::MAX] {
        launcher.set(1, context::LAUNCH, word);
    }
    let far = other.import(right.node(), &context.name("data")).open()?;
    same("a good one after all that", far.fetch_inc::<u64>(64)?, 0)?;
    context.sync()
}
