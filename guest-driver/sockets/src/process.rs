// SPDX-License-Identifier: MIT OR Apache-2.0
//! What there is once in a process: its number, the board, memory from which it copies.

use crate::memory::{Shared, Use};
use crate::settings::{say, settings};
use crate::watch::Watch;
use crate::{adopt, settings, table};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use telegraphos::{Node, Registration};
use telegraphos_sockets_core::HEAD;

/// Where descriptors of the board and of memory are put, so that programs get the numbers that they expect.
pub(crate) const HIGH: i32 = 1000;

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
    pub(crate) staging: Mutex<Staging>,
}

/// Memory from which the board copies, registered.
pub(crate) struct Staging {
    pub(crate) bytes: &'static mut [u8],
    pub(crate) registration: Registration,
}

/// To be called once before all else, in the process's first thread.
pub fn settle() {
    settings::read();
    ID.store(std::process::id(), Ordering::SeqCst);
    PROCESS.store(Box::into_raw(Box::default()), Ordering::SeqCst);
    // SAFETY: the function may be called at any fork.
    unsafe { libc::pthread_atfork(Some(before_fork), None, Some(after_fork)) };
    adopt::adopt();
}

/// The child is to have what it may read.
extern "C" fn before_fork() {
    table::reserve_rings();
}

/// The child has no board yet. Its parent's is left as it is: threads that there are not may hold its locks.
extern "C" fn after_fork() {
    ID.store(std::process::id(), Ordering::SeqCst);
    PROCESS.store(Box::into_raw(Box::default()), Ordering::SeqCst);
    DESCRIPTOR.store(-1, Ordering::SeqCst);
    table::note_bare();
}

/// The number of this process, or of that whose memory this child of vfork uses.
pub(crate) fn id() -> u32 {
    ID.load(Ordering::Relaxed)
}

/// Whether the memory is this process's own: not for a child of vfork.
pub(crate) fn is_this() -> bool {
    id() == std::process::id()
}

/// Whether the descriptor is ours: the program has not opened it, and is not to close it.
pub fn is_own_descriptor(fd: i32) -> bool {
    fd >= 0 && (DESCRIPTOR.load(Ordering::Relaxed) == fd || table::is_own(fd))
}

fn process() -> Option<&'static Process> {
    // SAFETY: set by `settle`, and never freed.
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
        let bytes = Vec::leak(vec![0; usize::try_from(HEAD + settings().record()).unwrap_or(8 << 10)]);
        // SAFETY: nothing else has it, and it is never freed.
        let registration = unsafe { node.register(bytes) }.create()?;
        Ok(Board { node, staging: Mutex::new(Staging { bytes, registration }) })
    }
}
