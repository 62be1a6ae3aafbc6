// SPDX-License-Identifier: MIT OR Apache-2.0
//! What waits from one node for one other: one queue per class, so that nobody waits behind another pair's packets.
//!
//! A mark (`up`) says that the sender was reset or has joined. Packets before a mark leave before it, packets behind it
//! after it; so a lane is a row of segments, each beginning with a mark (the first may have none), and only the first
//! segment is served. Replies alone may pass a mark, if it waits for packets of other classes: a reply waits for nobody
//! (SPEC I13).

use std::collections::VecDeque;

use telegraphos_wire::{Class, Packet};

/// A packet that waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Queued {
    pub(crate) packet: Packet,
    /// The multicast of its sender that it is a copy of.
    pub(crate) multicast: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Segment {
    /// Incarnation to tell before the packets.
    up: Option<u32>,
    /// By class number.
    queues: [VecDeque<Queued>; 4],
}

impl Segment {
    fn has_packets(&self) -> bool {
        self.queues.iter().any(|q| !q.is_empty())
    }
}

/// See the module. A lane that [is idle](Lane::idle) is not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Lane {
    segments: VecDeque<Segment>,
    replies: u64,
}

impl Lane {
    /// Replies that wait.
    pub(crate) fn replies(&self) -> u64 {
        self.replies
    }

    pub(crate) fn idle(&self) -> bool {
        self.segments.is_empty()
    }

    /// The mark that nothing waits before, if there is one.
    pub(crate) fn mark(&self) -> Option<u32> {
        self.segments.front()?.up
    }

    /// Whether a packet of the class can be taken now.
    pub(crate) fn offers(&self, class: Class) -> bool {
        match class {
            Class::Reply => self.replies > 0,
            _ => self.segments.front().is_some_and(|s| s.up.is_none() && !s.queues[class as usize].is_empty()),
        }
    }

    /// Adds a packet behind all others of its class (before them with `overtakes`, a deliberate bug).
    pub(crate) fn push(&mut self, class: Class, queued: Queued, overtakes: bool) {
        if self.segments.is_empty() {
            self.segments.push_back(Segment::default());
        }
        if let Some(segment) = self.segments.back_mut() {
            let queue = &mut segment.queues[class as usize];
            if overtakes {
                queue.push_front(queued)
            } else {
                queue.push_back(queued)
            }
            self.replies += u64::from(class == Class::Reply);
        }
    }

    pub(crate) fn push_mark(&mut self, incarnation: u32) {
        match self.segments.back_mut() {
            // Nothing in between: the later life replaces the earlier, which nobody has heard of. This bounds the marks.
            Some(last) if last.up.is_some() && !last.has_packets() => last.up = Some(incarnation),
            _ => self.segments.push_back(Segment { up: Some(incarnation), ..Segment::default() }),
        }
    }

    /// Takes the mark that nothing waits before.
    pub(crate) fn take_mark(&mut self) -> Option<u32> {
        let up = self.segments.front_mut()?.up.take();
        self.trim();
        up
    }

    /// Takes the oldest packet of the class that can be taken now (the newest with `lifo`, a deliberate bug).
    pub(crate) fn take(&mut self, class: Class, lifo: bool) -> Option<Queued> {
        let segment = match class {
            Class::Reply => self.segments.iter_mut().find(|s| !s.queues[Class::Reply as usize].is_empty()),
            _ => self.segments.front_mut().filter(|s| s.up.is_none()),
        }?;
        let queue = &mut segment.queues[class as usize];
        let queued = if lifo { queue.pop_back() } else { queue.pop_front() }?;
        self.replies -= u64::from(class == Class::Reply);
        self.trim();
        Some(queued)
    }

    fn trim(&mut self) {
        if self.segments.front().is_some_and(|s| s.up.is_none() && !s.has_packets()) {
            self.segments.pop_front();
        }
    }

    /// Packets of the class, wherever in the lane.
    pub(crate) fn count(&self, class: Class) -> u64 {
        self.segments.iter().map(|s| s.queues[class as usize].len() as u64).sum()
    }

    /// The multicasts of which copies are in the lane, each as often as there are copies.
    pub(crate) fn multicasts(&self) -> impl Iterator<Item = u32> + '_ {
        self.segments.iter().flat_map(|s| &s.queues[Class::Reflected as usize]).filter_map(|queued| queued.multicast)
    }
}
