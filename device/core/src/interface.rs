// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interface between the core and its shell: events, guest-memory steps, actions and diagnostics.

use crate::loan::{Data, LentPacket, Loan};
use std::sync::Arc;
use telegraphos_wire::admin::Command;
use telegraphos_wire::link::Frame;
use telegraphos_wire::{AtomicOp, Burst, Class, NodeId, Packet, Status};

/// The BAR of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bar {
    /// BAR0: registers, for the kernel only.
    Control,
    /// BAR2: one page per context.
    Contexts,
    /// BAR4: the memory window.
    Window,
}

/// The shell's id of a load that is not complete.
pub type Token = u64;

/// The core's id of a guest-memory step in flight.
pub type StepId = u64;

/// An input of the core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The guest loads `size` bytes. The core completes the load by exactly one [`Action::ReadDone`], within the load
    /// limit.
    Read {
        /// The shell's id of the load.
        token: Token,
        bar: Bar,
        /// Byte offset in the BAR. The shell has checked that it lies inside.
        offset: u64,
        /// Size in bytes. Any number is accepted, since a raw client may send any; only aligned accesses of 1, 2, 4 and
        /// 8 bytes are served.
        size: u32,
    },
    /// The guest stores the low `size` bytes of `data`.
    Write {
        bar: Bar,
        /// Byte offset in the BAR.
        offset: u64,
        /// Size in bytes, as for reads.
        size: u32,
        /// Value, little-endian.
        data: u64,
    },
    /// The shell found the guest's socket empty: QEMU has no more messages queued, as far as the shell can see.
    IntakeDry,
    /// A packet for this node.
    Packet(Packet),
    /// The switch can take `count` more packets of `class`.
    Credit {
        class: Class,
        /// Number of packets.
        count: u32,
    },
    /// A packet for this node that came by the ring to its source, which the shell has checked to be the node at the
    /// other end.
    RingPacket {
        packet: Packet,
        /// What the peer has sent beside it ([`Action::RingSendLent`]).
        loan: Option<Loan>,
    },
    /// Anything else about the ring to a node.
    Ring {
        /// The node at the other end.
        peer: NodeId,
        what: RingEvent,
    },
    /// The board joined the fabric.
    LinkUp {
        /// Base incarnation of this join.
        incarnation: u64,
        /// Number of nodes that the fabric serves.
        nodes: u32,
        /// Initial credits: packets of each class that the switch can take.
        credits: [u32; 4],
    },
    /// The board lost the fabric. Everything outstanding to other nodes fails with [`Status::LinkDown`].
    LinkDown,
    /// A node is present with this incarnation. The core ignores the event for its own node.
    NodeUp {
        node: NodeId,
        /// The incarnation of that node.
        incarnation: u64,
        /// Bytes of the longest block in a packet to or from that node.
        block: u32,
    },
    NodeDown {
        node: NodeId,
    },
    StepDone {
        /// The id of the step.
        step: StepId,
        result: StepResult,
    },
    /// The shell has served all other events that it had when it received [`Action::Continue`].
    Continue,
    /// Device reset, also sent when QEMU's connection ends. The core answers by [`Action::ResetDone`] when no step is
    /// in flight.
    Reset,
    /// PCI bus mastering was switched on or off. While it is off, the board does not access guest memory: it refuses
    /// requests of other nodes with [`Status::MemoryFault`], and events and completions stay pending.
    BusMaster(bool),
    /// The memory of the node's trust group is not as it was: the driver is to look at it (event DIRECT).
    DirectChanged,
    /// The current time. Values that decrease are ignored.
    Tick {
        /// Microseconds of any monotonic clock.
        now: u64,
    },
}

/// A store of the guest to the window, as one of several that it has posted one after the other
/// ([`Hib::stores`](crate::Hib::stores)): [`Event::Write`] with [`Bar::Window`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowStore {
    /// Byte offset in the BAR.
    pub offset: u64,
    /// Size in bytes, as for reads.
    pub size: u32,
    /// Value, little-endian.
    pub data: u64,
}

impl From<WindowStore> for Event {
    fn from(store: WindowStore) -> Event {
        let WindowStore { offset, size, data } = store;
        Event::Write { bar: Bar::Window, offset, size, data }
    }
}

/// An event of the ring to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RingEvent {
    /// The ring is set up ([`telegraphos_wire::link::Frame::Ring`]). The shell has asked [`crate::Hib::accepts_ring`].
    Up {
        /// The incarnation of the node.
        incarnation: u64,
        /// The incarnation of this board that it was offered to.
        own: u64,
        /// Credits of each class, both ways.
        credits: u32,
        /// It stays within this process, and carries loans beside packets.
        lends: bool,
    },
    /// The peer can take `count` more packets of `class`.
    Credit {
        class: Class,
        /// Number of packets.
        count: u32,
    },
    /// The peer has answered a probe: everything sent before has reached its core.
    Alive,
    /// The fabric withdraws the ring, or offers it again.
    Use {
        /// The incarnation of the node.
        incarnation: u64,
        /// Whether it is to be used.
        on: bool,
    },
    /// The peer has closed its end, because this board, as it says, broke the rules.
    Lost {
        /// The incarnation of the node.
        incarnation: u64,
    },
    /// The peer wrote what are no indices or no frames, or reads nothing.
    Broken,
}

/// What the node at the other end of a ring did, so that the ring is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RingViolation {
    #[error("sent a packet for node {0}")]
    Destination(NodeId),
    #[error("sent a request of its incarnation {0:#x}")]
    Incarnation(u64),
    /// A packet, or credits, of a class that does not belong on a ring.
    #[error("sent what has no place on a ring (class {0:?})")]
    Class(Class),
    #[error("sent a packet of class {0:?} without a credit")]
    NoCredit(Class),
    #[error("returned more credits of class {0:?} than it was given")]
    Credits(Class),
    #[error("sent a reply to nothing")]
    Reply,
    #[error("sent a request with the tag {0} of one that is not answered")]
    Tag(u32),
    /// A loan by a ring that lends nothing, beside a packet without a block or with its bytes, or of another length.
    #[error("lent what it may not")]
    Loan,
    /// A block that is too long.
    #[error("sent a block of {length} bytes: at most {most}")]
    Block {
        /// Its bytes.
        length: u64,
        /// The most between the two nodes.
        most: u64,
    },
    /// Indices or bytes that are not valid.
    #[error("wrote what is not valid, or does not read")]
    Bytes,
}

/// A part of a block that is adjacent in guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    pub address: u64,
    /// Length in bytes, at least 1.
    pub length: u32,
}

/// Where a block lies in guest memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) address: u64,
    /// The pieces, if there are several.
    pub(crate) pieces: Option<Arc<Vec<Piece>>>,
}

impl Place {
    /// The step on the block that lies here.
    pub(crate) fn step(self, step: impl FnOnce(u64) -> Step) -> Step {
        let step = step(self.address);
        match self.pieces {
            None => step,
            Some(pieces) => Step::Pieces { step: Box::new(step), pieces },
        }
    }
}

impl Step {
    /// The step itself, and the pieces of its block if there are several.
    pub fn apart(self) -> (Step, Option<Arc<Vec<Piece>>>) {
        match self {
            Step::Pieces { step, pieces } => (*step, Some(pieces)),
            step => (step, None),
        }
    }
}

impl Piece {
    /// The pieces of a block, for a shell that treats all blocks alike: one, if it is adjacent.
    pub fn of(address: u64, length: usize, pieces: &Option<Arc<Vec<Piece>>>) -> Vec<Piece> {
        match pieces {
            Some(pieces) => pieces.to_vec(),
            None => vec![Piece { address, length: length as u32 }],
        }
    }
}

/// One access to guest memory. Atomic for its size and never split, except for blocks and bursts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Load 1, 2, 4 or 8 bytes (acquire).
    Load {
        /// DMA address, aligned.
        address: u64,
        /// Size in bytes.
        size: u8,
    },
    /// Store 1, 2, 4 or 8 bytes (release: after every earlier step).
    Store {
        /// DMA address, aligned.
        address: u64,
        /// Size in bytes.
        size: u8,
        data: u64,
    },
    /// Store words one after the other, each as [`Step::Store`] does: a processor may find the first of them without
    /// the others.
    StoreBurst {
        /// DMA address from which the offsets of the stores count, modulo 2^64.
        base: u64,
        /// The stores, aligned.
        stores: Burst,
    },
    /// Read, modify and write 4 or 8 bytes atomically (acquire and release). Returns the previous value.
    Atomic {
        /// DMA address, aligned.
        address: u64,
        /// Size in bytes.
        size: u8,
        op: AtomicOp,
        operand: u64,
        /// The value to compare with, for a compare-and-swap.
        compare: u64,
    },
    /// Load bytes at any alignment; no order among the bytes.
    LoadBlock {
        address: u64,
        /// Length in bytes, at most [`telegraphos_wire::MAX_BLOCK`].
        length: u32,
        /// The shell may lend the bytes instead of loading them ([`Data::Lent`]): they need not be those of this
        /// moment, but may be of any time until the block is stored or taken back ([`Action::Recall`]).
        lend: bool,
        /// Another board lends this memory ([`Step::Lend`]): if it has not been taken back, the shell may copy the
        /// bytes to there, at this moment, and return the loan ([`Data::Lent`]) instead of them.
        into: Option<Loan>,
    },
    /// Lend memory to be filled by another board, if the shell can: at any time until the loan is dropped or taken
    /// back.
    Lend {
        address: u64,
        /// Length in bytes, at most [`telegraphos_wire::MAX_BLOCK`].
        length: u32,
    },
    /// Store bytes at any alignment, after every earlier step; no order among the bytes.
    StoreBlock {
        address: u64,
        /// The bytes to store. If they are lent of this very memory, they are there already.
        data: Data,
    },
    /// A block that lies in several pieces.
    Pieces {
        /// `LoadBlock`, `Lend` or `StoreBlock`, of all of it, at the address of the first piece.
        step: Box<Step>,
        /// The pieces in order, as long together as the block.
        pieces: Arc<Vec<Piece>>,
    },
    /// Load an admin command. The driver does not write to the slot meanwhile.
    LoadCommand {
        /// DMA address of the slot.
        address: u64,
    },
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StepResult {
    /// The loaded value, or the previous value of an atomic; zero-extended.
    Loaded(u64),
    /// The loaded bytes, or what is lent, or was filled, instead.
    Block(Data),
    /// What is lent, if it is.
    Lent(Option<Loan>),
    /// In a box: every event would be twice as large.
    Command(Box<Command>),
    Stored,
    /// Only the first stores of a burst are performed, as many as this: the next one failed with this status
    /// ([`StepResult::Failed`]), and the others were not tried.
    StoredPart {
        stores: usize,
        status: Status,
    },
    /// Not performed: [`Status::MemoryFault`] (not mapped, read-only) or [`Status::PrivateMemory`] (no file
    /// descriptor).
    Failed(Status),
}

/// An output of the core, which the shell performs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Complete a load.
    ReadDone {
        /// The shell's id of the load.
        token: Token,
        /// The value, zero-extended; all ones if the load failed.
        data: u64,
    },
    /// Send a packet to the switch. The core has already taken a credit of its class.
    Send(Packet),
    /// Send a packet to the switch, as [`Action::Send`] says, whose block is empty: with the bytes of the loan, as they
    /// are, or as they were when it was taken back.
    SendLent(Box<LentPacket>),
    /// Send a request, an element or a reply by the ring to its destination. The core has taken a credit of its class.
    RingSend(Packet),
    /// The same, with the loan beside it, by a ring that lends ([`RingEvent::Up`]).
    RingSendLent(Box<LentPacket>),
    /// Anything else about the ring to a node.
    Ring {
        /// The node at the other end.
        peer: NodeId,
        what: RingAction,
    },
    /// Return credits to the switch: room for `count` more packets of `class`.
    Credit {
        class: Class,
        /// Number of packets.
        count: u32,
    },
    /// Announce a new incarnation to the switch ([`telegraphos_wire::link::Frame::Reset`]).
    AnnounceReset { incarnation: u64 },
    /// Send the switch the members of the multicast group of an export page ([`telegraphos_wire::link::Frame::Group`]),
    /// in order with packets. Only with [`crate::HibConfig::fanout_by_switch`].
    Group {
        /// The export page.
        page: u32,
        /// The nodes, ascending: at least two, or none to remove the group.
        members: Vec<NodeId>,
    },
    /// Access guest memory, and return the result by [`Event::StepDone`].
    Step {
        /// The id of the step.
        step: StepId,
        op: Step,
    },
    /// Take back what is lent of a range of guest memory ([`Step::LoadBlock`], [`Step::Lend`]): when the shell has done
    /// so, no board accesses it any more by a loan.
    Recall {
        address: u64,
        /// Length in bytes.
        length: u64,
    },
    /// Raise the interrupt vector.
    Interrupt,
    /// The core has more work than one turn of the shell's loop should take. The shell answers with [`Event::Continue`]
    /// after it has served all other events. Emitted once per turn.
    Continue,
    /// The reset is complete: no step of the earlier incarnation is in flight.
    ResetDone,
    /// A diagnostic for the (rate-limited) log.
    Notice(Notice),
}

// A larger one would make each turn of a board cost more.
const _: () = assert!(size_of::<Action>() <= 80 && size_of::<Event>() <= 104);

/// What to do about the ring to a node. With [`Action::AnnounceReset`] all rings are closed, behind what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RingAction {
    /// Return credits to the peer: room for `count` more packets of `class`.
    Credit {
        class: Class,
        /// Number of packets.
        count: u32,
    },
    /// Send a probe, behind everything sent before. The answer is [`RingEvent::Alive`].
    Probe,
    /// Tell the fabric that later requests to this incarnation of the node pass it
    /// ([`telegraphos_wire::link::Frame::RingUse`]).
    Unused {
        /// The incarnation of the node.
        incarnation: u64,
    },
    /// Close this end. If the peer broke a rule, tell the fabric ([`telegraphos_wire::link::Frame::RingLost`]).
    Close(Option<RingViolation>),
}

impl TryFrom<Frame> for Event {
    type Error = Frame;

    /// The event of a frame from the switch. Fails with the frame if it means nothing to a board, only to its shell.
    fn try_from(frame: Frame) -> Result<Event, Frame> {
        Ok(match frame {
            Frame::Welcome { incarnation, nodes, credits } => Event::LinkUp { incarnation, nodes, credits },
            Frame::Packet(packet) => Event::Packet(packet),
            Frame::Credit { class, count } => Event::Credit { class, count },
            Frame::NodeUp { node, incarnation, block } => Event::NodeUp { node, incarnation, block },
            Frame::NodeDown { node } => Event::NodeDown { node },
            Frame::RingUse { node, incarnation, on } => {
                Event::Ring { peer: node, what: RingEvent::Use { incarnation, on } }
            }
            Frame::RingLost { node, incarnation } => Event::Ring { peer: node, what: RingEvent::Lost { incarnation } },
            other => return Err(other),
        })
    }
}

/// The target of a guest store that was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LostStore {
    pub node: NodeId,
    /// The import, if the address was mapped.
    pub import: Option<u16>,
    pub status: Status,
}

/// A diagnostic: an event that the log should report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notice {
    /// An invalid access that belongs to no import; its error is latched in ERROR.
    BadAccess {
        bar: Bar,
        /// Byte offset in the BAR.
        offset: u64,
        /// Size in bytes.
        size: u32,
        status: Status,
    },
    LostStore(LostStore),
    /// A load failed and returned all ones.
    FailedLoad {
        node: NodeId,
        status: Status,
    },
    /// An atomic or a copy failed.
    FailedOperation {
        node: NodeId,
        status: Status,
    },
    /// The congestion of an import began or ended. The driver stops its processes meanwhile.
    Congested {
        import: u16,
        /// True if it began, false if it ended.
        on: bool,
    },
    /// The congestion of a context began or ended. The driver stops its processes meanwhile.
    ContextCongested {
        context: u16,
        /// True if it began, false if it ended.
        on: bool,
    },
    /// A request of another node was refused.
    Refused {
        from: NodeId,
        /// The export page.
        page: u32,
        status: Status,
    },
    /// A node requested more receive credits than its share.
    NoHold {
        from: NodeId,
        /// The export page of the queue.
        page: u32,
        /// The number of imports of that queue that it requested credits for.
        imports: u32,
    },
    /// A node that is up has not answered a request in time: everything outstanding to it has failed.
    SilentNode {
        node: NodeId,
    },
    /// A copy of a replicated page did not acknowledge in time and was removed.
    SilentCopy {
        /// The node of the copy.
        node: NodeId,
        /// The export page of its home, on this node.
        page: u32,
    },
    /// The home of a replicated page did not send the content, or did not confirm that it is the home, in time.
    SilentHome {
        /// The export page of the copy, on this node.
        page: u32,
    },
    /// The header of a queue in this node's memory was not valid.
    BrokenQueue {
        /// Its export page.
        page: u32,
        /// The index of the header word.
        word: u64,
        value: u64,
    },
    Admin {
        opcode: u32,
        status: Status,
    },
    /// The board could not access its own tables in guest memory (event queue, admin slots, status page).
    Memory {
        address: u64,
        status: Status,
    },
}
