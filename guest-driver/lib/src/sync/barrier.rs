// SPDX-License-Identifier: MIT OR Apache-2.0
//! Barriers.

use crate::access::fence;
use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::node::Node;
use crate::quiet::Scope;
use crate::remote::Remote;
use crate::segment::Segment;
use crate::word_wait::WordWait;
use std::time::{Duration, Instant};
use telegraphos_wire::{NodeId, Rights, Status};

/// A dissemination barrier: a participant that has passed it sees all stores that the others made before they reached
/// it.
///
/// In round k each participant notifies the one 2^k further along the ring, and waits for the word of the one 2^k
/// before: no master, and log2(n) rounds. Every word has one writer; its reader polls its own memory, by ordinary
/// loads, and sleeps until its board's interrupt when the others take longer than 20 ms.
///
/// Participant i of n runs on node `participants[i]`; several may run on one node, also in one process. Each exports a
/// segment `NAME.i`, and imports those of the participants that it notifies. If one dies, the others wait for it for
/// ever ([`Barrier::wait_timeout`]), and a participant that notifies it gets SIGBUS.
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
///     barrier.wait()?; // now all participants have them
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Barrier {
    ring: Ring,
    progress: Progress,
}

/// The communication of a participant with the others.
pub(super) trait Neighbours {
    /// The number of rounds of an epoch.
    fn rounds(&self) -> usize;
    /// Returns when all stores of the context have arrived, on any node.
    fn quiet(&self, backoff: &Backoff) -> Result<()>;
    /// Stores `epoch` into the word of that round at the next participant.
    fn announce(&self, round: usize, epoch: u64) -> Result<()>;
    /// The epoch in this participant's word of that round.
    fn announced(&self, round: usize) -> Result<u64>;
    /// Pauses before the next poll. Fails at the limit of `wait`, and when a neighbour is gone.
    fn pause(&self, round: usize, wait: &mut WordWait) -> Result<()>;
}

/// The progress of a participant.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) epoch: u64,
    /// The round of the present epoch; `None` between two epochs.
    pub(super) round: Option<usize>,
}

impl Progress {
    /// Passes the barrier; after an error, continues where it was.
    pub(super) fn pass(&mut self, others: &impl Neighbours, mut wait: WordWait) -> Result<()> {
        let mut round = match self.round {
            Some(round) => round,
            None => {
                others.quiet(&wait.backoff)?;
                self.epoch += 1;
                self.announce(others, 0)?;
                0
            }
        };
        while round < others.rounds() {
            self.round = Some(round);
            while others.announced(round)? < self.epoch {
                others.pause(round, &mut wait)?;
            }
            round += 1;
            self.announce(others, round)?;
        }
        self.round = None;
        // Later accesses see the stores that the others made before they reached the barrier.
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
        self.node.context.quiet(Scope::All, backoff.left())
    }

    fn announce(&self, round: usize, epoch: u64) -> Result<()> {
        self.next[round].put64(8 * round as u64, epoch)
    }

    fn announced(&self, round: usize) -> Result<u64> {
        self.own.load(8 * round as u64)
    }

    fn pause(&self, round: usize, wait: &mut WordWait) -> Result<()> {
        let arm = || self.own.arm_word(8 * round as u64);
        if !wait.pause(&self.node.context, arm, || self.check_alive())? {
            let what = format!("round {round} of barrier {:?}", self.own.name());
            return Err(self.node.context.pending(what, &wait.backoff));
        }
        Ok(())
    }
}

impl Ring {
    /// Fails if a next participant is gone: then none can pass any more.
    fn check_alive(&self) -> Result<()> {
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
    /// Joins as participant `me`. Waits, at most `timeout`, until the participants that this one notifies have joined.
    /// `mode` admits participants, as [`ExportBuilder::mode`](crate::ExportBuilder::mode): `0o600` processes of this
    /// user, `0o606` of all users.
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
            let expected = format!("below {count}, the number of participants");
            return Err(Error::argument("the number of a participant of a barrier", me, expected));
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

    /// Waits for all participants, after [`Node::quiet`]. Fails as quiet does, if stores were lost; then no participant
    /// was notified, and it may be called again.
    pub fn wait(&mut self) -> Result<()> {
        self.wait_within(None)
    }

    /// [`Barrier::wait`] that fails after `timeout` with [`Error::Pending`]; it may be called again, and continues
    /// where it was.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<()> {
        self.wait_within(Some(timeout))
    }

    /// [`Barrier::wait`] with a limit, or without (`None`).
    pub(crate) fn wait_within(&mut self, limit: Option<Duration>) -> Result<()> {
        self.progress.pass(&self.ring, WordWait::new(limit))
    }
}

/// The number of rounds after which each participant has an announcement of every other.
pub(super) fn rounds(count: usize) -> usize {
    count.next_power_of_two().trailing_zeros() as usize
}

/// Whether an import fails because the other participant has not joined yet.
fn absent(error: &Error) -> bool {
    matches!(error.status(), Some(Status::NoSegment | Status::NodeDown | Status::LinkDown | Status::Timeout))
}
