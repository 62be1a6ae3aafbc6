// SPDX-License-Identifier: MIT OR Apache-2.0
//! The event queue in guest memory: a ring of 16-byte entries and one interrupt vector.
//!
//! Entry n (running count from 0) is at index n mod size. The HIB writes `value` first, then the word
//! `{kind, index, seq}` with `seq` = n + 1 (release); an entry is new exactly if its `seq` is the one the driver
//! expects. The HIB posts only while fewer than `size` entries are unconsumed (`EVENT_CONSUMER`); a cause that finds
//! the queue full stays as a pending bit and is posted, with the value of that later time, when space appears: nothing
//! is lost. An interrupt is raised when an entry is posted into an empty queue, and again when the driver writes
//! `EVENT_CONSUMER` while entries are left.
//!
//! With `EVENT_INDEX` the driver counts in a word of its memory instead, without a register write for each wake-up. The
//! HIB reads the word after it has stored an entry, with an atomic access, and raises the interrupt if the queue was
//! empty before; the driver looks for entries once more after it has stored the word. So one of the two sees the other.

c_consts! {
    /// Sizes of the event queue for the C header.
    pub SIZES: u32, prefix "TG_EVENTS_" {
        /// Fewest entries of the queue: a power of two.
        EVENTS_MIN as "MIN" = 4,
        /// Most entries of the queue.
        EVENTS_MAX as "MAX" = 65536,
    }
}

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
        /// The memory of this node's trust group is not as it was: a member has changed the tables of its slice, or the
        /// register OBSERVED of the memory device has changed. The driver looks at both.
        DIRECT = 11,
    }
}

c_consts! {
    /// Bits of IMPORT_STATE for the C header.
    pub IMPORT_BITS: u64, prefix "TG_IMPORT_" {
        /// Stores of this import wait; the driver must stop its processes.
        IMPORT_CONGESTED as "CONGESTED" = 1,
        /// A store of this import was lost; later ones are dropped until IMPORT_ACK.
        IMPORT_CUT as "CUT" = 2,
    }
}

c_consts! {
    /// Bits of CONTEXT_STATE for the C header.
    pub CONTEXT_BITS: u64, prefix "TG_CONTEXT_" {
        /// Stores to this context's page, or what it has launched, wait; the driver must stop its processes.
        CONTEXT_CONGESTED as "CONGESTED" = 1,
    }
}

c_consts! {
    /// Bits of COUNTER for the C header.
    pub COUNTER_BITS: u64, prefix "TG_COUNTER_" {
        /// The reads counter went to 0
        COUNTER_READS as "READS" = 1,
        /// The writes counter went to 0
        COUNTER_WRITES as "WRITES" = 2,
    }
}

c_consts! {
    /// Bits of QUEUE for the C header.
    pub QUEUE_BITS: u64, prefix "TG_QUEUE_EVENT_" {
        /// The queue has overflowed; the board holds the pending element and takes no other until QUEUE_RESUME.
        QUEUE_OVERFLOW as "OVERFLOW" = 1,
        /// The queue's header was not sound; every enqueue to it is refused from now on.
        QUEUE_BROKEN as "BROKEN" = 2,
    }
}

c_consts! {
    /// Bits of REPLICA for the C header.
    pub REPLICA_BITS: u64, prefix "TG_REPLICA_EVENT_" {
        /// The page's home has left or does not serve it any more; the copies may differ.
        REPLICA_ORPHANED as "ORPHANED" = 1,
        /// The page has had another home; `index` is the present one.
        REPLICA_MOVED as "MOVED" = 2,
        /// The copy is not valid any more (TG_REPLICA_INVALIDATE): the driver unmaps it, then REPLICA_INVALID.
        REPLICA_INVALID as "INVALID" = 4,
    }
}

c_struct! {
    LITTLE {}
    /// One event queue entry.
    pub struct Entry as "tg_event" {
        /// Depends on `kind`.
        pub value: u64,
        /// TG_EVENT_*.
        pub kind: u16,
        /// Number of the object it is about.
        pub index: u16,
        /// Running count from 1.
        pub seq: u32,
    }
}
