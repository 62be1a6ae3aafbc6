// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records of replies on which the ordering guarantees of the responder depend.
//!
//! - [`Refusals`]: epochs of imports of which this node has refused a store. Every later store of such an epoch is
//!   refused as well, so that none passes a lost one (SPEC I8; `docs/architecture.md`, "Back-pressure").
//! - The number of performed requests of each source: an element for a queue is performed after the requests that were
//!   sent before it (SPEC I8).
//!
//! The responder and the queues record their replies through [`Ctx`](crate::ctx::Ctx), and read the records before they
//! perform a request.

use crate::HibConfig;
use crate::by_node::ByNode;
use telegraphos_accounts::{Account, Shares};
use telegraphos_wire::{Body, ImportEpoch, NodeId, Packet, Status};

/// The last refused epoch of each import, charged to the account of the importing node. A node that names more imports
/// than a board has loses the ordering guarantee for its own stores only.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Refusals {
    /// By node: imports and their last refused epochs, ascending. Empty for a node of which nothing was refused: then a
    /// look-up is an index.
    epochs: ByNode<Vec<(u16, u32)>>,
    /// Number of entries of all nodes.
    pub(crate) len: usize,
    entries: Account<NodeId>,
}

impl Refusals {
    /// No refusals. `imports` is the number of imports of one board and bounds the entries of each node.
    pub(crate) fn new(nodes: u32, imports: u16) -> Refusals {
        let capacity = u64::from(nodes) * u64::from(imports);
        let entries = Account::new(Shares::equal(capacity, nodes.into()));
        Refusals { epochs: ByNode::new(nodes, Vec::new()), len: 0, entries }
    }

    /// Returns whether a store of this epoch, or of a later one of the import, was refused. Epochs of an import only
    /// grow, modulo 2^32.
    pub(crate) fn is_refused(&self, source: NodeId, of: ImportEpoch) -> bool {
        let epochs = &self.epochs[usize::from(source)];
        let place = epochs.binary_search_by_key(&of.import, |(import, _)| *import);
        place.is_ok_and(|place| of.epoch.wrapping_sub(epochs[place].1) as i32 <= 0)
    }

    /// Records the refusal of a store of this epoch. Has no effect if the node's account is exhausted.
    pub(crate) fn record(&mut self, source: NodeId, of: ImportEpoch) {
        let Some(epochs) = self.epochs.get_mut(source) else { return };
        match epochs.binary_search_by_key(&of.import, |(import, _)| *import) {
            Ok(place) => {
                let last = &mut epochs[place].1;
                if of.epoch.wrapping_sub(*last) as i32 > 0 {
                    *last = of.epoch;
                }
            }
            Err(place) => {
                if self.entries.take(source, 1).is_ok() {
                    epochs.insert(place, (of.import, of.epoch));
                    self.len += 1;
                }
            }
        }
    }

    /// Removes the entries of a node that is down or has a new incarnation.
    pub(crate) fn forget(&mut self, source: NodeId) {
        if self.entries.close(&source) > 0 {
            if let Some(epochs) = self.epochs.existing_mut(source) {
                self.len -= std::mem::take(epochs).len();
            }
        }
    }

    /// Removes all entries. After a reset of this node, stores for its earlier incarnation are refused anyway.
    pub(crate) fn clear(&mut self) {
        self.epochs.values_mut().for_each(|epochs| *epochs = Vec::new());
        self.len = 0;
        self.entries.clear();
    }
}

/// Records of replies; see the module documentation.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Answers {
    pub(crate) refusals: Refusals,
    /// By source: its session, and the number of its requests performed in the current sessions of both nodes, modulo
    /// 2^32.
    performed: ByNode<(u64, u32)>,
}

impl Answers {
    /// No refusals and no performed requests.
    pub(crate) fn new(config: &HibConfig) -> Answers {
        Answers {
            refusals: Refusals::new(config.window.nodes(), config.imports),
            performed: ByNode::new(config.window.nodes(), (0, 0)),
        }
    }

    /// Reads what a request of `source` needs.
    pub(crate) fn look_ahead(&self, source: NodeId) {
        std::hint::black_box(self.performed[usize::from(source)]);
    }

    /// Returns whether a store of the request's import was refused before it, so that it must be refused as well (SPEC
    /// I8).
    pub(crate) fn follows_refused_store(&self, packet: &Packet) -> bool {
        self.refusals.len > 0 && packet.body.epoch().is_some_and(|epoch| self.refusals.is_refused(packet.src, epoch))
    }

    /// Records the reply to a request: a refused store makes every later store of its epoch refused.
    pub(crate) fn note_reply(&mut self, packet: &Packet, body: &Body) {
        let (Body::WriteAck { status } | Body::BurstRefused { status, .. }, Some(epoch)) = (body, packet.body.epoch())
        else {
            return;
        };
        let lost = match packet.body {
            Body::Write { .. } | Body::WriteBurst { .. } | Body::Enqueue { .. } => !status.is_ok(),
            // Not lost: the copy sends it to the new home, or finds that its page has none.
            Body::Update { .. } => !matches!(status, Status::Ok | Status::NotHome | Status::Moving),
            // Atomics and blocks do not fail the stores behind them: their operation reports the error.
            _ => false,
        };
        // Stores behind one of an earlier incarnation belong to that incarnation as well, and are refused for it.
        if lost && *status != Status::Reset {
            self.refusals.record(packet.src, epoch);
        }
    }

    /// Number of performed requests of the packet's sender in this `session` of it, modulo 2^32; 0 in a new session.
    pub(crate) fn performed(&self, packet: &Packet, session: u64) -> u32 {
        let (of, count) = self.performed[usize::from(packet.src)];
        if of == session { count } else { 0 }
    }

    /// Counts a request of this `session` as performed or refused.
    pub(crate) fn count_performed(&mut self, packet: &Packet, session: u64) {
        if let Some(entry) = self.performed.get_mut(packet.src) {
            let count = if entry.0 == session { entry.1 } else { 0 };
            *entry = (session, count.wrapping_add(1));
        }
    }

    /// Restarts the counts of all nodes but `own`. Called when this node joins or leaves the fabric. The requests of
    /// this node to itself restart at a reset, because their session is the number of resets.
    pub(crate) fn forget_performed(&mut self, own: NodeId) {
        let kept = self.performed[usize::from(own)];
        self.performed.values_mut().for_each(|entry| *entry = (0, 0));
        if let Some(entry) = self.performed.existing_mut(own) {
            *entry = kept;
        }
    }
}

/// The reply body that refuses a request with `status`.
pub(crate) fn refusal(body: &Body, status: Status) -> Body {
    body.refusal(status).unwrap_or(Body::WriteAck { status })
}
