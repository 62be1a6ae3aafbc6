// SPDX-License-Identifier: MIT OR Apache-2.0
//! One direction of a link or trunk: frames in order, each as long as its bytes take, then the wire.

use crate::agenda::Moment;
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

/// Frames in flight, of all pipes of a partition. They lie apart from the queues: a frame that is passed on takes the
/// place that it has just left, which is in the processor's cache.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    places: Vec<Place>,
    free: Vec<u32>,
}

/// Two cache lines.
#[repr(align(64))]
#[derive(Debug)]
struct Place(Option<Frame>);

const _: () = assert!(size_of::<Place>() == 128);

impl Frames {
    fn add(&mut self, frame: Frame) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.places[place as usize].0 = Some(frame);
                place
            }
            None => {
                self.places.push(Place(Some(frame)));
                self.places.len() as u32 - 1
            }
        }
    }

    fn take(&mut self, place: u32) -> Option<Frame> {
        self.free.push(place);
        self.places.get_mut(place as usize)?.0.take()
    }
}

/// The receiving end: what is on its way, by the moment of its arrival, and its place among the frames in flight. The
/// first few are in the same cache line.
#[repr(align(64))]
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    times: [Time; FEW],
    places: [u32; FEW],
    /// Where the first of them is, and how many there are.
    first: u8,
    few: u8,
    /// Those behind them.
    #[allow(clippy::box_collection, reason = "a queue of its own would not fit into the cache line")]
    more: Option<Box<VecDeque<(Time, u32)>>>,
}

const FEW: usize = 4;
const _: () = assert!(size_of::<Arrivals>() == 64);

#[derive(Debug, Default)]
pub(crate) struct Pipe {
    pub(crate) sender: Sender,
    pub(crate) arrivals: Arrivals,
    /// The other end does not listen: what arrives is lost.
    pub(crate) closed: bool,
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
    pub(crate) fn add(&mut self, at: Time, frame: Frame, frames: &mut Frames) -> bool {
        let place = frames.add(frame);
        self.push((at, place));
        self.few == 1
    }

    fn push(&mut self, entry: (Time, u32)) {
        if usize::from(self.few) < FEW {
            self.append(entry);
        } else {
            self.more.get_or_insert_default().push_back(entry);
        }
    }

    /// One behind the few; there are none behind them.
    fn append(&mut self, (at, place): (Time, u32)) {
        let index = (usize::from(self.first) + usize::from(self.few)) % FEW;
        (self.times[index], self.places[index]) = (at, place);
        self.few += 1;
    }

    fn front(&self) -> Option<(Time, u32)> {
        let index = usize::from(self.first) % FEW;
        (self.few > 0).then(|| (self.times[index], self.places[index]))
    }

    fn pop(&mut self) -> Option<(Time, u32)> {
        let front = self.front()?;
        self.first = (self.first + 1) % FEW as u8;
        self.few -= 1;
        if let Some(more) = &mut self.more {
            match more.pop_front() {
                Some(next) => self.append(next),
                None => self.more = None,
            }
        }
        Some(front)
    }

    /// When the first frame arrives.
    pub(crate) fn next(&self) -> Option<Time> {
        self.front().map(|(at, _)| at)
    }

    /// The packet of the first frame, if it has one.
    pub(crate) fn first_packet<'a>(&self, frames: &'a Frames) -> Option<&'a Packet> {
        let (_, place) = self.front()?;
        match &frames.places.get(place as usize)?.0 {
            Some(Frame::Packet(packet) | Frame::Forward { packet, .. }) => Some(packet),
            _ => None,
        }
    }

    /// Takes the first frame if it is there.
    pub(crate) fn receive(&mut self, now: Time, frames: &mut Frames) -> Option<Frame> {
        if self.next()? > now {
            return None;
        }
        let (_, place) = self.pop()?;
        frames.take(place)
    }

    /// The link breaks at this moment: what has not arrived by then is lost. Its arrival is this call.
    pub(crate) fn cut_behind(&mut self, moment: Moment, call: u32, frames: &mut Frames) -> Vec<Frame> {
        let all: Vec<_> = std::iter::from_fn(|| self.pop()).collect();
        let (arrived, lost): (Vec<_>, Vec<_>) = all.into_iter().partition(|(at, _)| (*at, call) < moment);
        arrived.into_iter().for_each(|entry| self.push(entry));
        lost.into_iter().filter_map(|(_, place)| frames.take(place)).collect()
    }

    /// The link breaks: what is on it is lost.
    pub(crate) fn cut(&mut self, frames: &mut Frames) -> Vec<Frame> {
        self.cut_behind((0, 0), 0, frames)
    }
}

impl Pipe {
    /// Takes a frame at `now`: when it arrives, if no other was under way.
    pub(crate) fn send(&mut self, now: Time, frame: Frame, wire: Wire, frames: &mut Frames) -> Option<Time> {
        let at = self.sender.send(now, &frame, wire);
        self.arrivals.add(at, frame, frames).then_some(at)
    }
}

/// Packets among frames that were lost.
pub(crate) fn packets(frames: &[Frame]) -> u64 {
    frames.iter().filter(|frame| has_packet(frame)).count() as u64
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
        let (mut pipe, mut frames) = (Pipe::default(), Frames::default());
        let credit = || Frame::Credit { class: Class::Request, count: 1 };
        assert_eq!(pipe.send(100, credit(), (10, 1000), &mut frames), Some(100 + 160 + 1000));
        assert_eq!(pipe.send(150, credit(), (10, 1000), &mut frames), None);
        let Pipe { sender, mut arrivals, .. } = pipe;
        assert_eq!((arrivals.next(), sender.free_at()), (Some(100 + 160 + 1000), 100 + 320));
        assert_eq!(arrivals.receive(1259, &mut frames), None);
        assert!(arrivals.receive(1260, &mut frames).is_some());
        assert_eq!((arrivals.next(), sender.bytes, sender.busy), (Some(1420), 32, 320));
    }

    /// Against a plain queue, with few frames in flight and with many.
    #[test]
    fn frames_arrive_in_order_or_are_cut() {
        let credit = |count| Frame::Credit { class: Class::Request, count };
        for seed in 0..20 {
            let mut random = crate::random::Random::new(seed, 0);
            let (mut arrivals, mut frames, mut plain) = (Arrivals::default(), Frames::default(), VecDeque::new());
            for now in 0..1000 {
                if random.below(10) < 4 + now / 200 {
                    plain.push_back((now + 10, now as u32));
                    assert_eq!(arrivals.add(now + 10, credit(now as u32), &mut frames), plain.len() == 1);
                }
                if random.below(2) == 0 {
                    let due = plain.front().is_some_and(|(at, _)| *at <= now);
                    let first = if due { plain.pop_front().map(|(_, count)| credit(count)) } else { None };
                    assert_eq!(arrivals.receive(now, &mut frames), first, "seed {seed}");
                }
                if random.below(100) == 0 {
                    // A call of the same moment and the same number has been made.
                    let moment = (now + random.below(20), random.below(3) as u32);
                    let behind = plain.partition_point(|(at, _)| (*at, 1) < moment);
                    let lost: Vec<Frame> =
                        plain.split_off(behind).into_iter().map(|(_, count)| credit(count)).collect();
                    assert_eq!(arrivals.cut_behind(moment, 1, &mut frames), lost, "seed {seed}");
                }
                assert_eq!(arrivals.next(), plain.front().map(|(at, _)| *at), "seed {seed}");
            }
            assert_eq!(arrivals.cut(&mut frames).len(), plain.len());
            assert_eq!(frames.free.len(), frames.places.len());
        }
    }
}
