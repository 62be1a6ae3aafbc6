// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of locks and barriers on a model of the network.

use super::barrier::{Neighbours, Progress, rounds};
use super::lock::SERVING;
use super::memory::sealed;
use super::*;
use crate::backoff::Backoff;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::replicated::Replicated;
use crate::word_wait::WordWait;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use telegraphos_wire::{Rights, Status};

/// Polls read the copy; tickets and rights are those of the segment.
#[test]
fn a_lock_in_a_replicated_segment_polls_the_copy() {
    let all = Rights(Rights::READ.0 | Rights::WRITE.0 | Rights::ATOMIC.0);
    let context = Arc::new(Context::without_board());
    let replicated = Replicated::mirrored(&context, all);
    let lock = TicketLock::new(&replicated, 32).unwrap();
    assert_eq!(lock.serving().unwrap(), 0);
    replicated.store(40, 3u64).unwrap();
    context.slots.count_taken(7, 1);
    assert_eq!(lock.serving().unwrap(), 3);
    replicated.store(40, u64::MAX).unwrap();
    context.slots.count_taken(7, 2);
    assert!(lock.serving().is_err());
    assert!(TicketLock::new(&replicated, 4).is_err());
    let reader = Replicated::without_board(&context, Rights::READ);
    let error = TicketLock::new(&reader, 0).unwrap_err().to_string();
    assert!(error.contains("without the right to lock in it"), "{error}");
}

/// Memory of two nodes in which a store lands as late as the network may deliver it: when its sender waits for quiet,
/// or when a later store to the same node has landed (I8).
struct Litmus {
    /// Words by node, and stores in flight to them.
    words: RefCell<[BTreeMap<u64, u64>; 2]>,
    sent: RefCell<[Vec<(u64, u64)>; 2]>,
    quiets: Cell<usize>,
    /// The deliberate bug: the quiet of this number, from 0, does nothing.
    dropped: Option<usize>,
}

const LOCKED: usize = 0;
const OTHER: usize = 1;
const DATA: u64 = 100;
const FLAG: u64 = 200;

impl Litmus {
    fn new(dropped: Option<usize>) -> Litmus {
        Litmus { words: RefCell::default(), sent: RefCell::default(), quiets: Cell::new(0), dropped }
    }

    fn store(&self, node: usize, offset: u64, value: u64) {
        self.sent.borrow_mut()[node].push((offset, value));
    }

    fn land(&self, node: usize) {
        let sent = std::mem::take(&mut self.sent.borrow_mut()[node]);
        self.words.borrow_mut()[node].extend(sent);
    }

    /// The word that a third node sees.
    fn seen(&self, node: usize, offset: u64) -> u64 {
        self.words.borrow()[node].get(&offset).copied().unwrap_or(0)
    }

    fn fence(&self) {
        let number = self.quiets.replace(self.quiets.get() + 1);
        if self.dropped != Some(number) {
            self.land(LOCKED);
            self.land(OTHER);
        }
    }
}

impl sealed::Words for Litmus {
    const IS_HERE: bool = false;

    fn size(&self) -> u64 {
        4096
    }

    fn rights(&self) -> Rights {
        Rights(Rights::READ.0 | Rights::WRITE.0 | Rights::ATOMIC.0)
    }

    fn what(&self) -> String {
        "a litmus test".into()
    }

    // Loads and atomics come behind earlier stores to the same node.
    fn load_word(&self, offset: u64) -> Result<u64> {
        self.land(LOCKED);
        Ok(self.seen(LOCKED, offset))
    }

    fn store_word(&self, offset: u64, value: u64) -> Result<()> {
        self.store(LOCKED, offset, value);
        Ok(())
    }

    fn draw(&self, offset: u64) -> Result<u64> {
        let ticket = self.load_word(offset)?;
        self.words.borrow_mut()[LOCKED].insert(offset, ticket + 1);
        Ok(ticket)
    }

    fn exchange(&self, offset: u64, expected: u64, value: u64) -> Result<u64> {
        let found = self.load_word(offset)?;
        if found == expected {
            self.words.borrow_mut()[LOCKED].insert(offset, value);
        }
        Ok(found)
    }

    fn quiet(&self) -> Result<()> {
        self.fence();
        Ok(())
    }

    fn failure(&self) -> Result<(Option<Status>, bool)> {
        Ok((None, false))
    }

    fn unfinished(&self) -> u32 {
        0
    }

    fn pause(&self, _: u64, wait: &mut WordWait) -> Result<bool> {
        Ok(wait.backoff.wait())
    }
}

impl LockMemory for Litmus {}

/// Message passing from before a lock: a flag that is stored under it is seen; is what was stored before?
fn before_the_lock(dropped: Option<usize>, take: &dyn Fn(&TicketLock<'_, Litmus>) -> u64) -> bool {
    let sea = Litmus::new(dropped);
    sea.store(OTHER, DATA, 1);
    take(&TicketLock::new(&sea, 0).unwrap());
    sea.store(LOCKED, FLAG, 1);
    sea.land(LOCKED);
    sea.seen(LOCKED, FLAG) == 1 && sea.seen(OTHER, DATA) == 1
}

fn hold(guard: TicketGuard<'_, Litmus>) -> u64 {
    let ticket = guard.ticket();
    std::mem::forget(guard);
    ticket
}

/// SPEC item 27, s1: FENCE is part of every lock. Dropping it is found.
#[test]
fn item27_what_was_stored_before_a_lock_is_seen_before_what_is_stored_under_it() {
    type Way<'a> = &'a dyn Fn(&TicketLock<'_, Litmus>) -> u64;
    let ways: [Way<'_>; 3] =
        [&|lock| hold(lock.lock().unwrap()), &|lock| hold(lock.try_lock().unwrap().unwrap()), &|lock| {
            hold(lock.lock_timeout(Duration::from_secs(1)).unwrap())
        }];
    for (number, take) in ways.into_iter().enumerate() {
        assert!(before_the_lock(None, take), "way {number}");
        assert!(!before_the_lock(Some(0), take), "way {number}: the test is blind to a lock without FENCE");
    }
}

/// SPEC item 27: FENCE is part of every unlock. Dropping it is found.
#[test]
fn item27_what_was_stored_under_a_lock_is_seen_by_the_next() {
    let next_sees = |dropped| {
        let sea = Litmus::new(dropped);
        let lock = TicketLock::new(&sea, 0).unwrap();
        let guard = lock.lock().unwrap();
        sea.store(OTHER, DATA, 1);
        guard.unlock().unwrap();
        // The next ticket's turn.
        sea.land(LOCKED);
        sea.seen(LOCKED, SERVING) == 1 && sea.seen(OTHER, DATA) == 1
    };
    assert!(next_sees(None));
    assert!(!next_sees(Some(1)), "the test is blind to an unlock without FENCE");
}

/// A participant among others: its words lie at node [`LOCKED`], data elsewhere.
struct Participant<'a> {
    sea: &'a Litmus,
    me: usize,
    count: usize,
}

impl Neighbours for Participant<'_> {
    fn rounds(&self) -> usize {
        rounds(self.count)
    }

    fn quiet(&self, _: &Backoff) -> Result<()> {
        self.sea.fence();
        Ok(())
    }

    fn announce(&self, round: usize, epoch: u64) -> Result<()> {
        let other = (self.me + (1 << round)) % self.count;
        self.sea.store(LOCKED, 1000 + 64 * other as u64 + 8 * round as u64, epoch);
        // The announcement is quick; what was stored elsewhere need not be.
        self.sea.land(LOCKED);
        Ok(())
    }

    fn announced(&self, round: usize) -> Result<u64> {
        Ok(self.sea.seen(LOCKED, 1000 + 64 * self.me as u64 + 8 * round as u64))
    }

    fn pause(&self, _: usize, wait: &mut WordWait) -> Result<()> {
        Err(Error::Pending { what: "the others".into(), waited: wait.backoff.waited(), operations: 0 })
    }
}

/// SPEC item 27: FENCE is part of every barrier. Dropping any participant's is found.
#[test]
fn item27_after_a_barrier_all_earlier_stores_are_seen() {
    for count in 2..=9 {
        // The participant that stores comes last, and no later one's quiet helps it.
        let all_see = |dropped| {
            let sea = Litmus::new(dropped);
            let mut progress: Vec<Progress> = (0..count).map(|_| Progress::default()).collect();
            let mut pass = |me: usize| progress[me].pass(&Participant { sea: &sea, me, count }, WordWait::new(None));
            for me in 0..count - 1 {
                assert!(pass(me).is_err(), "participant {me} of {count} passes without the last");
            }
            sea.store(OTHER, DATA, 1);
            let last = pass(count - 1);
            let mut right = last.is_err() || sea.seen(OTHER, DATA) == 1;
            for _ in 0..count {
                for (me, own) in progress.iter_mut().enumerate() {
                    if own.round.is_some() {
                        let passed = own.pass(&Participant { sea: &sea, me, count }, WordWait::new(None));
                        right &= passed.is_err() || sea.seen(OTHER, DATA) == 1;
                    }
                }
            }
            assert!(progress.iter().all(|p| p.round.is_none() && p.epoch == 1), "{count} participants do not pass");
            right
        };
        assert!(all_see(None), "{count} participants");
        assert!(!all_see(Some(count - 1)), "{count} participants: the test is blind to a barrier without FENCE");
    }
}

/// After the last round, each participant has, directly or not, an announcement of every other.
#[test]
fn dissemination_reaches_all() {
    for count in 1..=33usize {
        let mut reached: Vec<u64> = (0..count).map(|me| 1 << me).collect();
        for round in 0..rounds(count) {
            reached = (0..count).map(|me| reached[me] | reached[(me + count - (1 << round)) % count]).collect();
        }
        assert!(reached.iter().all(|h| *h == (1 << count) - 1), "{count} participants");
        let fewer = rounds(count).saturating_sub(1);
        assert!(count == 1 || 1 << fewer < count, "{count} participants need no more rounds than that");
    }
}
