// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU's pci-testdev, the baseline for accesses to a device inside QEMU.

use crate::cli::{Failure, Outcome};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fmt::Display;
use std::fs::{File, read_dir, read_to_string, write};
use std::path::{Path, PathBuf};

/// Its mapped registers: BAR0, whose accesses QEMU itself handles.
#[derive(Debug)]
pub struct Testdev {
    at: *mut u8,
}

impl Testdev {
    /// A byte past the test selector, where stores and loads have no effect.
    pub const IDLE: usize = 8;
    const SIZE: usize = 4096;

    /// Maps it. Needs root.
    pub fn open() -> Outcome<Testdev> {
        let refused = |path: &Path, e: &dyn Display| {
            Failure::Refused(format!("{}: {e}; only root may use a PCI device so", path.display()))
        };
        let dir = Testdev::find().ok_or_else(|| {
            Failure::Refused("this guest has no pci-testdev (1b36:0005): start QEMU with -device pci-testdev".into())
        })?;
        // Linux leaves the memory of a device without driver switched off.
        let enable = dir.join("enable");
        write(&enable, "1").map_err(|e| refused(&enable, &e))?;
        let path = dir.join("resource0");
        let file = File::options().read(true).write(true).open(&path).map_err(|e| refused(&path, &e))?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { mmap(std::ptr::null_mut(), Testdev::SIZE, protection, MapFlags::SHARED, &file, 0) };
        Ok(Testdev { at: at.map_err(|e| refused(&path, &e))?.cast() })
    }

    /// The first of 4096 mapped bytes; only single bytes are to be accessed.
    pub fn at(&self) -> *mut u8 {
        self.at
    }

    fn find() -> Option<PathBuf> {
        let is =
            |dir: &Path, file: &str, value: &str| read_to_string(dir.join(file)).is_ok_and(|text| text.trim() == value);
        let mut dirs = read_dir("/sys/bus/pci/devices").ok()?.flatten().map(|d| d.path());
        dirs.find(|dir| is(dir, "vendor", "0x1b36") && is(dir, "device", "0x0005"))
    }
}

impl Drop for Testdev {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`; pointers into it are the caller's care. It cannot fail for a whole mapping.
        let _ = unsafe { munmap(self.at.cast(), Testdev::SIZE) };
    }
}
