// SPDX-License-Identifier: MIT OR Apache-2.0
//! The board of this machine, opened: an open file of `/dev/telegraphosN` is one context of the board.

use crate::access_policy::READ_WRITE;
use crate::backoff::Backoff;
use crate::context::Context;
use crate::device::Device;
use crate::error::{Error, Object, Result};
use crate::eventfd::poll_fd;
use crate::launch_style::LaunchStyle;
use crate::quiet::Scope;
use crate::remote::ImportBuilder;
use crate::slots::Slots;
use crate::sys;
use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use telegraphos_wire::{NodeId, Rights, context, uapi};

/// An open board. Cheap to clone: all clones, and all segments and imports made from them, are one context of the
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
    pub(crate) context: Arc<Context>,
}

/// The properties of a board and its driver.
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
    /// The board's incarnation: another number after each reset and after each time it joined the fabric.
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
    /// Of the processes that share a context, only one at a time may use quiet, atomics and copies: the slots that
    /// these occupy are allocated per process. And only one at a time gets the interrupts: the last that began to wait
    /// for one. The others poll every 20 ms.
    ///
    /// The descriptor can pass through `exec`, for example as the standard input:
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
            Errno::NOTTY => Error::argument(
                "the device file",
                path.display(),
                format!("a /dev/telegraphosN whose driver has user interface {}", uapi::ABI_VERSION),
            ),
            Errno::NODEV => Error::Gone { path: path.clone() },
            errno => Error::Open { path: path.clone(), errno },
        })?;
        if u64::from(info.abi) != uapi::ABI_VERSION {
            return Err(Error::Abi { path, found: info.abi, expected: uapi::ABI_VERSION as u32 });
        }
        // The word of an argument names its context in 8 bits: a larger number would name another process's context.
        let number = u8::try_from(info.context).map_err(|_| {
            Error::argument("the driver's context number", info.context, format!("0 to {}", context::COUNT - 1))
        })?;
        let check_every = if shared { Duration::from_millis(20) } else { Duration::from_secs(1) };
        let device = Device { path, fd, check_every };
        // Both pages are at least this long; the kernel rounds up to its page size.
        let map = |kind, rights, what: &str| {
            let what = format!("the {what} page of {}", device.path.display());
            device.map(uapi::mmap_offset(kind, 0), context::STATUS_SIZE, rights, &what)
        };
        let context_page = map(uapi::MMAP_CONTEXT, READ_WRITE, "context")?;
        let status_page = map(uapi::MMAP_STATUS, Rights::READ, "status")?;
        let slots = Slots::new(context_page, status_page);
        if shared {
            slots.continue_cookies();
        }
        let (id, unit) = (info.node as NodeId, 1 << info.unit_shift.min(63));
        let context = Context::new(device, id, unit, number, info.key, slots);
        if shared {
            context.completions.share();
        }
        Ok(Node { context: Arc::new(context) })
    }

    /// From now on nothing that this context maps raises SIGBUS when its board is gone: stores reach nothing then,
    /// loads return anything, and operations fail with [`Error::Gone`]. Queues and replicated segments are not meant,
    /// and imports say so for themselves ([`ImportBuilder::soft`](crate::ImportBuilder::soft)).
    pub fn soften(&self) -> Result<()> {
        let mut info = uapi::Info { flags: uapi::INFO_SOFT as u32, ..uapi::Info::default() };
        self.context.device.call(sys::info, &mut info, || "asking for no SIGBUS".into())
    }

    /// This node's id.
    pub fn id(&self) -> NodeId {
        self.context.id
    }

    /// The device file.
    pub fn path(&self) -> &Path {
        &self.context.device.path
    }

    /// The properties of the board, and whether its link is up now. A system call.
    pub fn info(&self) -> Result<Info> {
        let info = self.context.device.info("asking for the board's state")?;
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

    /// The name of this node's trust group, for [`ExportBuilder::direct`](crate::ExportBuilder::direct); `None` if it
    /// is in none. A system call.
    pub fn trust_group(&self) -> Result<Option<String>> {
        self.context.trust_group()
    }

    /// Imports the segment `name` of `node`, which may be this node.
    pub fn import(&self, node: NodeId, name: &str) -> ImportBuilder {
        ImportBuilder::new(&self.context, Object::Segment, node, name)
    }

    /// How operations of this context are launched from now on; [`LaunchStyle::Context`] at first.
    pub fn set_launch_style(&self, style: LaunchStyle) {
        self.context.set_launch_style(style);
    }

    /// How operations of this context are launched.
    pub fn launch_style(&self) -> LaunchStyle {
        self.context.launch_style()
    }

    /// The number of operations of this context that were launched from user level and are not yet done. Stores are not
    /// counted: the board has no word for them.
    pub fn unfinished(&self) -> u32 {
        self.context.slots.unfinished()
    }

    /// An eventfd that becomes readable when an operation for which [`Operation::arm`](crate::Operation::arm) was
    /// called is done, or a queue for which [`Queue::arm`](crate::Queue::arm) was called has an element, for a
    /// program's own `poll`. It is one for the whole context: a thread that reads it must then check all its operations
    /// and queues, and no thread calls [`Operation::wait_event`](crate::Operation::wait_event) or
    /// [`Queue::pop_wait`](crate::Queue::pop_wait) meanwhile, which read it too.
    pub fn completions(&self) -> Result<BorrowedFd<'_>> {
        self.context.completions.share();
        self.context.completions.fd(&self.context.device)
    }

    /// Orders: what this context stores, launches or enqueues from now on is performed after everything before, on any
    /// node. It may wait for that, but need not.
    ///
    /// The network keeps the order towards the segments of one node (SPEC I8), and towards one queue. So this does
    /// nothing while no operation is unfinished and the open imports of the context that allow more than loads are
    /// either segments of one node, or a single queue. Otherwise it is [`Node::quiet`], and fails as that does. It
    /// considers imports rather than stores because a store is a single instruction, which no library sees.
    pub fn fence(&self) -> Result<()> {
        self.context.fence()
    }

    /// Returns when everything that this context stored, launched atomically or copied before has been performed at its
    /// destination and acknowledged (SPEC E19), with the first error latched on its imports.
    pub fn quiet(&self) -> Result<()> {
        self.context.quiet(Scope::All, None)
    }

    /// [`Node::quiet`] that fails after `timeout` with [`Error::Pending`]; it may be called again.
    pub fn quiet_timeout(&self, timeout: Duration) -> Result<()> {
        self.context.quiet(Scope::All, Some(timeout))
    }

    /// Waits until an import of this context has an error or a change of state to report
    /// ([`Remote::state`](crate::Remote::state)): true, or false when `timeout` has passed (`None` waits for ever).
    /// Fails when the board is gone.
    pub fn wait_error(&self, timeout: Option<Duration>) -> Result<bool> {
        let (device, backoff) = (&self.context.device, Backoff::new(timeout));
        match retry_on_intr(|| poll_fd(device.fd(), PollFlags::PRI, backoff.left())) {
            Ok(events) if events.intersects(PollFlags::HUP | PollFlags::NVAL) => Err(device.gone()),
            Ok(events) => Ok(!events.is_empty()),
            Err(errno) => Err(device.error("waiting for errors", errno)),
        }
    }
}

impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.context.device.fd()
    }
}
