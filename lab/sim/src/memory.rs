// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a simulated guest: pages that exist when they have been written to.

use std::ops::Range;
use telegraphos_device_core::{Step, StepResult};
use telegraphos_wire::admin::Command;
use telegraphos_wire::{Block, Status};

const PAGE: usize = 4096;

/// Guest memory from address 0. Unwritten bytes are zero.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pages: Vec<Option<Box<[u8; PAGE]>>>,
}

/// What a store has changed: address, bytes, value before, value.
pub(crate) type Stored = (u64, u8, u64, u64);

/// Divides bytes at an address by pages: the page, the place in it, and the place in the bytes, of each piece.
fn pieces(address: u64, bytes: usize) -> impl Iterator<Item = (usize, Range<usize>, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let (start, at) = (done, address as usize + done);
        done += (bytes - start).min(PAGE - at % PAGE);
        (start < done).then(|| (at / PAGE, at % PAGE..at % PAGE + (done - start), start..done))
    })
}

impl Memory {
    /// Zeroed memory of so many bytes, a multiple of the page size.
    pub(crate) fn new(bytes: u64) -> Memory {
        let mut pages = Vec::new();
        pages.resize_with(bytes as usize / PAGE, || None);
        Memory { pages }
    }

    fn has(&self, address: u64, length: usize) -> bool {
        address.checked_add(length as u64).is_some_and(|end| end <= (self.pages.len() * PAGE) as u64)
    }

    /// A word of up to 8 bytes that does not leave its page; 0 outside.
    pub(crate) fn word(&self, address: u64, size: u8) -> u64 {
        let (page, at) = (address as usize / PAGE, address as usize % PAGE);
        let Some(Some(page)) = self.pages.get(page) else { return 0 };
        let mut bytes = [0; 8];
        let size = usize::from(size).min(PAGE - at).min(8);
        bytes[..size].copy_from_slice(&page[at..at + size]);
        u64::from_le_bytes(bytes)
    }

    /// Writes the low `size` bytes of a word; ignored outside.
    pub(crate) fn set_word(&mut self, address: u64, size: u8, value: u64) {
        let at = address as usize % PAGE;
        let size = usize::from(size).min(PAGE - at).min(8);
        if let Some(page) = self.page_mut(address as usize / PAGE) {
            page[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
        }
    }

    fn page_mut(&mut self, page: usize) -> Option<&mut [u8; PAGE]> {
        Some(self.pages.get_mut(page)?.get_or_insert_with(|| Box::new([0; PAGE])))
    }

    /// Reads bytes; zero outside.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) {
        for (page, at, part) in pieces(address, bytes.len()) {
            match self.pages.get(page) {
                Some(Some(page)) => bytes[part].copy_from_slice(&page[at]),
                _ => bytes[part].fill(0),
            }
        }
    }

    /// Writes bytes; ignored outside.
    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) {
        for (page, at, part) in pieces(address, bytes.len()) {
            if let Some(page) = self.page_mut(page) {
                page[at].copy_from_slice(&bytes[part]);
            }
        }
    }

    /// Performs a step of the board. Fails with a memory fault outside; nothing is changed then.
    pub(crate) fn perform(&mut self, step: Step) -> (StepResult, Option<Stored>) {
        let length = match &step {
            Step::Load { size, .. } | Step::Store { size, .. } | Step::Atomic { size, .. } => usize::from(*size),
            Step::LoadBlock { length, .. } | Step::Lend { length, .. } => *length as usize,
            Step::StoreBlock { data, .. } => data.len(),
            Step::LoadCommand { .. } => size_of::<Command>(),
            // The simulated programs register no memory.
            Step::Pieces { .. } => return (StepResult::Failed(Status::MemoryFault), None),
        };
        let (Step::Load { address, .. }
        | Step::Store { address, .. }
        | Step::Atomic { address, .. }
        | Step::LoadBlock { address, .. }
        | Step::Lend { address, .. }
        | Step::StoreBlock { address, .. }
        | Step::LoadCommand { address }) = step
        else {
            return (StepResult::Failed(Status::MemoryFault), None);
        };
        if !self.has(address, length) {
            return (StepResult::Failed(Status::MemoryFault), None);
        }
        let result = match step {
            Step::Load { address, size } => StepResult::Loaded(self.word(address, size)),
            Step::Store { address, size, data } => {
                let before = self.word(address, size);
                self.set_word(address, size, data);
                return (StepResult::Stored, Some((address, size, before, data)));
            }
            Step::Atomic { address, size, op, operand, compare } => {
                let before = self.word(address, size);
                self.set_word(address, size, op.apply(size, before, operand, compare));
                StepResult::Loaded(before)
            }
            Step::LoadBlock { address, length, .. } => {
                let mut bytes = vec![0; length as usize];
                self.read(address, &mut bytes);
                StepResult::Block(Block::from(bytes))
            }
            Step::Lend { .. } => StepResult::Lent(None),
            Step::StoreBlock { address, data } => {
                self.write(address, &data.bytes());
                StepResult::Stored
            }
            Step::Pieces { .. } => StepResult::Failed(Status::MemoryFault),
            Step::LoadCommand { address } => {
                let mut command = Command::default();
                self.read(address, bytemuck::bytes_of_mut(&mut command));
                StepResult::Command(command)
            }
        };
        (result, None)
    }
}
