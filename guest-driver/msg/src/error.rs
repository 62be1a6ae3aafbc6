// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why something failed.

use rustix::io::Errno;
use std::time::Duration;
use telegraphos_msg_core::{ConfigError, Error as Refused, Failure, Process};

/// Why a message was not sent or received, or a process not reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A field of the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A number of ports.
    #[error("ports is {ports}: expected 1 to {most}")]
    Ports {
        /// The number.
        ports: u16,
        /// The most that there may be.
        most: u16,
    },
    /// How it is to take part in routing.
    #[error("routing: {0}")]
    Routing(String),
    /// The board or its driver.
    #[error(transparent)]
    Board(#[from] telegraphos::Error),
    /// A message that is longer than the memory that it is in.
    #[error("a message of {length} bytes from memory of {most}")]
    Beyond {
        /// Bytes of the message.
        length: usize,
        /// Bytes of the memory.
        most: usize,
    },
    /// Refused at once.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// It ended without a message.
    #[error("the message was not delivered: {0}")]
    Failed(#[from] Failure),
    /// It has not ended in the given time, and was withdrawn.
    #[error("no message within {0:?}")]
    TimedOut(Duration),
    /// A process that does not answer.
    #[error("{process} has not answered within {time:?}: is it there, and does it admit this user?")]
    NoAnswer {
        /// The process.
        process: Process,
        /// How long it was waited for.
        time: Duration,
    },
    /// A process that is not to be connected to.
    #[error("{process} is not reached: {why}")]
    NotReached {
        /// The process.
        process: Process,
        /// Why.
        why: String,
    },
    /// A process whose sizes are others.
    #[error("{0} has another configuration: slots, block, fragments, eager and longest must be the same")]
    Unlike(Process),
    /// No process has that name.
    #[error("no process of node {node} has the name {name:?}")]
    NoName {
        /// The node.
        node: u16,
        /// The name.
        name: String,
    },
    /// This process is a child, made by `fork`, of the one that has opened the messages: it has neither their memory
    /// nor their threads.
    #[error("the messages are of the process {opener}, of which this one is a child: open others here")]
    Forked {
        /// The process that has opened them.
        opener: u32,
    },
    /// These messages have been closed.
    #[error("the messages of this process have been closed")]
    Closed,
}

impl Error {
    /// The closest errno, for C and for scripts.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Board(error) => return error.errno(),
            Error::Config(_) | Error::Ports { .. } | Error::Routing(_) | Error::Beyond { .. } => Errno::INVAL,
            Error::Refused(refused) => match refused {
                Refused::NoProcess(_) => Errno::CONNRESET,
                Refused::Connected(_) => Errno::ISCONN,
                Refused::NoThread(_) => Errno::SRCH,
                Refused::ThreadOpen(_) => Errno::EXIST,
                Refused::TooLong { .. } => Errno::MSGSIZE,
                Refused::NoPlace { .. } => Errno::INVAL,
                Refused::Peers(_) | Refused::Threads(_) | Refused::Sends(_) | Refused::Receives(_) => Errno::NOBUFS,
            },
            Error::Failed(failure) => match failure {
                Failure::Gone => Errno::CONNRESET,
                Failure::NoThread => Errno::SRCH,
                Failure::Withdrawn => Errno::CANCELED,
                Failure::Closed => Errno::SHUTDOWN,
                Failure::Failed => Errno::IO,
            },
            Error::TimedOut(_) => Errno::AGAIN,
            Error::NoAnswer { .. } => Errno::TIMEDOUT,
            Error::NotReached { .. } => Errno::HOSTUNREACH,
            Error::Unlike(_) => Errno::PROTO,
            Error::NoName { .. } => Errno::NOENT,
            Error::Closed => Errno::SHUTDOWN,
            Error::Forked { .. } => Errno::STALE,
        }
        .raw_os_error()
    }
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errnos_are_those_of_the_header() {
        let process = Process { node: 1, number: 2 };
        for (error, errno) in [
            (Error::Failed(Failure::Gone), Errno::CONNRESET),
            (Error::Refused(Refused::NoProcess(process)), Errno::CONNRESET),
            (Error::Failed(Failure::NoThread), Errno::SRCH),
            (Error::NotReached { process, why: "x".into() }, Errno::HOSTUNREACH),
            (Error::NoAnswer { process, time: Duration::ZERO }, Errno::TIMEDOUT),
            (Error::Unlike(process), Errno::PROTO),
            (Error::Closed, Errno::SHUTDOWN),
            (Error::Forked { opener: 1 }, Errno::STALE),
            (Error::Failed(Failure::Closed), Errno::SHUTDOWN),
            (Error::Failed(Failure::Withdrawn), Errno::CANCELED),
            (Error::TimedOut(Duration::ZERO), Errno::AGAIN),
            (Error::NoName { node: 1, name: "x".into() }, Errno::NOENT),
            (Error::Board(telegraphos::Error::NoDevice), Errno::NODEV),
        ] {
            assert_eq!(error.errno(), errno.raw_os_error(), "{error}");
        }
    }
}
