// SPDX-License-Identifier: MIT OR Apache-2.0
//! A look at what packets will need, before their turn.

use std::hint::black_box;

use telegraphos_wire::{Class, Packet};

use super::{Port, PortIndex, Switch};
use crate::PortId;

impl Switch {
    /// Reads what packets will read first, of all ports. Nothing else: a simulation of thousands of switches calls this
    /// before the events of each, so that the processor fetches the memory of all of it at the same time.
    pub fn look_ahead(&self) {
        for neighbour in self.state.neighbours.iter().flatten() {
            neighbour.look_ahead();
        }
        for port in &self.statistics.ports {
            // Requests and replies are most packets.
            black_box((
                port.classes[Class::Request as usize].sent_packets,
                port.classes[Class::Reply as usize].sent_packets,
            ));
        }
    }

    /// The same for one packet that arrives by `port`, of a switch with so many that most have none.
    pub fn look_ahead_of(&self, port: PortId, packet: &Packet) {
        let Some(Port::Open { index }) = self.state.ports.get(port) else { return };
        let class = self.config.class_of(packet);
        self.look_at(*index, class);
        if let Some(to) = self.index_of(packet.dst) {
            self.look_at(to, class);
        }
    }

    fn look_at(&self, index: PortIndex, class: Class) {
        if let Some(neighbour) = self.neighbour(index) {
            neighbour.look_ahead();
        }
        if let Some(port) = self.statistics.ports.get(index) {
            black_box(port.classes[class as usize].sent_packets);
        }
    }
}
