// SPDX-License-Identifier: MIT OR Apache-2.0
//! Block copies (SPEC item 17): every byte arrives, and only where it belongs; what is refused; how they end.

use super::context::{Context, LONG, SOON, Stop, Verdict, YIELD, in_threads, joined, must, refused, same, until};
use super::control::{LAUNCH, ioctl, needs_lab};
use super::queues::is_readable;
use std::time::{Duration, Instant};
use telegraphos::{Error, LaunchStyle, MAX_COPY, Operation, Remote, Rights, Segment, Status, copy, copy_nbi};
use telegraphos_guest_tests::child::End;
use telegraphos_guest_tests::launch::{Arguments, Launcher, Operation as What};
use telegraphos_guest_tests::random;
use telegraphos_wire::{context as words, uapi};

const UNIT: u64 = 65536;

/// Fills a range with the bytes of a seed.
fn fill(segment: &Segment, from: u64, length: u64, seed: u64) -> Verdict {
    for at in from..from + length {
        segment.store(at, byte(seed, at))?;
    }
    Ok(())
}

/// The byte at an offset of what a seed fills.
fn byte(seed: u64, at: u64) -> u8 {
    (random::word(seed, at / 8) >> (8 * (at % 8))) as u8
}

/// Fails unless `length` bytes from `to` are those of a seed from `from`, and those around are zero.
fn holds(segment: &Segment, to: u64, from: u64, length: u64, seed: u64) -> Verdict {
    let around = 16;
    for at in to.saturating_sub(around)..(to + length + around).min(segment.size()) {
        let inside = (to..to + length).contains(&at);
        let expected = if inside { byte(seed, at - to + from) } else { 0 };
        let found: u8 = segment.load(at)?;
        must(found == expected, || {
            format!(
                "byte {at:#x} is {found:#04x} after {length} bytes came to {to:#x} from {from:#x}: expected {expected:#04x}"
            )
        })?;
    }
    Ok(())
}

fn zero(segment: &Segment, to: u64, length: u64) -> Verdict {
    for at in to..to + length {
        segment.store(at, 0u8)?;
    }
    Ok(())
}

/// Lengths and offsets across the bounds of words, pages and units.
const SHAPES: &[(u64, u64, u64)] = &[
    (0, 0, 1),
    (1, 0, 1),
    (0, 7, 1),
    (3, 5, 2),
    (0, 0, 3),
    (1, 1, 7),
    (0, 0, 8),
    (4, 4, 8),
    (7, 0, 8),
    (5, 3, 9),
    (0, 1, 64),
    (63, 62, 65),
    (4095, 1, 2),
    (4096, 4095, 4097),
    (1, 0, 8191),
    (UNIT - 1, 0, 2),
    (0, UNIT - 1, 2),
    (UNIT - 3, UNIT - 5, 8),
    (17, 4099, UNIT),
    (UNIT - 1, UNIT + 1, UNIT + 7),
    (123, 77, 3 * UNIT - 321),
];

/// Segments of four units: one to copy from and one to copy to, of this node and of the right neighbour.
struct Four {
    source: std::sync::Arc<Segment>,
    target: std::sync::Arc<Segment>,
    far_source: Remote,
    far_target: Remote,
}

fn four(context: &mut Context<'_>) -> Verdict<Four> {
    let (source, target) = (context.export("source", 4 * UNIT)?, context.export("target", 4 * UNIT)?);
    let right = context.peers.right();
    Ok(Four {
        source,
        target,
        far_source: context.import(right, "source")?,
        far_target: context.import(right, "target")?,
    })
}

/// Remote copy: from the right neighbour's memory into this node's.
pub(crate) fn get_shapes(context: &mut Context<'_>) -> Verdict {
    let four = four(context)?;
    fill(&four.source, 0, 4 * UNIT, u64::from(context.me()) + 100)?;
    context.sync()?;
    for &(from, to, length) in SHAPES {
        four.far_source.get_block(from, &four.target, to, length)?;
        holds(&four.target, to, from, length, u64::from(context.peers.right()) + 100)?;
        zero(&four.target, to, length)?;
    }
    context.sync()
}

/// User-level DMA: from our memory into the right neighbour's.
pub(crate) fn put_shapes(context: &mut Context<'_>) -> Verdict {
    let four = four(context)?;
    fill(&four.source, 0, 4 * UNIT, u64::from(context.me()) + 100)?;
    for &(from, to, length) in SHAPES {
        context.sync()?;
        // The receiver sees it after the sender has seen its end.
        four.far_target.put_block(to, &four.source, from, length)?;
        context.sync()?;
        holds(&four.target, to, from, length, u64::from(context.peers.left()) + 100)?;
        zero(&four.target, to, length)?;
    }
    context.sync()
}

pub(crate) fn local_shapes(context: &mut Context<'_>) -> Verdict {
    let (source, target) = (context.export("source", 4 * UNIT)?, context.export("target", 4 * UNIT)?);
    fill(&source, 0, 4 * UNIT, 100)?;
    for &(from, to, length) in SHAPES {
        copy(target.remote()?, to, source.remote()?, from, length)?;
        holds(&target, to, from, length, 100)?;
        zero(&target, to, length)?;
    }
    // Within one segment, side by side.
    copy(source.remote()?, 1000, source.remote()?, 0, 1000)?;
    for at in 0..1000 {
        same(format_args!("byte {at} copied behind itself"), source.load::<u8>(1000 + at)?, byte(100, at))?;
    }
    Ok(())
}

/// The longest that there is, or the longest that this user may lock memory for.
pub(crate) fn longest(context: &mut Context<'_>) -> Verdict {
    let name = context.name("long");
    let node = context.node();
    let export = |size| node.export(&name, size).mode(0o606).create();
    let (mine, size) = match export(MAX_COPY) {
        Err(error) if error.errno() == libc::ENOMEM => (export(3 * UNIT * 16)?, 3 * UNIT * 16),
        result => (result?, MAX_COPY),
    };
    let half = size / 2;
    let value = |node: u16, at: u64| random::word(u64::from(node) + 9, at);
    for at in (0..half).step_by(8) {
        mine.store(at, value(context.me(), at))?;
    }
    let own = mine.remote()?;
    let begun = Instant::now();
    copy(own, half, own, 0, half)?;
    let local = begun.elapsed();
    for at in (0..half).step_by(8) {
        same(format_args!("word {at:#x}"), mine.load::<u64>(half + at)?, value(context.me(), at))?;
    }
    let right = context.import(context.peers.right(), "long")?;
    same("the size of the right neighbour's", right.size(), size)?;
    context.sync()?;
    let begun = Instant::now();
    copy(&right, 0, own, half, half)?;
    let (there, kib) = (begun.elapsed(), half >> 10);
    context.note(format!("{kib} KiB took {local:.1?} within the node, {there:.1?} to node {}", right.node()));
    context.sync()?;
    for at in (0..half).step_by(8) {
        let left = context.peers.left();
        same(format_args!("word {at:#x} from node {left}"), mine.load::<u64>(at)?, value(left, at))?;
    }
    context.sync()?;
    // The longest in one piece: what this node has by now from its left neighbour, then its own.
    if size == MAX_COPY {
        let second = context.export("second", size)?;
        let begun = Instant::now();
        copy(&context.import(context.peers.right(), "second")?, 0, own, 0, size)?;
        context.note(format!("{} KiB in one piece: {:.1?}", size >> 10, begun.elapsed()));
        context.sync()?;
        let before = context.peers.ring(2 * context.peers.all.len() - 2);
        for at in (0..half).step_by(8) {
            let found = [second.load::<u64>(at)?, second.load::<u64>(half + at)?];
            let expected = [value(before, at), value(context.peers.left(), at)];
            same(format_args!("words {at:#x} of both halves"), found, expected)?;
        }
    }
    let beyond = copy(&right, 0, own, 0, MAX_COPY + 1);
    refused("one byte more than the longest", beyond, libc::EINVAL)?;
    context.sync()
}

/// By ioctl, past the library's checks: the errno.
fn raw_copy(context: &Context<'_>, to: (&Remote, u64), from: (&Remote, u64), length: u64) -> Result<(), (i32, Status)> {
    let mut launch = uapi::Launch {
        style: LaunchStyle::Plain as u32,
        operation: u32::from(words::COPY),
        target: to.0.handle(),
        source: from.0.handle(),
        target_address: to.1,
        source_address: from.1,
        length,
        ..Default::default()
    };
    ioctl(context.node(), LAUNCH, &mut launch).map_err(|e| (e, Status::from_u16(launch.status as u16)))
}

/// From user level, past the library's checks.
fn launch_copy(launcher: &Launcher, to: (&Remote, u64), from: (&Remote, u64), length: u64) -> Verdict<Status> {
    for (which, (remote, offset)) in [to, from].into_iter().enumerate() {
        Arguments::of(&launcher.node, remote)?.pass(offset & !7, launcher.argument(61, which as u8));
    }
    launcher.set(61, words::LENGTH, length | (to.1 & 7) << 48 | (from.1 & 7) << 52);
    let cookie = random::seed() >> 17 | 1;
    launcher.launch(61, What::Copy, cookie);
    Ok(launcher.wait(61, cookie)?.0)
}

pub(crate) fn refusals(context: &mut Context<'_>) -> Verdict {
    needs_lab(context)?;
    let four = four(context)?;
    let (source, target) = (four.source.remote()?, four.target.remote()?);
    let (far, far_too) = (&four.far_target, &four.far_source);
    let launcher = Launcher::of(context.node())?;
    let size = 4 * UNIT;
    let name = context.name("source");
    let stores = context.node().import(context.me(), &name).rights(Rights(Rights::WRITE.0 | Rights::DMA.0)).open()?;
    let loads = context.node().import(context.me(), &name).rights(Rights(Rights::READ.0 | Rights::DMA.0)).open()?;
    let words = context.node().import(context.me(), &name).rights(telegraphos::READ_WRITE).open()?;
    type End<'a> = (&'a Remote, u64);
    let cases: &[(&str, End<'_>, End<'_>, u64, Status)] = &[
        ("no bytes", (target, 0), (source, 0), 0, Status::Length),
        ("16 MiB and a byte", (target, 0), (source, 0), MAX_COPY + 1, Status::Length),
        ("2^47 bytes", (target, 0), (source, 0), 1 << 47, Status::Length),
        ("beyond the end of the destination", (target, size - 7), (source, 0), 8, Status::Bounds),
        ("beyond the end of the source", (target, 0), (source, size - 7), 8, Status::Bounds),
        ("beyond the end of a remote destination", (far, size - 7), (source, 0), 8, Status::Bounds),
        ("beyond the end of a remote source", (target, 0), (far, size - 7), 8, Status::Bounds),
        ("onto itself", (source, 64), (source, 64), 8, Status::Overlap),
        ("one byte into itself", (source, 71), (source, 64), 8, Status::Overlap),
        ("one byte back into itself", (source, 57), (source, 64), 8, Status::Overlap),
        ("into itself through another import", (&stores, 70), (source, 64), 8, Status::Overlap),
        ("between two remote segments", (far, 0), (far_too, 0), 8, Status::NotLocal),
        ("from what may only be stored to", (target, 0), (&stores, 0), 8, Status::Rights),
        ("to what may only be loaded from", (&loads, 0), (target, 0), 8, Status::Rights),
        ("from what may not be copied", (target, 0), (&words, 0), 8, Status::Rights),
        ("to what may not be copied", (&words, 0), (target, 0), 8, Status::Rights),
    ];
    fill(&four.source, 0, 256, 8)?;
    for (what, to, from, length, status) in cases {
        if *status == Status::NotLocal && context.peers.right() == context.me() {
            continue; // Alone, a node has no remote memory.
        }
        let by_library = copy(to.0, to.1, from.0, from.1, *length);
        must(by_library.is_err(), || format!("the library copies {what}"))?;
        if matches!(*status, Status::Overlap | Status::NotLocal) {
            same(format_args!("the library's error {what}"), by_library.err().and_then(|e| e.status()), Some(*status))?;
        }
        same(format_args!("the board's answer {what}"), launch_copy(&launcher, *to, *from, *length)?, *status)?;
        let by_kernel = raw_copy(context, *to, *from, *length);
        same(format_args!("the kernel's answer {what}"), by_kernel.map_err(|(_, s)| s), Err(*status))?;
    }
    // What does not even fit the registers.
    for length in [1 << 48, 1 << 63, u64::MAX] {
        let found = raw_copy(context, (target, 0), (source, 0), length).map_err(|(_, s)| s);
        same(format_args!("{length:#x} bytes by ioctl"), found, Err(Status::Length))?;
        must(copy(target, 0, source, 0, length).is_err(), || format!("the library copies {length:#x} bytes"))?;
    }
    let missing = raw_copy(context, (target, u64::MAX - 3), (source, 0), 8).map_err(|(_, s)| s);
    same("a destination at the end of all addresses", missing, Err(Status::Bounds))?;
    // Without arguments, or with half of them.
    launcher.set(61, words::LENGTH, 8);
    launcher.launch(61, What::Copy, 1);
    same("a launch without arguments", launcher.wait(61, 1)?.0, Status::Argument)?;
    Arguments::of(context.node(), target)?.pass(0, launcher.argument(61, 0));
    launcher.launch(61, What::Copy, 2);
    same("a launch with one of two arguments", launcher.wait(61, 2)?.0, Status::Argument)?;
    // Nothing of all that has changed anything, or is left behind.
    for at in 0..256 {
        same(format_args!("byte {at} of the source"), four.source.load::<u8>(at)?, byte(8, at))?;
    }
    for remote in [source, target, far, far_too] {
        same(format_args!("the latched error of {:?}", remote.name()), remote.state()?.error, None)?;
    }
    context.node().quiet()?;
    copy(target, 0, source, 0, 64)?;
    context.sync()
}

/// More than there are slots, in both directions, and atomics between them.
pub(crate) fn outstanding(context: &mut Context<'_>) -> Verdict {
    const COUNT: u64 = 150;
    const LENGTH: u64 = 1201;
    let four = four(context)?;
    fill(&four.source, 0, COUNT * LENGTH, u64::from(context.me()))?;
    context.sync()?;
    let mut operations: Vec<Operation<()>> = Vec::new();
    let mut most = 0;
    for n in 0..COUNT {
        if operations.len() == 60 {
            operations.remove(0).wait(Some(context.patience))?;
        }
        operations.push(match n % 2 {
            0 => four.far_source.get_nbi(n * LENGTH, &four.target, n * LENGTH, LENGTH)?,
            _ => four.far_target.put_nbi(n * LENGTH, &four.source, n * LENGTH, LENGTH)?,
        });
        most = most.max(context.node().unfinished());
    }
    context.note(format!("at most {most} at a time"));
    // Any order of waiting will do.
    while let Some(mut last) = operations.pop() {
        last.wait(Some(context.patience))?;
    }
    same("what is under way after all have ended", context.node().unfinished(), 0)?;
    context.sync()?;
    for n in 0..COUNT {
        let from = if n % 2 == 0 { context.peers.right() } else { context.peers.left() };
        for at in n * LENGTH..(n + 1) * LENGTH {
            same(format_args!("byte {at} of copy {n}"), four.target.load::<u8>(at)?, byte(from.into(), at))?;
        }
    }
    context.sync()
}

/// Witness without a clock: a copy has been launched, and its last byte is not there yet.
pub(crate) fn returns_before(context: &mut Context<'_>) -> Verdict {
    const TRIES: u64 = 200;
    let four = four(context)?;
    for at in 0..4 * UNIT / 8 {
        four.source.store(at * 8, at + 1)?;
    }
    context.sync()?;
    let mut early = 0;
    for _ in 0..TRIES {
        four.target.store(4 * UNIT - 8, 0u64)?;
        let mut operation = four.far_source.get_nbi(0, &four.target, 0, 4 * UNIT)?;
        early += u64::from(four.target.load::<u64>(4 * UNIT - 8)? == 0);
        operation.wait(Some(context.patience))?;
        same("the last word once it is done", four.target.load::<u64>(4 * UNIT - 8)?, 4 * UNIT / 8)?;
    }
    context.note(format!("{early} of {TRIES} launches returned before the data had landed"));
    must(early > 0, || format!("each of {TRIES} copies had landed when its launch returned"))?;
    context.sync()
}

/// Threads that sleep until the interrupt, each for its own operation.
pub(crate) fn event_wakes(context: &mut Context<'_>) -> Verdict {
    let four = four(context)?;
    fill(&four.source, 0, 4096, 3)?;
    context.sync()?;
    let patience = context.patience;
    in_threads(6, |thread| {
        (0..20).try_for_each(|round| {
            let mut copy = four.far_target.put_nbi(thread * 8192, &four.source, 0, 1 + thread * 1000)?;
            let mut add = four.far_target.fetch_inc_nbi::<u64>(3 * UNIT + 8 * thread)?;
            copy.wait_event(Some(patience))?;
            same("a count", add.wait_event(Some(patience))?, round)?;
            // Done already: no event is missed that will not come.
            Ok(copy.wait_event(Some(patience))?)
        })
    })?;
    // A program's own poll: armed before the end and after it, the eventfd is signalled.
    let node = context.other_file()?;
    let right = node.import(context.peers.right(), &context.name("target")).open()?;
    let fd = node.completions()?;
    let rings = |limit: Duration| -> Verdict<bool> {
        let ready = is_readable(fd, limit)?;
        if ready {
            rustix::io::read(fd, &mut [0; 8]).map_err(|e| format!("reading the eventfd: {e}"))?;
        }
        Ok(ready)
    };
    same("an event before any operation", rings(LONG)?, false)?;
    for after_end in [false, true] {
        let mut operation = right.fetch_inc_nbi::<u64>(3 * UNIT + 512)?;
        let armed = || Ok(!after_end || operation.is_done());
        until(patience, YIELD, armed, || "an atomic does not end".into())?;
        operation.arm()?;
        same("an event for an armed operation", rings(SOON)?, true)?;
        must(operation.is_done(), || "an event came before the end of the only operation".into())?;
        same("what it found", operation.wait(None)?, u64::from(after_end))?;
    }
    context.sync()
}

pub(crate) fn quiet_covers(context: &mut Context<'_>) -> Verdict {
    const ROUNDS: u64 = 30;
    const LENGTH: u64 = 3 * UNIT;
    let four = four(context)?;
    let node = context.node();
    let imports = [four.far_target.handle(), four.far_source.handle()];
    must(imports[0] != imports[1], || "two imports have one handle".into())?;
    let mut most = 0;
    let deadline = Instant::now() + context.patience;
    for round in 1.. {
        // A guest whose processor is slower than its board finds one copy done: then several, as often as it takes.
        let copies = if round <= ROUNDS { 1 } else { 8 };
        if round > ROUNDS && (most >= 2 || Instant::now() > deadline) {
            break;
        }
        for at in [0, (LENGTH / 2) & !7, LENGTH - 8] {
            four.source.store(at, round << 32 | at)?;
        }
        // No handle is kept: only quiet reports it.
        for _ in 0..copies {
            drop(four.far_target.put_nbi(0, &four.source, 0, LENGTH)?);
        }
        drop(four.far_target.fetch_add_nbi(LENGTH + 64, 1u64)?);
        match node.quiet_timeout(Duration::ZERO) {
            Ok(()) => {}
            Err(Error::Pending { operations, .. }) => {
                must(operations <= copies + 1, || format!("{operations} operations of {} are under way", copies + 1))?;
                most = most.max(operations);
            }
            Err(error) => return Err(error.into()),
        }
        if round % 2 == 0 {
            node.quiet()?
        } else {
            four.far_target.quiet()?
        }
        same("what is under way after quiet", node.unfinished(), 0)?;
        for at in [0, (LENGTH / 2) & !7, LENGTH - 8] {
            let found = four.far_target.get64(at)?;
            same(format_args!("word {at:#x} after quiet {round}"), found, round << 32 | at)?;
        }
        same("the counter after quiet", four.far_target.get64(LENGTH + 64)?, round)?;
        // The other direction: what quiet covers has landed here.
        drop(four.far_target.get_nbi(0, &four.target, LENGTH + 8192, 4096)?);
        node.quiet()?;
    }
    must(most >= 2, || format!("an impatient quiet reported at most {most} operations: expected 2 or more"))?;
    context.sync()
}

/// What is stored behind a fence is not seen before what was stored ahead of it, though they go to different nodes.
pub(crate) fn fence_orders(context: &mut Context<'_>) -> Verdict {
    const ROUNDS: u64 = 100;
    let four = four(context)?;
    let own = four.target.remote()?;
    context.sync()?;
    for round in 1..=ROUNDS {
        // To the right neighbour, by every means, then to our own memory by way of the board.
        four.far_target.put64(8, round)?;
        drop(four.far_target.swap_nbi(16, round)?);
        drop(four.far_target.put_nbi(2 * UNIT, &four.source, 0, UNIT)?);
        context.node().fence()?;
        own.put64(3 * UNIT, round)?;
        let flag = || Ok(four.target.load::<u64>(3 * UNIT)? >= round);
        until(context.patience, YIELD, flag, || "the flag does not come".into())?;
        let pending = context.node().unfinished();
        same(format_args!("what is under way behind flag {round}"), pending, 0)?;
        same("the word ahead of the fence", four.far_target.get64(8)?, round)?;
        same("the word swapped ahead of the fence", four.far_target.get64(16)?, round)?;
    }
    context.sync()
}

/// A copy from, and one to, memory of an exporter that is killed meanwhile ends with an error, and soon.
pub(crate) fn exporter_dies(context: &mut Context<'_>) -> Verdict {
    let size = (16 * UNIT).to_string();
    let start = |part| context.child_saying("exported", &["export", &context.name(part), &size, "606"]);
    let mut exporters = [start("from")?, start("to")?];
    let mine = context.export("mine", 16 * UNIT)?;
    let (from, to) = (context.import(context.peers.right(), "from")?, context.import(context.peers.right(), "to")?);
    // Each copy has separate imports: on a node that is alone, both of its ends are imports of this board that may
    // fail.
    let (into, out_of) = (context.import(context.me(), "mine")?, context.import(context.me(), "mine")?);
    copy(&into, 0, &from, 0, 16 * UNIT)?;
    copy(&to, 0, &out_of, 0, 16 * UNIT)?;
    context.sync()?;
    let begun = Instant::now();
    let patience = context.patience;
    let ends: Vec<Verdict<Error>> = std::thread::scope(|scope| {
        let until_error = |to, from| {
            move || -> Verdict<Error> {
                let deadline = Instant::now() + patience;
                while Instant::now() < deadline {
                    // One at a time: the one that fails is the last that touches the import.
                    if let Err(error) = copy_nbi(to, 0, from, 0, 16 * UNIT)?.wait(Some(Duration::from_secs(30))) {
                        return Ok(error);
                    }
                }
                Err(Stop::Fail("copies continue though the exporter is dead".into()))
            }
        };
        let threads = [scope.spawn(until_error(&into, &from)), scope.spawn(until_error(&to, &out_of))];
        std::thread::sleep(Duration::from_millis(50));
        exporters.iter_mut().for_each(|child| drop(child.kill()));
        threads.into_iter().map(joined).collect()
    });
    exporters.iter_mut().try_for_each(|child| child.must_end(End::KILLED))?;
    for (end, what) in ends.into_iter().zip(["from", "to"]) {
        let error = end?;
        let fatal = matches!(error.status(), Some(Status::Stale | Status::NotGranted));
        must(fatal, || format!("a copy {what} a dead process: {error}: expected Stale or NotGranted"))?;
    }
    context.note(format!("both had ended {:.1?} after the first was launched", begun.elapsed()));
    // This node's memory is unchanged.
    copy(mine.remote()?, 0, mine.remote()?, 8 * UNIT, 8 * UNIT)?;
    context.sync()
}
