// SPDX-License-Identifier: MIT OR Apache-2.0
//! The event queue in guest memory: a ring of 16-byte entries and one interrupt vector.
//!
//! Entry n (running count from 0) lives at index n mod size. The HIB writes `value` first, then the word
//! `{kind, index, seq}` with `seq` = n + 1 (release); an entry is new exactly if its `seq` is the one the driver
//! expects. The HIB posts only while fewer than `size` entries are unconsumed (`EVENT_CONSUMER`); a cause that finds
//! the queue full stays as a pending bit and is posted, with the value of that later time, when space appears: nothing
//! is lost. An interrupt is raised when an entry is posted into an empty queue, and again when the driver writes
//! `EVENT_CONSUMER` while entries are left.

c_consts! {
    /// Event kinds for the C header.
    pub ALL: u16, prefix "TG_EVENT_" {
        /// Admin slot `index` has completed.
        ADMIN_DONE = 1,
        /// State of import `index` changed; value = TG_IMPORT_* bits, status code in bits 31:16.
        IMPORT_STATE = 2,
        /// Node `index` came or went; value = its incarnation, 0 = down.
        NODE_STATE = 3,
        /// The link to the fabric changed; value = 1 up, 0 down.
        LINK_STATE = 4,
        /// ERROR holds a new error; value = the ERROR register.
        ERROR = 5,
        /// Context `index`: an armed or notifying operation is done.
        CONTEXT = 6,
        /// Page access counter `index` went from 1 to 0; value = TG_COUNTER_READS or TG_COUNTER_WRITES or both.
        COUNTER = 7,
        /// A queue needs its driver; value = `export page << 32 | status << 16 | TG_QUEUE_EVENT_* bits`.
        QUEUE = 8,
        /// A replicated page has changed its state; `index` = its home, value =
        /// `export page << 32 | status << 16 | TG_REPLICA_EVENT_* bits`.
        REPLICA = 9,
        /// State of context `index` changed; value = TG_CONTEXT_CONGESTED or 0.
        CONTEXT_STATE = 10,
    }
}

/// IMPORT_STATE: stores of this import wait; the driver must stop its processes.
pub const IMPORT_CONGESTED: u64 = 1;
/// IMPORT_STATE: a store of this import was lost; later ones are dropped until IMPORT_ACK.
pub const IMPORT_CUT: u64 = 2;

/// CONTEXT_STATE: stores to this context's page, or what it has launched, wait; the driver must stop its processes.
pub const CONTEXT_CONGESTED: u64 = 1;

/// COUNTER: the reads counter went to 0.
pub const COUNTER_READS: u64 = 1;
/// COUNTER: the writes counter went to 0.
pub const COUNTER_WRITES: u64 = 2;

/// QUEUE: it has overflowed; the board holds the pending element and takes no other until QUEUE_RESUME.
pub const QUEUE_OVERFLOW: u64 = 1;
/// QUEUE: its header was not sound; every enqueue to it is refused from now on.
pub const QUEUE_BROKEN: u64 = 2;

/// REPLICA: its home has gone or does not serve it any more; the copies may differ.
pub const REPLICA_ORPHANED: u64 = 1;
/// REPLICA: it has had another home; `index` is the present one.
pub const REPLICA_MOVED: u64 = 2;
/// REPLICA: the copy is not valid any more (TG_REPLICA_INVALIDATE); the driver unmaps it and says so by
/// REPLICA_INVALID.
pub const REPLICA_INVALID: u64 = 4;

c_struct! {
    /// One event queue entry.
    pub struct Entry as "tg_event" {
        /// Depends on `kind`.
        pub value: u64 = "__le64",
        /// TG_EVENT_*.
        pub kind: u16 = "__le16",
        /// What it happened to.
        pub index: u16 = "__le16",
        /// Running count from 1.
        pub seq: u32 = "__le32",
    }
}
