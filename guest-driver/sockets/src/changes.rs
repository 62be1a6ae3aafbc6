// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens to a process as a whole: it begins, it makes another one, it becomes another user's.

use crate::descriptors::{is_own, owned};
use crate::memory::user;
use crate::settings::say;
use crate::{adopt, board, kernel, process, settings, table};
use std::sync::atomic::{AtomicBool, Ordering};

/// To be called once before all else, in the process's first thread.
pub fn settle() {
    settings::read();
    process::begin();
    // SAFETY: the function may be called at any fork.
    unsafe { libc::pthread_atfork(Some(before_fork), None, Some(after_fork)) };
    adopt::adopt();
}

extern "C" fn before_fork() {
    forking();
}

/// To be called before this process makes another one that has its memory's contents and its descriptors: the child is
/// to have what it may read.
pub fn forking() {
    table::reserve_rings();
}

extern "C" fn after_fork() {
    forked();
}

/// To be called in the child. It has no board yet. Its parent's is left as it is: threads that there are not may hold
/// its locks, also those of memory, so none is asked for.
pub fn forked() {
    table::begin_as_child();
    // By a system call of the thread that has forked.
    leave_if_other_users();
}

/// To be called when this process has become another user's. What it has in common with processes of the user before is
/// not that user's: it leaves it, unless it can become the other one again, as a program of root's does that works for
/// a user for a while.
pub fn user_has_changed() {
    // A child of vfork has its parent's memory, and is about to begin a program.
    if process::is_this() {
        leave_if_other_users();
    }
    keep_from_other_users();
}

/// Whether this process has done what no connection can be looked after with.
static RETIRED: AtomicBool = AtomicBool::new(false);

/// To be called before this process is confined to some system calls (seccomp), of which it is not known whether those
/// are among them that are made here, or before other code of it passes these functions: new connections are left
/// alone, and those of which no direction is framed. `why` is for the log.
pub fn retire(why: &str) {
    if !RETIRED.swap(true, Ordering::SeqCst) {
        let framed = table::refuse_all();
        say(format_args!("connections are left alone from now on ({framed} are framed): {why}"));
    }
}

/// Whether that has been called.
pub fn is_retired() -> bool {
    RETIRED.load(Ordering::Relaxed)
}

fn leave_if_other_users() {
    if let Some(user) = process::other_user() {
        leave(user);
    }
}

/// Leaves what this process shares, as one of this user's.
pub(crate) fn leave(user: libc::uid_t) {
    process::begin_as(user);
    table::leave();
}

/// What another user starts does not get the memory of the one before, whose other processes believe what is in it, nor
/// the connections that cannot be understood without.
fn keep_from_other_users() {
    let others = owned().filter(|fd| kernel::status(*fd).is_some_and(|status| status.st_uid != user()));
    if others.map(kernel::close_at_exec).count() > 0 {
        table::framed().for_each(kernel::close_at_exec);
    }
}

/// Whether the descriptor is ours: the program has not opened it, and is not to close it.
pub fn is_own_descriptor(fd: i32) -> bool {
    fd >= 0 && (board::has_descriptor(fd) || is_own(fd))
}
