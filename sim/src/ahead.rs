// SPDX-License-Identifier: MIT OR Apache-2.0
//! A look at the memory of the next calls, all of them at once. It changes nothing.

use crate::agenda::Kind;
use crate::partition::Partition;
use crate::pipe::Arrivals;
use std::hint::black_box;
use telegraphos_topology::SwitchId;
use telegraphos_wire::NodeId;

impl Partition {
    /// Reads what the next calls will read first, of all of them together. Each needs some dozen cache lines, which are
    /// in no near cache with a thousand switches, one after the other: a processor waits for each of them in turn,
    /// unless it is asked for several that do not depend on each other.
    pub(crate) fn look_ahead(&mut self) {
        let Some(calls) = self.agenda.ahead() else { return };
        self.ahead.clear();
        self.ahead.extend(calls);
        for (kind, number) in &self.ahead {
            if let Some(arrivals) = self.arrivals(*kind, *number) {
                black_box(arrivals.next());
            }
        }
        for (kind, number) in &self.ahead {
            let Some(packet) = self.arrivals(*kind, *number).and_then(Arrivals::first_packet) else { continue };
            let (switch, port) = match kind {
                Kind::Up => self.port_of(*number),
                Kind::Trunk => self.port_of(self.plan.nodes + (*number ^ 1)),
                _ => continue,
            };
            let leaves_by = self.switch(switch).look_ahead(port, packet);
            if let Some(output) = leaves_by.and_then(|port| self.outputs.get(self.output_of(switch, port))) {
                black_box(output.sender.free_at());
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

    /// Where the output of a switch is that a port is.
    fn output_of(&self, switch: SwitchId, port: u32) -> usize {
        let Some(trunk) = port.checked_sub(self.plan.nodes) else { return self.place(port) };
        let from_upper = self.topology.trunks()[trunk as usize].a != switch;
        self.place(self.plan.nodes + 2 * trunk + u32::from(from_upper))
    }
}
