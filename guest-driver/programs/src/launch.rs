// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launches step by step, as a program would make them without the library: to stop between any two
//! steps, and to do what the library never would.

use crate::interface::call;
use crate::mapping::{Mapping, READ_WRITE};
use crate::patience::{YIELD, becomes};
use rustix::mm::ProtFlags;
use std::time::Duration;
use telegraphos::{Node, Remote, Status};
use telegraphos_wire::{context, uapi};

pub use telegraphos_wire::AtomicOp;
pub use telegraphos_wire::context::{Argument, Launch, Operation};

const PAGE: usize = 4096;

fn map(node: &Node, offset: u64, length: usize, protection: ProtFlags) -> Result<Mapping, String> {
    Mapping::of(node, offset, length, protection).map_err(|e| format!("mmap at {offset:#x}: {e}"))
}

/// The argument aperture of an import.
pub struct Arguments(Mapping);

impl Arguments {
    pub fn of(node: &Node, remote: &Remote) -> Result<Arguments, String> {
        let offset = uapi::mmap_offset(uapi::MMAP_ARGUMENT, remote.handle());
        map(node, offset, remote.size() as usize, ProtFlags::WRITE).map(Arguments)
    }

    /// Passes an address, in whole words of eight bytes.
    pub fn pass(&self, offset: u64, argument: Argument) {
        assert!(offset % 8 == 0 && offset < self.0.length() as u64, "{offset:#x} is no argument");
        // SAFETY: aligned, and within the pages mapped.
        unsafe { crate::raw::store::<u64>(self.0.at(), offset, argument.encode()) }
    }

    /// Loads from it, which the board refuses.
    pub fn peek(&self, offset: u64) -> u64 {
        assert!(offset % 8 == 0 && offset < self.0.length() as u64, "{offset:#x} is no argument");
        // SAFETY: aligned, and within the pages mapped; on x86 they can be loaded from.
        unsafe { crate::raw::load::<u64>(self.0.at(), offset) }
    }
}

/// An open file's context, by its pages.
pub struct Launcher {
    pub node: Node,
    /// Number of the context.
    pub context: u8,
    pub key: u64,
    page: Mapping,
    status: Mapping,
}

impl Launcher {
    /// The context of a node.
    pub fn of(node: &Node) -> Result<Launcher, String> {
        let mut info = uapi::Info::default();
        call::structure(node, 0, &mut info)
            .map_err(|errno| format!("TG_IOCTL_INFO: {}", std::io::Error::from_raw_os_error(errno)))?;
        Ok(Launcher {
            node: node.clone(),
            context: info.context as u8,
            key: info.key,
            page: map(node, uapi::mmap_offset(uapi::MMAP_CONTEXT, 0), PAGE, READ_WRITE)?,
            status: map(node, uapi::mmap_offset(uapi::MMAP_STATUS, 0), PAGE, ProtFlags::READ)?,
        })
    }

    /// The word that passes an address to a slot of this context.
    pub fn argument(&self, slot: u8, which: u8) -> Argument {
        Argument { context: self.context, slot, which, key: self.key }
    }

    /// Stores to a launch register ([`context::OPERAND`] and so on) of a slot.
    pub fn set(&self, slot: u8, register: u64, value: u64) {
        let at = context::REGISTERS + context::STRIDE * u64::from(slot & 63) + register;
        // SAFETY: aligned, and within the page.
        unsafe { crate::raw::store::<u64>(self.page.at(), at, value) }
    }

    /// Loads FETCH of a slot: performs the atomic that was prepared there, on a word of 8 or 4 bytes.
    pub fn fetch(&self, slot: u8, wide: bool) -> u64 {
        let at = context::FETCH + 8 * u64::from(slot & 63);
        // SAFETY: aligned, and within the page.
        unsafe {
            match wide {
                true => crate::raw::load::<u64>(self.page.at(), at),
                false => crate::raw::load::<u32>(self.page.at(), at),
            }
        }
    }

    /// Starts an operation.
    pub fn launch(&self, slot: u8, operation: Operation, cookie: u64) {
        self.set(slot, context::LAUNCH, Launch { operation, notify: false, cookie }.encode());
    }

    /// The end of the slot's operation with this cookie, if it has come.
    pub fn done(&self, slot: u8, cookie: u64) -> Option<(Status, u64)> {
        let at = 8 * u64::from(slot & 63);
        // SAFETY: aligned, and within the page.
        let word = unsafe { crate::raw::load::<u64>(self.status.at(), at) };
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        // SAFETY: as above.
        let value = unsafe { crate::raw::load::<u64>(self.status.at(), context::VALUE_OFFSET + at) };
        let mask = (1 << context::COOKIE_BITS) - 1;
        (word & mask == cookie).then(|| (Status::from_u16((word >> context::COOKIE_BITS) as u16), value))
    }

    /// Waits for that end.
    pub fn wait(&self, slot: u8, cookie: u64) -> Result<(Status, u64), String> {
        let late = |_: &_| format!("slot {slot} has no end with cookie {cookie} after 30 s");
        let end = becomes(Duration::from_secs(30), YIELD, || Ok(self.done(slot, cookie)), Option::is_some, late)?;
        end.ok_or_else(|| late(&None))
    }
}
