// SPDX-License-Identifier: MIT OR Apache-2.0
//! A look at what a packet will need, before its turn.

use std::hint::black_box;

use telegraphos_wire::{Class, Packet};

use super::{Port, PortIndex, Switch};
use crate::PortId;

impl Switch {
    /// Reads what the arrival of a packet by `port` will read first, and returns the connection that it would leave by
    /// now. Nothing else: a simulation of thousands of switches calls this for several switches before their events, so
    /// that the processor fetches the memory of all of them at the same time.
    pub fn look_ahead(&self, port: PortId, packet: &Packet) -> Option<PortId> {
        let Port::Open { index } = *self.state.ports.get(port)? else { return None };
        let class = self.config.class_of(packet);
        self.look_at(index, class);
        let to = match self.index_of(packet.dst) {
            Some(to) => to,
            None => self.hop(packet.src, packet.dst)?.0,
        };
        self.look_at(to, class);
        self.neighbour(to).map(|neighbour| neighbour.port)
    }

    fn look_at(&self, index: PortIndex, class: Class) {
        if let Some(neighbour) = self.neighbour(index) {
            neighbour.look_ahead();
        }
        if let Some(port) = self.statistics.ports.get(index) {
            let counted = &port.classes[class as usize];
            black_box((counted.received_packets, counted.depth_max));
        }
    }
}
