// SPDX-License-Identifier: MIT OR Apache-2.0
//! Words, and the single instructions that move them.
//!
//! A compiler may split, merge or repeat even a volatile access as long as the effect on ordinary memory is the same,
//! and `memcpy` may use vector registers, which virtual machine monitors cannot emulate on device memory. So window
//! accesses are inline assembly: one scalar instruction with a plain base register each.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

mod sealed {
    /// The instructions of one width.
    pub trait Instructions: Sized {
        /// One store instruction to a window.
        ///
        /// # Safety
        /// `at` is naturally aligned and lies in a mapping that may be stored to.
        unsafe fn window_store(at: *mut Self, value: Self);
        /// One load instruction from a window.
        ///
        /// # Safety
        /// `at` is naturally aligned and lies in a mapping that may be loaded from.
        unsafe fn window_load(at: *const Self) -> Self;
        /// Load from memory that others store to.
        ///
        /// # Safety
        /// As for `window_load`, and all other accesses to the memory are atomic.
        unsafe fn load_acquire(at: *mut Self) -> Self;
        /// Load (acquire) from memory that others store to and that is mapped read-only.
        ///
        /// # Safety
        /// As for `window_load`, and all stores to the memory are atomic.
        unsafe fn load_copy(at: *const Self) -> Self;
        /// Store to memory that others load from.
        ///
        /// # Safety
        /// As for `window_store`, and all other accesses to the memory are atomic.
        unsafe fn store_release(at: *mut Self, value: Self);
    }
}
pub(crate) use sealed::Instructions;

/// The operand of one load or store instruction: `u8`, `u16`, `u32` or `u64`.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use telegraphos::{Remote, Result, Word};
///
/// /// Stores the same value to `count` words, one instruction each.
/// fn fill<T: Word>(memory: &Remote, value: T, count: u64) -> Result<()> {
///     (0..count).try_for_each(|index| memory.put(index * T::SIZE as u64, value))
/// }
/// # let memory = node.import(3, "ring").open()?;
/// fill(&memory, 0u16, 100)?;
/// # Ok(()) }
/// ```
pub trait Word: sealed::Instructions + Copy + Eq + Debug + Send + Sync + 'static {
    /// Its size in bytes.
    const SIZE: usize = size_of::<Self>();
    /// All bits set, as returned by a load that cannot be served.
    const ONES: Self;
    /// The low bytes of `value`.
    fn from_u64(value: u64) -> Self;
    /// Zero-extended.
    fn to_u64(self) -> u64;
}

macro_rules! word {
    ($type:ty, $atomic:ty,
     x86: $xclass:ident, $xstore:literal, $xload:literal,
     arm: $astore:literal, $aload:literal) => {
        impl sealed::Instructions for $type {
            #[inline(always)]
            unsafe fn window_store(at: *mut Self, value: Self) {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the caller guarantees that `at` is valid; the instruction touches nothing else.
                unsafe {
                    std::arch::asm!($xstore, at = in(reg) at, value = in($xclass) value,
                        options(nostack, preserves_flags));
                }
                #[cfg(target_arch = "aarch64")]
                // SAFETY: the caller guarantees that `at` is valid; the instruction touches nothing else.
                unsafe {
                    std::arch::asm!($astore, at = in(reg) at, value = in(reg) value,
                        options(nostack, preserves_flags));
                }
                #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
                // SAFETY: the caller guarantees that `at` is valid.
                unsafe {
                    at.write_volatile(value);
                }
            }

            #[inline(always)]
            unsafe fn window_load(at: *const Self) -> Self {
                #[cfg(target_arch = "x86_64")]
                {
                    let value: Self;
                    // SAFETY: the caller guarantees that `at` is valid; the instruction touches nothing else.
                    unsafe {
                        std::arch::asm!($xload, at = in(reg) at, value = out($xclass) value,
                            options(nostack, preserves_flags));
                    }
                    value
                }
                #[cfg(target_arch = "aarch64")]
                {
                    let value: Self;
                    // SAFETY: the caller guarantees that `at` is valid; the instruction touches nothing else.
                    unsafe {
                        std::arch::asm!($aload, at = in(reg) at, value = out(reg) value,
                            options(nostack, preserves_flags));
                    }
                    value
                }
                #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
                // SAFETY: the caller guarantees that `at` is valid.
                unsafe {
                    at.read_volatile()
                }
            }

            #[inline(always)]
            unsafe fn load_acquire(at: *mut Self) -> Self {
                // SAFETY: the caller guarantees both conditions.
                unsafe { <$atomic>::from_ptr(at) }.load(Ordering::Acquire)
            }

            #[inline(always)]
            unsafe fn load_copy(at: *const Self) -> Self {
                // Of atomic accesses, only relaxed loads of at most a register are promised to work on read-only
                // memory. SAFETY: the caller guarantees both conditions; nothing is stored.
                let value = unsafe { <$atomic>::from_ptr(at.cast_mut()) }.load(Ordering::Relaxed);
                std::sync::atomic::fence(Ordering::Acquire);
                value
            }

            #[inline(always)]
            unsafe fn store_release(at: *mut Self, value: Self) {
                // SAFETY: the caller guarantees both conditions.
                unsafe { <$atomic>::from_ptr(at) }.store(value, Ordering::Release)
            }
        }

        impl Word for $type {
            const ONES: Self = <$type>::MAX;

            #[inline(always)]
            fn from_u64(value: u64) -> Self {
                value as $type
            }

            #[inline(always)]
            fn to_u64(self) -> u64 {
                u64::from(self)
            }
        }
    };
}

word!(u8, AtomicU8,
    x86: reg_byte, "mov byte ptr [{at}], {value}", "mov {value}, byte ptr [{at}]",
    arm: "strb {value:w}, [{at}]", "ldrb {value:w}, [{at}]");
word!(u16, AtomicU16,
    x86: reg, "mov word ptr [{at}], {value:x}", "mov {value:x}, word ptr [{at}]",
    arm: "strh {value:w}, [{at}]", "ldrh {value:w}, [{at}]");
word!(u32, AtomicU32,
    x86: reg, "mov dword ptr [{at}], {value:e}", "mov {value:e}, dword ptr [{at}]",
    arm: "str {value:w}, [{at}]", "ldr {value:w}, [{at}]");
word!(u64, AtomicU64,
    x86: reg, "mov qword ptr [{at}], {value:r}", "mov {value:r}, qword ptr [{at}]",
    arm: "str {value:x}, [{at}]", "ldr {value:x}, [{at}]");

/// A word that atomics change: `u32` or `u64`.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use telegraphos::{AtomicWord, Outcome, Remote, Result};
///
/// /// Makes a word `value` if it was 0; whether it was.
/// fn claim<T: AtomicWord + Outcome>(memory: &Remote, offset: u64, value: T) -> Result<bool> {
///     let zero = T::from_u64(0);
///     Ok(memory.compare_swap(offset, zero, value)? == zero)
/// }
/// # let memory = node.import(3, "words").open()?;
/// let claimed = claim(&memory, 8, 1u32)?;
/// # Ok(()) }
/// ```
pub trait AtomicWord: Word {}
impl AtomicWord for u32 {}
impl AtomicWord for u64 {}

/// Orders earlier ordinary stores before later stores to the board; on x86 they always are.
#[inline(always)]
pub(crate) fn publish() {
    barrier(Ordering::Release);
}

/// A fence of that order for ordinary memory, and on aarch64 for windows, too.
#[inline(always)]
fn barrier(order: Ordering) {
    std::sync::atomic::fence(order);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier has no operands; without `nomem` the compiler keeps accesses on their side too.
    unsafe {
        std::arch::asm!("dmb osh", options(nostack, preserves_flags));
    }
}

/// Orders all earlier accesses of this thread, to ordinary memory and to windows, before all later ones, as far as
/// this processor is concerned. It does not wait for anything to arrive: that is `quiet`.
///
/// Needed on aarch64 between an ordinary store and a `put` that announces it to another node. On x86 those two are in
/// order already; there this is a full fence for ordinary memory, which also orders a store into memory in common
/// ([`ExportBuilder::direct`](crate::ExportBuilder::direct)) before a later load from it, as atomic instructions of a
/// guest need not.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// # let data = node.export("data", 64 << 10).create()?;
/// # let flag = node.import(3, "flag").open()?;
/// data.store(0, 7u64)?; // ordinary memory
/// telegraphos::fence();
/// flag.put64(0, 1)?; // when node 3 finds this and then loads the word, it gets 7
/// # Ok(()) }
/// ```
#[inline]
pub fn fence() {
    barrier(Ordering::SeqCst);
    // What the compiler makes of that is an instruction with a lock prefix, which orders processors of one guest only:
    // where a guest has one, its emulator executes it without any order towards other guests' memory in common.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a barrier has no operands; without `nomem` the compiler keeps accesses on their side too.
    unsafe {
        std::arch::asm!("mfence", options(nostack, preserves_flags));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<T: Word>() {
        let mut memory = [0x5555_5555_5555_5555u64; 4];
        let value = T::from_u64(0xfedc_ba98_7654_3210);
        for index in 0..16 / T::SIZE {
            memory.fill(0x5555_5555_5555_5555);
            let base = memory.as_mut_ptr().cast::<u8>();
            // SAFETY: within `memory`, aligned because index counts words.
            unsafe {
                let at = base.add(8 + index * T::SIZE).cast::<T>();
                T::window_store(at, value);
                assert_eq!(T::window_load(at), value);
                assert_eq!(T::load_acquire(at), value);
                assert_eq!(T::load_copy(at), value);
            }
            // Neighbours are untouched: the instruction is exactly as wide as the word.
            let mut expected = [0x55u8; 32];
            expected[8 + index * T::SIZE..][..T::SIZE].copy_from_slice(&value.to_u64().to_le_bytes()[..T::SIZE]);
            let found: Vec<u8> = memory.iter().flat_map(|w| w.to_le_bytes()).collect();
            assert_eq!(found, expected, "{} bytes at word {index}", T::SIZE);
        }
    }

    #[test]
    fn each_width_moves_exactly_its_bytes() {
        round_trip::<u8>();
        round_trip::<u16>();
        round_trip::<u32>();
        round_trip::<u64>();
    }

    #[test]
    fn words_convert() {
        assert_eq!(u8::from_u64(0x1ff), 0xff);
        assert_eq!(u16::ONES.to_u64(), 0xffff);
        assert_eq!(u64::ONES, u64::MAX);
        assert_eq!(<u32 as Word>::SIZE, 4);
    }
}
