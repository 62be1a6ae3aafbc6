// SPDX-License-Identifier: MIT OR Apache-2.0
//! What crosses the border between the core and its shell.

use telegraphos_wire::admin::Command;
use telegraphos_wire::{AtomicOp, Block, Class, NodeId, Packet, Status};

/// Which BAR an access goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bar {
    /// BAR0, registers, kernel only.
    Control,
    /// BAR2, one page per context.
    Contexts,
    /// BAR4, the memory window.
    Window,
}

/// The shell's name for a read that waits for its data.
pub type Token = u64;

/// The core's name for a guest-memory step that waits for its result.
pub type StepId = u64;

/// Something that happened to the board.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The guest loads `size` bytes. Answered by exactly one [`Action::ReadDone`], within the load limit.
    Read {
        /// The shell's name for it.
        token: Token,
        /// Where.
        bar: Bar,
        /// Byte offset in the BAR; the shell has checked that it lies inside.
        offset: u64,
        /// Bytes: any number, since a raw client may send any; only 1, 2, 4, 8 aligned are served.
        size: u32,
    },
    /// The guest stores the low `size` bytes of `data`.
    Write {
        /// Where.
        bar: Bar,
        /// Byte offset in the BAR.
        offset: u64,
        /// Bytes, as for reads.
        size: u32,
        /// Value, little-endian.
        data: u64,
    },
    /// The shell found the guest's socket empty: nothing more is queued in QEMU that it could see.
    IntakeDry,
    /// A packet for this node.
    Packet(Packet),
    /// The switch can take `count` more packets of `class`.
    Credit {
        /// The class.
        class: Class,
        /// Packets.
        count: u32,
    },
    /// Joined the fabric.
    LinkUp {
        /// Base incarnation of this join.
        incarnation: u64,
        /// Nodes the fabric serves.
        nodes: u32,
        /// Packets of each class the switch can take.
        credits: [u32; 4],
    },
    /// Lost the fabric. Everything outstanding to other nodes fails with [`Status::LinkDown`].
    LinkDown,
    /// A node is present with this incarnation (maybe this node itself, which is ignored).
    NodeUp {
        /// The node.
        node: NodeId,
        /// Its incarnation.
        incarnation: u64,
    },
    /// A node has gone.
    NodeDown {
        /// The node.
        node: NodeId,
    },
    /// A step is done.
    StepDone {
        /// Its name.
        step: StepId,
        /// Its result.
        result: StepResult,
    },
    /// The shell has served everything else that it had since [`Action::Continue`].
    Continue,
    /// Device reset (also when QEMU's connection ends). Answered by [`Action::ResetDone`] when no step is in flight.
    Reset,
    /// PCI bus mastering was switched. While off, the board does not touch guest memory: requests of others are refused
    /// with [`Status::MemoryFault`], events and completions stay pending.
    BusMaster(bool),
    /// The time, in microseconds of any monotonic clock.
    Tick {
        /// Now.
        now: u64,
    },
}

/// One access to guest memory: atomic for its size, never split (blocks excepted).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Load 1, 2, 4 or 8 bytes (acquire).
    Load {
        /// DMA address, aligned.
        address: u64,
        /// Bytes.
        size: u8,
    },
    /// Store 1, 2, 4 or 8 bytes (release: after every earlier step).
    Store {
        /// DMA address, aligned.
        address: u64,
        /// Bytes.
        size: u8,
        /// Value.
        data: u64,
    },
    /// Read, modify and write 4 or 8 bytes in one piece (acquire and release). Completes with the previous value.
    Atomic {
        /// DMA address, aligned.
        address: u64,
        /// Bytes.
        size: u8,
        /// What to do.
        op: AtomicOp,
        /// Its operand.
        operand: u64,
        /// Value compared with.
        compare: u64,
    },
    /// Load bytes at any alignment, in no order among each other.
    LoadBlock {
        /// DMA address.
        address: u64,
        /// Bytes, at most [`telegraphos_wire::MAX_BLOCK`].
        length: u32,
    },
    /// Store bytes at any alignment, in no order among each other, after every earlier step.
    StoreBlock {
        /// DMA address.
        address: u64,
        /// The bytes.
        data: Block,
    },
    /// Load an admin command, which nobody writes meanwhile.
    LoadCommand {
        /// DMA address of the slot.
        address: u64,
    },
}

/// What became of a step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StepResult {
    /// The loaded or (of an atomic) previous value, zero-extended.
    Loaded(u64),
    /// The loaded bytes.
    Block(Block),
    /// The loaded command.
    Command(Command),
    /// Stored.
    Stored,
    /// Not performed: [`Status::MemoryFault`] (not mapped, read-only) or [`Status::PrivateMemory`] (no file
    /// descriptor).
    Failed(Status),
}

/// Something for the shell to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The data of a read.
    ReadDone {
        /// The shell's name for it.
        token: Token,
        /// Value, zero-extended; all-ones if it could not be served.
        data: u64,
    },
    /// Send a packet to the switch (a credit of its class has been taken).
    Send(Packet),
    /// Tell the switch that there is room for `count` more packets of `class`.
    Credit {
        /// The class.
        class: Class,
        /// Packets.
        count: u32,
    },
    /// Tell the switch about a new incarnation ([`telegraphos_wire::link::Frame::Reset`]).
    AnnounceReset {
        /// The incarnation.
        incarnation: u64,
    },
    /// Tell the switch which nodes multicasts about an export page are for ([`telegraphos_wire::link::Frame::Group`]),
    /// in order with packets. Only with [`crate::HibConfig::fanout_by_switch`].
    Group {
        /// The export page.
        page: u32,
        /// The nodes, ascending, at least two; none ends the group.
        members: Vec<NodeId>,
    },
    /// Access guest memory and answer with [`Event::StepDone`].
    Step {
        /// Its name.
        step: StepId,
        /// What to do.
        op: Step,
    },
    /// Raise the interrupt vector.
    Interrupt,
    /// More can be done at once than one turn of the shell's loop should take: answer with [`Event::Continue`] after
    /// everything else that is there has been served. Not repeated before that.
    Continue,
    /// The reset is complete; nothing of the earlier life touches guest memory any more.
    ResetDone,
    /// Something worth a (rate-limited) log line.
    Notice(Notice),
}

/// What a guest store that was not performed was aimed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LostStore {
    /// Destination node.
    pub node: NodeId,
    /// Import, if the address had one.
    pub import: Option<u16>,
    /// Why.
    pub status: Status,
}

/// Events worth telling people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notice {
    /// An access outside the rules, not tied to an import; latched in ERROR.
    BadAccess {
        /// Where.
        bar: Bar,
        /// Offset in the BAR.
        offset: u64,
        /// Bytes.
        size: u32,
        /// Why.
        status: Status,
    },
    /// A store was dropped.
    LostStore(LostStore),
    /// A load was answered all-ones.
    FailedLoad {
        /// Destination node.
        node: NodeId,
        /// Why.
        status: Status,
    },
    /// An atomic or a copy ended with an error.
    FailedOperation {
        /// The node it was for.
        node: NodeId,
        /// Why.
        status: Status,
    },
    /// Stores of an import wait; the driver has been told to stop its processes.
    Congested {
        /// The import.
        import: u16,
        /// Whether it began (or ended).
        on: bool,
    },
    /// What a context has launched or stored waits; the driver has been notified to stop its processes.
    ContextCongested {
        /// The context.
        context: u16,
        /// Whether it began (or ended).
        on: bool,
    },
    /// A request of another node was refused.
    Refused {
        /// The requester.
        from: NodeId,
        /// The export page.
        page: u32,
        /// Why.
        status: Status,
    },
    /// A node asked for more hold slots than there are for it.
    NoHold {
        /// The node.
        from: NodeId,
        /// The export page of the queue.
        page: u32,
        /// Imports of that queue it asked for.
        imports: u32,
    },
    /// A copy of a replicated page did not acknowledge in time, and is none any more.
    SilentCopy {
        /// Its node.
        node: NodeId,
        /// The export page of its home, which is here.
        page: u32,
    },
    /// The home of a replicated page did not send its content in time, or did not say that it is the home.
    SilentHome {
        /// The export page of the copy, which is here.
        page: u32,
    },
    /// The header of a queue in this node's memory was not sound.
    BrokenQueue {
        /// Its export page.
        page: u32,
        /// Which word.
        word: u64,
        /// What it held.
        value: u64,
    },
    /// An admin command failed.
    Admin {
        /// TG_ADMIN_*.
        opcode: u32,
        /// Why.
        status: Status,
    },
    /// The board could not reach its own tables in guest memory (event queue, admin slots, status page).
    Memory {
        /// DMA address.
        address: u64,
        /// Why.
        status: Status,
    },
}
