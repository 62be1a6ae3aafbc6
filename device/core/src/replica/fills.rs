// SPDX-License-Identifier: MIT OR Apache-2.0
//! The content of new copies: blocks in flight to each node, and the pages that wait until their next may be sent.

use super::page::{ReplicaPage, Work};
use super::shares;
use crate::HibConfig;
use crate::table::Table;
use std::collections::{BTreeMap, VecDeque};
use telegraphos_accounts::Account;
use telegraphos_wire::NodeId;

/// What is in flight and what waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fills {
    /// Blocks in flight to new copies, by node.
    blocks: Account<NodeId>,
    /// By node, the pages whose copy there waits until its next block may be sent.
    waiting: BTreeMap<NodeId, VecDeque<u32>>,
}

impl Fills {
    pub(super) fn new(config: &HibConfig) -> Fills {
        Fills { blocks: Account::new(shares::fill_shares(config)), waiting: BTreeMap::new() }
    }

    /// Queues the block at this offset for a new copy, or makes the copy wait until its node has acknowledged enough
    /// earlier blocks.
    pub(super) fn fill_from(&mut self, replica: &mut ReplicaPage, node: NodeId, offset: u32) {
        if self.blocks.available(&node) > 0 && self.blocks.take(node, 1).is_ok() {
            replica.work.push_back(Work::Read(node, offset));
        } else {
            replica.filling.insert(node, offset);
            self.waiting.entry(node).or_default().push_back(replica.page);
        }
    }

    /// Releases the share of a block that is no longer in flight. Returns the nodes with copies that wait: for this
    /// node or, if the class's credits were the limit, for another.
    pub(super) fn release(&mut self, node: NodeId) -> Vec<NodeId> {
        self.blocks.give(&node, 1);
        self.waiting.keys().copied().collect()
    }

    /// Queues the next block that waited for this node, if it may be sent, and returns its page.
    pub(super) fn resume(&mut self, pages: &mut Table<ReplicaPage>, node: NodeId) -> Option<u32> {
        while self.blocks.available(&node) > 0 {
            let Some(page) = self.waiting.get_mut(&node)?.pop_front() else {
                self.waiting.remove(&node);
                return None;
            };
            let replica = pages.get_mut(page);
            if let Some((replica, offset)) =
                replica.and_then(|replica| replica.filling.remove(&node).map(|at| (replica, at)))
            {
                self.fill_from(replica, node, offset);
                return Some(page);
            }
        }
        None
    }

    /// The copy at a node waits no longer.
    pub(super) fn drop_copy(&mut self, page: u32, node: NodeId) {
        if let Some(pages) = self.waiting.get_mut(&node) {
            pages.retain(|other| *other != page);
            if pages.is_empty() {
                self.waiting.remove(&node);
            }
        }
    }
}
