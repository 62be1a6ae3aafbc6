// SPDX-License-Identifier: MIT OR Apache-2.0
//! What HIBs say to each other: a fixed header and, for lookups, a fixed payload.
//!
//! [`Packet`] is the sane representation; [`Packet::encode`] and [`Packet::decode`] are the only places that know the bytes.

use crate::{NodeId, PROTOCOL_VERSION, Status};

/// Bytes of the header.
pub const HEADER_LEN: usize = 56;
/// Bytes of the longest packet.
pub const MAX_LEN: usize = HEADER_LEN + LOOKUP_LEN;
const LOOKUP_LEN: usize = 88;

/// Traffic class. A class may wait only for classes to its right; replies always sink (DESIGN contract 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Class {
    /// Remote enqueue requests (s0).
    Enqueue = 0,
    /// Loads, stores, atomics, lookups.
    Request = 1,
    /// Multicast updates from the home node.
    Reflected = 2,
    /// Replies and acknowledgements.
    Reply = 3,
}

impl Class {
    /// Every class, by number.
    pub const ALL: [Class; 4] = [Class::Enqueue, Class::Request, Class::Reflected, Class::Reply];

    /// The class of a number.
    pub fn from_u8(value: u8) -> Option<Class> {
        Self::ALL.get(usize::from(value)).copied()
    }
}

/// Access rights of a grant or an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Rights(pub u16);

impl Rights {
    /// Loads.
    pub const READ: Rights = Rights(1);
    /// Stores.
    pub const WRITE: Rights = Rights(2);
    /// Atomics.
    pub const ATOMIC: Rights = Rights(4);
    /// Remote enqueue.
    pub const ENQUEUE: Rights = Rights(8);
    /// Block copies.
    pub const DMA: Rights = Rights(16);
    /// All of them.
    pub const ALL: Rights = Rights(31);
    /// C names and values.
    pub const NAMES: &'static [(&'static str, u64, &'static str)] = &[
        ("TG_RIGHT_READ", 1, "Loads."),
        ("TG_RIGHT_WRITE", 2, "Stores."),
        ("TG_RIGHT_ATOMIC", 4, "Atomics."),
        ("TG_RIGHT_ENQUEUE", 8, "Remote enqueue."),
        ("TG_RIGHT_DMA", 16, "Block copies."),
    ];

    /// Whether every right of `other` is in `self`.
    pub fn contains(self, other: Rights) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Where in a remote node's exported memory an access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteAddr {
    /// Export page (one unit each).
    pub page: u32,
    /// Bytes from the start of that page.
    pub offset: u32,
    /// Generation of the grant the issuer believes in.
    pub generation: u64,
}

/// A segment name, NUL-padded.
pub type Name = [u8; 64];

/// What a packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// Store `size` (1, 2, 4, 8) bytes of `data` (little-endian, low bytes).
    Write {
        /// Destination.
        at: RemoteAddr,
        /// The issuing context.
        context: u16,
        /// Bytes.
        size: u8,
        /// Value.
        data: u64,
    },
    /// Load `size` (1, 2, 4, 8) bytes.
    Read {
        /// Source.
        at: RemoteAddr,
        /// The issuing context.
        context: u16,
        /// Bytes.
        size: u8,
    },
    /// Ask for the segment `name`.
    Lookup {
        /// Its name.
        name: Name,
        /// Its secret, zeros for none.
        secret: [u8; 16],
        /// The asking process's user id.
        uid: u32,
        /// Rights wanted.
        rights: Rights,
    },
    /// A write was performed or refused.
    WriteAck {
        /// Result.
        status: Status,
    },
    /// A load's value, all-ones unless the status is Ok.
    ReadReply {
        /// Result.
        status: Status,
        /// Value.
        data: u64,
    },
    /// A lookup's answer; the rest is zero unless the status is Ok.
    LookupReply {
        /// Result.
        status: Status,
        /// First export page.
        page: u32,
        /// Export pages.
        count: u32,
        /// Bytes.
        length: u64,
        /// Generation of the grants.
        generation: u64,
        /// Rights granted.
        rights: Rights,
    },
}

impl Body {
    /// The class the packet travels in.
    pub fn class(&self) -> Class {
        match self {
            Body::Write { .. } | Body::Read { .. } | Body::Lookup { .. } => Class::Request,
            Body::WriteAck { .. } | Body::ReadReply { .. } | Body::LookupReply { .. } => Class::Reply,
        }
    }

    /// Name for logs and captures.
    pub fn name(&self) -> &'static str {
        match self {
            Body::Write { .. } => "write",
            Body::Read { .. } => "read",
            Body::Lookup { .. } => "lookup",
            Body::WriteAck { .. } => "write-ack",
            Body::ReadReply { .. } => "read-reply",
            Body::LookupReply { .. } => "lookup-reply",
        }
    }
}

/// One packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packet {
    /// Sending node.
    pub src: NodeId,
    /// Receiving node.
    pub dst: NodeId,
    /// The requester's transaction number, returned in the reply.
    pub tag: u32,
    /// The requester's incarnation, returned in the reply: a reply to an earlier life is dropped.
    pub incarnation: u32,
    /// In a request, the receiver's incarnation as the requester knows it: a store or load meant for an earlier life is
    /// refused, so that none passes one that was lost when that life ended. Zero in replies.
    pub target: u32,
    /// What it says.
    pub body: Body,
}

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketError {
    /// The length is not that of the packet's kind.
    Length {
        /// Bytes found.
        found: usize,
        /// Bytes expected.
        expected: usize,
    },
    /// Another protocol version.
    Version(u8),
    /// Unknown kind.
    Kind(u8),
    /// Access size that is not 1, 2, 4 or 8.
    Size(u8),
    /// The access does not lie, aligned, within one export unit.
    Offset(u32),
}

impl core::fmt::Display for PacketError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            PacketError::Length { found, expected } => {
                write!(f, "packet of {found} bytes: its kind takes {expected}")
            }
            PacketError::Version(v) => {
                write!(f, "packet version {v}: expected {PROTOCOL_VERSION}")
            }
            PacketError::Kind(k) => write!(f, "packet kind {k} is unknown"),
            PacketError::Size(s) => write!(f, "access size {s}: expected 1, 2, 4 or 8"),
            PacketError::Offset(o) => {
                write!(f, "offset {o:#x}: expected an aligned access within one unit")
            }
        }
    }
}

impl core::error::Error for PacketError {}

const WRITE: u8 = 1;
const READ: u8 = 2;
const LOOKUP: u8 = 3;
const WRITE_ACK: u8 = 0x81;
const READ_REPLY: u8 = 0x82;
const LOOKUP_REPLY: u8 = 0x83;

fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    if let Some(part) = bytes.get(at..at + N) {
        out.copy_from_slice(part);
    }
    out
}

fn check_access(offset: u32, size: u8) -> Result<(), PacketError> {
    if !matches!(size, 1 | 2 | 4 | 8) {
        return Err(PacketError::Size(size));
    }
    if offset % u32::from(size) != 0 || u64::from(offset) + u64::from(size) > crate::UNIT {
        return Err(PacketError::Offset(offset));
    }
    Ok(())
}

impl Packet {
    /// The class the packet travels in.
    pub fn class(&self) -> Class {
        self.body.class()
    }

    /// Writes the packet into `out` and returns its length.
    ///
    /// Layout: 0 version, 1 kind, 2 size, 3 zero, 4 src, 6 dst, 8 tag, 12 incarnation, 16 page, 20 offset, 24 generation,
    /// 32 data, 40 length or (in requests) target, 48 context, 50 status, 52 rights, 54 zero; a lookup's name, secret and uid follow.
    pub fn encode(&self, out: &mut [u8; MAX_LEN]) -> usize {
        *out = [0; MAX_LEN];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        let mut len = HEADER_LEN;
        put(0, &[PROTOCOL_VERSION]);
        put(4, &self.src.to_le_bytes());
        put(6, &self.dst.to_le_bytes());
        put(8, &self.tag.to_le_bytes());
        put(12, &self.incarnation.to_le_bytes());
        if self.class() != Class::Reply {
            put(40, &self.target.to_le_bytes());
        }
        let mut addr = |at: &RemoteAddr, context: u16, size: u8| {
            put(2, &[size]);
            put(16, &at.page.to_le_bytes());
            put(20, &at.offset.to_le_bytes());
            put(24, &at.generation.to_le_bytes());
            put(48, &context.to_le_bytes());
        };
        let kind = match &self.body {
            Body::Write { at, context, size, data } => {
                addr(at, *context, *size);
                put(32, &data.to_le_bytes());
                WRITE
            }
            Body::Read { at, context, size } => {
                addr(at, *context, *size);
                READ
            }
            Body::Lookup { name, secret, uid, rights } => {
                put(52, &rights.0.to_le_bytes());
                put(HEADER_LEN, name);
                put(HEADER_LEN + 64, secret);
                put(HEADER_LEN + 80, &uid.to_le_bytes());
                len = MAX_LEN;
                LOOKUP
            }
            Body::WriteAck { status } => {
                put(50, &(*status as u16).to_le_bytes());
                WRITE_ACK
            }
            Body::ReadReply { status, data } => {
                put(50, &(*status as u16).to_le_bytes());
                put(32, &data.to_le_bytes());
                READ_REPLY
            }
            Body::LookupReply { status, page, count, length, generation, rights } => {
                put(50, &(*status as u16).to_le_bytes());
                put(16, &page.to_le_bytes());
                put(20, &count.to_le_bytes());
                put(24, &generation.to_le_bytes());
                put(40, &length.to_le_bytes());
                put(52, &rights.0.to_le_bytes());
                LOOKUP_REPLY
            }
        };
        put(1, &[kind]);
        len
    }

    /// Parses and checks a packet; never panics.
    pub fn decode(bytes: &[u8]) -> Result<Packet, PacketError> {
        if bytes.len() < HEADER_LEN {
            return Err(PacketError::Length { found: bytes.len(), expected: HEADER_LEN });
        }
        if bytes[0] != PROTOCOL_VERSION {
            return Err(PacketError::Version(bytes[0]));
        }
        let (kind, size) = (bytes[1], bytes[2]);
        let expected = if kind == LOOKUP { MAX_LEN } else { HEADER_LEN };
        if bytes.len() != expected {
            return Err(PacketError::Length { found: bytes.len(), expected });
        }
        let page = u32::from_le_bytes(get(bytes, 16));
        let offset = u32::from_le_bytes(get(bytes, 20));
        let generation = u64::from_le_bytes(get(bytes, 24));
        let data = u64::from_le_bytes(get(bytes, 32));
        let length = u64::from_le_bytes(get(bytes, 40));
        let context = u16::from_le_bytes(get(bytes, 48));
        let status = Status::from_u16(u16::from_le_bytes(get(bytes, 50)));
        let rights = Rights(u16::from_le_bytes(get(bytes, 52)));
        let at = RemoteAddr { page, offset, generation };
        let body = match kind {
            WRITE => {
                check_access(offset, size)?;
                Body::Write { at, context, size, data }
            }
            READ => {
                check_access(offset, size)?;
                Body::Read { at, context, size }
            }
            LOOKUP => Body::Lookup {
                name: get(bytes, HEADER_LEN),
                secret: get(bytes, HEADER_LEN + 64),
                uid: u32::from_le_bytes(get(bytes, HEADER_LEN + 80)),
                rights,
            },
            WRITE_ACK => Body::WriteAck { status },
            READ_REPLY => Body::ReadReply { status, data },
            LOOKUP_REPLY => Body::LookupReply { status, page, count: offset, length, generation, rights },
            other => return Err(PacketError::Kind(other)),
        };
        Ok(Packet {
            src: u16::from_le_bytes(get(bytes, 4)),
            dst: u16::from_le_bytes(get(bytes, 6)),
            tag: u32::from_le_bytes(get(bytes, 8)),
            incarnation: u32::from_le_bytes(get(bytes, 12)),
            target: if body.class() == Class::Reply { 0 } else { length as u32 },
            body,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn body() -> impl Strategy<Value = Body> {
        let at = (any::<u32>(), 0u32..0x2000, any::<u64>()).prop_map(|(page, o, generation)| RemoteAddr {
            page,
            offset: o * 8,
            generation,
        });
        let size = prop_oneof![Just(1u8), Just(2), Just(4), Just(8)];
        let status = any::<u16>().prop_map(Status::from_u16);
        prop_oneof![
            (at.clone(), any::<u16>(), size.clone(), any::<u64>()).prop_map(|(at, context, size, data)| Body::Write {
                at,
                context,
                size,
                data
            }),
            (at, any::<u16>(), size).prop_map(|(at, context, size)| Body::Read { at, context, size }),
            (any::<[u8; 32]>(), any::<[u8; 16]>(), any::<u32>(), any::<u16>()).prop_map(|(n, secret, uid, rights)| {
                let mut name = [0; 64];
                name[..32].copy_from_slice(&n);
                Body::Lookup { name, secret, uid, rights: Rights(rights) }
            }),
            status.clone().prop_map(|status| Body::WriteAck { status }),
            (status.clone(), any::<u64>()).prop_map(|(status, data)| Body::ReadReply { status, data }),
            (status, any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>(), any::<u16>()).prop_map(
                |(status, page, count, length, generation, rights)| Body::LookupReply {
                    status,
                    page,
                    count,
                    length,
                    generation,
                    rights: Rights(rights)
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn decode_inverts_encode(body in body(), src: u16, dst: u16, tag: u32, incarnation: u32, target: u32) {
            let target = if body.class() == Class::Reply { 0 } else { target };
            let packet = Packet { src, dst, tag, incarnation, target, body };
            let mut bytes = [0; MAX_LEN];
            let len = packet.encode(&mut bytes);
            prop_assert_eq!(Packet::decode(&bytes[..len]), Ok(packet));
            for cut in 0..len {
                prop_assert!(Packet::decode(&bytes[..cut]).is_err());
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Packet::decode(&bytes);
            let mut b = bytes;
            if b.len() > 1 { b[0] = PROTOCOL_VERSION; b[1] &= 0x83; }
            let _ = Packet::decode(&b);
        }
    }

    #[test]
    fn misaligned_or_odd_sized_accesses_are_refused() {
        let at = RemoteAddr { page: 0, offset: 4, generation: 1 };
        for (offset, size) in [(4, 3), (4, 8), (0xffff, 2), (0x10000, 1), (4, 0)] {
            let body = Body::Read { at: RemoteAddr { offset, ..at }, context: 0, size };
            let mut bytes = [0; MAX_LEN];
            let len = Packet { src: 0, dst: 1, tag: 0, incarnation: 0, target: 0, body }.encode(&mut bytes);
            assert!(Packet::decode(&bytes[..len]).is_err(), "{offset:#x} {size}");
        }
    }
}
