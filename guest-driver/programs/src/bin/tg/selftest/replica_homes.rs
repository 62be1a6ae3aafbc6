// SPDX-License-Identifier: MIT OR Apache-2.0
//! The home of a replicated segment moves from node to node while all nodes continue.

use super::context::{Context, MILLISECOND, SOON, Verdict, becomes, must, refused, same};
use super::replica_members::{join_again, orphaned, refusal};
use super::replicas::{all_take_stores, equal_copies};
use std::time::{Duration, Instant};
use telegraphos::{Error, NodeId, ReplicaMode, Replicated, Status};
use telegraphos_guest_tests::random;
use telegraphos_guest_tests::replica::{self, History, PAGE};

/// Takes the home, or finds that another node has been faster.
fn take(board: &Replicated) -> Verdict<bool> {
    match board.take_home() {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.status(), Some(Status::Busy | Status::NotHome)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Waits until this node's driver has the event of a new home: its board has it with the new home, and posts it with an
/// event.
fn known(board: &Replicated, home: NodeId) -> Verdict {
    becomes(
        SOON,
        2 * MILLISECOND,
        || Ok(board.home()?),
        |found| *found == home,
        |found| format!("the home of {:?} stays {found}: expected {home}", board.name()),
    )
    .map(drop)
}

/// Waits until all nodes name the same home of a segment. All get the same values, so all continue together.
fn agreed(context: &mut Context<'_>, place: usize, board: &Replicated) -> Verdict {
    let deadline = Instant::now() + SOON;
    loop {
        let home = u64::from(board.home()?);
        context.mail_all(0, home)?;
        context.mail_all(2, u64::from(Instant::now() < deadline))?;
        context.sync()?;
        let (homes, time) = (context.mail_of_all(0)?, context.mail_of_all(2)?);
        context.sync()?;
        if homes.iter().all(|other| *other == homes[0]) {
            return Ok(());
        }
        must(!time.contains(&0), || format!("the home of segment {place}, as the nodes know it, stays {homes:?}"))?;
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Everybody stores, draws and looks, and now and then takes a home: nothing is lost, nothing comes back, and no number
/// is drawn twice.
pub(crate) fn moves(context: &mut Context<'_>) -> Verdict {
    const WORDS: u64 = 4;
    /// Where increments are counted.
    const DRAWN: u64 = 8 * WORDS;
    /// Where each node counts on a separate word.
    const OWN: u64 = DRAWN + 8;
    let (nodes, me) = context.place();
    // A home's name is its node's: each segment has another, since all may come to one node.
    let name = |place| format!("page-{place}");
    let boards = context.boards_named(ReplicaMode::Counters, name, OWN + 8 * nodes as u64)?;
    let mut histories = vec![vec![History::new(nodes as u64); WORDS as usize]; nodes];
    let mut drawn = vec![None; nodes];
    let (mut number, mut taken, mut missed, mut draws) = (0u64, 0u64, 0u64, 0u64);
    let seed = random::seed();
    let end = Instant::now() + context.seconds;
    while Instant::now() < end {
        for (place, board) in boards.iter().enumerate() {
            number += 1;
            let dice = random::word(seed, number);
            let word = dice % WORDS;
            board.store(8 * word, replica::value(me as u64, number))?;
            let found = board.load::<u64>(8 * word)?;
            must(replica::parse(found).is_some_and(|(writer, n)| writer != me as u64 || n == number), || {
                format!("after the own store {number} a load gives {found:#x}")
            })?;
            board.store(OWN + 8 * me as u64, number)?;
            same("the own word", board.load::<u64>(OWN + 8 * me as u64)?, number)?;
            for (word, history) in histories[place].iter_mut().enumerate() {
                history.look(board.load(8 * word as u64)?)?;
            }
            if dice >> 8 & 7 == 0 {
                let ticket: u64 = board.fetch_inc(DRAWN)?;
                must(drawn[place].is_none_or(|last| ticket > last), || {
                    format!("number {ticket} was drawn after {:?}", drawn[place])
                })?;
                (drawn[place], draws) = (Some(ticket), draws + 1);
            }
            if dice >> 16 & 15 == 0 {
                match take(board)? {
                    true => {
                        same("the home just taken", board.home()?, context.me()).or_else(|stop| {
                            // Another may have taken it since.
                            if nodes > 1 { Ok(()) } else { Err(stop) }
                        })?;
                        taken += 1;
                    }
                    false => missed += 1,
                }
            }
        }
    }
    let (mut changes, mut older) = (0, 0);
    for history in histories.iter().flatten() {
        (changes, older) = (changes + history.changes, older + history.older);
    }
    context.note(format!(
        "{number} stores, {changes} changes seen, {draws} numbers drawn; homes taken {taken} times, {missed} times others were faster"
    ));
    same("values that came back", older, 0)?;
    must(taken > 0, || "no home was taken: nothing was shown".into())?;
    equal_copies(context, &boards)?;
    // All know where the homes are, and how often was drawn.
    for (place, board) in boards.iter().enumerate() {
        agreed(context, place, board)?;
    }
    context.mail_all(1, draws)?;
    context.sync()?;
    let all = context.mail_of_all(1)?.into_iter().sum();
    let counted = boards.iter().map(|board| board.load::<u64>(DRAWN)).sum::<Result<u64, _>>()?;
    same("numbers drawn from all segments", counted, all)?;
    // What follows overwrites what others still count.
    context.sync()?;
    all_take_stores(context, &boards)
}

/// A join goes to the present home; the old home is a copy like any other, which may leave.
pub(crate) fn joins_follow(context: &mut Context<'_>) -> Verdict {
    let (nodes, me) = context.place();
    let all = context.peers.all.clone();
    let name = |place: usize| format!("page-{}", place % nodes);
    let mine = context.replicated(&name(me), PAGE, |builder| builder)?;
    mine.store(0, 5u64)?;
    context.sync()?;
    // This node becomes the home of the right neighbour's.
    let copy = context.join(context.peers.right(), &name(me + 1), |join| join)?;
    copy.take_home()?;
    same("the home after it was taken", copy.home()?, context.me())?;
    copy.take_home()?;
    context.sync()?;
    known(&mine, context.peers.left())?;
    same("whether it is an orphan", mine.state()?.orphan, None)?;
    mine.store(8, 6u64)?;
    same("the own store at the old home", mine.load::<u64>(8)?, 6)?;
    context.sync_behind(&mine)?;
    if nodes > 2 {
        // The one behind the right neighbour: its home is there now.
        let far = (me + 2) % nodes;
        let full = context.name(&name(far));
        let old = Replicated::join(context.node(), all[far], &full).mode(0o606).open();
        refusal("joining at the old home", old, libc::EREMOTEIO, Some(Status::NotHome))?;
        let third = context.join(context.peers.right(), &name(far), |join| join)?;
        same("a word stored before the home moved", third.load::<u64>(0)?, 5)?;
        same("a word stored after it", third.load::<u64>(8)?, 6)?;
        third.store(16, 7u64)?;
        context.sync_behind(&third)?;
        same("a word of the third, at the old home", mine.load::<u64>(16)?, 7)?;
        same("a word of the third, at the new home", copy.load::<u64>(16)?, 7)?;
        context.sync()?;
    }
    // Back again, and away for good: the copy of the old home is an orphan then, and may be adopted.
    mine.take_home()?;
    context.sync()?;
    known(&copy, context.peers.right())?;
    copy.take_home()?;
    context.sync()?;
    copy.leave()?;
    orphaned(&mine)?;
    mine.adopt()?;
    same("a word after all that", mine.load::<u64>(8)?, 6)?;
    context.sync()?;
    let again = join_again(context.node(), context.peers.right(), &context.name(&name(me + 1)))?;
    same("a word of the adopted one", again.load::<u64>(0)?, 5)?;
    context.sync()
}

/// Copies that cannot become the home.
pub(crate) fn refusals(context: &mut Context<'_>) -> Verdict {
    let boards = context.boards("page", PAGE)?;
    let invalidated = context.boards_in(ReplicaMode::Invalidate, "invalidated", PAGE)?;
    let readable = context.replicated("readable", PAGE, |builder| builder)?;
    let (_, me) = context.place();
    let right = context.peers.right();
    boards[me].take_home()?;
    let taken = boards[(me + 1) % boards.len()].take_home();
    refusal("a home whose name is taken here", taken, libc::EEXIST, Some(Status::NameTaken))?;
    for board in &invalidated {
        let taken = board.take_home();
        must(matches!(taken, Err(Error::Argument { .. })), || format!("an invalidated segment moves: {taken:?}"))?;
    }
    context.sync()?;
    let reader = context.join(right, "readable", |join| join.mode(0o400))?;
    refused("a home that may only load", reader.take_home(), libc::EACCES)?;
    same("the home", reader.home()?, right)?;
    context.sync()?;
    same("the home, at itself", readable.home()?, context.me())?;
    drop(reader);
    // An orphan is adopted, not taken.
    let name = context.name("gone");
    let gone = Replicated::create(context.node(), &name, PAGE).mode(0o606).create()?;
    let copy = context.join(right, "gone", |join| join)?;
    context.sync()?;
    gone.leave()?;
    orphaned(&copy)?;
    must(copy.take_home().is_err(), || "the home of an orphan was taken".into())?;
    must(copy.state()?.orphan.is_some(), || "it is no orphan any more".into())?;
    context.sync()
}
