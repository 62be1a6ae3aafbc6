// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which epochs of whose imports have had a store refused here: every later store of them is refused, too, so that none
//! passes a lost one (SPEC I8; `docs/architecture.md`, "Back-pressure").

use crate::hib::Hib;
use std::collections::BTreeMap;
use telegraphos_accounts::{Account, Shares};
use telegraphos_wire::{ImportEpoch, NodeId};

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

    /// Whether a store of this epoch, or of a later one of the import, has been refused. Epochs of an import only grow, modulo 2^32.
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
    pub(crate) fn clear(&mut self) {
        self.epochs.clear();
        self.entries.clear();
    }

    /// Entries in all.
    pub(crate) fn len(&self) -> usize {
        self.epochs.len()
    }
}

impl Hib {
    /// Epochs of imports of which this board has refused a store: at most [`crate::HibConfig::imports`] of each node.
    pub fn refused_epochs(&self) -> usize {
        self.responder.refusals.len()
    }
}
