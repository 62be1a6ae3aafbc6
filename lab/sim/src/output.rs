// SPDX-License-Identifier: MIT OR Apache-2.0
//! The outputs of switches: sending ends, and how many frames each can take.

use crate::pipe::Sender;
use crate::units::Time;

/// An output: a switch's end of a node's link, or of one direction of a trunk.
#[repr(align(64))]
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) sender: Sender,
    pub(crate) room: Room,
}

const _: () = assert!(size_of::<Output>() == 64);

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

    /// A frame was handed out. When there is no more room, the port says so as soon as half of what it holds has left:
    /// when.
    pub(crate) fn used(&mut self, now: Time, sender: &Sender) -> Option<Time> {
        self.left = self.left.saturating_sub(1);
        if self.left > 0 || self.called {
            return None;
        }
        self.called = true;
        Some(now + sender.free_at().saturating_sub(now) / 2)
    }

    /// The moment has come: frames the port can take now.
    pub(crate) fn free(&mut self, room: u32) -> u32 {
        self.called = false;
        self.left = room.div_ceil(2);
        self.left
    }
}
