// SPDX-License-Identifier: MIT OR Apache-2.0
//! Order of stores, and quiet.

use super::context::{Context, Verdict, YIELD, becomes, both, in_threads, must, same};
use std::time::{Duration, Instant};
use telegraphos::{Error, Node, Remote, Segment};
use telegraphos_guest_tests::random;

/// Waits until a word of this node's segment has reached a value.
fn wait_for(segment: &Segment, offset: u64, value: u64, patience: Duration) -> Verdict<u64> {
    becomes(
        patience,
        YIELD,
        || Ok(segment.load(offset)?),
        |found| *found >= value,
        |found| format!("word {offset:#x} of {:?} stays {found}: waited {patience:?} for {value}", segment.name()),
    )
}

pub(crate) fn sequence(context: &mut Context<'_>) -> Verdict {
    const LAST: u64 = 20_000;
    let (mine, right) = context.neighbour(4096)?;
    context.sync()?;
    let patience = context.patience;
    let mut changes = 0;
    both(
        || (1..=LAST).try_for_each(|value| Ok(right.put64(8, value)?)),
        || {
            let (mut seen, deadline) = (0, Instant::now() + patience);
            while seen < LAST {
                let found: u64 = mine.load(8)?;
                must(found >= seen, || format!("the word went back from {seen} to {found}: expected program order"))?;
                changes += u64::from(found != seen);
                seen = found;
                must(Instant::now() < deadline, || format!("the word stays {seen}: expected {LAST}"))?;
                std::thread::yield_now();
            }
            Ok(())
        },
    )?;
    context.note(format!("{changes} different values seen of {LAST}"));
    context.sync()
}

pub(crate) fn data_before_flag(context: &mut Context<'_>) -> Verdict {
    const ROUNDS: u64 = 300;
    const WORDS: u64 = 16;
    const FLAG: u64 = 0x800;
    const ANSWER: u64 = 0xc00;
    let (mine, right) = context.neighbour(4096)?;
    let left = context.import(context.peers.left(), "data")?;
    let (own_seed, peer_seed) = context.seeds()?;
    let patience = context.patience;
    let value = |seed: u64, round: u64, word: u64| random::word(seed, round * WORDS + word);
    both(
        || {
            for round in 1..=ROUNDS {
                for word in 0..WORDS {
                    right.put64(word * 8, value(own_seed, round, word))?;
                }
                right.put64(FLAG, round)?;
                wait_for(&mine, ANSWER, round, patience)?;
            }
            Ok(())
        },
        || {
            for round in 1..=ROUNDS {
                wait_for(&mine, FLAG, round, patience)?;
                for word in 0..WORDS {
                    let found: u64 = mine.load(word * 8)?;
                    same(format_args!("word {word} after flag {round}"), found, value(peer_seed, round, word))?;
                }
                left.put64(ANSWER, round)?;
            }
            Ok(())
        },
    )?;
    context.sync()
}

/// The store number n goes to the word n mod many. A reader that sees n there must see n - 1, or a later lap, in the
/// word before.
pub(crate) fn across_words(context: &mut Context<'_>) -> Verdict {
    const WORDS: u64 = 3 * 8192;
    const LAST: u64 = 3 * WORDS;
    let (mine, right) = context.neighbour(WORDS * 8)?;
    context.sync()?;
    let patience = context.patience;
    both(
        || (1..=LAST).try_for_each(|n| Ok(right.put64(n % WORDS * 8, n)?)),
        || {
            let deadline = Instant::now() + patience;
            let mut at = 1;
            while at < LAST {
                let n: u64 = mine.load(at % WORDS * 8)?;
                if n == 0 || n < at {
                    must(Instant::now() < deadline, || format!("word {} stays {n}: expected {at}", at % WORDS))?;
                    std::thread::yield_now();
                    continue;
                }
                let before: u64 = mine.load((n - 1) % WORDS * 8)?;
                must(before + 1 >= n, || format!("store {n} is there, but the word before holds {before}"))?;
                at = n + 97;
            }
            Ok(())
        },
    )?;
    context.sync_behind(&right)?;
    for n in LAST - WORDS + 1..=LAST {
        same(format_args!("word {}", n % WORDS), mine.load::<u64>(n % WORDS * 8)?, n)?;
    }
    context.sync()
}

/// Node a stores data into its right neighbour b, waits for quiet, then raises a flag at c, the next but one. Nothing
/// but quiet orders the two. When c sees the flag, it loads the data from b and must find it (SPEC E19, I7).
pub(crate) fn third_node(context: &mut Context<'_>, quiet: fn(&Node, &Remote) -> Result<(), Error>) -> Verdict {
    const ROUNDS: u64 = 100;
    const DATA: u64 = 0x000;
    const FLAG: u64 = 0x100;
    const ANSWER: u64 = 0x200;
    let peers = context.peers;
    let count = peers.all.len();
    let mine = context.export("data", 4096)?;
    let b = context.import(peers.ring(1), "data")?;
    let c = context.import(peers.ring(2), "data")?;
    // As c: whose flag it sees, and the b between.
    let a_of_mine = context.import(peers.ring(2 * count - 2), "data")?;
    let b_of_mine = context.import(peers.ring(count - 1), "data")?;
    context.sync()?;
    let patience = context.patience;
    let watcher = || -> Verdict {
        for round in 1..=ROUNDS {
            wait_for(&mine, FLAG, round, patience)?;
            let found = b_of_mine.get64(DATA)?;
            must(found >= round, || format!("flag {round} was up, but node {} still held {found}", b_of_mine.node()))?;
            a_of_mine.put64(ANSWER, round)?;
        }
        Ok(())
    };
    let node = context.node();
    let storer = || -> Verdict {
        for round in 1..=ROUNDS {
            b.put64(DATA, round)?;
            quiet(node, &b)?;
            c.put64(FLAG, round)?;
            wait_for(&mine, ANSWER, round, patience)?;
        }
        Ok(())
    };
    both(watcher, storer)?;
    context.sync()
}

pub(crate) fn quiet_threads(context: &mut Context<'_>) -> Verdict {
    // More threads than the 64 slots of a context.
    const THREADS: u64 = 80;
    let (mine, right) = context.neighbour(4096)?;
    context.sync()?;
    in_threads(THREADS, |thread| {
        (1..=5).try_for_each(|round| {
            right.put64(thread * 8, round)?;
            Ok(right.quiet()?)
        })
    })?;
    context.sync()?;
    for thread in 0..THREADS {
        same(format_args!("the word of thread {thread}"), mine.load::<u64>(thread * 8)?, 5)?;
    }
    context.sync()
}

pub(crate) fn quiet_timeout(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = context.neighbour(4096)?;
    context.sync()?;
    let mut pending = 0u64;
    // More impatient calls in a row than there are slots: a timeout must not use slots up.
    for round in 1..=200u64 {
        right.put64(0, round)?;
        match right.quiet_timeout(Duration::ZERO) {
            Ok(()) => {}
            Err(Error::Pending { .. }) => pending += 1,
            Err(error) => return Err(error.into()),
        }
    }
    let deadline = Instant::now() + context.patience;
    loop {
        match right.quiet_timeout(Duration::from_millis(1)) {
            Ok(()) => break,
            Err(Error::Pending { .. }) if Instant::now() < deadline => {}
            Err(error) => return Err(format!("quiet never comes: {error}").into()),
        }
    }
    right.quiet()?;
    context.note(format!("{pending} of 200 impatient calls came back early"));
    context.sync()?;
    same("the last word", mine.load::<u64>(0)?, 200)?;
    context.sync()
}
