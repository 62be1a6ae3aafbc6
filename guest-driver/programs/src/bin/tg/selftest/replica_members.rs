// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies of a replicated segment: joining, leaving, dying (SPEC E20).

use super::context::{Context, LONG, MILLISECOND, SOON, Stop, Verdict, becomes, joined, must, refused, same};
use super::life::leave_nothing;
use super::replicas::equal_copies;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use telegraphos::{Error, Node, NodeId, ReplicaMode, ReplicaState, Replicated, Status};
use telegraphos_guest_tests::child::{Child, End};
use telegraphos_guest_tests::patience::{ABSENT, admitted};
use telegraphos_guest_tests::random;
use telegraphos_guest_tests::replica::{self, PAGE};

/// Joins once what this node had of it before has been taken away.
pub(crate) fn join_again(node: &Node, home: NodeId, name: &str) -> Verdict<Replicated> {
    let passing = [ABSENT, &[Status::Busy]].concat();
    Ok(admitted(SOON, &passing, || Replicated::join(node, home, name).mode(0o606).open())?)
}

/// Of each segment one node joins and leaves while all others store. What it finds is never older than what was quiet
/// before it joined, and from then on it gets all that is stored.
pub(crate) fn join_while_others_store(context: &mut Context<'_>) -> Verdict {
    const WORDS: u64 = 512;
    const JOINS: u32 = 6;
    let (nodes, me) = context.place();
    let left = (me + nodes - 1) % nodes;
    let area = |writer: usize| WORDS * 8 * writer as u64;
    // How far each writer is, in all segments.
    let progress = context.export("progress", 8)?;
    let of_node = |id: &NodeId| context.import(*id, "progress");
    let progresses = context.peers.all.iter().map(of_node).collect::<Verdict<Vec<_>>>()?;
    let own = context.replicated("page", area(nodes), |builder| builder)?;
    let mut copies: Vec<Arc<Replicated>> = vec![own];
    for (place, home) in context.peers.all.clone().into_iter().enumerate() {
        if place != me && place != left {
            let copy = context.join(home, "page", |join| join)?;
            copies.push(context.keep(copy));
        }
    }
    context.sync()?;
    let over = AtomicBool::new(false);
    let (home, name) = (context.peers.left(), context.name("page"));
    let node = context.node().clone();
    // Words of a writer that has stored at least so many.
    let check = |copy: &Replicated, writer: usize, least: u64| -> Verdict {
        for word in 0..WORDS {
            let found = copy.load::<u64>(area(writer) + 8 * word)?;
            // The last number up to `least` that goes to this word.
            let expected = least.checked_sub(word).map_or(0, |past| past / WORDS * WORDS + word);
            must(found >= expected, || {
                format!(
                    "word {word} of place {writer} is {found} after {least} stores were quiet: expected {expected} or more"
                )
            })?;
        }
        Ok(())
    };
    let joins = std::thread::scope(|scope| -> Verdict<u32> {
        let writer = scope.spawn(|| -> Verdict<u64> {
            let mut number = 0u64;
            while !over.load(Ordering::Relaxed) {
                for _ in 0..64 {
                    number += 1;
                    for copy in &copies {
                        copy.store(area(me) + 8 * (number % WORDS), number)?;
                    }
                }
                for copy in &copies {
                    copy.quiet_timeout(SOON)?;
                }
                progress.store(0, number)?;
            }
            Ok(number)
        });
        let join = || -> Verdict<u32> {
            let mut joins = 0;
            while joins < JOINS {
                let least = progresses.iter().map(|p| p.get64(0)).collect::<Result<Vec<_>, _>>()?;
                let copy = join_again(&node, home, &name)?;
                for (writer, least) in least.iter().enumerate().filter(|(writer, _)| *writer != me) {
                    check(&copy, writer, *least)?;
                }
                // What is quiet after the joining is here as well.
                std::thread::sleep(Duration::from_millis(20));
                for (writer, progress) in progresses.iter().enumerate().filter(|(writer, _)| *writer != me) {
                    check(&copy, writer, progress.get64(0)?)?;
                }
                copy.leave()?;
                joins += 1;
            }
            Ok(joins)
        };
        let result = join();
        // Others still join what this node stores to.
        let _ = context.sync();
        over.store(true, Ordering::Relaxed);
        let stored = joined(writer)?;
        context.note(format!("{stored} stores to each segment while others joined"));
        result
    })?;
    context.note(format!("joined and left {joins} times"));
    let copy = join_again(&node, home, &name)?;
    let last = context.keep(copy);
    // In the order of the homes, as the others have them.
    let mut boards = Vec::new();
    let mut others = copies.iter().skip(1);
    for place in 0..nodes {
        boards.push(match place {
            place if place == me => copies[0].clone(),
            place if place == left => last.clone(),
            _ => others.next().cloned().ok_or("a copy is missing")?,
        });
    }
    equal_copies(context, &boards)
}

pub(crate) fn leave_and_join_again(context: &mut Context<'_>) -> Verdict {
    let name = context.name("page");
    let home = context.replicated("page", PAGE, |builder| builder)?;
    let right = context.peers.right();
    let node = context.node().clone();
    context.sync()?;
    for round in 1..=5u64 {
        let copy = context.join(right, "page", |join| join)?;
        same("what the left copy had", copy.load::<u64>(8)?, round - 1)?;
        copy.store(8, round)?;
        // Leaving waits for it.
        if round % 2 == 0 {
            copy.leave()?
        } else {
            drop(copy)
        }
        context.sync()?;
        same("the word at the home", home.load::<u64>(8)?, round)?;
        // No other copy is left: the home's stores stay local, and quiet is immediate.
        home.store(16, round)?;
        context.sync_behind(&home)?;
    }
    drop(join_again(&node, right, &name)?);
    context.sync()
}

/// Waits until the segment is an orphan; why.
pub(crate) fn orphaned(copy: &Replicated) -> Verdict<Status> {
    let orphan = |state: &ReplicaState| state.orphan.is_some();
    let late = |state: &ReplicaState| format!("the state of {:?} stays {state:?}: expected an orphan", copy.name());
    let state = becomes(SOON, 2 * MILLISECOND, || Ok(copy.state()?), orphan, late)?;
    state.orphan.ok_or_else(|| late(&state).into())
}

/// The home goes: every copy is notified, a survivor adopts, and the others join that.
pub(crate) fn home_goes(context: &mut Context<'_>, killed: bool) -> Verdict {
    let (nodes, me) = context.place();
    let all = context.peers.all.clone();
    // Another file, which gets events about these segments only.
    let node = context.other_file()?;
    let [mine, storm] = ["copies", "storm"].map(|part| context.name(&format!("{part}-{me}")));
    let start = |name: &String| context.child_saying("made", &["replica-home", name]);
    let mut homes = [&mine, &storm].into_iter().map(start).collect::<Verdict<Vec<_>>>()?;
    // Copies of the others' segments here, and a child that stores to its copy all the time.
    let mut copies = Vec::new();
    let mut storms: Vec<Child> = Vec::new();
    for (place, home) in all.iter().enumerate().filter(|(place, _)| *place != me) {
        let name = context.name(&format!("copies-{place}"));
        let join = Replicated::join(&node, *home, &name).mode(0o606);
        copies.push((place, replica::join_patiently(join, context.patience)?));
        if (place + 1) % nodes != me {
            continue;
        }
        let name = context.name(&format!("storm-{place}"));
        storms.push(context.child_saying("joined", &["replica-storm", &home.to_string(), &name, "0"])?);
    }
    context.sync()?;
    for (place, copy) in &copies {
        copy.store(8 * me as u64, 100 * *place as u64 + me as u64 + 1)?;
        copy.quiet_timeout(SOON)?;
        same("the home of a copy", copy.home()?, all[*place])?;
        must(copy.adopt().is_err(), || "a copy was adopted while its home is present".into())?;
    }
    same("an error before there is one", node.wait_error(Some(Duration::ZERO))?, false)?;
    context.sync()?;
    for home in &mut homes {
        match killed {
            true => home.must_be_killed()?,
            false => home.go().and_then(|()| home.must_end_saying("left"))?,
        }
    }
    same("an error within 30 s", node.wait_error(Some(SOON))?, true)?;
    let mut statuses = Vec::new();
    for (_, copy) in &copies {
        let status = orphaned(copy)?;
        statuses.push(status);
        // Nothing was lost: what was stored before had arrived everywhere.
        copy.quiet_timeout(SOON)?;
    }
    context.note(format!("why the copies are orphans: {statuses:?}"));
    storms.iter_mut().try_for_each(|child| child.must_end(End::BUS))?;
    context.sync()?;
    // The node behind the old home becomes the new one.
    let adopts = |place: usize| (place + 1) % nodes;
    for (_, copy) in copies.iter().filter(|(place, _)| adopts(*place) == me) {
        copy.adopt()?;
        same("the home after the adoption", copy.home()?, all[me])?;
        same("the reason for an orphan after the adoption", copy.state()?.orphan, None)?;
    }
    context.sync()?;
    let mut joined = Vec::new();
    for place in 0..nodes {
        let name = context.name(&format!("copies-{place}"));
        let old = copies.iter().position(|(p, _)| *p == place).map(|at| copies.swap_remove(at).1);
        joined.push(match old {
            Some(copy) if adopts(place) == me => copy,
            old => {
                drop(old);
                join_again(&node, all[adopts(place)], &name)?
            }
        });
    }
    context.sync()?;
    for (place, copy) in joined.iter().enumerate() {
        for writer in (0..nodes).filter(|writer| *writer != place) {
            let found = copy.load::<u64>(8 * writer as u64)?;
            same("a word that was quiet before the home went", found, 100 * place as u64 + writer as u64 + 1)?;
        }
        // A new life: stores, atomics, own loads.
        copy.store(512 + 8 * me as u64, me as u64 + 7)?;
        same("the own store after it", copy.load::<u64>(512 + 8 * me as u64)?, me as u64 + 7)?;
        copy.fetch_inc::<u64>(1024)?;
        copy.quiet_timeout(SOON)?;
    }
    context.sync()?;
    for copy in &joined {
        for writer in 0..nodes {
            same("a store after the adoption", copy.load::<u64>(512 + 8 * writer as u64)?, writer as u64 + 7)?;
        }
        same("increments after the adoption", copy.load::<u64>(1024)?, nodes as u64)?;
    }
    context.sync()
}

/// A node cannot adopt under a name that another of its segments has.
pub(crate) fn adopted_name_taken(context: &mut Context<'_>) -> Verdict {
    let mine = Replicated::create(context.node(), &context.name("page"), PAGE).mode(0o606).create()?;
    let copy = context.join(context.peers.right(), "page", |join| join)?;
    copy.store(0, 7u64)?;
    context.sync_behind(&copy)?;
    mine.leave()?;
    let other = Replicated::create(context.node(), &context.name("page"), PAGE).create()?;
    orphaned(&copy)?;
    refused("adopting under a name that is taken", copy.adopt(), libc::EEXIST)?;
    must(copy.state()?.orphan.is_some(), || "what was not adopted is no orphan any more".into())?;
    other.leave()?;
    copy.adopt()?;
    same("the word", copy.load::<u64>(0)?, 7)?;
    copy.store(0, 8u64)?;
    copy.quiet_timeout(SOON)?;
    same("the word stored after that", copy.load::<u64>(0)?, 8)?;
    context.sync()
}

/// A process that has a copy dies while it and others store: none waits for it, and its node may join again.
pub(crate) fn copy_killed(context: &mut Context<'_>) -> Verdict {
    const ROUNDS: u64 = 3;
    let name = context.name("page");
    let home = context.replicated("page", PAGE, |builder| builder)?;
    let right = context.peers.right();
    for round in 1..=ROUNDS {
        let mut child = context.child_saying("joined", &["replica-storm", &right.to_string(), &name, "0"])?;
        context.sync()?;
        std::thread::scope(|scope| -> Verdict {
            let writer = scope.spawn(|| -> Verdict {
                for n in 0..2000u64 {
                    home.store(8 + 8 * (n % 64), n + round)?;
                }
                Ok(home.quiet_timeout(SOON)?)
            });
            std::thread::sleep(Duration::from_millis(5));
            let killed = child.kill();
            let written = joined(writer);
            Ok(killed?).and(written)
        })?;
        child.must_end(End::KILLED)?;
        context.sync()?;
        let copy = join_again(context.node(), right, &name)?;
        for n in 1936..2000u64 {
            same("a word stored while the copy's process died", copy.load::<u64>(8 + 8 * (n % 64))?, n + round)?;
        }
        drop(copy);
        context.sync()?;
    }
    Ok(())
}

/// Owner order without counters: what is at rest is equal everywhere regardless.
pub(crate) fn owner_mode(context: &mut Context<'_>) -> Verdict {
    const WORDS: u64 = 16;
    let (nodes, me) = context.place();
    let boards = context.boards_in(ReplicaMode::Owner, "page", 8 * WORDS)?;
    same("the mode", boards.iter().all(|board| board.replica_mode() == ReplicaMode::Owner), true)?;
    let mut histories = vec![replica::History::new(nodes as u64); nodes * WORDS as usize];
    let seed = random::seed();
    for n in 1..=1000 {
        for (home, board) in boards.iter().enumerate() {
            let word = random::word(seed, n) % WORDS;
            board.store(8 * word, replica::value(me as u64, n))?;
            histories[home * WORDS as usize + word as usize].look(board.load(8 * word)?)?;
        }
    }
    let older: u64 = histories.iter().map(|history| history.older).sum();
    context.note(format!("{older} own loads went back"));
    equal_copies(context, &boards)
}

/// Naively replicated segments: each node makes one and joins all others'; stores of each reach all.
pub(crate) fn naive_members(context: &mut Context<'_>) -> Verdict {
    let (nodes, me) = context.place();
    let right = context.peers.right();
    let all = context.peers.all.clone();
    let mine = context.replicated("page", PAGE, |builder| builder.replica_mode(ReplicaMode::Naive))?;
    context.sync()?;
    for id in all.iter().filter(|id| **id != all[me]) {
        mine.join_peer(*id)?;
    }
    same("the home of a naive segment", mine.home()?, all[me])?;
    context.sync()?;
    // Each word has one writer: then nothing diverges.
    for n in 0..500u64 {
        mine.store(8 * (64 * me as u64 + n % 64), n + 1)?;
    }
    context.sync_behind(&mine)?;
    for writer in 0..nodes as u64 {
        for n in 436..500u64 {
            let found = mine.load::<u64>(8 * (64 * writer + n % 64))?;
            same(format_args!("a word of place {writer}"), found, n + 1)?;
        }
    }
    // Joining it twice is refused, and joining oneself.
    let again = mine.join_peer(right);
    must(again.is_err(), || "a peer was joined twice".into())?;
    refused("joining a peer that is this node", mine.join_peer(all[me]), libc::EINVAL)?;
    context.sync()?;
    // It continues without one that leaves.
    let other = context.name("leaver");
    let leaver =
        Replicated::create(context.node(), &other, PAGE).replica_mode(ReplicaMode::Naive).mode(0o606).create()?;
    context.sync()?;
    // As if it had a home.
    let join = |mode| Replicated::join(context.node(), right, &other).replica_mode(mode).open();
    refusal("joining a home that is none", join(ReplicaMode::Counters), libc::EREMOTEIO, Some(Status::NotHome))?;
    must(matches!(join(ReplicaMode::Naive), Err(Error::Argument { .. })), || "a naive segment was joined".into())?;
    context.sync()?;
    leaver.join_peer(right)?;
    leaver.join_peer(context.peers.left()).or_else(|e| if nodes == 2 { Ok(()) } else { Err(e) })?;
    context.sync()?;
    if me == 0 {
        leaver.leave()?;
        context.sync()?;
        return context.sync();
    }
    context.sync()?;
    std::thread::sleep(LONG);
    leaver.store(8 * me as u64, 5u64)?;
    leaver.quiet_timeout(SOON)?;
    same("the own store", leaver.load::<u64>(8 * me as u64)?, 5)?;
    context.sync()
}

pub(crate) fn cycles(context: &mut Context<'_>) -> Verdict {
    const CYCLES: u64 = 50;
    const PAGES: u64 = 4;
    let far = context.replicated("far", PAGES * PAGE, |builder| builder)?;
    context.sync()?;
    let (board, right, name) = (context.node(), context.peers.right(), context.name("cycle"));
    let cycle = |number: u64| -> Verdict {
        let node = Node::open_path(board.path())?;
        let mine = Replicated::create(&node, &name, PAGES * PAGE).mode(0o606).create()?;
        let copy = join_again(&node, right, far.name())?;
        mine.store(PAGES * PAGE - 8, number)?;
        copy.store(8 * (number % 64), number)?;
        same("the own store", copy.load::<u64>(8 * (number % 64))?, number)?;
        same("the own store at the home", mine.load::<u64>(PAGES * PAGE - 8)?, number)?;
        if number % 2 == 0 {
            node.quiet_timeout(SOON)?;
            return Ok(());
        }
        // Half of them in the other order, with stores still on their way.
        drop(mine);
        drop(node);
        Ok(())
    };
    leave_nothing(context, (10, CYCLES), ((2 * PAGES * PAGE) >> 10, 10), cycle)?;
    context.sync()?;
    far.store(0, 1u64)?;
    context.sync_behind(&far)
}

/// What a test says of a refusal.
pub(crate) fn refusal<T>(what: &str, result: Result<T, Error>, errno: i32, status: Option<Status>) -> Verdict {
    match result {
        Err(error) if error.errno() == errno && error.status() == status => Ok(()),
        Err(error) => Err(Stop::Fail(format!(
            "{what}: errno {}, status {:?} ({error}): expected errno {errno}, status {status:?}",
            error.errno(),
            error.status()
        ))),
        Ok(_) => Err(Stop::Fail(format!("{what} succeeded: expected errno {errno}, status {status:?}"))),
    }
}
