// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames of every kind, and their fields by the names that the tables have.

use std::collections::BTreeMap;

use telegraphos_wire::link::{Frame, MAX_LAYERS, Refusal};
use telegraphos_wire::packet::{MULTICAST, NO_NODE};
use telegraphos_wire::{
    AtomicOp, Block, Body, Burst, BurstStore, Class, ImportEpoch, MAX_BLOCK, MAX_BURST, NodeId, PROTOCOL_VERSION,
    Packet, RemoteAddr, RemotePage, Rights, Status, Tags, WindowLayout,
};

use telegraphos_testkit::Rng;

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Number(u64),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<u64>),
}

pub(crate) type Fields = BTreeMap<&'static str, Value>;

/// The fields of a frame, as the code that the system runs has them: not by any table.
pub(crate) fn fields(frame: &Frame) -> Fields {
    let mut fields = Fields::new();
    let mut put = |name: &'static str, value: u64| {
        fields.insert(name, Value::Number(value));
    };
    let credits = |put: &mut dyn FnMut(&'static str, u64), credits: &[u32; 4]| {
        let names = ["enqueue_credits", "request_credits", "reflected_credits", "reply_credits"];
        for (name, credits) in names.into_iter().zip(credits) {
            put(name, u64::from(*credits));
        }
    };
    match frame {
        Frame::Hello { version, node, window, credits: c } => {
            put("offered_version", (*version).into());
            put("node", (*node).into());
            put("node_bits", window.node_bits.into());
            put("offset_bits", window.offset_bits.into());
            credits(&mut put, c);
        }
        Frame::Welcome { incarnation, nodes, credits: c } => {
            put("incarnation", *incarnation);
            put("nodes", (*nodes).into());
            credits(&mut put, c);
        }
        Frame::Refuse { reason, offered, expected } => {
            put("reason", *reason as u64);
            put("offered", *offered);
            put("expected", *expected);
        }
        Frame::Packet(packet) => packet_fields(packet, &mut fields),
        Frame::Credit { class, count } => {
            put("class", *class as u64);
            put("count", (*count).into());
        }
        Frame::NodeUp { node, incarnation, block } => {
            put("node", (*node).into());
            put("incarnation", *incarnation);
            put("longest_block", (*block).into());
        }
        Frame::NodeDown { node } => put("node", (*node).into()),
        Frame::Reset { incarnation } => put("incarnation", *incarnation),
        Frame::Group { page, members } => {
            put("page", (*page).into());
            fields.insert("member", list(members));
        }
        Frame::Trunk { version, switch, peer, epoch, topology, credits: c } => {
            put("offered_version", (*version).into());
            put("switch", (*switch).into());
            put("peer", (*peer).into());
            put("epoch", *epoch);
            put("topology", *topology);
            credits(&mut put, c);
        }
        Frame::Reach { node, incarnation, session } => {
            put("node", (*node).into());
            put("incarnation", *incarnation);
            put("session", *session);
        }
        Frame::Forward { layer, members, packet } => {
            put("layer", (*layer).into());
            put("count", members.len() as u64);
            fields.insert("member", list(members));
            packet_fields(packet, &mut fields);
        }
        Frame::TrunkCredit { class, layer, count } => {
            put("class", *class as u64);
            put("layer", (*layer).into());
            put("count", (*count).into());
        }
        Frame::Probe | Frame::Alive => {}
        Frame::Ring { node, incarnation, own, bytes, credits, side } => {
            put("node", (*node).into());
            put("incarnation", *incarnation);
            put("own_incarnation", *own);
            put("ring_bytes", (*bytes).into());
            put("ring_credits", (*credits).into());
            put("ring_side", (*side).into());
        }
        Frame::RingUse { node, incarnation, on } => {
            put("node", (*node).into());
            put("incarnation", *incarnation);
            put("in_use", (*on).into());
        }
        Frame::RingLost { node, incarnation } => {
            put("node", (*node).into());
            put("incarnation", *incarnation);
        }
    }
    fields.retain(|_, value| *value != Value::List(Vec::new()));
    fields
}

fn list(members: &[NodeId]) -> Value {
    Value::List(members.iter().map(|node| u64::from(*node)).collect())
}

fn packet_fields(packet: &Packet, fields: &mut Fields) {
    let mut put = |name: &'static str, value: u64| {
        fields.insert(name, Value::Number(value));
    };
    put("src", packet.src.into());
    put("dst", packet.dst.into());
    put("tag", packet.tag.into());
    put("incarnation", packet.incarnation);
    put("class", packet.class() as u64);
    if packet.class() != Class::Reply {
        put("target_low", packet.target & 0xffff_ffff);
        put("target_high", packet.target >> 32);
    }
    let address = |put: &mut dyn FnMut(&'static str, u64), at: &RemoteAddr| {
        put("page", at.page.into());
        put("offset", at.offset.into());
        put("generation", at.generation);
    };
    let import = |put: &mut dyn FnMut(&'static str, u64), of: &ImportEpoch| {
        put("import", of.import.into());
        put("import_epoch", of.epoch.into());
    };
    let mut block = None;
    match &packet.body {
        Body::Write { at, context, epoch, size, data } | Body::Update { at, context, epoch, size, data } => {
            import(&mut put, epoch);
            address(&mut put, at);
            put("context", (*context).into());
            put("size", (*size).into());
            put("data", *data);
        }
        Body::Read { at, context, size } => {
            address(&mut put, at);
            put("context", (*context).into());
            put("size", (*size).into());
        }
        Body::Lookup { name, secret, uid, rights } => {
            put("uid", (*uid).into());
            put("rights", rights.0.into());
            let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
            fields.insert("name", Value::Text(String::from_utf8_lossy(&name[..end]).into_owned()));
            fields.insert("secret", Value::Bytes(secret.to_vec()));
        }
        Body::Atomic { at, context, epoch, size, op, operand, compare } => {
            import(&mut put, epoch);
            address(&mut put, at);
            put("context", (*context).into());
            put("size", (*size).into());
            put("operation", *op as u64);
            put("operand", *operand);
            put("compare", *compare);
        }
        Body::ReadBlock { at, context, length } => {
            address(&mut put, at);
            put("context", (*context).into());
            put("length", (*length).into());
        }
        Body::WriteBlock { at, context, epoch, data } => {
            import(&mut put, epoch);
            address(&mut put, at);
            put("context", (*context).into());
            put("length", data.len() as u64);
            block = Some(data);
        }
        Body::WriteBurst { on, context, epoch, stores } => {
            import(&mut put, epoch);
            put("page", on.page.into());
            put("generation", on.generation);
            put("context", (*context).into());
            put("length", 12 * stores.len() as u64);
            let bytes = |store: &BurstStore| {
                let [low, high] = store.offset.to_le_bytes();
                [&store.data.to_le_bytes()[..], &[low, high, store.size, 0]].concat()
            };
            fields.insert("block", Value::Bytes(stores.iter().flat_map(bytes).collect()));
        }
        Body::Enqueue { at, context, epoch, size, data, after } => {
            import(&mut put, epoch);
            address(&mut put, at);
            put("context", (*context).into());
            put("size", (*size).into());
            put("data", *data);
            put("after", (*after).into());
        }
        Body::Reserve { at, imports } => {
            address(&mut put, at);
            put("imports", (*imports).into());
        }
        Body::Join { at, mode, keep } => {
            address(&mut put, at);
            put("mode", (*mode).into());
            put("keep", (*keep).into());
        }
        Body::Move { at, page, generation } => {
            address(&mut put, at);
            put("new_page", (*page).into());
            put("new_generation", *generation);
        }
        Body::Leave { at } => address(&mut put, at),
        Body::Reflected { at, size, data, writer } => {
            address(&mut put, at);
            put("size", (*size).into());
            put("data", *data);
            put("writer", (*writer).into());
        }
        Body::Fill { at, data, last } => {
            address(&mut put, at);
            put("length", data.len() as u64);
            put("last", (*last).into());
            block = Some(data);
        }
        Body::Rehome { at, to, page, generation } => {
            address(&mut put, at);
            put("to", (*to).into());
            put("new_page", (*page).into());
            put("new_generation", *generation);
        }
        Body::CopyAck { status } | Body::WriteAck { status } => put("status", *status as u64),
        Body::WriteAcks { tags } => {
            let mut bytes = vec![0; 32];
            tags.within(0).for_each(|tag| bytes[tag as usize / 8] |= 1 << (tag % 8));
            fields.insert("tags", Value::Bytes(bytes));
        }
        Body::ReadReply { status, data } | Body::AtomicReply { status, data } => {
            put("status", *status as u64);
            put("data", *data);
        }
        Body::BlockReply { status, data } => {
            put("status", *status as u64);
            put("length", data.len() as u64);
            block = Some(data);
        }
        Body::BurstRefused { status, performed } => {
            put("status", *status as u64);
            put("performed", (*performed).into());
        }
        Body::ReserveReply { status, holds } => {
            put("status", *status as u64);
            put("holds", (*holds).into());
        }
        Body::LookupReply { status, page, count, length, generation, rights, width } => {
            put("status", *status as u64);
            put("page", (*page).into());
            put("pages", (*count).into());
            put("segment_length", *length);
            put("generation", *generation);
            put("rights", rights.0.into());
            put("width", (*width).into());
        }
    }
    if let Some(block) = block.filter(|block| !block.is_empty()) {
        fields.insert("block", Value::Bytes(block.to_vec()));
    }
}

/// Name of the operation, as logs have it.
pub(crate) fn name(frame: &Frame) -> &'static str {
    match frame {
        Frame::Packet(packet) | Frame::Forward { packet, .. } => packet.body.name(),
        Frame::Hello { .. } => "hello",
        Frame::Welcome { .. } => "welcome",
        Frame::Refuse { .. } => "refuse",
        Frame::Credit { .. } => "credit",
        Frame::NodeUp { .. } => "node-up",
        Frame::NodeDown { .. } => "node-down",
        Frame::Reset { .. } => "reset",
        Frame::Group { .. } => "group",
        Frame::Trunk { .. } => "trunk",
        Frame::Reach { .. } => "reach",
        Frame::TrunkCredit { .. } => "trunk-credit",
        Frame::Probe => "probe",
        Frame::Alive => "alive",
        Frame::Ring { .. } => "ring",
        Frame::RingUse { .. } => "ring-use",
        Frame::RingLost { .. } => "ring-lost",
    }
}

/// Kinds of bodies that [`body`] makes.
pub(crate) const BODIES: u64 = 25;
/// Kinds of frames that [`frame`] makes.
pub(crate) const FRAMES: u64 = 18;

/// A body of the kind of that number.
pub(crate) fn body(kind: u64, random: &mut Rng) -> Body {
    let size = [1, 2, 4, 8][random.below(4) as usize];
    let word = [4, 8][random.below(2) as usize];
    let at = |random: &mut Rng, size: u64| RemoteAddr {
        page: random.next() as u32,
        offset: (random.below(0x10000 / size) * size) as u32,
        generation: random.next(),
    };
    let (near, wide) = (at(random, size), at(random, word));
    let data = random.next();
    let context = random.next() as u16;
    let status = Status::from_u16(random.below(33) as u16);
    let most = if random.below(20) == 0 { MAX_BLOCK as u64 } else { 40 };
    let length = 1 + random.below(most);
    let block: Block = (0..length).map(|_| random.next() as u8).collect();
    let for_block = RemoteAddr { offset: random.below(0x10000 - length + 1) as u32, ..near };
    let small = random.next() as u32;
    let epoch = ImportEpoch { import: random.next() as u16, epoch: random.next() as u32 };
    match kind {
        0 => Body::Write { at: near, context, epoch, size: size as u8, data },
        1 => Body::Read { at: near, context, size: size as u8 },
        2 => {
            let mut name = [0; 64];
            for byte in &mut name[..(random.below(65) as usize)] {
                *byte = b'a' + random.below(26) as u8;
            }
            let mut secret = [0; 16];
            secret.fill_with(|| random.next() as u8);
            Body::Lookup { name: Box::new(name), secret, uid: small, rights: Rights(context) }
        }
        3 => {
            let op = [AtomicOp::Swap, AtomicOp::Add, AtomicOp::CompareSwap][random.below(3) as usize];
            Body::Atomic { at: wide, context, epoch, size: word as u8, op, operand: data, compare: random.next() }
        }
        4 => Body::ReadBlock { at: for_block, context, length: length as u32 },
        5 => Body::WriteBlock { at: for_block, context, epoch, data: block },
        6 => Body::Enqueue { at: wide, context, epoch, size: word as u8, data, after: small },
        7 => Body::Reserve { at: near, imports: small },
        8 => Body::Update { at: near, context, epoch, size: size as u8, data },
        9 => Body::Join { at: near, mode: context, keep: data % 2 == 0 },
        10 => Body::Move { at: near, page: small, generation: data },
        11 => Body::Leave { at: near },
        12 => Body::Reflected { at: near, size: size as u8, data, writer: context },
        13 => Body::Fill { at: for_block, data: block, last: data % 2 == 0 },
        14 => {
            Body::Rehome { at: near, to: if data % 2 == 0 { NO_NODE } else { context }, page: small, generation: data }
        }
        15 => Body::CopyAck { status },
        16 => Body::WriteAck { status },
        17 => Body::ReadReply { status, data },
        18 => Body::AtomicReply { status, data },
        19 => Body::BlockReply { status, data: if status.is_ok() { block } else { Block::default() } },
        20 => Body::ReserveReply { status, holds: small },
        21 => {
            let mut tags = Tags::of(small);
            (0..random.below(20)).for_each(|_| tags.insert(random.next() as u32));
            Body::WriteAcks { tags }
        }
        22 => {
            let store =
                |_| BurstStore { data: random.next(), offset: (8 * random.below(0x2000)) as u16, size: size as u8 };
            let stores: Vec<_> = (0..length.min(MAX_BURST as u64)).map(store).collect();
            let on = RemotePage { page: small, generation: data };
            Body::WriteBurst { on, context, epoch, stores: Burst::new(stores).unwrap() }
        }
        23 => Body::BurstRefused { status, performed: context },
        _ => Body::LookupReply {
            status,
            page: small,
            count: random.next() as u32,
            length: data,
            generation: random.next(),
            rights: Rights(context),
            width: size as u8,
        },
    }
}

/// A packet with the body of that number.
pub(crate) fn packet(kind: u64, random: &mut Rng) -> Packet {
    let body = body(kind, random);
    let target = if body.class() == Class::Reply { 0 } else { random.next() };
    let dst = if body.class() == Class::Reflected && random.below(2) == 0 { MULTICAST } else { random.next() as u16 };
    Packet { src: random.next() as u16, dst, tag: random.next() as u32, incarnation: random.next(), target, body }
}

fn members(random: &mut Rng) -> Vec<NodeId> {
    let mut members: Vec<NodeId> = (0..random.below(12)).map(|_| random.below(4096) as NodeId).collect();
    members.sort_unstable();
    members.dedup();
    members
}

/// A frame of that number; packets are of any kind.
pub(crate) fn frame(kind: u64, random: &mut Rng) -> Frame {
    let node = random.next() as u16;
    let incarnation = random.next();
    let credits = [0; 4].map(|_: u32| random.next() as u32);
    let class = Class::ALL[random.below(4) as usize];
    let layer = random.below(MAX_LAYERS);
    match kind {
        0 => Frame::Hello {
            version: random.next() as u8,
            node,
            window: WindowLayout { node_bits: random.next() as u8, offset_bits: random.next() as u8 },
            credits,
        },
        1 => Frame::Welcome { incarnation, nodes: random.next() as u32, credits },
        2 => {
            let reasons = [
                Refusal::NodeTaken,
                Refusal::NodeRange,
                Refusal::Version,
                Refusal::NodeBits,
                Refusal::OffsetBits,
                Refusal::Handshake,
                Refusal::Protocol,
                Refusal::Elsewhere,
                Refusal::Topology,
                Refusal::NoTrunk,
                Refusal::Silent,
                Refusal::Rate,
            ];
            let reason = reasons[random.below(reasons.len() as u64) as usize];
            Frame::Refuse { reason, offered: random.next(), expected: random.next() }
        }
        3 => {
            let kind = random.below(BODIES);
            Frame::Packet(packet(kind, random))
        }
        4 => Frame::Credit { class, count: random.next() as u32 },
        5 => Frame::NodeUp { node, incarnation, block: random.next() as u32 },
        6 => Frame::NodeDown { node },
        7 => Frame::Reset { incarnation },
        8 => Frame::Group { page: random.next() as u32, members: members(random) },
        9 => Frame::Trunk {
            version: PROTOCOL_VERSION,
            switch: node,
            peer: random.next() as u16,
            epoch: random.next(),
            topology: random.next(),
            credits,
        },
        10 => Frame::Reach { node, incarnation, session: random.next() },
        11 => {
            let kind = random.below(BODIES);
            Frame::Forward { layer, members: members(random), packet: packet(kind, random) }
        }
        12 => Frame::TrunkCredit { class, layer, count: random.next() as u32 },
        13 => Frame::Probe,
        14 => {
            let (own, bytes, credits) = (random.next(), random.next() as u32, random.next() as u32);
            Frame::Ring { node, incarnation, own, bytes, credits, side: random.below(2) as u8 }
        }
        15 => Frame::RingUse { node, incarnation, on: random.below(2) == 1 },
        16 => Frame::RingLost { node, incarnation },
        _ => Frame::Alive,
    }
}

/// One of each kind of frame and of each kind of packet, on links and on trunks.
pub(crate) fn one_of_each(random: &mut Rng) -> Vec<Frame> {
    let mut all: Vec<Frame> = (0..FRAMES).map(|kind| frame(kind, random)).collect();
    for kind in 0..BODIES {
        all.push(Frame::Packet(packet(kind, random)));
        all.push(Frame::Forward { layer: 1, members: members(random), packet: packet(kind, random) });
    }
    all
}

pub(crate) fn encode(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    bytes
}
