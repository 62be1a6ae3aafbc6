// SPDX-License-Identifier: MIT OR Apache-2.0
//! A descriptor that is readable from one moment to another.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// An event that a poll loop waits for.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// Fails when the process is out of descriptors.
    pub fn new() -> Result<Bell, Errno> {
        Ok(Bell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// The descriptor to poll for readable.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Makes the descriptor readable, until [`Bell::clear`].
    pub fn raise(&self) {
        // Fails only if it has been raised 2^64 times without a clear.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes the descriptor not readable.
    pub fn clear(&self) {
        // Fails if it is not.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}
