// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the same program on several nodes finds its peers and synchronises with them, by the product itself only.
//!
//! Every node exports a control segment and imports those of all others. A word has one writer: of the segment of node
//! n, word p is stored by node p alone, and is its epoch; the mail of p for n follows these words.

use crate::cli::{Failure, Outcome};
use crate::patience::{ABSENT, admitted, becomes};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use telegraphos::{Error, Node, NodeId, Remote, Segment, Status};

/// Words of mail from one node to another.
pub const MAIL: u64 = 16;

/// Participants of a run.
#[derive(Clone, Copy, Debug)]
pub enum Participants {
    /// Every node that is in the cluster now.
    Present,
    /// Nodes `0..n`.
    Count(u32),
    /// This node and that one.
    With(NodeId),
}

pub struct Peers {
    pub node: Node,
    /// Ids of all participants, this node included, in order.
    pub all: Vec<NodeId>,
    /// Number of nodes the window can address.
    pub nodes: u32,
    control: Segment,
    remotes: BTreeMap<NodeId, Remote>,
    patience: Duration,
}

impl Peers {
    /// Finds the others; each exports its control segment under `name`.
    pub fn connect(node: &Node, name: &str, participants: Participants, patience: Duration) -> Outcome<Peers> {
        let nodes = node.info()?.nodes;
        let me = node.id();
        let candidates: Vec<NodeId> = match participants {
            Participants::Present => (0..nodes as NodeId).collect(),
            Participants::Count(count) if count > nodes || u32::from(me) >= count => {
                return Err(Failure::Usage(format!(
                    "{count} nodes: this one is node {me}, and the window addresses {nodes}: expected {} to {nodes}",
                    me + 1
                )));
            }
            Participants::Count(count) => (0..count as NodeId).collect(),
            Participants::With(other) => vec![other],
        };
        let control = node.export(name, u64::from(nodes) * 8 * (1 + MAIL)).mode(0o606).create()?;
        let deadline = Instant::now() + patience;
        let mut remotes = BTreeMap::new();
        for id in candidates.into_iter().filter(|id| *id != me) {
            // Of those that are present, none is waited for that is not.
            let present = matches!(participants, Participants::Present);
            let passing = [Status::NoSegment, Status::LinkDown, Status::Timeout, Status::NodeDown];
            let passing = if present { &passing[..3] } else { &passing };
            let left = deadline.saturating_duration_since(Instant::now());
            match admitted(left, passing, || node.import(id, name).open()) {
                Ok(remote) => _ = remotes.insert(id, remote),
                Err(error) if present && error.status() == Some(Status::NodeDown) => {}
                Err(error) if error.status().is_some_and(|status| passing.contains(&status)) => {
                    return Err(Failure::Refused(format!("waited {patience:?} for node {id}: {error}")));
                }
                Err(error) => return Err(error.into()),
            }
        }
        let mut all: Vec<NodeId> = remotes.keys().copied().chain([me]).collect();
        all.sort_unstable();
        Ok(Peers { node: node.clone(), all, nodes, control, remotes, patience })
    }

    pub fn me(&self) -> NodeId {
        self.node.id()
    }

    /// All participants but this node.
    pub fn others(&self) -> impl Iterator<Item = NodeId> {
        self.all.iter().copied().filter(|id| *id != self.me())
    }

    /// How many nodes take part, and this one's place among them.
    pub fn place(&self) -> (usize, usize) {
        (self.all.len(), self.all.iter().position(|id| *id == self.me()).unwrap_or(0))
    }

    /// The node `distance` further in the ring of participants.
    pub fn ring(&self, distance: usize) -> NodeId {
        let (count, here) = self.place();
        self.all.get((here + distance) % count).copied().unwrap_or(self.me())
    }

    /// The next node, to which this one stores.
    pub fn right(&self) -> NodeId {
        self.ring(1)
    }

    /// The previous node, which stores to this one.
    pub fn left(&self) -> NodeId {
        self.ring(self.all.len() - 1)
    }

    /// Ids of nodes that do not take part.
    pub fn absent(&self) -> impl Iterator<Item = NodeId> {
        (0..self.nodes as NodeId).filter(|id| !self.all.contains(id))
    }

    /// Announces `epoch` of this node to all, and waits until all have reached it.
    pub fn barrier(&self, epoch: u64) -> Outcome<()> {
        self.arrive(epoch)?;
        let deadline = Instant::now() + self.patience;
        self.others().try_for_each(|id| {
            let late = |found: &u64| {
                Failure::Refused(format!(
                    "node {id} is at step {found}, waited {:?} for step {epoch}: has its program ended?",
                    self.patience
                ))
            };
            let left = deadline.saturating_duration_since(Instant::now());
            becomes(left, Duration::from_micros(200), || self.at(id), |found| *found >= epoch, late).map(drop)
        })
    }

    /// Announces `epoch` of this node to all.
    pub fn arrive(&self, epoch: u64) -> Outcome<()> {
        for remote in self.remotes.values() {
            remote.put64(u64::from(self.me()) * 8, epoch)?;
        }
        Ok(())
    }

    /// The epoch that a node has announced.
    pub fn at(&self, id: NodeId) -> Outcome<u64> {
        Ok(self.control.load(u64::from(id) * 8)?)
    }

    fn mail(&self, from: NodeId, slot: u64) -> u64 {
        debug_assert!(slot < MAIL);
        8 * (u64::from(self.nodes) + u64::from(from) * MAIL + slot)
    }

    /// Sends a word to a node, which can read it after the next barrier.
    pub fn send(&self, to: NodeId, slot: u64, value: u64) -> Outcome<()> {
        let at = self.mail(self.me(), slot);
        match self.remotes.get(&to) {
            Some(remote) => remote.put64(at, value)?,
            None => self.control.store(at, value)?,
        }
        Ok(())
    }

    /// The word that a node has sent to this one.
    pub fn received(&self, from: NodeId, slot: u64) -> Outcome<u64> {
        Ok(self.control.load(self.mail(from, slot))?)
    }
}

/// Imports a segment, waiting until it is exported or `patience` is over.
pub fn import_patiently(node: &Node, id: NodeId, name: &str, patience: Duration) -> Result<Remote, Error> {
    admitted(patience, ABSENT, || node.import(id, name).open())
}
