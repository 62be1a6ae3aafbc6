// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open boards.

use super::{call, free, give, text};
use crate::{Error, LaunchStyle, Node};
use std::ffi::{c_char, c_int};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Names and comments of the values of `tg_set_launch_style`, by their numbers.
pub(super) const STYLES: [(&str, &str); 4] = [
    ("TG_STYLE_PLAIN", "A system call that does everything in the kernel; needs telegraphos_lab.ko."),
    ("TG_STYLE_SPECIAL", "Telegraphos I: special mode, in a system call; needs telegraphos_lab.ko."),
    ("TG_STYLE_CONTEXT", "Telegraphos II: contexts and keys, from user level. The default."),
    ("TG_STYLE_LOAD", "The same, but the last access of an atomic is a load that returns its result."),
];

c_functions! { BOARD;
    /// Opens the board of that device file, or with NULL the first one.
    fn tg_open(path: *const c_char, node: *mut *mut Node) -> c_int = give(node, || match path.is_null() {
        true => Node::open(),
        false => Node::open_path(text(path, "the path")?),
    });

    /// The board that another process has opened, by a file descriptor inherited or received from it, which belongs to
    /// the handle then, and is closed if this fails: for its queues, see tg_queue_attach. Of the processes that share
    /// it, only one at a time may use quiet, atomics and copies.
    fn tg_open_fd(fd: c_int, node: *mut *mut Node) -> c_int = give(node, || {
        if fd < 0 {
            return Err(Error::argument("the file descriptor", fd, "that of an open board"));
        }
        Node::from_fd(OwnedFd::from_raw_fd(fd))
    });

    /// The file descriptor of a board, to pass to another process, or a negative errno. It ends with the handle.
    fn tg_node_fd(node: *const Node) -> c_int = call(node, |node| Ok(node.as_fd().as_raw_fd()));

    /// Closes a board; exports, imports and queues made from it stay until they are closed.
    fn tg_close(node: *mut Node) -> () = free(node);

    /// This node's id, or a negative errno.
    fn tg_node_id(node: *const Node) -> c_int = call(node, |node| Ok(c_int::from(node.id())));
}

c_functions! { QUIET;
    /// tg_quiet for all imports of a node handle.
    fn tg_quiet_all(node: *const Node) -> c_int = call(node, Node::quiet);

    /// tg_quiet_timeout for all imports of a node handle.
    fn tg_quiet_all_timeout(node: *const Node, nanoseconds: u64) -> c_int =
        call(node, |node| node.quiet_timeout(Duration::from_nanos(nanoseconds)));
}

c_functions! { LAUNCHES;
    /// Orders what this node handle stores and launches from now on behind everything before, on any node; may wait for
    /// it.
    fn tg_fence_all(node: *const Node) -> c_int = call(node, Node::fence);

    /// How operations of this node handle are launched from now on: TG_STYLE_*.
    fn tg_set_launch_style(node: *const Node, style: u32) -> c_int = call(node, |node| {
        let style = LaunchStyle::from_u32(style).ok_or_else(|| {
            Error::argument("the launch style", style, "TG_STYLE_PLAIN, _SPECIAL, _CONTEXT or _LOAD")
        })?;
        node.set_launch_style(style);
        Ok(())
    });
}

c_functions! { COMPLETIONS;
    /// An eventfd of the node handle that becomes readable when an armed operation is done or an armed queue has an
    /// element, or a negative errno. After reading it, check all of them. It ends with the handle.
    fn tg_completions(node: *const Node) -> c_int = call(node, |node| Ok(node.completions()?.as_raw_fd()));
}

c_functions! { ERRORS;
    /// Waits until an import of this node handle has an error to report: 1, or 0 after so many milliseconds (negative:
    /// for ever).
    fn tg_wait_error(node: *const Node, milliseconds: i64) -> c_int =
        call(node, |node| node.wait_error(u64::try_from(milliseconds).ok().map(Duration::from_millis)));
}
