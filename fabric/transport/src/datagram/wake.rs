// SPDX-License-Identifier: MIT OR Apache-2.0
//! A descriptor that is readable when the socket is, or when somebody says so: another connection took our bytes out of
//! the shared socket, or bytes are left that the socket does not show any more.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

/// Says to a [`Wake`] that there is something.
#[derive(Clone, Debug)]
pub(super) struct Bell {
    event: Arc<(OwnedFd, AtomicBool)>,
}

impl Bell {
    /// The descriptor becomes readable, and stays so until [`Bell::clear`].
    pub(super) fn ring(&self) {
        if !self.event.1.swap(true, Ordering::AcqRel) {
            // The counter is 0 before: there is room for 1.
            let _ = rustix::io::write(&self.event.0, &1u64.to_ne_bytes());
        }
    }

    pub(super) fn clear(&self) {
        if self.event.1.swap(false, Ordering::AcqRel) {
            let _ = rustix::io::read(&self.event.0, &mut [0; 8]);
        }
    }
}

#[derive(Debug)]
pub(super) struct Wake {
    epoll: OwnedFd,
    bell: Bell,
}

impl Wake {
    pub(super) fn new(socket: BorrowedFd<'_>) -> io::Result<Wake> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, socket, EventData::new_u64(0), EventFlags::IN)?;
        epoll::add(&epoll, &event, EventData::new_u64(1), EventFlags::IN)?;
        Ok(Wake { epoll, bell: Bell { event: Arc::new((event, AtomicBool::new(false))) } })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub(super) fn bell(&self) -> &Bell {
        &self.bell
    }
}
