// SPDX-License-Identifier: MIT OR Apache-2.0
//! The board of this process, and memory from which it copies.

use crate::copies::{LIMIT, Pool, Refusal};
use crate::descriptors::HIGH;
use crate::settings::{say, settings};
use crate::signals;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};
use telegraphos::{Node, Operation, Registration, Remote};
use telegraphos_sockets_core::HEAD;

/// Bytes of the stack of a thread of ours.
pub(crate) const STACK: usize = 128 << 10;

/// The board's descriptor; -1 for none.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);

/// Whether a descriptor is the board's.
pub(crate) fn has_descriptor(fd: i32) -> bool {
    DESCRIPTOR.load(Ordering::Relaxed) == fd
}

/// In a child, which has no board.
pub(crate) fn forget() {
    DESCRIPTOR.store(-1, Ordering::SeqCst);
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

impl Board {
    pub(crate) fn open() -> telegraphos::Result<Board> {
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

    /// Copies a word to another node's memory, likewise.
    pub(crate) fn put(&self, theirs: &Remote, offset: u64, word: u64) -> Result<(), Fault> {
        self.copy(theirs, offset, 8, |bytes| bytes.copy_from_slice(&word.to_le_bytes()))
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
        let thread = std::thread::Builder::new().name("tg-sockets".into()).stack_size(STACK);
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
