// SPDX-License-Identifier: MIT OR Apache-2.0
//! The register map of BAR0, as data. BAR0 belongs to the guest kernel; user processes reach only their context page
//! (BAR2, [`crate::context`]) and the window pages mapped for them (BAR4, [`crate::window`]).

/// How software may access a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads have no side effect; writes are ignored and counted as an error.
    ReadOnly,
    /// Written value reads back.
    ReadWrite,
    /// A write acts; reads as zero.
    WriteOnly,
}

macro_rules! registers {
    ($( $(#[doc = $doc:literal])* $name:ident = $offset:literal, $size:literal, $access:ident, $c:literal; )*) => {
        /// A register of BAR0.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Register { $( $(#[doc = $doc])* $name, )* }

        impl Register {
            /// Every register, in address order.
            pub const ALL: &'static [Register] = &[ $( Register::$name, )* ];

            /// Byte offset in BAR0.
            pub const fn offset(self) -> u64 { match self { $( Register::$name => $offset, )* } }

            /// Width in bytes; only accesses of exactly this width and alignment are served.
            pub const fn size(self) -> u8 { match self { $( Register::$name => $size, )* } }

            /// How software may access it.
            pub const fn access(self) -> Access { match self { $( Register::$name => Access::$access, )* } }

            /// Name in the C header, without the `TG_REG_` prefix.
            pub const fn c_name(self) -> &'static str { match self { $( Register::$name => $c, )* } }

            /// Description.
            pub const fn doc(self) -> &'static str { match self { $( Register::$name => concat!($($doc),*), )* } }

            /// The register an access hits, if offset and size match exactly.
            pub fn at(offset: u64, size: u8) -> Option<Register> {
                match (offset, size) { $( ($offset, $size) => Some(Register::$name), )* _ => None }
            }
        }
    };
}

registers! {
    /// "TELEGRAF" in ASCII, little-endian.
    Magic = 0x000, 8, ReadOnly, "MAGIC";
    /// Version of the register interface.
    Version = 0x008, 4, ReadOnly, "VERSION";
    /// Capability bits (CAP_*).
    Capabilities = 0x00c, 4, ReadOnly, "CAPABILITIES";
    /// This node's id.
    Node = 0x010, 4, ReadOnly, "NODE";
    /// log2 of the number of nodes in the window.
    NodeBits = 0x014, 4, ReadOnly, "NODE_BITS";
    /// log2 of the window bytes per node.
    OffsetBits = 0x018, 4, ReadOnly, "OFFSET_BITS";
    /// log2 of the import, export and context unit in bytes.
    UnitShift = 0x01c, 4, ReadOnly, "UNIT_SHIFT";
    /// Number of contexts in BAR2.
    Contexts = 0x020, 4, ReadOnly, "CONTEXTS";
    /// Number of imports.
    Imports = 0x024, 4, ReadOnly, "IMPORTS";
    /// Number of export pages (grants), each of one unit.
    ExportPages = 0x028, 4, ReadOnly, "EXPORT_PAGES";
    /// Number of admin command slots.
    AdminSlots = 0x02c, 4, ReadOnly, "ADMIN_SLOTS";
    /// This HIB's incarnation: bumped by reset and by every join of the fabric.
    Incarnation = 0x030, 4, ReadOnly, "INCARNATION";
    /// Status bits (STATUS_*).
    StatusBits = 0x034, 4, ReadOnly, "STATUS";
    /// Control bits (CONTROL_*).
    Control = 0x038, 4, ReadWrite, "CONTROL";
    /// First error not tied to an import: status code in bits 15:0, BAR in 19:16, access size in 27:20.
    Error = 0x040, 8, ReadOnly, "ERROR";
    /// BAR offset of that error.
    ErrorAddress = 0x048, 8, ReadOnly, "ERROR_ADDRESS";
    /// Number of such errors since reset.
    ErrorCount = 0x050, 8, ReadOnly, "ERROR_COUNT";
    /// Any write clears ERROR and ERROR_ADDRESS.
    ErrorAck = 0x058, 4, WriteOnly, "ERROR_ACK";
    /// DMA address of the event queue, 16-byte aligned.
    EventBase = 0x060, 8, ReadWrite, "EVENT_BASE";
    /// Entries of the event queue: a power of two from 4 to 65536; 0 disables it.
    EventSize = 0x068, 4, ReadWrite, "EVENT_SIZE";
    /// Number of events the driver has consumed so far (running count, modulo 2^32).
    EventConsumer = 0x06c, 4, ReadWrite, "EVENT_CONSUMER";
    /// DMA address of the admin slots (256 bytes each), 256-byte aligned.
    AdminBase = 0x070, 8, ReadWrite, "ADMIN_BASE";
    /// Writing n executes the command in admin slot n.
    AdminDoorbell = 0x078, 4, WriteOnly, "ADMIN_DOORBELL";
    /// Special mode (Telegraphos I launch, SPEC item 19): `1 << 63 | context << 8 | slot` enters it, 0 leaves it. While
    /// in it every store to and load from the plain window performs no access but passes its address as the slot's next
    /// argument (a load reads as zero), and LAUNCH of that slot leaves it.
    Special = 0x080, 8, ReadWrite, "SPECIAL";
    /// Number of page access counters.
    Counters = 0x088, 4, ReadOnly, "COUNTERS";
    /// The running process's context, for the launch styles that need the operating system at each context switch
    /// (FLASH's process id register; a write also abandons SHRIMP's half-made command). Boards that check keys ignore
    /// it.
    Process = 0x08c, 4, ReadWrite, "PROCESS";
    /// DMA address, 4-byte aligned, of the word in which the driver counts the events it has consumed, instead of in
    /// EVENT_CONSUMER; 0 for none. Written while the event queue is disabled. The driver stores the word, then looks
    /// for further events, with a full barrier between. A write to EVENT_CONSUMER only announces room: the driver
    /// writes it whenever it has consumed half a ring since it wrote it last.
    EventIndex = 0x090, 8, ReadWrite, "EVENT_INDEX";
    /// The number that the register PAIR of this board's memory device has; 0 if it has none.
    DirectPair = 0x098, 8, ReadOnly, "DIRECT_PAIR";
    /// Remote stores accepted from this node's processors since reset.
    CountStores = 0x100, 8, ReadOnly, "COUNT_STORES";
    /// Remote loads accepted since reset.
    CountLoads = 0x108, 8, ReadOnly, "COUNT_LOADS";
    /// Requests served for other nodes since reset.
    CountServed = 0x110, 8, ReadOnly, "COUNT_SERVED";
    /// Requests of other nodes refused since reset.
    CountRefused = 0x118, 8, ReadOnly, "COUNT_REFUSED";
    /// Stores dropped since reset (each is reported on its import or in ERROR).
    CountDropped = 0x120, 8, ReadOnly, "COUNT_DROPPED";
    /// Times an import became congested since reset.
    CountCongested = 0x128, 8, ReadOnly, "COUNT_CONGESTED";
    /// Events posted since reset.
    CountEvents = 0x130, 8, ReadOnly, "COUNT_EVENTS";
    /// Atomics launched since reset.
    CountAtomics = 0x138, 8, ReadOnly, "COUNT_ATOMICS";
    /// Copies launched since reset.
    CountCopies = 0x140, 8, ReadOnly, "COUNT_COPIES";
    /// Arguments refused for their key or context since reset.
    CountBadKeys = 0x148, 8, ReadOnly, "COUNT_BAD_KEYS";
    /// Enqueue requests accepted from this node's processors since reset.
    CountEnqueues = 0x150, 8, ReadOnly, "COUNT_ENQUEUES";
    /// Elements committed to this node's queues since reset.
    CountElements = 0x158, 8, ReadOnly, "COUNT_ELEMENTS";
    /// Overflows of this node's queues since reset.
    CountOverflows = 0x160, 8, ReadOnly, "COUNT_OVERFLOWS";
    /// Stores sent to copies of replicated pages with their home at this node, counted once for each copy, since reset.
    CountReflected = 0x168, 8, ReadOnly, "COUNT_REFLECTED";
    /// Times a store waited for a pending-write counter since reset.
    CountCounterStalls = 0x170, 8, ReadOnly, "COUNT_COUNTER_STALLS";
}

c_consts! {
    /// Numbers of the BARs for the C header; each takes two.
    pub BARS: u32, prefix "TG_" {
        /// Registers, for the kernel only.
        BAR_REGISTERS = 0,
        /// A unit for each context.
        BAR_CONTEXTS = 2,
        /// The memory window.
        BAR_WINDOW = 4,
    }
}

c_consts! {
    /// Bits and sizes of BAR0 for the C header.
    pub CONSTANTS: u64, prefix "TG_" {
        /// Value of the MAGIC register.
        MAGIC = 0x4641_5247_454c_4554,
        /// Value of the VERSION register.
        VERSION = 5,
        /// Size of BAR0 in bytes.
        BAR0_SIZE = 0x4000,
        /// Offset of the MSI-X table in BAR0, where MSI-X is configured.
        MSIX_TABLE = 0x2000,
        /// Offset of the MSI-X pending bits in BAR0.
        MSIX_PBA = 0x3000,
        /// CAPABILITIES: the board uses MSI-X instead of MSI.
        CAP_MSIX = 1,
        /// STATUS: the link to the fabric is up.
        STATUS_LINK_UP = 1,
        /// STATUS: some import or context is congested.
        STATUS_CONGESTED = 2,
        /// STATUS: ERROR holds an error.
        STATUS_ERROR = 4,
        /// SPECIAL: enter (or in) special mode.
        SPECIAL_ENTER = 0x8000_0000_0000_0000,
        /// CONTROL: interrupts are enabled.
        CONTROL_IRQ_ENABLE = 1,
        /// CONTROL: writing it resets the board, as at power-on: nothing is granted any more. It reads as set until no
        /// access to guest memory is in flight. A driver that takes over from a crashed one writes it before it enables
        /// bus mastering.
        CONTROL_RESET = 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_do_not_overlap_and_are_aligned() {
        let mut end = 0;
        for r in Register::ALL {
            assert!(r.offset() >= end, "{r:?} overlaps");
            assert_eq!(r.offset() % u64::from(r.size()), 0, "{r:?} is misaligned");
            assert_eq!(Register::at(r.offset(), r.size()), Some(*r));
            end = r.offset() + u64::from(r.size());
        }
        assert!(end <= MSIX_TABLE);
    }

    #[test]
    fn magic_spells_the_name() {
        assert_eq!(&MAGIC.to_le_bytes(), b"TELEGRAF");
    }
}
