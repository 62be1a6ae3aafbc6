// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replicated segments: what a store reaches, and what a load finds (SPEC items 23 to 27, I1 to I7).

use super::context::{Context, SOON, Stop, Verdict, in_threads, must, same};
use std::sync::Arc;
use std::time::Instant;
use telegraphos::sync::TicketLock;
use telegraphos::{FULL, ReplicaMode, Replicated};
use telegraphos_guest_tests::replica::{self, History, PAGE};
use telegraphos_guest_tests::{random, raw};

const SIZES: [usize; 4] = [1, 2, 4, 8];

/// Stores by all nodes to all segments reach all copies; also where they make those invalid, and the next touch fills
/// them.
pub(crate) fn reaches_all(context: &mut Context<'_>, mode: ReplicaMode) -> Verdict {
    const COUNT: u64 = 64;
    let (nodes, me) = context.place();
    let boards = context.boards_in(mode, "page", 4096 * nodes as u64)?;
    // Each node has a part of each segment, in which each size has one.
    let at = |writer: usize, size: usize, n: u64| (4096 * writer + 128 * size) as u64 + size as u64 * n;
    let word = |home: usize, writer: usize, size: usize, n: u64| {
        let seed = (home * nodes + writer) as u64;
        raw::masked(random::word(seed, n << 4 | size as u64), size)
    };
    for (home, board) in boards.iter().enumerate() {
        for size in SIZES {
            for n in 0..COUNT {
                replica::store(board, at(me, size, n), size, word(home, me, size, n))?;
            }
        }
        board.quiet_timeout(SOON)?;
    }
    context.sync()?;
    for (home, board) in boards.iter().enumerate() {
        for (writer, size, n) in all_of(nodes, COUNT) {
            let found = replica::load(board, at(writer, size, n), size)?;
            let expected = word(home, writer, size, n);
            must(found == expected, || {
                format!(
                    "word {n} of {size} bytes that place {writer} stored to home {home} is {found:#x}: expected {expected:#x}"
                )
            })?;
        }
        // Between the parts no store was made.
        same("a word between the parts", board.load::<u64>(4096 * me as u64)?, 0)?;
    }
    context.sync()
}

fn all_of(nodes: usize, count: u64) -> impl Iterator<Item = (usize, usize, u64)> {
    (0..nodes)
        .flat_map(move |writer| SIZES.into_iter().flat_map(move |size| (0..count).map(move |n| (writer, size, n))))
}

/// Segments of several pages, the last one not whole.
pub(crate) fn pages(context: &mut Context<'_>) -> Verdict {
    const SIZE: u64 = 4 * PAGE + 4096 + 24;
    let (nodes, me) = context.place();
    let boards = context.boards("pages", SIZE)?;
    // Words at the beginning and at the end of each page, and of the segment.
    let places = |writer: usize| {
        let far = 8 * writer as u64;
        (0..5).flat_map(move |page| [page * PAGE + far, ((page + 1) * PAGE).min(SIZE) - 8 - far])
    };
    for board in &boards {
        for at in places(me) {
            board.store(at, replica::value(me as u64, at + 1))?;
        }
        board.quiet_timeout(SOON)?;
    }
    context.sync()?;
    for (home, board) in boards.iter().enumerate() {
        for writer in 0..nodes {
            for at in places(writer) {
                let expected = replica::value(writer as u64, at + 1);
                same(format_args!("the word at {at:#x} of home {home}"), board.load::<u64>(at)?, expected)?;
            }
        }
    }
    context.sync()
}

/// Read your writes: by `load`, by `load_trapped`, by `settle` and a raw read; and by a raw read alone not (SPEC E22b).
pub(crate) fn own_store(context: &mut Context<'_>) -> Verdict {
    const ROUNDS: u64 = 200;
    let (nodes, me) = context.place();
    let boards = context.boards("page", 8 * nodes as u64)?;
    let at = 8 * me as u64;
    let mut missed = 0;
    for (home, board) in boards.iter().enumerate() {
        // SAFETY: a word of the copy, aligned.
        let raw = || unsafe { raw::load::<u64>(board.as_ptr().cast_mut(), at) };
        for n in 1..=ROUNDS {
            board.store(at, 4 * n)?;
            missed += u64::from(raw() != 4 * n);
            same(format_args!("a load after the own store to home {home}"), board.load::<u64>(at)?, 4 * n)?;
            board.store(at, 4 * n + 1)?;
            let trapped = board.load_trapped(at)?;
            same(format_args!("a trapped load after the own store to home {home}"), trapped, 4 * n + 1)?;
            board.announce(1);
            // SAFETY: a word of the window, aligned.
            unsafe { raw::store::<u64>(board.window_ptr(), at, 4 * n + 2) };
            board.settle(Some(SOON))?;
            same(format_args!("a raw load of a settled copy of home {home}"), raw(), 4 * n + 2)?;
        }
    }
    context.note(format!("{missed} of {} raw reads missed the own store", ROUNDS * nodes as u64));
    must(missed > 0, || "no raw read has missed its own store: then nothing need be counted".into())?;
    context.sync()
}

/// One pointer for loads and stores, both trapped (SPEC E22b).
pub(crate) fn one_pointer(context: &mut Context<'_>) -> Verdict {
    const ROUNDS: u64 = 300;
    let (nodes, me) = context.place();
    let boards = context.boards("page", 8 * nodes as u64)?;
    for (home, board) in boards.iter().enumerate() {
        let word = board.trapped_ptr();
        for n in 1..=ROUNDS {
            // SAFETY: a word of the window, aligned.
            let found = unsafe {
                raw::store::<u64>(word, 8 * me as u64, 2 * n);
                raw::load::<u64>(word, 8 * me as u64)
            };
            same(format_args!("what the pointer gives after its own store to home {home}"), found, 2 * n)?;
            // Beside it the ordinary forms are right, too.
            // SAFETY: as above.
            unsafe { raw::store::<u64>(word, 8 * me as u64, 2 * n + 1) };
            same("a load after the pointer's store", board.load::<u64>(8 * me as u64)?, 2 * n + 1)?;
        }
        board.quiet_timeout(SOON)?;
    }
    context.sync()?;
    for board in &boards {
        for writer in 0..nodes as u64 {
            same("the last word by the pointer", board.load::<u64>(8 * writer)?, 2 * ROUNDS + 1)?;
        }
    }
    context.sync()
}

/// A lock in a replicated segment, whose data lies in the same one.
pub(crate) fn locks(context: &mut Context<'_>) -> Verdict {
    const ROUNDS: u64 = 30;
    let nodes = context.place().0 as u64;
    let boards = context.boards("page", 4096)?;
    for board in &boards {
        let lock = TicketLock::new(board.as_ref(), 0)?;
        for _ in 0..ROUNDS {
            let guard = lock.lock_timeout(SOON)?;
            let (one, two) = (board.load::<u64>(64)?, board.load::<u64>(1024)?);
            same("under the lock, the twin of a word", two, one)?;
            board.store(64, one + 1)?;
            board.store(1024, one + 1)?;
            guard.unlock()?;
        }
    }
    context.sync()?;
    for board in &boards {
        same("increments under the lock", board.load::<u64>(64)?, ROUNDS * nodes)?;
    }
    context.sync()
}

/// A segment that is imported first, and copied once it is read much (SPEC item 22).
pub(crate) fn copied_when_used(context: &mut Context<'_>) -> Verdict {
    const READS: u64 = 50;
    let home = context.replicated("page", PAGE, |builder| builder)?;
    home.store(8, 5u64)?;
    context.sync_behind(&home)?;
    let right = context.peers.right();
    let far = Replicated::join(context.node(), right, &context.name("page")).mode(0o606).when_used(READS, 0)?;
    far.store(16, 6u64)?;
    let (mut loads, deadline) = (0, Instant::now() + SOON);
    while far.copy().is_none() {
        same("a word that is imported", far.load::<u64>(8)?, 5)?;
        same("an own store", far.load::<u64>(16)?, 6)?;
        loads += 2;
        // From the counter to the copy an interrupt passes.
        must(Instant::now() < deadline, || format!("no copy after {loads} loads: expected one after {READS}"))?;
    }
    must(loads >= READS, || format!("a copy after {loads} loads: expected one after {READS}"))?;
    same("a word of the copy", far.load::<u64>(8)?, 5)?;
    same("an own store, in the copy", far.load::<u64>(16)?, 6)?;
    far.store(24, 7u64)?;
    far.quiet()?;
    context.sync()?;
    home.store(32, 8u64)?;
    home.quiet_timeout(SOON)?;
    same("the store before there was a copy", home.load::<u64>(16)?, 6)?;
    same("the store into the copy", home.load::<u64>(24)?, 7)?;
    context.sync()?;
    same("a store of the home", far.load::<u64>(32)?, 8)?;
    context.sync()
}

/// All nodes store to the same words: a load after an own store gives that, or another node's, never an older own one;
/// and no value comes back.
pub(crate) fn nothing_comes_back(context: &mut Context<'_>, mode: ReplicaMode) -> Verdict {
    const WORDS: u64 = 4;
    let (nodes, me) = context.place();
    let boards = context.boards_in(mode, "page", 8 * WORDS)?;
    let mut histories = vec![vec![History::new(nodes as u64); WORDS as usize]; nodes];
    let (mut number, mut others) = (0u64, 0u64);
    let seed = random::seed();
    let end = Instant::now() + context.seconds;
    while Instant::now() < end {
        for (board, histories) in boards.iter().zip(&mut histories) {
            number += 1;
            let word = random::word(seed, number) % WORDS;
            board.store(8 * word, replica::value(me as u64, number))?;
            let found = board.load::<u64>(8 * word)?;
            let by = replica::parse(found);
            must(by.is_some_and(|by| by.0 != me as u64 || by.1 == number), || {
                format!("after the own store {number} a load gives {found:#x}")
            })?;
            others += u64::from(by.is_some_and(|by| by.0 != me as u64));
            for (word, history) in histories.iter_mut().enumerate() {
                history.look(board.load(8 * word as u64)?)?;
            }
        }
    }
    let (mut changes, mut again, mut older) = (0, 0, 0);
    for history in histories.iter().flatten() {
        (changes, again, older) = (changes + history.changes, again + history.again, older + history.older);
    }
    context.note(format!("{number} stores, {others} loads found another's store first, {changes} changes seen"));
    same("values that came back", again, 0)?;
    same("values older than others of their writer", older, 0)?;
    equal_copies(context, &boards)
}

/// When all is quiet, all copies are equal (SPEC I2).
pub(crate) fn equal_copies(context: &mut Context<'_>, boards: &[Arc<Replicated>]) -> Verdict {
    for board in boards {
        board.quiet_timeout(SOON)?;
    }
    context.sync()?;
    // Several segments a round: as many as there is mail for.
    let slots = telegraphos_guest_tests::peers::MAIL as usize - 1;
    for (round, boards) in boards.chunks(slots).enumerate() {
        let sums = boards.iter().map(|board| replica::digest(board)).collect::<Result<Vec<_>, _>>()?;
        for (slot, sum) in sums.iter().enumerate() {
            context.mail_all(slot as u64 + 1, *sum)?;
        }
        context.sync()?;
        for id in &context.peers.all {
            for (slot, sum) in sums.iter().enumerate() {
                let other = context.mail_of(*id, slot as u64 + 1)?;
                let home = round * slots + slot;
                must(other == *sum, || format!("the copies of home {home} here and at node {id} differ"))?;
            }
        }
        context.sync()?;
    }
    Ok(())
}

/// Stores of all sizes to the same words (SPEC E18).
pub(crate) fn mixed_sizes(context: &mut Context<'_>) -> Verdict {
    const BYTES: u64 = 64;
    let boards = context.boards("page", BYTES)?;
    let seed = random::seed();
    let end = Instant::now() + context.seconds / 2;
    let mut count = 0;
    while Instant::now() < end {
        for board in &boards {
            count += 1;
            let dice = random::word(seed, count);
            let size = SIZES[(dice % 4) as usize];
            let at = (dice >> 8) % BYTES / size as u64 * size as u64;
            replica::store(board, at, size, dice >> 5)?;
        }
    }
    context.note(format!("{count} stores"));
    equal_copies(context, &boards)?;
    // No counter is left: every node's stores come to all copies.
    all_take_stores(context, &boards)
}

/// Every node in turn stores to every byte, and all copies take that.
pub(crate) fn all_take_stores(context: &mut Context<'_>, boards: &[Arc<Replicated>]) -> Verdict {
    let (nodes, me) = context.place();
    for turn in 0..nodes {
        for board in boards {
            if turn == me {
                (0..board.size()).try_for_each(|at| board.store(at, (turn as u64 + 3 * at) as u8))?;
                board.quiet_timeout(SOON)?;
            }
        }
        context.sync()?;
        for (home, board) in boards.iter().enumerate() {
            let expected = |at: u64| (turn as u64 + 3 * at) as u8;
            let missing = (0..board.size()).filter_map(|at| match board.load::<u8>(at) {
                Ok(found) if found == expected(at) => None,
                found => Some((at, found.ok())),
            });
            let missing: Vec<_> = missing.collect();
            if let Some((at, found)) = missing.first() {
                return Err(Stop::Fail(format!(
                    "byte {at} of segment {home} is {found:?} after place {turn} stored {}, and so are {} of {} bytes: they still wait \
                     for own stores, or the copy gets no others; home {:?}",
                    expected(*at),
                    missing.len(),
                    board.size(),
                    board.home()
                )));
            }
        }
        context.sync()?;
    }
    Ok(())
}

/// Atomics from all nodes on the same words (SPEC E20).
pub(crate) fn atomics(context: &mut Context<'_>, mode: ReplicaMode) -> Verdict {
    const DRAWS: u64 = 40;
    /// Where the marks begin.
    const MARKS: u64 = 64;
    let (nodes, me) = context.place();
    let all = nodes as u64 * DRAWS;
    let boards = context.boards_in(mode, "page", MARKS + 2 * all)?;
    for board in &boards {
        for _ in 0..DRAWS {
            let wide: u64 = board.fetch_inc(0)?;
            let narrow: u32 = board.fetch_add(8, 1u32)?;
            must(wide < all && u64::from(narrow) < all, || format!("{wide} and {narrow} were drawn of {all}"))?;
            // When it returns, every copy has it.
            let (now, now_narrow) = (board.load::<u64>(0)?, board.load::<u32>(8)?);
            must(now > wide && now_narrow > narrow, || {
                format!("the copy holds {now} and {now_narrow} after {wide} and {narrow} were drawn")
            })?;
            board.store(MARKS + wide, me as u8 + 1)?;
            board.store(MARKS + all + u64::from(narrow), me as u8 + 1)?;
            // An increment by compare-and-swap.
            let mut expected = board.load::<u64>(16)?;
            loop {
                match board.compare_swap(16, expected, expected + 1)? {
                    found if found == expected => break,
                    found => expected = found,
                }
            }
            // Of what is swapped in, all but one comes out: the sum of the differences is what stays.
            let value = replica::value(me as u64, wide + 1);
            let before: u64 = board.swap(24, value)?;
            board.fetch_add(32, value.wrapping_sub(before))?;
        }
        board.quiet_timeout(SOON)?;
    }
    context.sync()?;
    for (home, board) in boards.iter().enumerate() {
        let what = |what: &str| format!("{what} of home {home}");
        same(what("the wide counter"), board.load::<u64>(0)?, all)?;
        same(what("the narrow counter"), u64::from(board.load::<u32>(8)?), all)?;
        same(what("what lies beside it"), board.load::<u32>(12)?, 0)?;
        same(what("the counter by compare-and-swap"), board.load::<u64>(16)?, all)?;
        same(what("the sum of the swaps' differences"), board.load::<u64>(32)?, board.load::<u64>(24)?)?;
        for start in [MARKS, MARKS + all] {
            let mut drawn = vec![0; nodes];
            for ticket in 0..all {
                let mark = usize::from(board.load::<u8>(start + ticket)?);
                let of = mark.checked_sub(1).and_then(|place| drawn.get_mut(place));
                *of.ok_or_else(|| {
                    format!("number {ticket} of home {home} bears mark {mark}: no node has drawn it")
                })? += 1;
            }
            same(what("the numbers drawn by each node"), drawn, vec![DRAWS; nodes])?;
        }
    }
    context.sync()
}

/// Message passing by two segments of different homes, with quiet between data and flag (SPEC E19, I6, I7); and within
/// one page, without.
pub(crate) fn message_passing(context: &mut Context<'_>, mode: ReplicaMode) -> Verdict {
    const DATA: u64 = 0;
    const FLAG: u64 = 32 << 10;
    let (nodes, me) = context.place();
    let boards = context.boards_in(mode, "page", PAGE)?;
    // Whose segment has whose data, and whose flag.
    let data_of = |writer: usize| (writer + 1) % nodes;
    let flag_of = |writer: usize| (writer + 2) % nodes;
    let end = Instant::now() + context.seconds;
    let mut number = 0u64;
    let mut news = 0;
    let mut seen = vec![0u64; nodes];
    while Instant::now() < end {
        number += 1;
        let at = 8 * me as u64;
        let (data, flag) = (&boards[data_of(me)], &boards[flag_of(me)]);
        data.store(DATA + at, number)?;
        data.quiet_timeout(SOON)?;
        flag.store(FLAG + at, number)?;
        // The same within one page: in order by itself.
        boards[me].store(16 << 10 | at, number)?;
        boards[me].store(48 << 10 | at, number)?;
        for (writer, seen) in seen.iter_mut().enumerate().filter(|(writer, _)| *writer != me) {
            let at = 8 * writer as u64;
            let flag: u64 = boards[flag_of(writer)].load(FLAG + at)?;
            let data: u64 = boards[data_of(writer)].load(DATA + at)?;
            must(data >= flag, || format!("flag {flag} of place {writer} is there, and data {data}"))?;
            news += u64::from(flag > *seen);
            *seen = flag;
            let flag: u64 = boards[writer].load(48 << 10 | at)?;
            let data: u64 = boards[writer].load(16 << 10 | at)?;
            must(data >= flag, || format!("in one page, flag {flag} of place {writer} is there, and data {data}"))?;
        }
    }
    context.note(format!("{number} messages sent, {news} times a new flag was seen"));
    must(news > 0, || "no flag was ever seen: nothing was shown".into())?;
    context.sync()
}

/// An ordinary import of the home's segment: its stores and atomics are multicast as a member's, and it needs no copy.
pub(crate) fn plain_import(context: &mut Context<'_>) -> Verdict {
    let (nodes, me) = context.place();
    let boards = context.boards("page", PAGE)?;
    let right = context.peers.right();
    let import = context.node().import(right, &context.name("page")).rights(telegraphos::READ_WRITE).open()?;
    let home = (me + 1) % nodes;
    for n in 0..100 {
        import.put64(8 * n, random::word(home as u64, n))?;
    }
    import.quiet_timeout(SOON)?;
    same("a word through the import", import.get64(80)?, random::word(home as u64, 10))?;
    context.sync()?;
    for (home, board) in boards.iter().enumerate() {
        for n in 0..100 {
            same(format_args!("word {n} of home {home}"), board.load::<u64>(8 * n)?, random::word(home as u64, n))?;
        }
    }
    context.sync()?;
    // Blocks would need an order of their own.
    let wide = context.node().import(right, &context.name("page")).rights(FULL).open();
    must(wide.is_err(), || "a replicated segment offers copies of blocks".into())
}

/// Threads of one process, each of which must find its own stores.
pub(crate) fn threads(context: &mut Context<'_>) -> Verdict {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 200;
    let (nodes, me) = context.place();
    let boards = context.boards("page", 8 * THREADS * nodes as u64)?;
    in_threads(THREADS, |thread| {
        let at = 8 * (THREADS * me as u64 + thread);
        for n in 1..=ROUNDS {
            for (home, board) in boards.iter().enumerate() {
                board.store(at, n)?;
                let found = board.load::<u64>(at)?;
                same(format_args!("the own store of thread {thread} to home {home}"), found, n)?;
            }
        }
        Ok(())
    })?;
    equal_copies(context, &boards)
}
