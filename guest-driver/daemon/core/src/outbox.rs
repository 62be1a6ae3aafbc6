// SPDX-License-Identifier: MIT OR Apache-2.0
//! Letters that are on their way to other nodes: how many there may be, and of whose requests.
//!
//! The shell sends the letters to a node in their order, and reports the end of each ([`Event::Sent`](crate::Event)).
//! Requests of clients are on the accounts of their users, and refused beyond them. All other letters follow from
//! requests that were accepted, from clients, or from what this daemon has only once: those are bounded by what they
//! follow from, and never refused.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use telegraphos_accounts::{Exhausted, Shares, Users};

/// Ordinary users that have a guaranteed share.
const USERS: u64 = 32;
/// KiB of requests on their way to all nodes; half of it in guaranteed shares.
const KIB: u64 = 32 << 10;
/// Those of one user, at most: 256 tasks of the longest job.
const KIB_OF_A_USER: u64 = 12 << 10;
/// Beside them those of root.
const KIB_OF_ROOT: u64 = 9 << 10;
/// Letters to one node that are no requests, at most. A node that keeps its own limits is never owed so many.
const OWED: usize = 16 << 10;
/// Partitions on their way to a node, at most: all that there can be.
const PARTITIONS: usize = 256;

/// What a letter is charged as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freight {
    Request { uid: u32, kib: u64 },
    Partition,
    Fenced,
    Owed,
}

#[derive(Debug)]
struct Queue {
    letters: Users,
    order: VecDeque<Freight>,
    owed: usize,
    partitions: usize,
    is_fenced: bool,
    /// Partitions that have changed and are not on their way.
    changed: BTreeSet<String>,
}

/// All letters on their way.
#[derive(Debug)]
pub(crate) struct Outbox {
    shares: Shares,
    reserve: u64,
    kib: Users,
    queues: BTreeMap<u16, Queue>,
}

impl Outbox {
    /// For so many requests to each node; half of them in guaranteed shares, and root has an eighth beside them.
    pub(crate) fn new(letters: u64, without_shares: bool) -> Outbox {
        let shares = match without_shares {
            true => Shares::single(letters),
            false => Shares::half_guaranteed(letters, USERS, letters / 2),
        };
        Outbox {
            shares,
            reserve: letters / 8,
            kib: Users::new(Shares::half_guaranteed(KIB, USERS, KIB_OF_A_USER), KIB_OF_ROOT),
            queues: BTreeMap::new(),
        }
    }

    fn queue(&mut self, node: u16) -> &mut Queue {
        let (shares, reserve) = (self.shares, self.reserve);
        self.queues.entry(node).or_insert_with(|| Queue {
            letters: Users::new(shares, reserve),
            order: VecDeque::new(),
            owed: 0,
            partitions: 0,
            is_fenced: false,
            changed: BTreeSet::new(),
        })
    }

    /// Requests to a node that this user could send now.
    pub(crate) fn available(&mut self, node: u16, uid: u32) -> u64 {
        self.queue(node).letters.available(uid).min(self.kib.available(uid))
    }

    /// Requests of a user on their way to a node.
    pub(crate) fn held(&mut self, node: u16, uid: u32) -> u64 {
        self.queue(node).letters.held(uid)
    }

    /// A request of a user goes to a node: of so many bytes.
    ///
    /// # Errors
    ///
    /// What it is too much of.
    pub(crate) fn request(&mut self, node: u16, uid: u32, bytes: usize) -> Result<(), (&'static str, Exhausted)> {
        let kib = 1 + bytes as u64 / 1024;
        self.kib.take(uid, kib).map_err(|exhausted| ("KiB of letters", exhausted))?;
        let queue = self.queue(node);
        if let Err(exhausted) = queue.letters.take(uid, 1) {
            self.kib.give(uid, kib);
            return Err(("letters to one node", exhausted));
        }
        queue.order.push_back(Freight::Request { uid, kib });
        Ok(())
    }

    /// A letter that is owed goes to a node.
    ///
    /// # Errors
    ///
    /// That node is owed more than it can have asked for.
    pub(crate) fn owe(&mut self, node: u16) -> Result<(), Exhausted> {
        let queue = self.queue(node);
        if queue.owed >= OWED {
            return Err(Exhausted { held: OWED as u64, requested: 1, limit: OWED as u64 });
        }
        queue.owed += 1;
        queue.order.push_back(Freight::Owed);
        Ok(())
    }

    /// Whether a partition goes to a node now. If not, it does when those on their way have arrived.
    pub(crate) fn partition(&mut self, node: u16, name: &str) -> bool {
        let queue = self.queue(node);
        if queue.partitions >= PARTITIONS {
            queue.changed.insert(name.into());
            return false;
        }
        queue.partitions += 1;
        queue.order.push_back(Freight::Partition);
        true
    }

    /// Whether `Fenced` goes to a node now: one at a time.
    pub(crate) fn fence(&mut self, node: u16) -> bool {
        let queue = self.queue(node);
        if queue.is_fenced {
            return false;
        }
        queue.is_fenced = true;
        queue.order.push_back(Freight::Fenced);
        true
    }

    /// The first letter to a node has come to its end: the partitions that go there now.
    pub(crate) fn sent(&mut self, node: u16) -> BTreeSet<String> {
        let Some(queue) = self.queues.get_mut(&node) else { return BTreeSet::new() };
        match queue.order.pop_front() {
            Some(Freight::Request { uid, kib }) => {
                queue.letters.give(uid, 1);
                self.kib.give(uid, kib);
            }
            Some(Freight::Partition) => {
                queue.partitions -= 1;
                if queue.partitions == 0 {
                    return std::mem::take(&mut queue.changed);
                }
            }
            Some(Freight::Fenced) => queue.is_fenced = false,
            Some(Freight::Owed) => queue.owed -= 1,
            None => {}
        }
        BTreeSet::new()
    }

    /// Letters on their way to a node.
    pub(crate) fn on_their_way(&self, node: u16) -> usize {
        self.queues.get(&node).map_or(0, |queue| queue.order.len())
    }
}
