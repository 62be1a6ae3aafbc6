// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that both guests map.

use std::rc::Rc;
use std::time::{Duration, Instant};
use telegraphos_agent::bench::slot;
use telegraphos_guest_tests::cli::{Failure, Outcome};
use telegraphos_guest_tests::pci::{Bar, Device};
use telegraphos_guest_tests::raw;

/// Calls until it returns true, without a pause.
pub(crate) fn poll(patience: Duration, what: &str, mut ready: impl FnMut() -> bool) -> Outcome<()> {
    let begun = Instant::now();
    loop {
        for _ in 0..256 {
            if ready() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        if begun.elapsed() > patience {
            return Err(Failure::Refused(format!("{what} has not come in {patience:?}")));
        }
    }
}

/// Memory that both guests map: `ivshmem-plain`.
#[derive(Debug)]
pub(crate) struct Shared(Bar);

impl Shared {
    pub(crate) fn open() -> Outcome<Rc<Shared>> {
        Ok(Rc::new(Shared(Device::enabled_at(slot::IVSHMEM, "ivshmem-plain")?.map(2)?)))
    }

    pub(crate) fn at(&self) -> *mut u8 {
        self.0.at()
    }

    pub(crate) fn store(&self, at: u64, value: u64) {
        // SAFETY: places are aligned and in the mapped BAR.
        unsafe { raw::store::<u64>(self.0.at(), at, value) };
    }

    pub(crate) fn load(&self, at: u64) -> u64 {
        // SAFETY: as above.
        unsafe { raw::load::<u64>(self.0.at(), at) }
    }

    /// Polls for a value.
    pub(crate) fn until(&self, at: u64, value: u64, patience: Duration) -> Outcome<()> {
        poll(patience, "a value in shared memory", || self.load(at) == value)
    }
}
