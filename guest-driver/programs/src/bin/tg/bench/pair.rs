// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the node that measures has the second one answer: it names what is to be done, and how often; the second does
//! it, and says so (`partner`).

use std::time::Duration;
use telegraphos::{Node, NodeId};
use telegraphos_guest_tests::cli::{Failure, Outcome};
use telegraphos_guest_tests::patience::until;
use telegraphos_guest_tests::peers::Peers;

/// Mail: what, how often, from which number.
pub(crate) const MAIL: [u64; 3] = [0, 1, 2];
/// Orders above this one are to drain a queue.
pub(crate) const DRAIN: u64 = 1000;
/// The last step.
pub(crate) const END: u64 = u64::MAX;
/// How long an order may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Nodes that only wait do so without a limit that matters.
const WHOLE: Duration = Duration::from_secs(6 * 3600);
/// Between two looks, asleep.
const PAUSE: Duration = Duration::from_micros(200);

pub(crate) struct Lead<'a> {
    peers: &'a Peers,
    partner: NodeId,
    epoch: u64,
    sequence: u64,
}

impl<'a> Lead<'a> {
    pub(crate) fn new(peers: &'a Peers, partner: NodeId) -> Lead<'a> {
        Lead { peers, partner, epoch: 1, sequence: 0 }
    }

    pub(crate) fn node(&self) -> &'a Node {
        &self.peers.node
    }

    pub(crate) fn partner(&self) -> NodeId {
        self.partner
    }

    /// Has the partner do something `count` times; the first number, of as many that never come again.
    pub(crate) fn order(&mut self, what: u64, count: u64) -> Outcome<u64> {
        let first = self.sequence + 1;
        self.sequence += count;
        for (slot, value) in MAIL.into_iter().zip([what, count, first]) {
            self.peers.send(self.partner, slot, value)?;
        }
        self.epoch += 1;
        self.peers.arrive(self.epoch)?;
        Ok(first)
    }

    /// Waits until it has done it, asleep.
    pub(crate) fn wait(&self) -> Outcome<()> {
        let late = || Failure::Refused(format!("node {} has not answered for {PATIENCE:?}", self.partner));
        until(PATIENCE, PAUSE, || Ok(self.peers.at(self.partner)? >= self.epoch), late)
    }

    pub(crate) fn end(&self) -> Outcome<()> {
        self.peers.arrive(END)
    }
}

/// Waits for the node that measures.
pub(crate) fn wait_for(peers: &Peers, lead: NodeId, epoch: u64) -> Outcome<()> {
    let late = || Failure::Refused(format!("waited {WHOLE:?}"));
    until(WHOLE, PAUSE, || Ok(peers.at(lead)? >= epoch), late)
}
