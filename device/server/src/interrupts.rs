// SPDX-License-Identifier: MIT OR Apache-2.0
//! Interrupt vectors and their event descriptors. `board` owns them.
//!
//! A trigger without a descriptor, or of a masked vector, stays pending and is delivered when that changes. QEMU
//! attaches descriptors only when the guest enables MSI, which may be after the board's first interrupt.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::vfio::Refused;
use crate::vfio::message::{IrqSet, irq_set};

/// Interrupt index of MSI.
pub const MSI: u32 = 1;
/// Interrupt index of MSI-X.
pub const MSIX: u32 = 2;
/// Interrupt index of unrecoverable errors. The board has one vector there, since QEMU warns about a device without,
/// and never triggers it.
pub const ERROR: u32 = 3;

#[derive(Debug)]
struct Target {
    fd: OwnedFd,
    /// A write to it could block this process, so it is polled first.
    blocking: bool,
}

impl Target {
    /// Writes to the descriptor; no error if it is signalled already.
    fn signal(&self) -> Result<(), Errno> {
        if self.blocking {
            let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            if rustix::event::poll(&mut fds, Some(&now))? == 0 {
                // The counter is at its maximum, so it is signalled already.
                return Ok(());
            }
        }
        match rustix::io::write(&self.fd, &1u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

#[derive(Debug, Default)]
struct Vector {
    target: Option<Target>,
    masked: bool,
    pending: bool,
}

impl Vector {
    /// Delivers an interrupt, or keeps it pending.
    fn trigger(&mut self) -> Result<(), Errno> {
        match &self.target {
            Some(target) if !self.masked => return target.signal(),
            _ => self.pending = true,
        }
        Ok(())
    }

    /// Delivers a pending interrupt if the vector can now.
    fn deliver_pending(&mut self) -> Result<(), Errno> {
        if std::mem::take(&mut self.pending) {
            self.trigger()?;
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub struct Interrupts {
    msix: bool,
    /// The MSI or MSI-X vector.
    main: Vector,
    /// The error vector: QEMU attaches it, the board never triggers it.
    error: Vector,
}

impl Interrupts {
    /// One vector, of MSI-X if `msix`, else of MSI.
    pub fn new(msix: bool) -> Interrupts {
        Interrupts { msix, ..Interrupts::default() }
    }

    /// Number of vectors of an interrupt index; 0 if the device has none.
    pub fn vectors(&self, index: u32) -> u32 {
        let main = if self.msix { MSIX } else { MSI };
        u32::from(index == ERROR || index == main)
    }

    /// Detaches all descriptors and drops pending interrupts, after the client has disconnected.
    pub fn clear(&mut self) {
        self.main = Vector::default();
        self.error = Vector::default();
    }

    /// Drops the pending interrupt on a reset of the board. Descriptors stay attached: they belong to the client.
    pub fn reset(&mut self) {
        self.main.pending = false;
    }

    /// Triggers the main vector.
    pub fn trigger(&mut self) -> Result<(), Errno> {
        self.main.trigger()
    }

    /// DEVICE_SET_IRQS. `data` holds one byte per vector with DATA_BOOL, and is empty otherwise.
    pub fn set(&mut self, set: &IrqSet, data: &[u8], mut fds: Vec<OwnedFd>) -> Result<(), Refused> {
        let IrqSet { flags, index, start, count, .. } = *set;
        let refused = |why: &str| {
            Refused::invalid(format!(
                "DEVICE_SET_IRQS index {index}, vectors {start} + {count}, flags {flags:#x}: {why}"
            ))
        };
        let kinds = flags & (irq_set::DATA_NONE | irq_set::DATA_BOOL | irq_set::DATA_EVENTFD);
        let actions = flags & (irq_set::ACTION_MASK | irq_set::ACTION_UNMASK | irq_set::ACTION_TRIGGER);
        if kinds.count_ones() != 1 || actions.count_ones() != 1 || kinds | actions != flags {
            return refused("expected exactly one kind of data and one action");
        }
        let vectors = self.vectors(index);
        if start.checked_add(count).is_none_or(|end| end > vectors) {
            return refused(&format!("the device has {vectors} vectors of that index"));
        }
        let vector = if index == ERROR { &mut self.error } else { &mut self.main };
        if count == 0 {
            // A trigger of no vectors detaches the descriptors; masking no vectors has no effect.
            if actions == irq_set::ACTION_TRIGGER && kinds == irq_set::DATA_NONE {
                vector.target = None;
            }
            return Ok(());
        }
        // There is one vector per index, so `count` is 1 from here on.
        let concerned = kinds != irq_set::DATA_BOOL || data.first().is_some_and(|b| *b != 0);
        let io = |e: Errno| Refused::new(e, format!("cannot write to the event descriptor: {e}"));
        match (actions, kinds) {
            (irq_set::ACTION_TRIGGER, irq_set::DATA_EVENTFD) => match fds.len() {
                // QEMU sends no descriptor to detach one, and to enable a vector whose descriptor follows.
                0 => vector.target = None,
                1 => {
                    let fd = fds.remove(0);
                    let status = rustix::fs::fcntl_getfl(fd.as_fd()).map_err(io)?;
                    vector.target = Some(Target { fd, blocking: !status.contains(OFlags::NONBLOCK) });
                    vector.deliver_pending().map_err(io)?;
                }
                n => return refused(&format!("{n} descriptors, expected one per vector or none")),
            },
            (_, irq_set::DATA_EVENTFD) => {
                return Err(Refused::new(Errno::NOTSUP, "masking through an event descriptor is not supported"));
            }
            (irq_set::ACTION_TRIGGER, _) if concerned => vector.trigger().map_err(io)?,
            (irq_set::ACTION_MASK, _) if concerned => vector.masked = true,
            (irq_set::ACTION_UNMASK, _) if concerned => {
                vector.masked = false;
                vector.deliver_pending().map_err(io)?;
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn set(index: u32, flags: u32, count: u32) -> IrqSet {
        IrqSet { argsz: 20, flags, index, start: 0, count }
    }

    fn count(fd: &OwnedFd) -> Option<u64> {
        let mut bytes = [0; 8];
        rustix::io::read(fd, &mut bytes).ok().map(|_| u64::from_ne_bytes(bytes))
    }

    const TRIGGER_FD: u32 = irq_set::ACTION_TRIGGER | irq_set::DATA_EVENTFD;
    const NONE: u32 = irq_set::DATA_NONE;

    #[test]
    fn a_trigger_without_descriptor_is_remembered_and_then_fires() {
        let mut irqs = Interrupts::new(false);
        irqs.trigger().unwrap();
        // QEMU enables MSI in this order: first without, then with a descriptor.
        irqs.set(&set(MSI, TRIGGER_FD, 1), &[], Vec::new()).unwrap();
        let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        irqs.set(&set(MSI, TRIGGER_FD, 1), &[], vec![fd.try_clone().unwrap()]).unwrap();
        assert_eq!(count(&fd), Some(1));
        irqs.trigger().unwrap();
        irqs.trigger().unwrap();
        assert_eq!(count(&fd), Some(2));
        irqs.set(&set(MSI, NONE | irq_set::ACTION_TRIGGER, 0), &[], Vec::new()).unwrap();
        irqs.trigger().unwrap();
        assert_eq!(count(&fd), None);
    }

    #[test]
    fn masked_vectors_fire_when_unmasked() {
        let mut irqs = Interrupts::new(true);
        let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        irqs.set(&set(MSIX, TRIGGER_FD, 1), &[], vec![fd.try_clone().unwrap()]).unwrap();
        irqs.set(&set(MSIX, NONE | irq_set::ACTION_MASK, 1), &[], Vec::new()).unwrap();
        irqs.trigger().unwrap();
        irqs.trigger().unwrap();
        assert_eq!(count(&fd), None);
        irqs.set(&set(MSIX, irq_set::DATA_BOOL | irq_set::ACTION_UNMASK, 1), &[0], Vec::new()).unwrap();
        assert_eq!(count(&fd), None);
        irqs.set(&set(MSIX, irq_set::DATA_BOOL | irq_set::ACTION_UNMASK, 1), &[1], Vec::new()).unwrap();
        assert_eq!(count(&fd), Some(1));
        irqs.set(&set(MSIX, NONE | irq_set::ACTION_TRIGGER, 1), &[], Vec::new()).unwrap();
        assert_eq!(count(&fd), Some(1));
    }

    #[test]
    fn a_full_blocking_descriptor_does_not_hang_the_board() {
        let mut irqs = Interrupts::new(false);
        let fd = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        irqs.set(&set(MSI, TRIGGER_FD, 1), &[], vec![fd.try_clone().unwrap()]).unwrap();
        irqs.trigger().unwrap();
        assert_eq!(count(&fd), Some(u64::MAX - 1));
    }

    #[test]
    fn nonsense_is_refused() {
        let mut irqs = Interrupts::new(false);
        for (index, flags, count) in [
            (MSI, 0, 1),
            (MSI, TRIGGER_FD | NONE, 1),
            (MSI, NONE, 1),
            (MSI, TRIGGER_FD | 0x8000, 1),
            (MSI, TRIGGER_FD, 2),
            (MSI, TRIGGER_FD, u32::MAX),
            (MSIX, TRIGGER_FD, 1),
            (0, TRIGGER_FD, 1),
        ] {
            assert_eq!(irqs.set(&set(index, flags, count), &[], Vec::new()).unwrap_err().errno, Errno::INVAL);
        }
        let start = IrqSet { start: u32::MAX, ..set(MSI, TRIGGER_FD, 1) };
        assert!(irqs.set(&start, &[], Vec::new()).is_err());
        let fds = (0..2).map(|_| eventfd(0, EventfdFlags::empty()).unwrap()).collect();
        assert!(irqs.set(&set(MSI, TRIGGER_FD, 1), &[], fds).is_err());
    }
}
