// SPDX-License-Identifier: MIT OR Apache-2.0
//! The address in the memory window (BAR4): `aperture | node | offset`, from the top (`docs/architecture.md`).
//!
//! Within a node's range the offset names a slot of the *requester's* import table (`offset >> UNIT_SHIFT`) and a
//! byte within that unit: a store has no identity on the bus, so the window gives it one.

use crate::numbers::numbers;
use crate::{NodeId, UNIT_SHIFT};

/// Bits that select the aperture, at the top of a window address.
pub const APERTURE_BITS: u32 = 2;

numbers! {
    /// What a store to the window means (settles SPEC E14: REQ and argument passing have windows of their own).
    pub enum Aperture: u8, fn from_u8;

    /// Load and store of remote memory.
    Plain = 0,
    /// Shadow: passes a physical address to a context (s1, Telegraphos II launch).
    Argument = 1,
    /// Shadow: the store is the enqueue request itself (s0).
    Enqueue = 2,
    /// Unused.
    Reserved = 3,
}

c_consts! {
    /// Apertures that a driver maps, for the C header.
    pub APERTURES: u8, prefix "TG_APERTURE_" {
        /// Loads and stores of remote memory.
        PLAIN = Aperture::Plain as u8,
        /// Stores pass their address to a context.
        ARGUMENT = Aperture::Argument as u8,
        /// Stores are enqueued.
        ENQUEUE = Aperture::Enqueue as u8,
    }
}

/// How many bits of a window address select the node and the offset within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowLayout {
    /// log2 of the number of nodes.
    pub node_bits: u8,
    /// log2 of the bytes of window per node.
    pub offset_bits: u8,
}

/// Why a layout is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// `node_bits` outside 1..=12.
    #[error("window node bits are {0}: expected 1 to 12 (2 to 4096 nodes)")]
    NodeBits(u8),
    /// `offset_bits` outside 16..=32.
    #[error("window offset bits are {0}: expected 16 to 32 (64 KiB to 4 GiB per node)")]
    OffsetBits(u8),
    /// The BAR would exceed 256 GiB, which a 40-bit processor leaves unassigned.
    #[error("the window would take {0} address bits: expected at most 38 (256 GiB); lower the node or offset bits")]
    TooLarge(u32),
}

/// A decoded window address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowAddress {
    /// What the access means.
    pub aperture: Aperture,
    /// The destination node.
    pub node: NodeId,
    /// Bytes from the start of the node's range.
    pub offset: u64,
}

impl WindowAddress {
    /// The import slot the address falls in.
    pub fn slot(&self) -> u32 {
        (self.offset >> UNIT_SHIFT) as u32
    }

    /// Bytes from the start of that slot.
    pub fn within(&self) -> u32 {
        (self.offset & (crate::UNIT - 1)) as u32
    }
}

impl Default for WindowLayout {
    /// 64 nodes of 64 MiB.
    fn default() -> Self {
        WindowLayout { node_bits: 6, offset_bits: 26 }
    }
}

impl WindowLayout {
    /// A checked layout.
    pub fn new(node_bits: u8, offset_bits: u8) -> Result<Self, LayoutError> {
        if !(1..=12).contains(&node_bits) {
            return Err(LayoutError::NodeBits(node_bits));
        }
        if !(UNIT_SHIFT as u8..=32).contains(&offset_bits) {
            return Err(LayoutError::OffsetBits(offset_bits));
        }
        let total = APERTURE_BITS + u32::from(node_bits) + u32::from(offset_bits);
        if total > 38 {
            return Err(LayoutError::TooLarge(total));
        }
        Ok(WindowLayout { node_bits, offset_bits })
    }

    /// Number of nodes the window can address.
    pub fn nodes(&self) -> u32 {
        1 << self.node_bits
    }

    /// Import slots per node.
    pub fn slots(&self) -> u32 {
        1 << (u32::from(self.offset_bits) - UNIT_SHIFT)
    }

    /// Size of the window BAR in bytes, a power of two.
    pub fn bar_size(&self) -> u64 {
        1 << (APERTURE_BITS + u32::from(self.node_bits) + u32::from(self.offset_bits))
    }

    /// Bytes of 64-bit prefetchable addresses (`pref64-reserve`) that a port must reserve so that a board with this
    /// window and so many contexts can be plugged into it while the guest runs.
    ///
    /// Firmware aligns a reservation to 2 MiB only, so one of a BAR's size need not contain a range that is aligned to
    /// it. Twice the larger of BAR2 and BAR4 always does, and leaves room for the other, if that is smaller.
    pub fn pref64_reserve(&self, contexts: u16) -> u64 {
        let (window, contexts) = (self.bar_size(), u64::from(contexts) * crate::UNIT);
        2 * window.max(contexts).max(2 * window.min(contexts))
    }

    /// Whether such a board fits into a port without a reservation. Firmware gives that 2 MiB of prefetchable addresses
    /// and 2 MiB of others, to which Linux assigns BAR0, and BAR2 or BAR4 if it does not fit beside the other one.
    pub fn fits_any_port(&self, contexts: u16) -> bool {
        const MIB: u64 = 1 << 20;
        let (window, contexts) = (self.bar_size(), u64::from(contexts) * crate::UNIT);
        window.max(contexts) <= 2 * MIB && window.min(contexts) <= MIB
    }

    /// The parts of a BAR offset; bits above the window are ignored, as a bus would.
    pub fn decode(&self, address: u64) -> WindowAddress {
        let offset = address & ((1 << self.offset_bits) - 1);
        let node = (address >> self.offset_bits) & (u64::from(self.nodes()) - 1);
        let aperture = (address >> (self.offset_bits + self.node_bits)) & 3;
        // There is one for each value of these two bits.
        let aperture = Aperture::from_u8(aperture as u8).unwrap_or(Aperture::Reserved);
        WindowAddress { aperture, node: node as NodeId, offset }
    }

    /// The BAR offset of its parts; `None` if the node or the offset does not fit.
    pub fn encode(&self, address: WindowAddress) -> Option<u64> {
        if u32::from(address.node) >= self.nodes() || address.offset >> self.offset_bits != 0 {
            return None;
        }
        Some(
            ((address.aperture as u64) << (self.offset_bits + self.node_bits))
                | (u64::from(address.node) << self.offset_bits)
                | address.offset,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decode_inverts_encode(nb in 1u8..=12, ob in 16u8..=24, addr: u64) {
            let layout = WindowLayout::new(nb, ob).unwrap();
            let parts = layout.decode(addr);
            prop_assert_eq!(layout.encode(parts), Some(addr & (layout.bar_size() - 1)));
        }
    }

    #[test]
    fn a_reservation_contains_both_bars_wherever_it_begins() {
        for (node_bits, offset_bits, contexts) in [(6, 26, 256), (1, 16, 8), (4, 16, 64), (1, 16, 256), (2, 16, 16)] {
            let layout = WindowLayout::new(node_bits, offset_bits).unwrap();
            let (window, contexts_size) = (layout.bar_size(), u64::from(contexts) * crate::UNIT);
            let reserve = layout.pref64_reserve(contexts);
            let (large, small) = (window.max(contexts_size), window.min(contexts_size));
            for begin in (0..64u64).map(|i| (i << 21) + (i % 7) * (large / 8).next_multiple_of(1 << 21)) {
                let (end, first) = (begin + reserve, begin.next_multiple_of(large));
                assert!(first + large <= end, "{layout:?}, from {begin:#x}");
                let before = begin.next_multiple_of(small) + small <= first;
                let behind = (first + large).next_multiple_of(small) + small <= end;
                assert!(before || behind, "{layout:?} with {contexts} contexts, from {begin:#x}");
            }
        }
        assert_eq!(WindowLayout::default().pref64_reserve(256), 32 << 30);
    }

    #[test]
    fn small_boards_fit_any_port() {
        let fits = |node_bits, offset_bits, contexts| {
            WindowLayout::new(node_bits, offset_bits).unwrap().fits_any_port(contexts)
        };
        assert!(fits(3, 16, 16) && fits(2, 17, 16) && fits(1, 16, 32));
        assert!(!fits(3, 16, 32) && !fits(4, 16, 1) && !WindowLayout::default().fits_any_port(256));
    }

    #[test]
    fn out_of_range_node_does_not_encode() {
        let layout = WindowLayout::default();
        let address = WindowAddress { aperture: Aperture::Plain, node: 64, offset: 0 };
        assert_eq!(layout.encode(address), None);
        assert!(WindowLayout::new(12, 32).is_err());
        assert!(WindowLayout::new(0, 26).is_err());
    }
}
