// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the node that measures has the second one answer: it names what is to be done, and how often; the second does
//! it, and says so (`partner`).

use std::time::{Duration, Instant};
use telegraphos::{Node, NodeId};
use telegraphos_guest_tests::cli::{Failure, Outcome};
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
pub(crate) const WHOLE: Duration = Duration::from_secs(6 * 3600);

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
        until(PATIENCE, || Ok(self.peers.at(self.partner)? >= self.epoch))
            .map_err(|_| Failure::Refused(format!("node {} has not answered for {PATIENCE:?}", self.partner)))
    }

    pub(crate) fn end(&self) -> Outcome<()> {
        self.peers.arrive(END)
    }
}

pub(crate) fn until(patience: Duration, mut ready: impl FnMut() -> Outcome<bool>) -> Outcome<()> {
    let begun = Instant::now();
    while !ready()? {
        if begun.elapsed() > patience {
            return Err(Failure::Refused(format!("waited {patience:?}")));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

/// What a node does that is neither of the two.
pub(crate) fn wait_for_end(peers: &Peers, lead: NodeId) -> Outcome<()> {
    until(WHOLE, || Ok(peers.at(lead)? == END))
}
