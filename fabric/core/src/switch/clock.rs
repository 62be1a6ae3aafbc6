// SPDX-License-Identifier: MIT OR Apache-2.0
//! The times that the switch's limits go by: neighbours that have stopped without ending their connection, and credits
//! that do not return.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use telegraphos_accounts::Rate;
use telegraphos_wire::{Class, NodeId};

use crate::PortId;
use crate::neighbour::Neighbour;

/// Classes whose credits a node may not keep for ever. An enqueue waits for as long as its queue is stopped (SPEC E12).
const PROMPT: [Class; 3] = [Class::Request, Class::Reflected, Class::Reply];

/// When frames and credits arrived last, in microseconds. No part of the protocol state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Clock {
    now: u64,
    /// By port index: when a frame arrived last.
    #[serde(rename = "heard")]
    received: Vec<u64>,
    #[serde(rename = "asked")]
    probed: Vec<u64>,
    /// By port index and class: when a credit arrived last, or no packet waited for one.
    served: Vec<[u64; 4]>,
    /// Ports that have not joined.
    opened: BTreeMap<PortId, u64>,
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

    /// Time has passed. A switch that was stopped itself has received nothing meanwhile, so that time is no silence of
    /// its neighbours.
    pub(super) fn advance(&mut self, now: u64, silence: Option<u64>, stall: Option<u64>) {
        let gap = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        let stopped = |limit: u64| gap > limit / 2 && !bug!(Unforgiving) && !bug!(Patient);
        if silence.is_some_and(stopped) {
            self.received.fill(now);
            self.opened.values_mut().for_each(|opened| *opened = now);
        }
        if stall.is_some_and(stopped) {
            self.served.fill([now; 4]);
        }
    }

    /// Ports that have not joined for so long, and for how long.
    pub(super) fn overdue(&self, limit: u64) -> Vec<(PortId, u64)> {
        let ages = self.opened.iter().map(|(port, opened)| (*port, self.now.saturating_sub(*opened)));
        ages.filter(|(_, age)| *age >= limit).collect()
    }

    /// How long a port has been silent.
    pub(super) fn silence(&self, index: usize) -> u64 {
        self.now.saturating_sub(self.received[index])
    }

    /// Whether a silent port is to be asked now; then it counts as asked.
    pub(super) fn asks(&mut self, index: usize, limit: u64) -> bool {
        let asks = self.silence(index) >= limit / 3 && self.now.saturating_sub(self.probed[index]) >= limit / 3;
        if asks {
            self.probed[index] = self.now;
        }
        asks
    }

    /// The class of which a neighbour has returned no credit for too long while packets waited for one, and the limit
    /// that it exceeds.
    pub(super) fn stalled(&mut self, index: usize, neighbour: &Neighbour, limit: u64) -> Option<(Class, u64)> {
        // Its credits may be used by packets to a node that returns none: the switch of that node must have the time to
        // disconnect it first.
        let times = if neighbour.is_trunk() && !bug!(BlameTrunk) { 2 } else { 1 };
        let limit = limit.saturating_mul(times);
        PROMPT.into_iter().find_map(|class| {
            if !neighbour.starved(class) {
                self.served(index, class);
                return None;
            }
            let waits = self.now.saturating_sub(self.served[index][class as usize]);
            (waits >= limit).then_some((class, limit))
        })
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
