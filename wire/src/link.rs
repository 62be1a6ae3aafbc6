// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a HIB and its switch port, and two switches, say to each other over one reliable, ordered byte stream.
//!
//! A frame is an 8-byte head (`u32` total length, kind, [`PROTOCOL_VERSION`], zero) and a body. The HIB opens with
//! [`Frame::Hello`]; the fabric answers [`Frame::Welcome`] and a [`Frame::NodeUp`] for each present node (the joiner
//! included), or [`Frame::Refuse`] and closes. After that either side may send a packet of a class only while it holds a
//! credit of that class; the receiver returns credits with [`Frame::Credit`] as it makes room. Replies travel
//! without credits: every requester has room reserved for the answers it asked for, so they always sink.
//!
//! A packet of [`Class::Reflected`] to [`MULTICAST`](packet::MULTICAST) crosses the link of its sender once and is copied by the
//! switch to the members that the last [`Frame::Group`] gave for its page.
//!
//! A *trunk* joins two switches. Either side opens with [`Frame::Trunk`]; when both have and agree, packets cross as [`Frame::Forward`]
//! against credits of their class and layer, replies too, and the presence of nodes as [`Frame::Reach`] and [`Frame::NodeDown`], each
//! behind everything the node sent before. `docs/fabric.md` has the rules.
//!
//! Whoever is asked by [`Frame::Probe`] answers [`Frame::Alive`], on links and trunks alike.

use alloc::vec::Vec;

use crate::packet::{self, Packet, PacketError};
use crate::{Class, NodeId, PROTOCOL_VERSION, WindowLayout};

/// Bytes of the frame head.
pub const HEAD_LEN: usize = 8;
/// Bytes of the longest frame: a packet on a trunk with the longest list of members.
pub const MAX_LEN: usize = HEAD_LEN + forward_len(MAX_MEMBERS) + packet::MAX_LEN;
/// Layers (virtual channels) of a trunk, at most.
pub const MAX_LAYERS: u8 = 4;
/// Members of one group, at most: as many nodes as a window can address.
pub const MAX_MEMBERS: usize = 1 << 12;
/// Members of all groups of one node together, at most: what the switch keeps of one node is bounded. A node whose groups would be
/// more sends one packet for each copy of the pages that are left over.
pub const MAX_MEMBERSHIPS: usize = 1 << 18;
/// Groups of one node, at most, for the same reason.
pub const MAX_GROUPS: usize = 1 << 14;
/// Credits a side offers per class unless configured otherwise, in packets.
pub const DEFAULT_CREDITS: u32 = 256;

/// Bits of an incarnation that count the resets of one join.
pub const RESET_BITS: u32 = 12;
/// Bits of an incarnation that count resets, and above them the joins since the fabric's start. What is above these is the second of the
/// fabric's start: a fabric that is started again later begins with greater ones, as long as its nodes have joined less often than 256
/// times a second.
pub const COUNTED_BITS: u32 = RESET_BITS + 8;

/// Incarnations that a fabric gives which is started at this time, in seconds since 1970, are greater than this. It does not come round
/// before the year 2106, when the seconds need 33 bits.
pub const fn incarnation_at(seconds: u64) -> u64 {
    (seconds & 0xffff_ffff) << COUNTED_BITS
}

/// Frame kinds from this one on are never on a link: captures use them for what is no frame (`fabric/capture`).
pub const FIRST_RECORD_KIND: u8 = 0xf0;

/// What a refused joiner got wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Refusal {
    /// The node id is taken; `expected` is 0.
    NodeTaken = 1,
    /// The node id is not below the fabric's number of nodes (`expected`).
    NodeRange = 2,
    /// Protocol versions differ.
    Version = 3,
    /// `node_bits` differ.
    NodeBits = 4,
    /// `offset_bits` differ.
    OffsetBits = 5,
    /// The first frame was not a Hello; or, with epochs as values, the trunk was joined by another connection since this one was greeted.
    Handshake = 6,
    /// The port misbehaved (bad frame, packets without credit, forged source).
    Protocol = 7,
    /// The node is attached to another switch (`expected`).
    Elsewhere = 8,
    /// The two ends of a trunk were given different topologies (digests).
    Topology = 9,
    /// There is no such trunk: `offered` is the switch that called, `expected` the switch that was called.
    NoTrunk = 10,
    /// The port was silent for too long: `offered` and `expected` are microseconds.
    Silent = 11,
    /// The node joined or was reset too often: `offered` is how often it may at once, `expected` how often in a second from then on.
    Rate = 12,
}

impl Refusal {
    pub(crate) fn from_u16(value: u16) -> Refusal {
        match value {
            1 => Refusal::NodeTaken,
            2 => Refusal::NodeRange,
            3 => Refusal::Version,
            4 => Refusal::NodeBits,
            5 => Refusal::OffsetBits,
            6 => Refusal::Handshake,
            8 => Refusal::Elsewhere,
            9 => Refusal::Topology,
            10 => Refusal::NoTrunk,
            11 => Refusal::Silent,
            12 => Refusal::Rate,
            _ => Refusal::Protocol,
        }
    }
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Frame {
    /// HIB -> fabric, first: who I am.
    Hello {
        /// Protocol version spoken (also where the head's version could not be understood).
        version: u8,
        /// Node id claimed.
        node: NodeId,
        /// Window parameters; all nodes must agree.
        window: WindowLayout,
        /// Packets of each class the HIB can take.
        credits: [u32; 4],
    },
    /// Fabric -> HIB: joined.
    Welcome {
        /// Base incarnation of this join: greater than every earlier one of this node; low 12 bits zero.
        incarnation: u64,
        /// Number of nodes the fabric serves.
        nodes: u32,
        /// Packets of each class the switch port can take.
        credits: [u32; 4],
    },
    /// Fabric -> HIB: not joined, or thrown out; the stream closes.
    Refuse {
        /// What was wrong.
        reason: Refusal,
        /// The value offered.
        offered: u64,
        /// The value expected.
        expected: u64,
    },
    /// A packet, either way.
    Packet(Packet),
    /// Room for `count` more packets of `class`, either way.
    Credit {
        /// The class.
        class: Class,
        /// Packets.
        count: u32,
    },
    /// Fabric -> HIB: `node` is in the cluster with `incarnation`. A change of incarnation means that it was reset.
    NodeUp {
        /// The node.
        node: NodeId,
        /// Its incarnation.
        incarnation: u64,
    },
    /// Fabric -> HIB: `node` has gone.
    NodeDown {
        /// The node.
        node: NodeId,
    },
    /// HIB -> fabric: I was reset; told to all nodes as [`Frame::NodeUp`], behind everything I sent before.
    Reset {
        /// The new incarnation: greater than the last.
        incarnation: u64,
    },
    /// HIB -> fabric: from now on, packets of mine about `page` to [`MULTICAST`](packet::MULTICAST) are for these nodes. The groups of
    /// a node end with its port, and when it is reset.
    Group {
        /// My export page: [`Body::page`](crate::Body::page) of those packets.
        page: u32,
        /// Node ids, ascending, at most [`MAX_MEMBERS`], not mine; none ends the group.
        members: Vec<NodeId>,
    },
    /// Switch -> switch, first, from both ends: which trunk this is.
    Trunk {
        /// Protocol version spoken (also where the head's version could not be understood).
        version: u8,
        /// The switch that says this.
        switch: u16,
        /// The switch it means to reach.
        peer: u16,
        /// The trunk's epoch as far as known; the greater of both, plus one, is its new one.
        epoch: u64,
        /// Digest of the topology; both ends must have been given the same.
        topology: u64,
        /// Packets of each class that it can take on each layer.
        credits: [u32; 4],
    },
    /// Switch -> switch: `node` can be reached by this trunk. A change means that it was reset, or cut off for a while.
    Reach {
        /// The node.
        node: NodeId,
        /// Its incarnation, as it knows it.
        incarnation: u64,
        /// Sum of the epochs of the trunks between the node's switch and the one that says this.
        session: u64,
    },
    /// Switch -> switch: a packet.
    Forward {
        /// Its layer on this trunk.
        layer: u8,
        /// For a packet to [`MULTICAST`](packet::MULTICAST) the nodes it is for, ascending; else none.
        members: Vec<NodeId>,
        /// The packet.
        packet: Packet,
    },
    /// Switch -> switch: room for `count` more packets of `class` on `layer`.
    TrunkCredit {
        /// The class.
        class: Class,
        /// The layer.
        layer: u8,
        /// Packets.
        count: u32,
    },
    /// Whoever gets this answers [`Frame::Alive`].
    Probe,
    /// The answer to [`Frame::Probe`].
    Alive,
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The length field is outside its kind's bounds.
    Length(u32),
    /// Another protocol version.
    Version(u8),
    /// Unknown kind, or a field out of range.
    Kind(u8),
    /// The packet inside is malformed.
    Packet(PacketError),
}

impl core::fmt::Display for FrameError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            FrameError::Length(n) => {
                write!(f, "frame of {n} bytes: expected its kind's length, {HEAD_LEN} to {MAX_LEN}")
            }
            FrameError::Version(v) => write!(f, "frame version {v}: expected {PROTOCOL_VERSION}"),
            FrameError::Kind(k) => write!(f, "frame kind {k} is unknown or malformed"),
            FrameError::Packet(e) => write!(f, "{e}"),
        }
    }
}

impl core::error::Error for FrameError {}

pub(crate) const HELLO: u8 = 1;
pub(crate) const WELCOME: u8 = 2;
pub(crate) const REFUSE: u8 = 3;
pub(crate) const PACKET: u8 = 4;
pub(crate) const CREDIT: u8 = 5;
pub(crate) const NODE_UP: u8 = 6;
pub(crate) const NODE_DOWN: u8 = 7;
pub(crate) const RESET: u8 = 8;
pub(crate) const GROUP: u8 = 9;
pub(crate) const TRUNK: u8 = 10;
pub(crate) const REACH: u8 = 11;
pub(crate) const FORWARD: u8 = 12;
pub(crate) const TRUNK_CREDIT: u8 = 13;
pub(crate) const PROBE: u8 = 14;
pub(crate) const ALIVE: u8 = 15;

/// Bytes of a group's frame behind the head.
const fn group_len(members: usize) -> usize {
    4 + 2 * members
}

/// Bytes of a forwarded packet's frame between head and packet.
const fn forward_len(members: usize) -> usize {
    4 + 2 * members
}

/// The node ids in `bytes`, if they ascend.
fn ascending(bytes: &[u8]) -> Option<Vec<NodeId>> {
    let members: Vec<NodeId> = (0..bytes.len()).step_by(2).map(|at| u16_at(bytes, at)).collect();
    // Nobody is in it twice.
    if members.windows(2).any(|pair| pair[0] >= pair[1]) { None } else { Some(members) }
}

fn layer_at(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied().filter(|layer| *layer < MAX_LAYERS)
}

const _: () = assert!(HEAD_LEN + group_len(MAX_MEMBERS) <= MAX_LEN);

fn u16_at(b: &[u8], at: usize) -> u16 {
    b.get(at..at + 2).map_or(0, |s| u16::from_le_bytes([s[0], s[1]]))
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from(u16_at(b, at)) | u32::from(u16_at(b, at + 2)) << 16
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) | u64::from(u32_at(b, at + 4)) << 32
}

fn credits_at(b: &[u8], at: usize) -> [u32; 4] {
    [u32_at(b, at), u32_at(b, at + 4), u32_at(b, at + 8), u32_at(b, at + 12)]
}

impl Frame {
    /// Appends the frame to `out` and returns its length.
    pub fn encode(&self, out: &mut Vec<u8>) -> usize {
        let start = out.len();
        out.extend_from_slice(&[0; HEAD_LEN]);
        let mut put = |bytes: &[u8]| out.extend_from_slice(bytes);
        let put_credits = |put: &mut dyn FnMut(&[u8]), credits: &[u32; 4]| {
            for c in credits {
                put(&c.to_le_bytes());
            }
        };
        let kind = match self {
            Frame::Hello { version, node, window, credits } => {
                put(&[*version, window.node_bits, window.offset_bits, 0]);
                put(&node.to_le_bytes());
                put(&[0, 0]);
                put_credits(&mut put, credits);
                HELLO
            }
            Frame::Welcome { incarnation, nodes, credits } => {
                put(&incarnation.to_le_bytes());
                put(&nodes.to_le_bytes());
                put_credits(&mut put, credits);
                WELCOME
            }
            Frame::Refuse { reason, offered, expected } => {
                put(&(*reason as u32).to_le_bytes());
                put(&offered.to_le_bytes());
                put(&expected.to_le_bytes());
                REFUSE
            }
            Frame::Packet(packet) => {
                packet.encode(out);
                PACKET
            }
            Frame::Credit { class, count } => {
                put(&(*class as u32).to_le_bytes());
                put(&count.to_le_bytes());
                CREDIT
            }
            Frame::NodeUp { node, incarnation } => {
                put(&u32::from(*node).to_le_bytes());
                put(&incarnation.to_le_bytes());
                NODE_UP
            }
            Frame::NodeDown { node } => {
                put(&u32::from(*node).to_le_bytes());
                NODE_DOWN
            }
            Frame::Reset { incarnation } => {
                put(&incarnation.to_le_bytes());
                RESET
            }
            Frame::Group { page, members } => {
                put(&page.to_le_bytes());
                for node in members {
                    put(&node.to_le_bytes());
                }
                GROUP
            }
            Frame::Trunk { version, switch, peer, epoch, topology, credits } => {
                put(&[*version, 0, 0, 0]);
                put(&switch.to_le_bytes());
                put(&peer.to_le_bytes());
                put(&epoch.to_le_bytes());
                put(&topology.to_le_bytes());
                put_credits(&mut put, credits);
                TRUNK
            }
            Frame::Reach { node, incarnation, session } => {
                put(&u32::from(*node).to_le_bytes());
                put(&incarnation.to_le_bytes());
                put(&session.to_le_bytes());
                REACH
            }
            Frame::Forward { layer, members, packet } => {
                put(&[*layer, 0]);
                put(&(members.len() as u16).to_le_bytes());
                for node in members {
                    put(&node.to_le_bytes());
                }
                packet.encode(out);
                FORWARD
            }
            Frame::TrunkCredit { class, layer, count } => {
                put(&[*class as u8, *layer, 0, 0]);
                put(&count.to_le_bytes());
                TRUNK_CREDIT
            }
            Frame::Probe => PROBE,
            Frame::Alive => ALIVE,
        };
        let len = out.len() - start;
        out[start..start + 4].copy_from_slice(&(len as u32).to_le_bytes());
        out[start + 4..start + HEAD_LEN].copy_from_slice(&[kind, PROTOCOL_VERSION, 0, 0]);
        len
    }

    /// Parses the first frame of a byte stream: `Ok(None)` asks for more bytes, `Ok(Some((frame, used)))` is a frame and its
    /// length. After an error the stream cannot be trusted any more. Never panics.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Frame, usize)>, FrameError> {
        if bytes.len() < HEAD_LEN {
            return Ok(None);
        }
        let total = u32_at(bytes, 0);
        let (kind, version) = (bytes[4], bytes[5]);
        if (total as usize) < HEAD_LEN || total as usize > MAX_LEN {
            return Err(FrameError::Length(total));
        }
        // An opening frame of another version is parsed, so that the refusal can name both versions.
        if version != PROTOCOL_VERSION && kind != HELLO && kind != TRUNK {
            return Err(FrameError::Version(version));
        }
        let total = total as usize;
        let Some(b) = bytes.get(HEAD_LEN..total) else { return Ok(None) };
        let fixed = |n: usize| {
            if b.len() == n { Ok(()) } else { Err(FrameError::Length(total as u32)) }
        };
        let frame = match kind {
            HELLO => {
                fixed(24)?;
                Frame::Hello {
                    version: b[0],
                    node: u16_at(b, 4),
                    window: WindowLayout { node_bits: b[1], offset_bits: b[2] },
                    credits: credits_at(b, 8),
                }
            }
            WELCOME => {
                fixed(28)?;
                Frame::Welcome { incarnation: u64_at(b, 0), nodes: u32_at(b, 8), credits: credits_at(b, 12) }
            }
            REFUSE => {
                fixed(20)?;
                Frame::Refuse {
                    reason: Refusal::from_u16(u16_at(b, 0)),
                    offered: u64_at(b, 4),
                    expected: u64_at(b, 12),
                }
            }
            PACKET => Frame::Packet(Packet::decode(b).map_err(FrameError::Packet)?),
            CREDIT => {
                fixed(8)?;
                let class = u8::try_from(u32_at(b, 0)).ok().and_then(Class::from_u8);
                Frame::Credit { class: class.ok_or(FrameError::Kind(kind))?, count: u32_at(b, 4) }
            }
            NODE_UP => {
                fixed(12)?;
                Frame::NodeUp { node: u16_at(b, 0), incarnation: u64_at(b, 4) }
            }
            NODE_DOWN => {
                fixed(4)?;
                Frame::NodeDown { node: u16_at(b, 0) }
            }
            RESET => {
                fixed(8)?;
                Frame::Reset { incarnation: u64_at(b, 0) }
            }
            GROUP => {
                if b.len() < group_len(0) || b.len() % 2 != 0 || b.len() > group_len(MAX_MEMBERS) {
                    return Err(FrameError::Length(total as u32));
                }
                let members = ascending(&b[4..]).ok_or(FrameError::Kind(kind))?;
                Frame::Group { page: u32_at(b, 0), members }
            }
            TRUNK => {
                fixed(40)?;
                Frame::Trunk {
                    version: b[0],
                    switch: u16_at(b, 4),
                    peer: u16_at(b, 6),
                    epoch: u64_at(b, 8),
                    topology: u64_at(b, 16),
                    credits: credits_at(b, 24),
                }
            }
            REACH => {
                fixed(20)?;
                Frame::Reach { node: u16_at(b, 0), incarnation: u64_at(b, 4), session: u64_at(b, 12) }
            }
            FORWARD => {
                let count = usize::from(u16_at(b, 2));
                if count > MAX_MEMBERS || b.len() < forward_len(count) {
                    return Err(FrameError::Length(total as u32));
                }
                let (list, rest) = b.split_at(forward_len(count));
                Frame::Forward {
                    layer: layer_at(list, 0).ok_or(FrameError::Kind(kind))?,
                    members: ascending(&list[4..]).ok_or(FrameError::Kind(kind))?,
                    packet: Packet::decode(rest).map_err(FrameError::Packet)?,
                }
            }
            TRUNK_CREDIT => {
                fixed(8)?;
                Frame::TrunkCredit {
                    class: Class::from_u8(b[0]).ok_or(FrameError::Kind(kind))?,
                    layer: layer_at(b, 1).ok_or(FrameError::Kind(kind))?,
                    count: u32_at(b, 4),
                }
            }
            PROBE => {
                fixed(0)?;
                Frame::Probe
            }
            ALIVE => {
                fixed(0)?;
                Frame::Alive
            }
            other => return Err(FrameError::Kind(other)),
        };
        Ok(Some((frame, total)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Body, Status};
    use alloc::vec;
    use proptest::prelude::*;

    #[test]
    fn decode_inverts_encode() {
        let packet = Packet {
            src: 1,
            dst: 2,
            tag: 3,
            incarnation: 4,
            target: 0,
            body: Body::WriteAck { status: Status::Stale },
        };
        for frame in [
            Frame::Hello { version: 1, node: 5, window: WindowLayout::default(), credits: [1, 2, 3, 4] },
            Frame::Welcome { incarnation: 0x1000, nodes: 64, credits: [9; 4] },
            Frame::Refuse { reason: Refusal::NodeBits, offered: 6, expected: 7 },
            Frame::Packet(packet.clone()),
            Frame::Credit { class: Class::Reflected, count: 12 },
            Frame::NodeUp { node: 3, incarnation: 0x2001 },
            Frame::NodeDown { node: 3 },
            Frame::Reset { incarnation: 0x2002 },
            Frame::Group { page: 0xffff_ffff, members: vec![0, 3, 4095] },
            Frame::Group { page: 7, members: vec![] },
            Frame::Group { page: 7, members: (0..MAX_MEMBERS as NodeId).collect() },
            Frame::Trunk { version: 1, switch: 4095, peer: 7, epoch: 9, topology: u64::MAX - 5, credits: [1, 2, 3, 4] },
            Frame::Reach { node: 9, incarnation: 0x3004, session: 77 },
            Frame::Forward { layer: 3, members: vec![], packet: packet.clone() },
            Frame::Forward { layer: 0, members: (0..MAX_MEMBERS as NodeId).collect(), packet: packet.clone() },
            Frame::TrunkCredit { class: Class::Reply, layer: 2, count: 255 },
            Frame::Probe,
            Frame::Alive,
        ] {
            let mut bytes = Vec::new();
            let len = frame.encode(&mut bytes);
            assert_eq!(Frame::decode(&bytes[..len]), Ok(Some((frame, len))));
            for cut in 0..len {
                assert_eq!(Frame::decode(&bytes[..cut]), Ok(None));
            }
        }
    }

    #[test]
    fn groups_that_cannot_be_are_refused() {
        let encoded = |members: Vec<NodeId>| {
            let mut bytes = Vec::new();
            Frame::Group { page: 1, members }.encode(&mut bytes);
            bytes
        };
        for members in [vec![1, 1], vec![2, 1], vec![1, 3, 2]] {
            assert_eq!(Frame::decode(&encoded(members)), Err(FrameError::Kind(GROUP)));
        }
        let many = encoded((0..=MAX_MEMBERS as NodeId).collect());
        assert_eq!(Frame::decode(&many), Err(FrameError::Length(many.len() as u32)));
        // Half a member, half a page.
        for len in [HEAD_LEN + 5, HEAD_LEN + 3, HEAD_LEN + 2] {
            let mut bytes = encoded(vec![1, 2]);
            bytes.truncate(len);
            bytes[0] = len as u8;
            assert_eq!(Frame::decode(&bytes), Err(FrameError::Length(len as u32)));
        }
    }

    #[test]
    fn forwarded_packets_that_cannot_be_are_refused() {
        let packet =
            Packet { src: 1, dst: 2, tag: 3, incarnation: 4, target: 5, body: Body::WriteAck { status: Status::Ok } };
        let encoded = |layer, members| {
            let mut bytes = Vec::new();
            Frame::Forward { layer, members, packet: packet.clone() }.encode(&mut bytes);
            bytes
        };
        assert_eq!(Frame::decode(&encoded(MAX_LAYERS, vec![])), Err(FrameError::Kind(FORWARD)));
        assert_eq!(Frame::decode(&encoded(0, vec![3, 3])), Err(FrameError::Kind(FORWARD)));
        let many = encoded(0, (0..=MAX_MEMBERS as NodeId).collect());
        assert_eq!(Frame::decode(&many), Err(FrameError::Length(many.len() as u32)));
        // More members announced than there are bytes.
        let mut short = encoded(0, vec![]);
        short[HEAD_LEN + 2] = 200;
        assert_eq!(Frame::decode(&short), Err(FrameError::Length(short.len() as u32)));
        let mut credit = Vec::new();
        Frame::TrunkCredit { class: Class::Reply, layer: MAX_LAYERS, count: 1 }.encode(&mut credit);
        assert_eq!(Frame::decode(&credit), Err(FrameError::Kind(TRUNK_CREDIT)));
    }

    proptest! {
        /// No bytes make it panic, and what it accepts is encoded to the same bytes again, but for padding.
        #[test]
        fn decode_survives_any_bytes(kind in 0u8..20, mut body in proptest::collection::vec(any::<u8>(), 0..200), declared in 0u32..220) {
            let mut bytes = declared.to_le_bytes().to_vec();
            bytes.extend([kind, PROTOCOL_VERSION, 0, 0]);
            bytes.append(&mut body);
            if let Ok(Some((frame, used))) = Frame::decode(&bytes) {
                let mut again = Vec::new();
                prop_assert_eq!(frame.encode(&mut again), used);
                prop_assert_eq!(Frame::decode(&again), Ok(Some((frame, used))));
            }
        }

        #[test]
        fn decode_inverts_encode_for_groups(
            page: u32,
            members in proptest::collection::btree_set(any::<NodeId>(), 0..100),
            behind in proptest::collection::vec(any::<u8>(), 0..20),
        ) {
            let frame = Frame::Group { page, members: members.into_iter().collect() };
            let mut bytes = Vec::new();
            let len = frame.encode(&mut bytes);
            bytes.extend(behind);
            prop_assert_eq!(Frame::decode(&bytes), Ok(Some((frame, len))));
            for cut in 0..len {
                prop_assert_eq!(Frame::decode(&bytes[..cut]), Ok(None));
            }
        }

        #[test]
        fn what_decodes_as_a_group_encodes_the_same(mut bytes in proptest::collection::vec(any::<u8>(), HEAD_LEN..40)) {
            let len = bytes.len();
            bytes[..HEAD_LEN].copy_from_slice(&[len as u8, 0, 0, 0, GROUP, PROTOCOL_VERSION, 0, 0]);
            if let Ok(Some((frame, used))) = Frame::decode(&bytes) {
                prop_assert_eq!(used, len);
                let mut again = Vec::new();
                frame.encode(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0u8..11) {
            let _ = Frame::decode(&bytes);
            if bytes.len() >= HEAD_LEN {
                let len = bytes.len().min(MAX_LEN) as u32;
                bytes[..4].copy_from_slice(&len.to_le_bytes());
                bytes[4] = kind;
                bytes[5] = PROTOCOL_VERSION;
                let _ = Frame::decode(&bytes);
            }
        }
    }
}
