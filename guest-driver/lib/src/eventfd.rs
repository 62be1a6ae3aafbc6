// SPDX-License-Identifier: MIT OR Apache-2.0
//! Eventfds, which the driver signals, and waiting for them.

use crate::error::{Error, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

/// An eventfd that is read without blocking.
pub(crate) fn new_eventfd() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| Error::Os { what: "making an eventfd".into(), errno })
}

/// Waits for `events` of a descriptor, at most `time` (`None`: for ever): those that have come, or none when the time
/// has passed. `EINTR` is an error like any other.
pub(crate) fn poll_fd(fd: BorrowedFd<'_>, events: PollFlags, time: Option<Duration>) -> rustix::io::Result<PollFlags> {
    // What does not fit is for ever.
    let time = time.and_then(|time| Timespec::try_from(time).ok());
    let mut fds = [PollFd::new(&fd, events)];
    poll(&mut fds, time.as_ref())?;
    Ok(fds[0].revents())
}

/// Waits until an eventfd is readable, and reads it: false when the time has passed, a signal has come, or another
/// thread has read it first.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, time: Duration) -> Result<bool> {
    let read = || {
        if poll_fd(fd, PollFlags::IN, Some(time))?.is_empty() {
            return Ok(false);
        }
        rustix::io::read(fd, &mut [0u8; 8]).map(|_| true)
    };
    match read() {
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        result => result.map_err(|errno| Error::Os { what: "waiting for an event".into(), errno }),
    }
}
