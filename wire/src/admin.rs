// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admin commands, by which the driver fills the board's tables.
//!
//! The driver owns [`SLOTS`] blocks of [`BLOCK_SIZE`] bytes in guest memory (`ADMIN_BASE`). It fills the
//! [`Command`] of a free slot, writes the slot's number to `ADMIN_DOORBELL`, and waits for the slot's
//! [`Completion`]: the HIB writes the result words first and the word `{seq, status}` last, then posts
//! `ADMIN_DONE(slot)`. Commands start in doorbell order; a command that must wait (a lookup at another node, the
//! release of pages with operations in flight) completes later without holding up the others.

use crate::Status;

/// Longest segment name in bytes; names are NUL-padded to 64.
pub const NAME_MAX: usize = 63;

c_consts! {
    /// Admin slots for the C header.
    pub SIZES: usize, prefix "TG_ADMIN_" {
        /// Number of slots: enough that each context has one of its own for each class of commands that wait for
        /// another node, so that no process's commands wait for another's.
        SLOTS = 1024,
        /// Bytes per slot: the command, then the completion.
        BLOCK_SIZE = 256,
        /// Offset of the completion in a slot.
        COMPLETION_OFFSET as "COMPLETION" = 192,
    }
}

c_consts! {
    /// Opcodes and limits for the C header.
    pub ALL: u32, prefix "TG_ADMIN_" {
        /// Open `context` with the status page at DMA address `address` (4 KiB, zeroed by the driver) and `key`.
        CONTEXT_OPEN = 1,
        /// Close `context`; TG_ERR_BUSY while one of its imports is open.
        CONTEXT_CLOSE = 2,
        /// Grant `count` export pages from `index`: DMA address `address` (contiguous), `length` valid bytes, `rights`,
        /// `nodes`; `context` may watch them (WORD_ARM). `generation` 0 requests a new generation, else it continues
        /// that of page `index` - 1. Completes with the generation.
        GRANT_SET = 3,
        /// Revoke `count` export pages from `index`. Completes when no access to them is in flight.
        GRANT_CLEAR = 4,
        /// Publish export pages `index`..`index` + `count` (`length` bytes, `generation`) under `name` with
        /// `rights_owner`, `rights_others`, `uid` and `secret`.
        SEGMENT_PUBLISH = 5,
        /// Withdraw `name`. Its grants stay until GRANT_CLEAR.
        SEGMENT_WITHDRAW = 6,
        /// Look up `name` at `node` (`secret`, `uid`, wanted `rights`). Completes with index, count, length,
        /// generation, rights and, for a queue, width.
        LOOKUP = 7,
        /// Open `import` of `context`: window slots `index`..`index` + `count` of `node` reach export pages `page`.. of
        /// `generation`, `length` bytes, with `rights`. With TG_RIGHT_ENQUEUE, which excludes the others, it first
        /// reserves receive credits at that node. With `count` 0 it has no window: launches name it by its number
        /// (TG_CONTEXT_ARGUMENT), whatever its length.
        IMPORT_SET = 8,
        /// Close `import`: its slots are unmapped at once; completes when nothing of it is outstanding and the count of
        /// its stores taken is in memory.
        IMPORT_CLEAR = 9,
        /// Acknowledge the latched error of `import` and lift its cut.
        IMPORT_ACK = 10,
        /// A whole operation from the kernel (struct tg_admin_launch). Completes when it is done; an atomic's previous
        /// value is in `length`.
        LAUNCH = 11,
        /// Arm page access counter `index` for export page `page` of `node` (struct tg_admin_counter); both at 0 disarm
        /// it.
        COUNTER_SET = 12,
        /// Read counter `index`: completes with the reads left in `generation`, the writes left in `length`.
        COUNTER_GET = 13,
        /// Make export page `page` a queue (struct tg_admin_queue), empty: words 0 and 1 of its buffer hold size and 3.
        /// Completes with the generation. It is published by SEGMENT_PUBLISH with TG_RIGHT_ENQUEUE and revoked by
        /// GRANT_CLEAR, which refuses the elements held.
        QUEUE_SET = 14,
        /// The overflow of the queue at export page `index` has been handled: the committed words are elsewhere and
        /// head is 3. The board puts the pending element at 3 and continues. TG_ERR_INVALID if the queue is not
        /// stopped.
        QUEUE_RESUME = 15,
        /// Make granted export page `page` a replicated page (struct tg_admin_replica): the home if `node` is this
        /// node, else a copy of that node's `home_page`; a page that is replicated already is changed. Completes when
        /// the copy is filled.
        REPLICA_SET = 16,
        /// End the replication of export page `index`: a copy leaves its home once its own stores are acknowledged; the
        /// copies of a home are orphaned.
        REPLICA_CLEAR = 17,
        /// Make this node the home of its copy, export page `index`. Completes when it is; the old home is a copy then.
        /// TG_ERR_NOT_HOME if the page is no filled copy of a present home.
        REPLICA_MOVE = 18,
        /// Acknowledge that no processor of this node has export page `index`, an invalid copy, mapped any more: the
        /// store that made it invalid may complete. Another REPLICA_SET makes the copy valid again.
        REPLICA_INVALID = 19,
        /// Import quiet: completes when no store or operation of an import is unfinished. In: import. What is begun
        /// meanwhile is waited for, too: the driver has taken the import's pages away.
        IMPORT_QUIET = 20,
        /// Grant a range (TG_RANGE_*), whose first export page is `index`: the next `count` runs of its `page` in all,
        /// in a list of struct tg_range_run at DMA address `address`, `rights`, `nodes`, `context`. `generation` 0
        /// begins it, else it continues the range of that generation. Completes with the generation when the list is
        /// read; what its runs cover can be accessed then. TG_ERR_NO_SPACE: the context's runs, or the board's, are
        /// used up. GRANT_CLEAR with its first page revokes all of it.
        GRANT_RANGE = 21,
        /// The same behind a gate (TG_OP_GATE), which is closed at first. The generation that it completes with is for
        /// imports of this node by its context alone. Imports by a name get the next one, with which an access is
        /// performed only while the gate is open to its node.
        GRANT_GATED = 22,
    }
}

c_consts! {
    /// Modes of a replicated page for the C header.
    pub MODES: u32, prefix "TG_REPLICA_" {
        /// Stores are applied where they are made and sent to all copies by their writer; copies diverge when stores
        /// are concurrent (SPEC item 24).
        NAIVE = 1,
        /// Stores go through the home, which multicasts them; a copy applies everything that comes back, so a program
        /// may see its own older store again.
        OWNER = 2,
        /// The same, with counters of pending writes (SPEC item 25): no program sees values out of order.
        COUNTERS = 3,
        /// Stores go to the home alone; those copies that are valid become invalid, and are filled again when a
        /// processor reads them (SPEC item 28).
        INVALIDATE = 4,
    }
}

/// Adds the fields that each command begins with, and checks its size; a completion has no such group.
macro_rules! admin_struct {
    (command $(#[doc = $doc:literal])* pub struct $name:ident $($rest:tt)*) => {
        c_struct! {
            LITTLE {
                /// TG_ADMIN_*.
                pub opcode: u32,
                /// Returned in the completion; never 0, and different from the slot's previous one.
                pub seq: u32,
            }
            $(#[doc = $doc])* pub struct $name $($rest)*
        }
        const _: () = assert!(size_of::<$name>() == COMPLETION_OFFSET);
    };
    (completion $($rest:tt)*) => {
        c_struct! { LITTLE {} $($rest)* }
    };
}

c_structs! {
    /// The structures of the admin slots.
    pub STRUCTS, admin_struct;

    /// An admin command; the fields an opcode does not name must be zero.
    command pub struct Command as "tg_admin_command" {
        /// Node id.
        pub node: u16,
        /// Context number.
        pub context: u16,
        /// Import number.
        pub import: u16,
        /// TG_RIGHT_* bits.
        pub rights: u16,
        /// Rights offered to processes of the owner's uid.
        pub rights_owner: u16,
        /// Rights offered to other processes.
        pub rights_others: u16,
        /// User id: the exporter's, or the caller's in a lookup.
        pub uid: u32,
        /// First window slot or first export page.
        pub index: u32,
        /// Number of units.
        pub count: u32,
        /// First export page at the remote node.
        pub page: u32,
        /// Of an import of this node's own replicated pages: 1 + the word of the status page that counts its stores
        /// taken; 0 for none.
        pub taken: u32,
        /// Grant generation.
        pub generation: u64,
        /// DMA address.
        pub address: u64,
        /// Bytes.
        pub length: u64,
        /// Nodes a grant admits, one bit each; all ones admits every node.
        pub nodes: [u64; 4],
        /// Segment secret; zeros for none.
        pub secret: [u8; 16],
        /// Segment name, NUL-padded.
        pub name: [u8; 64],
        /// The context's key, 48 random bits.
        pub key: u64,
        /// Zero.
        pub reserved2: u64,
    }

    /// The command of TG_ADMIN_LAUNCH, in place of struct tg_admin_command.
    command pub struct LaunchCommand as "tg_admin_launch" {
        /// The context of the imports.
        pub context: u16,
        /// Import of the target of an atomic or the destination of a copy.
        pub target: u16,
        /// Import of the source of a copy.
        pub source: u16,
        /// TG_OP_* in bits 7:0, TG_LAUNCH_WIDE in bit 8.
        pub operation: u16,
        /// Bytes from the start of the target's segment.
        pub target_offset: u64,
        /// Bytes from the start of the source's segment.
        pub source_offset: u64,
        /// Bytes to copy.
        pub length: u64,
        /// Operand of an atomic.
        pub operand: u64,
        /// Value a compare-and-swap compares with.
        pub compare: u64,
        /// Zero.
        pub reserved: [u64; 17],
    }

    /// The command of TG_ADMIN_COUNTER_SET and TG_ADMIN_COUNTER_GET, in place of struct tg_admin_command.
    command pub struct CounterCommand as "tg_admin_counter" {
        /// The counter.
        pub index: u32,
        /// The node of the page.
        pub node: u32,
        /// Export page of that node.
        pub page: u32,
        /// Zero.
        pub reserved: u32,
        /// Reads to count down; 0 counts none.
        pub reads: u64,
        /// Writes, atomics included, to count down; 0 counts none.
        pub writes: u64,
        /// Zero.
        pub reserved2: [u64; 19],
    }

    /// The command of TG_ADMIN_QUEUE_SET, in place of struct tg_admin_command.
    command pub struct QueueCommand as "tg_admin_queue" {
        /// Export page.
        pub page: u32,
        /// Words of a buffer.
        pub words: u32,
        /// Bytes of a word: 4 or 8.
        pub width: u32,
        /// The context that may arm it.
        pub context: u32,
        /// DMA address of its first buffer, aligned to the buffer's size.
        pub address: u64,
        /// Nodes admitted, one bit each; all ones admits every node.
        pub nodes: [u64; 4],
        /// Zero.
        pub reserved: [u64; 16],
    }

    /// The command of TG_ADMIN_REPLICA_SET, in place of struct tg_admin_command.
    command pub struct ReplicaCommand as "tg_admin_replica" {
        /// Export page of this node.
        pub page: u32,
        /// TG_REPLICA_*: the mode.
        pub mode: u32,
        /// Home node.
        pub node: u32,
        /// Export page there.
        pub home_page: u32,
        /// Generation of its grant there.
        pub home_generation: u64,
        /// Zero.
        pub reserved: [u64; 20],
    }

    /// The completion of an admin command. `{seq, status}` is one 8-byte word, written last with release ordering.
    completion pub struct Completion as "tg_admin_completion" {
        /// The command's `seq`.
        pub seq: u32,
        /// TG_OK or TG_ERR_*.
        pub status: u32,
        /// First export page.
        pub index: u32,
        /// Number of units.
        pub count: u32,
        /// Grant generation.
        pub generation: u64,
        /// Bytes.
        pub length: u64,
        /// TG_RIGHT_* bits granted.
        pub rights: u32,
        /// Bytes of a queue's word; 0 if it is not a queue.
        pub width: u32,
        /// Zero.
        pub reserved2: [u64; 3],
    }
}

/// Reads the bytes of a [`Command`] as the structure that its opcode says, and back.
macro_rules! command_views {
    ($($(#[$doc:meta])* $method:ident: $view:ident;)*) => {
        impl Command {
            $($(#[$doc])*
            pub fn $method(&self) -> $view {
                bytemuck::cast(*self)
            })*
        }

        $(impl From<$view> for Command {
            fn from(view: $view) -> Command {
                bytemuck::cast(view)
            }
        })*
    };
}

command_views! {
    /// The same bytes as the command of [`LAUNCH`].
    launch: LaunchCommand;
    /// The same bytes as the command of [`COUNTER_SET`] or [`COUNTER_GET`].
    counter: CounterCommand;
    /// The same bytes as the command of [`REPLICA_SET`].
    replica: ReplicaCommand;
    /// The same bytes as the command of [`QUEUE_SET`].
    queue: QueueCommand;
}

const _: () = assert!(COMPLETION_OFFSET + size_of::<Completion>() == BLOCK_SIZE);

impl Completion {
    /// A completion that carries only a status.
    pub fn of(seq: u32, status: Status) -> Completion {
        Completion { seq, status: status as u32, ..Completion::default() }
    }
}
