// SPDX-License-Identifier: MIT OR Apache-2.0
//! A look at the memory of the next calls, all of them at once. It changes nothing.

use crate::agenda::{CellId, Kind};
use crate::partition::{Partition, has_cells_of_nodes};
use crate::pipe::Arrivals;
use std::hint::black_box;
use telegraphos_topology::SwitchId;
use telegraphos_wire::NodeId;

impl Partition {
    /// Reads what the next calls of the running cell will read first, of all of them together. What they need is in no
    /// near cache with thousands of switches and nodes: a processor waits for each line of it in turn, unless it is
    /// asked for several that do not depend on each other.
    pub(crate) fn look_ahead(&mut self) {
        let fresh = self.agenda.is_fresh();
        let Some(calls) = self.agenda.ahead() else { return };
        self.ahead.clear();
        self.ahead.extend(calls);
        for (kind, number) in &self.ahead {
            if let Some(arrivals) = self.arrivals(*kind, *number) {
                black_box(arrivals.next());
            }
        }
        let switch = self.agenda.running().and_then(|cell| self.small_switch(cell));
        if let Some(switch) = switch.filter(|_| fresh) {
            self.look_at(switch);
        }
        for (kind, number) in &self.ahead {
            if *kind == Kind::Step || *kind == Kind::Processor {
                self.nodes[self.index(*number as NodeId)].look_ahead();
                continue;
            }
            let arrivals = self.arrivals(*kind, *number);
            let Some(packet) = arrivals.and_then(|arrivals| arrivals.first_packet(&self.frames)) else { continue };
            match kind {
                Kind::Up if switch.is_none() => {
                    let (switch, port) = self.port_of(*number);
                    self.switch(switch).look_ahead_of(port, packet);
                }
                Kind::Down => self.nodes[self.index(*number as NodeId)].look_ahead_of(packet.src),
                _ => _ = black_box((packet.src, packet.target)),
            }
        }
    }

    /// The switch of a cell, if it has few ports.
    fn small_switch(&self, cell: CellId) -> Option<SwitchId> {
        let switch = self.own.start + u16::try_from(cell).ok()?;
        (self.has(switch) && !has_cells_of_nodes(&self.topology, switch)).then_some(switch)
    }

    /// Reads what is used of a switch and its outputs, whatever it does.
    fn look_at(&self, switch: SwitchId) {
        self.switch(switch).look_ahead();
        for trunk in self.topology.trunks_of(switch) {
            let ends = self.place(self.plan.nodes + 2 * u32::from(*trunk));
            for place in [ends, ends + 1] {
                black_box((self.outputs[place].sender.free_at(), self.arrivals[place].next()));
            }
        }
    }

    /// What a call takes the first frame of.
    fn arrivals(&self, kind: Kind, number: u32) -> Option<&Arrivals> {
        match kind {
            Kind::Up => self.ups.get(self.index(number as NodeId)).map(|pipe| &pipe.arrivals),
            Kind::Down => self.arrivals.get(self.place(number)),
            Kind::Trunk => self.arrivals.get(self.place(self.plan.nodes + number)),
            _ => None,
        }
    }
}
