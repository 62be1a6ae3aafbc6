// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ends the loop of a server from elsewhere.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// Ends the loop of a server from another thread, or from that of a signal handler. A clone is the same handle. The
/// server waits for it to become readable, which it then stays.
#[derive(Clone, Debug)]
pub struct ShutdownHandle(Arc<OwnedFd>);

impl ShutdownHandle {
    /// A handle for a server to come, so that signals can be caught before there is a socket. Fails if the process has
    /// no descriptor left.
    pub fn new() -> Result<ShutdownHandle, Errno> {
        Ok(ShutdownHandle(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Makes the server's loop return, now or when it begins. May be called any number of times.
    pub fn shut_down(&self) {
        // An error means that the counter is full, so it has been said already.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

/// Readable once the server is to end.
impl AsFd for ShutdownHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
