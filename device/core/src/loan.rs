// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that boards of one process lend each other, so that the bytes of a block move from one guest's memory to the
//! other's, and not through a packet.
//!
//! A loan goes beside a packet, whose block is empty then. Of a put ([`Body::WriteBlock`]) it is the source, which the
//! shell of the sender lends, and the shell of the receiver copies from. Of a get the request ([`Body::ReadBlock`]) has
//! the target's loan beside it, which the shell of the owner fills; then the reply ([`Body::BlockReply`]) has the same
//! loan beside it, and the bytes in its block otherwise. A loan passes only within a process, by a ring or from a node
//! to itself. To take another way it becomes bytes again ([`Action::SendLent`](crate::Action::SendLent)).

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use telegraphos_wire::{Block, Body, Packet};

/// Memory that a shell lends: so many bytes of a lender, which the core passes on without a look. A clone is the same
/// loan; two loans are never equal.
#[derive(Clone)]
pub struct Loan(Arc<Lent>);

struct Lent {
    length: u32,
    lender: Arc<dyn Any + Send + Sync>,
}

impl Loan {
    /// A loan of `length` bytes of `lender`.
    pub fn new(length: u32, lender: Arc<dyn Any + Send + Sync>) -> Loan {
        Loan(Arc::new(Lent { length, lender }))
    }

    /// Number of bytes.
    pub fn length(&self) -> u32 {
        self.0.length
    }

    /// The lender, for a shell that knows its type.
    pub fn lender(&self) -> &(dyn Any + Send + Sync) {
        &*self.0.lender
    }

    /// The loan without its type, for what carries it to another board. [`Loan::from_any`] reverts this.
    pub fn into_any(self) -> Arc<dyn Any + Send + Sync> {
        self.0
    }

    /// The loan that this was; `None` if it was anything else.
    pub fn from_any(any: Arc<dyn Any + Send + Sync>) -> Option<Loan> {
        any.downcast().ok().map(Loan)
    }
}

impl PartialEq for Loan {
    fn eq(&self, other: &Loan) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Loan {}

impl Hash for Loan {
    /// By its length only: the states of a model do not depend on addresses.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.length.hash(state);
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Loan").field(&self.0.length).finish()
    }
}

/// The bytes of a block, or the memory that is lent instead of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Data {
    /// The bytes.
    Bytes(Block),
    /// The memory that has them, or gets them.
    Lent(Loan),
}

// A larger one would make every step larger.
const _: () = assert!(size_of::<Data>() <= size_of::<Block>());

impl Data {
    /// The block of a packet and the loan beside it.
    pub(crate) fn of(block: Block, loan: Option<Loan>) -> Data {
        loan.map_or(Data::Bytes(block), Data::Lent)
    }

    /// Number of bytes.
    pub fn length(&self) -> u64 {
        match self {
            Data::Bytes(block) => block.len() as u64,
            Data::Lent(loan) => loan.length().into(),
        }
    }

    /// The bytes; `None` if memory is lent instead.
    pub fn bytes(&self) -> Option<&Block> {
        match self {
            Data::Bytes(block) => Some(block),
            Data::Lent(_) => None,
        }
    }

    /// Whether memory is lent instead of the bytes.
    pub fn is_lent(&self) -> bool {
        self.bytes().is_none()
    }
}

impl From<Block> for Data {
    fn from(block: Block) -> Data {
        Data::Bytes(block)
    }
}

/// A packet and the loan beside it. It is boxed where other packets are not: these are few, each for a long block.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LentPacket {
    pub packet: Packet,
    pub loan: Loan,
}

/// What a packet says, and the loan beside it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Content {
    pub(crate) body: Body,
    pub(crate) loan: Option<Loan>,
}

impl Content {
    /// A packet with a block: with an empty one if memory is lent.
    pub(crate) fn with(data: Data, body: impl FnOnce(Block) -> Body) -> Content {
        match data {
            Data::Bytes(block) => body(block).into(),
            Data::Lent(loan) => Content { body: body(Block::default()), loan: Some(loan) },
        }
    }
}

impl From<Body> for Content {
    #[inline]
    fn from(body: Body) -> Content {
        Content { body, loan: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::DefaultHasher;

    fn hash(loan: &Loan) -> u64 {
        let mut state = DefaultHasher::new();
        loan.hash(&mut state);
        state.finish()
    }

    #[test]
    fn a_loan_is_equal_to_itself_alone_and_states_with_loans_of_a_length_are_alike() {
        let (loan, other) = (Loan::new(5, Arc::new("memory")), Loan::new(5, Arc::new("memory")));
        assert_eq!(loan, loan.clone());
        assert_ne!(loan, other);
        assert_eq!(hash(&loan), hash(&other));
        assert_ne!(hash(&loan), hash(&Loan::new(6, Arc::new("memory"))));
        assert_eq!(loan.lender().downcast_ref(), Some(&"memory"));
        assert_eq!(Data::of(Block::default(), Some(loan)).length(), 5);
    }

    #[test]
    fn a_loan_without_its_type_is_the_same_loan() {
        let loan = Loan::new(5, Arc::new("memory"));
        assert_eq!(Loan::from_any(loan.clone().into_any()), Some(loan));
        assert_eq!(Loan::from_any(Arc::new("memory")), None);
    }
}
