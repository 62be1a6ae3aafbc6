// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for the board's interrupt instead of looking at memory.
//!
//! All operations of a context ring one bell, an eventfd that the driver signals at each CONTEXT event. Of several
//! threads that sleep, one (the leader) polls it and wakes the others, which look at their own words; so an event that
//! one thread has read off the eventfd is never lost to another.

use crate::error::{Error, Result};
use crate::node::Inner;
use crate::slots::Backoff;
use crate::sys;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use telegraphos_wire::uapi;

#[derive(Debug, Default)]
struct Watch {
    /// Whether a thread polls the eventfd.
    led: bool,
}

/// The eventfd of a context.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    fd: OnceLock<OwnedFd>,
    making: Mutex<()>,
    watch: Mutex<Watch>,
    /// Rises whenever there may be something to look at. Changed under `watch`.
    round: AtomicU64,
    rung: Condvar,
}

/// An eventfd that is read without blocking.
pub(crate) fn new_eventfd() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| Error::Os { what: "making an eventfd".into(), errno })
}

/// Waits until an eventfd is readable, and reads it: false when the time has passed.
pub(crate) fn listen(fd: BorrowedFd<'_>, time: Duration) -> Result<bool> {
    let time = Timespec { tv_sec: time.as_secs().min(i64::MAX as u64) as i64, tv_nsec: time.subsec_nanos().into() };
    let failed = |errno| Error::Os { what: "waiting for an event".into(), errno };
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&time)) {
        Ok(0) | Err(Errno::INTR) => return Ok(false),
        Ok(_) => {}
        Err(errno) => return Err(failed(errno)),
    }
    match rustix::io::read(fd, &mut [0u8; 8]) {
        Ok(_) => Ok(true),
        // Somebody else was faster.
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(errno) => Err(failed(errno)),
    }
}

impl Bell {
    /// The eventfd, known to the driver.
    pub(crate) fn ready(&self, inner: &Inner) -> Result<BorrowedFd<'_>> {
        let _one = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fd) = self.fd.get() {
            return Ok(fd.as_fd());
        }
        let fd = new_eventfd()?;
        let mut notify = uapi::Notify { eventfd: fd.as_raw_fd(), ..Default::default() };
        sys::notify(inner.fd(), &mut notify).map_err(|errno| inner.error("asking for completion events", errno))?;
        Ok(self.fd.get_or_init(|| fd).as_fd())
    }

    /// For tests: an eventfd that no driver knows.
    #[cfg(test)]
    pub(crate) fn without_board(&self) {
        self.fd.set(new_eventfd().unwrap()).unwrap();
    }

    /// Rings it from this side.
    pub(crate) fn pull(&self, inner: &Inner) -> Result<()> {
        match rustix::io::write(self.ready(inner)?, &1u64.to_ne_bytes()) {
            // Full: readable anyway.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(errno) => Err(Error::Os { what: "signalling an eventfd".into(), errno }),
        }
    }

    /// How often it has been heard. What is read before a look, and is another number after it, says that an event came
    /// since, whichever thread has read it off the eventfd.
    pub(crate) fn round(&self) -> u64 {
        self.round.load(Ordering::Acquire)
    }

    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self, end: bool) {
        let mut watch = self.watch();
        self.round.fetch_add(1, Ordering::AcqRel);
        watch.led &= !end;
        self.rung.notify_all();
    }

    /// Sleeps until `done`, which is armed, or until patience ends. `done` is asked under a lock: it must not wait.
    pub(crate) fn wait(&self, inner: &Inner, backoff: &Backoff, mut done: impl FnMut() -> bool) -> Result<()> {
        let fd = self.ready(inner)?;
        loop {
            let mut watch = self.watch();
            // Behind the lock: an event that comes after this look raises the round that is waited for.
            if done() || backoff.left() == Some(Duration::ZERO) {
                return Ok(());
            }
            if !watch.led {
                watch.led = true;
                drop(watch);
                let result = self.lead(fd, inner, backoff, &mut done);
                self.ring(true);
                return result;
            }
            let round = self.round();
            let time = backoff.left().unwrap_or(Duration::MAX).min(inner.look_every);
            let asleep = |watch: &mut Watch| watch.led && self.round() == round;
            drop(self.rung.wait_timeout_while(watch, time, asleep));
        }
    }

    fn lead(&self, fd: BorrowedFd<'_>, inner: &Inner, backoff: &Backoff, done: &mut dyn FnMut() -> bool) -> Result<()> {
        loop {
            let left = backoff.left();
            if done() || left == Some(Duration::ZERO) {
                return Ok(());
            }
            let time = left.map_or(inner.look_every, |left| left.min(inner.look_every));
            if listen(fd, time)? {
                self.ring(false);
            } else if time == inner.look_every {
                inner.can_still_answer()?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32};
    use std::sync::mpsc;

    /// Threads that sleep, and one that ends one after the other with a single event each: all of them wake.
    #[test]
    fn one_event_each_wakes_all_sleepers() {
        const SLEEPERS: usize = 8;
        let inner = Inner::without_board();
        let bell = Bell::default();
        bell.without_board();
        let done: [AtomicBool; SLEEPERS] = std::array::from_fn(|_| AtomicBool::new(false));
        let asleep = AtomicU32::new(0);
        let (ended, ends) = mpsc::channel();
        std::thread::scope(|scope| {
            for (number, flag) in done.iter().enumerate() {
                let (bell, inner, asleep, ended) = (&bell, &inner, &asleep, ended.clone());
                scope.spawn(move || {
                    let backoff = Backoff::new(Some(Duration::from_secs(60)));
                    asleep.fetch_add(1, Ordering::SeqCst);
                    bell.wait(inner, &backoff, || flag.load(Ordering::Acquire)).unwrap();
                    ended.send((number, flag.load(Ordering::Acquire))).unwrap();
                });
            }
            while asleep.load(Ordering::SeqCst) < SLEEPERS as u32 {
                std::thread::yield_now();
            }
            // First the one that most likely leads, then another one, and so on.
            for (number, flag) in done.iter().enumerate() {
                flag.store(true, Ordering::Release);
                rustix::io::write(bell.fd.get().unwrap(), &1u64.to_ne_bytes()).unwrap();
                assert_eq!(ends.recv_timeout(Duration::from_secs(60)), Ok((number, true)));
            }
        });
    }

    #[test]
    fn patience_ends() {
        let inner = Inner::without_board();
        let bell = Bell::default();
        bell.without_board();
        let backoff = Backoff::new(Some(Duration::from_millis(2)));
        bell.wait(&inner, &backoff, || false).unwrap();
        assert!(backoff.waited() >= Duration::from_millis(2));
    }
}
