// SPDX-License-Identifier: MIT OR Apache-2.0
//! A packet that has arrived, with what belongs to it.

use crate::loan::Loan;
use telegraphos_wire::Packet;

/// What a received packet occupies until it has been processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Charge {
    /// Nothing: it is this node's own, or the connection by which it came is gone.
    Nothing,
    /// A credit of the link that is up.
    Link,
    /// A credit of the ring to its source.
    Ring,
}

/// See the module.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Arrived {
    pub(crate) packet: Packet,
    /// The loan beside it.
    pub(crate) loan: Option<Loan>,
    /// What it occupies, if it is a request or an element.
    pub(crate) charge: Charge,
}

impl Arrived {
    /// Bytes of the block that it carries, lends memory for, or asks for.
    #[inline]
    pub(crate) fn block_len(&self) -> u64 {
        match &self.loan {
            None => self.packet.body.block_len(),
            Some(loan) => loan.length().into(),
        }
    }
}
