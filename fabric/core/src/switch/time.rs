// SPDX-License-Identifier: MIT OR Apache-2.0
//! Silence: neighbours that have stopped without ending their connection.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use telegraphos_accounts::Rate;
use telegraphos_wire::link::Refusal;
use telegraphos_wire::{Class, NodeId};

use super::{Place, Port, Switch};
use crate::{Action, Attached, Bug, Notice, PortId, Violation};

/// Classes whose credits a node may not keep for ever. An enqueue waits for as long as its queue is stopped (SPEC E12).
const PROMPT: [Class; 3] = [Class::Request, Class::Reflected, Class::Reply];

/// When things were seen last, in microseconds. No part of the protocol state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Clock {
    now: u64,
    /// By place.
    heard: Vec<u64>,
    asked: Vec<u64>,
    /// By place and class: when no packet was waiting for a credit, or one came.
    served: Vec<[u64; 4]>,
    /// Ports that have not joined.
    opened: BTreeMap<PortId, u64>,
    /// By node: how often it may still join or be reset.
    presence: Vec<Rate>,
}

impl Clock {
    pub(super) fn new(places: usize, nodes: usize, presence: Option<Rate>) -> Clock {
        Clock {
            now: 0,
            heard: vec![0; places],
            asked: vec![0; places],
            served: vec![[0; 4]; places],
            opened: BTreeMap::new(),
            presence: presence.map_or_else(Vec::new, |rate| vec![rate; nodes]),
        }
    }

    /// Whether both are of switches with as many places.
    pub(super) fn is_of(&self, other: &Clock) -> bool {
        let sizes = |clock: &Clock| [clock.heard.len(), clock.asked.len(), clock.served.len(), clock.presence.len()];
        sizes(self) == sizes(other)
    }

    pub(super) fn opened(&mut self, port: PortId) {
        self.opened.insert(port, self.now);
    }

    pub(super) fn closed(&mut self, port: PortId) {
        self.opened.remove(&port);
    }

    /// Whether this node may join or be reset now; else the rate that it exceeds.
    pub(super) fn presence_changes(&mut self, node: NodeId) -> Result<(), Rate> {
        let Some(rate) = self.presence.get_mut(usize::from(node)) else { return Ok(()) };
        if rate.take(self.now) { Ok(()) } else { Err(*rate) }
    }

    /// A bug: what it has used is forgotten.
    pub(super) fn forget_presence(&mut self, node: NodeId, rate: Option<Rate>) {
        if let (Some(entry), Some(rate)) = (self.presence.get_mut(usize::from(node)), rate) {
            *entry = rate;
        }
    }

    pub(super) fn joined(&mut self, place: Place, port: PortId) {
        self.opened.remove(&port);
        self.heard(place);
        if let (Some(asked), Some(served)) = (self.asked.get_mut(place), self.served.get_mut(place)) {
            (*asked, *served) = (self.now, [self.now; 4]);
        }
    }

    pub(super) fn heard(&mut self, place: Place) {
        if let Some(heard) = self.heard.get_mut(place) {
            *heard = self.now;
        }
    }

    pub(super) fn served(&mut self, place: Place, class: Class) {
        if let Some(served) = self.served.get_mut(place) {
            served[class as usize] = self.now;
        }
    }
}

impl Switch {
    pub(super) fn tick(&mut self, now: u64, out: &mut Vec<Action>) {
        // A switch that was itself stopped has heard nobody, and is no judge of what they did meanwhile.
        let gap = now.saturating_sub(self.clock.now);
        let forgives = !self.config.has(Bug::Unforgiving);
        let stopped = |limit: u64| forgives && gap > limit / 2;
        self.clock.now = self.clock.now.max(now);
        if self.config.has(Bug::Patient) {
            return;
        }
        if let Some(limit) = self.config.silence {
            if stopped(limit) {
                self.clock.heard.fill(now);
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
        let late: Vec<(PortId, u64)> = self
            .clock
            .opened
            .iter()
            .map(|(port, opened)| (*port, now.saturating_sub(*opened)))
            .filter(|(_, age)| *age >= limit)
            .collect();
        for (port, age) in late {
            match self.state.ports.get(&port).copied() {
                Some(Port::Greeting { place, .. }) => {
                    self.close(port, out);
                    out.push(Action::Close(port));
                    if let Some(Attached::Trunk(trunk, _)) = self.attached(place) {
                        let reason = Refusal::Silent;
                        let notice =
                            Notice::TrunkRefused { trunk, reason, offered: age, expected: limit, by_peer: false };
                        Switch::notice(out, notice);
                    }
                }
                _ => self.refuse(port, None, Refusal::Silent, age, limit, out),
            }
        }
        for place in 0..self.state.neighbours.len() {
            let Some(port) = self.neighbour(place).map(|neighbour| neighbour.port) else { continue };
            let silence = now.saturating_sub(self.clock.heard[place]);
            if silence >= limit {
                self.throw_out(port, Violation::Silent { silence, limit }, out);
            } else if silence >= limit / 3 && now.saturating_sub(self.clock.asked[place]) >= limit / 3 {
                self.clock.asked[place] = now;
                if let Some(neighbour) = self.neighbour_mut(place) {
                    neighbour.probe = true;
                    self.touched.push(place);
                }
            }
        }
    }

    fn look_for_stalls(&mut self, now: u64, limit: u64, out: &mut Vec<Action>) {
        for place in 0..self.state.neighbours.len() {
            let Some(neighbour) = self.neighbour(place) else { continue };
            let port = neighbour.port;
            // Its credits may be in packets that wait for a node which keeps its own: that is for the other switch to
            // find out first.
            let times = if neighbour.is_trunk() && !self.config.has(Bug::BlameTrunk) { 2 } else { 1 };
            let limit = limit.saturating_mul(times);
            let starved = PROMPT.map(|class| (class, neighbour.starved(class)));
            for (class, starved) in starved {
                if !starved {
                    self.clock.served(place, class);
                } else if now.saturating_sub(self.clock.served[place][class as usize]) >= limit {
                    self.throw_out(port, Violation::Stalled { class, limit }, out);
                    break;
                }
            }
        }
    }
}
