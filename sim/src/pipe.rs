// SPDX-License-Identifier: MIT OR Apache-2.0
//! One direction of a link or trunk: frames in order, each as long as its bytes take, then the wire.

use crate::units::Time;
use std::collections::VecDeque;
use telegraphos_wire::Packet;
use telegraphos_wire::link::{self, Frame};
use telegraphos_wire::packet;

/// What a wire takes: picoseconds for each byte, and those from its end to the effect of the frame.
pub(crate) type Wire = (Time, Time);

/// The sending end. It fits into a cache line with what else an output needs: there are some for each switch.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    /// The last frame has left.
    free_at: Time,
    /// What has crossed, or is on its way.
    pub(crate) bytes: u64,
    pub(crate) packets: u64,
    /// Time in which it was sending.
    pub(crate) busy: Time,
}

/// The receiving end: what is on its way, by the moment of its arrival.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    frames: VecDeque<(Time, Frame)>,
}

/// Both ends.
#[derive(Debug, Default)]
pub(crate) struct Pipe {
    pub(crate) sender: Sender,
    pub(crate) arrivals: Arrivals,
}

/// Bytes of a frame.
pub(crate) fn frame_len(frame: &Frame) -> u64 {
    let packet_len = |packet: &telegraphos_wire::Packet| packet::HEADER_LEN + packet.body.payload_len();
    let behind_fields = match frame {
        Frame::Packet(packet) => packet_len(packet),
        Frame::Group { members, .. } => 2 * members.len(),
        Frame::Forward { members, packet, .. } => 2 * members.len() + packet_len(packet),
        _ => 0,
    };
    (link::HEAD_LEN + frame.kind().len + behind_fields) as u64
}

fn has_packet(frame: &Frame) -> bool {
    matches!(frame, Frame::Packet(_) | Frame::Forward { .. })
}

impl Sender {
    /// Takes a frame at `now`. It arrives after its bytes and those before it have left, and `latency` more: when.
    pub(crate) fn send(&mut self, now: Time, frame: &Frame, (per_byte, latency): Wire) -> Time {
        let length = frame_len(frame);
        let cost = length * per_byte;
        self.free_at = self.free_at.max(now) + cost;
        self.bytes += length;
        self.busy += cost;
        self.packets += u64::from(has_packet(frame));
        self.free_at + latency
    }

    /// When everything that it has taken has left.
    pub(crate) fn free_at(&self) -> Time {
        self.free_at
    }

    /// Forgets what has crossed.
    pub(crate) fn start_counting(&mut self) {
        (self.bytes, self.packets, self.busy) = (0, 0, 0);
    }
}

impl Arrivals {
    /// A frame that will be there at `at`, which is later than those before it: true if no other was under way.
    pub(crate) fn add(&mut self, at: Time, frame: Frame) -> bool {
        self.frames.push_back((at, frame));
        self.frames.len() == 1
    }

    /// When the first frame arrives.
    pub(crate) fn next(&self) -> Option<Time> {
        self.frames.front().map(|(at, _)| *at)
    }

    /// The packet of the first frame, if it has one.
    pub(crate) fn first_packet(&self) -> Option<&Packet> {
        match self.frames.front() {
            Some((_, Frame::Packet(packet) | Frame::Forward { packet, .. })) => Some(packet),
            _ => None,
        }
    }

    /// Takes the first frame if it is there.
    pub(crate) fn receive(&mut self, now: Time) -> Option<Frame> {
        if self.next()? > now {
            return None;
        }
        let frame = self.frames.pop_front().map(|(_, frame)| frame);
        if self.frames.is_empty() {
            // The next goes to the same place in memory.
            self.frames.clear();
        }
        frame
    }

    /// The link breaks: what is on it is lost.
    pub(crate) fn cut(&mut self) -> impl Iterator<Item = Frame> + '_ {
        self.frames.drain(..).map(|(_, frame)| frame)
    }
}

impl Pipe {
    /// Takes a frame at `now`: when it arrives, if no other was under way.
    pub(crate) fn send(&mut self, now: Time, frame: Frame, wire: Wire) -> Option<Time> {
        let at = self.sender.send(now, &frame, wire);
        self.arrivals.add(at, frame).then_some(at)
    }
}

/// Packets among frames that were lost.
pub(crate) fn packets(frames: impl Iterator<Item = Frame>) -> u64 {
    frames.filter(has_packet).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use telegraphos_wire::{AtomicOp, Block, Body, Class, Packet, RemoteAddr, STREAM_BLOCK, Status, WindowLayout};

    #[test]
    fn frames_have_their_length_on_the_wire() {
        let at = RemoteAddr { page: 1, offset: 2, generation: 3 };
        let epoch = telegraphos_wire::ImportEpoch { import: 4, epoch: 5 };
        let bodies = [
            Body::Write { at, context: 0, epoch, size: 8, data: 5 },
            Body::Atomic { at, context: 0, epoch, size: 8, op: AtomicOp::Add, operand: 1, compare: 0 },
            Body::WriteBlock { at, context: 0, epoch, data: Block::from(vec![7; 1000]) },
            Body::WriteAck { status: Status::Ok },
        ];
        let packet = |body| Packet { src: 1, dst: 2, tag: 3, incarnation: 4, target: 5, body };
        let mut frames: Vec<Frame> = bodies.iter().cloned().map(|body| Frame::Packet(packet(body))).collect();
        let forward = |members| Frame::Forward { layer: 1, members, packet: packet(bodies[1].clone()) };
        frames.extend([forward(vec![]), forward(vec![3, 5, 7])]);
        frames.extend([
            Frame::Hello { version: 1, node: 2, window: WindowLayout::default(), credits: [1; 4] },
            Frame::Welcome { incarnation: 1, nodes: 2, credits: [1; 4] },
            Frame::Refuse { reason: link::Refusal::Silent, offered: 1, expected: 2 },
            Frame::Credit { class: Class::Request, count: 1 },
            Frame::NodeUp { node: 1, incarnation: 2, block: STREAM_BLOCK as u32 },
            Frame::NodeDown { node: 1 },
            Frame::Reset { incarnation: 1 },
            Frame::Group { page: 1, members: vec![1, 2, 3] },
            Frame::Trunk { version: 1, switch: 2, peer: 3, epoch: 4, topology: 5, credits: [1; 4] },
            Frame::Reach { node: 1, incarnation: 2, session: 3 },
            Frame::TrunkCredit { class: Class::Reply, layer: 0, count: 1 },
            Frame::Probe,
            Frame::Alive,
        ]);
        for frame in frames {
            assert_eq!(frame_len(&frame), frame.encode(&mut Vec::new()) as u64, "{frame:?}");
        }
    }

    #[test]
    fn a_frame_waits_for_those_before_it() {
        let mut pipe = Pipe::default();
        let credit = || Frame::Credit { class: Class::Request, count: 1 };
        assert_eq!(pipe.send(100, credit(), (10, 1000)), Some(100 + 160 + 1000));
        assert_eq!(pipe.send(150, credit(), (10, 1000)), None);
        let Pipe { sender, mut arrivals } = pipe;
        assert_eq!((arrivals.next(), sender.free_at()), (Some(100 + 160 + 1000), 100 + 320));
        assert_eq!(arrivals.receive(1259), None);
        assert!(arrivals.receive(1260).is_some());
        assert_eq!((arrivals.next(), sender.bytes, sender.busy), (Some(1420), 32, 320));
    }
}
