// SPDX-License-Identifier: MIT OR Apache-2.0
//! The direct aperture: what a memory device shows, and how the nodes of a trust group divide their memory.
//!
//! The nodes of a *trust group* have one piece of memory in common, which is BAR2 of the memory device of each. It is
//! divided into *slices* of the same size, one for each member in the order of MEMBER_NODES. A node's direct segments
//! lie in its own slice; its board reaches them at [`ADDRESS`], too, as DMA addresses.
//!
//! A slice begins with tables, in which each word has one writer, because atomic instructions of processors are not
//! atomic between guests (docs/driver.md, "Direct segments"):
//!
//! ```text
//!   for each unit of this slice          struct tg_direct_unit: what the owner exports there
//!   for each member, for each unit       one byte: not 0 while this node may access that unit of that member's slice
//!   from the next whole unit on          memory
//! ```
//!
//! An importer first writes its byte and then looks at the owner's entry; an owner first clears the entry and then
//! looks at the bytes. So either the importer finds that the segment is gone, or the owner that its memory is still in
//! use, and does not use it for anything else until it no longer is. That an entry is cleared the owner says in the
//! register [`CHANGED`], and the boards of the others notify their drivers: no driver polls the tables.

c_consts! {
    /// Numbers of the memory device's BARs for the C header; each takes two.
    pub BARS: u32, prefix "TG_DIRECT_" {
        /// Registers.
        BAR_REGISTERS = 0,
        /// The group's memory.
        BAR_MEMORY = 2,
    }
}

c_consts! {
    /// Registers of BAR0 of the memory device, read-only but for CHANGED, and other constants, for the C header.
    pub ALL: u64, prefix "TG_DIRECT_" {
        /// Byte offset of a 64-bit register: MAGIC_VALUE.
        MAGIC = 0x000,
        /// Byte offset of a 32-bit register: VERSION_VALUE.
        VERSION = 0x008,
        /// Byte offset of a 32-bit register: this node's id.
        NODE = 0x00c,
        /// Byte offset of a 64-bit register: the number that the register DIRECT_PAIR of this node's board has.
        PAIR = 0x010,
        /// Byte offset of a 64-bit register: bytes of a slice, whole units.
        SLICE_SIZE = 0x018,
        /// Byte offset of a 32-bit register: number of members of the group, 1 to 64.
        MEMBERS = 0x020,
        /// Byte offset of a 32-bit register: place of this node among the members.
        PLACE = 0x024,
        /// Byte offset of a 64-bit register: a bit for each member, by place, whose memory device has a guest now.
        PRESENT = 0x028,
        /// Byte offset of a 64-bit register: 1 while accesses between members are to go through the boards, because the
        /// link of a member has faults or all is captured; else 0. Each change is an event of the board
        /// (TG_EVENT_DIRECT).
        OBSERVED = 0x030,
        /// Byte offset of a 32-bit register, write-only: a write of any value says that the entries of this node's
        /// slice have changed, so that members may have units mapped that are not exported any more. The boards of all
        /// other members post TG_EVENT_DIRECT.
        CHANGED = 0x038,
        /// Byte offset of the group's name: 64 bytes, NUL-padded.
        NAME = 0x040,
        /// Byte offset of 32-bit registers, one for each member by place: its node id.
        MEMBER_NODES = 0x100,
        /// The most members of a group.
        MAX_MEMBERS = 64,
        /// Value of MAGIC: "TGDIRECT" in ASCII, little-endian.
        MAGIC_VALUE = 0x5443_4552_4944_4754,
        /// Value of VERSION.
        VERSION_VALUE = 2,
        /// Size of BAR0 in bytes.
        BAR0_SIZE = 0x1000,
        /// DMA address of the group's memory at the boards of its members; each reaches its own slice only.
        ADDRESS = 0x8000_0000_0000_0000,
    }
}

macro_rules! table_struct {
    (entry $($rest:tt)*) => {
        c_struct! { LITTLE {} $($rest)* }
    };
}

c_structs! {
    /// The structures in a slice.
    pub STRUCTS, table_struct;

    /// What is exported in a unit of a slice. Written by its owner only.
    entry pub struct Unit as "tg_direct_unit" {
        /// Generation of the grant; 0 if nothing is exported there.
        pub generation: u64,
        /// The export page whose memory this is.
        pub page: u32,
        /// Zero.
        pub reserved: u32,
    }
}

/// Bytes of the tables at the start of a slice of `units` units, in a group of `members`, in whole units.
pub const fn tables_size(units: u64, members: u64) -> u64 {
    (units * (size_of::<Unit>() as u64 + members)).next_multiple_of(crate::UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magic_spells_the_name() {
        assert_eq!(&MAGIC_VALUE.to_le_bytes(), b"TGDIRECT");
    }

    #[test]
    fn tables_leave_most_of_a_slice() {
        assert_eq!(tables_size(16, 2), crate::UNIT);
        assert_eq!(tables_size(1 << 14, 64), 20 * crate::UNIT);
    }
}
