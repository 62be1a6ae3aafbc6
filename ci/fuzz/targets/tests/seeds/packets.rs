// SPDX-License-Identifier: MIT OR Apache-2.0
//! A packet of each kind, and the frames of links and trunks.

use telegraphos_wire::link::{Frame, Refusal};
use telegraphos_wire::packet::MULTICAST;
use telegraphos_wire::{
    AtomicOp, Body, Burst, BurstStore, Class, ImportEpoch, PROTOCOL_VERSION, Packet, RemoteAddr, RemotePage, Rights,
    STREAM_BLOCK, Status, Tags, WindowLayout,
};

pub(super) fn name(text: &str) -> [u8; 64] {
    let mut name = [0; 64];
    name[..text.len()].copy_from_slice(text.as_bytes());
    name
}

fn bodies() -> Vec<Body> {
    let at = RemoteAddr { page: 3, offset: 0x40, generation: 0x1000_0001 };
    let (context, epoch) = (1, ImportEpoch { import: 2, epoch: 1 });
    let status = Status::Ok;
    let mut tags = Tags::of(1);
    tags.insert(200);
    vec![
        Body::Write { at, context, epoch, size: 8, data: 0x0123_4567_89ab_cdef },
        Body::Read { at, context, size: 4 },
        Body::Lookup { name: Box::new(name("segment")), secret: [7; 16], uid: 1000, rights: Rights(3) },
        Body::Atomic { at, context, epoch, size: 8, op: AtomicOp::CompareSwap, operand: 2, compare: 1 },
        Body::ReadBlock { at, context, length: 4096 },
        Body::WriteBlock { at, context, epoch, data: [0x5a; 100].into() },
        Body::WriteBurst {
            on: RemotePage { page: 3, generation: 0x1000_0001 },
            context,
            epoch,
            stores: Burst::new((0..3).map(|n| BurstStore { data: n.into(), offset: 8 * n, size: 8 })).unwrap(),
        },
        Body::Enqueue { at: RemoteAddr { offset: 0, ..at }, context, epoch, size: 4, data: 9, after: 4 },
        Body::Reserve { at, imports: 1 },
        Body::Update { at, context, epoch, size: 2, data: 0xffff },
        Body::Join { at, mode: 3, keep: false },
        Body::Move { at, page: 1, generation: 5 },
        Body::Leave { at },
        Body::Reflected { at, size: 8, data: 77, writer: 1 },
        Body::Fill { at, data: [1; 64].into(), last: true },
        Body::Rehome { at, to: 1, page: 1, generation: 6 },
        Body::CopyAck { status },
        Body::WriteAck { status: Status::NotGranted },
        Body::WriteAcks { tags },
        Body::BurstRefused { status: Status::Bounds, performed: 2 },
        Body::ReadReply { status, data: 1 },
        Body::AtomicReply { status, data: 2 },
        Body::BlockReply { status, data: [3; 32].into() },
        Body::ReserveReply { status, holds: 4 },
        Body::LookupReply {
            status,
            page: 3,
            count: 1,
            length: 65536,
            generation: 0x1000_0001,
            rights: Rights(3),
            width: 0,
        },
    ]
}

fn all() -> Vec<Packet> {
    let packet = |(tag, body): (u32, Body)| {
        let target = if body.class() == Class::Reply { 0 } else { 0x2000 };
        Packet { src: 0, dst: 1, tag, incarnation: 0x1000, target, body }
    };
    (1..).zip(bodies()).map(packet).collect()
}

fn encoded(packet: &Packet) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.encode(&mut bytes);
    bytes
}

/// One of each kind, by its name.
pub(super) fn packets() -> super::Inputs {
    all().iter().map(|packet| (packet.body.name().to_owned(), encoded(packet))).collect()
}

fn stream(frames: &[Frame]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in frames {
        frame.encode(&mut bytes);
    }
    bytes
}

pub(super) fn streams() -> Vec<(&'static str, Vec<u8>)> {
    let (version, credits) = (PROTOCOL_VERSION, [256; 4]);
    let packets: Vec<Frame> = all().into_iter().map(Frame::Packet).collect();
    let multicast = Packet { dst: MULTICAST, ..all()[12].clone() };
    let from_hib = [
        Frame::Hello { version, node: 1, window: WindowLayout::default(), credits },
        Frame::Group { page: 0, members: vec![0, 2, 3] },
        Frame::Packet(all()[0].clone()),
        Frame::Packet(multicast.clone()),
        Frame::Credit { class: Class::Reply, count: 3 },
        Frame::Reset { incarnation: 0x1001 },
        Frame::Alive,
        Frame::RingUse { node: 2, incarnation: 0x2000, on: false },
        Frame::RingLost { node: 2, incarnation: 0x2000 },
    ];
    let from_fabric = [
        Frame::Welcome { incarnation: 0x1000, nodes: 4, credits },
        Frame::NodeUp { node: 1, incarnation: 0x1000, block: STREAM_BLOCK as u32 },
        Frame::Packet(all()[17].clone()),
        Frame::Credit { class: Class::Request, count: 1 },
        Frame::NodeDown { node: 1 },
        Frame::Probe,
        Frame::Ring { node: 2, incarnation: 0x2000, own: 0x1000, bytes: 1 << 17, credits: 64, side: 1 },
        Frame::RingUse { node: 2, incarnation: 0x2000, on: false },
        Frame::RingLost { node: 2, incarnation: 0x2000 },
        Frame::Refuse { reason: Refusal::Silent, offered: 0, expected: 10_000 },
    ];
    let trunk = [
        Frame::Trunk { version, switch: 0, peer: 1, epoch: 4, topology: 0x1234_5678_9abc_def0, credits },
        Frame::Reach { node: 2, incarnation: 0x3000, session: 9 },
        Frame::Forward { layer: 1, members: Vec::new(), packet: all()[1].clone() },
        Frame::Forward { layer: 0, members: vec![2, 3], packet: multicast },
        Frame::TrunkCredit { class: Class::Enqueue, layer: 1, count: 2 },
        Frame::Probe,
    ];
    vec![
        ("hib", stream(&from_hib)),
        ("fabric", stream(&from_fabric)),
        ("trunk", stream(&trunk)),
        ("packets", stream(&packets)),
    ]
}
