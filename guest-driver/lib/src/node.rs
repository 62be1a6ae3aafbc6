// SPDX-License-Identifier: MIT OR Apache-2.0
//! The board of this machine: an open file of `/dev/telegraphosN`, which is a context of its own.

use crate::bell::Bell;
use crate::error::{Error, Object, Result};
use crate::operation::LaunchStyle;
use crate::quiet::{Destinations, Scope};
use crate::slots::Slots;
use crate::sys::{self, Mapping};
use crate::{ExportBuilder, ImportBuilder, NodeId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};
use telegraphos_wire::{Rights, context, uapi};

/// A board, opened. Cheap to clone: all clones, and all segments and remotes made from them, are one context of the
/// board, which ends with the last of them.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// let node = telegraphos::Node::open()?;
/// let remote = node.import(3, "ring").open()?;
/// remote.put64(8, 42)?;
/// node.quiet()?; // everything that this context has stored, to whichever nodes, has arrived
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Node {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) path: PathBuf,
    fd: OwnedFd,
    pub(crate) id: NodeId,
    pub(crate) unit: u64,
    context: u8,
    key: Key,
    pub(crate) style: AtomicU8,
    pub(crate) slots: Slots,
    /// Who sleeps looks this often anyway: whether the board is still there, and for what another process has heard.
    pub(crate) look_every: Duration,
    pub(crate) bell: Bell,
    pub(crate) destinations: Destinations,
}

/// The context's key, which is nobody else's business.
#[derive(Clone, Copy)]
struct Key(u64);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// What a board and its driver are.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// let info = node.info()?;
/// println!("node {} of {}, segments of up to {} bytes", info.node, info.nodes, info.window_size);
/// if !info.link_up {
///     println!("the board has not joined a fabric");
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// This node's id.
    pub node: NodeId,
    /// Number of nodes that the window can address; ids are below it.
    pub nodes: u32,
    /// Bytes of the unit in which the board counts memory: an import or export takes a whole number of units.
    pub unit: u64,
    /// Bytes of window per node: the largest segment.
    pub window_size: u64,
    /// The board's incarnation: another number after each reset and each time it joined the fabric.
    pub incarnation: u32,
    /// Whether the link to the fabric is up.
    pub link_up: bool,
    /// Number of the context.
    pub context: u32,
    /// Number of page access counters of the board.
    pub counters: u32,
}

impl Node {
    /// Opens the first board: `/dev/telegraphos0`, or the lowest number there is.
    pub fn open() -> Result<Node> {
        let numbers = std::fs::read_dir("/dev")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("telegraphos")?.parse::<u32>().ok());
        let first = numbers.min().ok_or(Error::NoDevice)?;
        Node::open_path(format!("/dev/telegraphos{first}"))
    }

    /// Opens the board of that device file.
    pub fn open_path(path: impl AsRef<Path>) -> Result<Node> {
        let path = path.as_ref().to_owned();
        let fd = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| Error::Open { path: path.clone(), errno })?;
        Node::of(path, fd, false)
    }

    /// A board that another process has opened, by the file descriptor inherited or received from it ([`AsFd`]): the
    /// same context, whose queues this process may [attach](crate::Queue::attach).
    ///
    /// Of the processes that share a context, one at a time uses quiet, atomics and copies: their slots know nothing
    /// of other processes. And one at a time gets the interrupts: the last that began to wait for one. The others look
    /// every 20 ms.
    ///
    /// The descriptor passes through `exec` as the standard input, say:
    /// ```no_run
    /// # use std::{os::fd::AsFd, process::{Command, Stdio}};
    /// # use telegraphos::{Node, Queue};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let node = Node::open()?;
    /// # let queue = Queue::create(&node, "work").create()?;
    /// // The parent:
    /// let stdin = Stdio::from(node.as_fd().try_clone_to_owned()?);
    /// Command::new("consumer").arg(queue.handle().to_string()).stdin(stdin).spawn()?;
    /// // The consumer:
    /// let node = Node::from_fd(std::io::stdin().as_fd().try_clone_to_owned()?)?;
    /// let queue = Queue::attach(&node, std::env::args().nth(1).unwrap().parse()?)?;
    /// # Ok(()) }
    /// ```
    pub fn from_fd(fd: OwnedFd) -> Result<Node> {
        let name = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let path = std::fs::read_link(&name).unwrap_or_else(|_| name.into());
        Node::of(path, fd, true)
    }

    fn of(path: PathBuf, fd: OwnedFd, shared: bool) -> Result<Node> {
        let mut info = uapi::Info::default();
        sys::info(fd.as_fd(), &mut info).map_err(|errno| match errno {
            Errno::NOTTY => Error::Argument {
                what: "the device file",
                value: path.display().to_string(),
                expected: format!("a /dev/telegraphosN whose driver has user interface {}", uapi::ABI_VERSION),
            },
            Errno::NODEV => Error::Gone { path: path.clone() },
            errno => Error::Open { path: path.clone(), errno },
        })?;
        if u64::from(info.abi) != uapi::ABI_VERSION {
            return Err(Error::Abi { path, found: info.abi, expected: uapi::ABI_VERSION as u32 });
        }
        // The word of an argument names its context in 8 bits: a number above would be another process's context.
        let context = u8::try_from(info.context).map_err(|_| Error::Argument {
            what: "the driver's context number",
            value: info.context.to_string(),
            expected: format!("0 to {}", context::COUNT - 1),
        })?;
        // Both pages are at least this long; the kernel rounds up to what a page is.
        let map = |kind, rights, what: &str| {
            Mapping::new(fd.as_fd(), uapi::mmap_offset(kind, 0), context::STATUS_SIZE as usize, rights)
                .map_err(|errno| Error::Os { what: format!("mapping the {what} page of {}", path.display()), errno })
        };
        let context_page = map(uapi::MMAP_CONTEXT, crate::READ_WRITE, "context")?;
        let status_page = map(uapi::MMAP_STATUS, Rights::READ, "status")?;
        let slots = Slots::new(context_page, status_page);
        if shared {
            slots.follow();
        }
        Ok(Node {
            inner: Arc::new(Inner {
                path,
                fd,
                id: info.node as NodeId,
                unit: 1 << info.unit_shift.min(63),
                context,
                key: Key(info.key),
                style: AtomicU8::new(LaunchStyle::default() as u8),
                slots,
                look_every: if shared { Duration::from_millis(20) } else { Duration::from_secs(1) },
                bell: Bell::default(),
                destinations: Destinations::default(),
            }),
        })
    }

    /// This node's id.
    pub fn id(&self) -> NodeId {
        self.inner.id
    }

    /// The device file.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// What the board is, and whether its link is up now.
    pub fn info(&self) -> Result<Info> {
        let mut info = uapi::Info::default();
        sys::info(self.inner.fd(), &mut info)
            .map_err(|errno| self.inner.error("asking for the board's state", errno))?;
        Ok(Info {
            node: info.node as NodeId,
            nodes: info.nodes,
            unit: 1 << info.unit_shift.min(63),
            window_size: info.window_size,
            incarnation: info.incarnation,
            link_up: info.link_up != 0,
            context: info.context,
            counters: info.counters,
        })
    }

    /// Exports `size` bytes of new, zeroed memory under `name`.
    pub fn export(&self, name: &str, size: u64) -> ExportBuilder {
        ExportBuilder::new(self, name, size)
    }

    /// Imports the segment `name` of `node`, which may be this node.
    pub fn import(&self, node: NodeId, name: &str) -> ImportBuilder {
        ImportBuilder::new(self, Object::Segment, node, name)
    }

    /// How operations of this context are launched from now on; [`LaunchStyle::Context`] at first.
    pub fn set_launch_style(&self, style: LaunchStyle) {
        self.inner.style.store(style as u8, Ordering::Relaxed);
    }

    /// How operations of this context are launched.
    pub fn launch_style(&self) -> LaunchStyle {
        self.inner.launch_style()
    }

    /// Operations of this context that were launched from user level and are not yet done. Stores are not among them:
    /// the board has no word that counts those.
    pub fn unfinished(&self) -> u32 {
        self.inner.slots.unfinished()
    }

    /// An eventfd that becomes readable when an operation for which [`Operation::arm`](crate::Operation::arm) was
    /// called is done, or a queue for which [`Queue::arm`](crate::Queue::arm) was called has an element, for a
    /// program's own `poll`. It is one for the whole context: who reads it looks at all its operations and queues, and
    /// nobody calls [`Operation::wait_event`](crate::Operation::wait_event) or
    /// [`Queue::pop_wait`](crate::Queue::pop_wait) meanwhile, which read it too.
    pub fn completions(&self) -> Result<BorrowedFd<'_>> {
        self.inner.bell.ready(&self.inner)
    }

    /// Orders: what this context stores, launches or enqueues from now on is performed after everything before, at
    /// whichever nodes. It need not wait for it, but may.
    ///
    /// Towards the segments of one node order is free of charge (SPEC I8), and so it is towards one queue. So this does
    /// nothing while all open imports of the context that are more than readable are segments of one node, or there is
    /// one alone, of a queue, and while no operation launched is unfinished. Else it is [`Node::quiet`], and fails as
    /// that does. It looks at imports rather than at the stores themselves because those are single instructions that
    /// no library sees.
    pub fn fence(&self) -> Result<()> {
        self.inner.fence()
    }

    /// Returns when everything that this context stored, launched atomically or copied before has been performed at its
    /// destination and acknowledged (SPEC E19), with the first error latched on its imports.
    pub fn quiet(&self) -> Result<()> {
        self.inner.quiet(Scope::All, None)
    }

    /// [`Node::quiet`] that gives up after `timeout` with [`Error::Pending`]; it may be called again.
    pub fn quiet_timeout(&self, timeout: Duration) -> Result<()> {
        self.inner.quiet(Scope::All, Some(timeout))
    }

    /// Waits until an import of this context has something to report ([`Remote::state`](crate::Remote::state)): true,
    /// or false when `timeout` has passed (`None` waits for ever). Fails when the board is gone.
    pub fn wait_error(&self, timeout: Option<Duration>) -> Result<bool> {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            let left = left.map(|l| Timespec { tv_sec: l.as_secs() as i64, tv_nsec: l.subsec_nanos() as i64 });
            let mut fds = [PollFd::new(&self.inner.fd, PollFlags::PRI)];
            match poll(&mut fds, left.as_ref()) {
                Ok(0) => return Ok(false),
                Ok(_) => {
                    let events = fds[0].revents();
                    if events.intersects(PollFlags::HUP | PollFlags::NVAL) {
                        return Err(Error::Gone { path: self.inner.path.clone() });
                    }
                    return Ok(true);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.inner.error("waiting for errors", errno)),
            }
        }
    }
}

impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }
}

impl Inner {
    pub(crate) fn launch_style(&self) -> LaunchStyle {
        LaunchStyle::from_u32(self.style.load(Ordering::Relaxed).into()).unwrap_or_default()
    }

    /// What passes an address to a slot: the word for the argument aperture.
    pub(crate) fn argument(&self, slot: u32, which: u8) -> u64 {
        context::Argument { context: self.context, slot: slot as u8, which, key: self.key.0 }.encode()
    }

    /// For tests of what does not reach the board.
    #[cfg(test)]
    pub(crate) fn without_board() -> Inner {
        let path = PathBuf::from("/dev/null");
        Inner {
            fd: rustix::fs::open(&path, OFlags::RDWR, Mode::empty()).unwrap(),
            path,
            id: 0,
            unit: 65536,
            context: 5,
            key: Key(0x0123_4567_89ab),
            style: AtomicU8::new(LaunchStyle::default() as u8),
            slots: Slots::new(Mapping::anonymous(4096), Mapping::anonymous(4096)),
            // Tests show that nobody sleeps who should not.
            look_every: Duration::from_secs(3600),
            bell: Bell::default(),
            destinations: Destinations::default(),
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The error of a system call on the device.
    pub(crate) fn error(&self, what: &str, errno: Errno) -> Error {
        match errno {
            Errno::NODEV => Error::Gone { path: self.path.clone() },
            errno => Error::Os { what: format!("{}: {what}", self.path.display()), errno },
        }
    }
}
