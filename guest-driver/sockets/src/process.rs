// SPDX-License-Identifier: MIT OR Apache-2.0
//! What there is once in a process: its number, the board, memory from which it copies.

use crate::copies::{LIMIT, Pool, Refusal};
use crate::memory::{Shared, Use};
use crate::settings::{say, settings};
use crate::watch::{self, Watch};
use crate::{adopt, kernel, memory, settings, signals, table};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use telegraphos::{Node, Operation, Registration, Remote};
use telegraphos_sockets_core::HEAD;

/// Where descriptors of the board and of memory are put, so that programs get the numbers that they expect.
pub(crate) const HIGH: i32 = 1000;

/// The user whose processes have this one's connections in common with it.
static USER: AtomicU32 = AtomicU32::new(0);
static ID: AtomicU32 = AtomicU32::new(0);
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());
/// The board's descriptor; -1 for none.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);

#[derive(Default)]
struct Process {
    board: OnceLock<Option<Board>>,
    cells: OnceLock<Option<Shared>>,
    watch: Watch,
}

/// The board, and memory from which it copies.
pub(crate) struct Board {
    pub(crate) node: Node,
    copies: Pool<Staging, Operation<()>>,
    /// Imports that a thread of their own closes; whether it runs.
    closing: Mutex<(Vec<Remote>, bool)>,
}

/// Memory from which the board copies, registered.
struct Staging {
    bytes: &'static mut [u8],
    registration: Registration,
}

/// Why nothing was copied.
#[derive(Debug)]
pub(crate) enum Fault {
    /// All memory is in use, for a while.
    Busy,
    /// The node has not answered an earlier copy: nothing was tried.
    Silent,
    /// The node has not answered this one: it may be under way still.
    Unanswered,
    Failed(telegraphos::Error),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Busy => f.write_str("all memory to copy from is in use"),
            Fault::Silent => f.write_str("its node has not answered an earlier copy"),
            Fault::Unanswered => write!(f, "its node has not answered a copy for {} s", LIMIT.as_secs()),
            Fault::Failed(error) => error.fmt(f),
        }
    }
}

/// To be called once before all else, in the process's first thread.
pub fn settle() {
    settings::read();
    ID.store(std::process::id(), Ordering::SeqCst);
    USER.store(kernel::users()[1], Ordering::SeqCst);
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
    ID.store(std::process::id(), Ordering::SeqCst);
    PROCESS.store(std::ptr::null_mut(), Ordering::SeqCst);
    DESCRIPTOR.store(-1, Ordering::SeqCst);
    kernel::forget_thread();
    table::note_bare();
    // By a system call of the thread that has forked.
    leave_if_other_users();
}

/// To be called when this process has become another user's. What it has in common with processes of the user before is
/// not that user's: it leaves it, unless it can become the other one again, as a program of root's does that works for
/// a user for a while.
pub fn user_has_changed() {
    // A child of vfork has its parent's memory, and is about to begin a program.
    if is_this() {
        leave_if_other_users();
    }
    memory::keep_from_other_users();
}

fn leave_if_other_users() {
    let users = kernel::users();
    if !users.contains(&USER.load(Ordering::SeqCst)) {
        leave(users[1]);
    }
}

/// Leaves what this process shares, as one of this user's.
pub(crate) fn leave(user: libc::uid_t) {
    USER.store(user, Ordering::SeqCst);
    // New connections are looked after as before, in memory of the new user's, if that may open the board.
    PROCESS.store(std::ptr::null_mut(), Ordering::SeqCst);
    table::leave();
}

/// The number of this process, or of that whose memory this child of vfork uses.
pub(crate) fn id() -> u32 {
    ID.load(Ordering::Relaxed)
}

/// Whether the memory is this process's own: not for a child of vfork.
pub fn is_this() -> bool {
    id() == std::process::id()
}

/// Whether the descriptor is ours: the program has not opened it, and is not to close it.
pub fn is_own_descriptor(fd: i32) -> bool {
    fd >= 0 && (DESCRIPTOR.load(Ordering::Relaxed) == fd || table::is_own(fd))
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

/// Looks after connections of which a direction has become framed in this process.
pub(crate) fn watch() {
    if let Some(process) = process() {
        process.watch.start();
    }
}

/// The board; `None` if there is none that this process can use.
pub(crate) fn board() -> Option<&'static Board> {
    process()?
        .board
        .get_or_init(|| Board::open().inspect_err(|e| say(format_args!("without the board: {e}"))).ok())
        .as_ref()
}

impl Board {
    fn open() -> telegraphos::Result<Board> {
        let node = Node::open()?;
        let high = rustix::io::fcntl_dupfd_cloexec(node.as_fd(), HIGH)
            .map_err(|errno| telegraphos::Error::Os { what: "a descriptor for the board".into(), errno })?;
        drop(node);
        DESCRIPTOR.store(high.as_raw_fd(), Ordering::SeqCst);
        let node = Node::from_fd(high)?;
        // The program has its own handlers of signals, or none.
        node.soften()?;
        let copies = Pool::new(Staging::new(&node)?);
        Ok(Board { node, copies, closing: Mutex::default() })
    }

    /// Copies `length` bytes, which `fill` writes, to another node's memory, and returns when they are there, or in
    /// bounded time.
    pub(crate) fn copy(
        &self,
        theirs: &Remote,
        offset: u64,
        length: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), Fault> {
        let node = theirs.node();
        let make = || Staging::new(&self.node).inspect_err(|e| say(format_args!("no more memory to copy from: {e}")));
        let taken = self.copies.take(node, || make().ok(), Operation::is_done);
        let staging = taken.map_err(|refusal| match refusal {
            Refusal::Busy => Fault::Busy,
            Refusal::Silent => Fault::Silent,
        })?;
        fill(&mut staging.bytes[..length]);
        let mut copy = match theirs.put_nbi(offset, &staging.registration, 0, length as u64) {
            Ok(copy) => copy,
            Err(error) => {
                self.copies.put_back(staging);
                return Err(Fault::Failed(error));
            }
        };
        let outcome = copy.wait(Some(LIMIT));
        if copy.is_done() {
            self.copies.put_back(staging);
        } else {
            self.copies.lose(node, staging, copy);
        }
        outcome.map_err(|error| match error {
            telegraphos::Error::Pending { .. } => Fault::Unanswered,
            error => Fault::Failed(error),
        })
    }

    /// Whether the board is gone: what its memory says then is anything.
    pub(crate) fn is_gone(&self) -> bool {
        self.node.info().is_err()
    }

    /// Closes an import, which waits for what is under way to its node: for a silent one, in a thread of its own. Where
    /// words may have been stored by it, `stored` says so.
    pub(crate) fn close(&'static self, import: Remote, stored: bool) {
        let is_silent = self.copies.is_silent(import.node())
            || stored && matches!(import.quiet_timeout(LIMIT), Err(telegraphos::Error::Pending { .. }));
        if is_silent {
            self.close_apart(import);
        }
    }

    fn close_apart(&'static self, import: Remote) {
        let _signals = signals::wait();
        let mut closing = self.closing.lock().unwrap_or_else(PoisonError::into_inner);
        closing.0.push(import);
        if closing.1 {
            return;
        }
        let next = || {
            let mut closing = self.closing.lock().unwrap_or_else(PoisonError::into_inner);
            let next = closing.0.pop();
            closing.1 = next.is_some();
            next
        };
        let run = move || while next().is_some() {};
        let thread = std::thread::Builder::new().name("tg-sockets".into()).stack_size(watch::STACK);
        // Without it they stay open, as long as the process runs.
        closing.1 = thread.spawn(run).is_ok();
    }
}

impl Staging {
    fn new(node: &Node) -> telegraphos::Result<Staging> {
        let bytes = Vec::leak(vec![0; usize::try_from(HEAD + settings().record()).unwrap_or(8 << 10)]);
        // SAFETY: nothing else has it, and it is freed below only where the board does not have it.
        match unsafe { node.register(bytes) }.create() {
            Ok(registration) => Ok(Staging { bytes, registration }),
            Err(error) => {
                // SAFETY: leaked above.
                drop(unsafe { Box::from_raw(bytes) });
                Err(error)
            }
        }
    }
}

/// Closes an import of this process.
pub(crate) fn close_import(import: Remote, stored: bool) {
    if let Some(board) = board() {
        board.close(import, stored);
    }
}
