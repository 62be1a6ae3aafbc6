// SPDX-License-Identifier: MIT OR Apache-2.0
//! The link of a node: two pipes, and how many frames the switch's end can take.

use crate::agenda::{Agenda, Kind};
use crate::pipe::Pipe;
use crate::units::Time;
use crate::workload::Costs;
use telegraphos_wire::NodeId;
use telegraphos_wire::link::Frame;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Link {
    pub(crate) up: Pipe,
    pub(crate) down: Pipe,
    pub(crate) room: Room,
}

impl Link {
    pub(crate) fn send_up(&mut self, now: Time, frame: Frame, node: NodeId, costs: &Costs, agenda: &mut Agenda) {
        let latency = costs.link_latency + costs.switch_crossing;
        if self.up.send(now, frame, costs.link_bandwidth, latency) {
            self.up.next().into_iter().for_each(|at| agenda.add(at, Kind::Up, node.into()));
        }
    }

    pub(crate) fn send_down(&mut self, now: Time, frame: Frame, node: NodeId, costs: &Costs, agenda: &mut Agenda) {
        let latency = costs.link_latency + costs.board;
        if self.down.send(now, frame, costs.link_bandwidth, latency) {
            self.down.next().into_iter().for_each(|at| agenda.add(at, Kind::Down, node.into()));
        }
        self.room.used(now, &self.down, node.into(), agenda);
    }
}

/// How many frames an output can take before it must wait until some have left: what `PortRoom` says to the switch.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Frames that the switch believes it can hand out.
    left: u32,
    called: bool,
}

impl Room {
    /// The port is opened with so much room.
    pub(crate) fn open(&mut self, room: u32) {
        self.left = room;
    }

    /// A frame was handed out. When there is no more room, the port says so as soon as half of what it holds has left.
    pub(crate) fn used(&mut self, now: Time, pipe: &Pipe, port: u32, agenda: &mut Agenda) {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 && !self.called {
            self.called = true;
            agenda.add(now + pipe.free_at().saturating_sub(now) / 2, Kind::Room, port);
        }
    }

    /// The moment has come: frames the port can take now.
    pub(crate) fn free(&mut self, room: u32) -> u32 {
        self.called = false;
        self.left = room.div_ceil(2);
        self.left
    }
}

/// One direction of a trunk.
#[derive(Debug, Default)]
pub(crate) struct Direction {
    pub(crate) pipe: Pipe,
    pub(crate) room: Room,
}

impl Direction {
    /// `number` is that of this direction, `port` that of its output among all.
    pub(crate) fn send(&mut self, now: Time, frame: Frame, number: u32, port: u32, costs: &Costs, agenda: &mut Agenda) {
        let latency = costs.trunk_latency + costs.switch_crossing;
        if self.pipe.send(now, frame, costs.trunk_bandwidth, latency) {
            self.pipe.next().into_iter().for_each(|at| agenda.add(at, Kind::Trunk, number));
        }
        self.room.used(now, &self.pipe, port, agenda);
    }
}
