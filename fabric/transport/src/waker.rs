// SPDX-License-Identifier: MIT OR Apache-2.0
//! The descriptor by which one user of a shared socket is woken.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// A descriptor that is readable when the socket is (or, on demand, has room), and from [`signal`](Waker::signal) to
/// [`clear`](Waker::clear).
///
/// All users of a socket watch it, so any of them may be polled first: that one reads for all and signals the others.
/// Those find nothing when they read the socket, but no wake-up is lost with a user that ends or is not polled any
/// more.
#[derive(Debug)]
pub struct Waker {
    epoll: OwnedFd,
    event: OwnedFd,
    signalled: AtomicBool,
}

impl Waker {
    /// A waker that is not signalled. Fails when the process is out of descriptors.
    pub fn new(socket: BorrowedFd<'_>) -> Result<Waker, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, socket, EventData::new_u64(0), EventFlags::IN)?;
        epoll::add(&epoll, &event, EventData::new_u64(1), EventFlags::IN)?;
        Ok(Waker { epoll, event, signalled: AtomicBool::new(false) })
    }

    /// The descriptor to poll for readable.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Makes the descriptor readable. Calls of this and of [`clear`](Waker::clear) must be serialised by a lock.
    pub fn signal(&self) {
        if !self.signalled.swap(true, Ordering::Relaxed) {
            // The counter was 0: there is room for 1.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Leaves the descriptor readable with the socket only.
    pub fn clear(&self) {
        if self.signalled.swap(false, Ordering::Relaxed) {
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
        }
    }

    /// Sets whether the descriptor is also readable when `socket`, the one it was made for, has room.
    pub fn watch_room(&self, socket: BorrowedFd<'_>, on: bool) {
        let flags = if on { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        // Fails only when memory is exhausted; then the next incoming datagram wakes.
        let _ = epoll::modify(&self.epoll, socket, EventData::new_u64(0), flags);
    }
}
