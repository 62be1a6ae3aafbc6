// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the loop waits for: descriptors by what they are.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use telegraphos_service::shutdown::ShutdownHandle;
use telegraphos_service::wait::timespec;

use super::config::{FabricError, system};

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
    fn data(self) -> epoll::EventData {
        let (kind, index) = match self {
            Source::Stop => (0, 0),
            Source::Listener => (1, 0),
            Source::Acceptor(index) => (2, index),
            Source::Port(port) => (3, port),
            Source::Control => (4, 0),
            Source::Door => (5, 0),
        };
        epoll::EventData::new_u64(kind << 32 | u64::from(index))
    }

    fn of(data: u64) -> Source {
        let index = data as u32;
        match data >> 32 {
            0 => Source::Stop,
            1 => Source::Listener,
            2 => Source::Acceptor(index),
            3 => Source::Port(index),
            4 => Source::Control,
            _ => Source::Door,
        }
    }
}

#[derive(Debug)]
pub(super) struct Watch {
    epoll: OwnedFd,
}

/// What one wait brings at most; what is left follows with the next.
const AT_ONCE: usize = 256;

/// Readable, or ended.
const READ: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::RDHUP);

/// What a descriptor is watched for, besides its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interest {
    pub(super) read: bool,
    pub(super) write: bool,
}

/// What a descriptor is ready for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub(super) source: Source,
    /// The other end has gone, or the descriptor is broken.
    pub(super) ended: bool,
}

impl Watch {
    /// An epoll set with the handle that ends the loop.
    pub(super) fn new(stop: &ShutdownHandle) -> Result<Watch, FabricError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("create an epoll set"))?;
        let watch = Watch { epoll };
        epoll::add(&watch.epoll, stop, Source::Stop.data(), epoll::EventFlags::IN)
            .map_err(system("watch a descriptor"))?;
        Ok(watch)
    }

    /// Readable when something is ready.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Watches a descriptor for reading.
    pub(super) fn add(&self, fd: BorrowedFd<'_>, source: Source) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, source.data(), READ)
    }

    /// Watches for something else.
    pub(super) fn interest(&self, fd: BorrowedFd<'_>, source: Source, interest: Interest) -> Result<(), Errno> {
        let mut flags = epoll::EventFlags::empty();
        flags.set(READ, interest.read);
        flags.set(epoll::EventFlags::OUT, interest.write);
        epoll::modify(&self.epoll, fd, source.data(), flags)
    }

    /// Watches a descriptor no longer.
    pub(super) fn remove(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        epoll::delete(&self.epoll, fd)
    }

    /// Sleeps until something is ready, for at most so many microseconds, if given; what is ready is appended.
    pub(super) fn wait(&self, limit: Option<u64>, ready: &mut Vec<Ready>) -> Result<(), FabricError> {
        let limit = limit.map(timespec);
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; AT_ONCE];
        let events = match epoll::wait(&self.epoll, &mut events, limit.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(()),
            Err(e) => return Err(system("wait for events")(e)),
        };
        const ENDED: epoll::EventFlags =
            epoll::EventFlags::HUP.union(epoll::EventFlags::ERR).union(epoll::EventFlags::RDHUP);
        // Copies: events are packed.
        ready.extend(events.iter().map(|event| {
            let (data, flags) = (event.data, event.flags);
            Ready { source: Source::of(data.u64()), ended: flags.intersects(ENDED) }
        }));
        Ok(())
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
            assert_eq!(Source::of(source.data().u64()), source);
        }
    }
}
