// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU's pci-testdev, the baseline for accesses to a device inside QEMU.

use crate::cli::{Failure, Outcome};
use crate::pci::{Bar, Device};
use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

/// Its mapped registers: BAR0, whose accesses QEMU itself handles.
#[derive(Debug)]
pub struct Testdev(Bar);

impl Testdev {
    /// A byte past the test selector, where stores and loads have no effect.
    pub const IDLE: usize = 8;

    /// Maps it. Needs root.
    pub fn open() -> Outcome<Testdev> {
        let device = Testdev::find().map(Device::in_directory).ok_or_else(|| {
            Failure::Refused("this guest has no pci-testdev (1b36:0005): start QEMU with -device pci-testdev".into())
        })?;
        device.enable()?;
        Ok(Testdev(device.map(0)?))
    }

    /// The first of 4096 mapped bytes; only single bytes are to be accessed.
    pub fn at(&self) -> *mut u8 {
        self.0.at()
    }

    fn find() -> Option<PathBuf> {
        let is =
            |dir: &Path, file: &str, value: &str| read_to_string(dir.join(file)).is_ok_and(|text| text.trim() == value);
        let mut dirs = read_dir("/sys/bus/pci/devices").ok()?.flatten().map(|d| d.path());
        dirs.find(|dir| is(dir, "vendor", "0x1b36") && is(dir, "device", "0x0005"))
    }
}
