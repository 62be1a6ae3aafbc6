// SPDX-License-Identifier: MIT OR Apache-2.0
//! A shared mapping of guest memory, and the accesses to it.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use telegraphos_wire::AtomicOp;

use super::budget::Charge;

/// A shared mapping of part of a file.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    /// Given back when it is unmapped. `None` if it is not a client's.
    _charge: Option<Charge>,
}

// SAFETY: the mapping is plain memory that this value alone owns in this process; any thread may use or unmap it.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference allows only atomic operations on that memory.
unsafe impl Sync for Mapping {}

/// Lets `$access` use the word of `$size` bytes at `$offset` of a mapping, if that is one of the sizes given.
macro_rules! with_word {
    ($mapping:ident, $offset:expr, $size:expr, [$($bytes:literal: $atomic:ty),+], |$word:ident| $access:block) => {{
        let at = $mapping.at($offset, usize::from($size))?;
        match $size {
            $($bytes => {
                // SAFETY: `at` has checked bounds and alignment relative to the page-aligned base, and the mapping
                // lives as long as this reference to it. The guest may access the word meanwhile, which is why each
                // access is atomic.
                let $word = unsafe { <$atomic>::from_ptr(at.cast()) };
                Some($access)
            })+
            _ => None,
        }
    }};
}

impl Mapping {
    /// Maps `len` bytes of a file, shared.
    pub(super) fn new(
        fd: &OwnedFd,
        offset: u64,
        len: usize,
        writable: bool,
        charge: Option<Charge>,
    ) -> Result<Mapping, Errno> {
        let mut protection = ProtFlags::READ;
        if writable {
            protection |= ProtFlags::WRITE;
        }
        // SAFETY: a new mapping at an address the kernel chooses overlaps nothing this process uses. It is only ever
        // accessed by atomic operations through `base`, and unmapped once, on drop.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED | MapFlags::NORESERVE, fd, offset)?
        };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Mapping { base, len, writable, _charge: charge })
    }

    /// The address of `size` bytes at `offset`; `None` if they are not within the mapping, or not aligned for an atomic
    /// access.
    fn at(&self, offset: u64, size: usize) -> Option<*mut u8> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(size)?;
        if end > self.len || offset % size.clamp(1, 8) != 0 {
            return None;
        }
        // SAFETY: offset + size <= len was just checked, so the result lies within the mapping.
        Some(unsafe { self.base.as_ptr().add(offset) })
    }

    /// Loads 1, 2, 4 or 8 bytes; `None` if that is not possible at `offset`.
    #[allow(clippy::useless_conversion, reason = "only the widest word is a u64 already")]
    pub(super) fn load(&self, offset: u64, size: u8) -> Option<u64> {
        with_word!(self, offset, size, [1: AtomicU8, 2: AtomicU16, 4: AtomicU32, 8: AtomicU64], |word| {
            u64::from(word.load(Ordering::Acquire))
        })
    }

    /// Stores 1, 2, 4 or 8 bytes; `None` if that is not possible at `offset`.
    pub(super) fn store(&self, offset: u64, size: u8, value: u64) -> Option<()> {
        if !self.writable {
            return None;
        }
        with_word!(self, offset, size, [1: AtomicU8, 2: AtomicU16, 4: AtomicU32, 8: AtomicU64], |word| {
            word.store(value as _, Ordering::Release)
        })
    }

    /// Performs an atomic on 4 or 8 bytes and returns the old value; `None` if that is not possible at `offset`.
    #[allow(clippy::useless_conversion, reason = "as for loads")]
    pub(super) fn atomic(&self, offset: u64, size: u8, op: AtomicOp, operand: u64, compare: u64) -> Option<u64> {
        if !self.writable {
            return None;
        }
        with_word!(self, offset, size, [4: AtomicU32, 8: AtomicU64], |word| {
            u64::from(match op {
                AtomicOp::Swap => word.swap(operand as _, Ordering::AcqRel),
                AtomicOp::Add => word.fetch_add(operand as _, Ordering::AcqRel),
                AtomicOp::CompareSwap => word
                    .compare_exchange(compare as _, operand as _, Ordering::AcqRel, Ordering::Acquire)
                    .unwrap_or_else(|found| found),
            })
        })
    }

    /// Loads a block of any alignment, with word accesses where it covers whole words.
    pub(super) fn load_block(&self, offset: u64, length: u32) -> Option<Arc<[u8]>> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(length as usize).filter(|end| *end <= self.len)?;
        let mut block = Arc::<[u8]>::new_uninit_slice(length as usize);
        let bytes: *mut u8 = Arc::get_mut(&mut block)?.as_mut_ptr().cast();
        let (words, tail) = whole_words(start, end);
        // SAFETY: all accesses to the mapping are within start..end, which lies within it; words are aligned. The guest
        // may write meanwhile, which is why each of them is atomic. `bytes` has `length` bytes, which this alone can
        // access, and all of them are written: those before the words, the words, and those behind.
        unsafe {
            let load = |at: usize| {
                let byte = AtomicU8::from_ptr(self.base.as_ptr().add(at)).load(Ordering::Relaxed);
                bytes.add(at - start).write(byte);
            };
            (start..words).for_each(load);
            load_words(bytes.add(words - start), self.base.as_ptr().add(words), (tail - words) / 8);
            (tail..end).for_each(load);
            fence(Ordering::Acquire);
            Some(block.assume_init())
        }
    }

    /// Whether `length` bytes from `offset` lie within the mapping.
    pub(super) fn holds(&self, offset: u64, length: u32) -> bool {
        offset.checked_add(length.into()).is_some_and(|end| end <= self.len as u64)
    }

    /// Copies `length` bytes from `offset` to `at` of another mapping, with word accesses at both ends where both cover
    /// whole words. The ranges may overlap, since two maps may be of the same memory; what is there then is some
    /// mixture of what was there before.
    pub(super) fn copy(&self, offset: u64, length: u32, to: &Mapping, at: u64) -> Option<()> {
        if (offset ^ at) % 8 != 0 {
            // No word access at one end would be one at the other.
            return to.store_block(at, &self.load_block(offset, length)?);
        }
        let (start, length) = (usize::try_from(offset).ok()?, length as usize);
        let target = usize::try_from(at).ok()?;
        let end = start.checked_add(length).filter(|end| *end <= self.len)?;
        target.checked_add(length).filter(|end| *end <= to.len && to.writable)?;
        let (words, tail) = whole_words(start, end);
        fence(Ordering::Release);
        // SAFETY: all accesses are within start..end of this mapping and as many bytes from `target` of the other,
        // which lie within them; words are aligned in both, whose bases are. The guests may access the bytes meanwhile,
        // and both may be the same memory, which is why each access is atomic; the other mapping is writable.
        unsafe {
            let (from, to) = (self.base.as_ptr(), to.base.as_ptr().add(target));
            let byte = |place: usize| {
                let value = AtomicU8::from_ptr(from.add(place)).load(Ordering::Relaxed);
                AtomicU8::from_ptr(to.add(place - start)).store(value, Ordering::Relaxed);
            };
            (start..words).for_each(byte);
            copy_words(to.add(words - start), from.add(words), (tail - words) / 8);
            (tail..end).for_each(byte);
        }
        fence(Ordering::Acquire);
        Some(())
    }

    /// Stores a block of any alignment, with word accesses where it covers whole words.
    pub(super) fn store_block(&self, offset: u64, bytes: &[u8]) -> Option<()> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(bytes.len()).filter(|end| *end <= self.len && self.writable)?;
        let (words, tail) = whole_words(start, end);
        fence(Ordering::Release);
        // SAFETY: as in `load_block`; the mapping is writable.
        unsafe {
            let store = |at: usize| {
                AtomicU8::from_ptr(self.base.as_ptr().add(at)).store(bytes[at - start], Ordering::Relaxed);
            };
            (start..words).for_each(store);
            let from = bytes[words - start..tail - start].as_ptr();
            store_words(self.base.as_ptr().add(words), from, (tail - words) / 8);
            (tail..end).for_each(store);
        }
        Some(())
    }
}

/// Moves words by vector registers where both sides allow it, which is faster than the processor's own loop over words
/// for what is not in its cache (by a sixth for 16 MiB), and by that loop elsewhere, which is four times as fast as one
/// of single accesses. As instructions they are outside the language's memory model, like the guest that accesses the
/// words meanwhile. Each word is part of one load and one store, whichever side is guest memory: an aligned access of a
/// vector register divides no word.
///
/// # Safety
/// `from` and `to` are valid for `words` words.
#[cfg(target_arch = "x86_64")]
unsafe fn move_words(mut to: *mut u8, mut from: *const u8, mut words: usize) {
    /// Words of one round of the loop.
    const ROUND: usize = 8;
    // Up to a boundary of 16 bytes: one word.
    let head = to.addr() / 8 % 2;
    if (to.addr() ^ from.addr()) % 16 == 0 && to.addr() % 8 == 0 && words >= head + ROUND {
        let rounds = (words - head) / ROUND;
        // SAFETY: the caller's: `head` words and `rounds` times 8 lie within, and behind `head` both sides are aligned
        // to 16. No stack or other memory is used.
        unsafe {
            std::arch::asm!(
                "rep movsq",
                inout("rcx") head => _,
                inout("rdi") to,
                inout("rsi") from,
                options(nostack, preserves_flags)
            );
            std::arch::asm!(
                "2:",
                "movdqa {a}, [{from}]",
                "movdqa {b}, [{from} + 16]",
                "movdqa {c}, [{from} + 32]",
                "movdqa {d}, [{from} + 48]",
                "movdqa [{to}], {a}",
                "movdqa [{to} + 16], {b}",
                "movdqa [{to} + 32], {c}",
                "movdqa [{to} + 48], {d}",
                "add {from}, 64",
                "add {to}, 64",
                "dec {rounds}",
                "jnz 2b",
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                from = inout(reg) from,
                to = inout(reg) to,
                rounds = inout(reg) rounds => _,
                options(nostack)
            );
        }
        words -= head + rounds * ROUND;
    }
    // SAFETY: the caller's; the direction flag is clear at every call in Rust, and no stack or other memory is used.
    unsafe {
        std::arch::asm!(
            "rep movsq",
            inout("rcx") words => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags)
        );
    }
}
#[cfg(target_arch = "x86_64")]
use move_words as copy_words;
#[cfg(target_arch = "x86_64")]
use move_words as load_words;
#[cfg(target_arch = "x86_64")]
use move_words as store_words;

/// Copies aligned words of guest memory to private memory of any alignment, each by one load.
///
/// # Safety
/// `from` is aligned to 8 and valid for loads of `words` words, `to` for their bytes, and both are apart.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn load_words(to: *mut u8, from: *const u8, words: usize) {
    for word in 0..words {
        // SAFETY: the caller's.
        unsafe {
            let value = AtomicU64::from_ptr(from.cast::<u64>().cast_mut().add(word)).load(Ordering::Relaxed);
            to.cast::<u64>().add(word).write_unaligned(value);
        }
    }
}

/// Copies words from private memory of any alignment to aligned words of guest memory, each by one store.
///
/// # Safety
/// `to` is aligned to 8 and valid for stores of `words` words, `from` for their bytes, and both are apart.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn store_words(to: *mut u8, from: *const u8, words: usize) {
    for word in 0..words {
        // SAFETY: the caller's.
        unsafe {
            let value = from.cast::<u64>().add(word).read_unaligned();
            AtomicU64::from_ptr(to.cast::<u64>().add(word)).store(value, Ordering::Relaxed);
        }
    }
}

/// Copies aligned words of guest memory to aligned words of guest memory, each by one load and one store.
///
/// # Safety
/// `from` and `to` are aligned to 8 and valid for `words` words.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_words(to: *mut u8, from: *const u8, words: usize) {
    for word in 0..words {
        // SAFETY: the caller's.
        unsafe {
            let value = AtomicU64::from_ptr(from.cast::<u64>().cast_mut().add(word)).load(Ordering::Relaxed);
            AtomicU64::from_ptr(to.cast::<u64>().add(word)).store(value, Ordering::Relaxed);
        }
    }
}

/// Where the aligned 8-byte words within a range begin and end; both are the end of the range if there is none.
fn whole_words(start: usize, end: usize) -> (usize, usize) {
    let words = start.next_multiple_of(8).min(end);
    (words, words + (end - words) / 8 * 8)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and len are those of the mmap in `new`, and nothing refers to the mapping. munmap fails only for
        // other values, so its result is ignored.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
