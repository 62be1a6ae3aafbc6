// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of this process, as it is registered.

use super::context::Verdict;
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use telegraphos::{Node, Registration};
use telegraphos_guest_tests::random;

pub(crate) const PAGE: usize = 4096;
const BOTH: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Memory of this process, unmapped on drop.
pub(crate) struct Memory {
    pub(crate) at: *mut u8,
    pub(crate) length: usize,
}

// SAFETY: it is a range of addresses, and its bytes are accessed by volatile accesses that no reference sees.
unsafe impl Sync for Memory {}

pub(crate) fn file(length: usize, flags: MemfdFlags) -> Verdict<OwnedFd> {
    let fd = memfd_create("registered", flags).map_err(std::io::Error::from)?;
    ftruncate(&fd, length as u64).map_err(std::io::Error::from)?;
    Ok(fd)
}

impl Memory {
    pub(crate) fn anonymous(length: usize) -> Verdict<Memory> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), length, BOTH, MapFlags::PRIVATE) };
        Ok(Memory { at: at.map_err(std::io::Error::from)?.cast(), length })
    }

    /// The first bytes of a file.
    pub(crate) fn of(file: &OwnedFd, length: usize) -> Verdict<Memory> {
        // SAFETY: as above.
        let at = unsafe { mmap(std::ptr::null_mut(), length, BOTH, MapFlags::SHARED, file, 0) };
        Ok(Memory { at: at.map_err(std::io::Error::from)?.cast(), length })
    }

    /// Of a file in memory, of huge pages if there are flags for that.
    pub(crate) fn of_file(length: usize, flags: MemfdFlags) -> Verdict<Memory> {
        Memory::of(&file(length, flags)?, length)
    }

    /// Pieces of a file one after the other, each from an offset of it. There can be more of them than the file has.
    pub(crate) fn of_pieces(
        file: &OwnedFd,
        piece: usize,
        offsets: impl ExactSizeIterator<Item = u64>,
    ) -> Verdict<Memory> {
        let memory = Memory::anonymous(piece * offsets.len())?;
        for (n, offset) in offsets.enumerate() {
            let at = memory.range(n * piece, piece);
            // SAFETY: it takes the place of a part of the test's own mapping, to which nothing refers.
            unsafe { mmap(at.cast(), piece, BOTH, MapFlags::SHARED | MapFlags::FIXED, file, offset) }
                .map_err(std::io::Error::from)?;
        }
        Ok(memory)
    }

    /// Other memory, of zeros, takes the place of it.
    pub(crate) fn replace(&self) -> Verdict {
        // SAFETY: the test's own mapping; nothing refers to it.
        unsafe { mmap_anonymous(self.at.cast(), self.length, BOTH, MapFlags::PRIVATE | MapFlags::FIXED) }
            .map_err(std::io::Error::from)?;
        Ok(())
    }

    pub(crate) fn range(&self, from: usize, length: usize) -> *mut [u8] {
        assert!(from + length <= self.length, "the test's own range");
        std::ptr::slice_from_raw_parts_mut(self.at.wrapping_add(from), length)
    }

    pub(crate) fn byte(&self, at: usize) -> u8 {
        assert!(at < self.length, "the test's own range");
        // SAFETY: it lies in the mapping.
        unsafe { self.at.add(at).read_volatile() }
    }

    pub(crate) fn set(&self, at: usize, byte: u8) {
        assert!(at < self.length, "the test's own range");
        // SAFETY: it lies in the mapping.
        unsafe { self.at.add(at).write_volatile(byte) }
    }

    pub(crate) fn fill(&self, seed: u64) {
        (0..self.length).for_each(|at| self.set(at, byte(seed, at)));
    }

    /// Makes all bytes the same.
    pub(crate) fn fill_with(&self, byte: u8) {
        // SAFETY: it lies in the mapping.
        unsafe { self.at.write_bytes(byte, self.length) }
    }

    /// The first byte that is not this one.
    pub(crate) fn other_than(&self, byte: u8) -> Option<(usize, u8)> {
        (0..self.length).map(|at| (at, self.byte(at))).find(|(_, found)| *found != byte)
    }

    pub(crate) fn register(&self, node: &Node, from: usize, length: usize) -> Verdict<Registration> {
        // SAFETY: the memory is accessed by single bytes, and unmapped later or on purpose.
        Ok(unsafe { node.register(self.range(from, length)) }.create()?)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nothing refers to it any more.
        let _ = unsafe { munmap(self.at.cast(), self.length) };
    }
}

/// The byte at an offset of what a seed fills.
pub(crate) fn byte(seed: u64, at: usize) -> u8 {
    (random::word(seed, at as u64 / 8) >> (8 * (at % 8))) as u8
}
