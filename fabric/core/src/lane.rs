// SPDX-License-Identifier: MIT OR Apache-2.0
//! What waits from one node for one output: one queue per channel, so that no packet waits behind another pair's.
//!
//! A mark (`up`) says that the sender was reset, has joined, or can be reached again. Packets before a mark leave
//! before it, packets behind it after it; so a lane is a row of segments, each beginning with a mark (the first may
//! have none), and only the first segment is served. Replies alone may pass a mark, if it waits for packets of other
//! classes: a reply waits for no other class (SPEC I13).

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use telegraphos_wire::{Class, NodeId, Packet};

use crate::channel::Channel;

/// The credit that a packet in the switch uses: it is returned when the packet has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Paid {
    /// The index of the port it came by.
    #[serde(rename = "place")]
    pub(crate) index: u16,
    /// The channel it came on.
    pub(crate) channel: Channel,
    /// The multicast of that port that it is a copy of.
    pub(crate) multicast: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Queued {
    #[serde(with = "crate::snapshot::packet")]
    pub(crate) packet: Packet,
    /// On a trunk, the nodes that a multicast is for; else none.
    pub(crate) members: Vec<NodeId>,
    /// None for replies that need no credit.
    pub(crate) paid: Option<Paid>,
}

/// What a notification of a node says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) incarnation: u64,
    /// Sum of the epochs of the trunks in between.
    pub(crate) session: u64,
    /// Bytes of the longest block in its packets.
    pub(crate) block: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Segment {
    /// The notification to send before the packets.
    up: Option<Mark>,
    /// By channel; those that are not there are empty.
    queues: SmallVec<[VecDeque<Queued>; 4]>,
}

impl Segment {
    fn has_packets(&self) -> bool {
        self.queues.iter().any(|q| !q.is_empty())
    }

    fn waits(&self, channel: Channel) -> bool {
        self.queues.get(channel.index()).is_some_and(|q| !q.is_empty())
    }

    fn queue(&mut self, channel: Channel) -> &mut VecDeque<Queued> {
        if self.queues.len() <= channel.index() {
            self.queues.resize_with((channel.index() / 4 + 1) * 4, VecDeque::new);
        }
        &mut self.queues[channel.index()]
    }
}

/// See the module. A lane that [is idle](Lane::idle) is not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Lane {
    segments: VecDeque<Segment>,
    replies: u64,
}

impl Lane {
    /// Replies that wait.
    pub(crate) fn replies(&self) -> u64 {
        self.replies
    }

    /// Whether it holds neither packets nor marks.
    pub(crate) fn idle(&self) -> bool {
        self.segments.is_empty()
    }

    /// The mark that nothing waits before, if there is one.
    pub(crate) fn mark(&self) -> Option<Mark> {
        self.segments.front()?.up
    }

    /// Whether a packet of the channel can be taken now.
    pub(crate) fn offers(&self, channel: Channel) -> bool {
        match channel.class() {
            Class::Reply => self.replies > 0 && self.segments.iter().any(|s| s.waits(channel)),
            _ => self.segments.front().is_some_and(|s| s.up.is_none() && s.waits(channel)),
        }
    }

    /// Adds a packet behind all others of its channel.
    pub(crate) fn push(&mut self, channel: Channel, queued: Queued) {
        if self.segments.is_empty() {
            self.segments.push_back(Segment::default());
        }
        if let Some(segment) = self.segments.back_mut() {
            let queue = segment.queue(channel);
            #[cfg(feature = "bugs")]
            let is_copy = queued.paid.is_some_and(|paid| paid.multicast.is_some());
            queue.push_back(queued);
            #[cfg(feature = "bugs")]
            crate::bugs::pushed(queue, is_copy);
            self.replies += u64::from(channel.class() == Class::Reply);
        }
    }

    /// Adds a mark behind all packets; it replaces a last mark without packets behind it.
    pub(crate) fn push_mark(&mut self, mark: Mark) {
        match self.segments.back_mut() {
            // No packets between them: the new mark replaces the last, which was not sent. This bounds the number of
            // marks.
            Some(last) if last.up.is_some() && !last.has_packets() => last.up = Some(mark),
            _ => self.segments.push_back(Segment { up: Some(mark), ..Segment::default() }),
        }
    }

    /// For a deliberate bug: the last mark goes before everything.
    #[cfg(feature = "bugs")]
    pub(crate) fn mark_overtakes(&mut self) {
        self.segments.rotate_right(1);
    }

    /// Takes the mark that nothing waits before.
    pub(crate) fn take_mark(&mut self) -> Option<Mark> {
        let up = self.segments.front_mut()?.up.take();
        self.trim();
        up
    }

    /// Takes the oldest packet of the channel that can be taken now.
    pub(crate) fn take(&mut self, channel: Channel) -> Option<Queued> {
        let reply = channel.class() == Class::Reply;
        let segment = match reply {
            true => self.segments.iter_mut().find(|s| s.waits(channel)),
            false => self.segments.front_mut().filter(|s| s.up.is_none()),
        }?;
        let queue = segment.queue(channel);
        #[cfg(feature = "bugs")]
        crate::bugs::reorder_queue(queue);
        let queued = queue.pop_front()?;
        self.replies -= u64::from(reply);
        self.trim();
        Some(queued)
    }

    /// Whether its counter is that of its packets, and their channels are some of `channels`.
    pub(crate) fn is_sound(&self, channels: usize) -> bool {
        let replies = self.packets().filter(|(channel, _)| channel.class() == Class::Reply).count() as u64;
        self.replies == replies && self.segments.iter().all(|segment| segment.queues.len() <= channels)
    }

    fn trim(&mut self) {
        if self.segments.front().is_some_and(|s| s.up.is_none() && !s.has_packets()) {
            self.segments.pop_front();
        }
    }

    /// What waits, wherever in the lane, with its channel.
    pub(crate) fn packets(&self) -> impl Iterator<Item = (Channel, &Queued)> {
        self.segments.iter().flat_map(|s| {
            let channels = Channel::all(telegraphos_wire::link::MAX_LAYERS);
            channels.zip(&s.queues).flat_map(|(channel, queue)| queue.iter().map(move |queued| (channel, queued)))
        })
    }

    pub(crate) fn into_packets(self) -> impl Iterator<Item = (Channel, Queued)> {
        self.segments.into_iter().flat_map(|s| {
            let channels = Channel::all(telegraphos_wire::link::MAX_LAYERS);
            channels.zip(s.queues).flat_map(|(channel, queue)| queue.into_iter().map(move |queued| (channel, queued)))
        })
    }
}
