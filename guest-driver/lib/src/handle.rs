// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the driver keeps for this process under a number: an export, an import, a queue, a copy, access counters.

use crate::context::Context;
use crate::destination::Destination;
use crate::error::{Error, Result};
use crate::sys::{self, Mapping};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use telegraphos_wire::{Rights, uapi};

/// The system call that ends an object, and its verb in errors.
pub(crate) type End = (fn(BorrowedFd<'_>, &mut uapi::Handle) -> rustix::io::Result<()>, &'static str);

/// An object of the driver; ended on drop.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) context: Arc<Context>,
    /// What the driver calls it.
    pub(crate) number: u32,
    /// Names it in messages.
    pub(crate) label: Arc<str>,
    /// `None` once it is ended, and for an object that is not this handle's to end.
    end: Option<End>,
    /// The only process that ends it; any if `None`.
    pub(crate) owner: Option<u32>,
    destination: Option<Destination>,
}

impl Handle {
    /// The object of that number.
    pub(crate) fn new(context: Arc<Context>, number: u32, label: impl Into<Arc<str>>, end: Option<End>) -> Handle {
        Handle { context, number, label: label.into(), end, owner: None, destination: None }
    }

    /// Counts `destination` among those of the context until the object is ended.
    pub(crate) fn enter(&mut self, destination: Destination) {
        self.context.destinations.enter(destination);
        self.destination = Some(destination);
    }

    /// Maps `size` bytes of the device from `offset`, which belong to the object, for what `rights` allow.
    pub(crate) fn map(&self, offset: u64, size: u64, rights: Rights) -> Result<Mapping> {
        self.context.device.map(offset, size, rights, &self.label)
    }

    /// Makes a system call on the object that has only the driver's errors; `verb` comes before its label in them.
    pub(crate) fn call<T>(
        &self,
        ioctl: impl FnOnce(BorrowedFd<'_>, T) -> rustix::io::Result<()>,
        argument: T,
        verb: &str,
    ) -> Result<()> {
        self.context.device.call(ioctl, argument, || format!("{verb} {}", self.label))
    }

    /// Whether the object is this handle's to end.
    pub(crate) fn ends(&self) -> bool {
        self.end.is_some()
    }

    /// Ends the object. Dropping does the same, and only logs errors.
    pub(crate) fn close(mut self) -> Result<()> {
        self.shut()
    }

    fn shut(&mut self) -> Result<()> {
        let Some((end, verb)) = self.end.take() else { return Ok(()) };
        if self.owner.is_some_and(|owner| owner != std::process::id()) {
            return Ok(());
        }
        let ended = self.call(end, &mut sys::handle(self.number), verb);
        if let Some(destination) = self.destination {
            self.context.destinations.leave(destination);
        }
        ended
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        match self.shut() {
            // When the board is gone, so is the object.
            Ok(()) | Err(Error::Gone { .. }) => {}
            Err(error) => log::warn!("{error}"),
        }
    }
}
