// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open boards.

use super::error::guard;
use super::{give, given, take, text};
use crate::{Error, LaunchStyle, Node};
use std::ffi::{c_char, c_int};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Values of `tg_set_launch_style`.
pub(super) const STYLES: &[(&str, u64, &str)] = &[
    (
        "TG_STYLE_PLAIN",
        LaunchStyle::Plain as u64,
        "A system call that does everything in the kernel; needs telegraphos_lab.ko.",
    ),
    (
        "TG_STYLE_SPECIAL",
        LaunchStyle::Special as u64,
        "Telegraphos I: special mode, in a system call; needs telegraphos_lab.ko.",
    ),
    (
        "TG_STYLE_CONTEXT",
        LaunchStyle::Context as u64,
        "Telegraphos II: contexts and keys, from user level. The default.",
    ),
    (
        "TG_STYLE_LOAD",
        LaunchStyle::Load as u64,
        "The same, but the last access of an atomic is a load that returns its result.",
    ),
];

functions! { BOARD;
    /// Opens the board of that device file, or with NULL the first one.
    fn tg_open(path: *const c_char, node: *mut *mut Node) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            give(node, || match path.is_null() {
                true => Node::open(),
                false => Node::open_path(text(path, "the path")?),
            })
        }
    }

    /// The board that another process has opened, by a file descriptor inherited or received from it, which becomes the
    /// handle's, and is closed if this fails: for its queues, see tg_queue_attach. Of the processes that share it, one
    /// at a time may use quiet, atomics and copies.
    fn tg_open_fd(fd: c_int, node: *mut *mut Node) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            give(node, || {
                if fd < 0 {
                    return Err(Error::Argument {
                        what: "the file descriptor",
                        value: fd.to_string(),
                        expected: "that of an open board".into(),
                    });
                }
                Node::from_fd(OwnedFd::from_raw_fd(fd))
            })
        }
    }

    /// The file descriptor of a board, to pass to another process, or a negative errno. It ends with the handle.
    fn tg_node_fd(node: *const Node) -> c_int {
        // SAFETY: the caller's promise.
        guard(|| Ok(unsafe { given(node, "the node")? }.as_fd().as_raw_fd()))
    }

    /// Closes it; exports, imports and queues made from it stay until they are closed.
    fn tg_close(node: *mut Node) -> () {
        let _ = guard(|| {
            // SAFETY: the caller's promise.
            drop(unsafe { take(node) });
            Ok(0)
        });
    }

    /// This node's id, or a negative errno.
    fn tg_node_id(node: *const Node) -> c_int {
        // SAFETY: the caller's promise.
        guard(|| Ok(unsafe { given(node, "the node")? }.id().into()))
    }
}

functions! { QUIET;
    /// tg_quiet for all imports of a node handle.
    fn tg_quiet_all(node: *const Node) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(node, "the node")? }.quiet()?;
            Ok(0)
        })
    }

    /// tg_quiet_timeout for all imports of a node handle.
    fn tg_quiet_all_timeout(node: *const Node, nanoseconds: u64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(node, "the node")? }.quiet_timeout(Duration::from_nanos(nanoseconds))?;
            Ok(0)
        })
    }
}

functions! { LAUNCHES;
    /// Orders what this node handle stores and launches from now on behind everything before, at whichever nodes; may
    /// wait for it.
    fn tg_fence_all(node: *const Node) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(node, "the node")? }.fence()?;
            Ok(0)
        })
    }

    /// How operations of this node handle are launched from now on: TG_STYLE_*.
    fn tg_set_launch_style(node: *const Node, style: u32) -> c_int {
        guard(|| {
            let style = LaunchStyle::from_u32(style).ok_or_else(|| Error::Argument {
                what: "the launch style",
                value: style.to_string(),
                expected: "TG_STYLE_PLAIN, TG_STYLE_SPECIAL or TG_STYLE_CONTEXT".into(),
            })?;
            // SAFETY: the caller's promise.
            unsafe { given(node, "the node")? }.set_launch_style(style);
            Ok(0)
        })
    }
}

functions! { COMPLETIONS;
    /// An eventfd of the node handle that becomes readable when an armed operation is done or an armed queue has an
    /// element, or a negative errno. Who reads it looks at all of them. It ends with the handle.
    fn tg_completions(node: *const Node) -> c_int {
        // SAFETY: the caller's promise.
        guard(|| Ok(unsafe { given(node, "the node")? }.completions()?.as_raw_fd()))
    }
}

functions! { ERRORS;
    /// Waits until an import of this node handle has an error to report: 1, or 0 after so many milliseconds (negative:
    /// for ever).
    fn tg_wait_error(node: *const Node, milliseconds: i64) -> c_int {
        guard(|| {
            let limit = u64::try_from(milliseconds).ok().map(Duration::from_millis);
            // SAFETY: the caller's promise.
            Ok(unsafe { given(node, "the node")? }.wait_error(limit)?.into())
        })
    }
}
