// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guest memory of a node that is lent, as a shell lends it: the receiver of a put reads it when it stores the block,
//! the owner of what is got fills it, unless it was taken back before.

use super::Cluster;
use super::memory::Memory;
use std::sync::{Arc, Mutex, Weak};
use telegraphos_device_core::{Data, Loan, Piece, Step, StepResult};
use telegraphos_wire::Status;

#[derive(Debug)]
struct Lent {
    node: u16,
    ranges: Vec<std::ops::Range<usize>>,
    /// The bytes, once it was taken back.
    returned: Mutex<Option<Vec<u8>>>,
}

impl Lent {
    fn bytes_in(&self, ram: &[u8]) -> Vec<u8> {
        self.ranges.iter().flat_map(|range| &ram[range.clone()]).copied().collect()
    }
}

/// Where a piece lies in the memory.
fn span(piece: &Piece) -> std::ops::Range<usize> {
    piece.address as usize..piece.address as usize + piece.length as usize
}

/// A step, and the pieces of its block if there are several.
fn apart(step: &Step) -> (&Step, Option<Arc<Vec<Piece>>>) {
    match step {
        Step::Pieces { step, pieces } => (step, Some(pieces.clone())),
        step => (step, None),
    }
}

/// The memory of a loan.
fn lent(loan: &Loan) -> &Lent {
    loan.lender().downcast_ref().unwrap()
}

/// The loans of one node.
#[derive(Debug, Default)]
pub struct Loans {
    lent: Vec<Weak<Lent>>,
    /// Blocks lent so far.
    pub count: usize,
}

impl Loans {
    /// The result of a step that is to lend memory, if it is one and the memory is there.
    pub(super) fn lend(&mut self, node: u16, ram: &[u8], step: &Step) -> Option<StepResult> {
        let (step, pieces) = apart(step);
        let (pieces, block) = match step {
            Step::Lend { address, length } => (Piece::of(*address, *length as usize, &pieces), false),
            Step::LoadBlock { address, length, lend: true, .. } => {
                (Piece::of(*address, *length as usize, &pieces), true)
            }
            _ => return None,
        };
        if pieces.iter().any(|piece| span(piece).end > ram.len()) {
            return Some(StepResult::Failed(Status::MemoryFault));
        }
        let loan = self.loan(node, &pieces);
        Some(if block { StepResult::Block(Data::Lent(loan)) } else { StepResult::Lent(Some(loan)) })
    }

    fn loan(&mut self, node: u16, pieces: &[Piece]) -> Loan {
        let length: u32 = pieces.iter().map(|piece| piece.length).sum();
        let ranges = pieces.iter().map(span).collect();
        let lent = Arc::new(Lent { node, ranges, returned: Mutex::default() });
        self.lent.push(Arc::downgrade(&lent));
        self.count += 1;
        Loan::new(length, lent)
    }

    pub(super) fn recall(&mut self, ram: &[u8], address: u64, length: u64) {
        for lent in self.lent.iter().filter_map(Weak::upgrade) {
            let meets = |range: &std::ops::Range<usize>| {
                (range.start as u64) < address.saturating_add(length) && address < range.end as u64
            };
            if lent.ranges.iter().any(meets) {
                lent.returned.lock().unwrap().get_or_insert_with(|| lent.bytes_in(ram));
            }
        }
    }

    /// Blocks that are lent and were not taken back.
    pub fn outstanding(&self) -> usize {
        let lent = self.lent.iter().filter_map(Weak::upgrade);
        lent.filter(|lent| lent.returned.lock().unwrap().is_none()).count()
    }
}

impl Cluster {
    /// The bytes of a loan, as they are, or as they were when it was taken back.
    pub(super) fn bytes_of(&self, loan: &Loan) -> Vec<u8> {
        let lent = lent(loan);
        let returned = lent.returned.lock().unwrap().clone();
        returned.unwrap_or_else(|| lent.bytes_in(&self.nodes[usize::from(lent.node)].ram))
    }

    /// A step with the bytes of its block instead of the loan, and whether they are in their place already.
    pub(super) fn with_bytes(&self, id: u16, step: Step) -> (Step, bool) {
        let (Step::StoreBlock { address, data: Data::Lent(loan) }, pieces) = apart(&step) else {
            return (step, false);
        };
        let lent = lent(loan);
        let there = lent.node == id && lent.ranges[0].start as u64 == *address;
        let whole = Step::StoreBlock { address: *address, data: Data::Bytes(self.bytes_of(loan).into()) };
        let step = match pieces {
            None => whole,
            Some(pieces) => Step::Pieces { step: Box::new(whole), pieces },
        };
        (step, there)
    }

    /// Performs a load to memory that another node lends, if it is still lent.
    pub(super) fn fill(&mut self, id: u16, step: &Step) -> Option<StepResult> {
        let (Step::LoadBlock { address, length, into: Some(loan), .. }, pieces) = apart(step) else { return None };
        let lent = lent(loan);
        let node = &mut self.nodes[usize::from(id)];
        let pieces = Piece::of(*address, *length as usize, &pieces);
        let bytes = node.ram.gather(&pieces)?;
        if lent.returned.lock().unwrap().is_some() {
            return None;
        }
        node.moved += u64::from(*length);
        let mut rest = &bytes[..];
        for range in &lent.ranges {
            let (now, later) = rest.split_at(range.len());
            self.nodes[usize::from(lent.node)].ram[range.clone()].copy_from_slice(now);
            rest = later;
        }
        Some(StepResult::Block(Data::Lent(loan.clone())))
    }
}
