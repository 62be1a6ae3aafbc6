// SPDX-License-Identifier: MIT OR Apache-2.0
//! A look at the memory of the next calls, all of them at once. It changes nothing.

use crate::agenda::Kind;
use crate::pipe::Pipe;
use crate::simulation::Simulation;
use std::hint::black_box;
use telegraphos_topology::SwitchId;

impl Simulation {
    /// Reads what the next calls will read first, of all of them together. Each needs some dozen cache lines, which are
    /// in no near cache with a thousand switches, one after the other: a processor waits for each of them in turn,
    /// unless it is asked for several that do not depend on each other.
    pub(crate) fn look_ahead(&mut self) {
        let Some(calls) = self.agenda.ahead() else { return };
        self.ahead.clear();
        self.ahead.extend(calls);
        for (kind, number) in &self.ahead {
            if let Some(pipe) = self.pipe(*kind, *number) {
                black_box(pipe.next());
            }
        }
        for (kind, number) in &self.ahead {
            let Some(packet) = self.pipe(*kind, *number).and_then(Pipe::first_packet) else { continue };
            let (switch, port) = match kind {
                Kind::Up => self.port_of(*number),
                Kind::Trunk => self.port_of(self.plan.nodes + (*number ^ 1)),
                _ => continue,
            };
            let leaves_by = self.switches[usize::from(switch)].look_ahead(port, packet);
            if let Some(output) = leaves_by.and_then(|port| self.outputs.get(self.output_of(switch, port))) {
                black_box(output.pipe.free_at());
            }
        }
    }

    /// The pipe whose first frame a call takes.
    fn pipe(&self, kind: Kind, number: u32) -> Option<&Pipe> {
        let index = number as usize;
        match kind {
            Kind::Up => self.ups.get(index),
            Kind::Down => self.outputs.get(index).map(|output| &output.pipe),
            Kind::Trunk => self.outputs.get(self.plan.nodes as usize + index).map(|output| &output.pipe),
            _ => None,
        }
    }

    /// The output of a switch that a port is.
    fn output_of(&self, switch: SwitchId, port: u32) -> usize {
        let Some(trunk) = port.checked_sub(self.plan.nodes) else { return port as usize };
        let from_upper = self.topology.trunks()[trunk as usize].a != switch;
        (self.plan.nodes + 2 * trunk + u32::from(from_upper)) as usize
    }
}
