// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why something failed, and what to do about it: the texts of errors.

use super::object::Object;
use crate::queue::dequeue::Fault;
use rustix::io::Errno;
use telegraphos_wire::Status;

/// How many operations are in flight, if any.
pub(super) fn under_way(operations: u32) -> String {
    match operations {
        0 => String::new(),
        n => format!(", with {n} atomics and copies under way"),
    }
}

/// What to do about a device file that does not open.
pub(super) fn open_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::ACCESS | Errno::PERM => {
            "; only root and its group may open it: add the user to that group (ls -l shows it)"
        }
        Errno::NOENT => "; is a HIB attached and telegraphos.ko loaded?",
        Errno::NODEV | Errno::NXIO => "; the board is gone or does not answer: look into the kernel log",
        Errno::BUSY => "; all contexts of the board are in use: close other programs that use it",
        Errno::NOSPC => {
            "; this process, or this user, has its share of the board's contexts: close other programs that use it, or load the \
             driver with larger shares (file_share, user_share, reserve)"
        }
        _ => "",
    }
}

/// A trust group, or that there is none.
pub(super) fn own_group(own: &Option<String>) -> String {
    match own {
        Some(group) => format!("trust group {group:?}"),
        None => "no trust group: name it when the cluster is started (--trust, or a table [[trust]])".into(),
    }
}

/// Why a segment was not exported, and what to do.
pub(super) fn export_reason(errno: Errno) -> String {
    match errno {
        Errno::EXIST => "this node already exports that name; choose another, or withdraw the old one".into(),
        Errno::NOMEM => {
            "there is not enough memory, or it exceeds the limit on locked memory (ulimit -l): ask for less, or raise it"
                .into()
        }
        Errno::NOSPC => {
            "the board's export table is full, or this process or this user has its share of it: withdraw something first".into()
        }
        Errno::INVAL => {
            "the size must be 1 byte to the window size per node, the name 1 to 63 printable ASCII characters \
             (of a connection 1 to 8 small letters; none begins with tcp:), the rights known ones"
                .into()
        }
        Errno::OPNOTSUPP => Status::PrivateMemory.describe().into(),
        Errno::NODEV => "the board is gone; when it is back, open it anew".into(),
        other => other.to_string(),
    }
}

/// Why memory was not registered, and what to do.
pub(super) fn register_reason(fault: Option<u64>, errno: Errno) -> String {
    match errno {
        Errno::FAULT => {
            let at = fault.map_or_else(String::new, |page| format!("the page at {page:#x} cannot be pinned: "));
            format!(
                "{at}all of it must be mapped, writable, and anonymous, of huge pages, or of a file in memory (memfd, tmpfs): \
                 pages that the kernel writes back to a disk cannot stay pinned"
            )
        }
        Errno::NOMEM => {
            "it exceeds the limit on locked memory (ulimit -l), or there is not enough memory: register less, or raise it".into()
        }
        Errno::NOSPC => {
            "the board's table of runs or of imports is full, or this process or this user has its share of it: end other \
             registrations first, or use huge pages"
                .into()
        }
        Errno::INVAL => {
            "it has 1 byte to 16 GiB; a name has 1 to 63 printable ASCII characters, and needs rights".into()
        }
        Errno::BUSY => "its pages do not stop to change: another thread unmaps or discards them".into(),
        other => export_reason(other),
    }
}

/// Why a replicated segment was not created, and what to do.
pub(super) fn replicate_reason(status: Option<Status>, errno: Errno) -> String {
    match (status, errno) {
        (_, Errno::NOSPC) => {
            "the board's table of exports or of imports is full, or this process or this user has its share of them, or this \
             process has 256 replicated segments: leave some first"
                .into()
        }
        (Some(Status::NameTaken), _) | (None, Errno::EXIST | Errno::NOMEM | Errno::INVAL | Errno::OPNOTSUPP | Errno::NODEV) => {
            export_reason(errno)
        }
        (Some(status), _) => format!("{}{}", status_text(status), status_remedy(status)),
        (None, errno) => errno.to_string(),
    }
}

/// Why a queue was not created, and what to do.
pub(super) fn queue_reason(errno: Errno) -> String {
    match errno {
        Errno::INVAL => {
            "a buffer is a power of two words from 8 on, of 4 or 8 bytes and at most 64 KiB in all; the quota is 1 to 1024, the limit \
             at most the quota, the name 1 to 63 printable ASCII characters"
                .into()
        }
        Errno::NOMEM => {
            "there is not enough memory, or it exceeds the limit on locked memory (ulimit -l): ask for a smaller quota or smaller \
             buffers, or raise it"
                .into()
        }
        errno => export_reason(errno),
    }
}

/// What to do about an invalid word in a queue.
pub(super) fn broken_remedy(fault: Fault) -> &'static str {
    match fault {
        Fault::Header => "a process that maps the queue has written there: close the queue and make it anew",
        Fault::Link | Fault::Ring => {
            "a process that maps the queue has written there: the driver sets the links right at the next overflow, or make the \
             queue anew"
        }
    }
}

/// Why an object was not imported, and what to do.
pub(super) fn import_reason(object: Object, name: &str, node: u32, status: Option<Status>, errno: Errno) -> String {
    let kind = object;
    let object = format!("{kind} {name:?} of node {node}");
    match status {
        Some(Status::NoSegment) => format!("{object} does not exist: is its owner running?"),
        Some(Status::NotQueue) if kind == Object::Queue => {
            format!("{object} cannot be imported: it is a segment, not a queue; Node::import opens it")
        }
        Some(Status::NotHome) if kind == Object::Replicated => {
            format!(
                "{object} cannot be joined: it is not replicated in this mode there, or that node is not its home, which may have moved; \
                 ask one of its nodes for it"
            )
        }
        Some(Status::Busy) if kind == Object::Replicated => {
            format!(
                "{object} cannot be joined: this node has a copy of it already, or its home is not ready; try again"
            )
        }
        Some(Status::NoHold) => format!(
            "{object} cannot be imported: node {node} has no hold slots left for another import of a queue; close some \
             imports of its queues, or start its HIB with more (holds)"
        ),
        Some(Status::Denied | Status::Rights | Status::NotGranted) => format!(
            "{object} does not admit this process: the exporter's rights, list of nodes or secret say no; ask for fewer \
             rights, or ask the exporter"
        ),
        Some(Status::NodeDown) => {
            format!("{object} cannot be reached: node {node} is not in the cluster at present; start it")
        }
        Some(Status::LinkDown) => {
            format!("{object} cannot be reached: this node's link to the fabric is down; is the fabric running?")
        }
        Some(Status::Timeout) => format!("{object}: node {node} did not answer in time; try again"),
        Some(Status::BadNode | Status::Invalid) => {
            format!("{object} cannot be imported: node id, name or rights are outside the limits of this board")
        }
        Some(Status::NoSpace) => {
            format!(
                "{object} cannot be imported: the board's table of imports or the window is full, or this process or this user has \
                 its share of them; close some first"
            )
        }
        Some(other) => format!("{object} cannot be imported: {}{}", status_text(other), status_remedy(other)),
        None if errno == Errno::NODEV => {
            format!("{object} cannot be imported: the board is gone; when it is back, open it anew")
        }
        None => format!("{object} cannot be imported: {errno}"),
    }
}

/// The description of a status, as the continuation of a sentence.
pub(super) fn status_text(status: Status) -> String {
    let text = status.describe().trim_end_matches('.');
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => String::new(),
    }
}

/// What to do about a status; empty if nothing helps.
pub(super) fn status_remedy(status: Status) -> &'static str {
    match status {
        Status::Stale | Status::NodeDown | Status::NotGranted | Status::Reset => "; import it again",
        Status::LinkDown => "; is the fabric running? Then import it again",
        Status::Cut | Status::Timeout => "; acknowledge to continue, knowing that stores were lost",
        Status::Rights => "; import it with that right",
        Status::Bounds => "; stay within its size",
        Status::BadKey => "; import it again",
        Status::Overlap => "; copy by way of other memory",
        Status::NotLocal => "; copy by way of memory of this node",
        Status::NoSpace => {
            "; its table is full, or this process or this user has its share of it (file_share, user_share): close something first"
        }
        Status::QueueHeader => "; a process that maps the queue has written there: make it anew, and import it again",
        Status::NotHome => {
            "; ask one of its nodes for its home and join, import or take it there; if it has gone, one of them adopts it"
        }
        Status::Moving | Status::Busy => "; try again",
        Status::Invalidated => "; load again",
        Status::NotQueue => "; enqueue through Queue::import only",
        _ => "",
    }
}
