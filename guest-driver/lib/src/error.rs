// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors: the object, the value, what was expected, what to do.

mod object;
mod reason;
mod status;

pub use object::Object;
pub use status::errno_of;
pub(crate) use status::status_of;

use crate::queue::dequeue::{Broken, Fault};
use reason::{
    broken_remedy, export_reason, import_reason, open_remedy, own_group, queue_reason, register_reason,
    replicate_reason, status_remedy, status_text, under_way,
};
use rustix::io::Errno;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use telegraphos_wire::Status;

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
    /// No board, or no driver, was found.
    #[error(
        "there is no /dev/telegraphos0: attach a HIB to this machine (lspci -d 7e1e: shows it) and load telegraphos.ko"
    )]
    NoDevice,
    /// The device file exists but does not open.
    #[error("{path} does not open: {errno}{}", open_remedy(*.errno))]
    Open {
        /// The device.
        path: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// The driver has another version of the interface.
    #[error("{path} speaks version {found} of the interface, this library {expected}: build both from one source")]
    Abi {
        /// The device.
        path: PathBuf,
        /// The driver's version.
        found: u32,
        /// The version of this library.
        expected: u32,
    },
    /// An argument that is never valid.
    #[error("{what} is {value}: expected {expected}")]
    Argument {
        /// The argument.
        what: &'static str,
        /// Its value.
        value: String,
        /// The valid values.
        expected: String,
    },
    /// The driver did not export a segment.
    #[error("segment {name:?} of {size} bytes is not exported: {}", export_reason(*.errno))]
    Export {
        /// Its name.
        name: String,
        /// Its size in bytes.
        size: u64,
        /// The driver's error.
        errno: Errno,
    },
    /// The driver did not register memory.
    #[error("{length} bytes of memory at {address:#x} are not registered: {}", register_reason(*.fault, *.errno))]
    Register {
        /// Their address.
        address: u64,
        /// How many.
        length: u64,
        /// Address of the first page that cannot be pinned, if that is why.
        fault: Option<u64>,
        /// The driver's error.
        errno: Errno,
    },
    /// A direct segment outside its trust group.
    #[error("segment {name:?} is not exported in trust group {group:?}: this node is in {}", own_group(.own))]
    Outside {
        /// Its name.
        name: String,
        /// The group that was asked for.
        group: String,
        /// This node's group.
        own: Option<String>,
    },
    /// The driver did not create a replicated segment.
    #[error("replicated segment {name:?} of {size} bytes is not made: {}", replicate_reason(*.status, *.errno))]
    Replicate {
        /// Its name.
        name: String,
        /// Its size in bytes.
        size: u64,
        /// Why, if it is one of the board's reasons.
        status: Option<Status>,
        /// The driver's error.
        errno: Errno,
    },
    /// The producer of a broadcast has evicted this consumer, which was too slow.
    #[error("{what}: the producer has gone on without this consumer, which did not keep up: join again, further on")]
    Evicted {
        /// The broadcast.
        what: String,
    },
    /// The driver did not create a queue.
    #[error("queue {name:?} of 1 + {quota} buffers of {words} words is not made: {}", queue_reason(*.errno))]
    Queue {
        /// Its name.
        name: String,
        /// Words of a buffer.
        words: u32,
        /// Buffers that may be linked behind the first.
        quota: u32,
        /// The driver's error.
        errno: Errno,
    },
    /// A segment or queue of another node was not imported.
    #[error("{}", import_reason(*.object, .name, *.node, *.status, *.errno))]
    Import {
        /// The kind of object.
        object: Object,
        /// Its name.
        name: String,
        /// The node.
        node: u32,
        /// Why, if it is one of the board's reasons.
        status: Option<Status>,
        /// The driver's error.
        errno: Errno,
    },
    /// An access exceeds the object.
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
    /// The import, or the segment, does not have the right.
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
    /// A word of a queue's buffers is invalid: a process that maps the queue has written there.
    #[error("{what}: {broken}; {}", broken_remedy(broken.fault))]
    Broken {
        /// The queue.
        what: String,
        /// The word.
        broken: Broken,
    },
    /// It is not done within the limit; it continues.
    #[error("{what}: not done after {waited:?}{}; call again to continue waiting", under_way(*.operations))]
    Pending {
        /// What was waited for.
        what: String,
        /// The time waited.
        waited: Duration,
        /// Atomics and copies of this context that are not done. Stores are not counted: the board has no word for
        /// them.
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
        /// Its error.
        errno: Errno,
    },
}

impl Error {
    /// [`Error::Argument`].
    pub(crate) fn argument(what: &'static str, value: impl fmt::Display, expected: impl Into<String>) -> Error {
        Error::Argument { what, value: value.to_string(), expected: expected.into() }
    }

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

    /// The closest errno, for C and for scripts.
    pub fn errno(&self) -> i32 {
        match self {
            Error::NoDevice => Errno::NODEV,
            Error::Open { errno, .. }
            | Error::Export { errno, .. }
            | Error::Register { errno, .. }
            | Error::Queue { errno, .. }
            | Error::Import { errno, .. }
            | Error::Replicate { errno, .. }
            | Error::Os { errno, .. } => *errno,
            Error::Outside { .. } => Errno::XDEV,
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

/// The error in a status field, if there is one.
pub(crate) fn latched(status: u32) -> Option<Status> {
    Some(Status::from_u16(status as u16)).filter(|status| !status.is_ok())
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
        assert_eq!(pending(0), "a copy: not done after 1s; call again to continue waiting");
        assert!(pending(3).contains("3 atomics and copies under way"), "{}", pending(3));
    }
}
