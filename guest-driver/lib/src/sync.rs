// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks and barriers for processes on any nodes, in memory of segments (SPEC item 27: quiet is part of every lock,
//! unlock and barrier).
//!
//! The quiet of an unlock is there for what was stored under the lock. That of a lock is there for what was stored
//! before it, to other nodes: without it, a store under the lock could be seen before those.
//!
//! All participants use the same words, through imports: also the processes of the node that owns them (through
//! [`Segment::remote`]), because the processor's locked instructions are not atomic with those of the HIB.
//!
//! ```no_run
//! # fn main() -> telegraphos::Result<()> {
//! use telegraphos::{Node, sync::TicketLock};
//! let node = Node::open()?;
//! let shared = node.import(0, "shared").open()?; // 16 bytes at 0 are the lock, a counter is at 64
//! let lock = TicketLock::new(&shared, 0)?;
//! let guard = lock.lock()?;
//! shared.put64(64, shared.get64(64)? + 1)?;
//! guard.unlock()?; // everything stored under the lock has arrived, whereto ever
//! # Ok(()) }
//! ```
//!
//! A lock may also lie in a [`Replicated`] segment: tickets are drawn at its home (SPEC E20), and who waits looks at
//! the copy in its own node's memory, which the unlock reaches by itself. The data may be in the same segment: when the
//! unlock is seen, every copy has it (E19).

use crate::access::fence;
use crate::error::{Error, Result};
use crate::quiet::Scope;
use crate::remote::Remote;
use crate::replicated::Replicated;
use crate::segment::Segment;
use crate::slots::Backoff;
use crate::{Node, NodeId};
use std::time::{Duration, Instant};
use telegraphos_wire::{Rights, Status};

/// The word that the next ticket is drawn from; behind it the one that tells whose turn it is.
const SERVING: u64 = 8;
/// How long one may wait for each who is before him, at first.
const TURN: Duration = Duration::from_micros(50);
const TURN_MAX: Duration = Duration::from_millis(1);

mod sealed {
    use crate::error::{Error, Result};
    use telegraphos_wire::{Rights, Status};

    /// Words that several nodes share.
    pub trait Words {
        fn size(&self) -> u64;
        fn rights(&self) -> Rights;
        fn what(&self) -> String;
        fn lacks(&self, right: &'static str, remedy: &'static str) -> Error;
        fn look(&self, offset: u64) -> Result<u64>;
        fn tell(&self, offset: u64, value: u64) -> Result<()>;
        fn draw(&self, offset: u64) -> Result<u64>;
        fn exchange(&self, offset: u64, expected: u64, value: u64) -> Result<u64>;
        /// Of all stores of the process, whereto ever.
        fn quiet(&self) -> Result<()>;
        /// The latched error, and whether it is gone for good.
        fn fate(&self) -> Result<(Option<Status>, bool)>;
        /// Operations of the context under way.
        fn unfinished(&self) -> u32;
    }
}

/// Memory that a lock may lie in: a [`Remote`], or a [`Replicated`] segment.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use telegraphos::{Replicated, Result, sync::{LockMemory, TicketLock}};
///
/// /// Adds one to a counter of this process under a lock that may lie in either sort of memory.
/// fn count(memory: &impl LockMemory, counter: &mut u64) -> Result<()> {
///     let guard = TicketLock::new(memory, 0)?.lock()?;
///     *counter += 1;
///     guard.unlock()
/// }
/// let mut counter = 0;
/// count(&node.import(0, "shared").open()?, &mut counter)?;
/// count(&Replicated::join(&node, 0, "board").open()?, &mut counter)?;
/// # Ok(()) }
/// ```
pub trait LockMemory: sealed::Words {}
impl LockMemory for Remote {}
impl LockMemory for Replicated {}

impl sealed::Words for Remote {
    fn size(&self) -> u64 {
        Remote::size(self)
    }

    fn rights(&self) -> Rights {
        Remote::rights(self)
    }

    fn what(&self) -> String {
        Remote::what(self)
    }

    fn lacks(&self, right: &'static str, remedy: &'static str) -> Error {
        Remote::lacks(self, right, remedy)
    }

    fn look(&self, offset: u64) -> Result<u64> {
        self.get(offset)
    }

    fn tell(&self, offset: u64, value: u64) -> Result<()> {
        self.put(offset, value)
    }

    fn draw(&self, offset: u64) -> Result<u64> {
        self.fetch_inc(offset)
    }

    fn exchange(&self, offset: u64, expected: u64, value: u64) -> Result<u64> {
        self.compare_swap(offset, expected, value)
    }

    fn quiet(&self) -> Result<()> {
        self.inner.quiet(Scope::All, None)
    }

    fn fate(&self) -> Result<(Option<Status>, bool)> {
        let state = self.state()?;
        Ok((state.error, state.dead))
    }

    fn unfinished(&self) -> u32 {
        self.inner.slots.unfinished()
    }
}

impl sealed::Words for Replicated {
    fn size(&self) -> u64 {
        Replicated::size(self)
    }

    fn rights(&self) -> Rights {
        Replicated::rights(self)
    }

    fn what(&self) -> String {
        Replicated::what(self)
    }

    fn lacks(&self, right: &'static str, remedy: &'static str) -> Error {
        self.remote().lacks(right, remedy)
    }

    fn look(&self, offset: u64) -> Result<u64> {
        self.load(offset)
    }

    fn tell(&self, offset: u64, value: u64) -> Result<()> {
        self.store(offset, value)
    }

    fn draw(&self, offset: u64) -> Result<u64> {
        self.fetch_inc(offset)
    }

    fn exchange(&self, offset: u64, expected: u64, value: u64) -> Result<u64> {
        self.compare_swap(offset, expected, value)
    }

    fn quiet(&self) -> Result<()> {
        self.remote().inner.quiet(Scope::All, None)
    }

    fn fate(&self) -> Result<(Option<Status>, bool)> {
        let state = self.state()?;
        Ok((state.orphan.or(state.window.error), state.orphan.is_some() || state.window.dead))
    }

    fn unfinished(&self) -> u32 {
        self.remote().inner.slots.unfinished()
    }
}

/// A fair lock of 16 bytes in a segment: a ticket is drawn by [`Remote::fetch_inc`], and whose number is served has it.
///
/// The bytes are zero at first, at a multiple of 8. The lock belongs to the thread that has drawn the ticket, not to
/// its process; one that dies with the lock, or while it waits for it, leaves it locked for ever: such a segment is
/// given up.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use std::time::Duration;
/// use telegraphos::sync::TicketLock;
/// # let shared = node.import(0, "shared").open()?;
/// let lock = TicketLock::new(&shared, 0)?;
/// let guard = lock.lock_timeout(Duration::from_secs(1))?;
/// shared.put64(64, 7)?; // under the lock
/// guard.unlock()?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct TicketLock<'a, M: LockMemory = Remote> {
    memory: &'a M,
    offset: u64,
}

impl<M: LockMemory> Clone for TicketLock<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: LockMemory> Copy for TicketLock<'_, M> {}

/// A lock held; dropping unlocks it without telling of errors.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use telegraphos::sync::TicketLock;
/// # let shared = node.import(0, "shared").open()?;
/// # let lock = TicketLock::new(&shared, 0)?;
/// if let Some(guard) = lock.try_lock()? {
///     println!("ticket {}", guard.ticket());
///     guard.unlock()?; // dropping it would not tell whether all stores have arrived
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "the lock is free again when this is dropped"]
pub struct TicketGuard<'a, M: LockMemory = Remote> {
    lock: TicketLock<'a, M>,
    ticket: u64,
    held: bool,
}

impl TicketLock<'_> {
    /// Bytes of a lock.
    pub const SIZE: u64 = 16;
}

impl<'a, M: LockMemory> TicketLock<'a, M> {
    /// The lock at `offset` of that segment, which must be imported or joined with the rights to load, to store and to
    /// atomics.
    pub fn new(memory: &'a M, offset: u64) -> Result<TicketLock<'a, M>> {
        crate::segment::check::<u64>(offset, 2, memory.size(), || memory.what())?;
        let needed = Rights(Rights::READ.0 | Rights::WRITE.0 | Rights::ATOMIC.0);
        if !memory.rights().contains(needed) {
            return Err(memory.lacks("lock in it", "a lock needs the rights to load, to store and to atomics"));
        }
        Ok(TicketLock { memory, offset })
    }

    fn serving(&self) -> Result<u64> {
        let serving = self.memory.look(self.offset + SERVING)?;
        if serving == u64::MAX {
            // What a load gives that cannot be served, and no ticket ever is.
            let status = self.memory.fate()?.0.unwrap_or(Status::Timeout);
            return Err(Error::Failed { what: self.memory.what(), status });
        }
        Ok(serving)
    }

    fn guard(&self, ticket: u64) -> TicketGuard<'a, M> {
        // What was done under the lock before is seen by what follows.
        fence();
        TicketGuard { lock: *self, ticket, held: true }
    }

    /// Waits for [`quiet`](crate::Node::quiet) of what this process has stored before, then takes the lock, after all
    /// who asked earlier. Fails as quiet does, if stores were lost; then the lock is not asked for. When it fails while
    /// waiting (the node is gone, say), the lock is lost.
    pub fn lock(&self) -> Result<TicketGuard<'a, M>> {
        // Before the ticket: whoever waits behind it does not wait for this.
        self.memory.quiet()?;
        let ticket = self.memory.draw(self.offset)?;
        loop {
            let ahead = ticket.wrapping_sub(self.serving()?);
            match u32::try_from(ahead) {
                Ok(0) => return Ok(self.guard(ticket)),
                // The next in line looks again at once; each look at an import is a load from the other node already.
                Ok(1) => std::thread::yield_now(),
                Ok(ahead) => std::thread::sleep((TURN * ahead.min(1000)).min(TURN_MAX)),
                Err(_) => {
                    return Err(Error::Argument {
                        what: "the two words of a lock",
                        value: format!("such that ticket {ticket} has been served, at {:#x}", self.offset),
                        expected: "words that only the lock's functions change".into(),
                    });
                }
            }
        }
    }

    /// As [`TicketLock::lock`], if nobody has the lock or waits for it.
    pub fn try_lock(&self) -> Result<Option<TicketGuard<'a, M>>> {
        self.memory.quiet()?;
        self.attempt()
    }

    fn attempt(&self) -> Result<Option<TicketGuard<'a, M>>> {
        let serving = self.serving()?;
        let found = self.memory.exchange(self.offset, serving, serving + 1)?;
        Ok((found == serving).then(|| self.guard(serving)))
    }

    /// Takes the lock, but not after `timeout`: then [`Error::Pending`]. A drawn ticket cannot be given back, so this
    /// asks again and again without one, and is not fair.
    pub fn lock_timeout(&self, timeout: Duration) -> Result<TicketGuard<'a, M>> {
        let mut backoff = Backoff::new(Some(timeout));
        self.memory.quiet()?;
        loop {
            if let Some(guard) = self.attempt()? {
                return Ok(guard);
            }
            if !backoff.wait() {
                let what = format!("the lock in {}", self.memory.what());
                return Err(Error::Pending { what, waited: backoff.waited(), operations: self.memory.unfinished() });
            }
        }
    }

    pub(crate) fn unlock(&self, ticket: u64) -> Result<()> {
        // Everything stored under the lock, to whichever node, is there before the next one enters.
        let quiet = self.memory.quiet();
        if quiet.is_err() && self.memory.fate()?.1 {
            return quiet;
        }
        // Stores that were lost stay lost: to keep the lock would not bring them back.
        self.memory.tell(self.offset + SERVING, ticket + 1)?;
        quiet
    }
}

impl<M: LockMemory> TicketGuard<'_, M> {
    /// The ticket: the lock was taken so many times before.
    pub fn ticket(&self) -> u64 {
        self.ticket
    }

    /// Waits for [`quiet`](crate::Node::quiet), then lets the next one in. Fails as quiet does, if stores were lost;
    /// the lock is free all the same.
    pub fn unlock(mut self) -> Result<()> {
        self.held = false;
        self.lock.unlock(self.ticket)
    }
}

impl<M: LockMemory> Drop for TicketGuard<'_, M> {
    fn drop(&mut self) {
        if self.held {
            if let Err(error) = self.lock.unlock(self.ticket) {
                log::warn!("unlocking: {error}");
            }
        }
    }
}

/// A dissemination barrier: who has passed it sees everything that all others stored before they came.
///
/// In round k each participant tells the one 2^k further round the ring, and waits for the word of the one 2^k before:
/// no master, and log2(n) rounds. Every word has one writer and is awaited in one's own memory, by ordinary loads.
///
/// Participant i of n lives on node `participants[i]`; several may live on one node, also in one process. Each exports
/// a segment `NAME.i`, and imports those of whom it tells. One that dies is missed for ever
/// ([`Barrier::wait_timeout`]), and whoever tells it gets SIGBUS.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use std::time::Duration;
/// use telegraphos::sync::Barrier;
///
/// let participants = [0, 1, 2]; // each on the node of its number
/// let me = usize::from(node.id());
/// let mut barrier = Barrier::join(&node, "steps", &participants, me, 0o600, Duration::from_secs(10))?;
/// for _step in 0..100 {
///     // ... stores to the others ...
///     barrier.wait()?; // then everybody has everything
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Barrier {
    ring: Ring,
    progress: Progress,
}

/// What a participant of a barrier has to do with the others.
trait Neighbours {
    /// Rounds of an epoch.
    fn rounds(&self) -> usize;
    /// Of all stores of the process, whereto ever.
    fn quiet(&self, backoff: &Backoff) -> Result<()>;
    /// Stores `epoch` into the word of that round at the next participant.
    fn announce(&self, round: usize, epoch: u64) -> Result<()>;
    /// The epoch in the own word of that round.
    fn announced(&self, round: usize) -> Result<u64>;
    /// Waits a little; an error when there is no more time, or no hope.
    fn pause(&self, round: usize, backoff: &mut Backoff) -> Result<()>;
}

/// How far a participant is.
#[derive(Debug, Default)]
struct Progress {
    epoch: u64,
    /// The round of the present epoch; `None` between two epochs.
    round: Option<usize>,
}

impl Progress {
    fn pass(&mut self, others: &impl Neighbours, mut backoff: Backoff) -> Result<()> {
        let mut round = match self.round {
            Some(round) => round,
            None => {
                others.quiet(&backoff)?;
                self.epoch += 1;
                self.announce(others, 0)?;
                0
            }
        };
        while round < others.rounds() {
            self.round = Some(round);
            while others.announced(round)? < self.epoch {
                others.pause(round, &mut backoff)?;
            }
            round += 1;
            self.announce(others, round)?;
        }
        self.round = None;
        // What the others stored before they came is seen by what follows.
        fence();
        Ok(())
    }

    fn announce(&self, others: &impl Neighbours, round: usize) -> Result<()> {
        if round < others.rounds() { others.announce(round, self.epoch) } else { Ok(()) }
    }
}

#[derive(Debug)]
struct Ring {
    node: Node,
    own: Segment,
    /// The next participant of each round.
    next: Vec<Remote>,
}

impl Neighbours for Ring {
    fn rounds(&self) -> usize {
        self.next.len()
    }

    fn quiet(&self, backoff: &Backoff) -> Result<()> {
        self.node.inner.quiet(Scope::All, backoff.left())
    }

    fn announce(&self, round: usize, epoch: u64) -> Result<()> {
        self.next[round].put64(8 * round as u64, epoch)
    }

    fn announced(&self, round: usize) -> Result<u64> {
        self.own.load(8 * round as u64)
    }

    fn pause(&self, round: usize, backoff: &mut Backoff) -> Result<()> {
        if !backoff.wait() {
            let what = format!("round {round} of barrier {:?}", self.own.name());
            return Err(self.node.inner.pending(what, backoff));
        }
        if backoff.doubts() { self.alive() } else { Ok(()) }
    }
}

impl Ring {
    /// An error if a next participant has gone: then none will ever pass again.
    fn alive(&self) -> Result<()> {
        for next in &self.next {
            let state = next.state()?;
            if state.dead {
                return Err(Error::Failed { what: next.what(), status: state.error.unwrap_or(Status::Stale) });
            }
        }
        Ok(())
    }
}

impl Barrier {
    /// Joins as participant `me`. Waits, at most `timeout`, until those have come whom this one tells. `mode` says who
    /// may take part, as in [`ExportBuilder::mode`](crate::ExportBuilder::mode): `0o600` processes of this user,
    /// `0o606` everybody.
    pub fn join(
        node: &Node,
        name: &str,
        participants: &[NodeId],
        me: usize,
        mode: u32,
        timeout: Duration,
    ) -> Result<Barrier> {
        let count = participants.len();
        if me >= count {
            return Err(Error::Argument {
                what: "the number of a participant of a barrier",
                value: me.to_string(),
                expected: format!("below {count}, the number of participants"),
            });
        }
        let rounds = rounds(count);
        let size = 8 * rounds.max(1) as u64;
        let own = node.export(&format!("{name}.{me}"), size).mode(mode).create()?;
        let deadline = Instant::now().checked_add(timeout);
        let mut next = Vec::with_capacity(rounds);
        for round in 0..rounds {
            let other = (me + (1 << round)) % count;
            let import = || node.import(participants[other], &format!("{name}.{other}")).rights(Rights::WRITE).open();
            next.push(loop {
                match import() {
                    Err(error) if absent(&error) && deadline.is_none_or(|d| Instant::now() < d) => {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    result => break result?,
                }
            });
        }
        Ok(Barrier { ring: Ring { node: node.clone(), own, next }, progress: Progress::default() })
    }

    /// Waits for everybody, after [`Node::quiet`]. Fails as quiet does, if stores were lost; then nobody was told, and
    /// it may be called again.
    pub fn wait(&mut self) -> Result<()> {
        self.progress.pass(&self.ring, Backoff::new(None))
    }

    /// [`Barrier::wait`] that gives up after `timeout` with [`Error::Pending`]; it may be called again, and goes on
    /// where it was.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<()> {
        self.progress.pass(&self.ring, Backoff::new(Some(timeout)))
    }
}

/// Rounds until everybody has heard of everybody.
fn rounds(count: usize) -> usize {
    count.next_power_of_two().trailing_zeros() as usize
}

/// Whether an import fails because the other has not come yet.
fn absent(error: &Error) -> bool {
    matches!(error.status(), Some(Status::NoSegment | Status::NodeDown | Status::LinkDown | Status::Timeout))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Inner;
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;
    use std::sync::Arc;

    /// Looks are at the copy; tickets and rights are the segment's.
    #[test]
    fn a_lock_in_a_replicated_segment_looks_at_the_copy() {
        let all = Rights(Rights::READ.0 | Rights::WRITE.0 | Rights::ATOMIC.0);
        let inner = Arc::new(Inner::without_board());
        let replicated = Replicated::mirrored(&inner, all);
        let lock = TicketLock::new(&replicated, 32).unwrap();
        assert_eq!(lock.serving().unwrap(), 0);
        replicated.store(40, 3u64).unwrap();
        inner.slots.count_taken(7, 1);
        assert_eq!(lock.serving().unwrap(), 3);
        replicated.store(40, u64::MAX).unwrap();
        inner.slots.count_taken(7, 2);
        assert!(lock.serving().is_err());
        assert!(TicketLock::new(&replicated, 4).is_err());
        let reader = Replicated::without_board(&inner, Rights::READ);
        let error = TicketLock::new(&reader, 0).unwrap_err().to_string();
        assert!(error.contains("without the right to lock in it"), "{error}");
    }

    /// Memory of two nodes in which a store lands when it must: when its sender waits for quiet, or has sent something
    /// later to the same node that has landed (I8). That is the least that the network promises.
    struct Litmus {
        /// Words by node, and stores on their way there.
        words: RefCell<[BTreeMap<u64, u64>; 2]>,
        sent: RefCell<[Vec<(u64, u64)>; 2]>,
        quiets: Cell<usize>,
        /// The deliberate bug: that quiet, counted from 0, does nothing.
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

        /// What a third node sees.
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
        fn size(&self) -> u64 {
            4096
        }

        fn rights(&self) -> Rights {
            Rights(Rights::READ.0 | Rights::WRITE.0 | Rights::ATOMIC.0)
        }

        fn what(&self) -> String {
            "a litmus test".into()
        }

        fn lacks(&self, _: &'static str, _: &'static str) -> Error {
            Error::NoDevice
        }

        // Loads and atomics come behind what was sent to the same node.
        fn look(&self, offset: u64) -> Result<u64> {
            self.land(LOCKED);
            Ok(self.seen(LOCKED, offset))
        }

        fn tell(&self, offset: u64, value: u64) -> Result<()> {
            self.store(LOCKED, offset, value);
            Ok(())
        }

        fn draw(&self, offset: u64) -> Result<u64> {
            let ticket = self.look(offset)?;
            self.words.borrow_mut()[LOCKED].insert(offset, ticket + 1);
            Ok(ticket)
        }

        fn exchange(&self, offset: u64, expected: u64, value: u64) -> Result<u64> {
            let found = self.look(offset)?;
            if found == expected {
                self.words.borrow_mut()[LOCKED].insert(offset, value);
            }
            Ok(found)
        }

        fn quiet(&self) -> Result<()> {
            self.fence();
            Ok(())
        }

        fn fate(&self) -> Result<(Option<Status>, bool)> {
            Ok((None, false))
        }

        fn unfinished(&self) -> u32 {
            0
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
            // Its turn has come for the next.
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

        fn pause(&self, _: usize, backoff: &mut Backoff) -> Result<()> {
            Err(Error::Pending { what: "the others".into(), waited: backoff.waited(), operations: 0 })
        }
    }

    /// SPEC item 27: FENCE is part of every barrier. Dropping any participant's is found.
    #[test]
    fn item27_who_passes_a_barrier_sees_what_all_stored_before_it() {
        for count in 2..=9 {
            // The participant that stores comes last, and no later one's quiet helps it.
            let all_see = |dropped| {
                let sea = Litmus::new(dropped);
                let mut progress: Vec<Progress> = (0..count).map(|_| Progress::default()).collect();
                let mut pass = |me: usize| progress[me].pass(&Participant { sea: &sea, me, count }, Backoff::new(None));
                for me in 0..count - 1 {
                    assert!(pass(me).is_err(), "participant {me} of {count} passes without the last");
                }
                sea.store(OTHER, DATA, 1);
                let last = pass(count - 1);
                let mut right = last.is_err() || sea.seen(OTHER, DATA) == 1;
                for _ in 0..count {
                    for (me, own) in progress.iter_mut().enumerate() {
                        if own.round.is_some() {
                            let passed = own.pass(&Participant { sea: &sea, me, count }, Backoff::new(None));
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

    /// After the last round, everybody has heard, directly or not, of everybody.
    #[test]
    fn dissemination_reaches_everybody() {
        for count in 1..=33usize {
            let mut heard: Vec<u64> = (0..count).map(|me| 1 << me).collect();
            for round in 0..rounds(count) {
                heard = (0..count).map(|me| heard[me] | heard[(me + count - (1 << round)) % count]).collect();
            }
            assert!(heard.iter().all(|h| *h == (1 << count) - 1), "{count} participants");
            let fewer = rounds(count).saturating_sub(1);
            assert!(count == 1 || 1 << fewer < count, "{count} participants need no more rounds than that");
        }
    }
}
