// SPDX-License-Identifier: MIT OR Apache-2.0
//! The board of this machine: an open file of `/dev/telegraphosN`, which is a context of its own.

use crate::error::{Error, Result};
use crate::quiet::{Quiets, Scope};
use crate::sys::{self, Mapping};
use crate::{ExportBuilder, ImportBuilder, NodeId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use telegraphos_wire::{Rights, context, uapi};

/// A board, opened. Cheap to clone: all clones, and all segments and remotes made from them, are one context of the board,
/// which ends with the last of them.
#[derive(Clone, Debug)]
pub struct Node {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) path: PathBuf,
    fd: OwnedFd,
    pub(crate) id: NodeId,
    pub(crate) quiets: Quiets,
}

/// What a board and its driver are.
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
        let mut info = uapi::Info::default();
        sys::info(fd.as_fd(), &mut info).map_err(|errno| match errno {
            Errno::NOTTY => Error::Argument {
                what: "the device file",
                value: path.display().to_string(),
                expected: "a /dev/telegraphosN".into(),
            },
            Errno::NODEV => Error::Gone { path: path.clone() },
            errno => Error::Open { path: path.clone(), errno },
        })?;
        if u64::from(info.abi) != uapi::ABI_VERSION {
            return Err(Error::Abi { path, found: info.abi, expected: uapi::ABI_VERSION as u32 });
        }
        // Both pages are at least this long; the kernel rounds up to what a page is.
        let map = |kind, rights, what: &str| {
            Mapping::new(fd.as_fd(), uapi::mmap_offset(kind, 0), context::STATUS_SIZE as usize, rights)
                .map_err(|errno| Error::Os { what: format!("mapping the {what} page of {}", path.display()), errno })
        };
        let context_page = map(uapi::MMAP_CONTEXT, Rights::WRITE, "context")?;
        let status_page = map(uapi::MMAP_STATUS, Rights::READ, "status")?;
        let quiets = Quiets::new(context_page, status_page);
        Ok(Node { inner: Arc::new(Inner { path, fd, id: info.node as NodeId, quiets }) })
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
        })
    }

    /// Exports `size` bytes of new, zeroed memory under `name`.
    pub fn export(&self, name: &str, size: u64) -> ExportBuilder {
        ExportBuilder::new(self, name, size)
    }

    /// Imports the segment `name` of `node`, which may be this node.
    pub fn import(&self, node: NodeId, name: &str) -> ImportBuilder {
        ImportBuilder::new(self, node, name)
    }

    /// Returns when every earlier store to every import of this context has been performed at its destination and
    /// acknowledged (SPEC E19), with the first error latched among them.
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
            let mut fds = [PollFd::new(&self.inner.fd, PollFlags::IN | PollFlags::PRI)];
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
