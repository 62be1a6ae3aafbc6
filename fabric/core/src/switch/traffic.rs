// SPDX-License-Identifier: MIT OR Apache-2.0
//! What passes is counted, and which outputs may have something to send is kept until they are served. No part of the
//! protocol state.

use telegraphos_wire::link::packet_len;
use telegraphos_wire::{Class, NodeId, Packet};

use super::routes::{PortIndex, Routes};
use crate::pairs::{Count, Pairs};
use crate::{Attached, ClassStatistics, PortStatistics, Statistics};

#[derive(Clone, Debug)]
pub(super) struct Traffic {
    pub(super) statistics: Statistics,
    pub(super) pairs: Pairs,
    /// Outputs that may have something to send; empty between events.
    pub(super) touched: Vec<PortIndex>,
}

impl Traffic {
    /// Nothing has passed.
    pub(super) fn new(routes: &Routes) -> Traffic {
        let port = |attached| PortStatistics { attached, classes: [ClassStatistics::default(); 4] };
        let ports = routes.attached().map(port).collect();
        let statistics = Statistics { ports, ..Statistics::default() };
        Traffic { statistics, pairs: Pairs::new(routes.config.pairs), touched: Vec::new() }
    }

    /// What a port is for.
    pub(super) fn attached(&self, index: PortIndex) -> Option<Attached> {
        self.statistics.ports.get(index).map(|port| port.attached)
    }

    /// The counters of a port and class.
    pub(super) fn of(&mut self, index: PortIndex, class: Class) -> Option<&mut ClassStatistics> {
        Some(&mut self.statistics.ports.get_mut(index)?.classes[class as usize])
    }

    /// A packet of this many bytes on the link.
    pub(super) fn received(&mut self, index: PortIndex, class: Class, bytes: u64) {
        if let Some(counted) = self.of(index, class) {
            counted.received_packets += 1;
            counted.received_bytes += bytes;
        }
    }

    pub(super) fn sent(&mut self, index: PortIndex, class: Class, packet: &Packet) {
        if let Some(counted) = self.of(index, class) {
            counted.sent_packets += 1;
            counted.sent_bytes += packet_len(packet);
        }
    }

    /// Packets of a class have passed between two nodes beside the switch.
    pub(super) fn beside(&mut self, routes: &Routes, (from, to): (NodeId, NodeId), class: Class, count: Count) {
        self.pairs.add(from, to, class, count);
        if let Some(counted) = routes.index_of(from).and_then(|index| self.of(index, class)) {
            counted.received_packets += count.packets;
            counted.received_bytes += count.bytes;
        }
        if let Some(counted) = routes.index_of(to).and_then(|index| self.of(index, class)) {
            counted.sent_packets += count.packets;
            counted.sent_bytes += count.bytes;
        }
    }

    /// A packet from or to a port is dropped.
    pub(super) fn lost(&mut self, index: PortIndex, class: Class) {
        if let Some(counted) = self.of(index, class) {
            counted.dropped += 1;
        }
    }

    /// A packet from a node, which waited for a port, is dropped.
    pub(super) fn dropped(&mut self, routes: &Routes, from: NodeId, to: PortIndex, class: Class) {
        if let Some(from) = routes.index_of(from).filter(|from| *from != to) {
            self.lost(from, class);
        }
        self.lost(to, class);
    }
}
