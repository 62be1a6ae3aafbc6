// SPDX-License-Identifier: MIT OR Apache-2.0
//! The descriptor by which one user of a shared socket is woken.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use telegraphos_link::bell::Bell;
use telegraphos_service::wait::{Readiness, WaitSet};

/// The places of the socket and of the signal.
const SOCKET: u64 = 0;
const EVENT: u64 = 1;

/// A descriptor that is readable when the socket is (or, on demand, has room), and from [`signal`](Waker::signal) to
/// [`clear`](Waker::clear).
///
/// All users of a socket watch it, so any of them may be polled first: that one reads for all and signals the others.
/// Those find nothing when they read the socket, but no wake-up is lost with a user that ends or is not polled any
/// more.
#[derive(Debug)]
pub struct Waker {
    set: WaitSet,
    event: Bell,
    signalled: AtomicBool,
}

impl Waker {
    /// A waker that is not signalled. Fails when the process is out of descriptors.
    pub fn new(socket: BorrowedFd<'_>) -> Result<Waker, Errno> {
        let set = WaitSet::new()?;
        let event = Bell::new()?;
        set.add(socket, SOCKET, Readiness::READ)?;
        set.add(event.fd(), EVENT, Readiness::READ)?;
        Ok(Waker { set, event, signalled: AtomicBool::new(false) })
    }

    /// The descriptor to poll for readable.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// Makes the descriptor readable. Calls of this and of [`clear`](Waker::clear) must be serialised by a lock.
    pub fn signal(&self) {
        if !self.signalled.swap(true, Ordering::Relaxed) {
            self.event.raise();
        }
    }

    /// Leaves the descriptor readable with the socket only.
    pub fn clear(&self) {
        if self.signalled.swap(false, Ordering::Relaxed) {
            self.event.clear();
        }
    }

    /// Sets whether the descriptor is also readable when `socket`, the one it was made for, has room.
    pub fn watch_room(&self, socket: BorrowedFd<'_>, on: bool) {
        // Fails only when memory is exhausted; then the next incoming datagram wakes.
        let _ = self.set.change(socket, SOCKET, Readiness { write: on, ..Readiness::READ });
    }
}
