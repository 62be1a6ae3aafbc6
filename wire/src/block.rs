// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of a block copy: in the packet, or in memory that a board lends.
//!
//! Boards of one process need not put bytes into a packet that its receiver takes out again. The packet then carries a
//! [`Loan`]. Of a put the shell of the sender lends the source, and the shell of the receiver copies from there. Of a
//! get the request carries the loan: the shell of the requester lends the target, the shell of the owner copies to
//! there, and the reply refers to the same loan. Everything between sees a block of so many bytes. Where a packet with
//! a block leaves the process, or is captured, the bytes are read from the loan; a request does without it.

use alloc::borrow::Cow;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;
use core::hash::{Hash, Hasher};

/// Memory that a shell lends.
pub trait Lender: Any + fmt::Debug + Send + Sync {
    /// For a receiver that knows the lender's type, and so a shorter way to the bytes than [`Lender::bytes`].
    fn as_any(&self) -> &dyn Any;

    /// The bytes, as many as were lent, whether they are still lent or were taken back meanwhile.
    fn bytes(&self) -> Vec<u8>;
}

/// Memory that is lent: so many bytes of a [`Lender`]. A clone is the same loan; two loans are never equal.
#[derive(Clone, Debug)]
pub struct Loan(Arc<(usize, Arc<dyn Lender>)>);

impl Loan {
    /// A loan of `length` bytes that `lender` lends.
    pub fn new(length: usize, lender: Arc<dyn Lender>) -> Loan {
        Loan(Arc::new((length, lender)))
    }

    /// The lender, for access to the bytes.
    pub fn lender(&self) -> &dyn Lender {
        &*self.0.1
    }

    fn place(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

impl PartialEq for Loan {
    fn eq(&self, other: &Loan) -> bool {
        self.place() == other.place()
    }
}

impl Eq for Loan {}

impl Hash for Loan {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.place().hash(state);
    }
}

/// Bytes of a block copy; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Block {
    /// The bytes themselves.
    Bytes(Arc<[u8]>),
    /// Within one process: a loan of the memory that has the bytes, or gets them.
    Lent(Loan),
}

// A larger block would make every packet larger.
const _: () = assert!(size_of::<Block>() <= size_of::<Arc<[u8]>>());

impl Block {
    /// A block of `length` bytes that `lender` lends.
    pub fn lent(length: usize, lender: Arc<dyn Lender>) -> Block {
        Block::Lent(Loan::new(length, lender))
    }

    /// Number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Block::Bytes(bytes) => bytes.len(),
            Block::Lent(loan) => loan.0.0,
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether its bytes are lent.
    pub fn is_lent(&self) -> bool {
        matches!(self, Block::Lent(_))
    }

    /// The bytes. Those of a loan are copied.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        match self {
            Block::Bytes(bytes) => Cow::Borrowed(bytes),
            Block::Lent(loan) => {
                // What is on the wire has the length that was announced, whatever the lender says.
                let mut bytes = loan.lender().bytes();
                bytes.resize(loan.0.0, 0);
                Cow::Owned(bytes)
            }
        }
    }
}

impl From<Arc<[u8]>> for Block {
    fn from(bytes: Arc<[u8]>) -> Block {
        Block::Bytes(bytes)
    }
}

impl From<&[u8]> for Block {
    fn from(bytes: &[u8]) -> Block {
        Block::Bytes(bytes.into())
    }
}

impl From<Vec<u8>> for Block {
    fn from(bytes: Vec<u8>) -> Block {
        Block::Bytes(bytes.into())
    }
}

impl<const N: usize> From<[u8; N]> for Block {
    fn from(bytes: [u8; N]) -> Block {
        Block::Bytes(Arc::new(bytes))
    }
}

impl FromIterator<u8> for Block {
    fn from_iter<I: IntoIterator<Item = u8>>(bytes: I) -> Block {
        Block::Bytes(bytes.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[derive(Debug)]
    struct Short;

    impl Lender for Short {
        fn as_any(&self) -> &dyn Any {
            self
        }

        fn bytes(&self) -> Vec<u8> {
            vec![7; 3]
        }
    }

    #[test]
    fn a_loan_has_the_length_that_was_announced_and_is_equal_to_itself() {
        let block = Block::lent(5, Arc::new(Short));
        assert_eq!((block.len(), block.is_lent(), &*block.bytes()), (5, true, [7, 7, 7, 0, 0].as_slice()));
        assert_eq!(block, block.clone());
        assert_ne!(block, Block::lent(5, Arc::new(Short)));
        assert_eq!(&*Block::lent(2, Arc::new(Short)).bytes(), [7, 7]);
        let Block::Lent(loan) = &block else { unreachable!() };
        assert!(loan.lender().as_any().is::<Short>());
    }
}
