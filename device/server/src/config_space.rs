// SPDX-License-Identifier: MIT OR Apache-2.0
//! The board's PCI config space. `board` builds and owns it.
//!
//! Each byte has a value and a mask of the bits that software may write. QEMU emulates BARs and MSI registers on top of
//! this: it sizes and places them itself, and passes mainly the command register through.

use rustix::io::Errno;
use telegraphos_wire::ids;

/// Bytes of the config space of a conventional PCI function. The board has no extended capability, which would need the
/// larger space; and a function without a PCI Express capability can be plugged into any slot, root ports included.
pub const SIZE: usize = 256;

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const CAPABILITIES: usize = 0x34;
/// Command register: memory space, bus master, parity and SERR# reporting, INTx disable.
const COMMAND_WRITABLE: u16 = 1 << 1 | 1 << 2 | 1 << 6 | 1 << 8 | 1 << 10;
const BUS_MASTER: u16 = 1 << 2;
/// Status register: a capability list exists.
const STATUS_CAPABILITIES: u16 = 1 << 4;
const FIRST_CAPABILITY: usize = 0x40;

/// Advanced Features, the capability by which conventional functions offer a reset of their own. Behind its id and its
/// link are its length, what it offers, the control and the status register.
const ADVANCED_FEATURES: u8 = 0x13;
const ADVANCED_FEATURES_LEN: usize = 6;
/// Offers the Transactions Pending bit, always clear here, and the reset. Linux accepts the reset only with both.
const OFFERS_RESET: u8 = 0b11;
/// Where in the capability the control register is. Writing 1 to its bit 0 resets the function; it reads 0.
const RESET_CONTROL: usize = 4;

/// The config space of one function.
#[derive(Clone, Debug)]
pub struct ConfigSpace {
    values: [u8; SIZE],
    writable: [u8; SIZE],
    /// Values after reset.
    initial: [u8; SIZE],
    /// The register that resets the function.
    reset_control: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Changed registers, or nothing.
    Registers,
    /// Asked for a reset of the function, which the caller performs. [`ConfigSpace::reset`] is part of it.
    FunctionReset,
}

/// Builds a [`ConfigSpace`].
#[derive(Debug)]
pub struct Builder {
    space: ConfigSpace,
    next_capability: usize,
    /// Offset of the list pointer that the next capability sets.
    link: usize,
}

impl Builder {
    /// A type 0 function with the board's identity, without BARs and capabilities.
    pub fn board() -> Builder {
        Builder::function(ids::DEVICE_ID_NIC, ids::CLASS)
    }

    /// The same with the identity of the memory device.
    pub fn memory_device() -> Builder {
        Builder::function(ids::DEVICE_ID_MEMORY, ids::CLASS_MEMORY)
    }

    fn function(device: u32, class: u32) -> Builder {
        let space = ConfigSpace { values: [0; SIZE], writable: [0; SIZE], initial: [0; SIZE], reset_control: None };
        let mut builder = Builder { space, next_capability: FIRST_CAPABILITY, link: CAPABILITIES };
        builder.put(0x00, &(device << 16 | ids::VENDOR_ID).to_le_bytes());
        builder.put(0x08, &(class << 8 | ids::REVISION).to_le_bytes());
        builder.put(0x2c, &(ids::SUBSYSTEM_ID << 16 | ids::SUBSYSTEM_VENDOR_ID).to_le_bytes());
        builder.allow(COMMAND, &COMMAND_WRITABLE.to_le_bytes());
        // Cache line size and interrupt line are scratch registers of the system software.
        builder.allow(0x0c, &[0xff]);
        builder.allow(0x3c, &[0xff]);
        builder
    }

    /// A 64-bit memory BAR in slots `index` and `index` + 1. QEMU aborts on a size that is no power of two.
    pub fn bar64(mut self, index: u32, size: u64, prefetchable: bool) -> Builder {
        debug_assert!(index < 5 && size.is_power_of_two() && size >= 16);
        let at = 0x10 + 4 * index as usize;
        self.put(at, &[0b100 | if prefetchable { 0b1000 } else { 0 }]);
        self.allow(at, &(!(size - 1)).to_le_bytes());
        self
    }

    /// MSI with one vector and 64-bit addresses.
    pub fn msi(mut self) -> Builder {
        let at = self.capability(0x05, 14);
        self.put(at + 2, &0x0080u16.to_le_bytes());
        // Writable: the enable bit and the number of vectors in use; below, address and data.
        self.allow(at + 2, &0x0071u16.to_le_bytes());
        self.allow(at + 4, &0xffff_ffff_ffff_fffcu64.to_le_bytes());
        self.allow(at + 12, &[0xff; 2]);
        self
    }

    /// MSI-X with `vectors` vectors. The vector table and the pending bits are in BAR `bar` at offsets `table` and
    /// `pending`.
    pub fn msix(mut self, vectors: u16, bar: u8, table: u32, pending: u32) -> Builder {
        debug_assert!((1..=2048).contains(&vectors) && table % 8 == 0 && pending % 8 == 0);
        let at = self.capability(0x11, 12);
        self.put(at + 2, &(vectors - 1).to_le_bytes());
        self.allow(at + 2, &0xc000u16.to_le_bytes());
        self.put(at + 4, &(table | u32::from(bar)).to_le_bytes());
        self.put(at + 8, &(pending | u32::from(bar)).to_le_bytes());
        self
    }

    /// A reset of the function by the guest, which keeps the descriptors of interrupts: QEMU takes no notice of it.
    pub fn function_reset(mut self) -> Builder {
        let at = self.capability(ADVANCED_FEATURES, ADVANCED_FEATURES_LEN);
        self.put(at + 2, &[ADVANCED_FEATURES_LEN as u8, OFFERS_RESET]);
        self.space.reset_control = Some(at + RESET_CONTROL);
        self
    }

    /// The config space as it is after reset.
    pub fn build(mut self) -> ConfigSpace {
        self.space.initial = self.space.values;
        self.space
    }

    /// Links a new capability of `len` bytes into the list; its offset.
    fn capability(&mut self, id: u8, len: usize) -> usize {
        let at = self.next_capability;
        let link = self.link;
        self.put(link, &[at as u8]);
        self.put(at, &[id, 0]);
        self.put(STATUS, &STATUS_CAPABILITIES.to_le_bytes());
        self.link = at + 1;
        self.next_capability = (at + len).next_multiple_of(4);
        at
    }

    /// Sets initial values.
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.space.values[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Sets the mask of writable bits.
    fn allow(&mut self, at: usize, mask: &[u8]) {
        self.space.writable[at..at + mask.len()].copy_from_slice(mask);
    }
}

impl ConfigSpace {
    /// Reads `data.len()` bytes at `offset`.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        let range = range(offset, data.len())?;
        data.copy_from_slice(&self.values[range]);
        Ok(())
    }

    /// Writes the writable bits of `data` at `offset`.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<Written, Errno> {
        let mut written = Written::Registers;
        for (at, new) in range(offset, data.len())?.zip(data) {
            let mask = self.writable[at];
            self.values[at] = self.values[at] & !mask | new & mask;
            if Some(at) == self.reset_control && new & 1 != 0 {
                written = Written::FunctionReset;
            }
        }
        Ok(written)
    }

    /// Whether the function may touch guest memory.
    pub fn bus_master(&self) -> bool {
        u16::from_le_bytes([self.values[COMMAND], self.values[COMMAND + 1]]) & BUS_MASTER != 0
    }

    /// Restores the values after reset.
    pub fn reset(&mut self) {
        self.values = self.initial;
    }
}

/// The bytes of an access; `Err` if they are not all within the config space.
fn range(offset: u64, len: usize) -> Result<std::ops::Range<usize>, Errno> {
    let start = usize::try_from(offset).map_err(|_| Errno::INVAL)?;
    let end = start.checked_add(len).filter(|end| *end <= SIZE).ok_or(Errno::INVAL)?;
    Ok(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> ConfigSpace {
        Builder::board().bar64(0, 0x4000, false).bar64(4, 16 << 30, true).msi().build()
    }

    fn get<const N: usize>(space: &ConfigSpace, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        space.read(at, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn bars_are_sized_by_writing_ones() {
        let mut space = space();
        space.write(0x10, &[0xff; 24]).unwrap();
        assert_eq!(u64::from_le_bytes(get(&space, 0x10)), !0x3fff | 4);
        assert_eq!(u64::from_le_bytes(get(&space, 0x18)), 0);
        assert_eq!(u64::from_le_bytes(get(&space, 0x20)), !((16 << 30) - 1) | 0xc);
    }

    #[test]
    fn identity_cannot_be_written_and_reset_restores() {
        let mut space = space();
        let before: [u8; SIZE] = get(&space, 0);
        space.write(0, &[0xff; SIZE]).unwrap();
        assert_eq!(get::<4>(&space, 0), [0x1e, 0x7e, 1, 0]);
        assert_eq!(get::<4>(&space, 8), [1, 0, 0x80, 2]);
        assert_eq!(get::<4>(&space, 0x2c), [0x1e, 0x7e, 1, 0]);
        assert!(space.bus_master());
        space.reset();
        assert_eq!(get::<SIZE>(&space, 0), before);
        assert!(!space.bus_master());
    }

    #[test]
    fn capabilities_are_linked() {
        let space = Builder::board().msi().msix(1, 0, 0x2000, 0x3000).build();
        assert_eq!(get::<1>(&space, 0x34), [0x40]);
        assert_eq!(get::<4>(&space, 0x40), [5, 0x50, 0x80, 0]);
        assert_eq!(get::<12>(&space, 0x50), [0x11, 0, 0, 0, 0, 0x20, 0, 0, 0, 0x30, 0, 0]);
        assert_eq!(get::<1>(&space, 6)[0] & 0x10, 0x10);
    }

    #[test]
    fn a_function_reset_is_offered_and_asked_for() {
        let mut space = Builder::board().msi().function_reset().build();
        assert_eq!(get::<1>(&space, 0x41), [0x50]);
        assert_eq!(get::<6>(&space, 0x50), [0x13, 0, 6, 3, 0, 0]);
        assert_eq!(space.write(0x54, &[1]), Ok(Written::FunctionReset));
        assert_eq!(space.write(0x50, &[0, 0, 0, 0, 1, 0]), Ok(Written::FunctionReset));
        for (at, data) in [(0x54, 0xfe), (0x55, 1), (0x53, 1), (0x04, 1)] {
            assert_eq!(space.write(at, &[data]), Ok(Written::Registers), "{at:#x}");
        }
        assert_eq!(get::<6>(&space, 0x50), [0x13, 0, 6, 3, 0, 0], "no bit of it stays");
        // A function that does not offer it is not reset.
        assert_eq!(Builder::board().msi().build().write(0x54, &[1]), Ok(Written::Registers));
    }

    #[test]
    fn accesses_beyond_the_end_are_refused() {
        let mut space = space();
        assert!(space.read(255, &mut [0; 2]).is_err());
        assert!(space.read(u64::MAX, &mut [0; 2]).is_err());
        assert!(space.write(256, &[0]).is_err());
    }
}
