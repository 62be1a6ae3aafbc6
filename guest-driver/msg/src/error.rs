// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why something failed.

use std::time::Duration;
use telegraphos_msg_core::{ConfigError, Failure, Process};

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
    Refused(#[from] telegraphos_msg_core::Error),
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
    /// These messages have been closed.
    #[error("the messages of this process have been closed")]
    Closed,
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
