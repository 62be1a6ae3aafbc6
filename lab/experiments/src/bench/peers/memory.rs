// SPDX-License-Identifier: MIT OR Apache-2.0
//! A shared mapping.

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A mapping of a file that keeps its length.
#[derive(Debug)]
pub(super) struct Mapping {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and is as good in any thread.
unsafe impl Send for Mapping {}

impl Mapping {
    pub(super) fn of(file: impl AsFd, bytes: usize) -> io::Result<Mapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) }?;
        let at = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mmap gave the address 0"))?;
        Ok(Mapping { at, bytes })
    }

    /// A memfd of its own.
    pub(super) fn new(bytes: usize) -> io::Result<Mapping> {
        let file = rustix::fs::memfd_create("telegraphos-bench", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        Mapping::of(&file, bytes)
    }

    /// Stores a word, at a multiple of 8 bytes.
    pub(super) fn store(&self, offset: u64, value: u64) {
        let offset = offset as usize;
        assert!(offset % 8 == 0 && offset + 8 <= self.bytes, "a word at {offset:#x}");
        // SAFETY: aligned and within the mapping; others access it by whole words only.
        let word = unsafe { AtomicU64::from_ptr(self.at.as_ptr().add(offset).cast()) };
        word.store(value, Ordering::Release);
    }

    /// `process_vm_writev` of bytes to its start; how many the kernel has copied.
    pub(super) fn write_by_kernel(&mut self, source: &[u8]) -> io::Result<usize> {
        assert!(source.len() <= self.bytes, "{} bytes", source.len());
        let local = libc::iovec { iov_base: source.as_ptr().cast_mut().cast(), iov_len: source.len() };
        let remote = libc::iovec { iov_base: self.at.as_ptr().cast(), iov_len: source.len() };
        // SAFETY: the kernel reads `source` and writes within the mapping, which `self` alone has.
        let written = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    /// Copies bytes to its start, as many as there are.
    pub(super) fn copy_from(&mut self, source: &[u8]) {
        assert!(source.len() <= self.bytes, "{} bytes", source.len());
        // SAFETY: within the mapping, which `self` alone has.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), self.at.as_ptr(), source.len()) };
        std::hint::black_box(self.at);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`, and nothing refers to it any more. It cannot fail for a whole mapping.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}
