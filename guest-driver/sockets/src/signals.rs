// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals wait while a thread has locks: a handler may read, write and close, too, and would wait for what the thread
//! that it interrupts has, or never come back to it (`siglongjmp`).

use crate::kernel::FAULTS;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Signals to this thread wait. To be dropped behind the locks that are taken after it.
pub(crate) struct Waiting {
    before: libc::sigset_t,
    _thread: PhantomData<*const ()>,
}

/// Lets them wait. Not for long: nothing that waits for another process is done meanwhile.
pub(crate) fn wait() -> Waiting {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::zeroed());
    // SAFETY: two sets, of which the first is filled before it is used; with such arguments nothing can fail.
    let before = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for fault in FAULTS {
            libc::sigdelset(all.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    };
    Waiting { before, _thread: PhantomData }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // SAFETY: the set that there was before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}
