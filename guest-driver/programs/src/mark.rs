// SPDX-License-Identifier: MIT OR Apache-2.0
//! Markers around what the counting plugin is to measure (`docs/plugin.md`).
//!
//! Each is one instruction that does nothing, with or without a plugin, on any machine, with no right needed. The
//! compiler moves no memory access across it.

pub use telegraphos_plugin_core::Marker;

macro_rules! emit {
    ($marker:expr) => {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a no-operation. Without `nomem`, so that the compiler keeps memory accesses on their side of it.
        unsafe {
            std::arch::asm!(
                ".byte 0x0f, 0x1f, 0x80",
                ".long {displacement}",
                displacement = const $marker.displacement(),
                options(nostack, preserves_flags)
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            // The plugin watches x86 guests.
            let _ = $marker;
        }
    };
}

/// From here on, region `R` is measured on this processor.
#[inline(always)]
pub fn begin<const R: u16>() {
    emit!(Marker::Begin(R));
}

/// Region `R` ends here.
#[inline(always)]
pub fn end<const R: u16>() {
    emit!(Marker::End(R));
}

/// The whole pages in these bytes are watched from here on: regions say how they are accessed, by whatever address.
///
/// A byte of each is loaded, and no other memory is accessed, which would be watched, too. An interrupt meanwhile
/// leaves it without effect. `R` is a region of its own.
pub fn watch<const R: u16>(bytes: &[u8]) {
    const PAGE: usize = 4096;
    let first = bytes.as_ptr().align_offset(PAGE).min(bytes.len());
    let whole = &bytes[first..first + (bytes.len() - first) / PAGE * PAGE];
    #[cfg(target_arch = "x86_64")]
    // SAFETY: loads from the slice; without `nomem`, as above.
    unsafe {
        std::arch::asm!(
            ".byte 0x0f, 0x1f, 0x80",
            ".long {watch}",
            "2:",
            "cmp {at}, {behind}",
            "jae 3f",
            "mov {byte}, byte ptr [{at}]",
            "add {at}, {page}",
            "jmp 2b",
            "3:",
            ".byte 0x0f, 0x1f, 0x80",
            ".long {end}",
            watch = const Marker::Watch(R).displacement(),
            end = const Marker::End(R).displacement(),
            page = const PAGE,
            at = inout(reg) whole.as_ptr() => _,
            behind = in(reg) whole.as_ptr_range().end,
            byte = out(reg_byte) _,
            options(nostack, readonly)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = whole;
}

/// The plugin writes its table; it has done so when this returns.
pub fn report() {
    emit!(Marker::Report);
}

/// The plugin forgets what it has counted.
pub fn clear() {
    emit!(Marker::Clear);
}
