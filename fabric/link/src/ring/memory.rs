// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that another process maps too. The only `unsafe` of this crate.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// Seals against any change of the file's length, so no access to its mapping can fault.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// The file system of a plain memfd. One of huge pages could be out of them at the first touch, which kills the
/// process.
const TMPFS: u64 = 0x0102_1994;

/// A shared mapping of a whole sealed memfd.
#[derive(Debug)]
pub(super) struct Memory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone and is as good in any thread.
unsafe impl Send for Memory {}

impl Memory {
    /// New memory of `len` bytes, all 0, and the descriptor by which another process maps it.
    pub(super) fn create(len: usize) -> io::Result<(Memory, OwnedFd)> {
        let fd = rustix::fs::memfd_create(c"telegraphos-ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        Ok((Memory::map(fd.as_fd(), len)?, fd))
    }

    /// Maps memory that another process created. Fails unless it is sealed, of `len` bytes, and not of huge pages.
    pub(super) fn open(fd: BorrowedFd<'_>, len: usize) -> io::Result<Memory> {
        let wrong = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, format!("its memory {why}")));
        // Fails unless it is a memfd: another process could truncate a regular file.
        match rustix::fs::fcntl_get_seals(fd) {
            Ok(seals) if seals.contains(SEALS) => {}
            _ => return wrong("is not sealed"),
        }
        if rustix::fs::fstatfs(fd)?.f_type as u64 != TMPFS {
            return wrong("is of huge pages");
        }
        if rustix::fs::fstat(fd)?.st_size as u64 != len as u64 {
            return wrong("has another length");
        }
        Memory::map(fd, len)
    }

    fn map(fd: BorrowedFd<'_>, len: usize) -> io::Result<Memory> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0) }?;
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap gave the address 0"))?;
        Ok(Memory { base, len })
    }

    /// The word at `offset`, a multiple of 4.
    pub(super) fn word(&self, offset: usize) -> &AtomicU32 {
        // Offsets are constants of this crate, below the smallest length there is.
        assert!(offset % 4 == 0 && offset + 4 <= self.len);
        // SAFETY: within the mapping, which is valid as long as `self`, starts at a page and is never shrunk (sealed);
        // aligned; this word is accessed by atomic operations only, here and, if it is honest, in the peer. Any bits
        // are a valid u32.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Copies `bytes` to `offset`.
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        // The rings split at their end and have power-of-two lengths; see `Rings::put`.
        assert!(offset <= self.len && bytes.len() <= self.len - offset);
        // SAFETY: within the mapping; no reference to these bytes ever exists, so `bytes` is elsewhere. An honest peer
        // does not access them before the Release store of the index; a malicious one can only garble what it receives.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(offset), bytes.len()) }
    }

    /// Copies from `offset` to `buffer`.
    pub(super) fn read(&self, offset: usize, buffer: &mut [u8]) {
        assert!(offset <= self.len && buffer.len() <= self.len - offset);
        // SAFETY: as for `write`; an honest peer has not written here since the Release store that the Acquire load has
        // read, and a malicious one can only make the bytes arbitrary, as any bytes it sends.
        unsafe { std::ptr::copy_nonoverlapping(self.base.as_ptr().add(offset), buffer.as_mut_ptr(), buffer.len()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length; no reference into it outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_mappings_are_the_same_memory() {
        let (a, fd) = Memory::create(8192).unwrap();
        let b = Memory::open(fd.as_fd(), 8192).unwrap();
        a.write(8190, b"xy");
        a.word(4).store(7, std::sync::atomic::Ordering::Relaxed);
        let mut got = [0; 2];
        b.read(8190, &mut got);
        assert_eq!((&got, b.word(4).load(std::sync::atomic::Ordering::Relaxed)), (b"xy", 7));
    }

    #[test]
    fn memory_that_could_go_away_is_refused() {
        let refused = |fd: &OwnedFd, why: &str| {
            let error = Memory::open(fd.as_fd(), 8192).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        let plain = rustix::fs::memfd_create(c"plain", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&plain, 8192).unwrap();
        refused(&plain, "not sealed");
        rustix::fs::fcntl_add_seals(&plain, SealFlags::GROW).unwrap();
        refused(&plain, "not sealed");
        refused(&tempfile::tempfile().unwrap().into(), "not sealed");
        let (_memory, other) = Memory::create(4096).unwrap();
        refused(&other, "another length");
    }
}
