// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the loop waits for: descriptors by what they are.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use telegraphos_service::wait::Readiness;

/// What a descriptor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Stop,
    Listener,
    /// The door of links in memory.
    Door,
    /// The control socket, with all its clients.
    Control,
    /// The acceptor of a trunk, by its index.
    Acceptor(u32),
    Port(u32),
}

impl Source {
    /// Its place in the set of what the loop waits for.
    pub(super) fn place(self) -> u64 {
        let (kind, index) = match self {
            Source::Stop => (0, 0),
            Source::Listener => (1, 0),
            Source::Acceptor(index) => (2, index),
            Source::Port(port) => (3, port),
            Source::Control => (4, 0),
            Source::Door => (5, 0),
        };
        kind << 32 | u64::from(index)
    }

    fn at(place: u64) -> Source {
        let index = place as u32;
        match place >> 32 {
            0 => Source::Stop,
            1 => Source::Listener,
            2 => Source::Acceptor(index),
            3 => Source::Port(index),
            4 => Source::Control,
            _ => Source::Door,
        }
    }
}

/// Something to read, or the end of what the other end sends.
pub(super) const READ: Readiness = Readiness { closing: true, ..Readiness::READ };

/// A descriptor that is ready.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub(super) source: Source,
    /// The other end has gone, or the descriptor is broken.
    pub(super) ended: bool,
}

impl Ready {
    /// What is ready at this place.
    pub(super) fn at(place: u64, found: Readiness) -> Ready {
        Ready { source: Source::at(place), ended: found.closing || found.ended }
    }
}

/// Whether the other end of a stream has hung up.
pub(super) fn hung_up(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_survive_their_number() {
        for source in [
            Source::Stop,
            Source::Listener,
            Source::Control,
            Source::Door,
            Source::Acceptor(7),
            Source::Port(0),
            Source::Port(u32::MAX),
        ] {
            assert_eq!(Source::at(source.place()), source);
        }
    }
}
