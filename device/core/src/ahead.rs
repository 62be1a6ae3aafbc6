// SPDX-License-Identifier: MIT OR Apache-2.0
//! A look at what an event will need, before its turn. It changes nothing: a simulation of thousands of boards calls it
//! before events, so that the processor fetches the memory of all of it at the same time.

use crate::Hib;
use std::hint::black_box;
use telegraphos_wire::NodeId;

impl Hib {
    /// Reads what is used of the board for every event.
    pub fn look_ahead(&self) {
        black_box((self.deadline(), self.ctx.steps.is_empty(), self.ctx.follow_ups.is_empty(), self.ctx.link.is_up()));
        black_box((self.requester.pressure.waiting, self.ctx.counters.events));
    }

    /// Reads what is used of the board for a packet of `source`.
    pub fn look_ahead_of(&self, source: NodeId) {
        black_box(self.requester.peers.table[usize::from(source)].requests_sent);
        self.responder.look_ahead(source);
        self.ctx.answers.look_ahead(source);
    }
}
