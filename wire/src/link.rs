// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames between a HIB and its switch port, and between two switches, over one reliable, ordered byte stream.
//!
//! A frame is an 8-byte head (`u32` total length, kind, [`PROTOCOL_VERSION`], zero) and a body. The HIB opens with
//! [`Frame::Hello`]; the fabric answers [`Frame::Welcome`] and a [`Frame::NodeUp`] for each present node (the joiner
//! included), or [`Frame::Refuse`] and closes. After that either side may send a packet of a class only while it holds
//! a credit of that class; the receiver returns credits with [`Frame::Credit`] as it makes room. Replies travel
//! without credits: every requester reserves room for the replies to its requests, so they always sink.
//!
//! A packet of [`Class::Reflected`] to [`MULTICAST`](packet::MULTICAST) crosses the link of its sender once and is
//! copied by the switch to the members that the last [`Frame::Group`] gave for its page.
//!
//! A *trunk* joins two switches. Either side opens with [`Frame::Trunk`]; when both have and agree, packets cross as
//! [`Frame::Forward`] against credits of their class and layer, replies too, and the presence of nodes as
//! [`Frame::Reach`] and [`Frame::NodeDown`], each behind everything the node sent before. `docs/fabric.md` has the
//! rules.
//!
//! The receiver of a [`Frame::Probe`] answers [`Frame::Alive`], on links, trunks and rings alike.
//!
//! A *ring* joins two HIBs of one host ([`Frame::Ring`]): requests, elements and their replies pass by it without the
//! fabric, as [`Frame::Packet`] and [`Frame::Credit`]. `docs/fabric.md` has its rules, too.

use alloc::vec::Vec;

use crate::field::{Field, Kind, Show, Tail, field};
use crate::numbers::numbers;
use crate::packet::{self, Packet, PacketError};
use crate::schema::{Encoded, Malformed, Number, Slot, encoded, kinds, slots};
use crate::{Class, NodeId, PROTOCOL_VERSION, WindowLayout};

/// Bytes of the frame head.
pub const HEAD_LEN: usize = 8;
/// Bytes of the longest frame: a packet on a trunk with the longest list of members.
pub const MAX_LEN: usize = HEAD_LEN + forward_len(MAX_MEMBERS) + packet::MAX_LEN;
/// Layers (virtual channels) of a trunk, at most.
pub const MAX_LAYERS: u8 = 4;
/// Sides of a ring, each of which is one of its two boards'.
pub const RING_SIDES: u8 = 2;
/// Members of one group, at most: as many nodes as a window can address.
pub const MAX_MEMBERS: usize = 1 << 12;
/// Members of all groups of one node together, at most, so that a switch's memory for one node is bounded. Beyond it a
/// node sends one packet for each copy of the remaining pages.
pub const MAX_MEMBERSHIPS: usize = 1 << 18;
/// Groups of one node, at most, for the same reason.
pub const MAX_GROUPS: usize = 1 << 14;
/// Credits a side offers per class unless configured otherwise, in packets.
pub const DEFAULT_CREDITS: u32 = 256;

/// Bits of an incarnation that count the resets of one join.
pub const RESET_BITS: u32 = 12;
/// Bits of an incarnation that count resets and, above them, the joins since the fabric's start. The bits above these
/// are the second of the fabric's start: a fabric that is started again later begins with greater incarnations, as long
/// as its nodes have joined less often than 256 times a second.
pub const COUNTED_BITS: u32 = RESET_BITS + 8;

/// The incarnations of a fabric that is started at this time, in seconds since 1970, are greater than this. It does not
/// wrap before the year 2106, when the seconds need 33 bits.
pub const fn incarnation_at(seconds: u64) -> u64 {
    (seconds & 0xffff_ffff) << COUNTED_BITS
}

/// Bytes of a packet's frame on a link.
#[inline]
pub fn packet_len(packet: &Packet) -> u64 {
    (HEAD_LEN + packet::HEADER_LEN + packet.body.payload_len()) as u64
}

/// Frame kinds from this one on never occur on a link: captures use them for other records (`fabric/capture`).
pub const FIRST_RECORD_KIND: u8 = 0xf0;

numbers! {
    /// Why a node or a switch is refused.
    pub enum Refusal: u16, fn known;

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
    /// The first frame was not a Hello; or, with epochs as values, the trunk was joined by another connection since
    /// this one was greeted.
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
    /// The node joined or was reset too often: `offered` is the number allowed at once, `expected` the number per
    /// second from then on.
    Rate = 12,
}

/// Kinds of the frames that open a link or a trunk: read whatever their version.
pub(crate) const HELLO: u8 = 1;
pub(crate) const TRUNK: u8 = 10;
/// Kind of the frames that are packets.
const PACKET: u8 = 4;

slots! {
    Version: u8 as u8, "offered_version" @ 0, Dec;
    Joiner: NodeId as u16, "node" @ 4, Node;
    First: u64 as u64, "incarnation" @ 0, Hex;
    Nodes: u32 as u32, "nodes" @ 8, Dec;
    Reason: Refusal as u16, "reason" @ 0, Refusal;
    Offered: u64 as u64, "offered" @ 4, Dec;
    Expected: u64 as u64, "expected" @ 12, Dec;
    ItsClass: Class as u32, "class" @ 0, Class;
    Count: u32 as u32, "count" @ 4, Dec;
    Node: NodeId as u16, "node" @ 0, Node;
    Incarnation: u64 as u64, "incarnation" @ 4, Hex;
    Longest: u32 as u32, "longest_block" @ 12, Dec;
    Page: u32 as u32, "page" @ 0, Dec;
    From: u16 as u16, "switch" @ 4, Dec;
    Peer: u16 as u16, "peer" @ 6, Dec;
    Epoch: u64 as u64, "epoch" @ 8, Dec;
    Digest: u64 as u64, "topology" @ 16, Hex;
    Session: u64 as u64, "session" @ 12, Dec;
    ShortClass: Class as u8, "class" @ 0, Class;
    Layer: u8 as u8, "layer" @ 0, Dec, where is_layer;
    CreditLayer: u8 as u8, "layer" @ 1, Dec, where is_layer;
    OwnIncarnation: u64 as u64, "own_incarnation" @ 12, Hex;
    RingBytes: u32 as u32, "ring_bytes" @ 20, Dec;
    RingCredits: u32 as u32, "ring_credits" @ 24, Dec;
    RingSide: u8 as u8, "ring_side" @ 28, Dec, where is_side;
    InUse: bool as u32, "in_use" @ 12, Flag;

    /// The window's parameters.
    Window: WindowLayout {
        node_bits: u8, "node_bits" @ 1, Dec;
        offset_bits: u8, "offset_bits" @ 2, Dec;
    };
}

/// Whether a ring has a side of this number.
fn is_side(number: u8) -> bool {
    number < RING_SIDES
}

/// Whether a trunk may have a layer of this number.
fn is_layer(number: u8) -> bool {
    number < MAX_LAYERS
}

encoded! {
    Class as u32: |class| *class as u32, |number| Encoded::of(u8::try_from(number).map_err(|_| Malformed::Value)?);
    Class as u8: |class| *class as u8, |number| Class::from_u8(number).ok_or(Malformed::Value);
    // The number may be of a later version.
    Refusal as u16: |refusal| *refusal as u16, |number| Ok(Refusal::known(number).unwrap_or(Refusal::Protocol));
}

/// Credits of each class.
struct Credits<const AT: usize>;

impl<const AT: usize> Slot for Credits<AT> {
    type Value = [u32; 4];
    const FIELDS: &'static [Field] = &[
        field("enqueue_credits", AT, 4, Show::Dec),
        field("request_credits", AT + 4, 4, Show::Dec),
        field("reflected_credits", AT + 8, 4, Show::Dec),
        field("reply_credits", AT + 12, 4, Show::Dec),
    ];

    fn put(value: &[u32; 4], fixed: &mut [u8]) {
        for (class, credits) in value.iter().enumerate() {
            credits.write(&mut fixed[AT + 4 * class..]);
        }
    }

    fn get(bytes: &[u8]) -> Result<[u32; 4], Malformed> {
        Ok([0, 4, 8, 12].map(|class| u32::read(bytes, AT + class)))
    }
}

/// A packet that is the whole body.
struct Whole;

impl Slot for Whole {
    type Value = Packet;
    const TAIL: Tail = Tail::Packet;

    #[inline]
    fn get(bytes: &[u8]) -> Result<Packet, Malformed> {
        Packet::decode(bytes).map_err(Malformed::Packet)
    }

    fn extend(value: &Packet, out: &mut Vec<u8>) {
        value.encode(out);
    }
}

/// Members to the end of the frame.
struct Members;

impl Slot for Members {
    type Value = Vec<NodeId>;
    const TAIL: Tail = Tail::Members;

    fn get(bytes: &[u8]) -> Result<Vec<NodeId>, Malformed> {
        ascending(bytes.get(group_len(0)..).unwrap_or_default())
    }

    fn extend(value: &Vec<NodeId>, out: &mut Vec<u8>) {
        value.iter().for_each(|node| out.extend_from_slice(&node.to_le_bytes()));
    }
}

/// Byte of the number of members of a forwarded packet.
const MEMBER_COUNT: usize = 2;

/// As many members as the field `count` says.
struct Listed;

impl Slot for Listed {
    type Value = Vec<NodeId>;
    const FIELDS: &'static [Field] = &[field("count", MEMBER_COUNT, 2, Show::Dec)];
    const TAIL: Tail = Tail::Members;

    fn put(value: &Vec<NodeId>, fixed: &mut [u8]) {
        (value.len() as u16).write(&mut fixed[MEMBER_COUNT..]);
    }

    fn get(bytes: &[u8]) -> Result<Vec<NodeId>, Malformed> {
        let count = usize::from(u16::read(bytes, MEMBER_COUNT));
        ascending(bytes.get(forward_len(0)..forward_len(count)).unwrap_or_default())
    }

    fn extend(value: &Vec<NodeId>, out: &mut Vec<u8>) {
        Members::extend(value, out);
    }
}

/// The packet behind these members.
struct Inner;

impl Slot for Inner {
    type Value = Packet;
    const TAIL: Tail = Tail::Packet;

    #[inline]
    fn get(bytes: &[u8]) -> Result<Packet, Malformed> {
        let count = usize::from(u16::read(bytes, MEMBER_COUNT));
        Whole::get(bytes.get(forward_len(count)..).unwrap_or_default())
    }

    fn extend(value: &Packet, out: &mut Vec<u8>) {
        Whole::extend(value, out);
    }
}

kinds! {
    /// One frame.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub enum Frame, head HEAD_LEN, table
    /// Every kind of frame; places count from behind the head.
    FRAMES;

    /// HIB -> fabric, first: identity and parameters.
    Hello = 1 "hello", None, 24, None {
        /// Protocol version spoken (also where the head's version could not be understood).
        version: u8 = Version,
        /// Node id claimed.
        node: NodeId = Joiner,
        /// Window parameters; all nodes must agree.
        window: WindowLayout = Window,
        /// Packets of each class that the HIB can take.
        credits: [u32; 4] = Credits<8>,
    };
    /// Fabric -> HIB: joined.
    Welcome = 2 "welcome", None, 28, None {
        /// Base incarnation of this join: greater than every earlier one of this node; low 12 bits zero.
        incarnation: u64 = First,
        /// Number of nodes the fabric serves.
        nodes: u32 = Nodes,
        /// Packets of each class the switch port can take.
        credits: [u32; 4] = Credits<12>,
    };
    /// Fabric -> HIB: not joined, or disconnected; the stream closes.
    Refuse = 3 "refuse", None, 20, None {
        /// The reason.
        reason: Refusal = Reason,
        /// The value offered.
        offered: u64 = Offered,
        /// The value expected.
        expected: u64 = Expected,
    };
    /// A packet, either way.
    Packet = 4 "packet", None, 0, None (packet: Packet = Whole);
    /// Room for `count` more packets of `class`, either way.
    Credit = 5 "credit", None, 8, None {
        /// The class.
        class: Class = ItsClass,
        /// Packets.
        count: u32 = Count,
    };
    /// Fabric -> HIB: `node` is in the cluster with `incarnation`. A change of incarnation means that it was reset.
    NodeUp = 6 "node-up", None, 16, None {
        /// The node.
        node: NodeId = Node,
        /// Its incarnation.
        incarnation: u64 = Incarnation,
        /// Bytes of the longest block in a packet between both: [`STREAM_BLOCK`](crate::STREAM_BLOCK) to
        /// [`MAX_BLOCK`](crate::MAX_BLOCK).
        block: u32 = Longest,
    };
    /// Fabric -> HIB: `node` has left.
    NodeDown = 7 "node-down", None, 4, None {
        /// The node.
        node: NodeId = Node,
    };
    /// HIB -> fabric: the HIB was reset. All nodes are notified by [`Frame::NodeUp`], after its earlier packets.
    Reset = 8 "reset", None, 8, None {
        /// The new incarnation: greater than the last.
        incarnation: u64 = First,
    };
    /// HIB -> fabric: from now on, its packets about `page` to [`MULTICAST`](packet::MULTICAST) are for these nodes.
    /// The groups of a node end with its port, and when it is reset.
    Group = 9 "group", None, 4, None {
        /// The sender's export page: [`Body::page`](crate::Body::page) of those packets.
        page: u32 = Page,
        /// Node ids, ascending, at most [`MAX_MEMBERS`], not the sender's; none ends the group.
        members: Vec<NodeId> = Members,
    };
    /// Switch -> switch, first, from both ends: identity of the trunk.
    Trunk = 10 "trunk", None, 40, None {
        /// Protocol version spoken (also where the head's version could not be understood).
        version: u8 = Version,
        /// The sender.
        switch: u16 = From,
        /// The switch that it expects at the other end.
        peer: u16 = Peer,
        /// The last epoch of the trunk known to the sender; the new one is the greater of both, plus one.
        epoch: u64 = Epoch,
        /// Digest of the topology, which must be the same at both ends.
        topology: u64 = Digest,
        /// Packets of each class that it can take on each layer.
        credits: [u32; 4] = Credits<24>,
    };
    /// Switch -> switch: `node` can be reached by this trunk. A change means that it was reset, or unreachable.
    Reach = 11 "reach", None, 20, None {
        /// The node.
        node: NodeId = Node,
        /// Its incarnation.
        incarnation: u64 = Incarnation,
        /// Sum of the epochs of the trunks between the node's switch and the sender.
        session: u64 = Session,
    };
    /// Switch -> switch: a packet.
    Forward = 12 "forward", None, 4, None {
        /// Its layer on this trunk.
        layer: u8 = Layer,
        /// The destinations of a packet to [`MULTICAST`](packet::MULTICAST), ascending; none for others.
        members: Vec<NodeId> = Listed,
        /// The packet.
        packet: Packet = Inner,
    };
    /// Switch -> switch: room for `count` more packets of `class` on `layer`.
    TrunkCredit = 13 "trunk-credit", None, 8, None {
        /// The class.
        class: Class = ShortClass,
        /// The layer.
        layer: u8 = CreditLayer,
        /// Packets.
        count: u32 = Count,
    };
    /// The receiver answers [`Frame::Alive`].
    Probe = 14 "probe", None, 0, None;
    /// The answer to [`Frame::Probe`].
    Alive = 15 "alive", None, 0, None;
    /// Fabric -> HIB: one end of a ring to `node`, which gets the other. Two descriptors come with it: a stream socket
    /// for wake-ups, and the memory of the ring.
    Ring = 16 "ring", None, 32, None {
        /// The node at the other end.
        node: NodeId = Node,
        /// Its incarnation.
        incarnation: u64 = Incarnation,
        /// That of the receiver: the frame is void if it has another one now.
        own: u64 = OwnIncarnation,
        /// Bytes of each direction.
        bytes: u32 = RingBytes,
        /// Requests, and as many elements, that either end may have in the other's buffers.
        credits: u32 = RingCredits,
        /// The direction in which the receiver writes: 0 or 1.
        side: u8 = RingSide,
    };
    /// Fabric -> HIB: from now on requests to this node go by the ring, or by the fabric again. HIB -> fabric: the last
    /// request by the ring has arrived there, and later ones go by the fabric.
    RingUse = 17 "ring-use", None, 16, None {
        /// The node at the other end.
        node: NodeId = Node,
        /// Its incarnation.
        incarnation: u64 = Incarnation,
        /// Whether the ring is used.
        on: bool = InUse,
    };
    /// HIB -> fabric: the node at the other end of a ring broke its rules; the sender has closed its end, and counts
    /// the node as down. Fabric -> HIB: the node did the same.
    RingLost = 18 "ring-lost", None, 12, None {
        /// The node at the other end.
        node: NodeId = Node,
        /// Its incarnation.
        incarnation: u64 = Incarnation,
    };
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length field is outside its kind's bounds.
    #[error("frame of {0} bytes: expected its kind's length, {HEAD_LEN} to {MAX_LEN}")]
    Length(u32),
    /// Another protocol version.
    #[error("frame version {0}: expected {PROTOCOL_VERSION}")]
    Version(u8),
    /// Unknown kind, or a field out of range.
    #[error("frame kind {0} is unknown or malformed")]
    Kind(u8),
    /// The packet inside is malformed.
    #[error("{0}")]
    Packet(PacketError),
}

/// Bytes of a group's frame behind the head.
const fn group_len(members: usize) -> usize {
    4 + 2 * members
}

/// Bytes of a forwarded packet's frame between head and packet.
const fn forward_len(members: usize) -> usize {
    4 + 2 * members
}

/// The node ids in `bytes`, if they ascend: each is there once.
fn ascending(bytes: &[u8]) -> Result<Vec<NodeId>, Malformed> {
    let members: Vec<NodeId> = bytes.chunks_exact(2).map(|node| u16::read(node, 0)).collect();
    if members.windows(2).any(|pair| pair[0] >= pair[1]) { Err(Malformed::Value) } else { Ok(members) }
}

const _: () = assert!(HEAD_LEN + group_len(MAX_MEMBERS) <= MAX_LEN);

impl Tail {
    /// Whether a frame's body of these bytes, of which the first `fixed` are fields, can have this tail.
    #[inline]
    fn fits(self, fixed: usize, body: &[u8]) -> bool {
        match self {
            Tail::None => body.len() == fixed,
            Tail::Members => (fixed..=group_len(MAX_MEMBERS)).contains(&body.len()) && body.len() % 2 == 0,
            Tail::MembersAndPacket => {
                let count = usize::from(u16::read(body, MEMBER_COUNT));
                count <= MAX_MEMBERS && body.len() >= forward_len(count)
            }
            Tail::Packet | Tail::Block | Tail::Text | Tail::Bytes => body.len() >= fixed,
        }
    }
}

impl Frame {
    /// Appends the frame to `out` and returns its length.
    pub fn encode(&self, out: &mut Vec<u8>) -> usize {
        let start = out.len();
        self.append(out, |head, number, _| head[4..HEAD_LEN].copy_from_slice(&[number, PROTOCOL_VERSION, 0, 0]));
        let len = out.len() - start;
        out[start..start + 4].copy_from_slice(&(len as u32).to_le_bytes());
        len
    }

    /// Parses the first frame of a byte stream: `Ok(None)` if more bytes are needed, `Ok(Some((frame, used)))` with its
    /// length in bytes. After an error the stream cannot be trusted any more. Never panics.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Option<(Frame, usize)>, FrameError> {
        // Nearly all are packets.
        let Some(head) = bytes.first_chunk::<HEAD_LEN>() else { return Ok(None) };
        let total = u32::read(head, 0) as usize;
        if head[4..6] != [PACKET, PROTOCOL_VERSION] || !(HEAD_LEN..=MAX_LEN).contains(&total) {
            return Frame::decode_any(head, bytes);
        }
        let Some(body) = bytes.get(HEAD_LEN..total) else { return Ok(None) };
        match Packet::decode(body) {
            Ok(packet) => Ok(Some((Frame::Packet(packet), total))),
            Err(why) => Err(FrameError::Packet(why)),
        }
    }

    /// The same of any kind.
    #[inline(never)]
    fn decode_any(head: &[u8; HEAD_LEN], bytes: &[u8]) -> Result<Option<(Frame, usize)>, FrameError> {
        let total = u32::read(head, 0);
        let (number, version) = (head[4], head[5]);
        let wrong_length = FrameError::Length(total);
        if (total as usize) < HEAD_LEN || total as usize > MAX_LEN {
            return Err(wrong_length);
        }
        // An opening frame of another version is parsed, so that the refusal can name both versions.
        if version != PROTOCOL_VERSION && number != HELLO && number != TRUNK {
            return Err(FrameError::Version(version));
        }
        let total = total as usize;
        let Some(body) = bytes.get(HEAD_LEN..total) else { return Ok(None) };
        let check = |kind: &Kind, body: &[u8]| {
            let fits = body.len() >= kind.len && kind.tail.fits(kind.len, body);
            if fits { Ok(()) } else { Err(wrong_length) }
        };
        let fail = |why| match why {
            Malformed::Packet(why) => FrameError::Packet(why),
            Malformed::Length => wrong_length,
            Malformed::Kind | Malformed::Atomic(_) | Malformed::Value => FrameError::Kind(number),
        };
        let frame = Frame::get(number, body, check, fail)?;
        Ok(Some((frame, total)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::STREAM_BLOCK;
    use crate::{Body, Status};
    use alloc::vec;
    use proptest::prelude::*;

    const GROUP: u8 = 9;
    const FORWARD: u8 = 12;
    const TRUNK_CREDIT: u8 = 13;

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
            Frame::NodeUp { node: 3, incarnation: 0x2001, block: STREAM_BLOCK as u32 },
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
            Frame::Ring { node: 3, incarnation: 0x2001, own: 0x3000, bytes: 1 << 17, credits: 64, side: 1 },
            Frame::RingUse { node: 3, incarnation: 0x2001, on: true },
            Frame::RingLost { node: 3, incarnation: 0x2001 },
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
        fn decode_survives_any_bytes(kind in 0u8..24, mut body in proptest::collection::vec(any::<u8>(), 0..200), declared in 0u32..220) {
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
