// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest's memory, and the steps of a board in it.

use std::borrow::Cow;
use telegraphos_device_core::{Data, Piece, Step, StepResult};
use telegraphos_wire::admin::Command;
use telegraphos_wire::{BurstStore, Status};

/// The memory of a guest, from DMA address 0 on.
pub trait Memory {
    /// So many bytes; `None` if not all of them are there.
    fn bytes(&self, address: u64, length: usize) -> Option<Cow<'_, [u8]>>;

    /// Writes bytes; changes nothing and returns `None` if not all of them are there.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Option<()>;

    /// A word of up to 8 bytes.
    #[inline]
    fn word(&self, address: u64, size: u8) -> Option<u64> {
        let mut word = [0; 8];
        word[..usize::from(size)].copy_from_slice(&self.bytes(address, size.into())?);
        Some(u64::from_le_bytes(word))
    }

    /// Writes the low `size` bytes of a word.
    #[inline]
    fn set_word(&mut self, address: u64, size: u8, value: u64) -> Option<()> {
        self.write(address, &value.to_le_bytes()[..usize::from(size)])
    }

    /// Performs a step of a board, as a shell that lends nothing does. A step that is not in the memory as a whole
    /// fails, and changes nothing.
    fn perform(&mut self, step: &Step) -> StepResult {
        let (step, pieces) = match step {
            Step::Pieces { step, pieces } => (&**step, Some(&pieces[..])),
            step => (step, None),
        };
        let done = match step {
            Step::Load { address, size } => self.word(*address, *size).map(StepResult::Loaded),
            Step::Store { address, size, data } => self.set_word(*address, *size, *data).map(|()| StepResult::Stored),
            Step::StoreBurst { base, stores } => {
                let stored = |store: &&BurstStore| {
                    self.set_word(base.wrapping_add(store.offset.into()), store.size, store.data).is_some()
                };
                match stores.iter().take_while(stored).count() {
                    all if all == stores.len() => Some(StepResult::Stored),
                    stores => Some(StepResult::StoredPart { stores, status: Status::MemoryFault }),
                }
            }
            Step::Atomic { address, size, op, operand, compare } => self.word(*address, *size).and_then(|old| {
                self.set_word(*address, *size, op.apply(*size, old, *operand, *compare))?;
                Some(StepResult::Loaded(old))
            }),
            Step::LoadBlock { address, length, .. } => match pieces {
                None => self.bytes(*address, *length as usize).map(|bytes| {
                    StepResult::Block(Data::Bytes(match bytes {
                        Cow::Borrowed(bytes) => bytes.into(),
                        Cow::Owned(bytes) => bytes.into(),
                    }))
                }),
                Some(pieces) => self.gather(pieces).map(|bytes| {
                    assert_eq!(bytes.len(), *length as usize, "pieces are as long as their block");
                    StepResult::Block(Data::Bytes(bytes.into()))
                }),
            },
            Step::StoreBlock { address, data } => data
                .bytes()
                .and_then(|bytes| match pieces {
                    None => self.write(*address, bytes),
                    Some(pieces) => self.scatter(pieces, bytes),
                })
                .map(|()| StepResult::Stored),
            Step::Lend { .. } => Some(StepResult::Lent(None)),
            Step::LoadCommand { address } => self
                .bytes(*address, size_of::<Command>())
                .map(|bytes| StepResult::Command(Box::new(bytemuck::pod_read_unaligned(&bytes)))),
            Step::Pieces { .. } => panic!("pieces of pieces"),
        };
        done.unwrap_or(StepResult::Failed(Status::MemoryFault))
    }

    /// The bytes of several pieces.
    fn gather(&self, pieces: &[Piece]) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for piece in pieces {
            bytes.extend_from_slice(&self.bytes(piece.address, piece.length as usize)?);
        }
        Some(bytes)
    }

    /// Writes bytes to several pieces, which are as long.
    fn scatter(&mut self, pieces: &[Piece], mut bytes: &[u8]) -> Option<()> {
        self.gather(pieces)?;
        for piece in pieces {
            let (now, later) = bytes.split_at(piece.length as usize);
            self.write(piece.address, now)?;
            bytes = later;
        }
        assert!(bytes.is_empty(), "pieces are as long as their block");
        Some(())
    }
}

impl Memory for Vec<u8> {
    #[inline]
    fn bytes(&self, address: u64, length: usize) -> Option<Cow<'_, [u8]>> {
        let start = usize::try_from(address).ok()?;
        self.get(start..start.checked_add(length)?).map(Cow::Borrowed)
    }

    #[inline]
    fn write(&mut self, address: u64, bytes: &[u8]) -> Option<()> {
        let start = usize::try_from(address).ok()?;
        self.get_mut(start..start.checked_add(bytes.len())?)?.copy_from_slice(bytes);
        Some(())
    }
}
