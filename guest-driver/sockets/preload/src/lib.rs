// SPDX-License-Identifier: MIT OR Apache-2.0
//! `libtelegraphos_preload.so`: functions of libc for sockets, in place of libc's own, for unmodified programs
//! (SPEC item 36). What they do is in `telegraphos_sockets`; here are their names and their ways to return.
//!
//! Calls on all but a few connections are passed on to libc's functions. Where a thread may be cancelled there, nothing
//! of ours is left behind that matters.

mod asynchronous;
mod copies;
mod descriptors;
mod formatted;
mod next;
mod options;
mod reading;
mod streams;
mod system;
mod users;
mod writing;

use libc::{c_int, ssize_t};
use telegraphos_sockets::Outcome;

/// Called by the dynamic loader, before the program's `main`.
extern "C" fn begin() {
    telegraphos_sockets::settle();
    streams::begin();
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

/// An outcome as libc's functions return it.
fn returned(outcome: Outcome) -> ssize_t {
    match outcome {
        // The kernel moves less than that at once.
        Ok(bytes) => bytes as ssize_t,
        Err(errno) => {
            fail(errno.0);
            -1
        }
    }
}

fn fail(errno: c_int) {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

/// What libc's function has returned, as an outcome.
fn outcome(returned: ssize_t) -> Outcome {
    usize::try_from(returned).map_err(|_| {
        // SAFETY: this thread's errno.
        telegraphos_sockets::Errno(unsafe { *libc::__errno_location() })
    })
}
