// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guest memory of a node that is lent, as a shell lends it: the receiver of a put reads it when it stores the block,
//! the owner of what is got fills it, unless it was taken back before.

use super::Cluster;
use std::any::Any;
use std::sync::{Arc, Mutex, Weak};
use telegraphos_device_core::{Piece, Step, StepResult};
use telegraphos_wire::{Block, Lender, Loan};

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
pub(super) fn span(piece: &Piece) -> std::ops::Range<usize> {
    piece.address as usize..piece.address as usize + piece.length as usize
}

/// Stores bytes to pieces.
pub(super) fn place(ram: &mut [u8], pieces: &[Piece], bytes: &[u8]) {
    let mut rest = bytes;
    for piece in pieces {
        let (now, later) = rest.split_at(piece.length as usize);
        ram[span(piece)].copy_from_slice(now);
        rest = later;
    }
    assert!(rest.is_empty(), "the pieces are shorter than the block");
}

impl Lender for Lent {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn bytes(&self) -> Vec<u8> {
        panic!("no packet of these boards leaves the process")
    }
}

/// The loans of one node.
#[derive(Debug, Default)]
pub(crate) struct Loans {
    lent: Vec<Weak<Lent>>,
    /// Blocks lent so far.
    pub(crate) count: usize,
}

impl Loans {
    pub(super) fn lend(&mut self, node: u16, pieces: &[Piece]) -> Loan {
        let length: u32 = pieces.iter().map(|piece| piece.length).sum();
        let ranges = pieces.iter().map(span).collect();
        let lent = Arc::new(Lent { node, ranges, returned: Mutex::default() });
        self.lent.push(Arc::downgrade(&lent));
        self.count += 1;
        Loan::new(length as usize, lent)
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
    pub(crate) fn outstanding(&self) -> usize {
        let lent = self.lent.iter().filter_map(Weak::upgrade);
        lent.filter(|lent| lent.returned.lock().unwrap().is_none()).count()
    }
}

impl Cluster {
    /// A step with the bytes of its block instead of the loan, and whether they are in their place already.
    pub(super) fn with_bytes(&self, id: u16, step: Step) -> (Step, bool) {
        let Step::StoreBlock { address, data: Block::Lent(loan) } = &step else { return (step, false) };
        let lent = loan.lender().as_any().downcast_ref::<Lent>().unwrap();
        let returned = lent.returned.lock().unwrap().clone();
        let bytes = returned.unwrap_or_else(|| lent.bytes_in(&self.nodes[usize::from(lent.node)].ram));
        let there = lent.node == id && lent.ranges[0].start as u64 == *address;
        (Step::StoreBlock { address: *address, data: bytes.into() }, there)
    }

    /// Performs a load to memory that another node lends, if it is still lent.
    pub(super) fn fill(&mut self, id: u16, step: &Step, pieces: &Option<Arc<Vec<Piece>>>) -> Option<StepResult> {
        let Step::LoadBlock { address, length, into: Some(loan), .. } = step else { return None };
        let lent = loan.lender().as_any().downcast_ref::<Lent>().unwrap();
        let node = &mut self.nodes[usize::from(id)];
        let pieces = Piece::of(*address, *length as usize, pieces);
        let mut bytes = Vec::new();
        for piece in &pieces {
            bytes.extend_from_slice(node.ram.get(span(piece))?);
        }
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
        Some(StepResult::Block(Block::Lent(loan.clone())))
    }
}
