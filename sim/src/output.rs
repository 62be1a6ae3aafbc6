// SPDX-License-Identifier: MIT OR Apache-2.0
//! The outputs of switches: sending ends, and how many frames each can take.

use crate::agenda::{Agenda, Kind};
use crate::pipe::{Sender, Wire};
use crate::units::Time;
use telegraphos_wire::link::Frame;

/// An output: a switch's end of a node's link, or of one direction of a trunk.
#[repr(align(64))]
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) sender: Sender,
    pub(crate) room: Room,
}

const _: () = assert!(size_of::<Output>() == 64);

impl Output {
    /// Sends a frame: when it arrives. `output` is the number of this output.
    pub(crate) fn send(&mut self, now: Time, frame: &Frame, wire: Wire, output: u32, agenda: &mut Agenda) -> Time {
        let at = self.sender.send(now, frame, wire);
        self.room.used(now, &self.sender, output, agenda);
        at
    }
}

/// How many frames an output can take before it must wait until some have left: what `PortRoom` says to the switch.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Frames that the switch counts on being able to hand out.
    left: u32,
    called: bool,
}

impl Room {
    /// The port is opened with so much room.
    pub(crate) fn open(&mut self, room: u32) {
        self.left = room;
    }

    /// A frame was handed out. When there is no more room, the port says so as soon as half of what it holds has left.
    fn used(&mut self, now: Time, sender: &Sender, output: u32, agenda: &mut Agenda) {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 && !self.called {
            self.called = true;
            agenda.add(now + sender.free_at().saturating_sub(now) / 2, Kind::Room, output);
        }
    }

    /// The moment has come: frames the port can take now.
    pub(crate) fn free(&mut self, room: u32) -> u32 {
        self.called = false;
        self.left = room.div_ceil(2);
        self.left
    }
}
