// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stores of a burst: several stores in one packet.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;

use crate::access::check_access;
use crate::packet_error::PacketError;
use crate::schema::Number;
use crate::{MAX_BURST, STORE_LEN};

/// One store of a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BurstStore {
    /// Value, little-endian, low bytes.
    pub data: u64,
    /// Bytes from the start of the export page, a multiple of `size`.
    pub offset: u16,
    /// Bytes: 1, 2, 4 or 8.
    /// 1, 2, 4 or 8.
    pub size: u8,
}

/// The stores of a burst, 1 to [`MAX_BURST`], in order; cheap to clone.
///
/// ```
/// use telegraphos_wire::{Burst, BurstStore};
///
/// let store = |n: u16| BurstStore { data: n.into(), offset: 8 * n, size: 8 };
/// let burst = Burst::new([store(0), store(1)]).unwrap();
/// assert_eq!(burst[1], store(1));
/// assert!(Burst::new([BurstStore { offset: 4, ..store(0) }]).is_err(), "not aligned");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Burst(Arc<[BurstStore]>);

impl Burst {
    /// Fails with [`PacketError::Burst`] for none or too many stores, and with that of a single store for one that is
    /// not aligned in its page, or has another size than 1, 2, 4 or 8.
    pub fn new(stores: impl IntoIterator<Item = BurstStore>) -> Result<Burst, PacketError> {
        let stores: Arc<[BurstStore]> = stores.into_iter().collect();
        if stores.is_empty() || stores.len() > MAX_BURST {
            return Err(PacketError::Burst { bytes: stores.len() * STORE_LEN });
        }
        for store in &*stores {
            check_access(store.offset.into(), store.size)?;
        }
        Ok(Burst(stores))
    }

    /// Bytes in a packet.
    pub(crate) fn bytes(&self) -> usize {
        self.len() * STORE_LEN
    }

    /// Appends the bytes.
    pub(crate) fn append(&self, out: &mut Vec<u8>) {
        for store in &*self.0 {
            let mut bytes = [0; STORE_LEN];
            store.data.write(&mut bytes);
            store.offset.write(&mut bytes[8..]);
            bytes[10] = store.size;
            out.extend_from_slice(&bytes);
        }
    }

    /// Inverts [`Burst::append`].
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Burst, PacketError> {
        let stores = bytes.chunks_exact(STORE_LEN);
        if !stores.remainder().is_empty() || bytes.len() > MAX_BURST * STORE_LEN {
            return Err(PacketError::Burst { bytes: bytes.len() });
        }
        let store =
            |bytes: &[u8]| BurstStore { data: u64::read(bytes, 0), offset: u16::read(bytes, 8), size: bytes[10] };
        Burst::new(stores.map(store))
    }
}

impl Deref for Burst {
    type Target = [BurstStore];

    #[inline]
    fn deref(&self) -> &[BurstStore] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stores(count: usize) -> Vec<BurstStore> {
        (0..count).map(|n| BurstStore { data: u64::MAX - n as u64, offset: 8 * n as u16 + 4, size: 4 }).collect()
    }

    #[test]
    fn bytes_are_those_of_the_stores_in_order() {
        for count in [1, 2, MAX_BURST] {
            let burst = Burst::new(stores(count)).unwrap();
            let mut bytes = Vec::new();
            burst.append(&mut bytes);
            assert_eq!(bytes.len(), burst.bytes());
            assert_eq!(Burst::from_bytes(&bytes), Ok(burst));
        }
    }

    #[test]
    fn what_is_no_burst_is_refused() {
        let mut bytes = Vec::new();
        Burst::new(stores(2)).unwrap().append(&mut bytes);
        assert_eq!(Burst::from_bytes(&bytes[..17]), Err(PacketError::Burst { bytes: 17 }));
        assert_eq!(Burst::from_bytes(&[]), Err(PacketError::Burst { bytes: 0 }));
        assert_eq!(Burst::from_bytes(&[0; 65 * STORE_LEN]), Err(PacketError::Burst { bytes: 65 * STORE_LEN }));
        assert_eq!(Burst::new(stores(MAX_BURST + 1)), Err(PacketError::Burst { bytes: 65 * STORE_LEN }));
        for (at, value, why) in [(10, 3, PacketError::Size(3)), (20, 13, PacketError::Offset(13))] {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            assert_eq!(Burst::from_bytes(&bytes), Err(why));
        }
    }
}
