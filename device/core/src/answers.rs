// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers to requests, and what their senders may rely on.
//!
//! - [`Refusals`]: which epochs of whose imports have had a store refused here; every later store of them is refused,
//!   too, so that none passes a lost one (SPEC I8; `docs/architecture.md`, "Back-pressure").
//! - How many requests of each source have been performed: an element for a queue comes after those that were sent
//!   before it (SPEC I8).

use crate::HibConfig;
use crate::config::Bug;
use crate::ctx::Ctx;
use std::collections::BTreeMap;
use telegraphos_accounts::{Account, Shares};
use telegraphos_wire::{Body, ImportEpoch, NodeId, Packet, Status};

/// The last refused epoch of each import, on the account of the import's node. A node that names more imports than a
/// board has loses the promise for its own stores, and nothing of others.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Refusals {
    epochs: BTreeMap<(NodeId, u16), u32>,
    entries: Account<NodeId>,
}

impl Refusals {
    /// Nothing refused; `imports` are those of one board.
    pub(crate) fn new(nodes: u32, imports: u16) -> Refusals {
        let capacity = u64::from(nodes) * u64::from(imports);
        Refusals { epochs: BTreeMap::new(), entries: Account::new(Shares::equal(capacity, nodes.into())) }
    }

    /// Whether a store of this epoch, or of a later one of the import, has been refused. Epochs of an import only grow,
    /// modulo 2^32.
    pub(crate) fn is_refused(&self, source: NodeId, of: ImportEpoch) -> bool {
        let last = self.epochs.get(&(source, of.import));
        last.is_some_and(|last| of.epoch.wrapping_sub(*last) as i32 <= 0)
    }

    /// A store of this epoch is refused.
    pub(crate) fn remember(&mut self, source: NodeId, of: ImportEpoch) {
        let known = self.epochs.contains_key(&(source, of.import));
        if known || self.entries.take(source, 1).is_ok() {
            let last = self.epochs.entry((source, of.import)).or_insert(of.epoch);
            if of.epoch.wrapping_sub(*last) as i32 > 0 {
                *last = of.epoch;
            }
        }
    }

    /// A node has gone, or its imports with its earlier life.
    pub(crate) fn forget(&mut self, source: NodeId) {
        if self.entries.close(&source) > 0 {
            self.epochs.retain(|(node, _), _| *node != source);
        }
    }

    /// This node lives another life: nothing is sent to it any more that was meant for this one.
    fn clear(&mut self) {
        self.epochs.clear();
        self.entries.clear();
    }

    /// Entries in all.
    pub(crate) fn len(&self) -> usize {
        self.epochs.len()
    }
}

/// See the module.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Answers {
    refusals: Refusals,
    /// Per source: its life, and how many of its requests have been performed since both nodes live their present
    /// lives, modulo 2^32.
    performed: Vec<(u64, u32)>,
}

impl Answers {
    pub(crate) fn new(config: &HibConfig) -> Answers {
        Answers {
            refusals: Refusals::new(config.window.nodes(), config.imports),
            performed: vec![(0, 0); config.window.nodes() as usize],
        }
    }

    /// Epochs of imports of which a store has been refused.
    pub(crate) fn refused_epochs(&self) -> usize {
        self.refusals.len()
    }

    /// A node has gone, or its imports with its earlier life.
    pub(crate) fn forget_refusals(&mut self, node: NodeId) {
        self.refusals.forget(node);
    }

    /// Reset.
    pub(crate) fn forget_all_refusals(&mut self) {
        self.refusals.clear();
    }

    /// This node lives a new life for the others, or has lost them: they begin to count anew. Its own requests to
    /// itself do so at a reset.
    pub(crate) fn forget_performed(&mut self, own: NodeId) {
        let kept = self.performed.get(usize::from(own)).copied();
        self.performed.fill((0, 0));
        if let (Some(kept), Some(entry)) = (kept, self.performed.get_mut(usize::from(own))) {
            *entry = kept;
        }
    }
}

impl Ctx {
    /// Whether a request comes behind a store of its import that has been refused, so that it is refused, too (SPEC
    /// I8).
    pub(crate) fn is_behind_refused(&self, packet: &Packet) -> bool {
        packet.body.epoch().is_some_and(|epoch| self.answers.refusals.is_refused(packet.src, epoch))
    }

    /// Answers a request that has left the queue of its source. A store that is refused takes with it what comes behind
    /// it.
    pub(crate) fn reply_to(&mut self, packet: &Packet, body: Body) {
        if let (Body::WriteAck { status }, Some(epoch)) = (&body, packet.body.epoch()) {
            let lost = match packet.body {
                Body::Write { .. } | Body::Enqueue { .. } => !status.is_ok(),
                // The copy sends it to the new home, or knows by this that its page has none; it is not lost here.
                Body::Update { .. } => !matches!(status, Status::Ok | Status::NotHome | Status::Moving),
                // Atomics and blocks fail for themselves: what has launched them learns it.
                _ => false,
            };
            // Of an earlier life is also what will come behind it.
            if lost && *status != Status::Reset && !self.has(Bug::ForgetRefusal) {
                self.answers.refusals.remember(packet.src, epoch);
            }
        }
        let reply = Packet {
            src: self.config.node,
            dst: packet.src,
            tag: packet.tag,
            incarnation: packet.incarnation,
            target: 0,
            body,
        };
        self.transmit(reply);
    }

    /// The life of the requester that a packet belongs to. To itself, a node's life changes only with its resets.
    fn life(&self, packet: &Packet) -> u64 {
        if packet.src == self.config.node { packet.target } else { packet.incarnation }
    }

    /// Requests of the packet's sender that have been performed, of those that its `after` counts.
    pub(crate) fn performed(&self, packet: &Packet) -> u32 {
        match self.answers.performed.get(usize::from(packet.src)) {
            Some((life, count)) if *life == self.life(packet) => *count,
            _ => 0,
        }
    }

    /// A request has been performed or refused. Only what the present lives of both nodes say to each other counts.
    pub(crate) fn count_performed(&mut self, packet: &Packet) {
        let own = packet.src == self.config.node;
        let life = self.life(packet);
        let present = packet.target == if own { self.resets } else { self.incarnation };
        if let Some(entry) = self.answers.performed.get_mut(usize::from(packet.src)).filter(|_| present) {
            let count = if entry.0 == life { entry.1 } else { 0 };
            *entry = (life, count.wrapping_add(1));
        }
    }
}

/// The body that refuses a request.
pub(crate) fn refusal(body: &Body, status: Status) -> Body {
    body.refusal(status).unwrap_or(Body::WriteAck { status })
}
