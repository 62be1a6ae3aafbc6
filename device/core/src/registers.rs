// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registers of BAR0 that keep the value last written, and the latched error. `control` reads and writes them;
//! [`Ctx`](crate::ctx::Ctx) latches errors.

use crate::Bar;
use telegraphos_wire::Status;
use telegraphos_wire::admin::BLOCK_SIZE;

/// Writable registers and the latched error.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Registers {
    pub(crate) control: u32,
    pub(crate) admin_base: u64,
    pub(crate) error: u64,
    pub(crate) error_address: u64,
}

impl Registers {
    /// Latches an error in ERROR and ERROR_ADDRESS. Returns false if one is latched already.
    pub(crate) fn latch(&mut self, bar: Bar, offset: u64, size: u32, status: Status) -> bool {
        if self.error != 0 {
            return false;
        }
        let bar = match bar {
            Bar::Control => 0,
            Bar::Contexts => 2,
            Bar::Window => 4,
        };
        self.error = status as u64 | bar << 16 | u64::from(size.min(255)) << 20;
        self.error_address = offset;
        true
    }

    /// Guest address of an admin slot's block.
    pub(crate) fn slot_address(&self, slot: u32) -> u64 {
        self.admin_base.wrapping_add(u64::from(slot) * BLOCK_SIZE as u64)
    }
}
