// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lock in memory that processes share, of which one may die while it holds it.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;

/// The lock. Plain zeros until [`Lock::init`].
#[repr(transparent)]
pub(crate) struct Lock(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: what it is for.
unsafe impl Sync for Lock {}

/// Its holder has died: what it protects may be in between.
#[derive(Debug)]
pub(crate) struct Broken;

/// Holds it.
pub(crate) struct Guard<'a>(&'a Lock);

impl Lock {
    /// Makes it a lock, which nobody uses yet. False if the system has none for several processes.
    pub(crate) fn init(&self) -> bool {
        let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        let attributes = attributes.as_mut_ptr();
        // SAFETY: initialised first, destroyed last; nobody uses the lock yet.
        unsafe {
            if libc::pthread_mutexattr_init(attributes) != 0 {
                return false;
            }
            let made = libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED) == 0
                && libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST) == 0
                && libc::pthread_mutex_init(self.0.get(), attributes) == 0;
            libc::pthread_mutexattr_destroy(attributes);
            made
        }
    }

    /// Waits for it.
    pub(crate) fn lock(&self) -> Result<Guard<'_>, Broken> {
        // SAFETY: it has been initialised.
        match unsafe { libc::pthread_mutex_lock(self.0.get()) } {
            0 => Ok(Guard(self)),
            libc::EOWNERDEAD => {
                // Never made consistent: all who come later learn it, too.
                // SAFETY: this thread holds it.
                unsafe { libc::pthread_mutex_unlock(self.0.get()) };
                Err(Broken)
            }
            _ => Err(Broken),
        }
    }

    /// It, if nobody holds it.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_>> {
        // SAFETY: it has been initialised.
        match unsafe { libc::pthread_mutex_trylock(self.0.get()) } {
            0 => Some(Guard(self)),
            libc::EOWNERDEAD => {
                // SAFETY: this thread holds it.
                unsafe { libc::pthread_mutex_unlock(self.0.get()) };
                None
            }
            _ => None,
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread holds it.
        unsafe { libc::pthread_mutex_unlock(self.0.0.get()) };
    }
}
