// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's interface to user processes: ioctls of `/dev/telegraphosN` and its mmap offsets.
//!
//! Each open file has its own context, exports and imports; closing it releases them. Handles are numbers of the
//! device (an import's handle is its import number) and are usable only through the file that made them.
//!
//! Each ioctl has a structure that begins with `size` and `flags`, and may grow at its end. `size` is the length of the
//! caller's version of it, as is the size in the request number. The driver takes missing bytes for zero, and refuses
//! what it does not support unless it is zero: `E2BIG` for bytes after the end of its own version of the structure,
//! `EINVAL` for a flag, and for a structure that is shorter than its first version. It writes no more than `size` bytes
//! back.
//!
//! mmap offsets: `kind << 48 | handle << 32 | byte offset`; kinds are MMAP_*. A mapping must lie within the object,
//! else `EINVAL`. Import and export mappings fill by page fault; when the object goes away (device gone, grant revoked,
//! node down) the next touch is SIGBUS, unless the import, or the file, is soft.

c_consts! {
    /// Constants of the user interface for the C header.
    pub ALL: u64, prefix "TG_" {
        /// Version of the user interface, in tg_info.abi.
        ABI_VERSION = 2,
        /// Type byte of the ioctls. The kernel's list of those in use
        /// (Documentation/userspace-api/ioctl/ioctl-number.rst) has none of this type; numbers 00 to 3f are this
        /// driver's.
        IOCTL_TYPE = 0xbd,
        /// First number of the ioctls of telegraphos_lab.ko, which is for comparisons only. Without it they are ENOTTY.
        IOCTL_LAB = 0x20,
        /// mmap kind: the context page (one page, write-only use; handle 0).
        MMAP_CONTEXT = 1,
        /// mmap kind: the status page (one page, read-only; handle 0).
        MMAP_STATUS = 2,
        /// mmap kind: an import's window.
        MMAP_IMPORT = 3,
        /// mmap kind: an export's local memory.
        MMAP_EXPORT = 4,
        /// mmap kind: an import's argument aperture, write-only (`tg_context` words); loads are refused.
        MMAP_ARGUMENT = 5,
        /// Shift of the kind in an mmap offset.
        MMAP_KIND_SHIFT = 48,
        /// Shift of the handle in an mmap offset.
        MMAP_HANDLE_SHIFT = 32,
        /// mmap kind: a queue of this file: its control page, then its arena.
        MMAP_QUEUE = 6,
        /// mmap kind: the enqueue aperture of an imported queue, write-only; a store to its first word is the enqueue.
        MMAP_ENQUEUE = 7,
        /// mmap kind: the copy of a replicated segment, read-only.
        MMAP_REPLICA = 8,
        /// mmap kind: the window on a replicated segment's own copy: stores go to all copies.
        MMAP_REPLICA_WINDOW = 9,
        /// Kind of registrations, which cannot be mapped: the process has the memory.
        MMAP_REGISTRATION = 10,
        /// A flag of TG_IOCTL_IMPORT: when the import is gone for good, stores by its windows go nowhere, and loads
        /// return anything, instead of SIGBUS.
        IMPORT_SOFT = 1,
        /// A flag of TG_IOCTL_INFO: from now on the same is true of the context page, the status page and the exports
        /// of this file, when the board is gone.
        INFO_SOFT = 1,
        /// A flag of TG_IOCTL_REGISTER, with a name: importers reach the memory only while its gate is open to their
        /// node (TG_OP_GATE), which it is not at first.
        REGISTER_GATED = 1,
        /// A flag of TG_IOCTL_EXPORT, TG_IOCTL_IMPORT and TG_IOCTL_REGISTER: what has this name belongs to the TCP
        /// connection whose descriptor is in `connection`. The name is 1 to 8 small letters, and the object is known by
        /// the ends of the connection and these. Only holders of one end export it, and only holders
        /// of the other end import it. EBADF or ENOTSOCK for the descriptor, ENOTCONN if that is not a connected socket
        /// of IPv4 in the first network namespace.
        NAME_OF_CONNECTION = 0x10,
        /// tg_replica.home: make the segment, with this node as its home.
        REPLICA_HERE = 0xffff_ffff,
        /// tg_import_state.state: stores wait, processes block in page faults.
        STATE_CONGESTED = 1,
        /// tg_import_state.state: a store was lost; acknowledge to continue.
        STATE_CUT = 2,
        /// tg_import_state.state: gone for good (revoked, node down or reset, device gone); import again.
        STATE_DEAD = 4,
        /// tg_import_state.state: loads and stores go to the owner's memory without the boards.
        STATE_DIRECT = 8,
        /// tg_launch.style: the kernel does everything (the baseline).
        STYLE_PLAIN = 0,
        /// tg_launch.style: Telegraphos I special mode; the kernel touches the caller's window mappings (SPEC item 19).
        STYLE_SPECIAL = 1,
    }
}

/// Adds the fields that a structure of an ioctl begins with: of each, or of those that name a segment or a queue.
macro_rules! ioctl_struct {
    (call $($rest:tt)*) => {
        c_struct! {
            NATIVE {
                /// Bytes of this structure in the caller's version of it.
                pub size: u32,
                /// Flags that the ioctl has; most have none.
                pub flags: u32,
            }
            $($rest)*
        }
    };
    (named $($rest:tt)*) => {
        c_struct! {
            NATIVE {
                /// Bytes of this structure in the caller's version of it.
                pub size: u32,
                /// Flags that the ioctl has; most have none.
                pub flags: u32,
                /// Name, NUL-padded, 1 to 63 bytes.
                pub name: [u8; 64],
                /// Secret that an importer must present; zeros for none.
                pub secret: [u8; 16],
            }
            $($rest)*
        }
    };
}

c_structs! {
    /// The structures of the ioctls.
    pub STRUCTS, ioctl_struct;

    /// What the board and the driver are (TG_IOCTL_INFO).
    call pub struct Info as "tg_info" {
        /// ABI_VERSION.
        pub abi: u32,
        /// This node's id.
        pub node: u32,
        /// Number of nodes the window can address.
        pub nodes: u32,
        /// log2 of the import and export unit.
        pub unit_shift: u32,
        /// Window bytes per node.
        pub window_size: u64,
        /// The board's incarnation.
        pub incarnation: u32,
        /// 1 while the link to the fabric is up.
        pub link_up: u32,
        /// The context number of this file.
        pub context: u32,
        /// Number of page access counters of the board.
        pub counters: u32,
        /// The key of this file's context, 48 random bits.
        pub key: u64,
        /// Name of this node's trust group, NUL-padded; zeros if it is in none.
        pub group: [u8; 64],
    }

    /// Export zeroed driver-allocated memory under a name (TG_IOCTL_EXPORT).
    named pub struct Export as "tg_export" {
        /// In: bytes, 1 to the window size per node.
        pub length: u64,
        /// Nodes admitted, one bit each; all ones admits every node.
        pub nodes: [u64; 4],
        /// TG_RIGHT_* for processes of the same uid.
        pub rights_owner: u16,
        /// TG_RIGHT_* for others.
        pub rights_others: u16,
        /// Out: handle.
        pub handle: u32,
        /// Out: mmap offset of the memory.
        pub offset: u64,
        /// Name of the trust group whose nodes access it directly, NUL-padded; zeros for none. EXDEV if this node is
        /// not in it.
        pub group: [u8; 64],
        /// Out: 1 + the export page of its first unit, for WORD_ARM; 0 if its board watches no words of it. In: 0.
        pub page: u32,
        /// In: the descriptor of TG_NAME_OF_CONNECTION; else 0.
        pub connection: i32,
    }

    /// Import a named segment of a node (TG_IOCTL_IMPORT). Blocks, killably, until that node's HIB has answered.
    named pub struct Import as "tg_import" {
        /// Node id.
        pub node: u32,
        /// TG_RIGHT_* wanted; all must be granted.
        pub rights: u32,
        /// Out: bytes.
        pub length: u64,
        /// Out: handle, the import number.
        pub handle: u32,
        /// Out: on failure with EREMOTEIO, the TG_ERR_* status.
        pub status: u32,
        /// Out: mmap offset of the window; 0 if it has none, because it is longer than the window of its node: launches
        /// name it by its number.
        pub offset: u64,
        /// Out: bytes of a queue's word; 0 if it is not a queue.
        pub width: u32,
        /// In: the descriptor of TG_NAME_OF_CONNECTION; else 0.
        pub connection: i32,
    }

    /// A handle (TG_IOCTL_UNEXPORT, TG_IOCTL_UNIMPORT, TG_IOCTL_ACK).
    call pub struct Handle as "tg_handle" {
        /// The handle.
        pub handle: u32,
    }

    /// State of an import (TG_IOCTL_STATE).
    call pub struct ImportState as "tg_import_state" {
        /// In: the import's handle.
        pub handle: u32,
        /// Out: TG_STATE_* bits.
        pub state: u32,
        /// Out: latched TG_ERR_* status, 0 if none.
        pub status: u32,
    }

    /// Run an atomic or a copy from the kernel (TG_IOCTL_LAUNCH, of telegraphos_lab.ko). Blocks, killably, until it is
    /// done.
    call pub struct Launch as "tg_launch" {
        /// TG_STYLE_*.
        pub style: u32,
        /// TG_OP_* in bits 7:0, TG_LAUNCH_WIDE in bit 8.
        pub operation: u32,
        /// STYLE_PLAIN: import handle of the target of an atomic, or of the destination of a copy.
        pub target: u32,
        /// STYLE_PLAIN: import handle of the source of a copy.
        pub source: u32,
        /// STYLE_PLAIN: bytes from the start of the target's segment. STYLE_SPECIAL: address in the caller's mapping of
        /// an import.
        pub target_address: u64,
        /// The same for the source of a copy.
        pub source_address: u64,
        /// Bytes to copy.
        pub length: u64,
        /// Operand of an atomic.
        pub operand: u64,
        /// Value a compare-and-swap compares with.
        pub compare: u64,
        /// Out: previous value of an atomic.
        pub value: u64,
        /// Out: on failure with EREMOTEIO, the TG_ERR_* status.
        pub status: u32,
        /// STYLE_SPECIAL: slot of the context to use, free in the caller's view.
        pub slot: u32,
    }

    /// Page access counters (SPEC item 22): TG_IOCTL_COUNTER_ARM, _READ and _DISARM.
    call pub struct Counter as "tg_counter" {
        /// Import handle (ARM).
        pub handle: u32,
        /// Unit of the import, from 0 (ARM).
        pub page: u32,
        /// The counter: out of ARM, into READ and DISARM.
        pub counter: u32,
        /// ARM: eventfd signalled, once each, when reads or writes go from 1 to 0; -1 for none.
        pub eventfd: i32,
        /// ARM: reads to count down, 0 for none. READ: those left.
        pub reads: u64,
        /// ARM: writes to count down, 0 for none. READ: those left.
        pub writes: u64,
        /// READ: TG_COUNTER_* bits of the counters that went to 0 since ARM.
        pub fired: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// An eventfd to signal at each CONTEXT event of this file (TG_IOCTL_NOTIFY).
    call pub struct Notify as "tg_notify" {
        /// The eventfd, or -1 to stop.
        pub eventfd: i32,
    }

    /// Sleep until there are CONTEXT events of this file (TG_IOCTL_WAIT): one call instead of poll() and read().
    call pub struct Wait as "tg_wait" {
        /// Longest time to sleep in microseconds: from 20 ms on it ends with a tick of the kernel's, and after an hour
        /// at the latest.
        pub timeout: u64,
        /// Out: number of events since the last call, or the last read(); 0 if the time has passed, or another waiter
        /// has got them.
        pub events: u64,
    }

    /// Make a queue under a name (TG_IOCTL_QUEUE_CREATE), or describe a queue of this file (TG_IOCTL_QUEUE_ATTACH,
    /// in: `handle`; the secret is not returned).
    named pub struct Queue as "tg_queue" {
        /// Nodes admitted, one bit each; all ones admits every node.
        pub nodes: [u64; 4],
        /// Words of a buffer: a power of two from 8 on, at most 64 KiB in all.
        pub words: u32,
        /// Bytes of a word: 4 or 8.
        pub width: u32,
        /// Buffers that may be linked behind the first: 1 to TG_QUEUE_QUOTA_MAX.
        pub quota: u32,
        /// Number of linked buffers at which the consumers get a limit event, 1 to `quota`; 0 for none.
        pub limit: u32,
        /// TG_RIGHT_ENQUEUE or 0, for processes of the same uid.
        pub rights_owner: u16,
        /// TG_RIGHT_ENQUEUE or 0, for others.
        pub rights_others: u16,
        /// Out: handle. In for ATTACH.
        pub handle: u32,
        /// Out: export page, for QUEUE_ARM.
        pub page: u32,
        /// Out: the caller's owner number, for tg_queue_control.state. It belongs to the process until its last mapping
        /// of the queue goes, which clears a BUSY that it left.
        pub owner: u32,
        /// Out: mmap offset of the control page; the arena follows at `arena` bytes behind.
        pub offset: u64,
        /// Out: bytes from the control page to the arena.
        pub arena: u64,
        /// Out: bytes of the whole mapping.
        pub length: u64,
    }

    /// State of a queue (TG_IOCTL_QUEUE_STATE).
    call pub struct QueueState as "tg_queue_state" {
        /// In: the queue's handle.
        pub handle: u32,
        /// Out: TG_QUEUE_* bits.
        pub state: u32,
        /// Out: why it is dead, TG_ERR_*; 0 if it is not.
        pub status: u32,
        /// Out: linked buffers.
        pub linked: u32,
        /// Out: overflows handled.
        pub overflows: u64,
        /// Out: times a consumer held BUSY too long and lost its mapping.
        pub evictions: u64,
    }

    /// Dequeue in the kernel (TG_IOCTL_QUEUE_POP, of telegraphos_lab.ko), as the paper's PAL code did: the baseline.
    /// EAGAIN if the queue is empty.
    call pub struct QueuePop as "tg_queue_pop" {
        /// In: the queue's handle.
        pub handle: u32,
        /// Zero.
        pub reserved: u32,
        /// Out: the element.
        pub value: u64,
    }

    /// Make or join a replicated segment (TG_IOCTL_REPLICATE). Joining blocks, killably, until the copy is filled.
    named pub struct Replica as "tg_replica" {
        /// Nodes admitted, one bit each; all ones admits every node.
        pub nodes: [u64; 4],
        /// In: bytes, when it is made; out: bytes.
        pub length: u64,
        /// TG_REPLICA_HERE to make it, else the home node to join it at.
        pub home: u32,
        /// TG_REPLICA_NAIVE, _OWNER, _COUNTERS or _INVALIDATE; joiners ask for the same.
        pub mode: u32,
        /// TG_RIGHT_READ, TG_RIGHT_WRITE, TG_RIGHT_ATOMIC for processes of the same uid.
        pub rights_owner: u16,
        /// The same for others.
        pub rights_others: u16,
        /// Out: handle.
        pub handle: u32,
        /// Out: mmap offset of the copy.
        pub offset: u64,
        /// Out: mmap offset of the window on it.
        pub window: u64,
        /// Out: import number of the window, for quiet and launches.
        pub import: u32,
        /// Out: index into tg_status_page.taken.
        pub taken: u32,
        /// Out: on failure with EREMOTEIO, the TG_ERR_* status.
        pub status: u32,
        /// Out: 1 + the export page of its first unit, for WORD_ARM; 0 if its board watches no words of it. In: 0.
        pub page: u32,
    }

    /// Register memory that the process has (TG_IOCTL_REGISTER): as source and target of copies, and, if it has a name,
    /// for other nodes. It is pinned until the registration ends, and charged to RLIMIT_MEMLOCK.
    call pub struct Register as "tg_register" {
        /// Address of its first byte, of any alignment.
        pub address: u64,
        /// Bytes, 1 to 16 GiB.
        pub length: u64,
        /// Name under which it is exported, NUL-padded; zeros for none.
        pub name: [u8; 64],
        /// Secret that an importer must present; zeros for none.
        pub secret: [u8; 16],
        /// Nodes admitted if it has a name, one bit each; all ones admits every node. This node is admitted always.
        pub nodes: [u64; 4],
        /// TG_RIGHT_* for processes of the same uid.
        pub rights_owner: u16,
        /// TG_RIGHT_* for others.
        pub rights_others: u16,
        /// Out: handle.
        pub handle: u32,
        /// Out: number of its import at this node, for launches.
        pub import: u32,
        /// Out: number of its runs, which are adjacent for the board.
        pub runs: u32,
        /// Out, also after EFAULT: address of the first page that could not be pinned, 0 if that was not it.
        pub fault: u64,
        /// In: the descriptor of TG_NAME_OF_CONNECTION; else 0.
        pub connection: i32,
        /// Zero.
        pub reserved: u32,
    }

    /// State of a registration (TG_IOCTL_REGISTRATION_STATE).
    call pub struct RegistrationState as "tg_registration_state" {
        /// In: its handle.
        pub handle: u32,
        /// Out: 1 if the memory is no longer there, or is another; else 0.
        pub dead: u32,
    }

    /// State of a replicated segment (TG_IOCTL_REPLICA_STATE).
    call pub struct ReplicaState as "tg_replica_state" {
        /// In: handle.
        pub handle: u32,
        /// Out: the home node, TG_REPLICA_HERE if it is this one.
        pub home: u32,
        /// Out: 0, or why it is an orphan, TG_ERR_*.
        pub status: u32,
    }
}

/// Direction in which the structure of an ioctl is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// To the driver (`_IOW`).
    In,
    /// To the driver and back (`_IOWR`).
    InOut,
}

impl Direction {
    /// The macro that makes the request number in C.
    pub const fn c_macro(self) -> &'static str {
        match self {
            Direction::In => "_IOW",
            Direction::InOut => "_IOWR",
        }
    }

    const fn bits(self) -> u32 {
        match self {
            Direction::In => 1,
            Direction::InOut => 3,
        }
    }
}

/// An ioctl.
#[derive(Clone, Copy, Debug)]
pub struct Ioctl {
    /// Its name in C.
    pub name: &'static str,
    /// Its number.
    pub number: u8,
    /// Direction in which its structure is copied.
    pub direction: Direction,
    /// Its structure.
    pub structure: &'static crate::CStruct,
    /// What it does.
    pub doc: &'static str,
}

impl Ioctl {
    /// Its request number.
    pub const fn request(&self) -> u32 {
        request(self.direction, self.number, self.structure.size)
    }
}

macro_rules! ioctls {
    ($( $name:ident = $number:literal, $direction:ident $type:ident, $doc:literal; )*) => {
        /// Every ioctl, by number.
        pub const IOCTLS: &[Ioctl] = &[ $( Ioctl {
            name: concat!("TG_IOCTL_", stringify!($name)),
            number: $number,
            direction: Direction::$direction,
            structure: &$type::C,
            doc: $doc,
        }, )* ];
    };
}

ioctls! {
    INFO = 0, InOut Info, "What the board and the driver are.";
    EXPORT = 1, InOut Export, "Export memory under a name.";
    UNEXPORT = 2, In Handle, "Withdraw an export; returns when nothing can reach it.";
    IMPORT = 3, InOut Import, "Import a named segment.";
    UNIMPORT = 4, In Handle, "Close an import; waits for its outstanding stores.";
    STATE = 5, InOut ImportState, "State and latched error of an import.";
    ACK = 6, In Handle, "Acknowledge an import's latched error and lift its cut.";
    COUNTER_ARM = 8, InOut Counter, "Arm access counters for a page of an import.";
    COUNTER_READ = 9, InOut Counter, "Read access counters.";
    COUNTER_DISARM = 10, In Counter, "Disarm access counters.";
    NOTIFY = 11, In Notify, "Signal an eventfd when an armed or notifying operation is done.";
    QUEUE_CREATE = 12, InOut Queue, "Make a queue under a name.";
    QUEUE_ATTACH = 13, InOut Queue, "Describe a queue of this file, for a process that did not make it.";
    QUEUE_DESTROY = 14, In Handle, "End a queue; its senders' imports are gone.";
    QUEUE_SERVICE = 15, In Handle, "Handle a queue's overflow if there is one; returns when TG_QUEUE_FULL is clear.";
    QUEUE_STATE = 16, InOut QueueState, "State of a queue.";
    WAIT = 17, InOut Wait, "Sleep until an armed or notifying operation is done.";
    REPLICATE = 18, InOut Replica, "Make or join a replicated segment.";
    REPLICA_LEAVE = 19, In Handle, "Leave a replicated segment; the copies of a home become orphans.";
    REPLICA_STATE = 20, InOut ReplicaState, "State of a replicated segment.";
    REPLICA_ADOPT = 21, In Handle, "Become the home of an orphan: this copy is the valid one, under the same name.";
    REPLICA_MOVE = 22, In Handle, "Become the home while stores continue; the old one becomes a copy. Blocks killably.";
    REGISTER = 23, InOut Register, "Register memory of the process.";
    UNREGISTER = 24, In Handle, "End a registration; returns when nothing can reach the memory.";
    REGISTRATION_STATE = 25, InOut RegistrationState, "Whether the memory of a registration is still there.";
    LAUNCH = 0x20, InOut Launch, "Run an atomic or a copy from the kernel (telegraphos_lab.ko).";
    QUEUE_POP = 0x21, InOut QueuePop, "Dequeue in the kernel (telegraphos_lab.ko).";
}

/// The request number of an ioctl whose structure has `size` bytes (`_IOW(type, number, struct)` or `_IOWR` on every
/// architecture Debian runs this on except mips, powerpc and sparc).
pub const fn request(direction: Direction, number: u8, size: usize) -> u32 {
    direction.bits() << 30 | (size as u32) << 16 | (IOCTL_TYPE as u32) << 8 | number as u32
}

/// The mmap offset of `kind` and `handle`.
pub const fn mmap_offset(kind: u64, handle: u32) -> u64 {
    kind << MMAP_KIND_SHIFT | (handle as u64) << MMAP_HANDLE_SHIFT
}
