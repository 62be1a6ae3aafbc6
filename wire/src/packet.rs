// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets between HIBs: a fixed header and, for some kinds, a payload.
//!
//! [`Packet`] is the checked representation. Each kind is declared once, in [`Body`], with the place of each field; the
//! encoding, the checked decoding and the tables of [`layout`](crate::layout) come from that (`schema.rs`).

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::access::check_access;
use crate::field::{Check, Field, Kind, Tail};
use crate::numbers::numbers;
use crate::schema::{Malformed, Number, Record, Slot, encoded, kinds, slots};
use crate::{Burst, Class, ImportEpoch, NodeId, PROTOCOL_VERSION, Status, Tags};

pub use crate::MAX_BLOCK;
pub use crate::block::Block;
pub use crate::packet_error::PacketError;

/// Bytes of the header.
pub const HEADER_LEN: usize = 64;
/// No node, in [`Body::Rehome`].
pub const NO_NODE: NodeId = NodeId::MAX;
/// All members of a group, as the destination of a packet of [`Class::Reflected`]: the switch makes a copy for each of
/// the nodes that [`Frame::Group`](crate::link::Frame::Group) named for its page, with that node as `dst` and its
/// incarnation as `target`.
pub const MULTICAST: NodeId = NodeId::MAX - 1;
/// Bytes of the longest packet.
pub const MAX_LEN: usize = HEADER_LEN + MAX_BLOCK;

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

macro_rules! rights {
    ($($(#[doc = $doc:literal])* $name:ident = $bit:literal;)*) => {
        impl Rights {
            $($(#[doc = $doc])*
            pub const $name: Rights = Rights($bit);)*
            /// All of them.
            pub const ALL: Rights = Rights($($bit)|*);
            /// C name, value and description of each.
            pub const NAMES: &'static [(&'static str, u64, &'static str)] =
                &[$((concat!("TG_RIGHT_", stringify!($name)), $bit, concat!($($doc),*).trim_ascii())),*];
        }
    };
}

rights! {
    /// Loads.
    READ = 1;
    /// Stores.
    WRITE = 2;
    /// Atomics.
    ATOMIC = 4;
    /// Remote enqueue.
    ENQUEUE = 8;
    /// Block copies.
    DMA = 16;
}

impl Rights {
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
    /// Generation of the grant, as known to the requester.
    pub generation: u64,
}

/// A page of a remote node's exported memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemotePage {
    /// Export page (one unit).
    pub page: u32,
    /// Generation of the grant, as known to the requester.
    pub generation: u64,
}

impl RemotePage {
    /// The address of the byte `offset` from its start.
    pub fn at(self, offset: u32) -> RemoteAddr {
        RemoteAddr { page: self.page, offset, generation: self.generation }
    }
}

/// A segment name, NUL-padded.
pub type Name = [u8; 64];

/// Whether a segment may have this name: 1 to 63 printable ASCII characters, padded with NUL. So a name cannot forge a
/// line of a log, and no two names look alike.
pub fn is_valid_name(name: &Name) -> bool {
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    let (text, padding) = name.split_at(length);
    (1..name.len()).contains(&length)
        && text.iter().all(|byte| (b' '..=b'~').contains(byte))
        && padding.iter().all(|byte| *byte == 0)
}

numbers! {
    /// A read-modify-write of one word (SPEC item 18). Each gives the word's previous value.
    pub enum AtomicOp: u8, pub fn from_u8;

    /// Fetch-and-store: the word becomes the operand.
    Swap = 1,
    /// Fetch-and-add, wrapping; fetch-and-increment with operand 1.
    Add = 2,
    /// Compare-and-swap: the word becomes the operand if it equals the compare value.
    CompareSwap = 3,
}

impl AtomicOp {
    /// The new value of the word; `old`, `operand` and `compare` have `size` bytes (4 or 8), zero-extended.
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

slots! {
    Size: u8 as u8, "size" @ 2, Dec;
    Operation: AtomicOp as u8, "operation" @ 3, Atomic;
    Data: u64 as u64, "data" @ 32, Hex;
    Operand: u64 as u64, "operand" @ 32, Hex;
    NewGeneration: u64 as u64, "new_generation" @ 32, Dec;
    SegmentLength: u64 as u64, "segment_length" @ 40, Dec;
    Length: u32 as u32, "length" @ 44, Dec;
    After: u32 as u32, "after" @ 44, Dec;
    Imports: u32 as u32, "imports" @ 44, Dec;
    Holds: u32 as u32, "holds" @ 44, Dec;
    Keep: bool as u32, "keep" @ 44, Flag;
    NewPage: u32 as u32, "new_page" @ 44, Dec;
    Context: u16 as u16, "context" @ 48, Dec;
    Mode: u16 as u16, "mode" @ 48, Dec;
    Writer: NodeId as u16, "writer" @ 48, Node;
    To: NodeId as u16, "to" @ 48, Node;
    Last: bool as u16, "last" @ 48, Flag;
    ItsStatus: Status as u16, "status" @ 50, Status;
    ItsRights: Rights as u16, "rights" @ 52, Rights;
    Compare: u64 as u64, "compare" @ HEADER_LEN, Hex;
    ItsName: Box<Name> as Name, "name" @ HEADER_LEN, Text;
    Secret: [u8; 16] as [u8; 16], "secret" @ HEADER_LEN + 64, Bytes;
    ItsTags: Tags as [u8; 32], "tags" @ 16, Bytes;
    Performed: u16 as u16, "performed" @ 48, Dec;
    UserId: u32 as u32, "uid" @ HEADER_LEN + 80, Dec;
    // Of a lookup's answer.
    Width: u8 as u8, "width" @ 2, Dec;
    FirstPage: u32 as u32, "page" @ 16, Dec;
    Pages: u32 as u32, "pages" @ 20, Dec;
    Generation: u64 as u64, "generation" @ 24, Dec;

    /// An address.
    At: RemoteAddr {
        page: u32, "page" @ 16, Dec;
        offset: u32, "offset" @ 20, Hex;
        generation: u64, "generation" @ 24, Dec;
    } with {
        fn page(value: &RemoteAddr) -> Option<u32> {
            Some(value.page)
        }
    };
    /// A page.
    On: RemotePage {
        page: u32, "page" @ 16, Dec;
        generation: u64, "generation" @ 24, Dec;
    } with {
        fn page(value: &RemotePage) -> Option<u32> {
            Some(value.page)
        }
    };
    /// The import of a request that changes memory.
    Epoch: ImportEpoch {
        import: u16, "import" @ 50, Dec;
        epoch: u32, "import_epoch" @ 52, Dec;
    } with {
        fn epoch(value: &ImportEpoch) -> Option<ImportEpoch> {
            Some(*value)
        }
    };
}

/// Byte of the length of a block, which follows the header.
const BLOCK_LENGTH: usize = 44;

/// The bytes of a block, behind the header.
struct Bytes;

impl Slot for Bytes {
    type Value = Block;
    const FIELDS: &'static [Field] = Length::FIELDS;
    const TAIL: Tail = Tail::Block;

    fn put(value: &Block, fixed: &mut [u8]) {
        (value.len() as u32).write(&mut fixed[BLOCK_LENGTH..]);
    }

    fn get(bytes: &[u8]) -> Result<Block, Malformed> {
        Ok(Block::from(bytes.get(HEADER_LEN..).unwrap_or_default()))
    }

    fn extend(value: &Block, out: &mut Vec<u8>) {
        out.extend_from_slice(value);
    }

    #[inline]
    fn tail_len(value: &Block) -> usize {
        value.len()
    }
}

/// The stores of a burst, behind the header.
struct Stores;

impl Slot for Stores {
    type Value = Burst;
    const FIELDS: &'static [Field] = Length::FIELDS;
    const TAIL: Tail = Tail::Block;

    fn put(value: &Burst, fixed: &mut [u8]) {
        (value.bytes() as u32).write(&mut fixed[BLOCK_LENGTH..]);
    }

    fn get(bytes: &[u8]) -> Result<Burst, Malformed> {
        Burst::from_bytes(bytes.get(HEADER_LEN..).unwrap_or_default()).map_err(Malformed::Packet)
    }

    fn extend(value: &Burst, out: &mut Vec<u8>) {
        value.append(out);
    }

    #[inline]
    fn tail_len(value: &Burst) -> usize {
        value.bytes()
    }
}

encoded! {
    Box<Name> as Name: |name| **name, |name| Ok(Box::new(name));
    Status as u16: |status| *status as u16, |number| Ok(Status::from_u16(number));
    Rights as u16: |rights| rights.0, |number| Ok(Rights(number));
    AtomicOp as u8: |op| *op as u8, |number| AtomicOp::from_u8(number).ok_or(Malformed::Atomic(number));
    Tags as [u8; 32]: |tags| tags.to_bytes(), |bytes| {
        Tags::from_bytes(bytes).ok_or(Malformed::Packet(PacketError::Tags))
    };
}

const REQUEST: Option<Class> = Some(Class::Request);
const ENQUEUE: Option<Class> = Some(Class::Enqueue);
const REFLECTED: Option<Class> = Some(Class::Reflected);
const REPLY: Option<Class> = Some(Class::Reply);

kinds! {
    /// The content of a packet.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub enum Body, head 0, table
    /// Every kind of packet; places count from the packet's start.
    PACKETS;

    /// Store `size` (1, 2, 4, 8) bytes of `data` (little-endian, low bytes).
    Write = 1 "write", REQUEST, HEADER_LEN, Access {
        /// Destination.
        at: RemoteAddr = At,
        /// The requester's context.
        context: u16 = Context,
        /// Its import.
        epoch: ImportEpoch = Epoch,
        /// Bytes.
        size: u8 = Size,
        /// Value.
        data: u64 = Data,
    };
    /// Load `size` (1, 2, 4, 8) bytes.
    Read = 2 "read", REQUEST, HEADER_LEN, Access {
        /// Source.
        at: RemoteAddr = At,
        /// The requester's context.
        context: u16 = Context,
        /// Bytes.
        size: u8 = Size,
    };
    /// Look up the segment `name`.
    Lookup = 3 "lookup", REQUEST, HEADER_LEN + 88, None {
        /// Its name; boxed, since it would make every packet twice as large in memory.
        name: Box<Name> = ItsName,
        /// Its secret, zeros for none.
        secret: [u8; 16] = Secret,
        /// User id of the process that looks it up.
        uid: u32 = UserId,
        /// Rights wanted.
        rights: Rights = ItsRights,
    };
    /// Read, modify and write one word.
    Atomic = 4 "atomic", REQUEST, HEADER_LEN + 8, Word {
        /// The word.
        at: RemoteAddr = At,
        /// The requester's context.
        context: u16 = Context,
        /// Its import.
        epoch: ImportEpoch = Epoch,
        /// Bytes: 4 or 8.
        size: u8 = Size,
        /// The operation.
        op: AtomicOp = Operation,
        /// Its operand.
        operand: u64 = Operand,
        /// Value compared with, for [`AtomicOp::CompareSwap`].
        compare: u64 = Compare,
    };
    /// Load `length` bytes, at any alignment.
    ReadBlock = 5 "read-block", REQUEST, HEADER_LEN, Block {
        /// Source; the block does not leave its export page.
        at: RemoteAddr = At,
        /// The requester's context.
        context: u16 = Context,
        /// Bytes, 1 to [`MAX_BLOCK`].
        length: u32 = Length,
    };
    /// Store the bytes of `data`, 1 to [`MAX_BLOCK`], at any alignment.
    WriteBlock = 6 "write-block", REQUEST, HEADER_LEN, Block {
        /// Destination; the block does not leave its export page.
        at: RemoteAddr = At,
        /// The requester's context.
        context: u16 = Context,
        /// Its import.
        epoch: ImportEpoch = Epoch,
        /// The bytes.
        data: Block = Bytes,
    };
    /// Append an element to the queue at `at` (s0; SPEC item 2).
    Enqueue = 7 "enqueue", ENQUEUE, HEADER_LEN, Word {
        /// Base of the queue's first buffer.
        at: RemoteAddr = At,
        /// The requester's context.
        context: u16 = Context,
        /// Its import.
        epoch: ImportEpoch = Epoch,
        /// Bytes of the element.
        size: u8 = Size,
        /// The element.
        data: u64 = Data,
        /// Number of requests that the sender's node had sent to this one before, modulo 2^32, counted from the present
        /// incarnations of both: the element is appended after them (SPEC I8).
        after: u32 = After,
    };
    /// Set the number of the sender node's imports of the queue at `at`; receive credits are reserved for each.
    Reserve = 8 "reserve", REQUEST, HEADER_LEN, None {
        /// The queue.
        at: RemoteAddr = At,
        /// Number of imports; none returns all.
        imports: u32 = Imports,
    };
    /// From the node of a copy to the home of its replicated page: a store of its processor to the copy (SPEC items 24,
    /// 25).
    Update = 9 "update", REQUEST, HEADER_LEN, Access {
        /// The word at home.
        at: RemoteAddr = At,
        /// The requester's context.
        context: u16 = Context,
        /// Its import.
        epoch: ImportEpoch = Epoch,
        /// Bytes.
        size: u8 = Size,
        /// Value.
        data: u64 = Data,
    };
    /// Become a copy of the replicated page at `at`; its content follows as [`Body::Fill`].
    Join = 10 "join", REQUEST, HEADER_LEN, None {
        /// The home page.
        at: RemoteAddr = At,
        /// TG_REPLICA_*: the mode, which is that of the home.
        mode: u16 = Mode,
        /// The copy has the content already, up to the last store of the old home: sent to the new home while the page
        /// moves.
        keep: bool = Keep,
    };
    /// Stop being a copy.
    Leave = 11 "leave", REQUEST, HEADER_LEN, None {
        /// The home page.
        at: RemoteAddr = At,
    };
    /// From the home of a replicated page to its copies: a store, in the home's order.
    Reflected = 12 "reflected", REFLECTED, HEADER_LEN, Access {
        /// The word at home.
        at: RemoteAddr = At,
        /// Bytes.
        size: u8 = Size,
        /// Value.
        data: u64 = Data,
        /// The sender of the [`Body::Update`]; the home itself for all other stores (SPEC E17).
        writer: NodeId = Writer,
    };
    /// From the home to a new copy: bytes of the page, in the same order as stores (SPEC E20).
    Fill = 13 "fill", REFLECTED, HEADER_LEN, Block {
        /// The bytes at home.
        at: RemoteAddr = At,
        /// The bytes.
        data: Block = Bytes,
        /// The copy is complete with these.
        last: bool = Last,
    };
    /// From the home to its copies, after all stores: the page has another home from now on, or none. A new home
    /// announces itself by it.
    Rehome = 14 "rehome", REFLECTED, HEADER_LEN, None {
        /// The old home.
        at: RemoteAddr = At,
        /// The new home; [`NO_NODE`]: none.
        to: NodeId = To,
        /// The page there; without a new home the reason, a [`Status`], 0 for [`Status::Stale`].
        page: u32 = NewPage,
        /// The generation of its grant there.
        generation: u64 = NewGeneration,
    };
    /// Make the sender, a copy of the replicated page at `at`, its home. Answered when all copies are notified.
    Move = 15 "move", REQUEST, HEADER_LEN, None {
        /// The home page.
        at: RemoteAddr = At,
        /// The sender's page.
        page: u32 = NewPage,
        /// The generation of its grant there.
        generation: u64 = NewGeneration,
    };
    /// Several stores of an import to one export page, which are performed in their order: as a [`Body::Write`] for
    /// each, except that they are one request, which one reply answers. That is a [`Body::WriteAck`] if all are
    /// performed, and else a [`Body::BurstRefused`].
    WriteBurst = 16 "write-burst", REQUEST, HEADER_LEN, Burst {
        /// The page.
        on: RemotePage = On,
        /// The requester's context.
        context: u16 = Context,
        /// Its import.
        epoch: ImportEpoch = Epoch,
        /// The stores, in order.
        stores: Burst = Stores,
    };
    /// A write was performed or an element appended, or it was refused.
    WriteAck = 0x81 "write-ack", REPLY, HEADER_LEN, None {
        /// Result.
        status: Status = ItsStatus,
    };
    /// A load's value, all-ones unless the status is Ok.
    ReadReply = 0x82 "read-reply", REPLY, HEADER_LEN, None {
        /// Result.
        status: Status = ItsStatus,
        /// Value.
        data: u64 = Data,
    };
    /// A lookup's answer; the rest is zero unless the status is Ok.
    LookupReply = 0x83 "lookup-reply", REPLY, HEADER_LEN, None {
        /// Result.
        status: Status = ItsStatus,
        /// First export page.
        page: u32 = FirstPage,
        /// Export pages.
        count: u32 = Pages,
        /// Bytes.
        length: u64 = SegmentLength,
        /// Generation of the grants.
        generation: u64 = Generation,
        /// Rights granted.
        rights: Rights = ItsRights,
        /// Bytes of a queue's word; 0 if it is not a queue.
        width: u8 = Width,
    };
    /// An atomic's previous value, all-ones unless the status is Ok.
    AtomicReply = 0x84 "atomic-reply", REPLY, HEADER_LEN, None {
        /// Result.
        status: Status = ItsStatus,
        /// Value before the operation.
        data: u64 = Data,
    };
    /// The bytes of a block, none unless the status is Ok.
    BlockReply = 0x85 "block-reply", REPLY, HEADER_LEN, None {
        /// Result.
        status: Status = ItsStatus,
        /// The bytes.
        data: Block = Bytes,
    };
    /// Result of a [`Body::Reserve`].
    ReserveReply = 0x86 "reserve-reply", REPLY, HEADER_LEN, None {
        /// Result; if not Ok the earlier reservation stands.
        status: Status = ItsStatus,
        /// Receive credits: elements of each import in flight, at most.
        holds: u32 = Holds,
    };
    /// A copy has applied what its home sent.
    CopyAck = 0x87 "copy-ack", REPLY, HEADER_LEN, None {
        /// Result.
        status: Status = ItsStatus,
    };
    /// Several stores or blocks were performed, or elements appended: as a [`Body::WriteAck`] for each. Refusals are
    /// sent one by one.
    WriteAcks = 0x88 "write-acks", REPLY, HEADER_LEN, None {
        /// The tags of the requests, at least one, within the block of 256 tags to which the packet's tag belongs: that
        /// of tag n of the block is bit n % 8 of byte n / 8.
        tags: Tags = ItsTags,
    };
    /// A burst was not performed as a whole. Stores behind a refused one are refused because of it ([`Status::Cut`]),
    /// or for the same reason if that is [`Status::Reset`]; only of a replicated page later ones may have been
    /// performed.
    BurstRefused = 0x89 "burst-refused", REPLY, HEADER_LEN, None {
        /// Why the first store that was not performed was refused.
        status: Status = ItsStatus,
        /// Number of stores performed.
        performed: u16 = Performed,
    };
}

impl Body {
    /// The class of the packet.
    #[inline]
    pub fn class(&self) -> Class {
        // Every row of the table has one.
        self.kind().class.unwrap_or(Class::Reply)
    }

    /// The export page of a request or a multicast; 0 if none.
    #[inline]
    pub fn page(&self) -> u32 {
        self.address_page().unwrap_or(0)
    }

    /// The import and epoch of a request that changes memory; `None` for others.
    #[inline]
    pub fn epoch(&self) -> Option<ImportEpoch> {
        self.import_epoch()
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
            Body::WriteBurst { .. } => Body::BurstRefused { status, performed: 0 },
            Body::Reserve { .. } => Body::ReserveReply { status, holds: 0 },
            Body::Read { .. } => Body::ReadReply { status, data: u64::MAX },
            Body::Atomic { .. } => Body::AtomicReply { status, data: u64::MAX },
            Body::ReadBlock { .. } => Body::BlockReply { status, data: Block::default() },
            Body::Lookup { .. } => {
                Body::LookupReply { status, page: 0, count: 0, length: 0, generation: 0, rights: Rights(0), width: 0 }
            }
            Body::WriteAck { .. }
            | Body::ReadReply { .. }
            | Body::LookupReply { .. }
            | Body::AtomicReply { .. }
            | Body::BlockReply { .. }
            | Body::CopyAck { .. }
            | Body::WriteAcks { .. }
            | Body::BurstRefused { .. }
            | Body::ReserveReply { .. } => return None,
        })
    }

    /// Number of requests that this reply answers, at least one.
    #[inline]
    pub fn answers(&self) -> u32 {
        match self {
            Body::WriteAcks { tags } => tags.count(),
            _ => 1,
        }
    }

    /// Bytes of the block that it carries or asks for.
    #[inline]
    pub fn block_len(&self) -> u64 {
        match self {
            Body::ReadBlock { length, .. } => u64::from(*length),
            Body::WriteBlock { data, .. } | Body::Fill { data, .. } | Body::BlockReply { data, .. } => {
                data.len() as u64
            }
            _ => 0,
        }
    }

    /// Replaces the bytes of its block. Has no effect on a kind without any.
    pub fn set_block(&mut self, block: Block) {
        if let Body::WriteBlock { data, .. } | Body::Fill { data, .. } | Body::BlockReply { data, .. } = self {
            *data = block;
        }
    }

    /// Bytes behind the header.
    #[inline]
    pub fn payload_len(&self) -> usize {
        self.length() - HEADER_LEN
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
    /// The requester's incarnation, returned in the reply: a reply to an earlier incarnation is dropped.
    pub incarnation: u64,
    /// In a request, the responder's incarnation as known to the requester: a store or load for an earlier incarnation
    /// is refused, so that none passes a store that was lost when that incarnation ended. Zero in replies and, until
    /// the switch makes its copies, in packets to [`MULTICAST`].
    pub target: u64,
    /// Its content.
    pub body: Body,
}

fn check_block(offset: u32, length: usize) -> Result<(), PacketError> {
    let fits = u64::from(offset) + length as u64 <= crate::UNIT;
    if length == 0 || length > MAX_BLOCK || !fits {
        return Err(PacketError::Block { offset, length: u32::try_from(length).unwrap_or(u32::MAX) });
    }
    Ok(())
}

impl Check {
    /// Checks a packet by its header; `tail` is the length of the block behind it, if its kind has one there.
    #[inline]
    fn verify(self, bytes: &[u8], tail: Option<usize>) -> Result<(), PacketError> {
        let (size, offset) = (u8::read(bytes, 2), u32::read(bytes, 20));
        match self {
            Check::None => Ok(()),
            Check::Access => check_access(offset, size),
            Check::Word => {
                check_access(offset, size)?;
                if size < 4 { Err(PacketError::Size(size)) } else { Ok(()) }
            }
            Check::Block => check_block(offset, tail.unwrap_or(u32::read(bytes, BLOCK_LENGTH) as usize)),
            // By its slot, which reads them.
            Check::Burst => Ok(()),
        }
    }
}

impl Packet {
    /// The class of the packet.
    #[inline]
    pub fn class(&self) -> Class {
        self.body.class()
    }

    /// Appends the packet to `out` and returns its length. The header has version, kind and, by
    /// [`layout`](crate::layout), the fields of all packets and those of the kind; the rest of it is zero.
    pub fn encode(&self, out: &mut Vec<u8>) -> usize {
        let start = out.len();
        self.body.append(out, |fixed, number, class| {
            fixed[..2].copy_from_slice(&[PROTOCOL_VERSION, number]);
            self.src.write(&mut fixed[4..]);
            self.dst.write(&mut fixed[6..]);
            self.tag.write(&mut fixed[8..]);
            self.incarnation.write(&mut fixed[56..]);
            if class != REPLY {
                (self.target as u32).write(&mut fixed[40..]);
                ((self.target >> 32) as u32).write(&mut fixed[12..]);
            }
        });
        out.len() - start
    }

    /// Parses and checks a packet; never panics.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Packet, PacketError> {
        let Some(header) = bytes.first_chunk::<HEADER_LEN>() else {
            return Err(PacketError::Length { found: bytes.len(), expected: HEADER_LEN });
        };
        if header[0] != PROTOCOL_VERSION {
            return Err(PacketError::Version(header[0]));
        }
        let check = |kind: &Kind, bytes: &[u8]| {
            // A length beyond the limit fails the comparison below, whatever it is.
            let tail = (kind.tail == Tail::Block).then(|| (u32::read(header, BLOCK_LENGTH) as usize).min(MAX_BLOCK));
            let expected = kind.len + tail.unwrap_or(0);
            if bytes.len() != expected {
                return Err(PacketError::Length { found: bytes.len(), expected });
            }
            kind.check.verify(header, tail)
        };
        let fail = |why| match why {
            Malformed::Atomic(operation) => PacketError::Atomic(operation),
            Malformed::Packet(why) => why,
            Malformed::Kind | Malformed::Length | Malformed::Value => PacketError::Kind(header[1]),
        };
        let body = Body::get(header[1], bytes, check, fail)?;
        let half = |at: usize| u64::from(u32::read(header, at));
        Ok(Packet {
            src: u16::read(header, 4),
            dst: u16::read(header, 6),
            tag: u32::read(header, 8),
            incarnation: u64::read(header, 56),
            target: if body.class() == Class::Reply { 0 } else { half(40) | half(12) << 32 },
            body,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BurstStore;
    use proptest::prelude::*;

    /// What a packet of any kind can carry: any bytes in its fields, of those that its check admits, and a short block.
    fn body() -> impl Strategy<Value = Body> {
        let kind = proptest::sample::select(PACKETS);
        let fields = proptest::collection::vec(any::<u8>(), PACKETS.iter().map(|kind| kind.len).max().unwrap());
        let block = proptest::collection::vec(any::<u8>(), 1..40);
        (kind, fields, any::<u8>(), block).prop_map(|(kind, mut bytes, pick, block)| {
            bytes.truncate(kind.len);
            bytes[..2].copy_from_slice(&[PROTOCOL_VERSION, kind.number]);
            match kind.check {
                Check::None | Check::Burst => {}
                Check::Access => bytes[2] = 1 << (pick % 4),
                Check::Word => bytes[2] = 4 << (pick % 2),
                Check::Block => (block.len() as u32).write(&mut bytes[BLOCK_LENGTH..]),
            }
            if !matches!(kind.check, Check::None | Check::Burst) {
                (8 * (u32::read(&bytes, 20) % 0x1f00)).write(&mut bytes[20..]);
            }
            if kind.check == Check::Burst {
                let store = |(n, byte): (usize, &u8)| BurstStore {
                    data: u64::from(*byte) << (n % 56),
                    offset: 8 * u16::from(*byte),
                    size: 1 << (pick % 4),
                };
                let burst = Burst::new(block.iter().enumerate().map(store)).unwrap();
                (burst.bytes() as u32).write(&mut bytes[BLOCK_LENGTH..]);
                burst.append(&mut bytes);
            } else if kind.tail == Tail::Block {
                (block.len() as u32).write(&mut bytes[BLOCK_LENGTH..]);
                bytes.extend(block);
            }
            for field in kind.fields {
                match field.name {
                    "operation" => bytes[field.at] = 1 + pick % 3,
                    "tags" => bytes[field.at] |= 1,
                    _ => {}
                }
            }
            Packet::decode(&bytes).unwrap().body
        })
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
            if b.len() > 1 { b[0] = PROTOCOL_VERSION; b[1] &= 0x8f; }
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
        let body = Body::WriteBlock { at, context: 0, epoch: ImportEpoch::default(), data: Block::from([0u8; 17]) };
        big.clear();
        Packet { src: 0, dst: 1, tag: 0, incarnation: 0, target: 0, body }.encode(&mut big);
        assert!(matches!(Packet::decode(&big), Err(PacketError::Block { .. })));
    }

    #[test]
    fn an_acknowledgement_of_nothing_is_refused() {
        let body = Body::WriteAcks { tags: Tags::of(0x17) };
        let mut bytes = Vec::new();
        Packet { src: 0, dst: 1, tag: 0x17, incarnation: 0, target: 0, body }.encode(&mut bytes);
        assert!(Packet::decode(&bytes).is_ok());
        bytes[18] = 0;
        assert_eq!(Packet::decode(&bytes), Err(PacketError::Tags));
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
