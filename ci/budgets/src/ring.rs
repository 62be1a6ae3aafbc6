// SPDX-License-Identifier: MIT OR Apache-2.0
//! A board's end of the ring to the other one, as a board of the host process has it (`device/server/src/rings.rs`).

use std::collections::VecDeque;
use std::sync::Arc;
use telegraphos_link::ring_end::{Beside, Calls, Passing, RingEnd, Within};
use telegraphos_wire::NodeId;
use telegraphos_wire::link::Frame;

/// See the module.
#[derive(Debug)]
pub(crate) struct Ring {
    /// The node at the other end.
    pub(crate) peer: NodeId,
    end: Box<dyn RingEnd>,
    calls: Arc<Calls>,
    /// Something was queued since the last flush.
    dirty: bool,
    /// Buffers, kept to reuse their allocations.
    called: Vec<NodeId>,
    frames: VecDeque<Passing>,
}

impl Ring {
    /// The ends of a ring between two nodes, each for one of them.
    pub(crate) fn pair([first, last]: [NodeId; 2]) -> [Ring; 2] {
        let [low, high] = Within::pair();
        [Ring::new(low, last), Ring::new(high, first)]
    }

    fn new(end: Within, peer: NodeId) -> Ring {
        let calls = Arc::new(Calls::new());
        end.call_at(&calls, peer);
        Ring { peer, end: Box::new(end), calls, dirty: false, called: Vec::new(), frames: VecDeque::new() }
    }

    /// Whether something has arrived.
    pub(crate) fn is_called(&self) -> bool {
        self.calls.any()
    }

    pub(crate) fn send(&mut self, frame: Frame, beside: Option<Beside>) {
        self.end.send(frame, beside);
        self.dirty = true;
    }

    pub(crate) fn flush(&mut self) {
        if std::mem::take(&mut self.dirty) {
            self.end.flush().expect("the other end reads");
        }
    }

    /// Takes what has arrived. [`Ring::reuse`] gets the deque back.
    pub(crate) fn receive(&mut self, now: u64) -> VecDeque<Passing> {
        self.called.clear();
        self.calls.take(&mut self.called);
        let mut frames = std::mem::take(&mut self.frames);
        self.end.receive(now, &mut frames).expect("the other end sends frames");
        frames
    }

    pub(crate) fn reuse(&mut self, frames: VecDeque<Passing>) {
        self.frames = frames;
    }
}
