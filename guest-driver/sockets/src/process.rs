// SPDX-License-Identifier: MIT OR Apache-2.0
//! What there is once in a process: its number, the board, memory from which it copies.

use crate::board::{self, Board};
use crate::kernel;
use crate::memory::{Shared, Use};
use crate::settings::say;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use telegraphos::Remote;

/// The user whose processes have this one's connections in common with it.
static USER: AtomicU32 = AtomicU32::new(0);
static ID: AtomicU32 = AtomicU32::new(0);
/// A word that is 1 in this process: in a page that each child has with zeros, and a child of vfork in common with its
/// parent, whose memory is its own.
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

#[derive(Default)]
struct Process {
    board: OnceLock<Option<Board>>,
    cells: OnceLock<Option<Shared>>,
    /// Whether a thread looks after its connections.
    watches: Mutex<bool>,
}

/// Before all else.
pub(crate) fn begin() {
    ID.store(std::process::id(), Ordering::SeqCst);
    USER.store(kernel::users()[1], Ordering::SeqCst);
    MARK.store(kernel::wiped_page().unwrap_or(std::ptr::null_mut()), Ordering::SeqCst);
    set_mark();
}

fn mark() -> Option<&'static AtomicU32> {
    // SAFETY: a page that is never unmapped, or null.
    unsafe { MARK.load(Ordering::Relaxed).as_ref() }
}

fn set_mark() {
    mark().into_iter().for_each(|mark| mark.store(1, Ordering::SeqCst));
}

/// Whether this is a child that was made past all functions that are replaced, by the system call itself, and has not
/// begun as one.
pub(crate) fn is_unknown_child() -> bool {
    mark().is_some_and(|mark| mark.load(Ordering::Relaxed) == 0)
}

/// In a child, before all else.
pub(crate) fn begin_as_child() {
    ID.store(std::process::id(), Ordering::SeqCst);
    set_mark();
    PROCESS.store(std::ptr::null_mut(), Ordering::SeqCst);
    board::forget();
    kernel::forget_thread();
}

/// The user that this process has become, if it cannot become again the one that it was.
pub(crate) fn other_user() -> Option<libc::uid_t> {
    let users = kernel::users();
    (!users.contains(&USER.load(Ordering::SeqCst))).then_some(users[1])
}

/// From now on this process is of this user. New connections are looked after as before, in memory of the new user's,
/// if that may open the board.
pub(crate) fn begin_as(user: libc::uid_t) {
    USER.store(user, Ordering::SeqCst);
    PROCESS.store(std::ptr::null_mut(), Ordering::SeqCst);
}

/// The number of this process, or of that whose memory this child of vfork uses.
pub(crate) fn id() -> u32 {
    ID.load(Ordering::Relaxed)
}

/// Whether the memory is this process's own: not for a child of vfork.
pub fn is_this() -> bool {
    id() == std::process::id()
}

fn process() -> Option<&'static Process> {
    // Before `settle` there is none.
    if id() == 0 {
        return None;
    }
    if PROCESS.load(Ordering::SeqCst).is_null() {
        let new = Box::into_raw(Box::default());
        if PROCESS.compare_exchange(std::ptr::null_mut(), new, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            // SAFETY: no other thread has seen it.
            drop(unsafe { Box::from_raw(new) });
        }
    }
    // SAFETY: never freed.
    unsafe { PROCESS.load(Ordering::SeqCst).as_ref() }
}

/// Memory for the state of the connections that this process makes, of so many bytes. `None` if there is none.
pub(crate) fn cells(bytes: usize) -> Option<&'static Shared> {
    process()?.cells.get_or_init(|| Shared::new(Use::Cells, bytes)).as_ref()
}

/// Whether a thread looks after this process's connections.
pub(crate) fn watches() -> Option<&'static Mutex<bool>> {
    process().map(|process| &process.watches)
}

/// The board; `None` if there is none that this process can use.
pub(crate) fn board() -> Option<&'static Board> {
    process()?
        .board
        .get_or_init(|| Board::open().inspect_err(|e| say(format_args!("without the board: {e}"))).ok())
        .as_ref()
}

/// Closes an import of this process.
pub(crate) fn close_import(import: Remote, stored: bool) {
    if let Some(board) = board() {
        board.close(import, stored);
    }
}
