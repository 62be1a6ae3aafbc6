// SPDX-License-Identifier: MIT OR Apache-2.0
//! Remote writes and reads: every value arrives, and only where it belongs.

use super::context::{Context, Verdict, in_threads, must, same};
use std::time::{Duration, Instant};
use telegraphos::Segment;
use telegraphos_guest_tests::{random, raw};

const SIZES: [usize; 4] = [1, 2, 4, 8];
const PAGE: u64 = 4096;

/// The receiver's own memory, byte by byte.
fn bytes(segment: &Segment) -> Verdict<Vec<u8>> {
    (0..segment.size()).map(|at| Ok(segment.load::<u8>(at)?)).collect()
}

/// Fails at the first byte that differs.
fn compare(context: &Context<'_>, segment: &Segment, expected: &[u8]) -> Verdict {
    for (at, (found, expected)) in bytes(segment)?.iter().zip(expected).enumerate() {
        must(found == expected, || {
            format!("byte {at:#x} of node {} is {found:#04x}: expected {expected:#04x}", context.me())
        })?;
    }
    Ok(())
}

pub(crate) fn write_all_sizes(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = context.neighbour(2 * PAGE)?;
    let (own_seed, peer_seed) = context.seeds()?;
    for size in SIZES {
        let step = size as u64;
        for offset in (0..right.size()).step_by(size) {
            let value = random::word(own_seed ^ step, offset);
            // SAFETY: aligned and within the segment, which is as large as this node's.
            unsafe { raw::store_size(right.as_ptr(), offset, size, value) };
        }
        context.sync_behind(&right)?;
        for offset in (0..mine.size()).step_by(size) {
            let expected = raw::masked(random::word(peer_seed ^ step, offset), size);
            same(
                format_args!("{size} bytes at {offset:#x} of node {}", context.me()),
                raw::own(&mine, offset, size)?,
                expected,
            )?;
        }
        context.sync()?;
    }
    Ok(())
}

pub(crate) fn write_last_words(context: &mut Context<'_>) -> Verdict {
    // Several units, and an end that is aligned to 8 bytes and to nothing more.
    let size = 3 * 65536 + 5 * PAGE + 1000;
    let (mine, right) = context.neighbour(size)?;
    same("the imported size", right.size(), size)?;
    let (own_seed, peer_seed) = context.seeds()?;
    let ends: Vec<u64> = (1..=size / PAGE).map(|page| page * PAGE).chain([size]).collect();
    for width in SIZES {
        let mut expected = vec![0; size as usize];
        for end in &ends {
            // SAFETY: the word ends at the end of a page of the segment, or of the segment.
            unsafe {
                raw::store_size(right.as_ptr(), end - width as u64, width, random::word(own_seed ^ width as u64, *end))
            };
            let value = random::word(peer_seed ^ width as u64, *end).to_le_bytes();
            expected[*end as usize - width..*end as usize].copy_from_slice(&value[..width]);
        }
        context.sync_behind(&right)?;
        compare(context, &mine, &expected)?;
        (0..size).step_by(8).try_for_each(|at| mine.store(at, 0u64))?;
        context.sync()?;
    }
    Ok(())
}

pub(crate) fn write_many(context: &mut Context<'_>) -> Verdict {
    const COUNT: u64 = 100_000;
    let (mine, right) = context.neighbour(COUNT * 8)?;
    let (own_seed, peer_seed) = context.seeds()?;
    let begun = Instant::now();
    for index in 0..COUNT {
        // SAFETY: aligned and within the segment, which is as large as this node's.
        unsafe { raw::store::<u64>(right.as_ptr(), index * 8, random::word(own_seed, index)) };
    }
    let issued = begun.elapsed();
    right.quiet()?;
    context.note(format!("{COUNT} stores issued in {issued:.1?}, arrived after {:.1?}", begun.elapsed()));
    context.sync()?;
    for index in 0..COUNT {
        same(
            format_args!("word {:#x} of node {}", index * 8, context.me()),
            mine.load::<u64>(index * 8)?,
            random::word(peer_seed, index),
        )?;
    }
    context.sync()
}

/// Witness without a clock: this node stores to its own memory by way of the board, then looks there directly. If the
/// old value is still there, the store has returned before the destination saw it.
pub(crate) fn write_is_posted(context: &mut Context<'_>) -> Verdict {
    const TRIES: u64 = 100_000;
    let mine = context.export("data", PAGE)?;
    let own = context.import(context.me(), "data")?;
    let witness =
        (1..=TRIES).find(|value| own.put64(0, *value).is_ok() && mine.load::<u64>(0).is_ok_and(|v| v < *value));
    own.quiet()?;
    let none = || format!("each of {TRIES} stores was there when it returned: they are not posted");
    let last = witness.ok_or_else(none)?;
    same("the word after quiet", mine.load::<u64>(0)?, last)
}

#[cfg(target_arch = "x86_64")]
pub(crate) fn write_misaligned(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = context.neighbour(2 * PAGE)?;
    let (own_seed, peer_seed) = context.seeds()?;
    // Every misalignment, one of them across two pages; the value is right at last, though not at once.
    let places: Vec<u64> = (1..8).map(|odd| 64 * odd + odd).chain([PAGE - 3]).collect();
    let mut expected = vec![0; mine.size() as usize];
    for at in places {
        // SAFETY: eight bytes within the segment.
        unsafe { raw::store_misaligned(right.as_ptr(), at, random::word(own_seed, at)) };
        expected[at as usize..at as usize + 8].copy_from_slice(&random::word(peer_seed, at).to_le_bytes());
    }
    context.sync_behind(&right)?;
    compare(context, &mine, &expected)?;
    must(right.put64(4, 0).is_err(), || "the library took a misaligned store: expected an error".into())?;
    context.sync()
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn write_misaligned(context: &mut Context<'_>) -> Verdict {
    let (_mine, right) = context.neighbour(PAGE)?;
    must(right.put64(4, 0).is_err(), || "the library took a misaligned store: expected an error".into())?;
    context.sync()
}

pub(crate) fn read_all_sizes(context: &mut Context<'_>) -> Verdict {
    const AREA: u64 = 256;
    let size = 65536 + PAGE + 200;
    let (mine, right) = context.neighbour(size)?;
    // Here the owner writes its own memory, and the left neighbour reads: the seed travels the other way.
    let seed = random::seed();
    context.mail(context.peers.left(), 1, seed)?;
    (0..size / 8).try_for_each(|index| mine.store(index * 8, random::word(seed, index)))?;
    context.sync()?;
    let peer_seed = context.mail_of(context.peers.right(), 1)?;
    for width in SIZES {
        let inner = (0..AREA).step_by(width);
        let ends = [PAGE, 65536, 65536 + PAGE, size].map(|end| end - width as u64);
        for offset in inner.chain(ends) {
            // SAFETY: aligned and within the segment.
            let found = unsafe { raw::load_size(right.as_ptr(), offset, width) };
            let expected = raw::masked(random::word(peer_seed, offset / 8) >> (8 * (offset % 8)), width);
            same(format_args!("{width} bytes at {offset:#x} of node {}", right.node()), found, expected)?;
        }
    }
    context.sync()
}

pub(crate) fn read_own_writes(context: &mut Context<'_>) -> Verdict {
    let (_mine, right) = context.neighbour(PAGE)?;
    let seed = random::seed();
    for round in 0..200 {
        let value = random::word(seed, round);
        let offset = value % (PAGE / 8) * 8;
        right.put64(offset, value)?;
        same(format_args!("the word stored just before, round {round}"), right.get64(offset)?, value)?;
    }
    context.sync()
}

pub(crate) fn read_threads(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = context.neighbour(PAGE)?;
    (0..PAGE / 8).try_for_each(|index| mine.store(index * 8, random::word(7, index)))?;
    context.sync()?;
    in_threads(4, |thread| {
        (0..50).try_for_each(|round| {
            let index = (thread * 131 + round * 7) % (PAGE / 8);
            let got = right.get64(index * 8)?;
            same(format_args!("word {index} in thread {thread}"), got, random::word(7, index))
        })
    })?;
    context.sync()
}

pub(crate) fn self_addressed(context: &mut Context<'_>) -> Verdict {
    let mine = context.export("data", PAGE)?;
    let own = context.import(context.me(), "data")?;
    let seed = random::seed();
    for width in SIZES {
        for offset in (0..64).step_by(width) {
            let value = raw::masked(random::word(seed ^ width as u64, offset), width);
            // SAFETY: aligned and within the segment.
            let found = unsafe {
                raw::store_size(own.as_ptr(), offset, width, value);
                raw::load_size(own.as_ptr(), offset, width)
            };
            same(format_args!("{width} bytes at {offset:#x} loaded back"), found, value)?;
            same(format_args!("{width} bytes at {offset:#x} in memory"), raw::own(&mine, offset, width)?, value)?;
        }
    }
    Ok(())
}

pub(crate) fn all_pairs(context: &mut Context<'_>) -> Verdict {
    const COUNT: u64 = 3000;
    let peers = context.peers;
    let mine = context.export("data", peers.all.len() as u64 * COUNT * 8)?;
    let remotes = peers.all.iter().map(|id| context.import(*id, "data")).collect::<Verdict<Vec<_>>>()?;
    context.sync()?;
    let (me, place, area) = (u64::from(context.me()), context.place().1 as u64, COUNT * 8);
    let value = |from: u64, to: u64, index: u64| random::word(from << 32 | to, index);
    for index in 0..COUNT {
        for remote in &remotes {
            remote.put64(place * area + index * 8, value(me, remote.node().into(), index))?;
        }
    }
    context.node().quiet()?;
    context.sync()?;
    for (place, from) in peers.all.iter().enumerate() {
        for index in 0..COUNT {
            let from = u64::from(*from);
            let found: u64 = mine.load(place as u64 * area + index * 8)?;
            same(format_args!("word {index} from node {from} in node {me}"), found, value(from, me, index))?;
        }
    }
    context.sync()
}

/// Loads that wait for each other's nodes: each HIB must continue to serve while its own guest waits.
pub(crate) fn cross_loads(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = context.neighbour(PAGE)?;
    mine.store(0, 0x600d_u64 + u64::from(context.me()))?;
    let expected = 0x600d + u64::from(context.peers.right());
    context.sync()?;
    let begun = Instant::now();
    let (mut loads, mut longest) = (0u64, Duration::ZERO);
    while begun.elapsed() < context.seconds {
        let before = Instant::now();
        same(format_args!("load {loads} from node {}", right.node()), right.get64(0)?, expected)?;
        longest = longest.max(before.elapsed());
        loads += 1;
    }
    context.note(format!("{loads} loads in {:.1?}, the longest took {longest:.1?}", begun.elapsed()));
    same("the latched error", right.state()?.error, None)?;
    context.sync()
}
