// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accesses of the guest to the window.

use telegraphos_wire::{WindowAddress, WindowLayout};

/// An access to the window. Its address is decoded once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowAccess {
    /// Byte offset in the window's BAR.
    pub(crate) offset: u64,
    /// The parts of the offset.
    pub(crate) address: WindowAddress,
    /// Size in bytes.
    pub(crate) size: u32,
}

impl WindowAccess {
    /// The access to these bytes of a window.
    pub(crate) fn new(window: &WindowLayout, offset: u64, size: u32) -> WindowAccess {
        WindowAccess { offset, address: window.decode(offset), size }
    }
}
