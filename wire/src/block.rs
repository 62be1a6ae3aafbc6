// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of a block copy.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;

/// Bytes of a block copy; cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Block(Arc<[u8]>);

impl Deref for Block {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Arc<[u8]>> for Block {
    fn from(bytes: Arc<[u8]>) -> Block {
        Block(bytes)
    }
}

impl From<&[u8]> for Block {
    fn from(bytes: &[u8]) -> Block {
        Block(bytes.into())
    }
}

impl From<Vec<u8>> for Block {
    fn from(bytes: Vec<u8>) -> Block {
        Block(bytes.into())
    }
}

impl<const N: usize> From<[u8; N]> for Block {
    fn from(bytes: [u8; N]) -> Block {
        Block(Arc::new(bytes))
    }
}

impl FromIterator<u8> for Block {
    fn from_iter<I: IntoIterator<Item = u8>>(bytes: I) -> Block {
        Block(bytes.into_iter().collect())
    }
}
