// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guest memory of a node that is lent, as a shell lends it: the receiver of a put reads it when it stores the block,
//! the owner of what is got fills it, unless it was taken back before.

use super::Cluster;
use std::any::Any;
use std::sync::{Arc, Mutex, Weak};
use telegraphos_device_core::{Step, StepResult};
use telegraphos_wire::{Block, Lender, Loan};

#[derive(Debug)]
struct Lent {
    node: u16,
    range: std::ops::Range<usize>,
    /// The bytes, once it was taken back.
    returned: Mutex<Option<Vec<u8>>>,
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
    pub(super) fn lend(&mut self, node: u16, address: u64, length: u32) -> Loan {
        let range = address as usize..address as usize + length as usize;
        let lent = Arc::new(Lent { node, range, returned: Mutex::default() });
        self.lent.push(Arc::downgrade(&lent));
        self.count += 1;
        Loan::new(length as usize, lent)
    }

    pub(super) fn recall(&mut self, ram: &[u8], address: u64, length: u64) {
        for lent in self.lent.iter().filter_map(Weak::upgrade) {
            let overlaps =
                (lent.range.start as u64) < address.saturating_add(length) && address < lent.range.end as u64;
            if overlaps {
                lent.returned.lock().unwrap().get_or_insert_with(|| ram[lent.range.clone()].to_vec());
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
        let bytes = returned.unwrap_or_else(|| self.nodes[usize::from(lent.node)].ram[lent.range.clone()].to_vec());
        let there = lent.node == id && lent.range.start as u64 == *address;
        (Step::StoreBlock { address: *address, data: bytes.into() }, there)
    }

    /// Performs a load to memory that another node lends, if it is still lent.
    pub(super) fn fill(&mut self, id: u16, step: &Step) -> Option<StepResult> {
        let Step::LoadBlock { address, length, into: Some(loan), .. } = step else { return None };
        let lent = loan.lender().as_any().downcast_ref::<Lent>().unwrap();
        let node = &mut self.nodes[usize::from(id)];
        let bytes = node.ram.get(*address as usize..*address as usize + *length as usize)?.to_vec();
        if lent.returned.lock().unwrap().is_some() {
            return None;
        }
        node.moved += u64::from(*length);
        self.nodes[usize::from(lent.node)].ram[lent.range.clone()].copy_from_slice(&bytes);
        Some(StepResult::Block(Block::Lent(loan.clone())))
    }
}
