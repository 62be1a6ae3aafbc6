// SPDX-License-Identifier: MIT OR Apache-2.0
//! Atomics: previous values, linearisability, rights, alignment, launch styles (SPEC items 18 to 20).

use super::context::{Context, Verdict, must, refused, same};
use super::control::{LAUNCH, ioctl, needs_lab};
use std::collections::{BTreeMap, BTreeSet};
use telegraphos::{AtomicWord, Error, LaunchStyle, Node, Outcome, READ_WRITE, Remote, Status};
use telegraphos_guest_tests::child::Child;
use telegraphos_guest_tests::launch::{Arguments, AtomicOp, Launcher, Operation};
use telegraphos_guest_tests::random;
use telegraphos_wire::context;

/// The owner of the words that all share.
fn home(context: &Context<'_>) -> u16 {
    context.peers.all.first().copied().unwrap_or(context.me())
}

/// The segment of the first node, imported by all; it is kept until all have ended the test.
pub(crate) fn shared(context: &mut Context<'_>, size: u64) -> Verdict<Remote> {
    if context.me() == home(context) {
        context.export("shared", size)?;
    }
    context.import(home(context), "shared")
}

/// All forms on the word at `offset`, which no other test uses.
fn forms<T>(remote: &Remote, offset: u64, seed: u64) -> Verdict
where
    T: AtomicWord + Outcome + std::fmt::LowerHex,
{
    let value = |n: u64| T::from_u64(random::word(seed, n));
    let (a, b, c) = (value(1), value(2), value(3));
    let at = format!("{} bytes at {offset:#x} of {:?} on node {}", T::SIZE, remote.name(), remote.node());
    remote.put(offset, a)?;
    same(format_args!("what swap found in {at}"), remote.swap(offset, b)?, a)?;
    same(format_args!("what a load finds after it in {at}"), remote.get::<T>(offset)?, b)?;
    same(format_args!("what fetch-and-add found in {at}"), remote.fetch_add(offset, c)?, b)?;
    let sum = T::from_u64(b.to_u64().wrapping_add(c.to_u64()));
    same(format_args!("what fetch-and-inc found in {at}"), remote.fetch_inc(offset)?, sum)?;
    let next = T::from_u64(sum.to_u64().wrapping_add(1));
    same(format_args!("what a vain compare-and-swap found in {at}"), remote.compare_swap(offset, sum, a)?, next)?;
    same(format_args!("what a load finds after it in {at}"), remote.get::<T>(offset)?, next)?;
    same(format_args!("what compare-and-swap found in {at}"), remote.compare_swap(offset, next, T::ONES)?, next)?;
    same(format_args!("what wraps from all ones in {at}"), remote.fetch_inc(offset)?, T::ONES)?;
    same(format_args!("what is there after it in {at}"), remote.get::<T>(offset)?.to_u64(), 0)?;
    // Not waited for: all three are under way at once, in order.
    let mut operations =
        [remote.swap_nbi(offset, a)?, remote.fetch_inc_nbi(offset)?, remote.compare_swap_nbi(offset, a, c)?];
    let found = [operations[2].wait(None)?, operations[1].wait(None)?, operations[0].wait(None)?];
    let expected = [T::from_u64(a.to_u64().wrapping_add(1)), a, T::from_u64(0)];
    same(format_args!("what three at once found in {at}, last first"), found, expected)
}

pub(crate) fn previous_values(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = context.neighbour(3 * 65536)?;
    let own = mine.remote()?;
    // The left neighbour works at lower offsets of our segment.
    for (remote, base) in [(&right, 0), (own, 65536)] {
        for (offset, seed) in [(base, 1), (base + 8, 2), (base + 4096 - 8, 3), (base + 65536 - 8, 4)] {
            forms::<u64>(remote, offset, seed)?;
            forms::<u32>(remote, offset, seed)?;
            forms::<u32>(remote, offset + 4, seed)?;
        }
    }
    context.sync()
}

pub(crate) fn neighbours_stay(context: &mut Context<'_>) -> Verdict {
    let (_mine, right) = context.neighbour(4096)?;
    const ONES: u64 = u64::MAX;
    for half in [0u64, 4] {
        (0..8).try_for_each(|word| right.put64(64 + 8 * word, ONES))?;
        same("the half word", right.fetch_inc::<u32>(96 + half)?, u32::MAX)?;
        same("the half word", right.compare_swap::<u32>(96 + half, 0, 5)?, 0)?;
        for word in 0..8 {
            let expected = if word == 4 { ONES ^ (0xffff_ffff << (8 * half)) | 5 << (8 * half) } else { ONES };
            same(format_args!("word {word}, half {half}"), right.get64(64 + 8 * word)?, expected)?;
        }
    }
    context.sync()
}

/// Observers never see the values of one writer go back: the word is one register, however it is written and read.
pub(crate) fn against_stores_and_loads(context: &mut Context<'_>) -> Verdict {
    const ROUNDS: u64 = 300;
    let word = shared(context, 4096)?;
    context.sync()?;
    let mut newest: BTreeMap<u64, u64> = BTreeMap::new();
    let mut see = |found: u64| -> Verdict {
        let (writer, number) = (found >> 32, found & 0xffff_ffff);
        let seen = newest.entry(writer).or_default();
        must(number >= *seen, || format!("value {number} of writer {writer} seen after its value {seen}"))?;
        *seen = number;
        Ok(())
    };
    let me = u64::from(context.me()) + 1;
    let mut swapped = BTreeSet::new();
    for round in 1..=ROUNDS {
        let mine = |step: u64| (me << 32) | (4 * round + step);
        let found = word.swap(0, mine(0))?;
        see(found)?;
        must(swapped.insert(found) || found == 0, || format!("swap found {found:#x} twice"))?;
        see(word.get64(0)?)?;
        word.put64(0, mine(1))?;
        see(word.get64(0)?)?;
        let expected = word.get64(0)?;
        see(expected)?;
        // Of a vain one, too, the word found is an observation.
        see(word.compare_swap(0, expected, mine(2))?)?;
        see(word.get64(0)?)?;
    }
    context.sync()
}

/// What the fetch-incs of all processes return is exactly 0 to n - 1: every process marks the numbers it drew.
pub(crate) fn fetch_inc_by_processes(context: &mut Context<'_>) -> Verdict {
    const PROCESSES: u64 = 4;
    const ROUNDS: u64 = 1000;
    const MARKS: u64 = 64;
    let count = context.peers.all.len() as u64 * PROCESSES * ROUNDS;
    let word = shared(context, MARKS + 8 * count)?;
    let (node, name, rounds) = (word.node().to_string(), context.name("shared"), ROUNDS.to_string());
    let place = context.place().1 as u64;
    let mut children = Vec::new();
    for process in 0..PROCESSES {
        let mark = (place * PROCESSES + process + 1).to_string();
        // Half of them through the lower half of the word, which is the same word.
        let width = if process % 2 == 0 { "8" } else { "4" };
        children
            .push(context.child_saying("ready", &["count", &node, &name, width, &rounds, &MARKS.to_string(), &mark])?);
    }
    context.sync()?;
    let begun = std::time::Instant::now();
    children.iter_mut().try_for_each(Child::go)?;
    children.iter_mut().try_for_each(|child| child.must_end_saying("done"))?;
    context.note(format!("{PROCESSES} processes with {ROUNDS} each: {:.1?}", begun.elapsed()));
    context.sync()?;
    if context.me() == home(context) {
        same("the counter", word.get64(0)?, count)?;
        let segment = context.exported("shared")?;
        let mut drawn = vec![0; (context.peers.all.len() as u64 * PROCESSES) as usize];
        for number in 0..count {
            let mark: u64 = segment.load(MARKS + 8 * number)?;
            let by = mark.checked_sub(1).and_then(|p| drawn.get_mut(p as usize));
            *by.ok_or_else(|| format!("number {number} of {count} was drawn by {mark}: expected one process"))? += 1;
        }
        same("how many numbers each process has drawn", drawn.iter().all(|n| *n == ROUNDS), true)?;
    }
    context.sync()
}

pub(crate) fn compare_swap_loses_nothing(context: &mut Context<'_>) -> Verdict {
    const ROUNDS: u64 = 300;
    let word = shared(context, 4096)?;
    context.sync()?;
    let (mut tries, mut seen) = (0u64, 0u64);
    for _ in 0..ROUNDS {
        loop {
            tries += 1;
            let found = word.compare_swap(8, seen, seen + 1)?;
            let done = found == seen;
            seen = found + u64::from(done);
            if done {
                break;
            }
        }
    }
    context.note(format!("{ROUNDS} increments took {tries} compare-and-swaps"));
    context.sync()?;
    same("the sum of all increments", word.get64(8)?, ROUNDS * context.peers.all.len() as u64)?;
    context.sync()
}

/// Every value swapped in comes out exactly once, or is there at last.
pub(crate) fn swap_passes_on(context: &mut Context<'_>) -> Verdict {
    const ROUNDS: u64 = 500;
    let word = shared(context, 4096)?;
    context.sync()?;
    let value = |node: u16, round: u64| random::word(u64::from(node) + 77, round);
    let mut out = 0u64;
    for round in 0..ROUNDS {
        // A sum of hashes, so that no other set of values has the same.
        let found: u64 = word.swap(16, value(context.me(), round))?;
        out = out.wrapping_add(random::word(5, found));
    }
    context.mail(home(context), 2, out)?;
    context.sync()?;
    if context.me() == home(context) {
        let (mut came_out, mut went_in) = (random::word(5, word.get64(16)?), random::word(5, 0));
        for (id, out) in context.peers.all.iter().zip(context.mail_of_all(2)?) {
            came_out = came_out.wrapping_add(out);
            for round in 0..ROUNDS {
                went_in = went_in.wrapping_add(random::word(5, value(*id, round)));
            }
        }
        same("the sum of all values swapped out", came_out, went_in)?;
    }
    context.sync()
}

pub(crate) fn without_right(context: &mut Context<'_>) -> Verdict {
    needs_lab(context)?;
    let (mine, right) = context.neighbour(4096)?;
    mine.store(0, 41u64)?;
    context.sync()?;
    let node = context.node();
    let plain = node.import(right.node(), &context.name("data")).rights(READ_WRITE).open()?;
    must(matches!(plain.fetch_inc::<u64>(0), Err(Error::Right { .. })), || "the library launches without it".into())?;
    // The board, too, refuses it, in every style.
    let launcher = Launcher::of(node)?;
    Arguments::of(node, &plain)?.pass(0, launcher.argument(63, 0));
    launcher.set(63, context::OPERAND, 1);
    launcher.set(63, context::LENGTH, 0);
    launcher.launch(63, Operation::Atomic { op: AtomicOp::Add, size: 8 }, 7);
    same("the board's answer", launcher.wait(63, 7)?.0, Status::Rights)?;
    for style in [LaunchStyle::Plain, LaunchStyle::Special] {
        let found = raw_ioctl(node, style, &plain, 0, 8);
        same(format_args!("the errno of style {style:?}"), found, Err(libc::EACCES))?;
    }
    let reader = node.import(right.node(), &context.name("data")).read_only().open()?;
    must(matches!(reader.swap(0, 1u64), Err(Error::Right { .. })), || "the library changes what is read-only".into())?;
    let found = raw_ioctl(node, LaunchStyle::Plain, &reader, 0, 8);
    same("the errno of an atomic on a read-only import", found, Err(libc::EACCES))?;
    // An exporter that offers loads and stores only.
    let name = context.name("plain");
    let offered = node.export(&name, 4096).owner(READ_WRITE).others(READ_WRITE).create()?;
    context.sync()?;
    let wanted = node.import(context.peers.right(), &name).open();
    refused("an import for atomics that are not offered", wanted, libc::EACCES)?;
    context.sync()?;
    drop(offered);
    same("the word", mine.load::<u64>(0)?, 41)?;
    same("the latched error", right.state()?.error, None)?;
    context.sync()
}

/// Fetch-and-increment by ioctl, past the library's checks: the previous value or the errno.
fn raw_ioctl(node: &Node, style: LaunchStyle, remote: &Remote, offset: u64, size: u32) -> Result<u64, i32> {
    let mut launch = telegraphos_wire::uapi::Launch {
        style: style as u32,
        operation: context::ADD as u32 | if size == 8 { u32::from(context::WIDE) << 8 } else { 0 },
        target: if style == LaunchStyle::Plain { remote.handle() } else { 0 },
        target_address: if style == LaunchStyle::Plain { offset } else { remote.as_ptr() as u64 + offset },
        operand: 1,
        slot: 62,
        ..Default::default()
    };
    ioctl(node, LAUNCH, &mut launch).map(|()| launch.value)
}

pub(crate) fn unaligned(context: &mut Context<'_>) -> Verdict {
    needs_lab(context)?;
    let (mine, right) = context.neighbour(4096)?;
    for offset in 1..8u64 {
        let wide = right.fetch_inc::<u64>(64 + offset);
        must(matches!(wide, Err(Error::Misaligned { .. })), || format!("the library takes 8 bytes at {offset}"))?;
        if offset != 4 {
            let narrow = right.swap::<u32>(64 + offset, 1);
            must(matches!(narrow, Err(Error::Misaligned { .. })), || format!("the library takes 4 bytes at {offset}"))?;
        }
    }
    let launcher = Launcher::of(context.node())?;
    let arguments = Arguments::of(context.node(), &right)?;
    let mut cookie = 100;
    let mut attempt = |low: u64, size: u8| -> Verdict<Status> {
        cookie += 1;
        arguments.pass(64, launcher.argument(63, 0));
        launcher.set(63, context::OPERAND, 1);
        launcher.set(63, context::LENGTH, low << 48);
        launcher.launch(63, Operation::Atomic { op: AtomicOp::Add, size }, cookie);
        Ok(launcher.wait(63, cookie)?.0)
    };
    for low in 0..8 {
        let wanted = |aligned| if aligned { Status::Ok } else { Status::BadSize };
        same(format_args!("8 bytes at {low}"), attempt(low, 8)?, wanted(low == 0))?;
        same(format_args!("4 bytes at {low}"), attempt(low, 4)?, wanted(low % 4 == 0))?;
    }
    for style in [LaunchStyle::Plain, LaunchStyle::Special] {
        let found = raw_ioctl(context.node(), style, &right, 68, 8);
        must(found.is_err(), || format!("style {style:?} takes 8 bytes at 4"))?;
        let narrow = raw_ioctl(context.node(), style, &right, 68, 4);
        same(format_args!("4 bytes at 4 in style {style:?}"), narrow.is_ok(), true)?;
    }
    context.sync()?;
    // Once by 8 bytes and once by 4, then three times at the upper half.
    same("the word", mine.load::<u64>(64)?, 2 | 3 << 32)?;
    context.sync()
}

pub(crate) fn styles_agree(context: &mut Context<'_>) -> Verdict {
    needs_lab(context)?;
    let (mine, right) = context.neighbour(2 * 65536)?;
    // Another file, so that other tests keep the style that they expect.
    let node = context.other_file()?;
    let name = context.name("data");
    let (far, own) = (node.import(right.node(), &name).open()?, node.import(context.me(), &name).open()?);
    for style in LaunchStyle::ALL {
        node.set_launch_style(style);
        same("the style", node.launch_style(), style)?;
        for (remote, base) in [(&far, 0), (&own, 65536)] {
            forms::<u64>(remote, base + 128, 9)?;
            forms::<u32>(remote, base + 132, 9)?;
        }
        // A copy of three words, from the far segment into the near one and back.
        (0..3).try_for_each(|n| far.put64(1024 + 8 * n, random::word(style as u64, n)))?;
        telegraphos::copy(&own, 65536 + 2049, &far, 1024, 24)?;
        telegraphos::copy(&far, 4099, &own, 65536 + 2049, 24)?;
        far.quiet()?;
        let found: Vec<u8> = (0..24).map(|n| far.get8(4099 + n)).collect::<Result<_, _>>()?;
        let expected: Vec<u8> = (0..3).flat_map(|n| random::word(style as u64, n).to_le_bytes()).collect();
        same(format_args!("what was copied there and back in style {style:?}"), found, expected)?;
        let found: Vec<u8> = (0..24).map(|n| mine.load(65536 + 2049 + n)).collect::<Result<_, _>>()?;
        must(found.iter().any(|b| *b != 0), || "nothing has come by copy".into())?;
        // Errors, too, are the same.
        let overlap = telegraphos::copy(&own, 65536, &own, 65536 + 8, 16).err().and_then(|e| e.status());
        same(format_args!("an overlap in style {style:?}"), overlap, Some(Status::Overlap))?;
    }
    context.sync()
}
