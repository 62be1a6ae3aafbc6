// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completion channel of a context: waiting for the board's interrupt instead of polling memory.
//!
//! The driver counts the CONTEXT events of the open file. Of several threads that sleep, one (the leader) sleeps in the
//! driver until there are some, and takes them, by a single system call; it wakes the others, which look at their own
//! words; so no thread misses an event because another has taken it.
//!
//! For a program's own `poll` there is an eventfd, which the driver signals at each event. Once there is one, the
//! leader polls and reads it, too: the program expects it to be readable no longer than there is something to look for.

use crate::backoff::Backoff;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::eventfd::{new_eventfd, wait_readable};
use crate::sys;
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use telegraphos_wire::uapi;

/// The events of a context.
#[derive(Debug, Default)]
pub(crate) struct CompletionChannel {
    /// The eventfd, made at its first use.
    fd: OnceLock<OwnedFd>,
    creation: Mutex<()>,
    /// Whether the driver has TG_IOCTL_WAIT.
    has_call: OnceLock<bool>,
    /// Whether a thread sleeps in the driver.
    has_leader: Mutex<bool>,
    /// Incremented whenever waiters must look again. Changed under `has_leader`.
    epoch: AtomicU64,
    notified: Condvar,
    /// The program, or another process, reads the events as well.
    shared: AtomicBool,
}

impl CompletionChannel {
    /// From now on the program, or another process, reads the events as well.
    pub(crate) fn share(&self) {
        self.shared.store(true, Ordering::Relaxed);
    }

    /// Whether a thread may sleep on the channel, and read its events, without an order to do so: the channel has no
    /// other reader, and works.
    pub(crate) fn is_private(&self, device: &Device) -> bool {
        !self.shared.load(Ordering::Relaxed) && self.prepare(device).is_ok()
    }

    /// Makes sure that threads can wait, before the board is armed.
    pub(crate) fn prepare(&self, device: &Device) -> Result<()> {
        // A flag that no driver knows: those that have the call refuse it as invalid, and no event is taken.
        let probe = || {
            let mut wait = uapi::Wait { flags: 1 << 31, ..Default::default() };
            sys::wait(device.fd(), &mut wait) == Err(Errno::INVAL)
        };
        if self.fd.get().is_none() && !*self.has_call.get_or_init(probe) {
            self.fd(device)?;
        }
        Ok(())
    }

    /// Sleeps until there are events, and takes them: false when the time has passed, a signal has come, or another
    /// process has taken them first.
    fn sleep(&self, device: &Device, time: Duration) -> Result<bool> {
        if let Some(fd) = self.fd.get() {
            return wait_readable(fd.as_fd(), time);
        }
        // Not before the time has passed.
        let timeout = time.as_nanos().div_ceil(1000);
        let mut wait = uapi::Wait { timeout: u64::try_from(timeout).unwrap_or(u64::MAX), ..Default::default() };
        match sys::wait(device.fd(), &mut wait) {
            Ok(()) => Ok(wait.events > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(device.error("waiting for an event", errno)),
        }
    }

    /// The eventfd, registered with the driver.
    pub(crate) fn fd(&self, device: &Device) -> Result<BorrowedFd<'_>> {
        let _creation = self.creation.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fd) = self.fd.get() {
            return Ok(fd.as_fd());
        }
        let fd = new_eventfd()?;
        let mut notify = uapi::Notify { eventfd: fd.as_raw_fd(), ..Default::default() };
        device.call(sys::notify, &mut notify, || "asking for completion events".into())?;
        Ok(self.fd.get_or_init(|| fd).as_fd())
    }

    /// Makes the eventfd readable from this side.
    pub(crate) fn signal(&self, device: &Device) -> Result<()> {
        match rustix::io::write(self.fd(device)?, &1u64.to_ne_bytes()) {
            // Full: readable anyway.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(errno) => Err(Error::Os { what: "signalling an eventfd".into(), errno }),
        }
    }

    /// The number of events read so far. A caller that reads it before it looks at memory, and finds another number
    /// later, has had an event since, whichever thread has read that off the eventfd.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    fn has_leader(&self) -> MutexGuard<'_, bool> {
        self.has_leader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all waiters; with `resign`, one of them becomes the leader.
    fn notify(&self, resign: bool) {
        let mut has_leader = self.has_leader();
        self.epoch.fetch_add(1, Ordering::AcqRel);
        *has_leader &= !resign;
        self.notified.notify_all();
    }

    /// Sleeps until `done`, for which the board was armed, or until `backoff` expires. `done` is called under a lock
    /// and must not block. Fails when the board is gone.
    pub(crate) fn wait(&self, device: &Device, backoff: &Backoff, mut done: impl FnMut() -> bool) -> Result<()> {
        self.prepare(device)?;
        loop {
            let mut has_leader = self.has_leader();
            // Under the lock: an event that comes after this call raises the epoch that is waited for.
            if done() || backoff.expired() {
                return Ok(());
            }
            if !*has_leader {
                *has_leader = true;
                drop(has_leader);
                let result = self.lead(device, backoff, &mut done);
                self.notify(true);
                return result;
            }
            let epoch = self.epoch();
            let time = backoff.left().unwrap_or(Duration::MAX).min(device.check_every);
            let asleep = |has_leader: &mut bool| *has_leader && self.epoch() == epoch;
            drop(self.notified.wait_timeout_while(has_leader, time, asleep));
        }
    }

    fn lead(&self, device: &Device, backoff: &Backoff, done: &mut dyn FnMut() -> bool) -> Result<()> {
        while !done() && !backoff.expired() {
            let time = backoff.left().unwrap_or(Duration::MAX).min(device.check_every);
            if self.sleep(device, time)? {
                self.notify(false);
            } else if time == device.check_every {
                device.check()?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::sync::mpsc;

    impl CompletionChannel {
        /// An eventfd that is registered with no driver.
        pub(crate) fn without_board(&self) {
            self.fd.set(new_eventfd().unwrap()).unwrap();
        }
    }

    /// Threads that sleep, and one that ends one after the other with a single event each: all of them wake.
    #[test]
    fn one_event_each_wakes_all_sleepers() {
        const SLEEPERS: usize = 8;
        let device = Device::without_board();
        let channel = CompletionChannel::default();
        channel.without_board();
        let done: [AtomicBool; SLEEPERS] = std::array::from_fn(|_| AtomicBool::new(false));
        let asleep = AtomicU32::new(0);
        let (ended, ends) = mpsc::channel();
        std::thread::scope(|scope| {
            for (number, flag) in done.iter().enumerate() {
                let (channel, device, asleep, ended) = (&channel, &device, &asleep, ended.clone());
                scope.spawn(move || {
                    let backoff = Backoff::new(Some(Duration::from_secs(60)));
                    asleep.fetch_add(1, Ordering::SeqCst);
                    channel.wait(device, &backoff, || flag.load(Ordering::Acquire)).unwrap();
                    ended.send((number, flag.load(Ordering::Acquire))).unwrap();
                });
            }
            while asleep.load(Ordering::SeqCst) < SLEEPERS as u32 {
                std::thread::yield_now();
            }
            // First the one that most likely leads, then another one, and so on.
            for (number, flag) in done.iter().enumerate() {
                flag.store(true, Ordering::Release);
                channel.signal(&device).unwrap();
                assert_eq!(ends.recv_timeout(Duration::from_secs(60)), Ok((number, true)));
            }
        });
    }

    #[test]
    fn a_wait_ends_at_its_limit() {
        let channel = CompletionChannel::default();
        channel.without_board();
        let backoff = Backoff::new(Some(Duration::from_millis(2)));
        channel.wait(&Device::without_board(), &backoff, || false).unwrap();
        assert!(backoff.waited() >= Duration::from_millis(2));
    }
}
