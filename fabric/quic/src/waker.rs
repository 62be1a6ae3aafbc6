// SPDX-License-Identifier: MIT OR Apache-2.0
//! The descriptor by which one user of a shared socket is woken.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// A descriptor that is readable when the shared socket is (or, on demand, has room), and when somebody else who read
/// the socket found something for this user.
///
/// All users of the socket watch it, so that it does not matter who of them is polled: whoever comes first reads for
/// all and signals the others. That costs those a look that finds nothing, but no wake-up can be lost with a user that
/// ends, or is not polled any more.
#[derive(Debug)]
pub(crate) struct Waker {
    epoll: OwnedFd,
    event: OwnedFd,
    signalled: AtomicBool,
}

impl Waker {
    pub(crate) fn new(socket: BorrowedFd<'_>) -> Result<Waker, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, socket, EventData::new_u64(0), EventFlags::IN)?;
        epoll::add(&epoll, &event, EventData::new_u64(1), EventFlags::IN)?;
        Ok(Waker { epoll, event, signalled: AtomicBool::new(false) })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// From now on it is readable. Only under the lock of the driver, as is [`clear`](Waker::clear).
    pub(crate) fn signal(&self) {
        if !self.signalled.swap(true, Ordering::Relaxed) {
            // Can only fail if the counter is at its end, and then it is readable.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// From now on it is readable only with the socket.
    pub(crate) fn clear(&self) {
        if self.signalled.swap(false, Ordering::Relaxed) {
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
        }
    }

    /// Whether it is to be readable too when the socket has room.
    pub(crate) fn watch_room(&self, socket: BorrowedFd<'_>, on: bool) {
        let flags = if on { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        // It was added above, so this cannot fail but for want of memory; then the next incoming datagram does.
        let _ = epoll::modify(&self.epoll, socket, EventData::new_u64(0), flags);
    }
}
