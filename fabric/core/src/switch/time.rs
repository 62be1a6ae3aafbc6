// SPDX-License-Identifier: MIT OR Apache-2.0
//! Time limits: neighbours that have stopped without ending their connection, and credits that do not return.

use telegraphos_wire::Class;
use telegraphos_wire::link::Refusal;

use super::{Port, Switch};
use crate::{Action, Attached, Diagnostic, PortId, Violation};

/// Classes whose credits a node may not keep for ever. An enqueue waits for as long as its queue is stopped (SPEC E12).
const PROMPT: [Class; 3] = [Class::Request, Class::Reflected, Class::Reply];

impl Switch {
    /// Time has passed, in microseconds: applies the limits on silence and on kept credits.
    pub(super) fn tick(&mut self, now: u64, out: &mut Vec<Action>) {
        // A switch that was stopped itself has received nothing meanwhile, so that time is no silence of its
        // neighbours.
        let gap = now.saturating_sub(self.clock.now);
        let forgives = !bug!(Unforgiving);
        let stopped = |limit: u64| forgives && gap > limit / 2;
        self.clock.now = self.clock.now.max(now);
        if bug!(Patient) {
            return;
        }
        if let Some(limit) = self.config.silence {
            if stopped(limit) {
                self.clock.received.fill(now);
                self.clock.opened.values_mut().for_each(|opened| *opened = now);
            }
            self.look_for_silence(now, limit, out);
        }
        if let Some(limit) = self.config.stall {
            if stopped(limit) {
                self.clock.served.fill([now; 4]);
            }
            self.look_for_stalls(now, limit, out);
        }
    }

    fn look_for_silence(&mut self, now: u64, limit: u64, out: &mut Vec<Action>) {
        let overdue: Vec<(PortId, u64)> = self
            .clock
            .opened
            .iter()
            .map(|(port, opened)| (*port, now.saturating_sub(*opened)))
            .filter(|(_, age)| *age >= limit)
            .collect();
        for (port, age) in overdue {
            match self.state.ports.get(port).copied() {
                Some(Port::Greeting { index, .. }) => {
                    self.close(port, out);
                    out.push(Action::Close(port));
                    if let Some(Attached::Trunk(trunk, _)) = self.attached(index) {
                        let reason = Refusal::Silent;
                        let diagnostic =
                            Diagnostic::TrunkRefused { trunk, reason, offered: age, expected: limit, by_peer: false };
                        Switch::report(out, diagnostic);
                    }
                }
                _ => self.refuse(port, None, Refusal::Silent, age, limit, out),
            }
        }
        for index in 0..self.state.neighbours.len() {
            let Some(port) = self.neighbour(index).map(|neighbour| neighbour.port) else { continue };
            let silence = now.saturating_sub(self.clock.received[index]);
            if silence >= limit {
                self.disconnect(port, Violation::Silent { silence, limit }, out);
            } else if silence >= limit / 3 && now.saturating_sub(self.clock.probed[index]) >= limit / 3 {
                self.clock.probed[index] = now;
                if let Some(neighbour) = self.neighbour_mut(index) {
                    neighbour.ask();
                    self.touched.push(index);
                }
            }
        }
    }

    fn look_for_stalls(&mut self, now: u64, limit: u64, out: &mut Vec<Action>) {
        for index in 0..self.state.neighbours.len() {
            let Some(neighbour) = self.neighbour(index) else { continue };
            let port = neighbour.port;
            // Its credits may be used by packets to a node that returns none: the switch of that node must have the
            // time to disconnect it first.
            let times = if neighbour.is_trunk() && !bug!(BlameTrunk) { 2 } else { 1 };
            let limit = limit.saturating_mul(times);
            let starved = PROMPT.map(|class| (class, neighbour.starved(class)));
            for (class, starved) in starved {
                if !starved {
                    self.clock.served(index, class);
                } else if now.saturating_sub(self.clock.served[index][class as usize]) >= limit {
                    self.disconnect(port, Violation::Stalled { class, limit }, out);
                    break;
                }
            }
        }
    }
}
