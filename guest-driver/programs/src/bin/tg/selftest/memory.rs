// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of this process, as it is registered.

use super::context::{Context, Verdict};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MremapFlags, madvise, mmap, mmap_anonymous, mprotect, mremap, munmap,
};
use std::io::Error;
use telegraphos::{Node, RegisterBuilder, Registration};
use telegraphos_guest_tests::mapping::{Mapping, READ_WRITE};
use telegraphos_guest_tests::random;

pub(crate) const PAGE: usize = 4096;

/// Memory of this process, whose bytes are accessed by volatile accesses that no reference sees.
pub(crate) struct Memory(Mapping);

pub(crate) fn file(length: usize, flags: MemfdFlags) -> Verdict<OwnedFd> {
    let fd = memfd_create("registered", flags).map_err(std::io::Error::from)?;
    ftruncate(&fd, length as u64).map_err(std::io::Error::from)?;
    Ok(fd)
}

impl Memory {
    pub(crate) fn anonymous(length: usize) -> Verdict<Memory> {
        Ok(Memory(Mapping::anonymous(length, MapFlags::PRIVATE).map_err(Error::from)?))
    }

    /// The first bytes of a file.
    pub(crate) fn of(file: &OwnedFd, length: usize) -> Verdict<Memory> {
        Ok(Memory(Mapping::of(file, 0, length, READ_WRITE).map_err(Error::from)?))
    }

    pub(crate) fn at(&self) -> *mut u8 {
        self.0.at()
    }

    pub(crate) fn length(&self) -> usize {
        self.0.length()
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
            unsafe { mmap(at.cast(), piece, READ_WRITE, MapFlags::SHARED | MapFlags::FIXED, file, offset) }
                .map_err(Error::from)?;
        }
        Ok(memory)
    }

    /// Other memory, of zeros, takes the place of it.
    pub(crate) fn replace(&self) -> Verdict {
        // SAFETY: the test's own mapping; nothing refers to it.
        unsafe { mmap_anonymous(self.at().cast(), self.length(), READ_WRITE, MapFlags::PRIVATE | MapFlags::FIXED) }
            .map_err(Error::from)?;
        Ok(())
    }

    /// Some of it goes.
    pub(crate) fn unmap(&self, from: usize, length: usize) -> Verdict {
        // SAFETY: as above.
        Ok(unsafe { munmap(self.range(from, length).cast(), length) }.map_err(Error::from)?)
    }

    pub(crate) fn advise(&self, from: usize, length: usize, advice: Advice) -> Verdict {
        // SAFETY: as above.
        Ok(unsafe { madvise(self.range(from, length).cast(), length, advice) }.map_err(Error::from)?)
    }

    /// Changes what this process may do with some of it.
    pub(crate) fn protect(&self, from: usize, length: usize, flags: MprotectFlags) -> Verdict {
        // SAFETY: as above; the test accesses it as it may.
        Ok(unsafe { mprotect(self.range(from, length).cast(), length, flags) }.map_err(Error::from)?)
    }

    /// It grows to twice its length, where the kernel likes: whether it is where it was.
    pub(crate) fn double(&mut self) -> Verdict<bool> {
        let (at, length) = (self.at(), self.length());
        // SAFETY: as above.
        let moved = unsafe { mremap(at.cast(), length, 2 * length, MremapFlags::MAYMOVE) }.map_err(Error::from)?;
        // SAFETY: that is where it is now.
        unsafe { self.0.moved(moved.cast(), 2 * length) };
        Ok(self.at() == at)
    }

    pub(crate) fn range(&self, from: usize, length: usize) -> *mut [u8] {
        self.0.range(from, length)
    }

    pub(crate) fn byte(&self, at: usize) -> u8 {
        assert!(at < self.length(), "the test's own range");
        // SAFETY: it lies in the mapping.
        unsafe { self.at().add(at).read_volatile() }
    }

    pub(crate) fn set(&self, at: usize, byte: u8) {
        assert!(at < self.length(), "the test's own range");
        // SAFETY: it lies in the mapping.
        unsafe { self.at().add(at).write_volatile(byte) }
    }

    pub(crate) fn fill(&self, seed: u64) {
        (0..self.length()).for_each(|at| self.set(at, byte(seed, at)));
    }

    /// Makes all bytes the same.
    pub(crate) fn fill_with(&self, byte: u8) {
        // SAFETY: it lies in the mapping.
        unsafe { self.at().write_bytes(byte, self.length()) }
    }

    /// The first byte that is not this one.
    pub(crate) fn other_than(&self, byte: u8) -> Option<(usize, u8)> {
        (0..self.length()).map(|at| (at, self.byte(at))).find(|(_, found)| *found != byte)
    }

    pub(crate) fn register(&self, node: &Node, from: usize, length: usize) -> Verdict<Registration> {
        // SAFETY: the memory is accessed by single bytes, and unmapped later or on purpose.
        Ok(unsafe { node.register(self.range(from, length)) }.create()?)
    }

    /// The same under a name, for all.
    pub(crate) fn named(&self, context: &Context<'_>, name: &str, from: usize, length: usize) -> RegisterBuilder {
        // SAFETY: as above.
        unsafe { context.node().register(self.range(from, length)) }.name(name).mode(0o606)
    }
}

/// The byte at an offset of what a seed fills.
pub(crate) fn byte(seed: u64, at: usize) -> u8 {
    (random::word(seed, at as u64 / 8) >> (8 * (at % 8))) as u8
}
