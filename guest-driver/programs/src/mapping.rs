// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that this process maps by itself, past the library.

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::os::fd::AsFd;
use std::ptr::null_mut;

pub const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// A mapping, unmapped on drop: pointers are good as long as this lives.
#[derive(Debug)]
pub struct Mapping {
    at: *mut u8,
    length: usize,
}

// SAFETY: it is a range of addresses; each access is its maker's care.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Of a file, which others see, too.
    pub fn of(file: impl AsFd, offset: u64, length: usize, protection: ProtFlags) -> Result<Mapping, Errno> {
        Mapping::with(file, offset, length, protection, MapFlags::SHARED)
    }

    /// Of a file, with these flags.
    pub fn with(
        file: impl AsFd,
        offset: u64,
        length: usize,
        protection: ProtFlags,
        flags: MapFlags,
    ) -> Result<Mapping, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let at = unsafe { mmap(null_mut(), length, protection, flags, file, offset) }?;
        Ok(Mapping { at: at.cast(), length })
    }

    /// Zeros, of no file: this process's own, or shared with what it forks.
    pub fn anonymous(length: usize, flags: MapFlags) -> Result<Mapping, Errno> {
        // SAFETY: as above.
        let at = unsafe { mmap_anonymous(null_mut(), length, READ_WRITE, flags) }?;
        Ok(Mapping { at: at.cast(), length })
    }

    /// Its first byte.
    pub fn at(&self) -> *mut u8 {
        self.at
    }

    pub fn length(&self) -> usize {
        self.length
    }

    /// Some of it.
    pub fn range(&self, from: usize, length: usize) -> *mut [u8] {
        assert!(from + length <= self.length, "a range of the mapping");
        std::ptr::slice_from_raw_parts_mut(self.at.wrapping_add(from), length)
    }

    /// It is elsewhere now.
    ///
    /// # Safety
    /// `mremap` has moved it there, with that length.
    pub unsafe fn moved(&mut self, at: *mut u8, length: usize) {
        (self.at, self.length) = (at, length);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by this module. It cannot fail for a whole mapping.
        let _ = unsafe { munmap(self.at.cast(), self.length) };
    }
}
