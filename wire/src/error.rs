// SPDX-License-Identifier: MIT OR Apache-2.0
//! One error enum from the wire to the C API.

macro_rules! statuses {
    ($( $(#[doc = $doc:literal])* $name:ident = $value:literal, $c:literal, )*) => {
        /// Result of an operation, as carried in packets, completions, latched errors and the C API.
        ///
        /// ```
        /// use telegraphos_wire::Status;
        ///
        /// let status = Status::from_u16(7);
        /// assert_eq!(status, Status::LinkDown);
        /// assert_eq!(status.describe(), "This node's link to the fabric is down.");
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Status { $( $(#[doc = $doc])* $name = $value, )* }

        impl Status {
            /// Every status: C name, value, description.
            pub const ALL: &'static [(&'static str, u64, &'static str)] =
                &[ $( ($c, $value, concat!($($doc),*)), )* ];

            /// The status of a number; numbers unknown to this version read as [`Status::Invalid`].
            pub fn from_u16(value: u16) -> Status {
                match value { $( $value => Status::$name, )* _ => Status::Invalid }
            }

            /// A sentence for people.
            pub fn describe(self) -> &'static str {
                match self { $( Status::$name => concat!($($doc),*).trim_ascii(), )* }
            }
        }
    };
}

statuses! {
    /// Done.
    Ok = 0, "TG_OK",
    /// The window address has no import behind it.
    Unmapped = 1, "TG_ERR_UNMAPPED",
    /// The import or grant does not carry the right that the access needs.
    Rights = 2, "TG_ERR_RIGHTS",
    /// The grant was revoked or renewed: the packet carries an old generation.
    Stale = 3, "TG_ERR_STALE",
    /// The page is not granted to this node.
    NotGranted = 4, "TG_ERR_NOT_GRANTED",
    /// The access runs past the end of the segment.
    Bounds = 5, "TG_ERR_BOUNDS",
    /// The node is not in the cluster at present.
    NodeDown = 6, "TG_ERR_NODE_DOWN",
    /// This node's link to the fabric is down.
    LinkDown = 7, "TG_ERR_LINK_DOWN",
    /// No answer within the configured limit.
    Timeout = 8, "TG_ERR_TIMEOUT",
    /// The import was cut: its reserve of waiting stores was full, or an earlier store was lost.
    Cut = 9, "TG_ERR_CUT",
    /// The access is not a naturally aligned 1, 2, 4 or 8 bytes.
    BadSize = 10, "TG_ERR_BAD_SIZE",
    /// The node id is outside the cluster.
    BadNode = 11, "TG_ERR_BAD_NODE",
    /// The guest memory is private (no file descriptor): start QEMU with memory-backend-memfd,share=on.
    PrivateMemory = 12, "TG_ERR_PRIVATE_MEMORY",
    /// The guest address is not mapped for DMA, or is read-only.
    MemoryFault = 13, "TG_ERR_MEMORY_FAULT",
    /// No segment of that name is exported by that node.
    NoSegment = 14, "TG_ERR_NO_SEGMENT",
    /// The segment's mode or secret does not admit the caller.
    Denied = 15, "TG_ERR_DENIED",
    /// The index is in use, or operations are still in flight.
    Busy = 16, "TG_ERR_BUSY",
    /// An argument is out of range or not understood.
    Invalid = 17, "TG_ERR_INVALID",
    /// A table of the board is full.
    NoSpace = 18, "TG_ERR_NO_SPACE",
    /// The device was reset while the operation was outstanding.
    Reset = 19, "TG_ERR_RESET",
    /// The aperture does not support this access.
    Aperture = 20, "TG_ERR_APERTURE",
    /// The name is already exported on this node.
    NameTaken = 21, "TG_ERR_NAME_TAKEN",
    /// A wrong context key, or an argument for another process's context; after 16 of them the import is dead.
    BadKey = 22, "TG_ERR_BAD_KEY",
    /// Source and destination of a copy overlap.
    Overlap = 23, "TG_ERR_OVERLAP",
    /// The length of a copy is 0 or more than 16 MiB.
    Length = 24, "TG_ERR_LENGTH",
    /// Neither end of a copy is memory of this node.
    NotLocal = 25, "TG_ERR_NOT_LOCAL",
    /// An operation was launched without its arguments, or with one that is gone.
    Argument = 26, "TG_ERR_ARGUMENT",
    /// The header of the queue is not sound: its size is not the one granted, or head or tail lie outside 3 to
    /// size - 1.
    QueueHeader = 27, "TG_ERR_QUEUE_HEADER",
    /// The page is not a queue, or the enqueue is not at the queue's base or not of its word width.
    NotQueue = 28, "TG_ERR_NOT_QUEUE",
    /// The node of the queue has no hold slots left for another import of a queue, or more elements came than were
    /// reserved.
    NoHold = 29, "TG_ERR_NO_HOLD",
    /// The page is not replicated, or not in this mode, or its home is another node.
    NotHome = 30, "TG_ERR_NOT_HOME",
    /// The copy is not valid any more: another store has been made.
    Invalidated = 31, "TG_ERR_INVALIDATED",
    /// The page is moving to another home; the store is sent there.
    Moving = 32, "TG_ERR_MOVING",
    /// The name is not 1 to 63 printable ASCII characters, with NUL behind them.
    BadName = 33, "TG_ERR_BAD_NAME",
}

impl Status {
    /// Whether the operation was performed.
    pub fn is_ok(self) -> bool {
        self == Status::Ok
    }
}

impl core::fmt::Display for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.describe())
    }
}

impl core::error::Error for Status {}
