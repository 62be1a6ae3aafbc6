// SPDX-License-Identifier: MIT OR Apache-2.0
//! What HIBs say to each other: a fixed header and, for some kinds, a payload.
//!
//! [`Packet`] is the sane representation; [`Packet::encode`] and [`Packet::decode`] are the only places that know the bytes.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::{NodeId, PROTOCOL_VERSION, Status};

/// Bytes of the header.
pub const HEADER_LEN: usize = 64;
/// Bytes of memory that one packet of a block copy carries at most.
pub const MAX_BLOCK: usize = 8192;
/// No node, in [`Body::Rehome`].
pub const NO_NODE: NodeId = NodeId::MAX;
/// All members of a group, as the destination of a packet of [`Class::Reflected`]: the switch makes a copy for each of the nodes that
/// [`Frame::Group`](crate::link::Frame::Group) named for its page, with that node as `dst` and its incarnation as `target`.
pub const MULTICAST: NodeId = NodeId::MAX - 1;
/// Bytes of the longest packet.
pub const MAX_LEN: usize = HEADER_LEN + MAX_BLOCK;
pub(crate) const LOOKUP_LEN: usize = 88;
pub(crate) const ATOMIC_LEN: usize = 8;

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
///
/// ```
/// use telegraphos_wire::Rights;
///
/// let both = Rights(Rights::READ.0 | Rights::WRITE.0);
/// assert!(both.contains(Rights::READ) && !both.contains(Rights::ATOMIC));
/// ```
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

/// Which stores belong together: if one of them is lost, those behind it are lost, too.
///
/// A board gives each import an epoch when it is opened, and another one when the driver acknowledges a refusal; no two openings or
/// acknowledgements of a board have the same one (modulo 2^32). The receiver of a store that it refuses refuses every later one of the same
/// import and epoch, so that none passes a lost one (SPEC I8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ImportEpoch {
    /// Number of the import in the sender's table.
    pub import: u16,
    /// Its present epoch.
    pub epoch: u32,
}

/// A segment name, NUL-padded.
pub type Name = [u8; 64];

/// Whether a segment may have this name: 1 to 63 printable ASCII characters, and NUL from there on. So a name cannot forge a line of a log,
/// and no two names look alike.
pub fn is_valid_name(name: &Name) -> bool {
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    let (text, padding) = name.split_at(length);
    (1..name.len()).contains(&length)
        && text.iter().all(|byte| (b' '..=b'~').contains(byte))
        && padding.iter().all(|byte| *byte == 0)
}

/// Bytes of a block copy; cheap to clone.
pub type Block = Arc<[u8]>;

/// A read-modify-write of one word (SPEC item 18). Each gives the word's previous value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AtomicOp {
    /// Fetch-and-store: the word becomes the operand.
    Swap = 1,
    /// Fetch-and-add, wrapping; fetch-and-increment with operand 1.
    Add = 2,
    /// Compare-and-swap: the word becomes the operand if it equals the compare value.
    CompareSwap = 3,
}

impl AtomicOp {
    /// The operation of a number.
    pub fn from_u8(value: u8) -> Option<AtomicOp> {
        match value {
            1 => Some(AtomicOp::Swap),
            2 => Some(AtomicOp::Add),
            3 => Some(AtomicOp::CompareSwap),
            _ => None,
        }
    }

    /// What the word becomes; `old`, `operand` and `compare` hold `size` bytes (4 or 8), zero-extended.
    pub fn apply(self, size: u8, old: u64, operand: u64, compare: u64) -> u64 {
        let mask = if size >= 8 { u64::MAX } else { (1 << (8 * u32::from(size))) - 1 };
        let new = match self {
            AtomicOp::Swap => operand,
            AtomicOp::Add => old.wrapping_add(operand),
            AtomicOp::CompareSwap if (old ^ compare) & mask == 0 => operand,
            AtomicOp::CompareSwap => old,
        };
        new & mask
    }
}

/// What a packet says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// Store `size` (1, 2, 4, 8) bytes of `data` (little-endian, low bytes).
    Write {
        /// Destination.
        at: RemoteAddr,
        /// The issuing context.
        context: u16,
        /// Its import.
        epoch: ImportEpoch,
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
        /// Its name; boxed, since it would make every packet twice as large in memory.
        name: Box<Name>,
        /// Its secret, zeros for none.
        secret: [u8; 16],
        /// The asking process's user id.
        uid: u32,
        /// Rights wanted.
        rights: Rights,
    },
    /// Read, modify and write one word.
    Atomic {
        /// The word.
        at: RemoteAddr,
        /// The issuing context.
        context: u16,
        /// Its import.
        epoch: ImportEpoch,
        /// Bytes: 4 or 8.
        size: u8,
        /// What to do.
        op: AtomicOp,
        /// Its operand.
        operand: u64,
        /// Value compared with, for [`AtomicOp::CompareSwap`].
        compare: u64,
    },
    /// Load `length` bytes, at any alignment.
    ReadBlock {
        /// Source; the block does not leave its export page.
        at: RemoteAddr,
        /// The issuing context.
        context: u16,
        /// Bytes, 1 to [`MAX_BLOCK`].
        length: u32,
    },
    /// Store the bytes of `data`, 1 to [`MAX_BLOCK`], at any alignment.
    WriteBlock {
        /// Destination; the block does not leave its export page.
        at: RemoteAddr,
        /// The issuing context.
        context: u16,
        /// Its import.
        epoch: ImportEpoch,
        /// The bytes.
        data: Block,
    },
    /// Append an element to the queue at `at` (s0; SPEC item 2).
    Enqueue {
        /// Base of the queue's first buffer.
        at: RemoteAddr,
        /// The issuing context.
        context: u16,
        /// Its import.
        epoch: ImportEpoch,
        /// Bytes of the element.
        size: u8,
        /// The element.
        data: u64,
        /// Requests that the sender's node had sent to this one before, modulo 2^32, counted from when each learned the other's present
        /// incarnation: the element is appended after them (SPEC I8).
        after: u32,
    },
    /// From now on so many imports of the sender's node use the queue at `at`; hold slots are reserved for each.
    Reserve {
        /// The queue.
        at: RemoteAddr,
        /// Number of imports; none returns all.
        imports: u32,
    },
    /// From the node of a copy to the home of its replicated page: its processor stored this to the copy (SPEC items 24, 25).
    Update {
        /// The word at home.
        at: RemoteAddr,
        /// The issuing context.
        context: u16,
        /// Its import.
        epoch: ImportEpoch,
        /// Bytes.
        size: u8,
        /// Value.
        data: u64,
    },
    /// Become a copy of the replicated page at `at`; its content follows as [`Body::Fill`].
    Join {
        /// The home page.
        at: RemoteAddr,
        /// TG_REPLICA_*: the mode, which is that of the home.
        mode: u16,
        /// It has the content already, up to where the home until now has stopped: to the home from now on, while the page moves.
        keep: bool,
    },
    /// Hand the replicated page at `at` over to the sender, a copy of it. Answered when all copies have been told.
    Move {
        /// The home page.
        at: RemoteAddr,
        /// The sender's page.
        page: u32,
        /// The generation of its grant there.
        generation: u64,
    },
    /// Be a copy no more.
    Leave {
        /// The home page.
        at: RemoteAddr,
    },
    /// From the home of a replicated page to its copies: a store, in the home's order.
    Reflected {
        /// The word at home.
        at: RemoteAddr,
        /// Bytes.
        size: u8,
        /// Value.
        data: u64,
        /// The node whose [`Body::Update`] it was; the home itself for all others (SPEC E17).
        writer: NodeId,
    },
    /// From the home to a new copy: bytes of the page, in the same order as stores (SPEC E20).
    Fill {
        /// The bytes at home.
        at: RemoteAddr,
        /// The bytes.
        data: Block,
        /// The copy is complete with these.
        last: bool,
    },
    /// From the home to its copies, behind all stores: the page lives elsewhere from now on, or nowhere. A new home says by it that it is
    /// the home from now on.
    Rehome {
        /// The home until now.
        at: RemoteAddr,
        /// The home from now on; [`NO_NODE`]: none.
        to: NodeId,
        /// Its page there; if there is none, the status that says why, 0 for [`Status::Stale`].
        page: u32,
        /// The generation of its grant there.
        generation: u64,
    },
    /// A copy has taken what its home sent.
    CopyAck {
        /// Result.
        status: Status,
    },
    /// A write was performed or an element appended, or it was refused.
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
    /// An atomic's previous value, all-ones unless the status is Ok.
    AtomicReply {
        /// Result.
        status: Status,
        /// Value before the operation.
        data: u64,
    },
    /// The bytes of a block, none unless the status is Ok.
    BlockReply {
        /// Result.
        status: Status,
        /// The bytes.
        data: Block,
    },
    /// What was reserved.
    ReserveReply {
        /// Result; if not Ok the earlier reservation stands.
        status: Status,
        /// Elements that each import may have on their way.
        holds: u32,
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
        /// Bytes of a queue's word; 0 if it is not a queue.
        width: u8,
    },
}

impl Body {
    /// The class the packet travels in.
    pub fn class(&self) -> Class {
        match self {
            Body::Write { .. }
            | Body::Read { .. }
            | Body::Lookup { .. }
            | Body::Atomic { .. }
            | Body::ReadBlock { .. }
            | Body::WriteBlock { .. }
            | Body::Reserve { .. }
            | Body::Update { .. }
            | Body::Join { .. }
            | Body::Move { .. }
            | Body::Leave { .. } => Class::Request,
            Body::Reflected { .. } | Body::Fill { .. } | Body::Rehome { .. } => Class::Reflected,
            Body::Enqueue { .. } => Class::Enqueue,
            Body::WriteAck { .. }
            | Body::ReadReply { .. }
            | Body::LookupReply { .. }
            | Body::AtomicReply { .. }
            | Body::BlockReply { .. }
            | Body::CopyAck { .. }
            | Body::ReserveReply { .. } => Class::Reply,
        }
    }

    /// The export page that a request or a multicast is about; 0 if none.
    pub fn page(&self) -> u32 {
        match self {
            Body::Write { at, .. }
            | Body::Read { at, .. }
            | Body::Atomic { at, .. }
            | Body::ReadBlock { at, .. }
            | Body::WriteBlock { at, .. }
            | Body::Enqueue { at, .. }
            | Body::Reserve { at, .. }
            | Body::Update { at, .. }
            | Body::Join { at, .. }
            | Body::Move { at, .. }
            | Body::Leave { at }
            | Body::Reflected { at, .. }
            | Body::Fill { at, .. }
            | Body::Rehome { at, .. } => at.page,
            _ => 0,
        }
    }

    /// The import and epoch of a request that changes memory; `None` for others.
    pub fn epoch(&self) -> Option<ImportEpoch> {
        match self {
            Body::Write { epoch, .. }
            | Body::Update { epoch, .. }
            | Body::Atomic { epoch, .. }
            | Body::WriteBlock { epoch, .. }
            | Body::Enqueue { epoch, .. } => Some(*epoch),
            _ => None,
        }
    }

    /// The reply that refuses this request with `status`; `None` for a reply.
    pub fn refusal(&self, status: Status) -> Option<Body> {
        Some(match self {
            Body::Write { .. }
            | Body::WriteBlock { .. }
            | Body::Enqueue { .. }
            | Body::Update { .. }
            | Body::Join { .. }
            | Body::Move { .. }
            | Body::Leave { .. } => Body::WriteAck { status },
            Body::Reflected { .. } | Body::Fill { .. } | Body::Rehome { .. } => Body::CopyAck { status },
            Body::Reserve { .. } => Body::ReserveReply { status, holds: 0 },
            Body::Read { .. } => Body::ReadReply { status, data: u64::MAX },
            Body::Atomic { .. } => Body::AtomicReply { status, data: u64::MAX },
            Body::ReadBlock { .. } => Body::BlockReply { status, data: Block::from([]) },
            Body::Lookup { .. } => {
                Body::LookupReply { status, page: 0, count: 0, length: 0, generation: 0, rights: Rights(0), width: 0 }
            }
            Body::WriteAck { .. }
            | Body::ReadReply { .. }
            | Body::LookupReply { .. }
            | Body::AtomicReply { .. }
            | Body::BlockReply { .. }
            | Body::CopyAck { .. }
            | Body::ReserveReply { .. } => return None,
        })
    }

    /// Bytes behind the header.
    pub fn payload_len(&self) -> usize {
        match self {
            Body::Lookup { .. } => LOOKUP_LEN,
            Body::Atomic { .. } => ATOMIC_LEN,
            Body::WriteBlock { data, .. } | Body::BlockReply { data, .. } | Body::Fill { data, .. } => data.len(),
            _ => 0,
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
            Body::Atomic { .. } => "atomic",
            Body::AtomicReply { .. } => "atomic-reply",
            Body::ReadBlock { .. } => "read-block",
            Body::WriteBlock { .. } => "write-block",
            Body::BlockReply { .. } => "block-reply",
            Body::Update { .. } => "update",
            Body::Join { .. } => "join",
            Body::Move { .. } => "move",
            Body::Leave { .. } => "leave",
            Body::Reflected { .. } => "reflected",
            Body::Fill { .. } => "fill",
            Body::Rehome { .. } => "rehome",
            Body::CopyAck { .. } => "copy-ack",
            Body::Enqueue { .. } => "enqueue",
            Body::Reserve { .. } => "reserve",
            Body::ReserveReply { .. } => "reserve-reply",
        }
    }
}

/// One packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Packet {
    /// Sending node.
    pub src: NodeId,
    /// Receiving node, or [`MULTICAST`].
    pub dst: NodeId,
    /// The requester's transaction number, returned in the reply.
    pub tag: u32,
    /// The requester's incarnation, returned in the reply: a reply to an earlier life is dropped.
    pub incarnation: u64,
    /// In a request, the receiver's incarnation as the requester knows it: a store or load meant for an earlier life is
    /// refused, so that none passes one that was lost when that life ended. Zero in replies and, until the switch makes its copies, in
    /// packets to [`MULTICAST`].
    pub target: u64,
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
    /// Unknown atomic operation.
    Atomic(u8),
    /// A block of no bytes, of more than [`MAX_BLOCK`], or beyond its export unit.
    Block {
        /// Bytes from the start of the unit.
        offset: u32,
        /// Its length.
        length: u32,
    },
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
            PacketError::Atomic(op) => write!(f, "atomic operation {op} is unknown"),
            PacketError::Block { offset, length } => {
                write!(f, "block of {length} bytes at {offset:#x}: expected 1 to {MAX_BLOCK} within one unit")
            }
        }
    }
}

impl core::error::Error for PacketError {}

pub(crate) const WRITE: u8 = 1;
pub(crate) const READ: u8 = 2;
pub(crate) const LOOKUP: u8 = 3;
pub(crate) const ATOMIC: u8 = 4;
pub(crate) const READ_BLOCK: u8 = 5;
pub(crate) const WRITE_BLOCK: u8 = 6;
pub(crate) const ENQUEUE: u8 = 7;
pub(crate) const RESERVE: u8 = 8;
pub(crate) const UPDATE: u8 = 9;
pub(crate) const JOIN: u8 = 10;
pub(crate) const LEAVE: u8 = 11;
pub(crate) const REFLECTED: u8 = 12;
pub(crate) const FILL: u8 = 13;
pub(crate) const REHOME: u8 = 14;
pub(crate) const MOVE: u8 = 15;
pub(crate) const WRITE_ACK: u8 = 0x81;
pub(crate) const READ_REPLY: u8 = 0x82;
pub(crate) const LOOKUP_REPLY: u8 = 0x83;
pub(crate) const ATOMIC_REPLY: u8 = 0x84;
pub(crate) const BLOCK_REPLY: u8 = 0x85;
pub(crate) const RESERVE_REPLY: u8 = 0x86;
pub(crate) const COPY_ACK: u8 = 0x87;

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

fn check_block(offset: u32, length: usize) -> Result<(), PacketError> {
    let fits = u64::from(offset) + length as u64 <= crate::UNIT;
    if length == 0 || length > MAX_BLOCK || !fits {
        return Err(PacketError::Block { offset, length: u32::try_from(length).unwrap_or(u32::MAX) });
    }
    Ok(())
}

impl Packet {
    /// The class the packet travels in.
    pub fn class(&self) -> Class {
        self.body.class()
    }

    /// Appends the packet to `out` and returns its length.
    ///
    /// Layout: 0 version, 1 kind, 2 size, 3 atomic operation, 4 src, 6 dst, 8 tag, 12 (in requests) high half of target, 16 page, 20 offset,
    /// 24 generation, 32 data, 40 length or (in requests) low half of target, 44 block length, or after, imports, holds, new page; 48 context or
    /// writer, new home, last, mode; 50 status, 52 rights, 54 zero; of requests that change memory 50 import, 52 its epoch; 56 incarnation. In a lookup's answer the size is that of a queue's word. Behind it: a lookup's name, secret and uid; an atomic's compare value; the bytes of a block.
    pub fn encode(&self, out: &mut Vec<u8>) -> usize {
        let mut header = [0; HEADER_LEN];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &[PROTOCOL_VERSION]);
        put(4, &self.src.to_le_bytes());
        put(6, &self.dst.to_le_bytes());
        put(8, &self.tag.to_le_bytes());
        put(56, &self.incarnation.to_le_bytes());
        if self.class() != Class::Reply {
            put(40, &(self.target as u32).to_le_bytes());
            put(12, &((self.target >> 32) as u32).to_le_bytes());
        }
        if let Some(ImportEpoch { import, epoch }) = self.body.epoch() {
            put(50, &import.to_le_bytes());
            put(52, &epoch.to_le_bytes());
        }
        let mut addr = |at: &RemoteAddr, context: u16, size: u8| {
            put(2, &[size]);
            put(16, &at.page.to_le_bytes());
            put(20, &at.offset.to_le_bytes());
            put(24, &at.generation.to_le_bytes());
            put(48, &context.to_le_bytes());
        };
        let mut lookup = [0; LOOKUP_LEN];
        let compared: [u8; ATOMIC_LEN];
        let mut payload: &[u8] = &[];
        let kind = match &self.body {
            Body::Write { at, context, size, data, .. } => {
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
                lookup[..64].copy_from_slice(&name[..]);
                lookup[64..80].copy_from_slice(secret);
                lookup[80..84].copy_from_slice(&uid.to_le_bytes());
                payload = &lookup;
                LOOKUP
            }
            Body::Atomic { at, context, size, op, operand, compare, .. } => {
                addr(at, *context, *size);
                put(3, &[*op as u8]);
                put(32, &operand.to_le_bytes());
                compared = compare.to_le_bytes();
                payload = &compared;
                ATOMIC
            }
            Body::ReadBlock { at, context, length } => {
                addr(at, *context, 0);
                put(44, &length.to_le_bytes());
                READ_BLOCK
            }
            Body::WriteBlock { at, context, data, .. } => {
                addr(at, *context, 0);
                put(44, &(data.len() as u32).to_le_bytes());
                payload = data;
                WRITE_BLOCK
            }
            Body::Enqueue { at, context, size, data, after, .. } => {
                addr(at, *context, *size);
                put(32, &data.to_le_bytes());
                put(44, &after.to_le_bytes());
                ENQUEUE
            }
            Body::Update { at, context, size, data, .. } => {
                addr(at, *context, *size);
                put(32, &data.to_le_bytes());
                UPDATE
            }
            Body::Join { at, mode, keep } => {
                addr(at, *mode, 0);
                put(44, &u32::from(*keep).to_le_bytes());
                JOIN
            }
            Body::Move { at, page, generation } => {
                addr(at, 0, 0);
                put(32, &generation.to_le_bytes());
                put(44, &page.to_le_bytes());
                MOVE
            }
            Body::Leave { at } => {
                addr(at, 0, 0);
                LEAVE
            }
            Body::Reflected { at, size, data, writer } => {
                addr(at, *writer, *size);
                put(32, &data.to_le_bytes());
                REFLECTED
            }
            Body::Fill { at, data, last } => {
                addr(at, u16::from(*last), 0);
                put(44, &(data.len() as u32).to_le_bytes());
                payload = data;
                FILL
            }
            Body::Rehome { at, to, page, generation } => {
                addr(at, *to, 0);
                put(32, &generation.to_le_bytes());
                put(44, &page.to_le_bytes());
                REHOME
            }
            Body::CopyAck { status } => {
                put(50, &(*status as u16).to_le_bytes());
                COPY_ACK
            }
            Body::Reserve { at, imports } => {
                addr(at, 0, 0);
                put(44, &imports.to_le_bytes());
                RESERVE
            }
            Body::ReserveReply { status, holds } => {
                put(50, &(*status as u16).to_le_bytes());
                put(44, &holds.to_le_bytes());
                RESERVE_REPLY
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
            Body::AtomicReply { status, data } => {
                put(50, &(*status as u16).to_le_bytes());
                put(32, &data.to_le_bytes());
                ATOMIC_REPLY
            }
            Body::BlockReply { status, data } => {
                put(50, &(*status as u16).to_le_bytes());
                put(44, &(data.len() as u32).to_le_bytes());
                payload = data;
                BLOCK_REPLY
            }
            Body::LookupReply { status, page, count, length, generation, rights, width } => {
                put(2, &[*width]);
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
        out.extend_from_slice(&header);
        out.extend_from_slice(payload);
        HEADER_LEN + payload.len()
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
        let block = u32::from_le_bytes(get(bytes, 44));
        let payload = match kind {
            LOOKUP => LOOKUP_LEN,
            ATOMIC => ATOMIC_LEN,
            // A length that cannot be is no length at all.
            WRITE_BLOCK | BLOCK_REPLY | FILL => (block as usize).min(MAX_BLOCK),
            _ => 0,
        };
        let expected = HEADER_LEN + payload;
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
        let epoch =
            ImportEpoch { import: u16::from_le_bytes(get(bytes, 50)), epoch: u32::from_le_bytes(get(bytes, 52)) };
        let body = match kind {
            WRITE => {
                check_access(offset, size)?;
                Body::Write { at, context, epoch, size, data }
            }
            READ => {
                check_access(offset, size)?;
                Body::Read { at, context, size }
            }
            LOOKUP => Body::Lookup {
                name: Box::new(get(bytes, HEADER_LEN)),
                secret: get(bytes, HEADER_LEN + 64),
                uid: u32::from_le_bytes(get(bytes, HEADER_LEN + 80)),
                rights,
            },
            ATOMIC => {
                check_access(offset, size)?;
                if size < 4 {
                    return Err(PacketError::Size(size));
                }
                let op = AtomicOp::from_u8(bytes[3]).ok_or(PacketError::Atomic(bytes[3]))?;
                let compare = u64::from_le_bytes(get(bytes, HEADER_LEN));
                Body::Atomic { at, context, epoch, size, op, operand: data, compare }
            }
            ENQUEUE => {
                check_access(offset, size)?;
                if size < 4 {
                    return Err(PacketError::Size(size));
                }
                Body::Enqueue { at, context, epoch, size, data, after: block }
            }
            UPDATE => {
                check_access(offset, size)?;
                Body::Update { at, context, epoch, size, data }
            }
            JOIN => Body::Join { at, mode: context, keep: block != 0 },
            MOVE => Body::Move { at, page: block, generation: data },
            LEAVE => Body::Leave { at },
            REFLECTED => {
                check_access(offset, size)?;
                Body::Reflected { at, size, data, writer: context }
            }
            FILL => {
                check_block(offset, payload)?;
                Body::Fill { at, data: Arc::from(&bytes[HEADER_LEN..]), last: context != 0 }
            }
            REHOME => Body::Rehome { at, to: context, page: block, generation: data },
            COPY_ACK => Body::CopyAck { status },
            RESERVE => Body::Reserve { at, imports: block },
            RESERVE_REPLY => Body::ReserveReply { status, holds: block },
            READ_BLOCK => {
                check_block(offset, block as usize)?;
                Body::ReadBlock { at, context, length: block }
            }
            WRITE_BLOCK => {
                check_block(offset, payload)?;
                Body::WriteBlock { at, context, epoch, data: Arc::from(&bytes[HEADER_LEN..]) }
            }
            ATOMIC_REPLY => Body::AtomicReply { status, data },
            BLOCK_REPLY => Body::BlockReply { status, data: Arc::from(&bytes[HEADER_LEN..]) },
            WRITE_ACK => Body::WriteAck { status },
            READ_REPLY => Body::ReadReply { status, data },
            LOOKUP_REPLY => Body::LookupReply { status, page, count: offset, length, generation, rights, width: size },
            other => return Err(PacketError::Kind(other)),
        };
        let half = |at: usize| u64::from(u32::from_le_bytes(get(bytes, at)));
        Ok(Packet {
            src: u16::from_le_bytes(get(bytes, 4)),
            dst: u16::from_le_bytes(get(bytes, 6)),
            tag: u32::from_le_bytes(get(bytes, 8)),
            incarnation: u64::from_le_bytes(get(bytes, 56)),
            target: if body.class() == Class::Reply { 0 } else { half(40) | half(12) << 32 },
            body,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn body() -> impl Strategy<Value = Body> {
        let at = (any::<u32>(), 0u32..0x2000, any::<u64>()).prop_map(|(page, o, generation)| RemoteAddr {
            page,
            offset: o * 8,
            generation,
        });
        let at2 = at.clone();
        let size = prop_oneof![Just(1u8), Just(2), Just(4), Just(8)];
        let of = |data: u64| ImportEpoch { import: data as u16, epoch: (data >> 32) as u32 };
        let status = any::<u16>().prop_map(Status::from_u16);
        prop_oneof![
            (at.clone(), any::<u16>(), size.clone(), any::<u64>())
                .prop_map(move |(at, context, size, data)| Body::Write { at, context, epoch: of(data), size, data }),
            (at.clone(), any::<u16>(), size).prop_map(|(at, context, size)| Body::Read { at, context, size }),
            (at.clone(), any::<u16>(), any::<bool>(), 1u8..=3, any::<u64>(), any::<u64>()).prop_map(
                move |(at, context, wide, op, operand, compare)| Body::Atomic {
                    at,
                    context,
                    epoch: of(compare),
                    size: if wide { 8 } else { 4 },
                    op: AtomicOp::from_u8(op).unwrap(),
                    operand,
                    compare
                }
            ),
            (at.clone(), any::<u16>(), 1u32..8).prop_map(|(at, context, length)| Body::ReadBlock {
                at,
                context,
                length
            }),
            (at, any::<u16>(), proptest::collection::vec(any::<u8>(), 1..8)).prop_map(move |(at, context, data)| {
                Body::WriteBlock { at, context, epoch: of(at.generation), data: data.into() }
            }),
            (status.clone(), proptest::collection::vec(any::<u8>(), 0..40))
                .prop_map(|(status, data)| Body::BlockReply { status, data: data.into() }),
            (status.clone(), any::<u64>()).prop_map(|(status, data)| Body::AtomicReply { status, data }),
            (any::<[u8; 32]>(), any::<[u8; 16]>(), any::<u32>(), any::<u16>()).prop_map(|(n, secret, uid, rights)| {
                let mut name = Box::new([0; 64]);
                name[..32].copy_from_slice(&n);
                Body::Lookup { name, secret, uid, rights: Rights(rights) }
            }),
            status.clone().prop_map(|status| Body::WriteAck { status }),
            (status.clone(), any::<u64>()).prop_map(|(status, data)| Body::ReadReply { status, data }),
            (at2.clone(), any::<u16>(), prop_oneof![Just(1u8), Just(8)], any::<u64>(), any::<u8>()).prop_map(
                move |(at, context, size, data, kind)| match kind % 7 {
                    0 => Body::Update { at, context, epoch: of(data), size, data },
                    1 => Body::Reflected { at, size, data, writer: context },
                    2 => Body::Join { at, mode: context, keep: data & 1 == 1 },
                    5 => Body::Move { at, page: at.page ^ 1, generation: data },
                    3 => Body::Leave { at },
                    4 => Body::Rehome { at, to: context, page: at.page ^ 1, generation: data },
                    _ => Body::Fill {
                        at: RemoteAddr { offset: at.offset & 0x7fff, ..at },
                        data: Block::from(&data.to_le_bytes()[..]),
                        last: context & 1 == 1
                    },
                }
            ),
            status.clone().prop_map(|status| Body::CopyAck { status }),
            (at2.clone(), any::<u16>(), any::<bool>(), any::<u64>(), any::<u32>()).prop_map(
                move |(at, context, wide, data, after)| Body::Enqueue {
                    at,
                    context,
                    epoch: of(data),
                    size: if wide { 8 } else { 4 },
                    data,
                    after
                }
            ),
            (at2, any::<u32>()).prop_map(|(at, imports)| Body::Reserve { at, imports }),
            (status.clone(), any::<u32>()).prop_map(|(status, holds)| Body::ReserveReply { status, holds }),
            (status, any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>(), any::<u16>(), any::<u8>()).prop_map(
                |(status, page, count, length, generation, rights, width)| Body::LookupReply {
                    status,
                    page,
                    count,
                    length,
                    generation,
                    rights: Rights(rights),
                    width
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn decode_inverts_encode(body in body(), src: u16, dst: u16, tag: u32, incarnation: u64, target: u64) {
            let target = if body.class() == Class::Reply { 0 } else { target };
            let packet = Packet { src, dst, tag, incarnation, target, body };
            let mut bytes = Vec::new();
            let len = packet.encode(&mut bytes);
            prop_assert_eq!(len, bytes.len());
            prop_assert_eq!(Packet::decode(&bytes), Ok(packet));
            for cut in 0..len {
                prop_assert!(Packet::decode(&bytes[..cut]).is_err());
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Packet::decode(&bytes);
            let mut b = bytes;
            if b.len() > 1 { b[0] = PROTOCOL_VERSION; b[1] &= 0x87; }
            let _ = Packet::decode(&b);
        }
    }

    #[test]
    fn blocks_that_cannot_be_are_refused() {
        let at = RemoteAddr { page: 0, offset: 0xfff0, generation: 1 };
        let lengths = |length| Body::ReadBlock { at, context: 0, length };
        let mut big = Vec::new();
        for length in [0, 17, MAX_BLOCK as u32 + 1, u32::MAX] {
            let packet = Packet { src: 0, dst: 1, tag: 0, incarnation: 0, target: 0, body: lengths(length) };
            big.clear();
            packet.encode(&mut big);
            assert!(matches!(Packet::decode(&big), Err(PacketError::Block { .. })), "{length}");
        }
        let body =
            Body::WriteBlock { at, context: 0, epoch: ImportEpoch::default(), data: Arc::from([0u8; 17].as_slice()) };
        big.clear();
        Packet { src: 0, dst: 1, tag: 0, incarnation: 0, target: 0, body }.encode(&mut big);
        assert!(matches!(Packet::decode(&big), Err(PacketError::Block { .. })));
    }

    #[test]
    fn atomics_wrap_in_their_own_width() {
        assert_eq!(AtomicOp::Add.apply(4, 0xffff_ffff, 1, 0), 0);
        assert_eq!(AtomicOp::Add.apply(8, u64::MAX, 2, 0), 1);
        assert_eq!(AtomicOp::CompareSwap.apply(4, 7, 9, 0xff_0000_0007), 9);
        assert_eq!(AtomicOp::CompareSwap.apply(8, 7, 9, 8), 7);
        assert_eq!(AtomicOp::Swap.apply(4, 7, u64::MAX, 0), 0xffff_ffff);
    }

    #[test]
    fn misaligned_or_odd_sized_accesses_are_refused() {
        let at = RemoteAddr { page: 0, offset: 4, generation: 1 };
        for (offset, size) in [(4, 3), (4, 8), (0xffff, 2), (0x10000, 1), (4, 0)] {
            let body = Body::Read { at: RemoteAddr { offset, ..at }, context: 0, size };
            let mut bytes = Vec::new();
            let len = Packet { src: 0, dst: 1, tag: 0, incarnation: 0, target: 0, body }.encode(&mut bytes);
            assert!(Packet::decode(&bytes[..len]).is_err(), "{offset:#x} {size}");
        }
    }
}
