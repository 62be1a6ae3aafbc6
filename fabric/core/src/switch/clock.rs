// SPDX-License-Identifier: MIT OR Apache-2.0
//! The times that the switch's limits go by.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use telegraphos_accounts::Rate;
use telegraphos_wire::{Class, NodeId};

use crate::PortId;

/// When frames and credits arrived last, in microseconds. No part of the protocol state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Clock {
    pub(super) now: u64,
    /// By port index: when a frame arrived last.
    #[serde(rename = "heard")]
    pub(super) received: Vec<u64>,
    #[serde(rename = "asked")]
    pub(super) probed: Vec<u64>,
    /// By port index and class: when a credit arrived last, or no packet waited for one.
    pub(super) served: Vec<[u64; 4]>,
    /// Ports that have not joined.
    pub(super) opened: BTreeMap<PortId, u64>,
    /// By node: how often it may still join or be reset.
    presence: Vec<Rate>,
}

impl Clock {
    /// At time 0, with this rate of joins and resets for each node.
    pub(super) fn new(ports: usize, nodes: usize, presence: Option<Rate>) -> Clock {
        Clock {
            now: 0,
            received: vec![0; ports],
            probed: vec![0; ports],
            served: vec![[0; 4]; ports],
            opened: BTreeMap::new(),
            presence: presence.map_or_else(Vec::new, |rate| vec![rate; nodes]),
        }
    }

    /// Whether both are of switches with equally many ports and nodes.
    pub(super) fn is_of(&self, other: &Clock) -> bool {
        let sizes =
            |clock: &Clock| [clock.received.len(), clock.probed.len(), clock.served.len(), clock.presence.len()];
        sizes(self) == sizes(other)
    }

    /// A connection was made that has not joined.
    pub(super) fn opened(&mut self, port: PortId) {
        self.opened.insert(port, self.now);
    }

    /// A connection has ended or was refused.
    pub(super) fn closed(&mut self, port: PortId) {
        self.opened.remove(&port);
    }

    /// Whether this node may join or be reset now; else the rate that it exceeds.
    pub(super) fn presence_changes(&mut self, node: NodeId) -> Result<(), Rate> {
        let Some(rate) = self.presence.get_mut(usize::from(node)) else { return Ok(()) };
        if rate.take(self.now) { Ok(()) } else { Err(*rate) }
    }

    /// For a deliberate bug: the uses counted for a node are forgotten.
    #[cfg(feature = "bugs")]
    pub(super) fn forget_presence(&mut self, node: NodeId, rate: Option<Rate>) {
        if let (Some(entry), Some(rate)) = (self.presence.get_mut(usize::from(node)), rate) {
            *entry = rate;
        }
    }

    /// A port has joined: its limits begin now.
    pub(super) fn joined(&mut self, index: usize, port: PortId) {
        self.opened.remove(&port);
        self.frame_received(index);
        if let (Some(probed), Some(served)) = (self.probed.get_mut(index), self.served.get_mut(index)) {
            (*probed, *served) = (self.now, [self.now; 4]);
        }
    }

    /// A frame arrived by an open port.
    pub(super) fn frame_received(&mut self, index: usize) {
        // At time 0 all times are 0: without a clock nothing is written.
        if self.now == 0 {
            return;
        }
        if let Some(received) = self.received.get_mut(index) {
            *received = self.now;
        }
    }

    /// No packet of the class waits for a credit of this port, or a credit arrived.
    pub(super) fn served(&mut self, index: usize, class: Class) {
        if let Some(served) = self.served.get_mut(index) {
            served[class as usize] = self.now;
        }
    }
}
