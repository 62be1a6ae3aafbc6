// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU's pci-testdev, the baseline for accesses to a device inside QEMU.

use crate::cli::{Failure, Outcome};
use crate::pci::{Bar, Device};

/// Its mapped registers: BAR0, whose accesses QEMU itself handles.
#[derive(Debug)]
pub struct Testdev(Bar);

impl Testdev {
    /// A byte past the test selector, where stores and loads have no effect.
    pub const IDLE: usize = 8;

    /// Maps it. Needs root.
    pub fn open() -> Outcome<Testdev> {
        let device = Device::of(0x1b36, 0x0005).ok_or_else(|| {
            Failure::Refused("this guest has no pci-testdev (1b36:0005): start QEMU with -device pci-testdev".into())
        })?;
        device.enable()?;
        Ok(Testdev(device.map(0)?))
    }

    /// The first of 4096 mapped bytes; only single bytes are to be accessed.
    pub fn at(&self) -> *mut u8 {
        self.0.at()
    }
}
