// SPDX-License-Identifier: MIT OR Apache-2.0
//! Markers: no-operation instructions by which a guest program speaks to the observer.
//!
//! On x86 a marker is the long no-operation `nop dword ptr [rax + DISPLACEMENT]`, seven bytes: `0f 1f 80` and the
//! displacement, low byte first. The processor computes no access from it. Compilers emit the same instruction for
//! padding, always with displacement 0. A marker's displacement is
//!
//! ```text
//!   31        16 15  12 11        0
//!  |   0x5447   |  op  |  region   |      0x5447 is "TG"; op: 1 begin, 2 end, 3 report, 4 clear (region 0), 5 watch
//! ```

/// Names a region of a guest program; below [`REGIONS`].
pub type Region = u16;

/// Number of regions.
pub const REGIONS: Region = 1 << REGION_BITS;

const REGION_BITS: u32 = 12;
const MAGIC: u32 = 0x5447;
const NOP: [u8; 3] = [0x0f, 0x1f, 0x80];

/// What a guest program says with one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// From the next instruction on, this region is measured on this virtual processor.
    Begin(Region),
    /// The instruction before was the region's last.
    End(Region),
    /// From the next instruction on until the region's end nothing is measured, but the pages of RAM that are accessed
    /// at user addresses on this virtual processor are *watched* from then on: regions say how they are accessed. If
    /// the kernel ran before the end, the watch has no effect.
    Watch(Region),
    /// The table is to be written now.
    Report,
    /// All that was counted is forgotten.
    Clear,
}

impl Marker {
    /// Bytes of a marker's instruction.
    pub const SIZE: usize = 7;

    /// The displacement in its instruction. Of a region only the bits below [`REGIONS`] count.
    pub const fn displacement(self) -> u32 {
        let (op, region) = match self {
            Marker::Begin(region) => (1, region),
            Marker::End(region) => (2, region),
            Marker::Report => (3, 0),
            Marker::Clear => (4, 0),
            Marker::Watch(region) => (5, region),
        };
        MAGIC << 16 | op << REGION_BITS | (region % REGIONS) as u32
    }

    /// The marker with this displacement.
    pub const fn from_displacement(displacement: u32) -> Option<Marker> {
        if displacement >> 16 != MAGIC {
            return None;
        }
        let region = displacement as Region % REGIONS;
        match (displacement as Region >> REGION_BITS, region) {
            (1, region) => Some(Marker::Begin(region)),
            (2, region) => Some(Marker::End(region)),
            (3, 0) => Some(Marker::Report),
            (4, 0) => Some(Marker::Clear),
            (5, region) => Some(Marker::Watch(region)),
            _ => None,
        }
    }

    /// Its instruction on x86.
    pub const fn instruction(self) -> [u8; Marker::SIZE] {
        let d = self.displacement().to_le_bytes();
        [NOP[0], NOP[1], NOP[2], d[0], d[1], d[2], d[3]]
    }

    /// The marker that these bytes of one whole x86 instruction are.
    pub fn from_instruction(bytes: &[u8]) -> Option<Marker> {
        let displacement = <[u8; 4]>::try_from(bytes.strip_prefix(&NOP)?).ok()?;
        Marker::from_displacement(u32::from_le_bytes(displacement))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_are_those_of_the_documentation() {
        assert_eq!(Marker::Begin(1).instruction(), [0x0f, 0x1f, 0x80, 0x01, 0x10, 0x47, 0x54]);
        assert_eq!(Marker::End(0xabc).instruction(), [0x0f, 0x1f, 0x80, 0xbc, 0x2a, 0x47, 0x54]);
    }

    #[test]
    fn padding_and_pieces_are_no_markers() {
        for bytes in [
            &[0x0f, 0x1f, 0x80, 0, 0, 0, 0][..],
            &[0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
            &[0x90],
            &[],
            &Marker::Report.instruction()[..6],
        ] {
            assert_eq!(Marker::from_instruction(bytes), None, "{bytes:x?}");
        }
        assert_eq!(Marker::from_displacement(0x5447_3001), None, "a report has no region");
        assert_eq!(Marker::from_displacement(0x5447_6000), None, "no such op");
    }

    proptest! {
        #[test]
        fn every_marker_survives_its_instruction(region in 0..REGIONS, op in 0..5) {
            let marker = match op {
                0 => Marker::Begin(region),
                1 => Marker::End(region),
                2 => Marker::Report,
                3 => Marker::Watch(region),
                _ => Marker::Clear,
            };
            prop_assert_eq!(Marker::from_instruction(&marker.instruction()), Some(marker));
        }

        #[test]
        fn what_is_decoded_is_encoded_the_same(bytes in proptest::collection::vec(any::<u8>(), 0..16), magic in any::<bool>()) {
            let mut bytes = bytes;
            if magic && bytes.len() >= Marker::SIZE {
                bytes.truncate(Marker::SIZE);
                bytes[..3].copy_from_slice(&NOP);
                bytes[5..].copy_from_slice(&[0x47, 0x54]);
            }
            if let Some(marker) = Marker::from_instruction(&bytes) {
                prop_assert_eq!(&marker.instruction()[..], &bytes[..]);
            }
        }
    }
}
