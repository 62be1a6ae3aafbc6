// SPDX-License-Identifier: MIT OR Apache-2.0
//! PCI devices that have no driver, from user space: their BARs and config space by way of sysfs. Needs root.

use crate::cli::{Failure, Outcome};
use crate::mapping::{Mapping, READ_WRITE};
use std::fmt::Display;
use std::fs::{File, read, read_dir, read_to_string, write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const COMMAND: u64 = 4;
/// Memory accesses, and accesses by the device.
const ENABLED: u16 = 1 << 1 | 1 << 2;
/// No interrupt by its pin.
const INTERRUPT_DISABLED: u16 = 1 << 10;
const CAPABILITIES: usize = 0x34;
const MSIX: u8 = 0x11;
const MSIX_ENABLE: u16 = 1 << 15;

fn refused(path: &Path, e: &dyn Display) -> Failure {
    Failure::Refused(format!("{}: {e}; only root may use a PCI device so", path.display()))
}

#[derive(Clone, Debug)]
pub struct Device(PathBuf);

impl Device {
    /// The device in a slot of bus 0, if there is one.
    pub fn at(slot: u8) -> Option<Device> {
        let path = PathBuf::from(format!("/sys/bus/pci/devices/0000:00:{slot:02x}.0"));
        path.is_dir().then_some(Device(path))
    }

    /// The same, which must be there; enabled.
    pub fn enabled_at(slot: u8, what: &str) -> Outcome<Device> {
        let absent = || Failure::Refused(format!("there is no {what} in slot {slot:#x}"));
        let device = Device::at(slot).ok_or_else(absent)?;
        device.enable()?;
        Ok(device)
    }

    /// The first device with these ids, if there is one.
    pub fn of(vendor: u32, device: u32) -> Option<Device> {
        let has = |path: &Path, file: &str, id: u32| {
            read_to_string(path.join(file)).is_ok_and(|text| text.trim() == format!("{id:#06x}"))
        };
        let mut all = read_dir("/sys/bus/pci/devices").ok()?.flatten().map(|entry| entry.path());
        all.find(|path| has(path, "vendor", vendor) && has(path, "device", device)).map(Device)
    }

    /// Its name on its bus, as a driver's files take it.
    pub fn name(&self) -> &Path {
        self.0.file_name().unwrap_or_default().as_ref()
    }

    /// A file or directory of it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Lets it answer accesses, and make some of its own. Linux leaves a device without driver switched off.
    pub fn enable(&self) -> Outcome<()> {
        let path = self.path("enable");
        write(&path, "1").map_err(|e| refused(&path, &e))?;
        self.command(|command| command | ENABLED)
    }

    /// Lets it interrupt by its pin.
    pub fn allow_interrupt(&self) -> Outcome<()> {
        self.command(|command| command & !INTERRUPT_DISABLED)
    }

    /// Changes the command register.
    fn command(&self, change: impl FnOnce(u16) -> u16) -> Outcome<()> {
        let path = self.path("config");
        let config = File::options().read(true).write(true).open(&path).map_err(|e| refused(&path, &e))?;
        let mut word = [0; 2];
        config.read_exact_at(&mut word, COMMAND).map_err(|e| refused(&path, &e))?;
        let command = change(u16::from_le_bytes(word));
        config.write_all_at(&command.to_le_bytes(), COMMAND).map_err(|e| refused(&path, &e))
    }

    /// Maps a BAR.
    pub fn map(&self, bar: u8) -> Outcome<Bar> {
        let (_, bytes) = self.range(bar)?;
        let path = self.path(&format!("resource{bar}"));
        let file = File::options().read(true).write(true).open(&path).map_err(|e| refused(&path, &e))?;
        Mapping::of(&file, 0, bytes, READ_WRITE).map_err(|e| refused(&path, &e))
    }

    /// The physical address of a BAR, and its length.
    pub fn range(&self, bar: u8) -> Outcome<(u64, usize)> {
        let path = self.path("resource");
        let text = read_to_string(&path).map_err(|e| refused(&path, &e))?;
        let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
        let range = text.lines().nth(bar.into()).and_then(|line| {
            let mut words = line.split_whitespace();
            let (first, last) = (hex(words.next()?)?, hex(words.next()?)?);
            (first > 0).then_some((first, usize::try_from(last - first).ok()? + 1))
        });
        range.ok_or_else(|| Failure::Refused(format!("{}: BAR {bar} has no address", path.display())))
    }

    /// Switches MSI-X on; the vectors are to be set before.
    pub fn enable_msix(&self) -> Outcome<()> {
        let path = self.path("config");
        let config = read(&path).map_err(|e| refused(&path, &e))?;
        let mut at = config.get(CAPABILITIES).copied().unwrap_or(0);
        // A list of more would be a circle.
        for _ in 0..48 {
            let place = usize::from(at);
            let Some(&[id, next, low, high]) = config.get(place..place + 4).filter(|_| at != 0) else { break };
            if id == MSIX {
                let control = u16::from_le_bytes([low, high]) | MSIX_ENABLE;
                let file = File::options().write(true).open(&path).map_err(|e| refused(&path, &e))?;
                return file.write_all_at(&control.to_le_bytes(), u64::from(at) + 2).map_err(|e| refused(&path, &e));
            }
            at = next;
        }
        Err(Failure::Refused(format!("{}: it has no MSI-X", path.display())))
    }
}

/// A BAR, mapped.
pub type Bar = Mapping;
