// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ivshmem-doorbell`, at its best without a driver of its own: Debian's kernels have none for it.
//!
//! An MSI-X vector is a store of a word to an address. Vector 0 stores to memory that this program polls: the
//! doorbell, looking, without an interrupt. Vector 1 stores to the register of `edu` that raises its interrupt, for
//! which `uio_pci_generic` wakes a reader: the doorbell, asleep, which costs two accesses to `edu` and one to its
//! config space (a microsecond or two under TCG) more than a driver of its own would.

use super::modules::load_modules;
use super::shared::{Shared, poll};
use std::fs::{File, read_dir, write};
use std::io::Read;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;
use telegraphos_agent::bench::{VECTORS, shared, slot};
use telegraphos_guest_tests::cli::{self, Failure, Outcome, failed};
use telegraphos_guest_tests::pci::{Bar, Device};
use telegraphos_guest_tests::raw;

/// Registers of `ivshmem`: its own number; the other's number and the vector, 16 bits each.
const NUMBER: u64 = 8;
const RING: u64 = 12;
/// Registers of `edu`.
const RAISE: u64 = 0x60;
const ACKNOWLEDGE: u64 = 0x64;
const STATUS: u64 = 0x24;
/// Bytes of a vector: address, data, control.
const VECTOR: u64 = 16;

#[derive(Debug)]
pub(crate) struct Doorbell {
    registers: Bar,
    memory: Rc<Shared>,
    /// The number of the other one of the two.
    other: u32,
    place: usize,
}

impl Doorbell {
    pub(crate) fn open(memory: Rc<Shared>, place: usize) -> Outcome<Doorbell> {
        let device = Device::enabled_at(slot::DOORBELL, "ivshmem-doorbell")?;
        let words = device.range(2)?.0 + shared::RUNG[place];
        let raise = Device::at(slot::EDU).and_then(|edu| Some(edu.range(0).ok()?.0 + RAISE));
        let table = device.map(1)?;
        for (vector, address) in VECTORS.into_iter().zip([words, raise.unwrap_or(words)]) {
            let at = u64::from(vector) * VECTOR;
            for (offset, value) in [(0, address), (4, address >> 32), (8, 1), (12, 0)] {
                // SAFETY: the device has as many vectors, in this BAR.
                unsafe { raw::store::<u32>(table.at(), at + offset, value & u64::from(u32::MAX)) };
            }
        }
        device.enable_msix()?;
        memory.store(shared::RUNG[place], 0);
        let registers = device.map(0)?;
        // SAFETY: a register in the mapped BAR.
        let own = unsafe { raw::load::<u32>(registers.at(), NUMBER) };
        cli::must(own <= 1, Failure::Refused, || format!("ivshmem-doorbell has number {own}: expected 0 or 1"))?;
        Ok(Doorbell { registers, memory, other: 1 - own as u32, place })
    }

    pub(crate) fn ring(&self, index: usize) {
        let value = self.other << 16 | u32::from(VECTORS[index]);
        // SAFETY: a register in the mapped BAR.
        unsafe { raw::store::<u32>(self.registers.at(), RING, value.into()) };
    }

    /// Polls until the other has rung.
    pub(crate) fn look(&self, patience: Duration) -> Outcome<()> {
        let at = shared::RUNG[self.place];
        poll(patience, "the doorbell", || self.memory.load(at) != 0)?;
        self.memory.store(at, 0);
        Ok(())
    }

    pub(crate) fn sleeper(&self) -> Outcome<Sleeper> {
        Sleeper::open()
    }
}

/// A reader of `edu`'s interrupts.
pub(crate) struct Sleeper {
    uio: File,
    edu: Bar,
    device: Device,
}

impl Sleeper {
    fn open() -> Outcome<Sleeper> {
        let absent = || Failure::Refused(format!("there is no edu in slot {:#x} to interrupt with", slot::EDU));
        let device = Device::at(slot::EDU).ok_or_else(absent)?;
        load_modules(&["uio", "uio_pci_generic"])?;
        device.enable()?;
        let id = "/sys/bus/pci/drivers/uio_pci_generic/new_id";
        // It exists already if this is not the first run in this guest.
        if !device.path("driver").exists() {
            write(id, "1234 11e8").map_err(failed(id))?;
        }
        let mut names = read_dir(device.path("uio")).map_err(failed("edu as uio device"))?.flatten();
        let name = names.next().ok_or_else(|| Failure::Refused("edu has no uio device".into()))?.file_name();
        let path = format!("/dev/{}", name.to_string_lossy());
        let uio = File::options().read(true).write(true).open(&path).map_err(failed(&path))?;
        let sleeper = Sleeper { uio, edu: device.map(0)?, device };
        sleeper.rearm()?;
        Ok(sleeper)
    }

    /// Withdraws the interrupt, and lets the next one through: `uio_pci_generic` has disabled it.
    fn rearm(&self) -> Outcome<()> {
        // SAFETY: registers in the mapped BAR.
        unsafe {
            let status = raw::load::<u32>(self.edu.at(), STATUS);
            raw::store::<u32>(self.edu.at(), ACKNOWLEDGE, status);
        }
        self.device.allow_interrupt()
    }

    /// Sleeps until the other has rung.
    pub(crate) fn wait(&mut self, patience: Duration) -> Outcome<()> {
        use rustix::event::{PollFd, PollFlags, Timespec};
        let limit = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: 0 };
        let mut fds = [PollFd::from_borrowed_fd(self.uio.as_fd(), PollFlags::IN)];
        let ready = rustix::event::poll(&mut fds, Some(&limit));
        cli::must(matches!(ready, Ok(1..)), Failure::Refused, || format!("no interrupt has come in {patience:?}"))?;
        let mut count = [0; 4];
        self.uio.read_exact(&mut count).map_err(failed("uio"))?;
        self.rearm()
    }
}
