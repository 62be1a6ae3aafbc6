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

/// The plugin writes its table; it has done so when this returns.
pub fn report() {
    emit!(Marker::Report);
}

/// The plugin forgets what it has counted.
pub fn clear() {
    emit!(Marker::Clear);
}
