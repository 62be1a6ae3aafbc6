// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guests' memory, by what is between the boards: bytes alone, or bytes that are lent beside packets of a ring
//! (`device/server/src/memory/loans.rs`).

use std::borrow::Cow;
use std::sync::Arc;
use telegraphos_device_core::{Data, Loan, Step, StepResult};
use telegraphos_testkit::world::Memory;

/// The memory of a board's guest.
pub(crate) trait GuestMemory: Memory + From<Vec<u8>> {
    /// The board has a ring to the other one; else it is without code for rings.
    const RING: bool;

    /// Exchanges what this board can reach of the peer's memory: before a turn of this board, and after it.
    fn reach(&mut self, _peer: &mut Self) {}

    /// Performs a step whose block is lent, or is to be.
    fn perform_lent(&mut self, _step: &Step) -> Option<StepResult> {
        None
    }
}

impl GuestMemory for Vec<u8> {
    const RING: bool = false;
}

/// Memory of the peer's guest that is lent to be read. Nothing takes it back while an operation is measured.
#[derive(Debug)]
struct Lent {
    address: u64,
}

/// The shortest block that is lent, as in the server.
const LEAST: u32 = 1 << 12;

/// Memory that is lent to the other board of the process.
#[derive(Debug)]
pub(crate) struct Lender {
    own: Vec<u8>,
    /// That of the peer's guest, while this board has a turn.
    far: Vec<u8>,
    /// Blocks lent so far.
    pub(crate) lent: u64,
}

impl From<Vec<u8>> for Lender {
    fn from(own: Vec<u8>) -> Lender {
        Lender { own, far: Vec::new(), lent: 0 }
    }
}

impl Memory for Lender {
    #[inline]
    fn bytes(&self, address: u64, length: usize) -> Option<Cow<'_, [u8]>> {
        self.own.bytes(address, length)
    }

    #[inline]
    fn write(&mut self, address: u64, bytes: &[u8]) -> Option<()> {
        self.own.write(address, bytes)
    }
}

impl GuestMemory for Lender {
    const RING: bool = true;

    fn reach(&mut self, peer: &mut Lender) {
        std::mem::swap(&mut self.far, &mut peer.own);
    }

    /// Of puts only: no operation is a get.
    fn perform_lent(&mut self, step: &Step) -> Option<StepResult> {
        match step {
            Step::LoadBlock { address, length, lend: true, .. } if *length >= LEAST => {
                self.own.bytes(*address, *length as usize)?;
                self.lent += 1;
                Some(StepResult::Block(Data::Lent(Loan::new(*length, Arc::new(Lent { address: *address })))))
            }
            Step::StoreBlock { address, data: Data::Lent(loan) } => {
                let Lent { address: from } = loan.lender().downcast_ref()?;
                self.own.write(*address, &self.far.bytes(*from, loan.length() as usize)?)?;
                Some(StepResult::Stored)
            }
            _ => None,
        }
    }
}
