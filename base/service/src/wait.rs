// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wait of a server's loop: an epoll set, in which each thing that is waited for has a *place*, a number that its
//! owner gives it.
//!
//! A wait costs the same however many descriptors are watched: the boards of a host have some hundred, of which one or
//! two are ready. What they are watched for changes seldom, and only a change is a system call.
//!
//! What is watched belongs to its [`Watched`], which takes it out of the set before it is closed. Without that the
//! kernel would still report a file that is open elsewhere, too: a guard has a duplicate of each QEMU's connection.
//! What belongs to another owner is [added](WaitSet::add) and [removed](WaitSet::remove) by hand; where nothing else
//! has it open, closing it removes it.
//!
//! A set is itself a descriptor, which is readable while anything in it is ready: so sets can be watched by others.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

/// What a descriptor is watched for, and what it is ready for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// There is something to read, or the end of it.
    pub read: bool,
    /// There is room to write.
    pub write: bool,
    /// The other end of a stream sends nothing more, though there may be something to read before that.
    pub closing: bool,
    /// Both directions have ended, or the descriptor is broken. Everything is watched for this.
    pub ended: bool,
    /// The descriptor is broken. Everything is watched for this, too.
    pub broken: bool,
}

impl Readiness {
    pub const NONE: Readiness = Readiness { read: false, write: false, closing: false, ended: false, broken: false };
    /// Something to read.
    pub const READ: Readiness = Readiness { read: true, ..Readiness::NONE };

    /// Whether it is ready for anything.
    pub fn any(self) -> bool {
        self != Readiness::NONE
    }

    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, self.read);
        flags.set(epoll::EventFlags::OUT, self.write);
        flags.set(epoll::EventFlags::RDHUP, self.closing);
        flags
    }

    fn of(flags: epoll::EventFlags) -> Readiness {
        Readiness {
            read: flags.contains(epoll::EventFlags::IN),
            write: flags.contains(epoll::EventFlags::OUT),
            closing: flags.contains(epoll::EventFlags::RDHUP),
            ended: flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR),
            broken: flags.contains(epoll::EventFlags::ERR),
        }
    }
}

/// What one wait brings at most; what is left follows with the next.
const AT_ONCE: usize = 256;

/// A set, and the wait for it; see the module.
#[derive(Clone, Debug)]
pub struct WaitSet {
    epoll: Arc<OwnedFd>,
}

impl WaitSet {
    /// A set without places.
    pub fn new() -> Result<WaitSet, Errno> {
        Ok(WaitSet { epoll: Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?) })
    }

    /// The places of one owner, which counts them from 0; in the set, they follow `base`.
    pub fn places(&self, base: u32) -> Places {
        Places { set: Some(self.clone()), base }
    }

    /// Watches a descriptor, which now has this place.
    pub fn add(&self, fd: impl AsFd, place: u64, until: Readiness) -> Result<(), Errno> {
        epoll::add(&*self.epoll, fd, epoll::EventData::new_u64(place), until.flags())
    }

    /// What to watch a descriptor for from now on.
    pub fn change(&self, fd: impl AsFd, place: u64, until: Readiness) -> Result<(), Errno> {
        epoll::modify(&*self.epoll, fd, epoll::EventData::new_u64(place), until.flags())
    }

    /// Watches a descriptor no longer.
    pub fn remove(&self, fd: impl AsFd) -> Result<(), Errno> {
        epoll::delete(&*self.epoll, fd)
    }

    /// Sleeps until something is ready, for at most `timeout` microseconds if given, and passes on the places that are,
    /// with what for. Returns whether there was any. Wakes up early, without any, when a signal comes.
    pub fn wait(&self, timeout: Option<u64>, mut ready: impl FnMut(u64, Readiness)) -> Result<bool, Errno> {
        let timespec = |us: u64| Timespec { tv_sec: (us / 1_000_000) as i64, tv_nsec: (us % 1_000_000) as i64 * 1000 };
        let timeout = timeout.map(timespec);
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; AT_ONCE];
        let events = match epoll::wait(&*self.epoll, &mut events, timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(false),
            Err(errno) => return Err(errno),
        };
        for event in events.iter() {
            // Copies: events are packed.
            let (data, flags) = (event.data, event.flags);
            ready(data.u64(), Readiness::of(flags));
        }
        Ok(!events.is_empty())
    }
}

impl AsFd for WaitSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Some places of a [`WaitSet`]; by default, places nowhere, where nothing is waited for yet.
#[derive(Clone, Debug, Default)]
pub struct Places {
    set: Option<WaitSet>,
    base: u32,
}

impl Places {
    /// Watches what now has this place. Fails if the kernel has no memory for it, or allows the user no more.
    pub fn watch<T: AsFd>(&self, place: u32, watched: T, until: Readiness) -> Result<Watched<T>, Errno> {
        let mut watched = Watched::nowhere(watched, until);
        watched.watch_at(self, place)?;
        Ok(watched)
    }
}

/// What is watched, until it is dropped.
pub struct Watched<T: AsFd> {
    watched: T,
    set: Option<WaitSet>,
    place: u64,
    until: Readiness,
}

impl<T: AsFd> Watched<T> {
    /// What is not waited for before it has a place ([`Watched::watch_at`]).
    pub fn nowhere(watched: T, until: Readiness) -> Watched<T> {
        Watched { watched, set: None, place: 0, until }
    }

    /// From now on it has this place, perhaps of another set. If that fails, it stays where it is.
    pub fn watch_at(&mut self, places: &Places, place: u32) -> Result<(), Errno> {
        let place = u64::from(places.base + place);
        if let Some(set) = &places.set {
            set.add(&self.watched, place, self.until)?;
        }
        self.forget();
        (self.set, self.place) = (places.set.clone(), place);
        Ok(())
    }

    fn forget(&self) {
        if let Some(set) = &self.set {
            // It is in the set, so this does not fail.
            let _ = set.remove(&self.watched);
        }
    }

    /// What to watch it for from now on. A system call only if that is something else than before.
    pub fn until(&mut self, until: Readiness) -> Result<(), Errno> {
        if until != self.until {
            if let Some(set) = &self.set {
                set.change(&self.watched, self.place, until)?;
            }
            self.until = until;
        }
        Ok(())
    }
}

impl<T: AsFd> Drop for Watched<T> {
    fn drop(&mut self) {
        self.forget();
    }
}

impl<T: AsFd> Deref for Watched<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.watched
    }
}

impl<T: AsFd> DerefMut for Watched<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.watched
    }
}

impl<T: AsFd + std::fmt::Debug> std::fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched").field("watched", &self.watched).field("until", &self.until).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    fn ready(set: &WaitSet) -> Vec<(u64, Readiness)> {
        let mut found = Vec::new();
        let any = set.wait(Some(0), |place, readiness| found.push((place, readiness))).unwrap();
        assert_eq!(any, !found.is_empty());
        found
    }

    #[test]
    fn places_are_ready_for_what_they_are_watched_for() {
        let set = WaitSet::new().unwrap();
        let (a, mut other) = UnixStream::pair().unwrap();
        let (b, _kept) = UnixStream::pair().unwrap();
        let mut a = set.places(4).watch(1, a, Readiness::READ).unwrap();
        let _b = set.places(8).watch(0, b, Readiness::READ).unwrap();
        assert_eq!(ready(&set), []);
        other.write_all(b"x").unwrap();
        assert_eq!(ready(&set), [(5, Readiness::READ)]);
        let writable = Readiness { write: true, ..Readiness::NONE };
        a.until(writable).unwrap();
        assert_eq!(ready(&set), [(5, writable)]);
        a.until(Readiness::NONE).unwrap();
        assert_eq!(ready(&set), []);
        drop(other);
        assert_eq!(ready(&set), [(5, Readiness { ended: true, ..Readiness::NONE })]);
    }

    #[test]
    fn what_was_dropped_is_forgotten_though_another_has_it_open() {
        let set = WaitSet::new().unwrap();
        let (a, mut other) = UnixStream::pair().unwrap();
        let duplicate = a.try_clone().unwrap();
        let watched = set.places(0).watch(0, a, Readiness::READ).unwrap();
        other.write_all(b"x").unwrap();
        assert_eq!(ready(&set).len(), 1);
        drop(watched);
        assert_eq!(ready(&set), []);
        // The number of the descriptor is free again, for another one at another place.
        let again = set.places(0).watch(7, duplicate, Readiness::READ).unwrap();
        assert_eq!(ready(&set), [(7, Readiness::READ)]);
        drop(again);
    }

    #[test]
    fn what_has_moved_is_in_the_other_set_only() {
        let (from, to) = (WaitSet::new().unwrap(), WaitSet::new().unwrap());
        let (a, mut other) = UnixStream::pair().unwrap();
        let mut a = from.places(0).watch(1, a, Readiness::READ).unwrap();
        a.watch_at(&to.places(10), 2).unwrap();
        other.write_all(b"x").unwrap();
        assert_eq!((ready(&from), ready(&to)), (vec![], vec![(12, Readiness::READ)]));
        a.until(Readiness::NONE).unwrap();
        assert_eq!(ready(&to), []);
    }

    #[test]
    fn a_wait_ends_in_time() {
        let set = WaitSet::new().unwrap();
        let begun = std::time::Instant::now();
        assert!(!set.wait(Some(2500), |_, _| {}).unwrap());
        assert!(begun.elapsed().as_micros() >= 2500);
    }
}
