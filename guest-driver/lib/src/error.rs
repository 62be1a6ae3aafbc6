// SPDX-License-Identifier: MIT OR Apache-2.0
//! Everything that can go wrong: the thing, the value, what was expected, what to do.

use crate::queue::dequeue::{Broken, Fault};
use rustix::io::Errno;
use std::path::PathBuf;
use std::time::Duration;
use telegraphos_wire::{NodeId, Status};

/// Result of this crate's functions.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use telegraphos::{Node, Result};
///
/// fn first_word(node: &Node) -> Result<u64> {
///     node.import(3, "ring").open()?.get64(0)
/// }
/// println!("{}", first_word(&node)?);
/// # Ok(()) }
/// ```
pub type Result<T> = std::result::Result<T, Error>;

/// Why a function of this crate failed.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use telegraphos::{Error, Status};
///
/// let ring = match node.import(3, "ring").open() {
///     Ok(ring) => ring,
///     Err(error) if error.status() == Some(Status::NoSegment) => {
///         println!("node 3 has not exported it yet");
///         return Ok(());
///     }
///     Err(error @ Error::Gone { .. }) => std::process::exit(error.errno()),
///     Err(error) => return Err(error), // its text says what to do
/// };
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no board, or no driver.
    #[error(
        "there is no /dev/telegraphos0: attach a HIB to this machine (lspci -d 7e1e: shows it) and load telegraphos.ko"
    )]
    NoDevice,
    /// The device exists but does not open.
    #[error("{path} does not open: {errno}{}", open_remedy(*.errno))]
    Open {
        /// The device.
        path: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// The driver speaks another version of the interface.
    #[error("{path} speaks version {found} of the interface, this library {expected}: build both from one source")]
    Abi {
        /// The device.
        path: PathBuf,
        /// The driver's version.
        found: u32,
        /// Ours.
        expected: u32,
    },
    /// An argument that can never be right.
    #[error("{what} is {value}: expected {expected}")]
    Argument {
        /// Which.
        what: &'static str,
        /// What was given.
        value: String,
        /// What is possible.
        expected: String,
    },
    /// The driver did not export a segment.
    #[error("segment {name:?} of {size} bytes is not exported: {}", export_reason(*.errno))]
    Export {
        /// Its name.
        name: String,
        /// Its size in bytes.
        size: u64,
        /// The driver's answer.
        errno: Errno,
    },
    /// The driver did not make a replicated segment.
    #[error("replicated segment {name:?} of {size} bytes is not made: {}", replicate_reason(*.status, *.errno))]
    Replicate {
        /// Its name.
        name: String,
        /// Its size in bytes.
        size: u64,
        /// Why, if it is one of the board's reasons.
        status: Option<Status>,
        /// The driver's answer.
        errno: Errno,
    },
    /// The producer of a broadcast has gone on without this consumer, which was too slow.
    #[error("{what}: the producer has gone on without this consumer, which did not keep up: join again, further on")]
    Evicted {
        /// The broadcast.
        what: String,
    },
    /// The driver did not make a queue.
    #[error("queue {name:?} of 1 + {quota} buffers of {words} words is not made: {}", queue_reason(*.errno))]
    Queue {
        /// Its name.
        name: String,
        /// Words of a buffer.
        words: u32,
        /// Buffers that may be linked behind the first.
        quota: u32,
        /// The driver's answer.
        errno: Errno,
    },
    /// A segment or queue of another node was not imported.
    #[error("{}", import_reason(*.object, .name, *.node, *.status, *.errno))]
    Import {
        /// What it is.
        object: Object,
        /// Its name.
        name: String,
        /// The node.
        node: u32,
        /// Why, if it is one of the board's reasons.
        status: Option<Status>,
        /// The driver's answer.
        errno: Errno,
    },
    /// An access does not lie within the object.
    #[error("{length} bytes at offset {offset:#x} of {what}: it has {size} bytes")]
    Bounds {
        /// The object.
        what: String,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// Bytes of the object.
        size: u64,
    },
    /// An access is not naturally aligned; it would arrive in pieces.
    #[error("offset {offset:#x} of {what} is no multiple of {width}: a word of {width} bytes would move in pieces")]
    Misaligned {
        /// The object.
        what: String,
        /// First byte.
        offset: u64,
        /// Bytes of the word.
        width: usize,
    },
    /// The import, or the segment, does not carry the right.
    #[error("{what} is open without the right to {right}: {remedy}")]
    Right {
        /// The object.
        what: String,
        /// "load", "store", "copy to it" and so on.
        right: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// Stores were lost, or the import is gone.
    #[error("{what}: {}{}", status_text(*.status), status_remedy(*.status))]
    Failed {
        /// The object.
        what: String,
        /// Why.
        status: Status,
    },
    /// A word of a queue's buffers cannot be right: a process that maps the queue has written there.
    #[error("{what}: {broken}; {}", broken_remedy(broken.fault))]
    Broken {
        /// The queue.
        what: String,
        /// The word.
        broken: Broken,
    },
    /// It is not done yet; what was asked for goes on.
    #[error("{what}: not done after {waited:?}{}; call again to go on waiting", under_way(*.operations))]
    Pending {
        /// What was waited for.
        what: String,
        /// How long.
        waited: Duration,
        /// Atomics and copies of this context that are not done. Stores are not among them: the board has no word that
        /// counts those.
        operations: u32,
    },
    /// The board was unplugged or is broken.
    #[error("{path} is gone: the board was unplugged or does not answer; when it is back, open it anew")]
    Gone {
        /// The device.
        path: PathBuf,
    },
    /// The operating system refused something else.
    #[error("{what}: {errno}")]
    Os {
        /// What was tried.
        what: String,
        /// Its answer.
        errno: Errno,
    },
}

impl Error {
    /// The board's reason, if there is one.
    pub fn status(&self) -> Option<Status> {
        match self {
            Error::Import { status, .. } | Error::Replicate { status, .. } => *status,
            Error::Failed { status, .. } => Some(*status),
            Error::Export { errno, .. } | Error::Queue { errno, .. } => status_of(*errno),
            Error::Broken { broken, .. } if broken.fault == Fault::Header => Some(Status::QueueHeader),
            _ => None,
        }
    }

    /// The errno that says most of it, for C and for scripts.
    pub fn errno(&self) -> i32 {
        match self {
            Error::NoDevice => Errno::NODEV,
            Error::Open { errno, .. }
            | Error::Export { errno, .. }
            | Error::Queue { errno, .. }
            | Error::Import { errno, .. }
            | Error::Replicate { errno, .. }
            | Error::Os { errno, .. } => *errno,
            Error::Abi { .. } => Errno::PROTO,
            Error::Argument { .. } | Error::Bounds { .. } | Error::Misaligned { .. } => Errno::INVAL,
            Error::Right { .. } => Errno::ACCESS,
            Error::Failed { status, .. } => return errno_of(*status),
            Error::Broken { .. } => Errno::IO,
            Error::Pending { .. } => Errno::AGAIN,
            Error::Evicted { .. } => Errno::OVERFLOW,
            Error::Gone { .. } => Errno::NODEV,
        }
        .raw_os_error()
    }
}

fn under_way(operations: u32) -> String {
    match operations {
        0 => String::new(),
        n => format!(", with {n} atomics and copies under way"),
    }
}

/// Each status with an errno of its own, as the driver maps them; of two with the same, the first is the answer to a
/// lookup.
const ERRNOS: &[(Status, Errno)] = &[
    (Status::Denied, Errno::ACCESS),
    (Status::Rights, Errno::ACCESS),
    (Status::NotGranted, Errno::ACCESS),
    (Status::Unmapped, Errno::NXIO),
    (Status::Stale, Errno::STALE),
    (Status::NodeDown, Errno::HOSTUNREACH),
    (Status::LinkDown, Errno::NETDOWN),
    (Status::Timeout, Errno::TIMEDOUT),
    (Status::BadNode, Errno::INVAL),
    (Status::Invalid, Errno::INVAL),
    (Status::PrivateMemory, Errno::OPNOTSUPP),
    (Status::MemoryFault, Errno::FAULT),
    (Status::NoSegment, Errno::NOENT),
    (Status::Busy, Errno::BUSY),
    (Status::NoSpace, Errno::NOSPC),
    (Status::NameTaken, Errno::EXIST),
    (Status::BadKey, Errno::KEYREJECTED),
    (Status::Length, Errno::MSGSIZE),
    (Status::NotLocal, Errno::XDEV),
    (Status::Overlap, Errno::INVAL),
    (Status::Argument, Errno::INVAL),
    (Status::QueueHeader, Errno::IO),
    (Status::NotQueue, Errno::INVAL),
    (Status::NoHold, Errno::NOSPC),
    (Status::Moving, Errno::BUSY),
    (Status::BadName, Errno::INVAL),
];

/// The errno of a status, 0 for [`Status::Ok`]; what has no better one is EREMOTEIO.
///
/// ```
/// use telegraphos::{Status, errno_of};
///
/// assert_eq!(errno_of(Status::Ok), 0);
/// assert_eq!(errno_of(Status::NoSegment), 2); // ENOENT
/// ```
pub fn errno_of(status: Status) -> i32 {
    if status.is_ok() {
        return 0;
    }
    ERRNOS.iter().find(|(s, _)| *s == status).map_or(Errno::REMOTEIO, |(_, errno)| *errno).raw_os_error()
}

/// The board's reason behind an errno of the driver.
pub(crate) fn status_of(errno: Errno) -> Option<Status> {
    ERRNOS.iter().find(|(_, e)| *e == errno).map(|(status, _)| *status)
}

fn open_remedy(errno: Errno) -> &'static str {
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

fn export_reason(errno: Errno) -> String {
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
            "the size must be 1 byte to the window size per node, the name 1 to 63 printable ASCII characters, the rights known ones".into()
        }
        Errno::OPNOTSUPP => Status::PrivateMemory.describe().into(),
        Errno::NODEV => "the board is gone; when it is back, open it anew".into(),
        other => other.to_string(),
    }
}

fn replicate_reason(status: Option<Status>, errno: Errno) -> String {
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

fn queue_reason(errno: Errno) -> String {
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

fn broken_remedy(fault: Fault) -> &'static str {
    match fault {
        Fault::Header => "a process that maps the queue has written there: close the queue and make it anew",
        Fault::Link | Fault::Ring => {
            "a process that maps the queue has written there: the driver sets the links right at the next overflow, or make the \
             queue anew"
        }
    }
}

fn import_reason(object: Object, name: &str, node: u32, status: Option<Status>, errno: Errno) -> String {
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
            format!("{object} cannot be imported: node id, name or rights are outside what this board knows")
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

/// What an import is of.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use telegraphos::{Error, Object, Queue};
///
/// if let Err(Error::Import { object, node, name, .. }) = Queue::import(&node, 3, "work").open() {
///     assert_eq!((object, node, name.as_str()), (Object::Queue, 3, "work"));
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Object {
    /// A segment.
    Segment,
    /// A notification queue.
    Queue,
    /// A replicated segment.
    Replicated,
}

impl Object {
    /// What to call one.
    pub(crate) fn of(self, name: &str, node: NodeId) -> String {
        format!("{self} {name:?} of node {node}")
    }
}

impl std::fmt::Display for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Object::Segment => "segment",
            Object::Queue => "queue",
            Object::Replicated => "replicated segment",
        })
    }
}

fn status_text(status: Status) -> String {
    let text = status.describe().trim_end_matches('.');
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => String::new(),
    }
}

fn status_remedy(status: Status) -> &'static str {
    match status {
        Status::Stale | Status::NodeDown | Status::NotGranted | Status::Reset => "; import it again",
        Status::LinkDown => "; is the fabric running? Then import it again",
        Status::Cut | Status::Timeout => "; acknowledge to go on, knowing that stores were lost",
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

/// The name as the driver takes it.
pub(crate) fn name_bytes(name: &str) -> Result<[u8; 64]> {
    let bytes = name.as_bytes();
    let printable = bytes.iter().all(|byte| (b' '..=b'~').contains(byte));
    if bytes.is_empty() || bytes.len() > crate::NAME_MAX || !printable {
        return Err(Error::Argument {
            what: "the name",
            value: format!("\"{}\"", name.escape_default()),
            expected: format!("1 to {} printable ASCII characters", crate::NAME_MAX),
        });
    }
    let mut out = [0; 64];
    out[..bytes.len()].copy_from_slice(bytes);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_an_errno_and_a_text() {
        assert_eq!(errno_of(Status::Ok), 0);
        for (name, value, _) in &Status::ALL[1..] {
            let status = Status::from_u16(*value as u16);
            assert!(errno_of(status) > 0, "{name}");
            let text = Error::Failed { what: "segment \"x\" of node 1".into(), status }.to_string();
            assert!(text.starts_with("segment \"x\" of node 1: ") && text.len() > 30, "{text}");
        }
    }

    #[test]
    fn errnos_of_the_driver_are_understood() {
        for (errno, status) in [
            (Errno::NOENT, Status::NoSegment),
            (Errno::ACCESS, Status::Denied),
            (Errno::HOSTUNREACH, Status::NodeDown),
            (Errno::NETDOWN, Status::LinkDown),
            (Errno::EXIST, Status::NameTaken),
        ] {
            assert_eq!(status_of(errno), Some(status));
            assert_eq!(errno_of(status), errno.raw_os_error());
        }
        assert_eq!(status_of(Errno::NODEV), None);
    }

    #[test]
    fn messages_name_thing_value_and_remedy() {
        let import = |status| Error::Import {
            object: Object::Segment,
            name: "x".into(),
            node: 3,
            status: Some(status),
            errno: Errno::NOENT,
        };
        assert_eq!(
            import(Status::NoSegment).to_string(),
            "segment \"x\" of node 3 does not exist: is its owner running?"
        );
        assert!(import(Status::NodeDown).to_string().contains("node 3 is not in the cluster"));
        assert!(import(Status::Denied).to_string().contains("does not admit"));
        let open = Error::Open { path: "/dev/telegraphos0".into(), errno: Errno::ACCESS }.to_string();
        assert!(open.contains("/dev/telegraphos0") && open.contains("group"), "{open}");
        let bounds = Error::Bounds { what: "segment \"x\"".into(), offset: 64, length: 8, size: 64 };
        assert_eq!(bounds.to_string(), "8 bytes at offset 0x40 of segment \"x\": it has 64 bytes");
        assert_eq!(bounds.errno(), Errno::INVAL.raw_os_error());
        let pending = |operations| {
            Error::Pending { what: "a copy".into(), waited: Duration::from_secs(1), operations }.to_string()
        };
        assert_eq!(pending(0), "a copy: not done after 1s; call again to go on waiting");
        assert!(pending(3).contains("3 atomics and copies under way"), "{}", pending(3));
    }

    #[test]
    fn names_are_checked() {
        assert!(name_bytes("").is_err());
        assert!(name_bytes("a\0b").is_err());
        for forged in ["a\nhib 0: all is well", "\u{1b}[2J", "a\u{7f}", "gr\u{f6}\u{df}e"] {
            let error = name_bytes(forged).unwrap_err().to_string();
            assert!(error.chars().all(|c| c.is_ascii_graphic() || c == ' '), "{error:?}");
        }
        assert!(name_bytes(&"x".repeat(64)).is_err());
        let longest = name_bytes(&"x".repeat(63)).unwrap();
        assert_eq!(longest[62..], [b'x', 0]);
        assert_eq!(name_bytes("ab").unwrap()[..3], *b"ab\0");
    }
}
