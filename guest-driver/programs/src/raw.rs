// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accesses on a bare pointer from mmap, as a program would make them without the library.

use telegraphos::{Error, Segment};

/// A word that a pointer can point to.
pub trait Plain: Copy {
    /// Bytes.
    const SIZE: usize = size_of::<Self>();
    /// The low bytes.
    fn low(value: u64) -> Self;
    /// Zero-extended.
    fn wide(self) -> u64;
}

macro_rules! plain {
    ($($type:ty),*) => { $(
        impl Plain for $type {
            fn low(value: u64) -> Self { value as $type }
            fn wide(self) -> u64 { u64::from(self) }
        }
    )* };
}
plain!(u8, u16, u32, u64);

/// `*(T *)(base + offset) = value`.
///
/// # Safety
/// The word lies, aligned, in a writable mapping.
pub unsafe fn store<T: Plain>(base: *mut u8, offset: u64, value: u64) {
    // SAFETY: the caller's.
    unsafe { base.add(offset as usize).cast::<T>().write_volatile(T::low(value)) }
}

/// `*(T *)(base + offset)`.
///
/// # Safety
/// The word lies, aligned, in a readable mapping.
pub unsafe fn load<T: Plain>(base: *mut u8, offset: u64) -> u64 {
    // SAFETY: the caller's.
    unsafe { base.add(offset as usize).cast::<T>().read_volatile().wide() }
}

/// A store of `size` (1, 2, 4, 8) bytes.
///
/// # Safety
/// The word lies, aligned, in a writable mapping.
pub unsafe fn store_size(base: *mut u8, offset: u64, size: usize, value: u64) {
    // SAFETY: the caller's.
    unsafe {
        match size {
            1 => store::<u8>(base, offset, value),
            2 => store::<u16>(base, offset, value),
            4 => store::<u32>(base, offset, value),
            _ => store::<u64>(base, offset, value),
        }
    }
}

/// A load of `size` (1, 2, 4, 8) bytes.
///
/// # Safety
/// The word lies, aligned, in a readable mapping.
pub unsafe fn load_size(base: *mut u8, offset: u64, size: usize) -> u64 {
    // SAFETY: the caller's.
    unsafe {
        match size {
            1 => load::<u8>(base, offset),
            2 => load::<u16>(base, offset),
            4 => load::<u32>(base, offset),
            _ => load::<u64>(base, offset),
        }
    }
}

/// A word of `size` (1, 2, 4, 8) bytes of this node's segment.
pub fn own(segment: &Segment, offset: u64, size: usize) -> Result<u64, Error> {
    Ok(match size {
        1 => segment.load::<u8>(offset)?.into(),
        2 => segment.load::<u16>(offset)?.into(),
        4 => segment.load::<u32>(offset)?.into(),
        _ => segment.load(offset)?,
    })
}

/// One 8-byte store instruction at any address, aligned or not.
///
/// # Safety
/// The eight bytes lie in a writable mapping.
#[cfg(target_arch = "x86_64")]
pub unsafe fn store_misaligned(base: *mut u8, offset: u64, value: u64) {
    // SAFETY: the caller's; the instruction touches nothing else.
    unsafe {
        std::arch::asm!("mov qword ptr [{at}], {value}", at = in(reg) base.add(offset as usize), value = in(reg) value,
            options(nostack, preserves_flags));
    }
}

/// The low bytes of a value.
pub fn masked(value: u64, size: usize) -> u64 {
    if size >= 8 { value } else { value & ((1 << (8 * size)) - 1) }
}
